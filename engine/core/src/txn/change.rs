//! Changes of one inode's items within a transaction: each change is put into its slot of the dirty
//! set, and its vector is added to the transaction. A change of times alone may need no vector:
//! a kernel that keeps the times of files sends them after each SETXATTR, and waits.
//!
//! The caller holds the inode's lock. The inode's log dependencies are locked once for all changes
//! that need them, until the [`Changes`] are dropped.

use std::mem::offset_of;
use std::sync::Arc;

use crate::inode::attrs::Attrs;
use crate::inode::dirty::Slot;
use crate::inode::log_deps::LogDeps;
use crate::inode::{Inode, InodeState};
use crate::journal::vector::{Change, ITEM, LogVector, Size};
use crate::txn::{Commit, CommitCounts, Core};
use crate::values::Value;
use cairnfs_disk::error::Result;
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::MAX_INLINE;
use cairnfs_disk::format::item::{RawExtent, RawInode};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::mechanism::Mechanism;
use cairnfs_disk::sync::MutexGuard;

/// Approximate bytes of memory of an inode, besides its items.
const INODE_MEMORY: i64 = size_of::<Inode>() as i64 + 64;

/// Approximate bytes of memory of a slot, besides its vector.
const SLOT_MEMORY: i64 = 64;

/// Whether a vector holds an inode item that equals `new` except for the times of access and
/// change.
fn differs_in_times(vector: &LogVector, new: &[u8]) -> bool {
    let times = offset_of!(RawInode, atime)..offset_of!(RawInode, btime);
    let equal = |old: &[u8]| {
        old.get(..times.start) == new.get(..times.start)
            && old.get(times.end..) == new.get(times.end..)
    };
    vector.with(|old| old.is_some_and(equal))
}

/// Bytes by which the index may grow with a change. An inode item replaces one of the same size, if
/// one exists.
fn growth(kind: Kind, change: &Change<'_>, existed: bool) -> i64 {
    match kind {
        Kind::Inode if existed => 0,
        _ => change.growth(),
    }
}

/// Approximate bytes by which the index shrinks when an item of this kind is deleted. The deleted
/// value is not known; an estimate suffices because no space is reserved from it.
pub(super) fn shrinkage(kind: Kind, attrs: Option<&Attrs>) -> u64 {
    let value = match kind {
        Kind::Inode => size_of::<RawInode>() as u64,
        Kind::Inline => attrs.map_or(0, |a| a.disk_size.min(MAX_INLINE as u64)),
        Kind::Extent => size_of::<RawExtent>() as u64,
        // The name item is deleted with it.
        Kind::DirIndex => ITEM,
        _ => 0,
    };
    ITEM + value
}

/// Leaves of the index that a merge may touch for an item of this kind, besides what its neighbours
/// touch.
pub(super) fn touched(kind: Kind, delete: bool) -> u64 {
    match kind {
        // With the name item, and that of the name that the entry had before.
        Kind::DirIndex => 3,
        // With the counts of the value before and of the new one, and with the bytes of both.
        Kind::Xattr => 5,
        // Counted apart, because they are neighbours. One that gets a new value is counted then.
        Kind::Extent if delete => 0,
        _ => 1,
    }
}

impl Core {
    /// Puts the inode item from `attrs` if only its times differ from its vector, and that vector
    /// belongs to the open context and is not logged yet. It is then overwritten in place, which
    /// needs no log space and no new vector, and changes no list. Returns whether it was
    /// overwritten.
    ///
    /// # Errors
    /// A read-only or failed volume.
    pub fn put_times(&self, state: &mut InodeState, attrs: &Attrs) -> Result<bool> {
        self.check_changeable()?;
        let hold = self.journal.cil().hold();
        let Some(slot) = state.current.get(Kind::Inode, 0) else {
            return Ok(false);
        };
        let vector = &slot.vector;
        let appends = self.journal.is_ablated(Mechanism::Relogging);
        if vector.seq() != hold.seq || vector.is_known() || appends {
            return Ok(false);
        }
        let bytes = attrs.encode();
        if !differs_in_times(vector, &bytes) {
            return Ok(false);
        }
        let (_, Some(charge)) = vector.overwrite(&Change::Put(&bytes)) else {
            return Ok(false);
        };
        drop(hold);
        state.uncommitted = false;
        self.reservations.count(&CommitCounts {
            reused: 1,
            formatted: charge as u64,
            relogged: charge as u64,
            ..CommitCounts::default()
        });
        Ok(true)
    }
}

