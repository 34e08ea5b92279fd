//! Names of directories kept in memory, within their share of the memory budget.
//!
//! The limit is checked only when a directory's map grows. Beyond it, the directories that grew
//! longest ago drop the names that the index has, unless they were used since. Only a few
//! directories are handled at a time, and none that is locked, so no thread waits for another
//! directory here.

use std::collections::VecDeque;

use crate::format::checksum::name_hash;
use crate::format::item::decode_dir_entry;
use crate::format::key::Kind;
use crate::inode::dirty::{DirtySet, Slot};
use crate::inode::{Inode, InodeState};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::txn::Core;

/// Directories checked for each one that grows.
const STEPS: usize = 8;

/// Numbers of directories with many names in memory, those that grew longest ago first.
pub type Named = Mutex<VecDeque<u64>>;

impl Core {
    /// Remembers the name of a directory's entry. The caller holds the directory's lock.
    pub fn add_name(&self, dir: &Inode, state: &mut InodeState, hash: u64, index: u64) {
        if !state.add_name(&self.name_memory, hash, index) {
            return;
        }
        for _ in 0..STEPS {
            self.shrink_names();
        }
        if self.too_many_names() {
            self.trim(state);
        } else {
            self.named.lock().push_back(dir.ino);
        }
    }

    /// Memory of names, in bytes.
    pub fn name_bytes(&self) -> i64 {
        self.name_memory.load(Ordering::Relaxed)
    }

    fn too_many_names(&self) -> bool {
        self.name_bytes() > self.limits.names
    }

    /// Checks the oldest directory: removes it from the queue if it has left memory, and trims it
    /// if it is cold and the limit is exceeded.
    fn shrink_names(&self) {
        let Some(ino) = self.named.lock().pop_front() else {
            return;
        };
        let Some(dir) = self.table.peek(ino) else {
            return;
        };
        if self.too_many_names()
            && !dir.used_lately()
            && let Some(mut state) = dir.try_write()
        {
            self.trim(&mut state);
        } else {
            self.named.lock().push_back(ino);
        }
    }

    /// Drops all names of a directory that the index has.
    fn trim(&self, state: &mut InodeState) {
        let sealed = state.sealed_set().cloned();
        let mut dirty = self.names_of(&state.current, None);
        if let Some(sealed) = &sealed {
            dirty.extend(self.names_of(sealed, Some(&state.current)));
        }
        state.trim_names(dirty.into_iter());
    }

    /// Hashes and indexes of the entries that a set puts and that `newer` does not replace.
    fn names_of(&self, set: &DirtySet, newer: Option<&DirtySet>) -> Vec<(u64, u64)> {
        let hash = |value: &[u8]| {
            let entry = decode_dir_entry(value).ok()?;
            Some(name_hash(self.hash_seed, entry.name))
        };
        let replaced = |index| newer.is_some_and(|n| n.get(Kind::DirIndex, index).is_some());
        let named = |(index, slot): (u64, &Slot)| {
            let hash = slot.vector.with(|value| value.and_then(hash))?;
            (!replaced(index)).then_some((hash, index))
        };
        set.range(Kind::DirIndex, 0).filter_map(named).collect()
    }
}
