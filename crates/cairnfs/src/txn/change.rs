//! Changes of one inode's items within a transaction: each goes into its slot of the dirty set, and its
//! vector to the transaction. Times alone may need none.
//!
//! The caller holds the inode's lock. The inode's list of what the log does not hold is locked once for
//! all changes that need it, until they are dropped.

use std::mem::offset_of;
use std::sync::Arc;

use crate::error::Result;
use crate::fault::{InjectedFault, is_injected};
use crate::format::MAX_INLINE;
use crate::format::item::{RawExtent, RawInode};
use crate::format::key::{Key, Kind, MAIN_ROOT};
use crate::inode::attrs::Attrs;
use crate::inode::dirty::Slot;
use crate::inode::log_deps::LogDeps;
use crate::inode::{Inode, InodeState};
use crate::journal::vector::{Change, ITEM, LogVector, Size};
use crate::sync::MutexGuard;
use crate::txn::reservation_cache::CommitCounts;
use crate::txn::{Commit, Core};
use crate::values::Value;

/// Bytes of memory that an inode takes, about, beside its items.
const INODE_MEMORY: i64 = size_of::<Inode>() as i64 + 64;

/// Memory that a slot takes beside its vector, about.
const SLOT_MEMORY: i64 = 64;

/// Whether a vector has an inode item that is equal to another but for the times of access and change.
fn differs_in_times(vector: &LogVector, new: &[u8]) -> bool {
    let times = offset_of!(RawInode, atime)..offset_of!(RawInode, btime);
    let equal = |old: &[u8]| {
        old.get(..times.start) == new.get(..times.start)
            && old.get(times.end..) == new.get(times.end..)
    };
    vector.with(|old| old.is_some_and(equal))
}

/// By how many bytes the index may grow with a change. An inode item takes the place of one of its
/// size, if one exists.
fn growth(kind: Kind, change: &Change<'_>, existed: bool) -> i64 {
    match kind {
        Kind::Inode if existed => 0,
        _ => change.growth(),
    }
}

/// By how many bytes the index shrinks, at least about, when an item of this kind is deleted. What it
/// held is not known: this need not be exact, as nothing is promised out of it.
pub(super) fn shrinkage(kind: Kind, attrs: Option<&Attrs>) -> u64 {
    let value = match kind {
        Kind::Inode => size_of::<RawInode>() as u64,
        Kind::Inline => attrs.map_or(0, |a| a.disk_size.min(MAX_INLINE as u64)),
        Kind::Extent => size_of::<RawExtent>() as u64,
        // The name item goes, too.
        Kind::DirIndex => ITEM,
        _ => 0,
    };
    ITEM + value
}

