//! Files whose writes met a full volume, so that their writers are refused.
//!
//! With the writeback cache (`write=back`) the kernel accepts a program's data without asking, and
//! reports a failure only at fsync or close, so a program that only writes would never stop. Before
//! it accepts more, the kernel requests the file's attributes through the open file, if it has none
//! cached. So when data of a file found no space, its cached attributes are invalidated, and that
//! request is answered with "no space" until space is available again. A stat by path is not
//! refused.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Blocks that must be available before a writer that met a full volume may continue: the dirty
/// pages that the kernel may accept meanwhile must find room.
const ENOUGH: u64 = 256;

/// The inode numbers of files whose data found no space.
#[derive(Default)]
pub struct Full {
    inodes: Mutex<HashSet<u64>>,
    /// Whether the set is nonempty; changed under the lock. Lets FORGET and GETATTR skip the lock.
    some: AtomicBool,
}

impl Full {
    /// Records that data of this inode found no space.
    pub fn add(&self, ino: u64) {
        let mut inodes = self.inodes.lock();
        inodes.insert(ino);
        self.some.store(true, Ordering::Release);
    }

    /// Removes an inode that the kernel has forgotten.
    pub fn remove(&self, ino: u64) {
        if self.some.load(Ordering::Acquire) {
            self.take(&mut self.inodes.lock(), ino);
        }
    }

    fn take(&self, inodes: &mut HashSet<u64>, ino: u64) {
        inodes.remove(&ino);
        self.some.store(!inodes.is_empty(), Ordering::Release);
    }

    /// Whether the inode's writers must be refused; `available` returns the current number of free
    /// blocks and is called only for recorded inodes.
    pub fn refuses(&self, ino: u64, available: impl FnOnce() -> u64) -> bool {
        if !self.some.load(Ordering::Acquire) {
            return false;
        }
        let mut inodes = self.inodes.lock();
        if !inodes.contains(&ino) {
            return false;
        }
        if available() < ENOUGH {
            return true;
        }
        self.take(&mut inodes, ino);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_refused_until_space_is_available() {
        let full = Full::default();
        assert!(!full.refuses(7, || 0));
        full.add(7);
        assert!(full.refuses(7, || ENOUGH - 1));
        assert!(!full.refuses(8, || 0));
        assert!(!full.refuses(7, || ENOUGH));
        assert!(!full.refuses(7, || 0));
    }

    #[test]
    fn forgotten_inode_leaves_other_inodes_recorded() {
        let full = Full::default();
        full.add(7);
        full.add(8);
        full.remove(7);
        assert!(full.refuses(8, || 0));
        assert!(!full.refuses(7, || 0));
        full.remove(8);
        assert!(!full.refuses(8, || 0));
    }
}
