//! Transactions over the volume's state: reservation, commit, lookup of items, merge, recovery.
//!
//! Connects journal, index, space, data and inodes. It knows items, but not what files
//! are. docs/internals/memory.md has the order of all locks. No thread waits for log space, memory,
//! a push or a merge while it holds an inode state or the context.
//!
//! State has owners with private fields: [`items`] (one tree of files as readers see it), [`heads`]
//! (which trees are open), [`roots`], [`reservations`] (what is set aside, and sums of commits), [`merge`], [`fsync`] and
//! [`superblocks`], and [`checkpoint`]. [`Core`] is the open volume: it composes the owners with the services that all
//! of them share. What connects several owners is in [`reserve`], [`commit`] and [`change`],
//! [`throttle`], [`space_left`], and [`open`], which builds them.

mod ablation;
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/begun.rs"]
mod begun;
mod blocks;
mod change;
mod checkpoint;
mod commit;
mod copies;
mod damage;
mod drop;
mod fsync;
mod heads;
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/heads/mod.rs"]
mod histories;
mod items;
mod limits;
mod lineage;
mod mark;
mod merge;
mod open;
mod reservations;
mod reserve;
mod roots;
mod runs;
#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/schedules.rs"]
pub(crate) mod schedules;
mod space_left;
mod superblocks;
mod throttle;

use std::sync::Arc;

pub use change::Changes;
pub use checkpoint::Capture;
pub use commit::{Births, Commit, Receipt};
pub use drop::Drops;
pub use fsync::{FsyncRequest, Fsyncs, NameAt};
pub use heads::RootPin;
pub use items::{Attribute, Item, ItemStore, NameFound, count_attributes, value_at};
pub use limits::{Limits, Pressure};
pub use lineage::{ForkKind, Unchanged};
pub use merge::Merger;
pub use open::{OpenMode, find_copies, newest_at_front, read_superblock};
pub use reservations::{CommitCounts, Reservations};
pub use reserve::{Need, Reservation};
pub use roots::Roots;
pub use runs::subtract_runs;
pub use superblocks::Superblocks;

use self::ablation::LoggedWhole;
use self::mark::DurableMark;
use crate::data::DataStore;
use crate::index::Index;
use crate::journal::Journal;
use crate::journal::recover::{LostLog, read_lost};
use crate::journal::signals::Signals;
use crate::source::Source;
use crate::space::Space;
use crate::txn::checkpoint::Checkpoints;
use crate::txn::damage::Cuts;
use crate::txn::heads::Heads;
use crate::values::Values;
use cairnfs_disk::device::Storage;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::checksum::name_hash;
use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::record::Entry;
use cairnfs_disk::mechanism::Mechanism;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};
use cairnfs_disk::types::{LostFront, OlderState, Time};

/// An open volume below the level of files: first the services that all parts share, then the
/// owners of its state.
pub struct Core {
    storage: Arc<Storage>,
    geometry: Geometry,
    read_only: bool,
    /// Whether merges cut out damaged nodes.
    cuts_damaged: bool,
    /// What merges have cut out of the trees of heads.
    cuts: Cuts,
    /// The last context that was merged before the opening.
    merged_before: u64,
    /// Number of logged items that a read-only opening could not bring into damaged nodes.
    left_out: AtomicU64,
    discard: bool,
    limits: Limits,
    index: Arc<Index>,
    space: Arc<Space>,
    data: DataStore,
    values: Arc<Values>,
    source: Source,
    journal: Arc<Journal>,
    signals: Arc<Signals>,
    heads: Heads,
    roots: Roots,
    reservations: Reservations,
    merger: Merger,
    drops: Drops,
    checkpoints: Checkpoints,
    fsyncs: Fsyncs,
    logged_whole: LoggedWhole,
    superblocks: Superblocks,
    mark: DurableMark,
    /// Bytes of log that were replayed when the volume was opened.
    replayed: u64,
    /// What was found of a damaged log when the volume was opened.
    lost: Option<LostLog>,
    /// What was wrong with the volume's front when it was opened.
    front: Option<LostFront>,
    /// What is read instead of the newest state, if the top of its trees is lost.
    older: Option<OlderState>,
}

