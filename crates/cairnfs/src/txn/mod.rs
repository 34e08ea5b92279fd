//! Transactions over the volume's state: reservation, commit, lookup of items, merge, recovery.
//!
//! Floor 4: connects journal, index, space, data and inodes. It knows items, but not what files
//! are. [`Core`] is the open volume. Lock order: an inode's contents lock, reservations (which may
//! wait), inode states in order of their numbers, the shared hold of the open context, a shard of a
//! list. No thread waits for log space, memory or a push while it holds an inode state or the
//! context.

#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/boundary.rs"]
mod boundary;
mod change;
mod commit;
mod compact;
mod edits;
mod fsync;
mod items;
mod limits;
mod merge;
mod mount;
mod old_names;
mod replay;
mod reservation_cache;
#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/schedules.rs"]
pub(crate) mod schedules;
mod shared;
mod step_space;
mod superblocks;

use std::sync::Arc;

use crossbeam_utils::CachePadded;

pub use change::Changes;
pub use commit::{Commit, Need, Receipt, Reservation};
pub use fsync::{FsyncRequest, NameAt};
pub use items::{Attribute, Item, ItemStore, NameFound, count_attributes};
pub use limits::{Limits, Pressure};
pub use merge::subtract_runs;
pub use mount::{OpenMode, read_superblock};
pub use reservation_cache::CommitCounts;
pub use superblocks::Superblocks;

use crate::data::DataStore;
use crate::device::Storage;
use crate::error::Result;
use crate::format::BLOCK_SIZE;
use crate::format::geometry::Geometry;
use crate::format::key::Key;
use crate::index::Index;
use crate::journal::Journal;
use crate::journal::signals::Signals;
use crate::metrics::Latency;
use crate::source::Source;
use crate::space::Space;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::txn::reservation_cache::ReservationCaches;
use crate::types::Time;
use crate::values::Values;

/// Number of freed blocks (64 MiB) from which a merge is due although the log is not full.
const MUCH_FREED: i64 = 1 << 14;
/// A merge is due when deleted items take at least the free blocks divided by this, or freed blocks
/// those that the host has left.
const MUCH_REMOVED: u64 = 16;

/// An open volume below the level of files.
pub struct Core {
    storage: Arc<Storage>,
    geometry: Geometry,
    read_only: bool,
    discard: bool,
    limits: Limits,
    index: Arc<Index>,
    space: Arc<Space>,
    data: DataStore,
    values: Arc<Values>,
    source: Source,
    journal: Arc<Journal>,
    signals: Arc<Signals>,
    items: ItemStore,
    superblocks: Superblocks,
    /// Memory of dirty sets in bytes, without the part that the reservation caches hold back.
    dirty_bytes: CachePadded<AtomicI64>,
    reservation_caches: ReservationCaches,
    sealed_bytes: AtomicI64,
    /// Blocks freed by commits that no merge has made usable yet.
    pending_free: CachePadded<AtomicI64>,
    /// Bytes of deleted items that the running merge, or the merge of replayed changes, removes
    /// from the index.
    shrinking: AtomicU64,
    /// Number of fsyncs in progress.
    fsyncs_in_progress: CachePadded<AtomicU64>,
    /// Fsyncs that are served together.
    batches: fsync::batch::Batches,
    /// Bytes of log that were replayed when the volume was opened.
    replayed: u64,
    /// Held by a running merge; the input of a merge that found no space, left for the next one.
    merging: Mutex<Option<merge::MergeInput>>,
    /// Whether the last merge found no space.
    starved: AtomicBool,
    /// Number of index nodes written by merges.
    made: AtomicU64,
    /// Key where packing the index continues. Locked only under the lock of merges.
    packed_to: Mutex<Option<Key>>,
    /// Value of `made` from which the index is packed again.
    pack_after: AtomicU64,
    merge_times: Latency,
}

impl Core {
    /// The current time.
    pub fn now(&self) -> Time {
        self.source.now()
    }

    /// The device.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// The volume's layout.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether the volume was opened read-only.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// How the memory budget is divided.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The newest superblock, and numbers for new inodes.
    pub fn superblocks(&self) -> &Superblocks {
        &self.superblocks
    }

    /// The items of the tree of files.
    pub fn items(&self) -> &ItemStore {
        &self.items
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The allocator.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The data block store.
    pub fn data(&self) -> &DataStore {
        &self.data
    }

    /// Cache of the values of extended attributes.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Requests for background work.
    pub fn signals(&self) -> &Arc<Signals> {
        &self.signals
    }

    /// The index, with the cache of its nodes.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Bytes of dirty sets, including those being merged.
    pub fn dirty_bytes(&self) -> i64 {
        self.current_bytes() + self.sealed_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of dirty sets that no merge has taken yet, and of values that only dirty sets hold.
    fn current_bytes(&self) -> i64 {
        self.dirty_bytes.load(Ordering::Relaxed) + self.values.beyond()
    }

    /// Makes the dirty sets appear to exceed all limits.
    #[cfg(all(test, not(shuttle)))]
    pub fn exceed_dirty_limits(&self) {
        let hard = self.limits.dirty_hard;
        self.dirty_bytes.fetch_add(hard, Ordering::Relaxed);
    }

    /// Counters of commits since the volume was opened.
    pub fn commit_counts(&self) -> CommitCounts {
        self.reservation_caches.counts()
    }

    /// Blocks that become usable with the next merge.
    pub fn pending_free(&self) -> i64 {
        self.pending_free.load(Ordering::Relaxed)
    }

    /// Whether so much was freed since the last merge, by itself or compared with what the host has
    /// left, that the storage below should get it back soon: a merge discards it.
    pub fn has_much_to_discard(&self) -> bool {
        let freed = self.pending_free();
        let left = || (self.space.host_left() / MUCH_REMOVED) as i64;
        self.discard && freed > 0 && (freed >= MUCH_FREED || freed >= left())
    }

    /// Approximate bytes by which the index shrinks with the next merge.
    pub(super) fn shrinkage(&self) -> u64 {
        self.reservation_caches.shrinkage() + self.shrinking.load(Ordering::Acquire)
    }

    /// Whether so many items were deleted since the last merge, compared with the free blocks, that
    /// a merge should soon determine what exactly they free.
    pub fn has_much_removed(&self) -> bool {
        let removed = self.shrinkage();
        let much = removed / BLOCK_SIZE as u64 >= self.space.free_blocks() / MUCH_REMOVED;
        removed > 0 && (much || self.space.is_short())
    }

    /// Bytes of log that were replayed when the volume was opened.
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Number and times of merges.
    pub fn merge_times(&self) -> &Latency {
        &self.merge_times
    }

    /// Number of merges done.
    pub fn merges(&self) -> u64 {
        self.merge_times.get().times
    }

    /// Writes the open context and makes everything committed so far durable.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn force_all(&self) -> Result<()> {
        self.journal.force(self.journal.cil().seq(), self)
    }
}
