//! Writing: into pages in memory, each with a block of space reserved for it unless the file
//! becomes an inline item.
//!
//! So ENOSPC is returned by the write and never later. A file's contents lock orders whole writes;
//! space is reserved under it, before the inode's state is locked.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::fs::FileSystem;
use crate::fs::attributes::kill_privileges;
use crate::fs::extents::Extent;
use crate::fs::flags::may_write;
use crate::fs::locked::{attrs, attrs_mut};
use crate::fs::observe::Call;
use crate::fs::room::{becomes_inline, most};
use crate::inode::{Inode, InodeState};
use crate::space::{Class, Delayed};
use cairnfs_disk::device::{Page, Supply, waiting};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::{BLOCK_SIZE, MAX_FILE_SIZE, MAX_INLINE};
use cairnfs_disk::sync::RwLockWriteGuard;
use cairnfs_disk::types::{KillPrivileges, SetAttr, Time};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes written under one hold of the state lock, so that a huge write needs no huge reservation.
const CHUNK: usize = 1 << 20;

/// Refuses to change the contents of anything but a regular file.
pub(super) fn check_file(state: &InodeState) -> Result<()> {
    let attrs = attrs(state)?;
    if attrs.is_dir() {
        return Err(Error::IsDirectory);
    }
    if !attrs.is_file() {
        return Err(Error::Invalid("not a regular file"));
    }
    Ok(())
}

impl FileSystem {
    /// Writes to a regular file; returns the bytes written. `kill` clears set-id bits, as a write
    /// by an ordinary user does.
    ///
    /// # Errors
    /// Not a regular file; too large; no space. If a part was written, its length is returned
    /// instead.
    pub fn write(
        &self,
        ino: u64,
        offset: u64,
        data: &[u8],
        kill: impl Into<KillPrivileges>,
    ) -> Result<usize> {
        let kill = kill.into();
        let call = Call::Write {
            ino,
            offset: Some(offset),
            data,
            kill,
        };
        self.observed(call, || self.write_bytes(ino, offset, data, kill))
    }

    fn write_bytes(
        &self,
        ino: u64,
        offset: u64,
        data: &[u8],
        kill: KillPrivileges,
    ) -> Result<usize> {
        let inode = self.inode(ino)?;
        let written = {
            let _contents = inode.contents();
            self.write_at(&inode, (offset, data), kill, false)?
        };
        self.balance_pages(&inode)?;
        Ok(written)
    }

    /// Appends all of `data` at the current end of the file, atomically; returns the offset.
    ///
    /// # Errors
    /// As [`FileSystem::write`]; a partial write is undone.
    pub fn append(&self, ino: u64, data: &[u8], kill: impl Into<KillPrivileges>) -> Result<u64> {
        let kill = kill.into();
        let call = Call::Write {
            ino,
            offset: None,
            data,
            kill,
        };
        self.observed(call, || self.append_bytes(ino, data, kill))
    }

    fn append_bytes(&self, ino: u64, data: &[u8], kill: KillPrivileges) -> Result<u64> {
        let inode = self.inode(ino)?;
        let offset = {
            let _contents = inode.contents();
            let end = attrs(&inode.read())?.size;
            let written = self.write_at(&inode, (end, data), kill, true)?;
            if written < data.len() {
                self.truncate_contents(&inode, end, &SetAttr::default())?;
                return Err(Error::NoSpace);
            }
            end
        };
        self.balance_pages(&inode)?;
        Ok(offset)
    }

