//! Faults that the engine injects on request, so that tests can show that they are detected.
//!
//! Uses nothing. Without the feature `fault-injection`, which only the tests of
//! `cairnfs-sim` enable, `is_injected` is a constant `false` and none of this is compiled in. With
//! it, a fault is injected only in the thread that asked for it, within `within`. The engine names
//! a fault in one condition, or in one call of `unless`, `or` or `inject`; wrong steps of more than
//! one call are in `space/injected.rs`.

/// A fault. Each omits, or does wrongly, one step that a guarantee depends on.
/// Its `Contract:` line has the ids of the promises in docs/contract.md that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InjectedFault {
    /// A log record is written while the data it refers to may still be in the device's cache.
    /// Contract: dependency.data
    LogBeforeData,
    /// An fsync returns before the log was flushed.
    /// Contract: durable.fsync, snapshot
    FsyncWithoutFlush,
    /// An fsync leaves the file's pages in memory.
    /// Contract: durable.fsync
    FsyncWithoutPages,
    /// A sync of the whole volume leaves the files' pages in memory.
    /// Contract: durable.sync, snapshot
    SyncWithoutPages,
    /// An fsync does not write the times of the inode.
    /// Contract: dependency.times
    TimesNotSynced,
    /// An fsync does not write items of the inode other than its inode item and names.
    /// Contract: atomic.attributes, durable.fsync
    ItemsNotSynced,
    /// An fsync does not write the names of the inode.
    /// Contract: durable.fsync
    NamesNotSynced,
    /// A failed write or flush is forgotten, and retried.
    /// Contract: failure.write
    FailureForgotten,
    /// Deletions may not use the space reserved for them.
    /// Contract: failure.removal
    DeletionsUnfunded,
    /// A record states that the log is durable up to its own end.
    /// Contract: rot.log
    DurableLsnAhead,
    /// The durable mark states more than is durable.
    /// Contract: rot.log
    MarkAhead,
    /// No durable mark is written.
    /// Contract: rot.log
    MarkMissing,
    /// The durable mark is written at the front only.
    /// Contract: rot.front
    MarkUncopied,
    /// The superblock is written while the index may still be in the device's cache.
    /// Contract: dependency, roots
    SuperblockBeforeIndex,
    /// Freed space is reused while the superblock may still be in the device's cache.
    /// Contract: stale, roots
    SuperblockUnflushed,
    /// A superblock moves the log tail before the index holds the changes from the log.
    /// Contract: dependency, roots
    TailBeforeIndex,
    /// Each step of a merge moves the log tail, not only the last step.
    /// Contract: dependency
    TailMovedEachStep,
    /// The superblock does not record the next inode number.
    /// Contract: dependency
    NextInodeForgotten,
    /// The group table is written over the valid copy.
    /// Contract: dependency
    TableInPlace,
    /// Blocks that a commit freed are reused at once.
    /// Contract: stale
    FreedBlocksReused,
    /// Index nodes that a merge replaces are reused at once.
    /// Contract: stale
    FreedUnitsReused,
    /// Written blocks of a file are overwritten in place.
    /// Contract: atomic.data
    DataInPlace,
    /// A rename does not write back the file's data first.
    /// Contract: dependency.data
    RenameWithoutData,
    /// A link does not write back the file's data first.
    /// Contract: dependency.data
    LinkWithoutData,
    /// A truncation does not write back dirty data below the new size.
    /// Contract: dependency.inode
    TruncationWithoutData,
    /// The committed size is ahead of the committed data.
    /// Contract: dependency.data
    SizeBeforeData,
    /// A file grows without zeroing the rest of its last block.
    /// Contract: stale
    TailNotZeroed,
    /// The deletion of an item that exists below its context is not logged.
    /// Contract: atomic
    TombstoneLost,
    /// A file that is unlinked while in use gets no orphan item.
    /// Contract: atomic.rest
    UnlinkWithoutOrphan,
    /// A truncated file with many extents gets no orphan item.
    /// Contract: atomic.rest
    TruncationWithoutOrphan,
    /// A log vector of a closed context is overwritten, and not logged again.
    /// Contract: dependency.inode
    RelogInPlace,
    /// Blocks that the index gains are applied to the bitmaps before those that it loses.
    /// Contract: atomic
    GainsBeforeLosses,
    /// Names are added to a name item before others are removed, which does no harm.
    /// Contract: atomic
    NamesAddedFirst,
    /// A merge forgets that an entry had another name before.
    /// Contract: atomic
    OldNameKept,
    /// A merge step ends before the old names of its entries are removed.
    /// Contract: atomic
    OldNamesLeft,
    /// A context without its last part is replayed.
    /// Contract: atomic
    HalfContextCounts,
    /// The checksum of a record's payload is not verified.
    /// Contract: dependency
    PayloadUnchecked,
    /// The chain checksum of the previous record is not verified.
    /// Contract: dependency
    ChainUnchecked,
    /// Deletions in the log are not replayed.
    /// Contract: atomic
    DeletionsNotReplayed,
    /// Blocks that log records refer to stay free.
    /// Contract: dependency
    BlocksNotClaimed,
    /// The checksums of data blocks are not verified.
    /// Contract: rot
    DataUnchecked,
    /// The checksums of index nodes are not verified.
    /// Contract: rot
    NodeUnchecked,
    /// A log that ends before its durable end is accepted as a shorter one.
    /// Contract: rot.log
    EndUnchecked,
    /// A volume is opened without flushing data that a killed process left in the device's cache.
    /// Contract: durable.opening
    MountWithoutFlush,
    /// Opening writes no mount record.
    /// Contract: durable.opening
    MountRecordMissing,
    /// The mount record is not flushed.
    /// Contract: durable.opening
    MountRecordUnflushed,
    /// All mounts have the same nonce.
    /// Contract: durable.opening
    SameNonce,
    /// An fsync does not include the directories of a file's names.
    /// Contract: dependency, dependency.inode, durable.fsync
    DirectoryDependencyLost,
    /// An fsync does not include the moved directories on the path.
    /// Contract: dependency
    PlaceDependencyLost,
    /// An fsync does not include the inode that a rename replaced or exchanged.
    /// Contract: atomic
    PartnerDependencyLost,
    /// An fsync does not include the earlier removal of a name.
    /// Contract: dependency
    NameDependencyLost,
    /// An fsync includes the removal of a directory, but not the fate of its entries.
    /// Contract: dependency
    RemovalDependencyLost,
    /// An fsync of a directory does not write its entries.
    /// Contract: durable.directory
    EntriesNotSynced,
    /// A directory included by an fsync counts entries that the fsync does not include.
    /// Contract: dependency
    CountsAhead,
    /// An fsync does not log the checksums of the data that it wrote.
    /// Contract: dependency.data
    DataUntold,
    /// Recovery does not compare data with the checksums that an fsync logged.
    /// Contract: dependency.data
    DataNotCompared,
    /// A log vector that an fsync logged is overwritten in place, and not logged again.
    /// Contract: dependency.inode
    FsyncRecordOverwritten,
    /// The deletion of an item that an fsync logged is not logged.
    /// Contract: dependency.inode
    FsyncRecordForgotten,
    /// A merge does not count that an attribute dropped its shared value.
    /// Contract: atomic.attributes
    UseNotGivenUp,
    /// A shared value is removed although an attribute still refers to it.
    /// Contract: atomic.attributes
    ValueGoneEarly,
    /// Values with equal hashes are taken for equal.
    /// Contract: atomic.attributes
    HashesNotCompared,
    /// A push writes staged data together with its records, not before.
    /// Contract: dependency.data
    StagedWithContext,
    /// A record is written without its staged data.
    /// Contract: dependency.data
    StagedLeft,
    /// Blocks that a frozen root has too are freed and written by the head.
    /// Contract: snapshot
    InheritedAsOwn,
    /// Extents on both sides of a boundary become one.
    /// Contract: snapshot
    JoinedAcrossBoundary,
    /// What was born in the last context of a frozen root is not inherited from it.
    /// Contract: snapshot
    BoundaryNotInherited,
    /// A merge frees by the boundary that it brings in itself.
    /// Contract: snapshot
    LineageOfCommitters,
    /// A drop frees what its root has at keys where the child's items differ.
    /// Contract: snapshot.drop
    ExtentsComparedWhole,
    /// What the child gives up while a drop walks is not freed with the root.
    /// Contract: snapshot.drop
    GivenUpForgotten,
    /// A drop takes the root for one without a child.
    /// Contract: snapshot.drop
    ChildIgnored,
    /// A drop frees the blocks in one superblock, and removes the root in the next.
    /// Contract: snapshot.drop
    FreedBeforeRoot,
    /// What is left of an inherited extent gets the birth of the current context.
    /// Contract: snapshot
    WrongBirth,
    /// A change of roots returns before its record was flushed.
    /// Contract: roots, roots.whole
    RootRecordUnflushed,
    /// A publish writes one of its items in a record of its own.
    /// Contract: roots.whole
    PublishedInTwoRecords,
    /// A published branch becomes a child of the base, which it was not forked from.
    /// Contract: roots.whole
    PublishedUnderBase,
    /// A step of a drop begins behind the extent at which the step before it paused.
    /// Contract: snapshot.drop
    PausedExtentPassed,
    /// Blocks that a checkpoint in progress has are reused.
    /// Contract: checkpoint
    PinnedReused,
    /// A checkpoint is not recorded in the superblock.
    /// Contract: checkpoint
    CheckpointUnrecorded,
    /// A drop writes nodes that look as old as the newest checkpoint.
    /// Contract: checkpoint
    BornBeforeCheckpoint,
    /// Unwritten blocks keep their birth when they are written.
    /// Contract: checkpoint
    OldBirthInPlace,
    /// A superblock is written to the front of the volume only.
    /// Contract: rot.front
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
