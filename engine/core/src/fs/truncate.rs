//! Changing a file's size.
//!
//! Shrinking frees whole blocks beyond the new size. The last block keeps its bytes on the device;
//! the next growth of the file zeroes them first. A file with very many extents becomes an orphan
//! of the truncating kind: its new size is committed at once, its blocks are freed in steps.

use std::sync::Arc;

use crate::fs::FileSystem;
use crate::fs::extents::{Extent, Extents};
use crate::fs::flags::may_set;
use crate::fs::locked::{attrs, attrs_mut};
use crate::fs::observe::Call;
use crate::fs::room::{becomes_inline, most};
use crate::fs::sizes::TRUNCATION_STEP;
use crate::fs::write::check_file;
use crate::inode::{Inode, InodeState};
use crate::space::{Class, Delayed};
use crate::txn::{Commit, Reservation};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::item::ORPHAN_TRUNCATE;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::{BLOCK_SIZE, MAX_FILE_SIZE, MAX_INLINE};
use cairnfs_disk::types::{Attr, Fallocate, KillPrivileges, SetAttr};

const BLOCK: u64 = BLOCK_SIZE as u64;
impl FileSystem {
    /// Sets the size of a regular file, together with other attributes except mode and flags.
    pub(super) fn truncate(&self, inode: &Arc<Inode>, size: u64, set: &SetAttr) -> Result<Attr> {
        if size > MAX_FILE_SIZE {
            return Err(Error::FileTooLarge);
        }
        self.check_changeable()?;
        let _contents = inode.contents();
        check_file(&inode.read())?;
        let resized = SetAttr {
            size: Some(size),
            ..*set
        };
        may_set(attrs(&inode.read())?, &resized)?;
        self.truncate_contents(inode, size, set)?;
        let state = inode.read();
        Ok(attrs(&state)?.public(inode.ino, state.pages.unplaced()))
    }

    /// Like [`Self::truncate`], while the caller holds the contents lock.
    pub(super) fn truncate_contents(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        set: &SetAttr,
    ) -> Result<()> {
        self.resume_truncate(inode)?;
        let old = attrs(&inode.read())?.size;
        if size > old {
            self.grow(inode, size, set, Class::Ordinary)
        } else {
            self.shrink(inode, size, set)
        }
    }

    /// Extends a regular file to at least `size` bytes, with a hole beyond its old end. Works on a
    /// full volume because a hole takes no block. Only inline contents need a block to move to.
    ///
    /// # Errors
    /// Not a regular file; too large; no space to move inline contents or to rewrite the last
    /// block.
    pub fn extend(&self, ino: u64, size: u64) -> Result<()> {
        // Observed as an fallocate of no bytes: nothing is allocated, and the size is at least
        // that.
        let call = Call::Fallocate {
            ino,
            offset: size,
            len: 0,
            what: Fallocate::Allocate { keep_size: false },
            kill: KillPrivileges::No,
        };
        self.observed(call, || self.extend_to(ino, size))
    }

    fn extend_to(&self, ino: u64, size: u64) -> Result<()> {
        if size > MAX_FILE_SIZE {
            return Err(Error::FileTooLarge);
        }
        self.check_changeable()?;
        let inode = self.inode(ino)?;
        let _contents = inode.contents();
        check_file(&inode.read())?;
        self.resume_truncate(&inode)?;
        let class = {
            let state = inode.read();
            let old = attrs(&state)?.size;
            if size <= old {
                return Ok(());
            }
            match (becomes_inline(&state), old % BLOCK) {
                // No block is written: the reserved one is released.
                (_, 0) => Class::Delete,
                (false, _) => Class::Rewrite,
                (true, _) => Class::Ordinary,
            }
        };
        self.grow(&inode, size, &SetAttr::default(), class)
    }

