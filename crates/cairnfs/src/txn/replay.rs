//! Replay: puts what the log tells into dirty sets, as if it had just been committed.
//!
//! Later entries replace earlier ones, so each key ends with its final value; derived state follows
//! at the next merge by the same function as ever. Context by context, with a merge in between
//! when the dirty sets outgrow the memory budget, so a full log never needs more than that.

use std::sync::Arc;

use crate::deliberate::{Deliberate, happens};
use crate::error::{Error, Result};
use crate::format::checksum::name_hash;
use crate::format::item::{decode_dir_entry, decode_extent, decode_extent_at};
use crate::format::key::{Key, Kind, MAIN_ROOT};
use crate::format::record::Entry;
use crate::format::xattr::decode_xattrs;
use crate::inode::attrs::Attrs;
use crate::inode::dirty::Slot;
use crate::inode::{Inode, InodeState};
use crate::journal::recover::{FoundContext, LogPosition, Scan, read_context};
use crate::journal::vector::{Change, LogVector};
use crate::space::Run;
use crate::sync::atomic::Ordering;
use crate::txn::Core;
use crate::txn::merge::{Taken, without};

/// Extents named by the log whose entries were replaced later in the log.
#[derive(Default)]
struct Replaced(Vec<Run>);

impl Core {
    /// Replays the contexts that the index does not hold yet.
    pub(super) fn replay(&self, found: &Scan) -> Result<()> {
        let superblock = self.superblock();
        let mut replaced = Replaced::default();
        let first = found
            .contexts
            .partition_point(|c| c.seq <= superblock.merged_seq.get());
        let contexts = found.contexts.get(first..).unwrap_or_default();
        let mut all_claimed = false;
        for (i, context) in contexts.iter().enumerate() {
            read_context(&*self.storage, &superblock, context, &mut |entry| {
                self.replay_entry(context.seq, entry, &mut replaced)
            })?;
            if self.dirty_bytes() > self.limits.dirty_hard && !self.read_only {
                if !all_claimed {
                    self.claim_all(contexts.get(i + 1..).unwrap_or_default())?;
                    all_claimed = true;
                }
                // Of a context that goes on the rest is still to be replayed.
                let goes_on = contexts.get(i + 1).is_some_and(|c| c.seq == context.seq);
                let seq = context.seq - u64::from(goes_on);
                self.merge_replayed(seq, context.end, std::mem::take(&mut replaced))?;
            }
        }
        self.hold_back(replaced);
        Ok(())
    }

    /// Takes all blocks that contexts still to be replayed name, before a merge may allocate any.
    fn claim_all(&self, contexts: &[FoundContext]) -> Result<()> {
        let superblock = self.superblock();
        for context in contexts {
            read_context(&*self.storage, &superblock, context, &mut |entry| {
                let extent = entry.key.kind == Kind::Extent && !entry.delete;
                match run_of(entry.value).filter(|_| extent) {
                    Some(run) => self.space.claim(run).map(|_| ()),
                    None => Ok(()),
                }
            })?;
        }
        Ok(())
    }

    /// Merges what was replayed so far: all contexts up to `seq`, and what lies before `end`.
    fn merge_replayed(&self, seq: u64, end: LogPosition, replaced: Replaced) -> Result<()> {
        let inodes = self.dirty.take();
        let freed = self.not_referred(&inodes, replaced);
        self.pending_free.fetch_add(
            freed.iter().map(|r| r.len as i64).sum::<i64>(),
            Ordering::AcqRel,
        );
        self.frozen_bytes.store(
            self.dirty_bytes.swap(0, Ordering::AcqRel),
            Ordering::Release,
        );
        self.merge_taken(Taken {
            seq,
            end,
            freed,
            inodes,
            orphaned: true,
            units: 0,
            recovering: true,
        })
    }

    /// Blocks that the log named and dropped again stay out of use until the next merge.
    fn hold_back(&self, replaced: Replaced) {
        let inodes = self.dirty.take();
        let freed = self.not_referred(&inodes, replaced);
        for inode in inodes {
            self.dirty.push(inode);
        }
        let hold = self.journal.cil().hold();
        for run in freed {
            self.pending_free
                .fetch_add(run.len as i64, Ordering::AcqRel);
            let mut one = smallvec::smallvec![run];
            hold.insert(&mut smallvec::SmallVec::new(), &mut one, 0);
        }
    }

    /// Of replaced extents the blocks that no replayed extent refers to.
    fn not_referred(&self, inodes: &[(u64, Arc<Inode>)], replaced: Replaced) -> Vec<Run> {
        if replaced.0.is_empty() {
            return Vec::new();
        }
        let mut referred = Vec::new();
        for (_, inode) in inodes {
            let state = inode.read();
            for (_, slot) in state.current.range(Kind::Extent, 0) {
                referred.extend(slot.vector.with(|v| v.and_then(run_of)));
            }
        }
        without(replaced.0, &referred)
    }