/// Changes of one inode's items.
pub struct Changes<'c, 'a, 'i> {
    commit: &'c mut Commit<'a>,
    inode: &'i Arc<Inode>,
    state: &'c mut InodeState,
    /// The inode's log dependencies, locked once a change needs them.
    log_deps: Option<MutexGuard<'i, LogDeps>>,
}

impl<'c, 'a, 'i> Changes<'c, 'a, 'i> {
    pub(super) fn new(
        commit: &'c mut Commit<'a>,
        inode: &'i Arc<Inode>,
        state: &'c mut InodeState,
    ) -> Self {
        Self {
            commit,
            inode,
            state,
            log_deps: None,
        }
    }

    /// Sets an item's value. `existed` means that the key has a value below the current set; it is
    /// used only if the current set has no slot for the key.
    pub fn put(&mut self, kind: Kind, offset: u64, value: &[u8], existed: bool) {
        self.change(kind, offset, &Change::Put(value), existed);
    }

    /// Sets an item's value of two parts, the second of which is shared with other items. `existed`
    /// as for [`Self::put`].
    pub fn put_joined(
        &mut self,
        kind: Kind,
        offset: u64,
        (own, shared): (&[u8], &Value),
        existed: bool,
    ) {
        self.change(kind, offset, &Change::Join(own, shared), existed);
    }

    /// Deletes an item; `note` is logged with the tombstone. `existed` as for [`Self::put`].
    pub fn delete(&mut self, kind: Kind, offset: u64, note: &[u8], existed: bool) {
        self.change(kind, offset, &Change::Delete(note), existed);
    }

    /// Puts the inode item from the inode's attributes.
    pub fn put_inode(&mut self) {
        let Some(attrs) = &self.state.attrs else {
            return;
        };
        let bytes = attrs.encode();
        // Without an older vector there is nothing to compare with.
        if let Some(slot) = self.state.current.get(Kind::Inode, 0)
            && attrs.is_file()
        {
            let times_only = differs_in_times(&slot.vector, &bytes);
            let before = self.log_deps();
            before.times_only = times_only && (before.inode.is_none() || before.times_only);
        }
        self.state.uncommitted = false;
        let existed = self.state.persisted;
        self.put(Kind::Inode, 0, &bytes, existed);
    }

    /// The inode's log dependencies, prepared for changes of this context.
    fn log_deps(&mut self) -> &mut LogDeps {
        let inode = self.inode;
        let log_deps = self.log_deps.get_or_insert_with(|| inode.log_deps());
        log_deps.enter(self.commit.seq())
    }

    /// Prepares the inode for changes of this context: seals its current set if a merge boundary
    /// was set since it was filled.
    fn enter(&mut self) {
        let (core, items) = (self.commit.core, self.commit.items);
        self.commit
            .unfinished
            .get_or_insert_with(|| core.storage.guard("a transaction was given up half done"));
        self.state.seal_up_to(Some(self.commit.hold().boundary));
        if self.state.current.is_empty() {
            // `is_cancelled` looks at the lists of other inodes, so this inode's list is unlocked.
            self.log_deps = None;
            let seq = self.commit.seq();
            let gone = items.dirty().add(self.inode, seq);
            // The inode stays in memory until a merge takes it, or until it is found to be
            // cancelled.
            self.commit.done.memory += INODE_MEMORY * (1 - gone.len() as i64);
            let table = items.table();
            gone.into_iter().for_each(|(_, i)| table.evict_cancelled(i));
        }
    }

