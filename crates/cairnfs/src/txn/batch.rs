//! Fsyncs that are served together: one writes the log and flushes, the others sleep until it is over.
//!
//! Whoever finds no open batch opens one and leads it. It stays open while its leader waits for the
//! log's head, so whoever comes while another batch is being written finds it; it is closed when its
//! inodes are taken up. Who joins sleeps once, and is woken when the flush is over.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex};
use crate::txn::FsyncRequest;

/// How a batch ended.
#[derive(Default)]
struct End {
    result: Mutex<Option<Result<()>>>,
    known: Condvar,
}

/// The requests of a batch; most often one.
pub(super) type FsyncRequests = SmallVec<[FsyncRequest; 2]>;

/// A batch that others may join.
struct Open {
    requests: FsyncRequests,
    end: Arc<End>,
}

/// Inodes to be made durable.
#[derive(Default)]
pub(super) struct Batches {
    open: Mutex<Option<Open>>,
}

/// A batch led by the calling thread; ends with an error unless told another result.
pub(super) struct Lead<'a> {
    batches: &'a Batches,
    end: Arc<End>,
    result: Result<()>,
}

impl Batches {
    /// Joins the open batch and returns what came of it; or opens one, to be led by the caller.
    pub fn join(&self, requests: &[FsyncRequest]) -> std::result::Result<Result<()>, Lead<'_>> {
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
        Err(Lead {
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

impl Lead<'_> {
    /// Closes the batch and takes its requests.
    pub fn close(&self) -> FsyncRequests {
        let mut open = self.batches.open.lock();
        let own = open.take_if(|batch| Arc::ptr_eq(&batch.end, &self.end));
        own.map(|batch| batch.requests).unwrap_or_default()
    }

    /// Ends the batch: tells all who joined.
    pub fn end(mut self, result: Result<()>) -> Result<()> {
        self.result = result;
        self.result.clone()
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        // What was not taken up has no other who would.
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

    fn lead(batches: &Batches, ino: u64) -> Lead<'_> {
        batches.join(&request(ino)).err().unwrap()
    }

    /// What two callers get who join a batch before something is done with it.
    fn joined<'a>(
        batches: &'a Batches,
        lead: Lead<'a>,
        then: impl FnOnce(Lead<'a>),
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
    fn who_joins_is_served_by_the_leader() {
        let batches = Batches::default();
        let results = joined(&batches, lead(&batches, 7), |lead| {
            let mut inodes: Vec<u64> = lead.close().iter().map(|w| w.ino).collect();
            inodes.sort_unstable();
            assert_eq!(inodes, [7, 8, 9]);
            assert!(lead.close().is_empty());
            // Who comes now is not taken up by this one, and opens the next.
            let next = self::lead(&batches, 10);
            lead.end(Ok(())).unwrap();
            assert_eq!(next.close().len(), 1);
            next.end(Ok(())).unwrap();
        });
        assert!(results.iter().all(Result::is_ok));
    }

    #[test]
    fn a_failure_is_told_to_all_and_to_nobody_later() {
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
