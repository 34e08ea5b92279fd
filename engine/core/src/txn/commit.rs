//! Commit of a transaction.
//!
//! A commit is made under the locks of all inodes it changes and cannot fail: it formats each
//! changed item into its slot's vector, adds the new vectors to the open context, and gives back
//! the unused part of the reservation. Afterwards, with all locks dropped, [`Core::throttle`] holds
//! back committers that are faster than push or merge.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::inode::{Inode, InodeState};
use crate::journal::cil::{Context, Filled, Hold};
use crate::journal::vector::LogVector;
use crate::space::{BlockRun, Delayed};
use crate::txn::change::Changes;
use crate::txn::copies::Used;
use crate::txn::reservations::Done;
use crate::txn::reserve::Reservation;
use crate::txn::{Core, ItemStore};
use cairnfs_disk::device::waiting::Insist;
use cairnfs_disk::device::{DataStamp, Guard};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::key::Kind;

/// Whether a tree whose parent has this boundary inherits what was born in this context.
pub(super) fn is_inherited(birth: u64, boundary: u64) -> bool {
    let born_before = || birth < boundary;
    fault::or(
        InjectedFault::BoundaryNotInherited,
        || birth <= boundary,
        born_before,
    )
}

/// Blocks of a file before others that are shipped with them again, so that a file that grows slowly
/// does not get an extent for each checkpoint.
const FEW_BLOCKS: u64 = 16;

/// The births of blocks in a tree of files while the context is held. They tell which blocks the tree
/// inherits from its parent, a frozen root.
#[derive(Debug, Clone, Copy)]
pub struct Births {
    /// The birth of what is committed now: the sequence of the open context.
    pub seq: u64,
    /// The boundary of the parent; 0 without a parent.
    pub inherited: u64,
    /// What was born up to this sequence may be in a checkpoint.
    pub captured: u64,
}

impl Births {
    /// The birth of a block whose extent has the birth `recorded`, which is 0 before its commit.
    pub fn of(&self, recorded: u64) -> u64 {
        match recorded {
            0 => self.seq,
            birth => birth,
        }
    }

    /// Whether a block of this birth belongs to a frozen root too: it is neither freed nor written.
    pub fn is_inherited(&self, birth: u64) -> bool {
        is_inherited(self.of(birth), self.inherited) && !is_injected(InjectedFault::InheritedAsOwn)
    }

    /// The birth of two extents that become one, each given by its birth and length; `None` if they may
    /// not, because the item would give the blocks of one a birth on the other side of the boundary,
    /// or more than a few blocks that a checkpoint has would be shipped again.
    pub fn joined(&self, (a, a_len): (u64, u64), (b, b_len): (u64, u64)) -> Option<u64> {
        let (a, b) = (self.of(a), self.of(b));
        let (older, len) = (a, a_len).min((b, b_len));
        let shipped_again = older <= self.captured && len > FEW_BLOCKS;
        let same_side = a == b || (older > self.inherited && !shipped_again);
        (same_side || is_injected(InjectedFault::JoinedAcrossBoundary)).then(|| a.max(b))
    }
}

/// Leaves that the extents of one range of a file touch and leave, if all of them are deleted: those at
/// both ends. What is between them becomes empty.
const ENDS: u64 = 2;

/// Result of a commit, to be passed to [`Core::throttle`].
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "a committer that is not throttled escapes the limits"]
pub struct Receipt {
    /// The context the change belongs to; it is durable once that context is.
    pub seq: u64,
    pub(super) filled: Filled,
}

impl Core {
    /// Waits for a change of roots that runs, and returns [`Error::Stale`] if it froze the root.
    pub fn check_head(&self, items: &ItemStore) -> Result<()> {
        let _hold = self.journal.cil().hold();
        if items.is_head() {
            Ok(())
        } else {
            Err(Error::Stale)
        }
    }

    /// Begins to commit changes of the tree `items`. The caller holds the locks of all inodes it
    /// will change, and takes no other inode lock before [`Commit::finish`]. It changes nothing in memory
    /// before this returns: a frozen tree is read on, as it was.
    ///
    /// # Errors
    /// [`Error::Stale`] if the root is frozen: no change may come behind its boundary.
    #[inline]
    pub fn commit<'a>(&'a self, items: &'a ItemStore) -> Result<Commit<'a>> {
        let hold = self.journal.cil().hold();
        if !items.is_head() {
            return Err(Error::Stale);
        }
        Ok(Commit {
            core: self,
            items,
            hold,
            vectors: SmallVec::new(),
            freed: SmallVec::new(),
            delta: 0,
            done: Done::default(),
            leaves: 0,
            deleted: 0,
            delayed: None,
            unfinished: None,
            _insist: Insist::begin(),
        })
    }
}

impl Core {
    /// Counts what a transaction of a head that inherits may touch.
    #[cold]
    fn use_copies(&self, items: &ItemStore, used: &Used) {
        let counted = self
            .merger
            .copies()
            .commit(&self.space, items.payer(), used);
        if let Err(error) = counted {
            self.storage.fail(error);
        }
    }
}

