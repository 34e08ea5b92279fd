//! Faults that the engine injects on request, so that tests can show that they are detected.
//!
//! Uses nothing. Without the feature `fault-injection`, which only the tests of
//! `cairnfs-sim` enable, `is_injected` is a constant `false` and none of this is compiled in. With
//! it, a fault is injected only in the thread that asked for it, within `within`. The engine names
//! a fault in one condition, or in one call of `unless`, `or` or `inject`; wrong steps of more than
//! one call are in `space/injected.rs`.

/// A fault. Each omits, or does wrongly, one step that a guarantee depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InjectedFault {
    /// A log record is written while the data it refers to may still be in the device's cache.
    LogBeforeData,
    /// An fsync returns before the log was flushed.
    FsyncWithoutFlush,
    /// An fsync leaves the file's pages in memory.
    FsyncWithoutPages,
    /// A sync of the whole volume leaves the files' pages in memory.
    SyncWithoutPages,
    /// An fsync does not write the times of the inode.
    TimesNotSynced,
    /// An fsync does not write items of the inode other than its inode item and names.
    ItemsNotSynced,
    /// An fsync does not write the names of the inode.
    NamesNotSynced,
    /// A failed write or flush is forgotten, and retried.
    FailureForgotten,
    /// Deletions may not use the space reserved for them.
    DeletionsUnfunded,
    /// A record states that the log is durable up to its own end.
    DurableLsnAhead,
    /// The durable mark states more than is durable.
    MarkAhead,
    /// No durable mark is written.
    MarkMissing,
    /// The durable mark is written at the front only.
    MarkUncopied,
    /// The superblock is written while the index may still be in the device's cache.
    SuperblockBeforeIndex,
    /// Freed space is reused while the superblock may still be in the device's cache.
    SuperblockUnflushed,
    /// A superblock moves the log tail before the index holds the changes from the log.
    TailBeforeIndex,
    /// Each step of a merge moves the log tail, not only the last step.
    TailMovedEachStep,
    /// The superblock does not record the next inode number.
    NextInodeForgotten,
    /// The group table is written over the valid copy.
    TableInPlace,
    /// Blocks that a commit freed are reused at once.
    FreedBlocksReused,
    /// Index nodes that a merge replaces are reused at once.
    FreedUnitsReused,
    /// Written blocks of a file are overwritten in place.
    DataInPlace,
    /// A rename does not write back the file's data first.
    RenameWithoutData,
    /// A link does not write back the file's data first.
    LinkWithoutData,
    /// A truncation does not write back dirty data below the new size.
    TruncationWithoutData,
    /// The committed size is ahead of the committed data.
    SizeBeforeData,
    /// A file grows without zeroing the rest of its last block.
    TailNotZeroed,
    /// The deletion of an item that exists below its context is not logged.
    TombstoneLost,
    /// A file that is unlinked while in use gets no orphan item.
    UnlinkWithoutOrphan,
    /// A truncated file with many extents gets no orphan item.
    TruncationWithoutOrphan,
    /// A log vector of a closed context is overwritten, and not logged again.
    RelogInPlace,
    /// Blocks that the index gains are applied to the bitmaps before those that it loses.
    GainsBeforeLosses,
    /// Names are added to a name item before others are removed.
    NamesAddedFirst,
    /// A merge forgets that an entry had another name before.
    OldNameKept,
    /// A merge step ends before the old names of its entries are removed.
    OldNamesLeft,
    /// A context without its last part is replayed.
    HalfContextCounts,
    /// The checksum of a record's payload is not verified.
    PayloadUnchecked,
    /// The chain checksum of the previous record is not verified.
    ChainUnchecked,
    /// Deletions in the log are not replayed.
    DeletionsNotReplayed,
    /// Blocks that log records refer to stay free.
    BlocksNotClaimed,
    /// The checksums of data blocks are not verified.
    DataUnchecked,
    /// The checksums of index nodes are not verified.
    NodeUnchecked,
    /// A log that ends before its durable end is accepted as a shorter one.
    EndUnchecked,
    /// A volume is opened without flushing data that a killed process left in the device's cache.
    MountWithoutFlush,
    /// Opening writes no mount record.
    MountRecordMissing,
    /// The mount record is not flushed.
    MountRecordUnflushed,
    /// All mounts have the same nonce.
    SameNonce,
    /// An fsync does not include the directories of a file's names.
    DirectoryDependencyLost,
    /// An fsync does not include the moved directories on the path.
    PlaceDependencyLost,
    /// An fsync does not include the inode that a rename replaced or exchanged.
    PartnerDependencyLost,
    /// An fsync does not include the earlier removal of a name.
    NameDependencyLost,
    /// An fsync includes the removal of a directory, but not the fate of its entries.
    RemovalDependencyLost,
    /// An fsync of a directory does not write its entries.
    EntriesNotSynced,
    /// A directory included by an fsync counts entries that the fsync does not include.
    CountsAhead,
    /// An fsync does not log the checksums of the data that it wrote.
    DataUntold,
    /// Recovery does not compare data with the checksums that an fsync logged.
    DataNotCompared,
    /// A log vector that an fsync logged is overwritten in place, and not logged again.
    FsyncRecordOverwritten,
    /// The deletion of an item that an fsync logged is not logged.
    FsyncRecordForgotten,
    /// A merge does not count that an attribute dropped its shared value.
    UseNotGivenUp,
    /// A shared value is removed although an attribute still refers to it.
    ValueGoneEarly,
    /// Values with equal hashes are taken for equal.
    HashesNotCompared,
    /// A push writes staged data together with its records, not before.
    StagedWithContext,
    /// A record is written without its staged data.
    StagedLeft,
    /// Blocks that a frozen root has too are freed and written by the head.
    InheritedAsOwn,
    /// Extents on both sides of a boundary become one.
    JoinedAcrossBoundary,
    /// What was born in the last context of a frozen root is not inherited from it.
    BoundaryNotInherited,
    /// A merge frees by the boundary that it brings in itself.
    LineageOfCommitters,
    /// A drop frees what its root has at keys where the child's items differ.
    ExtentsComparedWhole,
    /// What the child gives up while a drop walks is not freed with the root.
    GivenUpForgotten,
    /// A drop takes the root for one without a child.
    ChildIgnored,
    /// A drop frees the blocks in one superblock, and removes the root in the next.
    FreedBeforeRoot,
    /// What is left of an inherited extent gets the birth of the current context.
    WrongBirth,
    /// A change of roots returns before its record was flushed.
    RootRecordUnflushed,
    /// A publish writes one of its items in a record of its own.
    PublishedInTwoRecords,
    /// A published branch becomes a child of the base, which it was not forked from.
    PublishedUnderBase,
    /// A step of a drop begins behind the extent at which the step before it paused.
    PausedExtentPassed,
    /// Blocks that a checkpoint in progress has are reused.
    PinnedReused,
    /// A checkpoint is not recorded in the superblock.
    CheckpointUnrecorded,
    /// A drop writes nodes that look as old as the newest checkpoint.
    BornBeforeCheckpoint,
    /// Unwritten blocks keep their birth when they are written.
    OldBirthInPlace,
    /// A superblock is written to the front of the volume only.
    SuperblockUncopied,
}

