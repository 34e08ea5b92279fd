//! Packing the index when units are short.
//!
//! The space that transactions reserve for index growth suffices on average, but leaves that split
//! after small additions may take more. The permanent reserve pays for that, and packing restores
//! the reserve: it rewrites the same items into as few leaves as possible. Packing runs in steps
//! like a merge, under the lock of merges, and changes no item.

use crate::index::NodeSpace;
use crate::txn::Core;
use crate::txn::merge::edits::ImageChange;
use crate::txn::merge::rest::Ending;
use crate::txn::merge::step_space::StepSpace;
use crate::txn::merge::steps::{NewTree, finish_step};
use crate::txn::roots::{RootItems, tree_of};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Key;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

/// Minimum number of new nodes before packing is tried again.
const WORTH: u64 = 16;

/// Where packing continues, and when it is worth it. Used under the lock of merges.
#[derive(Default)]
pub(super) struct Packing {
    /// The head where packing continues, and the key in its tree.
    from: Mutex<(u32, Option<Key>)>,
    /// Number of index nodes written by merges.
    made: AtomicU64,
    /// Value of `made` from which the index is packed again.
    after: AtomicU64,
}

impl Packing {
    /// Counts a node that a merge writes.
    pub fn count_node(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    /// Called between the steps of a merge and after it: packs the index if the reserve for
    /// deletions and merges was used. Its nodes have this `birth`: that of the merge, or the newest
    /// merged sequence.
    ///
    /// # Errors
    /// The device's failure, or damage found in the index.
    pub fn restore_reserve(&self, core: &Core, birth: u64) -> Result<()> {
        let whole = || core.space.is_reserve_whole();
        if whole() {
            Ok(())
        } else {
            self.pack(core, birth, &whole)
        }
    }

    /// Goes once around the trees of all heads from the key where packing ended before, until
    /// `enough` returns true. Does nothing until enough new nodes exist that may be packed.
    ///
    /// # Errors
    /// The device's failure, or damage found in the index.
    pub fn pack(&self, core: &Core, birth: u64, enough: &dyn Fn() -> bool) -> Result<()> {
        if self.made.load(Ordering::Relaxed) < self.after.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut from = self.from.lock();
        let heads = core.roots.merged_heads();
        let mut leaves = 0;
        // The tree in which it begins is looked at twice: from the key on, and up to it at the end.
        let mut ends = 0;
        while ends <= heads.len() {
            let at = heads.partition_point(|id| *id < from.0);
            let Some(id) = heads.get(at).or(heads.first()).copied() else {
                break;
            };
            let key = from.1.filter(|_| id == from.0);
            let (next, looked_at) = pack_step(core, (id, key), birth)?;
            leaves += looked_at;
            ends += usize::from(next.is_none());
            *from = match next {
                Some(_) => (id, next),
                None => (id.wrapping_add(1), None),
            };
            if enough() {
                return Ok(());
            }
        }
        let after = self.made.load(Ordering::Relaxed) + WORTH + leaves / 128;
        self.after.store(after, Ordering::Relaxed);
        Ok(())
    }
}

/// Packs leaves of a head from a key on. Returns the key where the next step continues, and the
/// number of leaves looked at.
fn pack_step(
    core: &Core,
    (id, from): (u32, Option<Key>),
    birth: u64,
) -> Result<(Option<Key>, u64)> {
    let (count, promised) = (AtomicU64::new(0), AtomicU64::new(0));
    let space = StepSpace::new(core, &count, &promised);
    let inherited = core.roots.merged_inherited(id);
    if birth <= inherited {
        // Nothing was merged since the files were forked: a frozen root has all nodes.
        return Ok((None, 0));
    }
    space.enter(id, (inherited, core.roots.merged_parent(id)));
    let old = tree_of(&core.roots.merged(id).unwrap_or_default().tree);
    let full = || !space.has_room();
    let packed = match core.index.compact(&old, from, birth, &space, &full) {
        // There are too few units to pack with. Items that wait for a merge are not affected.
        Err(Error::NoSpace) => return Ok((None, 0)),
        other => other?,
    };
    if packed.tree != old {
        let tree = NewTree {
            root: id,
            tree: packed.tree,
            nodes: space.nodes(),
        };
        let changes = (vec![tree], &RootItems::new());
        let image = ImageChange::default();
        match finish_step(
            core,
            space,
            changes,
            birth,
            &image,
            (|_| {}, Ending::Settled),
        ) {
            // The leaves took the last unit, so there was none for the volume's root.
            Err(Error::NoSpace) => return Ok((None, 0)),
            done => done?.release_retired(core)?,
        }
    }
    Ok((packed.next, packed.leaves))
}