/// A transaction being committed.
pub struct Commit<'a> {
    pub(super) core: &'a Core,
    /// The tree that it changes.
    pub(super) items: &'a ItemStore,
    /// Set from the first change until `finish`: dirty sets hold changes that no context has yet.
    /// Before `hold`, because it fails the volume when it is dropped, and no push may write the
    /// context before that.
    pub(super) unfinished: Option<Guard<'a>>,
    hold: Hold<'a>,
    pub(super) vectors: SmallVec<[Arc<LogVector>; 8]>,
    freed: SmallVec<[BlockRun; 4]>,
    /// Log bytes that its changes are charged.
    pub(super) delta: i64,
    pub(super) done: Done,
    /// Leaves of the index that its changes may touch, as far as nothing else waits for a merge
    /// there.
    pub(super) leaves: u64,
    /// Extents that it deletes.
    pub(super) deleted: u64,
    /// What delayed data had reserved, and the bytes that its items need.
    delayed: Option<(Delayed, u64)>,
    /// What has begun to change is not broken off.
    _insist: Insist,
}

impl<'a> Commit<'a> {
    /// Sequence of the context.
    pub fn seq(&self) -> u64 {
        self.hold.seq
    }

    /// Starts changes of an inode's items.
    pub fn of<'c, 'i>(
        &'c mut self,
        inode: &'i Arc<Inode>,
        state: &'c mut InodeState,
    ) -> Changes<'c, 'a, 'i> {
        Changes::new(self, inode, state)
    }

    /// As [`Changes::put`].
    pub fn put(
        &mut self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        kind: Kind,
        offset: u64,
        value: &[u8],
        existed: bool,
    ) {
        self.of(inode, state).put(kind, offset, value, existed);
    }

    /// As [`Changes::delete`].
    pub fn delete(
        &mut self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        kind: Kind,
        offset: u64,
        note: &[u8],
        existed: bool,
    ) {
        self.of(inode, state).delete(kind, offset, note, existed);
    }

    /// As [`Changes::put_inode`].
    pub fn put_inode(&mut self, inode: &Arc<Inode>, state: &mut InodeState) {
        self.of(inode, state).put_inode();
    }

    /// Deletes the inode item and marks the inode as deleted.
    pub fn delete_inode(&mut self, inode: &Arc<Inode>, state: &mut InodeState) {
        let existed = state.persisted;
        self.delete(inode, state, Kind::Inode, 0, &[], existed);
        inode.set_ready(false);
        state.attrs = None;
        state.loaded = true;
        state.uncommitted = false;
    }

    /// The births of what this transaction changes, valid until [`Self::finish`].
    pub fn births(&self) -> Births {
        Births {
            seq: self.hold.seq,
            inherited: self.items.inherited(),
            captured: self.core.checkpoints.captured(),
        }
    }

    /// Frees data blocks of this birth, unless they are inherited. They become usable once a merge
    /// has taken this context.
    pub fn free(&mut self, run: BlockRun, birth: u64) {
        if self.births().is_inherited(birth) || self.core.space.wrongly_reuses_blocks(run) {
            return;
        }
        self.core.merger.backlog().add_pending_free(&[run]);
        self.freed.push(run);
    }

    /// Declares that the items belong to delayed data for which this growth was reserved, and that
    /// they grow the index by at most `grown` bytes.
    pub fn uses_delayed(&mut self, reserved: Delayed, grown: u64) {
        self.delayed = Some((reserved, grown));
    }

    /// Declares that changes of this inode refer to data written with `stamp`: `runs` of device
    /// blocks with their checksums. The data is made durable before the changes are logged, or
    /// checked when they are replayed.
    pub fn needs_data(
        &mut self,
        inode: &Inode,
        stamp: &DataStamp,
        runs: impl Iterator<Item = (u64, Vec<u32>)>,
    ) {
        self.hold.needs_data(stamp.get());
        inode.log_deps().enter(self.hold.seq).wrote(stamp, runs);
    }

    /// The open context.
    pub(super) fn hold(&self) -> &Context {
        &self.hold
    }

    /// Adds the changes to the open context and gives back the unused part of the reservation.
    pub fn finish(self, mut reservation: Reservation<'_>) -> Receipt {
        let Commit {
            core,
            items,
            hold,
            mut vectors,
            mut freed,
            delta,
            mut done,
            leaves,
            deleted,
            delayed,
            unfinished,
            _insist,
        } = self;
        let used = Used {
            charged: reservation.take_charge(),
            touched: leaves
                + match delayed {
                    // Of several ranges of a file.
                    Some(_) => deleted,
                    None => deleted.min(ENDS),
                },
        };
        let rest = reservation.rest(delta);
        done.counts.commits = 1;
        let filled = hold.insert(&mut vectors, &mut freed, delta);
        if let Some((waited, grown)) = delayed {
            done.growth = 0;
            core.space.commit_delayed(waited.growth, grown);
            items.payer().1.sub(waited.leaves);
        }
        if items.is_heir() {
            core.use_copies(items, &used);
        }
        core.reservations.put_back(rest, &done);
        if let Some(guard) = unfinished {
            guard.done();
        }
        Receipt {
            seq: hold.seq,
            filled,
        }
    }
}