    fn replay_entry(&self, seq: u64, entry: &Entry<'_>, replaced: &mut Replaced) -> Result<()> {
        if entry.delete && happens(Deliberate::DeletionsNotReplayed) {
            return Ok(());
        }
        let key = entry.key;
        let bad = |expected: &str, found: String| {
            Err(Error::corrupt(
                0,
                "log entry",
                format!("{expected} (context {seq}, key {key:?})"),
                found,
            ))
        };
        if entry.root != MAIN_ROOT {
            return bad("an item of the main root", format!("root {}", entry.root));
        }
        let ino = match key.kind {
            Kind::Orphan => {
                // A later merge takes what is replayed, if none does here.
                self.orphaned.store(true, Ordering::Relaxed);
                key.offset
            }
            Kind::DirName | Kind::SharedValue | Kind::Root => {
                return bad("a kind that is logged", format!("{:?}", key.kind));
            }
            _ => key.object,
        };
        let inode = self.table.get_or_new(ino);
        let mut state = inode.write();
        if let Err(found) = self.replay_meaning(ino, &mut state, entry) {
            return bad("a sound value", found);
        }
        if key.kind == Kind::Inode && entry.delete {
            inode.set_ready(false);
        }
        if key.kind == Kind::Extent && !entry.delete {
            let Some(run) = run_of(entry.value) else {
                return bad("an extent", "another value".into());
            };
            if !happens(Deliberate::BlocksNotClaimed) {
                self.space.claim(run)?;
            }
        }
        self.next_ino
            .fetch_max(ino.saturating_add(1), Ordering::AcqRel);
        if state.current.is_empty() {
            state.epoch = self.journal.cil().hold().boundary;
            self.dirty.push((inode.ino, inode.clone()));
        }
        self.replay_slot(seq, &key, &mut state, entry, replaced);
        Ok(())
    }

    /// What an entry means for the inode in memory, beside its slot.
    fn replay_meaning(
        &self,
        ino: u64,
        state: &mut InodeState,
        entry: &Entry<'_>,
    ) -> std::result::Result<(), String> {
        state.indexed = true;
        let index = entry.key.offset;
        match (entry.key.kind, entry.delete) {
            (Kind::Inode, true) => {
                state.attrs = None;
                state.loaded = true;
            }
            (Kind::Inode, false) => {
                let attrs = Attrs::decode(ino, entry.value).map_err(|e| e.to_string())?;
                state.attrs = Some(attrs);
                state.loaded = true;
                state.persisted = true;
            }
            (Kind::DirIndex, false) => {
                let hash = name_hash(self.hash_seed, decode_dir_entry(entry.value)?.name);
                state.add_name(&self.name_memory, hash, index);
            }
            (Kind::DirIndex, true) => {
                let hash = entry.value.first_chunk::<8>().ok_or("no name hash")?;
                state.remove_name(u64::from_le_bytes(*hash), index);
            }
            (Kind::Extent, false) => {
                decode_extent_at(index, entry.value, &self.geometry)?;
            }
            (Kind::Xattr, false) => {
                decode_xattrs(entry.value)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn replay_slot(
        &self,
        seq: u64,
        key: &Key,
        state: &mut InodeState,
        entry: &Entry<'_>,
        replaced: &mut Replaced,
    ) {
        let shared = self.shared_part(entry);
        let change = match &shared {
            _ if entry.delete => Change::Delete(entry.value),
            Some((own, value)) => Change::Join(own, value),
            None => Change::Put(entry.value),
        };
        let vector = LogVector::new(MAIN_ROOT, *key, seq, &change);
        let mut memory = vector.memory() as i64 + 64;
        if let Some(old) = state.current.get(key.kind, key.offset) {
            memory -= old.vector.memory() as i64 + 64;
            if key.kind == Kind::Extent {
                replaced.0.extend(old.vector.with(|v| v.and_then(run_of)));
            }
        }
        self.dirty_bytes.fetch_add(memory, Ordering::Relaxed);
        state.current.insert(
            key.kind,
            key.offset,
            Slot {
                vector,
                baseline: true,
            },
        );
    }

    /// Inodes that wait to be removed or truncated, as index and dirty sets tell.
    ///
    /// # Errors
    /// Damage in the index, the device's failure.
    pub fn orphans(&self) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        let from = Key::orphan(0);
        let trees = self.trees.load_full();
        self.index.scan(&trees.main, &from, &mut |key, _| {
            let orphan = key.object == from.object && key.kind == Kind::Orphan;
            if orphan {
                found.push(key.offset);
            }
            Ok(orphan)
        })?;
        let dirty = self.dirty.take();
        for (ino, inode) in dirty {
            if inode.read().current.range(Kind::Orphan, 0).next().is_some() {
                found.push(ino);
            }
            self.dirty.push((ino, inode));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

/// The blocks of an extent item.
fn run_of(value: &[u8]) -> Option<Run> {
    let (raw, _) = decode_extent(value).ok()?;
    Some(Run {
        start: raw.block.get(),
        len: u64::from(raw.len.get()),
    })
}
