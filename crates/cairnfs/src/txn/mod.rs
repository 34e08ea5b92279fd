//! Transactions over the volume's state: reservation, commit, lookup of items, merge, recovery.
//!
//! Floor 4: connects journal, index, space, data and inodes. It knows items, but not what files
//! are. [`Core`] is the open volume. Lock order: an inode's contents lock, reservations (which may
//! wait), inode states in order of their numbers, the shared hold of the open context, a shard of a
//! list. No thread waits for log space, memory or a push while it holds an inode state or the
//! context.

mod ablation;
mod attributes;
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/boundary.rs"]
mod boundary;
mod change;
mod commit;
mod compact;
mod edits;
mod fsync;
mod merge;
mod mount;
mod names;
mod old_names;
mod read;
mod replay;
mod reservation_cache;
#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/schedules.rs"]
pub(crate) mod schedules;
mod shared;
mod step_space;

use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;

pub use attributes::Attribute;
pub use change::Changes;
pub use commit::{Commit, Need, Receipt, Reservation};
pub use fsync::{FsyncRequest, NameAt};
pub use merge::subtract_runs;
pub use mount::{OpenMode, read_superblock};
pub use read::{Item, NameFound};
pub use reservation_cache::CommitCounts;

use crate::data::DataStore;
use crate::device::Storage;
use crate::error::Result;
use crate::format::BLOCK_SIZE;
use crate::format::geometry::Geometry;
use crate::format::key::Key;
use crate::format::superblock::Superblock;
use crate::index::{Index, Tree};
use crate::inode::Inode;
use crate::inode::names::NameMemory;
use crate::inode::table::InodeTable;
use crate::journal::Journal;
use crate::journal::signals::Signals;
use crate::metrics::Latency;
use crate::shard::Sharded;
use crate::source::Source;
use crate::space::Space;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::txn::reservation_cache::ReservationCaches;
use crate::types::Time;
use crate::values::Values;

/// Inode numbers that a directory allocates at once for its children.
pub const INO_CHUNK: u64 = 64;

/// Number of freed blocks (64 MiB) from which a merge is due although the log is not full.
const MUCH_FREED: i64 = 1 << 14;
/// A merge is due when deleted items take at least the free blocks divided by this, or freed blocks
/// those that the host has left.
const MUCH_REMOVED: u64 = 16;

/// The roots of the newest index. Readers load them once per lookup.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trees {
    /// The volume's own root, which refers to the other roots.
    pub volume: Tree,
    /// The main tree, which holds the files.
    pub main: Tree,
}

/// How the memory budget is divided, in bytes except where stated.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Cached index nodes.
    pub nodes: usize,
    /// Cached data blocks.
    pub data: usize,
    /// Cached values of extended attributes, besides those that dirty sets hold.
    pub values: usize,
    /// Clean inodes that are kept, in number.
    pub inodes: usize,
    /// Size of the dirty sets beyond which a merge starts.
    pub dirty_soft: i64,
    /// Size of the dirty sets beyond which committers wait.
    pub dirty_hard: i64,
    /// Unwritten data beyond which writers write it back themselves.
    pub pages: i64,
    /// Directory names beyond which those of cold directories are evicted.
    pub names: i64,
    /// Size of the dirty sets beyond which replay merges a part of the log into the index.
    pub replay: i64,
    /// Keys that a step of a merge takes, in number.
    pub step_keys: u64,
}

/// Limits below those of any budget, so that a few files reach what otherwise takes many.
#[derive(Debug, Clone, Copy)]
pub struct Pressure {
    /// Bytes of dirty sets that replay may hold.
    pub replay: i64,
    /// Keys that a step of a merge may take.
    pub step_keys: u64,
}

impl Limits {
    /// Divides a budget of `bytes`, at least 8 MiB.
    pub fn for_budget(bytes: usize) -> Self {
        let bytes = bytes.max(8 << 20);
        Self {
            nodes: bytes / 4,
            data: bytes / 32 * 3,
            values: bytes / 32,
            inodes: bytes / 8 / 512,
            dirty_soft: (bytes / 16 * 3) as i64,
            dirty_hard: (bytes / 16 * 5) as i64,
            pages: (bytes / 8) as i64,
            names: (bytes / 16) as i64,
            replay: (bytes / 16 * 5) as i64,
            step_keys: u64::MAX,
        }
    }

    /// The same, with tighter limits for merges and replay.
    pub fn under(self, pressure: Option<Pressure>) -> Self {
        match pressure {
            Some(Pressure { replay, step_keys }) => Self {
                replay,
                step_keys,
                ..self
            },
            None => self,
        }
    }
}

/// An open volume below the level of files.
pub struct Core {
    storage: Arc<Storage>,
    geometry: Geometry,
    hash_seed: u64,
    read_only: bool,
    discard: bool,
    limits: Limits,
    superblock: Mutex<Superblock>,
    trees: ArcSwap<Trees>,
    index: Index,
    space: Space,
    data: DataStore,
    values: Values,
    source: Source,
    journal: Journal,
    signals: Arc<Signals>,
    table: InodeTable,
    name_memory: NameMemory,
    named: names::Named,
    next_ino: AtomicU64,
    /// Inodes whose current dirty set is not empty.
    dirty: Sharded<(u64, Arc<Inode>)>,
    /// Whether some of them may have changed orphan items.
    orphaned: AtomicBool,
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
    batches: fsync::Batches,
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
    /// Records that an orphan item changes. Nearly every removal of a file in use does that, so the
    /// flag is read before it is written.
    fn note_orphan(&self) {
        if !self.orphaned.load(Ordering::Relaxed) {
            self.orphaned.store(true, Ordering::Relaxed);
        }
    }

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

    /// The seed of name hashes.
    pub fn hash_seed(&self) -> u64 {
        self.hash_seed
    }

    /// Whether the volume was opened read-only.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// How the memory budget is divided.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The newest superblock.
    pub fn superblock(&self) -> Superblock {
        *self.superblock.lock()
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

    /// The table of inodes in memory.
    pub fn table(&self) -> &InodeTable {
        &self.table
    }

    /// Lookups in the cache of index nodes.
    pub fn index_counters(&self) -> crate::index::CacheCounters {
        self.index.counters()
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

    /// A number for a new inode, from the directory's `chunk`, which is refilled when it is used
    /// up.
    pub fn new_ino(&self, chunk: &mut (u64, u64)) -> u64 {
        if chunk.0 >= chunk.1 {
            let start = self.next_ino.fetch_add(INO_CHUNK, Ordering::Relaxed);
            *chunk = (start, start + INO_CHUNK);
        }
        chunk.0 += 1;
        chunk.0 - 1
    }

    /// Writes the open context and makes everything committed so far durable.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn force_all(&self) -> Result<()> {
        self.journal.force(self.journal.cil().seq(), self)
    }
}
