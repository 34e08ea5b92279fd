//! What recoveries have shown, so that a disk that many workloads leave is recovered once.
//!
//! A recovery depends on the disk alone: its options come from the digest, it has no threads, and
//! faults are never injected while a memory of this kind is in use. So only the comparison with the
//! model, which differs from workload to workload and from moment to moment, is made each time.
//! Uses the tree and the events of a disk, nothing else of the crate.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::Event;
use crate::tree::Tree;

/// Blocks of contents that are remembered at most, in trees and in events.
const ROOM: usize = 1 << 15;

/// What is asked of a recovery, besides the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    /// Whether its disk events are recorded.
    pub record: bool,
    /// Whether the volume is used further.
    pub used: bool,
}

/// A recovery that was sound.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The tree.
    pub tree: Tree,
    /// What the recovery did to the disk, if it was recorded.
    pub events: Vec<Event>,
}

impl Shown {
    /// About how many blocks of memory it takes.
    fn blocks(&self) -> usize {
        let nodes = self.tree.nodes.values().map(|node| 1 + node.blocks.len());
        nodes.sum::<usize>() + self.events.len()
    }
}

#[derive(Default)]
struct Known {
    shown: HashMap<(u64, Asked), Arc<Shown>>,
    blocks: usize,
}

/// The sound recoveries of recent disks, for explorations of workloads that have states in common:
/// the same beginning, or steps whose order does not matter.
#[derive(Default)]
pub struct Recoveries {
    known: Mutex<Known>,
}

impl std::fmt::Debug for Recoveries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recoveries").finish_non_exhaustive()
    }
}

impl Recoveries {
    /// What the recovery of the disk with this digest showed.
    pub(crate) fn get(&self, digest: u64, asked: Asked) -> Option<Arc<Shown>> {
        self.known.lock().shown.get(&(digest, asked)).cloned()
    }

    /// Remembers a recovery. If there is no room, all earlier ones are forgotten.
    pub(crate) fn put(&self, digest: u64, asked: Asked, shown: &Arc<Shown>) {
        let mut known = self.known.lock();
        known.blocks += shown.blocks();
        if known.blocks > ROOM {
            *known = Known {
                shown: HashMap::new(),
                blocks: shown.blocks(),
            };
        }
        known.shown.insert((digest, asked), shown.clone());
    }
}