impl Core {
    /// Puts the inode item as `attrs` tell, if the open context has it, the log does not, and they differ
    /// in times alone: overwritten in place it needs no space, no place in the context, and leaves
    /// all lists as they are. Tells whether that was so.
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
        if vector.seq() != hold.seq || vector.is_known() {
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
        self.reservation_caches.count(&CommitCounts {
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
    /// What the log does not hold, once a change needed it.
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

    /// Gives an item a value. `existed` tells that the key has a value below the current set; it
    /// counts only if the current set has no slot for it.
    pub fn put(&mut self, kind: Kind, offset: u64, value: &[u8], existed: bool) {
        self.change(kind, offset, &Change::Put(value), existed);
    }

    /// Gives an item a value of two parts; others have the second one, too. `existed` as for
    /// [`Self::put`].
    pub fn put_joined(
        &mut self,
        kind: Kind,
        offset: u64,
        (own, shared): (&[u8], &Value),
        existed: bool,
    ) {
        self.change(kind, offset, &Change::Join(own, shared), existed);
    }

    /// Deletes an item; `note` goes with a tombstone. `existed` as for [`Self::put`].
    pub fn delete(&mut self, kind: Kind, offset: u64, note: &[u8], existed: bool) {
        self.change(kind, offset, &Change::Delete(note), existed);
    }

    /// Puts the inode item as the attributes tell.
    pub fn put_inode(&mut self) {
        let Some(attrs) = &self.state.attrs else {
            return;
        };
        let bytes = attrs.encode();
        // Of the first change of a context nobody can say that.
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

    /// What the log does not hold, prepared for changes of this context.
    fn log_deps(&mut self) -> &mut LogDeps {
        let inode = self.inode;
        let log_deps = self.log_deps.get_or_insert_with(|| inode.log_deps());
        log_deps.enter(self.commit.seq())
    }

    /// Prepares the inode for changes of this context: a later merge boundary seals what it has.
    fn enter(&mut self) {
        let core = self.commit.core;
        self.commit
            .unfinished
            .get_or_insert_with(|| core.storage.guard("a transaction was given up half done"));
        self.state.seal_up_to(Some(self.commit.hold().boundary));
        if self.state.current.is_empty() {
            // Others' lists are looked at.
            self.log_deps = None;
            let seq = self.commit.seq();
            let listed = (self.inode.ino, self.inode.clone());
            let gone = core.dirty.push_pruned(listed, |(_, i)| i.is_cancelled(seq));
            // It stays in memory until a merge comes by, or it is found to have vanished.
            self.commit.done.memory += INODE_MEMORY * (1 - gone.len() as i64);
            gone.into_iter()
                .for_each(|(_, i)| core.table.evict_cancelled(i));
        }
    }

    fn change(&mut self, kind: Kind, offset: u64, change: &Change<'_>, existed: bool) {
        let delete = matches!(change, Change::Delete(_));
        let shrinks = match delete {
            true => shrinkage(kind, self.state.attrs.as_ref()),
            false => 0,
        };
        self.enter();
        if kind == Kind::Orphan {
            self.commit.core.note_orphan();
        }
        let seq = self.commit.seq();
        // What the caller found in the current set may have been sealed just now.
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
        // What was logged ahead of its context is known there.
        slot.exists_below |=
            slot.vector.is_known() && !is_injected(InjectedFault::FsyncRecordForgotten);
        let here = slot.vector.seq() == seq
            && (!slot.vector.is_logged() || is_injected(InjectedFault::FsyncRecordOverwritten));
        let done = &mut self.commit.done;
        done.growth += growth(kind, change, true);
        done.shrinkage += shrinks;
        if here || is_injected(InjectedFault::RelogInPlace) {
            if kind == Kind::DirIndex && !delete {
                // It takes the place of what was counted in this context.
                done.growth -= slot.vector.growth();
            }
            if delete && (!slot.exists_below || is_injected(InjectedFault::TombstoneLost)) {
                // It was counted when it came: no merge has taken it since. What writeback puts is
                // counted elsewhere.
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
                return;
            }
            slot.vector.kill();
        } else {
            // An earlier context has it: it may be in the log already, or get there.
            slot.exists_below = true;
        }
        self.replace(kind, offset, change);
    }

    /// Makes a slot for an item that the current set does not have.
    fn add(&mut self, kind: Kind, offset: u64, change: &Change<'_>, existed: bool) {
        let key = match kind {
            Kind::Orphan => Key::orphan(self.inode.ino),
            _ => Key::new(self.inode.ino, kind, offset),
        };
        let (vector, size) = LogVector::sized(MAIN_ROOT, key, self.commit.seq(), change);
        self.commit.done.counts.allocated += 1;
        self.commit.done.memory += size.memory as i64 + SLOT_MEMORY;
        self.log(kind, &vector, size.charge);
        let slot = Slot {
            vector,
            exists_below: existed,
        };
        self.state.current.insert(kind, offset, slot);
    }

    /// Gives a slot a vector of this context.
    fn replace(&mut self, kind: Kind, offset: u64, change: &Change<'_>) {
        let seq = self.commit.seq();
        // What an older context noted holds it no more.
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
                    LogVector::sized(MAIN_ROOT, old.key(), seq, change);
                done.memory += memory as i64 - old.memory() as i64;
                done.counts.allocated += 1;
                slot.vector = vector;
                charge
            }
        };
        let vector = slot.vector.clone();
        self.log(kind, &vector, charge);
    }

    /// Adds a vector of this context to the transaction, and notes it with the inode; of an entry
    /// [`Commit::name`] does.
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
