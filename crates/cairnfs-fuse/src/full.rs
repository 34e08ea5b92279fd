//! Files that met a full volume, so that their writers learn of it.
//!
//! With the writeback cache (`write=back`) the kernel takes a program's bytes without asking, and tells a failure
//! only at fsync or close: a program that just writes on would never end. The one thing it asks
//! before it takes more, if it does not know them, is the file's attributes, through the open file.
//! So once data of a file found no space, its attributes are made unknown, and that question is
//! answered with "no space" until there is some again. A stat by anyone is not refused.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Blocks that must be available before a writer that met a full volume may go on: what the kernel
/// may hold of his data meanwhile must find room.
const ENOUGH: u64 = 256;

/// Numbers of the inodes whose data found no space.
#[derive(Default)]
pub struct Full {
    inodes: Mutex<HashSet<u64>>,
    /// Whether there are any; changed under the lock. Each forgotten inode is looked for.
    some: AtomicBool,
}

impl Full {
    /// Data of this inode found no space.
    pub fn add(&self, ino: u64) {
        let mut inodes = self.inodes.lock();
        inodes.insert(ino);
        self.some.store(true, Ordering::Release);
    }

    /// It is not used any more.
    pub fn remove(&self, ino: u64) {
        if self.some.load(Ordering::Acquire) {
            self.take(&mut self.inodes.lock(), ino);
        }
    }

    fn take(&self, inodes: &mut HashSet<u64>, ino: u64) {
        inodes.remove(&ino);
        self.some.store(!inodes.is_empty(), Ordering::Release);
    }

    /// Whether its writers must be refused; `available` tells how many blocks there are now.
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
    fn a_file_is_refused_until_there_is_space() {
        let full = Full::default();
        assert!(!full.refuses(7, || 0));
        full.add(7);
        assert!(full.refuses(7, || ENOUGH - 1));
        assert!(!full.refuses(8, || 0));
        assert!(!full.refuses(7, || ENOUGH));
        assert!(!full.refuses(7, || 0));
    }

    #[test]
    fn one_that_is_not_used_any_more_hides_no_other() {
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
