//! Mistakes that the engine makes on request, so that tests can show that they would be noticed.
//!
//! Floor 0: uses nothing. Without the feature `fault-injection`, which only the tests of
//! `cairnfs-sim` switch on, `is_injected` is a constant `false` and nothing of this is left. With it,
//! a fault is injected only in the thread that asked for it, within `within`.

/// A mistake. Each leaves out, or does wrongly, one thing that a promise rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InjectedFault {
    /// A log record is written while the data it names may still be in the cache.
    LogBeforeData,
    /// An fsync returns before the log was flushed.
    FsyncWithoutFlush,
    /// An fsync leaves the file's pages in memory.
    FsyncWithoutPages,
    /// A sync of everything leaves the files' pages in memory.
    SyncWithoutPages,
    /// An fsync leaves the times of the inode.
    TimesNotSynced,
    /// An fsync leaves the items of the inode that are neither its inode item nor its names.
    ItemsNotSynced,
    /// An fsync leaves the names of the inode.
    NamesNotSynced,
    /// A failed write or flush is forgotten, and tried again.
    FailureForgotten,
    /// Deletions may use no space that others must leave.
    DeletionsUnfunded,
    /// Records tell that they are durable themselves.
    DurableLsnAhead,
    /// The superblock is written while the index may still be in the cache.
    SuperblockBeforeIndex,
    /// The superblock may still be in the cache when what it freed is used again.
    SuperblockUnflushed,
    /// A superblock moves the log's tail before the index holds what the log held.
    TailBeforeIndex,
    /// Each step of a merge moves the log's tail, not only the last.
    TailMovedEachStep,
    /// The superblock does not tell the next inode number.
    NextInodeForgotten,
    /// The group table is written over the copy that counts.
    TableInPlace,
    /// Blocks that a commit freed are used again at once.
    FreedBlocksReused,
    /// Index nodes that a merge replaces are used again at once.
    FreedUnitsReused,
    /// Written blocks of a file are overwritten where they are.
    DataInPlace,
    /// A rename does not write the file's data before.
    RenameWithoutData,
    /// A link does not write the file's data before.
    LinkWithoutData,
    /// A truncation does not write the data that waits below the new size.
    TruncationWithoutData,
    /// The committed size is ahead of the committed data.
    SizeBeforeData,
    /// A file grows without zeroing the rest of its last block.
    TailNotZeroed,
    /// The deletion of an item that exists below its context is not logged.
    TombstoneLost,
    /// A file that is removed while it is open gets no orphan item.
    UnlinkWithoutOrphan,
    /// A file of many extents that is truncated gets no orphan item.
    TruncationWithoutOrphan,
    /// A vector of a closed context is overwritten, and not logged again.
    RelogInPlace,
    /// What the index gains is taken into the bitmaps before what it loses.
    GainsBeforeLosses,
    /// Names are added to a name item before others are removed.
    NamesAddedFirst,
    /// A merge forgets that an entry had another name.
    OldNameKept,
    /// A step of a merge ends before the old names of its entries are gone.
    OldNamesLeft,
    /// A context without its last part counts.
    HalfContextCounts,
    /// A record's payload is not compared with its checksum.
    PayloadUnchecked,
    /// A record is not compared with the checksum of the one before.
    ChainUnchecked,
    /// Deletions in the log are passed over.
    DeletionsNotReplayed,
    /// Blocks that the log names stay free.
    BlocksNotClaimed,
    /// Data blocks are not compared with their checksums.
    DataUnchecked,
    /// Index nodes are not compared with their checksums.
    NodeUnchecked,
    /// A log that ends before what was durable is taken for a shorter one.
    EndUnchecked,
    /// A volume is opened without flushing what a killed process left in the cache.
    MountWithoutFlush,
    /// Opening writes no mount record.
    MountRecordMissing,
    /// The mount record is not flushed.
    MountRecordUnflushed,
    /// All mounts have the same nonce.
    SameNonce,
    /// An fsync does not take along the directories of a file's names.
    DirectoryDependencyLost,
    /// An fsync does not take along the directories that were moved.
    PlaceDependencyLost,
    /// An fsync does not take along what a rename replaced or exchanged.
    PartnerDependencyLost,
    /// An fsync does not take along that a name was given up before.
    NameDependencyLost,
    /// An fsync takes along that a directory was removed, but not what became of its entries.
    RemovalDependencyLost,
    /// An fsync of a directory leaves its entries.
    EntriesNotSynced,
    /// A directory that an fsync takes along counts entries that it does not.
    CountsAhead,
    /// An fsync does not tell what the data that it wrote must hold.
    DataUntold,
    /// Recovery does not compare what an fsync told of its data.
    DataNotCompared,
    /// What an fsync logged is overwritten in place, and not logged again.
    FsyncRecordOverwritten,
    /// The deletion of what an fsync logged is not logged.
    FsyncRecordForgotten,
    /// A merge forgets that an attribute gave up its value.
    UseNotGivenUp,
    /// A value goes although an attribute still refers to it.
    ValueGoneEarly,
    /// Values with one hash are taken for equal.
    HashesNotCompared,
    /// A push writes staged data together with its records, not before.
    StagedWithContext,
    /// A record is written without the data that waits for it.
    StagedLeft,
}

#[cfg(not(feature = "fault-injection"))]
mod switch {
    use crate::fault::InjectedFault;

    /// Whether to make this mistake now: never.
    #[inline]
    pub(crate) const fn is_injected(_fault: InjectedFault) -> bool {
        false
    }
}

#[cfg(feature = "fault-injection")]
mod switch {
    use std::cell::Cell;

    use crate::fault::InjectedFault;

    thread_local! {
        /// The mistakes to be made, a bit each.
        static WANTED: Cell<u64> = const { Cell::new(0) };
        static MADE: Cell<u64> = const { Cell::new(0) };
    }

    /// Whether to make this mistake now.
    pub(crate) fn is_injected(fault: InjectedFault) -> bool {
        let now = WANTED.get() & 1 << fault as u64 != 0;
        MADE.set(MADE.get() + u64::from(now));
        now
    }

    /// Takes back what was wanted, also when a test panics.
    struct Before(u64);

    impl Drop for Before {
        fn drop(&mut self) {
            WANTED.set(self.0);
        }
    }

    /// Makes these mistakes in this thread while `run` runs.
    pub fn within<R>(faults: &[InjectedFault], run: impl FnOnce() -> R) -> R {
        let bits = faults
            .iter()
            .fold(0, |bits, fault| bits | 1 << *fault as u64);
        let _before = Before(WANTED.replace(bits));
        run()
    }

    /// How often this thread came by a mistake that it was to make.
    pub fn made() -> u64 {
        MADE.get()
    }
}

pub(crate) use switch::is_injected;
#[cfg(feature = "fault-injection")]
pub use switch::{made, within};
