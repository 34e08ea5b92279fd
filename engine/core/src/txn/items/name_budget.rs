//! Names of directories kept in memory, within their share of the memory budget.
//!
//! The limit is checked only when a directory's map grows. Beyond it, the directories that grew
//! longest ago drop the names that the index has, unless they were used since. Only a few
//! directories are handled at a time, and none that is locked, so no thread waits for another
//! directory here.

use std::collections::VecDeque;

use crate::inode::dirty::{DirtySet, Slot};
use crate::inode::known_names::NameMemory;
use crate::inode::table::InodeTable;
use crate::inode::{Inode, InodeState};
use crate::txn::items::ItemStore;
use cairnfs_disk::format::checksum::name_hash;
use cairnfs_disk::format::item::decode_dir_entry;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicI64, Ordering};

/// Directories checked for each one that grows.
const STEPS: usize = 8;

/// The names in memory of all directories.
pub(super) struct NameCache {
    hash_seed: u64,
    memory: NameMemory,
    /// Bytes of memory beyond which cold directories drop names.
    limit: AtomicI64,
    /// Numbers of directories with many names in memory, those that grew longest ago first.
    grown: Mutex<VecDeque<u64>>,
}

impl ItemStore {
    /// Remembers the name of a directory's entry. The caller holds the directory's lock.
    pub fn add_name(&self, dir: &Inode, state: &mut InodeState, hash: u64, index: u64) {
        self.names.add(&self.table, (dir, state), hash, index);
    }

    /// Remembers the name of an entry that replay puts into a directory's current set, where it
    /// stays whatever the limit.
    pub(in crate::txn) fn add_replayed_name(&self, state: &mut InodeState, hash: u64, index: u64) {
        state.add_name(&self.names.memory, hash, index);
    }

    /// Memory of names, in bytes.
    pub fn name_bytes(&self) -> i64 {
        self.names.bytes()
    }

    /// Keeps at most so many clean inodes and bytes of names in memory from now on, and drops cold
    /// ones beyond that.
    pub fn limit_memory(&self, inodes: usize, names: i64) {
        if self.table.set_limit(inodes) {
            self.table.shrink();
        }
        if self.names.limit.swap(names, Ordering::Relaxed) > names {
            self.names.shrink_all(&self.table);
        }
    }
}

impl NameCache {
    /// An empty cache of at most `limit` bytes.
    pub fn new(hash_seed: u64, limit: i64) -> Self {
        Self {
            hash_seed,
            memory: NameMemory::default(),
            limit: AtomicI64::new(limit),
            grown: Mutex::default(),
        }
    }

    fn add(
        &self,
        table: &InodeTable,
        (dir, state): (&Inode, &mut InodeState),
        hash: u64,
        index: u64,
    ) {
        if !state.add_name(&self.memory, hash, index) {
            return;
        }
        for _ in 0..STEPS {
            self.shrink(table);
        }
        if self.is_over_limit() {
            self.trim(state);
        } else {
            self.grown.lock().push_back(dir.ino);
        }
    }

    fn bytes(&self) -> i64 {
        self.memory.load(Ordering::Relaxed)
    }

    fn is_over_limit(&self) -> bool {
        self.bytes() > self.limit.load(Ordering::Relaxed)
    }

    /// Checks each directory once, while the limit is exceeded.
    fn shrink_all(&self, table: &InodeTable) {
        let listed = self.grown.lock().len();
        for _ in 0..listed {
            if !self.is_over_limit() {
                break;
            }
            self.shrink(table);
        }
    }

    /// Checks the oldest directory: removes it from the queue if it has left memory, and trims it
    /// if it is cold and the limit is exceeded.
    fn shrink(&self, table: &InodeTable) {
        let Some(ino) = self.grown.lock().pop_front() else {
            return;
        };
        let Some(dir) = table.peek(ino) else {
            return;
        };
        if self.is_over_limit()
            && !dir.used_lately()
            && let Some(mut state) = dir.try_write()
        {
            self.trim(&mut state);
        } else {
            self.grown.lock().push_back(ino);
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
