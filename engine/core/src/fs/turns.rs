//! Whose turn it is to replace a branch, or to take it away by a publish: one call at a time for each
//! name, so that each finds what the one before it has left, and none works in vain.
//!
//! Uses synchronization only. A thread that waits here holds no lock.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::fs::FileSystem;
use cairnfs_disk::sync::{Condvar, Mutex};

/// The turns of a volume.
#[derive(Default)]
pub(super) struct Turns {
    /// The names of branches that calls have taken.
    taken: Mutex<BTreeSet<String>>,
    ended: Condvar,
}

/// A turn, which ends when this is dropped.
#[doc(hidden)]
pub struct Turn {
    turns: Arc<Turns>,
    names: BTreeSet<String>,
}

impl FileSystem {
    /// Waits until no other call has one of these names, and takes all of them.
    #[doc(hidden)]
    pub fn take_turn(&self, names: BTreeSet<String>) -> Turn {
        let turns = self.engine.turns.clone();
        {
            let mut taken = turns.taken.lock();
            while !taken.is_disjoint(&names) {
                turns.ended.wait(&mut taken);
            }
            taken.extend(names.iter().cloned());
        }
        Turn { turns, names }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = self.turns.taken.lock();
        taken.retain(|name| !self.names.contains(name));
        self.turns.ended.notify_all();
    }
}