    /// Writes while the caller holds the contents lock. On a full volume it writes the part that
    /// fits, or with `whole` tries no smaller part.
    fn write_at(
        &self,
        inode: &Arc<Inode>,
        (offset, data): (u64, &[u8]),
        kill: KillPrivileges,
        whole: bool,
    ) -> Result<usize> {
        self.check_changeable()?;
        check_file(&inode.read())?;
        may_write(attrs(&inode.read())?, offset, kill)?;
        self.resume_truncate(inode)?;
        if self.engine.pages.is_full() {
            // Pages that could not be written back earlier must not grow without limit.
            waiting::before()?;
            self.write_back(inode)?;
        }
        let fits = offset
            .checked_add(data.len() as u64)
            .is_some_and(|end| end <= MAX_FILE_SIZE);
        if !fits {
            return Err(Error::FileTooLarge);
        }
        // One time for all parts: no part is older than another if a crash splits the write.
        let now = self.core().now();
        let mut written = 0;
        let mut limit = CHUNK;
        // Chunks end at block boundaries, so that no block is handled twice.
        while let Some(rest) = data.get(written..).filter(|r| !r.is_empty()) {
            let at = offset + written as u64;
            let room = limit - (at % BLOCK) as usize;
            let part = rest.get(..rest.len().min(room)).unwrap_or_default();
            match self.write_chunk(inode, (at, part), kill, now) {
                Ok(()) => written += part.len(),
                // If a part does not fit, try half of it.
                Err(Error::NoSpace | Error::HeldByRoots)
                    if !whole && limit > BLOCK_SIZE && part.len() > BLOCK_SIZE =>
                {
                    let blocks = part.len().min(limit) / 2 / BLOCK_SIZE;
                    limit = blocks.max(1) * BLOCK_SIZE;
                }
                // The caller repeats all of the write.
                Err(e @ (Error::WouldWait | Error::Stale)) => return Err(e),
                Err(_) if written > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(written)
    }

    fn write_chunk(
        &self,
        inode: &Arc<Inode>,
        (offset, data): (u64, &[u8]),
        kill: KillPrivileges,
        now: Time,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        // In addition to the blocks written: the old last block, and an inline file's first block.
        let blocks = last - first + 3;
        let want = most(blocks);
        let reserved = self
            .core()
            .reserve_delayed(self.items(), want, Class::Ordinary);
        let (reserved, mut state) = match reserved {
            Ok(()) => (want, inode.write()),
            Err(Error::NoSpace | Error::HostFull { .. }) => {
                self.reserve_exactly(inode, offset, (first, last), end)?
            }
            Err(e) => return Err(e),
        };
        let before = state.pages.dirty.len() as i64;
        let result = self.fill_pages(inode, &mut state, offset, data);
        let taken = state.pages.dirty.len() as i64 - before;
        if result.is_ok() {
            let a = attrs_mut(&mut state)?;
            a.size = a.size.max(end);
            // Between two parts another thread may change the file: times must not go backwards.
            let now = if a.ctime > now {
                self.core().now()
            } else {
                now
            };
            self.engine.times.touch(a, || now);
            kill_privileges(a, kill);
            state.uncommitted = true;
        }
        self.adjust_delayed(&mut state, reserved, taken);
        if taken > 0 || result.is_ok() {
            result.and(self.list_changed(inode, &mut state))
        } else {
            result
        }
    }

    /// Lists a file after a change of its state in memory, the space of which is counted.
    ///
    /// # Errors
    /// [`Error::Stale`] if the branch was replaced meanwhile: nothing will write the change back, and
    /// nobody sees it.
    pub(super) fn list_changed(&self, inode: &Arc<Inode>, state: &mut InodeState) -> Result<()> {
        self.list_file(inode, state);
        if !self.root.writeback.is_closing() {
            return Ok(());
        }
        let checked = self.core().check_head(self.items());
        if checked.is_err() {
            // The replacement may have written back, and forgotten, what was listed before.
            self.forget_changes(inode, state)?;
        }
        checked
    }

    /// On a full volume: reserves only for blocks that have neither a page nor preallocated space.
    /// If all of them replace written blocks, uses the reserve for rewrites. Returns with the state
    /// locked, so that its pages are not written back meanwhile.
    fn reserve_exactly<'i>(
        &self,
        inode: &'i Inode,
        offset: u64,
        range: (u64, u64),
        end: u64,
    ) -> Result<(Delayed, RwLockWriteGuard<'i, InodeState>)> {
        loop {
            let want = || self.exact_need(inode, &inode.read(), offset, range, end);
            let reserved = self.with_room(|| {
                let (want, class) = want()?;
                let reserved = self.core().reserve_delayed(self.items(), want, class);
                reserved.map(|()| want)
            })?;
            let state = inode.write();
            match self.exact_need(inode, &state, offset, range, end) {
                Ok((need, _)) if need.at_most(reserved) == need => return Ok((reserved, state)),
                changed => {
                    drop(state);
                    self.core().release_delayed(self.items(), reserved);
                    changed?;
                }
            }
        }
    }

    /// The space that a write needs, and its class.
    fn exact_need(
        &self,
        inode: &Inode,
        state: &InodeState,
        offset: u64,
        (first, last): (u64, u64),
        end: u64,
    ) -> Result<(Delayed, Class)> {
        let inline = becomes_inline(state);
        if inline && end.max(attrs(state)?.size) <= MAX_INLINE as u64 {
            let none = Delayed {
                blocks: 0,
                ..most(0)
            };
            return Ok((none, Class::Ordinary));
        }
        let extents = self.extents(inode, state, first, last, usize::MAX)?;
        let mapped = |block: u64| extents.iter().find(|e| e.at <= block && block < e.end());
        let mut blocks = self.growth_blocks(inode, state, end, offset)?;
        blocks.extend(first..last);
        if inline {
            // The page of a file that was to become inline has no block yet.
            blocks.extend(state.pages.dirty.keys())
        } else {
            blocks.retain(|b| !state.pages.dirty.contains_key(b))
        }
        blocks.sort_unstable();
        blocks.dedup();
        let pages = blocks.len() as u64;
        let items = self.items();
        let owned = |e: &&Extent| !items.is_inherited(e.birth);
        let in_place = |b: u64| mapped(b).filter(owned).is_some_and(Extent::is_unwritten);
        blocks.retain(|b| !in_place(*b));
        // A replaced block that a frozen root has too is not given back.
        let class = if blocks.iter().any(|b| mapped(*b).filter(owned).is_none()) {
            Class::Ordinary
        } else {
            Class::Rewrite
        };
        let want = Delayed {
            blocks: blocks.len() as u64,
            ..most(pages)
        };
        Ok((want, class))
    }

    fn fill_pages(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        self.prepare_growth(inode, state, end, offset)?;
        // Everything that can fail comes first: loading the blocks that are written in part.
        let mut edges = SmallVec::<[(u64, Page); 2]>::new();
        for edge in [offset, end] {
            let block = edge / BLOCK;
            let loaded = edges.last().is_some_and(|(last, _)| *last == block);
            if !edge.is_multiple_of(BLOCK) && !loaded && !state.pages.dirty.contains_key(&block) {
                let page = self.load_page(inode, state, block)?;
                edges.push((block, page.unwrap_or_else(Page::zeroed)));
            }
        }
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        let dirty = &state.pages.dirty;
        let new = blocks.clone().filter(|b| !dirty.contains_key(b));
        // Only `st_blocks` uses this count; writeback reports unreadable extents.
        let unplaced = self
            .unplaced(inode, state, (blocks.start, blocks.end), new)
            .unwrap_or_default();
        state.pages.add_unplaced(unplaced);
        state.pages.dirty.extend(edges);
        let there = state.pages.dirty.range(blocks.clone()).count();
        let mut supply = Supply::new((blocks.end - blocks.start) as usize - there);
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let skip = (at % BLOCK) as usize;
            let (part, later) = rest.split_at(rest.len().min(BLOCK_SIZE - skip));
            match state.pages.dirty.entry(at / BLOCK) {
                Entry::Vacant(place) => {
                    place.insert(supply.page_with(skip, part));
                }
                Entry::Occupied(mut page) => {
                    let to = page.get_mut().bytes_mut();
                    if let Some(to) = to.get_mut(skip..skip + part.len()) {
                        to.copy_from_slice(part);
                    }
                }
            }
            at += part.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Prepares growth of a file to `end`: bytes of its last block beyond the old size must read as
    /// zeros, and inline contents that will not stay inline must move to a page. `offset` is where
    /// the new data begins.
    pub(super) fn prepare_growth(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        end: u64,
        offset: u64,
    ) -> Result<()> {
        for block in self.growth_blocks(inode, state, end, offset)? {
            if !state.pages.dirty.contains_key(&block)
                && let Some(page) = self.load_page(inode, state, block)?
            {
                // Without extents the contents come from the inline item.
                let unplaced = attrs(state)?.blocks == 0;
                state.pages.add_unplaced(u64::from(unplaced));
                state.pages.dirty.insert(block, page);
            }
        }
        Ok(())
    }

    /// The blocks that [`Self::prepare_growth`] may load, at most two.
    fn growth_blocks(
        &self,
        inode: &Inode,
        state: &InodeState,
        end: u64,
        offset: u64,
    ) -> Result<Vec<u64>> {
        let size = attrs(state)?.size;
        let mut blocks = Vec::new();
        let grows = end > size && !is_injected(InjectedFault::TailNotZeroed);
        if grows && !size.is_multiple_of(BLOCK) && offset > size {
            blocks.push(size / BLOCK);
        }
        let first_listed = blocks.contains(&0);
        if !first_listed
            && end.max(size) > MAX_INLINE as u64
            && self.inline(inode, state)?.is_some()
        {
            blocks.push(0);
        }
        Ok(blocks)
    }

    /// Adds a file to the list of files with dirty data.
    pub(super) fn list_file(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        self.evict_gone(self.root.writeback.add(inode, state));
    }

    /// Evicts deleted files that were dropped from the list.
    pub(super) fn evict_gone(&self, gone: Vec<Arc<Inode>>) {
        let table = self.items().table();
        gone.into_iter()
            .for_each(|file| table.evict_cancelled(file));
    }

    /// Drops the pages from file block `from` on, with their reservations.
    pub(super) fn drop_pages(&self, state: &mut InodeState, from: u64) {
        let dropped = state.pages.dirty.split_off(&from);
        self.adjust_delayed(state, Delayed::default(), -(dropped.len() as i64));
    }

    /// Writes back if there is too much dirty data: first this file, whose writer causes it, then
    /// others until the next writers have room. Data that cannot be written because of an error in
    /// its file stays accepted: the next write to that file, or a sync, returns the error.
    fn balance_pages(&self, inode: &Arc<Inode>) -> Result<()> {
        if !self.engine.pages.is_full() || waiting::postponed(0) {
            return Ok(());
        }
        let _ = self.write_back(inode);
        let has_room = || self.engine.pages.has_room();
        for fs in self.all().take_while(|_| !has_room()) {
            let _ = fs.write_back_until(has_room);
        }
        self.core().storage().check()
    }
}
