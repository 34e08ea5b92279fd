//! Writing: into pages in memory, each with a block of space set aside for it.
//!
//! So no-space is said here and never later. A file's contents lock orders whole writes; space is
//! reserved under it, before the inode's state is locked.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::deliberate::{Deliberate, happens};
use crate::device::{Page, Supply};
use crate::error::{Error, Result};
use crate::format::{BLOCK_SIZE, MAX_FILE_SIZE, MAX_INLINE};
use crate::fs::FileSystem;
use crate::fs::attributes::kill_privileges;
use crate::fs::locked::{attrs, attrs_mut};
use crate::fs::observe::Call;
use crate::inode::{Inode, InodeState};
use crate::space::Class;
use crate::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes written under one hold of a file's state, so that one huge write needs no huge reservation.
const CHUNK: usize = 1 << 20;

/// Refuses contents changes of anything but a regular file.
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
    /// Writes to a regular file. `privileges` clears set-user-id and set-group-id, as a write by
    /// an ordinary user does.
    ///
    /// # Errors
    /// Not a regular file; too large; no space. If part was written before, its length is returned.
    pub fn write(&self, ino: u64, offset: u64, data: &[u8], privileges: bool) -> Result<usize> {
        let call = Call::Write {
            ino,
            offset: Some(offset),
            data,
            privileges,
        };
        self.observed(call, || self.write_bytes(ino, offset, data, privileges))
    }

    fn write_bytes(&self, ino: u64, offset: u64, data: &[u8], privileges: bool) -> Result<usize> {
        let inode = self.inode(ino)?;
        let written = {
            let _contents = inode.contents();
            self.write_at(&inode, offset, data, privileges)?
        };
        self.balance_pages(&inode)?;
        Ok(written)
    }

    /// Writes all of `data` at the end of the file as it is at that moment; returns the offset.
    ///
    /// # Errors
    /// As [`FileSystem::write`]; nothing stays of what was written in part.
    pub fn append(&self, ino: u64, data: &[u8], privileges: bool) -> Result<u64> {
        let call = Call::Write {
            ino,
            offset: None,
            data,
            privileges,
        };
        self.observed(call, || self.append_bytes(ino, data, privileges))
    }

    fn append_bytes(&self, ino: u64, data: &[u8], privileges: bool) -> Result<u64> {
        let inode = self.inode(ino)?;
        let offset = {
            let _contents = inode.contents();
            let end = attrs(&inode.read())?.size;
            let written = self.write_at(&inode, end, data, privileges)?;
            if written < data.len() {
                self.truncate_contents(&inode, end)?;
                return Err(Error::NoSpace);
            }
            end
        };
        self.balance_pages(&inode)?;
        Ok(offset)
    }

    /// Writes holding the contents lock.
    pub(super) fn write_at(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        privileges: bool,
    ) -> Result<usize> {
        if self.core.read_only() {
            return Err(Error::ReadOnly);
        }
        self.core.storage().check()?;
        check_file(&inode.read())?;
        self.settle_truncate(inode)?;
        let fits = offset
            .checked_add(data.len() as u64)
            .is_some_and(|end| end <= MAX_FILE_SIZE);
        if !fits {
            return Err(Error::FileTooLarge);
        }
        let mut written = 0;
        // Chunks end at block boundaries, so that no block is handled twice.
        while let Some(rest) = data.get(written..).filter(|r| !r.is_empty()) {
            let at = offset + written as u64;
            let room = CHUNK - (at % BLOCK) as usize;
            let part = rest.get(..rest.len().min(room)).unwrap_or_default();
            match self.write_chunk(inode, at, part, privileges) {
                Ok(()) => written += part.len(),
                Err(_) if written > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(written)
    }

    fn write_chunk(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        privileges: bool,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        // Beside the blocks written: the old last block, and an inline file's first.
        let most = last - first + 2;
        let reserved = match self.core.reserve_space(most, 0, Class::Ordinary) {
            Ok(()) => most,
            Err(Error::NoSpace) => self.reserve_exactly(inode, offset, (first, last), end)?,
            Err(e) => return Err(e),
        };
        let mut state = inode.write();
        let before = state.pages.dirty.len() as u64;
        let result = self.fill_pages(inode, &mut state, offset, data);
        let taken = state.pages.dirty.len() as u64 - before;
        self.keep_reserved(&mut state, reserved, taken);
        if taken > 0 || result.is_ok() {
            self.list_file(inode, &mut state);
        }
        result?;
        let now = self.core.now();
        let a = attrs_mut(&mut state)?;
        a.size = a.size.max(end);
        a.mtime = now;
        a.ctime = now;
        if privileges {
            kill_privileges(a);
        }
        state.uncommitted = true;
        Ok(())
    }

    /// On a full volume: reserves only for blocks that have neither a page nor space of their own.
    fn reserve_exactly(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        (first, last): (u64, u64),
        end: u64,
    ) -> Result<u64> {
        let need = {
            let state = inode.read();
            let extents = self.extents(inode, &state, first, last, usize::MAX)?;
            let own = |block: u64| {
                let mut unwritten = extents.iter().filter(|e| e.is_unwritten());
                unwritten.any(|e| e.at <= block && block < e.end())
            };
            let mut blocks: Vec<u64> = self.growth_blocks(inode, &state, end, offset)?;
            blocks.retain(|b| !(first..last).contains(b));
            blocks.extend((first..last).filter(|b| !own(*b)));
            blocks.retain(|b| !state.pages.dirty.contains_key(b));
            blocks.len() as u64
        };
        self.core.reserve_space(need, 0, Class::Ordinary)?;
        Ok(need)
    }

    /// Of `reserved` blocks keeps those that `taken` new pages need.
    pub(super) fn keep_reserved(&self, state: &mut InodeState, reserved: u64, taken: u64) {
        let kept = taken.min(reserved);
        state.pages.reserved += kept as u32;
        self.core.space().unreserve(reserved - kept, 0);
        self.page_bytes
            .fetch_add((taken * BLOCK) as i64, Ordering::Relaxed);
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
        // What can fail comes first: the old contents of blocks that are written in part.
        for edge in [offset, end] {
            let block = edge / BLOCK;
            if !edge.is_multiple_of(BLOCK) && !state.pages.dirty.contains_key(&block) {
                let page = self.load_page(inode, state, block)?;
                state
                    .pages
                    .dirty
                    .insert(block, page.unwrap_or_else(Page::zeroed));
            }
        }
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
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

    /// Before a file grows to `end`: what its last block holds behind the old size must read as
    /// zeros, and inline contents that will not stay inline must move to a page. `offset` is where
    /// new data begins.
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
        let grows = end > size && !happens(Deliberate::TailNotZeroed);
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

    /// Puts a file on the list of those with unwritten data.
    pub(super) fn list_file(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if !state.listed {
            state.listed = true;
            let gone = self
                .files
                .push_pruned(inode.clone(), |file| file.unlist_if_gone());
            let table = self.core.table();
            gone.into_iter().for_each(|file| table.vanished(file));
        }
    }

    /// Throws away the pages from file block `from` on, with their reservations.
    pub(super) fn drop_pages(&self, state: &mut InodeState, from: u64) {
        let dropped = state.pages.dirty.split_off(&from);
        self.release_pages(state, dropped.len() as u64);
    }

    /// Gives back what `n` pages that are gone had reserved, and accounts their memory.
    pub(super) fn release_pages(&self, state: &mut InodeState, n: u64) {
        let left = state.pages.dirty.len() as u64;
        let reserved = u64::from(state.pages.reserved);
        let surplus = reserved.saturating_sub(left);
        state.pages.reserved = (reserved - surplus) as u32;
        self.core.space().unreserve(surplus, 0);
        self.page_bytes
            .fetch_sub((n * BLOCK) as i64, Ordering::Relaxed);
    }

    /// Writes back if too much data waits: first of this file, which its writer pays for.
    pub(super) fn balance_pages(&self, inode: &Arc<Inode>) -> Result<()> {
        let limit = self.core.limits().pages;
        if self.page_bytes.load(Ordering::Relaxed) <= limit {
            return Ok(());
        }
        self.write_back(inode)?;
        if self.page_bytes.load(Ordering::Relaxed) > limit {
            // What is wrong with another file is told to its own callers.
            let _ = self.write_back_all();
        }
        self.core.storage().check()
    }
}