    fn change(&mut self, kind: Kind, offset: u64, change: &Change<'_>, existed: bool) {
        let delete = matches!(change, Change::Delete(_));
        let shrinks = if delete {
            shrinkage(kind, self.state.attrs.as_ref())
        } else {
            0
        };
        self.enter();
        if kind == Kind::Orphan {
            self.commit.items.dirty().note_orphan();
        }
        let seq = self.commit.seq();
        // An item that the caller found in the current set may just have been sealed.
        let sealed = self.state.sealed.as_ref();
        let existed = existed || sealed.is_some_and(|f| f.get(kind, offset).is_some());
        let Some(slot) = self.state.current.get_mut(kind, offset) else {
            if !delete || existed {
                self.commit.done.shrinkage += shrinks;
                self.commit.done.growth += growth(kind, change, existed);
                self.add(kind, offset, change, existed);
            }
            return;
        };
        if kind == Kind::Extent && !delete && slot.vector.is_deletion() {
            // The deletion was counted as one that leaves its leaf empty, which it does not now.
            self.commit.leaves += touched(kind, delete);
        }
        // A value that was logged ahead of its context exists in the log.
        slot.exists_below |=
            slot.vector.is_known() && !is_injected(InjectedFault::FsyncRecordForgotten);
        let here = slot.vector.seq() == seq
            && (!slot.vector.is_logged() || is_injected(InjectedFault::FsyncRecordOverwritten));
        let done = &mut self.commit.done;
        done.growth += growth(kind, change, true);
        done.shrinkage += shrinks;
        if here || is_injected(InjectedFault::RelogInPlace) {
            if kind == Kind::DirIndex && !delete {
                // It replaces an entry whose growth was counted in this context.
                done.growth -= slot.vector.growth();
            }
            if delete && (!slot.exists_below || is_injected(InjectedFault::TombstoneLost)) {
                // Its growth was counted when it was added, and no merge has taken it since. Items
                // that writeback puts are counted elsewhere.
                if !matches!(kind, Kind::Extent | Kind::Inline) {
                    done.growth -= slot.vector.growth();
                    done.shrinkage -= shrinks;
                }
                self.commit.delta -= slot.vector.charge();
                slot.vector.kill();
                done.counts.died += 1;
                done.memory -= slot.vector.memory() as i64 + SLOT_MEMORY;
                self.state.current.remove(kind, offset);
                return;
            }
            let (old, new) = slot.vector.overwrite(change);
            done.counts.relogged += old as u64;
            self.commit.delta -= old;
            if let Some(new) = new {
                done.counts.reused += 1;
                done.counts.formatted += new as u64;
                self.commit.delta += new;
                if self.commit.core.journal.is_ablated(Mechanism::Relogging) {
                    self.commit.vectors.push(slot.vector.clone());
                }
                return;
            }
            slot.vector.kill();
        } else {
            // The vector belongs to an earlier context, which may be in the log already or will be.
            slot.exists_below = true;
        }
        self.replace(kind, offset, change);
    }

    /// Adds a slot for an item that the current set does not have.
    fn add(&mut self, kind: Kind, offset: u64, change: &Change<'_>, existed: bool) {
        let key = match kind {
            Kind::Orphan => Key::orphan(self.inode.ino),
            _ => Key::new(self.inode.ino, kind, offset),
        };
        let delete = matches!(change, Change::Delete(_));
        self.commit.leaves += touched(kind, delete);
        self.commit.deleted += u64::from(kind == Kind::Extent && delete);
        let (vector, size) =
            LogVector::sized(self.commit.items.root(), key, self.commit.seq(), change);
        self.commit.done.counts.allocated += 1;
        self.commit.done.memory += size.memory as i64 + SLOT_MEMORY;
        self.log(kind, &vector, size.charge);
        let slot = Slot {
            vector,
            exists_below: existed,
        };
        self.state.current.insert(kind, offset, slot);
    }

    /// Sets a slot's vector to one of this context.
    fn replace(&mut self, kind: Kind, offset: u64, change: &Change<'_>) {
        let seq = self.commit.seq();
        // Drops the references to the vector that the list holds from an older context, so that
        // `renew` can succeed.
        self.log_deps();
        let Some(slot) = self.state.current.get_mut(kind, offset) else {
            return;
        };
        let done = &mut self.commit.done;
        let charge = match LogVector::renew(&mut slot.vector, seq, change) {
            Some(charge) => charge,
            None => {
                let old = &slot.vector;
                let (vector, Size { charge, memory }) =
                    LogVector::sized(self.commit.items.root(), old.key(), seq, change);
                done.memory += memory as i64 - old.memory() as i64;
                done.counts.allocated += 1;
                slot.vector = vector;
                charge
            }
        };
        let vector = slot.vector.clone();
        self.log(kind, &vector, charge);
    }

    /// Adds a vector of this context to the transaction and to the inode's log dependencies; for a
    /// directory entry [`Commit::name`] does the latter.
    fn log(&mut self, kind: Kind, vector: &Arc<LogVector>, charge: i64) {
        self.commit.done.counts.formatted += charge as u64;
        self.commit.delta += charge;
        match kind {
            Kind::DirIndex => {}
            Kind::Inode => self.log_deps().inode = Some(vector.clone()),
            _ => self.log_deps().add_other(vector),
        }
        self.commit.vectors.push(vector.clone());
    }
}