    /// Makes a file larger, and sets other attributes except mode and flags. Bytes that must be
    /// zeroed are written before the new size is committed, so a crash cannot expose their old
    /// contents.
    pub(super) fn grow(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        set: &SetAttr,
        class: Class,
    ) -> Result<()> {
        // Everything that can fail comes first, because the new size is visible at once.
        self.write_tail(inode, size, class)?;
        self.reserve_delayed(most(1), class)?;
        let reservation = self.reserve(Self::replace_need(0, 0, 0).deleting());
        let mut state = inode.write();
        let before = state.pages.dirty.len() as i64;
        let begun = reservation.and_then(|reservation| {
            let below = if self.load_inline(inode, &mut state, size)? {
                // The page is as the contents are, and the commit finds out whether it may change.
                state.uncommitted = true;
                self.list_file(inode, &mut state);
                Some(self.has_inline_below(inode, &state)?)
            } else {
                None
            };
            let commit = self.commit()?;
            let a = attrs_mut(&mut state)?;
            a.size = size;
            self.apply_resized(a, set);
            Ok((commit, reservation, below))
        });
        let change = state.pages.dirty.len() as i64 - before;
        self.adjust_delayed(&mut state, most(1), change);
        let (mut commit, reservation, below) = begun?;
        let receipt = match below {
            Some(below) => self.put_inline(commit, (inode, &mut state), below, reservation)?,
            None => {
                attrs_mut(&mut state)?.disk_size = size;
                commit.put_inode(inode, &mut state);
                commit.finish(reservation)
            }
        };
        drop(state);
        self.core().throttle(receipt)
    }

    /// Before a file grows to `size`: writes its dirty data, and its last block with zeros behind
    /// the end. Contents that stay inline are left to the transaction that sets the size.
    fn write_tail(&self, inode: &Arc<Inode>, size: u64, class: Class) -> Result<()> {
        let mut state = self.reserve_and_lock(inode, most(3), class)?;
        let before = state.pages.dirty.len() as i64;
        let prepared = self.prepare_growth(inode, &mut state, size, size);
        let taken = state.pages.dirty.len() as i64 - before;
        if size > MAX_INLINE as u64 {
            self.adjust_delayed_for_blocks(&mut state, most(3), taken)
        } else {
            self.adjust_delayed(&mut state, most(3), taken)
        }
        if taken > 0 {
            state.uncommitted = true;
            self.list_changed(inode, &mut state)?;
        }
        prepared?;
        let small = becomes_inline(&state) && size <= MAX_INLINE as u64;
        if state.pages.dirty.is_empty() || small {
            return Ok(());
        }
        drop(state);
        self.write_back(inode)
    }

    /// Whether a file that grows to `size` has inline contents. An inline item is as long as the
    /// file, so its contents are then loaded into a page, to be put again.
    fn load_inline(&self, inode: &Inode, state: &mut InodeState, size: u64) -> Result<bool> {
        if !becomes_inline(state) || size > MAX_INLINE as u64 {
            return Ok(false);
        }
        if !state.pages.dirty.contains_key(&0)
            && self.inline(inode, state)?.is_some()
            && let Some(page) = self.load_page(inode, state, 0)?
        {
            state.pages.add_unplaced(1);
            state.pages.dirty.insert(0, page);
        }
        Ok(!state.pages.dirty.is_empty())
    }

    /// Writes back dirty data below a new size that is beyond the committed size, before the new
    /// size is committed: a committed size implies that all data below it is written.
    fn write_below(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        let end = size.div_ceil(BLOCK);
        let waits = {
            let state = inode.read();
            let ahead = attrs(&state)?.disk_size < size;
            ahead && state.pages.dirty.range(..end).next().is_some()
        };
        if waits {
            let write_back = || self.write_back_below(inode, end);
            fault::unless(InjectedFault::TruncationWithoutData, write_back)?;
        }
        Ok(())
    }