#[cfg(not(feature = "fault-injection"))]
mod switch {
    use crate::fault::InjectedFault;

    /// Whether to inject this fault: never.
    #[inline]
    pub const fn is_injected(_fault: InjectedFault) -> bool {
        false
    }
}

#[cfg(feature = "fault-injection")]
mod switch {
    use std::cell::Cell;

    use crate::fault::InjectedFault;

    thread_local! {
        /// The faults to inject, a bit each.
        static ACTIVE: Cell<u128> = const { Cell::new(0) };
        static MADE: Cell<u64> = const { Cell::new(0) };
    }

    /// Whether to inject this fault; counts if so.
    pub fn is_injected(fault: InjectedFault) -> bool {
        let now = ACTIVE.get() & 1 << fault as u32 != 0;
        MADE.set(MADE.get() + u64::from(now));
        now
    }

    /// Restores the previous faults, also when a test panics.
    struct Restore(u128);

    impl Drop for Restore {
        fn drop(&mut self) {
            ACTIVE.set(self.0);
        }
    }

    /// Injects these faults in this thread while `run` runs.
    pub fn within<R>(faults: &[InjectedFault], run: impl FnOnce() -> R) -> R {
        let bits = faults
            .iter()
            .fold(0, |bits, fault| bits | 1_u128 << *fault as u32);
        let _restore = Restore(ACTIVE.replace(bits));
        run()
    }

    /// How many faults were injected in this thread.
    pub fn made() -> u64 {
        MADE.get()
    }
}

pub use switch::is_injected;

/// What a step returns if a fault leaves the step out.
pub trait LeftOut {
    /// The value that reports success.
    fn left_out() -> Self;
}

impl LeftOut for () {
    fn left_out() -> Self {}
}

impl<E> LeftOut for Result<(), E> {
    fn left_out() -> Self {
        Ok(())
    }
}

/// Runs `step`; the fault leaves it out.
#[inline]
pub fn unless<T: LeftOut>(fault: InjectedFault, step: impl FnOnce() -> T) -> T {
    or(fault, step, T::left_out)
}

/// Runs `right`; the fault runs `wrong` in its place.
#[inline]
pub fn or<T>(fault: InjectedFault, right: impl FnOnce() -> T, wrong: impl FnOnce() -> T) -> T {
    if is_injected(fault) { wrong() } else { right() }
}

/// Does nothing; the fault runs `wrong`.
#[inline]
pub fn inject<T: LeftOut>(fault: InjectedFault, wrong: impl FnOnce() -> T) -> T {
    or(fault, T::left_out, wrong)
}

#[cfg(feature = "fault-injection")]
pub use switch::{made, within};
