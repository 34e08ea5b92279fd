//! Group commit of fsyncs: one thread writes the log and flushes, the others sleep until it is
//! done.
//!
//! A thread that finds no open batch opens one and becomes its flush leader. The batch stays open
//! while the leader waits for the log's head, so requests that arrive while another batch is being
//! written join it. The leader closes it when it gathers the inodes. A joined thread sleeps once
//! and is woken after the flush.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex};
use crate::txn::fsync::FsyncRequest;

/// Result of a batch, and the wait for it.
#[derive(Default)]
struct End {
    result: Mutex<Option<Result<()>>>,
    known: Condvar,
}

/// The requests of a batch; usually one.
pub(super) type FsyncRequests = SmallVec<[FsyncRequest; 2]>;

/// A batch that other threads may join.
struct Open {
    requests: FsyncRequests,
    end: Arc<End>,
}

/// The open batch, if there is one.
#[derive(Default)]
pub(in crate::txn) struct Batches {
    open: Mutex<Option<Open>>,
}

/// A batch led by the calling thread. Dropping it without [`Self::end`] ends the batch with an
/// error.
pub(in crate::txn) struct BatchLeader<'a> {
    batches: &'a Batches,
    end: Arc<End>,
    result: Result<()>,
}

impl Batches {
    /// Joins the open batch and returns its result; or opens a batch, to be led by the caller.
    pub fn join(
        &self,
        requests: &[FsyncRequest],
    ) -> std::result::Result<Result<()>, BatchLeader<'_>> {
        let mut open = self.open.lock();
        if let Some(batch) = open.as_mut() {
            batch.requests.extend_from_slice(requests);
            let end = batch.end.clone();
            drop(open);
            return Ok(end.wait());
        }
        let end = Arc::new(End::default());
        *open = Some(Open {
            requests: requests.into(),
            end: end.clone(),
        });
        Err(BatchLeader {
            batches: self,
            end,
            result: Err(Error::Invalid("an fsync was broken off")),
        })
    }
}

impl End {
    fn wait(&self) -> Result<()> {
        let mut result = self.result.lock();
        loop {
            match result.as_ref() {
                Some(result) => return result.clone(),
                None => self.known.wait(&mut result),
            }
        }
    }
}

impl BatchLeader<'_> {
    /// Closes the batch and takes its requests.
    pub fn close(&self) -> FsyncRequests {
        let mut open = self.batches.open.lock();
        let own = open.take_if(|batch| Arc::ptr_eq(&batch.end, &self.end));
        own.map(|batch| batch.requests).unwrap_or_default()
    }

    /// Ends the batch with `result` and wakes all joined threads.
    pub fn end(mut self, result: Result<()>) -> Result<()> {
        self.result = result;
        self.result.clone()
    }
}

impl Drop for BatchLeader<'_> {
    fn drop(&mut self) {
        // No other thread would serve a batch that was not closed.
        self.close();
        *self.end.result.lock() = Some(self.result.clone());
        self.end.known.notify_all();
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    fn request(ino: u64) -> [FsyncRequest; 1] {
        [FsyncRequest {
            ino,
            data_only: false,
        }]
    }

    fn lead(batches: &Batches, ino: u64) -> BatchLeader<'_> {
        batches.join(&request(ino)).err().unwrap()
    }

    /// Results of two callers that join a batch before `then` runs.
    fn joined<'a>(
        batches: &'a Batches,
        lead: BatchLeader<'a>,
        then: impl FnOnce(BatchLeader<'a>),
    ) -> Vec<Result<()>> {
        std::thread::scope(|scope| {
            let follow = |ino: u64| move || batches.join(&request(ino)).ok().unwrap();
            let threads = [8, 9].map(|ino| scope.spawn(follow(ino)));
            let count = || batches.open.lock().as_ref().map_or(0, |b| b.requests.len());
            while count() < 3 {
                std::thread::yield_now();
            }
            then(lead);
            threads.map(|t| t.join().unwrap()).into()
        })
    }

    #[test]
    fn joined_request_is_served_by_batch_leader() {
        let batches = Batches::default();
        let results = joined(&batches, lead(&batches, 7), |lead| {
            let mut inodes: Vec<u64> = lead.close().iter().map(|w| w.ino).collect();
            inodes.sort_unstable();
            assert_eq!(inodes, [7, 8, 9]);
            assert!(lead.close().is_empty());
            // A later request does not join this batch, but opens the next.
            let next = self::lead(&batches, 10);
            lead.end(Ok(())).unwrap();
            assert_eq!(next.close().len(), 1);
            next.end(Ok(())).unwrap();
        });
        assert!(results.iter().all(Result::is_ok));
    }

    #[test]
    fn batch_failure_reaches_all_joined_and_no_later_batch() {
        let batches = Batches::default();
        let results = joined(&batches, lead(&batches, 7), |lead| {
            lead.end(Err(Error::NoSpace)).unwrap_err();
        });
        assert!(results.iter().all(|r| matches!(r, Err(Error::NoSpace))));
        let results = joined(&batches, lead(&batches, 7), drop);
        assert!(results.iter().all(|r| matches!(r, Err(Error::Invalid(_)))));
        lead(&batches, 7).end(Ok(())).unwrap();
    }
}