    fn shrink(&self, inode: &Arc<Inode>, size: u64, set: &SetAttr) -> Result<()> {
        self.write_below(inode, size)?;
        let reservation =
            self.reserve(Self::replace_need(TRUNCATION_STEP, 2, MAX_INLINE as u64 / 4).deleting())?;
        let mut state = inode.write();
        let first = size.div_ceil(BLOCK);
        let mut old = self.extents(inode, &state, first, u64::MAX, TRUNCATION_STEP + 1)?;
        let more = old.len() > TRUNCATION_STEP;
        old.truncate(if more { 0 } else { TRUNCATION_STEP });
        let inline = self.core_inline(inode, &state)?;
        let dirty = &state.pages.dirty;
        let end = dirty.last_key_value().map_or(0, |(last, _)| last + 1);
        let dropped = dirty.range(first..).map(|(block, _)| *block);
        let unplaced = self.unplaced(inode, &state, (first, end), dropped)?;
        let mut commit = self.commit()?;
        state.pages.sub_unplaced(unplaced);
        self.drop_pages(&mut state, first);
        if let Some(page) = state.pages.dirty.get_mut(&(size / BLOCK))
            && let Some(behind) = page.bytes_mut().get_mut((size % BLOCK) as usize..)
        {
            behind.fill(0);
        }
        let waiting = !state.pages.dirty.is_empty();
        let a = attrs_mut(&mut state)?;
        a.size = size;
        a.disk_size = if waiting { a.disk_size.min(size) } else { size };
        self.apply_resized(a, set);
        let disk_size = a.disk_size;
        self.adjust_delayed(&mut state, Delayed::default(), 0);
        self.shrink_inline(&mut commit, inode, &mut state, inline, disk_size);
        self.replace(
            &mut commit,
            inode,
            &mut state,
            (first, u64::MAX),
            &old,
            Extents::new(),
        )?;
        if more && !is_injected(InjectedFault::TruncationWithoutOrphan) {
            match attrs(&state)?.nlink {
                // It has an orphan item, which a link made meanwhile must keep.
                0 => state.truncating = true,
                _ => self.put_orphan(&mut commit, inode, &mut state, ORPHAN_TRUNCATE),
            }
        }
        commit.put_inode(inode, &mut state);
        state.uncommitted = waiting;
        let receipt = commit.finish(reservation);
        drop(state);
        self.core().throttle(receipt)?;
        if more {
            return self.finish_truncate(inode);
        }
        Ok(())
    }

    fn core_inline(&self, inode: &Inode, state: &InodeState) -> Result<Option<crate::txn::Item>> {
        let a = attrs(state)?;
        if a.blocks > 0 || a.disk_size == 0 || a.disk_size > MAX_INLINE as u64 {
            return Ok(None);
        }
        self.items().item(inode, state, Kind::Inline, 0)
    }

    fn shrink_inline(
        &self,
        commit: &mut Commit<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        inline: Option<crate::txn::Item>,
        disk_size: u64,
    ) {
        let Some(item) = inline else { return };
        match item.value.get(..disk_size as usize) {
            Some(kept) if !kept.is_empty() => {
                commit.put(inode, state, Kind::Inline, 0, kept, item.below);
            }
            _ => commit.delete(inode, state, Kind::Inline, 0, &[], item.below),
        }
    }

    /// Finishes a truncation that failed midway: a file must not grow over blocks that it left.
    pub(super) fn resume_truncate(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.read().truncating {
            return self.finish_truncate(inode);
        }
        Ok(())
    }

    /// Frees the blocks beyond the size, in steps, and deletes the orphan item. The caller holds
    /// the contents lock, or no other thread uses the volume yet.
    pub(super) fn finish_truncate(&self, inode: &Arc<Inode>) -> Result<()> {
        loop {
            let reservation = self.reserve(Self::replace_need(TRUNCATION_STEP, 1, 0).deleting())?;
            let mut state = inode.write();
            let first = attrs(&state)?.size.div_ceil(BLOCK);
            let old = self.extents(inode, &state, first, u64::MAX, TRUNCATION_STEP)?;
            let done = old.len() < TRUNCATION_STEP;
            let receipt = self.truncate_step(inode, &mut state, first, &old, done, reservation)?;
            drop(state);
            self.core().throttle(receipt)?;
            if done {
                return Ok(());
            }
        }
    }

    fn truncate_step(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        first: u64,
        old: &[Extent],
        done: bool,
        reservation: Reservation<'_>,
    ) -> Result<crate::txn::Receipt> {
        let to = match old.last() {
            Some(last) if !done => last.end(),
            _ => u64::MAX,
        };
        let mut commit = self.commit()?;
        self.replace(&mut commit, inode, state, (first, to), old, Extents::new())?;
        if done && attrs(state)?.nlink > 0 {
            self.delete_orphan(&mut commit, inode, state);
        }
        state.truncating &= !done;
        commit.put_inode(inode, state);
        Ok(commit.finish(reservation))
    }
}
