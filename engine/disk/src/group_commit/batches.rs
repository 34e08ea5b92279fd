//! Requests that form a batch, which has one result.
//!
//! A thread that finds no open batch opens one and leads it. The batch stays open until the leader
//! closes it, which may be long after: requests that arrive while the leader waits, for example for
//! the batch before, join it. A follower sleeps once.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::sync::{Condvar, Mutex};

/// Batches of requests of type `T` with results of type `R`; at most one is open.
pub struct Batches<T, R> {
    open: Mutex<Option<Open<T, R>>>,
}

/// A batch that other threads may join.
struct Open<T, R> {
    requests: SmallVec<[T; 2]>,
    end: Arc<End<R>>,
}

/// The end of a batch, and the wait for it.
struct End<R> {
    /// Once it has ended, its result; none if the leader gave it up.
    result: Mutex<Option<Option<R>>>,
    known: Condvar,
}

/// What [`Batches::join`] led to.
pub enum Joined<'a, T, R> {
    /// The caller leads a new batch.
    Leader(BatchLeader<'a, T, R>),
    /// Another thread led the batch, and this is its result; none if it gave the batch up.
    Follower(Option<R>),
}

/// A batch that the calling thread leads. Dropping it without [`Self::end`] gives the batch up.
pub struct BatchLeader<'a, T, R> {
    batches: &'a Batches<T, R>,
    end: Arc<End<R>>,
    result: Option<R>,
}

impl<T, R> Default for Batches<T, R> {
    fn default() -> Self {
        Self {
            open: Mutex::new(None),
        }
    }
}

impl<T: Clone, R: Clone> Batches<T, R> {
    /// Adds requests to the open batch and waits for its end; or opens a batch, to be led by the
    /// caller.
    pub fn join(&self, requests: &[T]) -> Joined<'_, T, R> {
        let mut open = self.open.lock();
        if let Some(batch) = open.as_mut() {
            batch.requests.extend(requests.iter().cloned());
            let end = batch.end.clone();
            drop(open);
            return Joined::Follower(end.wait());
        }
        let end = Arc::new(End {
            result: Mutex::new(None),
            known: Condvar::new(),
        });
        *open = Some(Open {
            requests: requests.into(),
            end: end.clone(),
        });
        Joined::Leader(BatchLeader {
            batches: self,
            end,
            result: None,
        })
    }

    /// Number of requests of the open batch.
    #[cfg(test)]
    #[cfg(not(shuttle))]
    pub(super) fn waiting(&self) -> usize {
        let open = self.open.lock();
        open.as_ref().map_or(0, |batch| batch.requests.len())
    }
}

impl<R: Clone> End<R> {
    fn wait(&self) -> Option<R> {
        let mut result = self.result.lock();
        loop {
            match result.as_ref() {
                Some(result) => return result.clone(),
                None => self.known.wait(&mut result),
            }
        }
    }
}

impl<T, R> BatchLeader<'_, T, R> {
    /// Closes the batch and takes its requests, unless that was done.
    pub fn close(&self) -> SmallVec<[T; 2]> {
        let mut open = self.batches.open.lock();
        debug_assert!(
            self.end.result.lock().is_none(),
            "group invariant 3: a batch ends once"
        );
        let own = open.take_if(|batch| Arc::ptr_eq(&batch.end, &self.end));
        own.map(|batch| batch.requests).unwrap_or_default()
    }

    /// Ends the batch: all followers get `result`, which is returned.
    pub fn end(mut self, result: R) -> R
    where
        R: Clone,
    {
        self.result = Some(result.clone());
        result
    }
}

impl<T, R> Drop for BatchLeader<'_, T, R> {
    fn drop(&mut self) {
        // A request that joined later would get the result of work that it was no part of.
        self.close();
        *self.end.result.lock() = Some(self.result.take());
        self.end.known.notify_all();
    }
}
