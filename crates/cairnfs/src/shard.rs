//! Spreading threads over the parts of what they share, so that they seldom meet at a lock.
//!
//! Floor 0: uses only [`crate::sync`].

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::sync::{Mutex, thread_local};

const SHARDS: usize = 16;

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The shard of the calling thread, below `shards`. Threads get neighbouring shards in turn.
pub fn thread_shard(shards: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    SHARD.with(|s| {
        if s.get() == usize::MAX {
            s.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        s.get() % shards
    })
}

/// Lists that many threads add to and one takes as a whole.
pub struct Sharded<T> {
    shards: Box<[CachePadded<Mutex<Vec<T>>>]>,
}

impl<T> Default for Sharded<T> {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
        }
    }
}

impl<T> Sharded<T> {
    /// Adds one.
    pub fn push(&self, item: T) {
        if let Some(shard) = self.shards.get(thread_shard(SHARDS)) {
            shard.lock().push(item);
        }
    }

    /// Takes all.
    pub fn take(&self) -> Vec<T> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut taken = std::mem::take(&mut *shard.lock());
            all.append(&mut taken);
        }
        all
    }
}