impl Core {
    /// The current time.
    pub fn now(&self) -> Time {
        self.source.now()
    }

    /// The hash of a name, by which it is found in the index.
    fn hash_of_name(&self, name: &[u8]) -> u64 {
        name_hash(self.superblocks.newest().hash_seed.get(), name)
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

    /// The roots of the volume.
    pub fn roots(&self) -> &Roots {
        &self.roots
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

    /// Bytes of log that were replayed when the volume was opened.
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Number of logged items that belong into damaged nodes, and that a read-only opening does not show.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// What is lost of the log, if it is damaged and the volume was opened all the same.
    pub fn lost_log(&self) -> Option<&LostLog> {
        self.lost.as_ref()
    }

    /// Calls `each` with the entries that can be read of what is lost of the log, in no order.
    pub fn each_lost(&self, each: &mut dyn FnMut(&Entry<'_>)) -> Result<()> {
        let superblock = self.superblocks.newest();
        self.lost.as_ref().map_or(Ok(()), |lost| {
            read_lost(&*self.storage, &superblock, lost, each)
        })
    }

    /// What was wrong with the volume's front when it was opened.
    pub fn front(&self) -> Option<LostFront> {
        self.front
    }

    /// What is read instead of the newest state, if the top of its trees is lost.
    pub fn older(&self) -> Option<&OlderState> {
        self.older.as_ref()
    }

    /// Reservations of log and space, and the sums of commits.
    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// The merges of the volume.
    pub fn merger(&self) -> &Merger {
        &self.merger
    }

    /// The fsyncs of the volume.
    pub fn fsyncs(&self) -> &Fsyncs {
        &self.fsyncs
    }

    /// Whether data may be staged, that is, written together with the log record that refers to it.
    pub fn stages(&self) -> bool {
        self.storage.stages() && !self.journal.is_ablated(Mechanism::OneFlush)
    }

    /// Writes staged data if there is so much that a thread which stages more has to do so first.
    /// The caller holds no lock of a file's state.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn write_much_staged(&self) -> Result<()> {
        if self.storage.has_much_staged() {
            self.write_staged()
        } else {
            Ok(())
        }
    }

    /// Writes all data that is staged now, as [`Self::write_much_staged`].
    pub fn write_staged(&self) -> Result<()> {
        self.journal.write_staged()
    }

    /// Merges everything committed so far. Merges run one at a time; a second caller waits and then
    /// runs its own.
    ///
    /// # Errors
    /// The device's failure, or damage found in the index: both stop the volume.
    /// [`Error::HostFull`](cairnfs_disk::Error::HostFull) while writes are held, before anything was done.
    pub fn merge(&self) -> Result<()> {
        self.merger.merge(self)
    }

    /// Ends the newest merge if it has left something because its superblock was not durable:
    /// flushes if no other thread has done so since, and makes usable what the merge freed.
    pub fn settle_merge(&self) -> Result<()> {
        self.merger.settle(self)
    }

    /// Packs the index if that can free units. Returns whether blocks were freed.
    ///
    /// # Errors
    /// The device's failure, or damage found in the index: both stop the volume.
    pub fn compact(&self) -> Result<bool> {
        self.merger.compact(self)
    }

    /// Makes inodes of the tree `items` durable with all they depend on, and directories also with
    /// their entries. Changes of other inodes are left in their context.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn force_inodes(&self, items: &Arc<ItemStore>, inodes: &[FsyncRequest]) -> Result<()> {
        self.fsyncs.force(self, items, inodes)
    }

    /// Writes the open context and makes everything committed so far durable.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn force_all(&self) -> Result<()> {
        self.journal.force(self.journal.cil().seq(), self)
    }
}
