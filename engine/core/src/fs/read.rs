//! Reading: unwritten pages first, then inline contents or extents; holes read as zeros.

use crate::fs::FileSystem;
use crate::fs::extents::Extent;
use crate::fs::locked::attrs;
use crate::fs::sizes::SEEK_STEP;
use crate::inode::{Inode, InodeState};
use cairnfs_disk::device::Page;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::{BLOCK_SIZE, MAX_INLINE};
use cairnfs_disk::sync::atomic::Ordering;
use cairnfs_disk::types::SeekTo;

/// Blocks read ahead for a sequential reader.
const READ_AHEAD: u64 = 32;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// Result of a search for data or a hole, in file blocks.
enum Sought {
    At(u64),
    Nowhere,
    /// Not before this block; the search continues there.
    NotBefore(u64),
}

impl FileSystem {
    /// Reads from a regular file; returns the bytes read, fewer than asked only at its end.
    ///
    /// # Errors
    /// Not a regular file; a checksum mismatch; a device failure.
    pub fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        let attrs = attrs(&state)?;
        if attrs.is_dir() {
            return Err(Error::IsDirectory);
        }
        if !attrs.is_file() {
            return Err(Error::Invalid("not a regular file"));
        }
        let n = (buf.len() as u64).min(attrs.size.saturating_sub(offset)) as usize;
        if let Some(buf) = buf.get_mut(..n)
            && n > 0
        {
            self.read_state(&inode, &state, offset, buf)?;
        }
        Ok(n)
    }

    /// Fills `buf` from `offset`; the whole range is within the size.
    fn read_state(
        &self,
        inode: &Inode,
        state: &InodeState,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let end = offset + buf.len() as u64;
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        buf.fill(0);
        if let Some(contents) = self.inline(inode, state)? {
            let from = contents.get(offset as usize..).unwrap_or_default();
            for (to, from) in buf.iter_mut().zip(from) {
                *to = *from;
            }
        }
        let sequential = inode.last_read.load(Ordering::Relaxed) == offset as u32 && offset > 0;
        let ahead = if sequential { READ_AHEAD } else { 0 };
        for extent in self.extents(inode, state, first, last, usize::MAX)? {
            if extent.is_unwritten() {
                continue;
            }
            let Some(part) = extent.part(first, last + ahead) else {
                continue;
            };
            if let Err(error) = self.read_extent(state, &part, offset, buf) {
                // An error in a block of the read-ahead must not fail the read.
                if part.end() <= last {
                    return Err(error);
                }
                if let Some(asked) = extent.part(first, last) {
                    self.read_extent(state, &asked, offset, buf)?;
                }
            }
        }
        for (block, page) in state.pages.dirty.range(first..last) {
            copy_block(buf, offset, *block, page.bytes());
        }
        inode.last_read.store(end as u32, Ordering::Relaxed);
        Ok(())
    }

    /// Copies the contents of an extent, except blocks that have a newer, unwritten page.
    fn read_extent(
        &self,
        state: &InodeState,
        extent: &Extent,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let mut at = extent.at;
        while at < extent.end() {
            if state.pages.dirty.contains_key(&at) {
                at += 1;
                continue;
            }
            let next = state.pages.dirty.range(at..).next();
            let until = next.map_or(extent.end(), |(b, _)| (*b).min(extent.end()));
            if let Some(part) = extent.part(at, until) {
                self.core()
                    .data()
                    .read_run(part.block, &part.crcs, &mut |i, bytes| {
                        copy_block(buf, offset, at + i as u64, bytes);
                    })?;
            }
            at = until;
        }
        Ok(())
    }

    /// The inline contents of a file, if it has any.
    pub(super) fn inline(&self, inode: &Inode, state: &InodeState) -> Result<Option<Vec<u8>>> {
        let may = state
            .attrs
            .as_ref()
            .is_some_and(|a| a.blocks == 0 && a.disk_size > 0 && a.disk_size <= MAX_INLINE as u64);
        if !may {
            return Ok(None);
        }
        let item = self.items().item(inode, state, Kind::Inline, 0)?;
        Ok(item.map(|i| i.value))
    }

    /// The current contents of a block, zeros beyond the size; `None` for a hole.
    pub(super) fn load_page(
        &self,
        inode: &Inode,
        state: &InodeState,
        block: u64,
    ) -> Result<Option<Page>> {
        let size = attrs(state)?.size;
        let start = block * BLOCK;
        if start >= size {
            return Ok(None);
        }
        let inline = match block {
            0 => self.inline(inode, state)?,
            _ => None,
        };
        let mut page = if let Some(contents) = inline {
            Page::with(&contents)
        } else {
            let extents = self.extents(inode, state, block, block + 1, 1)?;
            let Some(part) = extents.first().and_then(|e| e.part(block, block + 1)) else {
                return Ok(None);
            };
            let Some(crc) = part.crcs.first() else {
                return Ok(None);
            };
            self.core().data().read_block(part.block, *crc)?
        };
        if size - start < BLOCK
            && let Some(behind) = page.bytes_mut().get_mut((size - start) as usize..)
        {
            behind.fill(0);
        }
        Ok(Some(page))
    }

    /// The offset of the next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`Error::NoSuchOffset`] at or beyond the end, or if no data follows.
    pub fn seek(&self, ino: u64, offset: u64, to: SeekTo) -> Result<u64> {
        let inode = self.inode(ino)?;
        let mut first = offset / BLOCK;
        loop {
            let state = inode.read();
            let attrs = attrs(&state)?;
            if !attrs.is_file() {
                return Err(Error::Invalid("not a regular file"));
            }
            let size = attrs.size;
            if offset >= size {
                return Err(Error::NoSuchOffset);
            }
            if self.inline(&inode, &state)?.is_some() && size <= BLOCK {
                return Ok(match to {
                    SeekTo::Data => offset,
                    SeekTo::Hole => size,
                });
            }
            let last = size.div_ceil(BLOCK);
            let sought = match to {
                SeekTo::Data => self.next_data(&inode, &state, first, last)?,
                SeekTo::Hole => self.next_hole(&inode, &state, first, last)?,
            };
            match sought {
                Sought::At(block) => return Ok((block * BLOCK).max(offset).min(size)),
                Sought::Nowhere => return Err(Error::NoSuchOffset),
                Sought::NotBefore(block) => first = block,
            }
        }
    }

    fn next_data(
        &self,
        inode: &Inode,
        state: &InodeState,
        first: u64,
        last: u64,
    ) -> Result<Sought> {
        // The file may have been truncated since the last step of the search.
        if first >= last {
            return Ok(Sought::Nowhere);
        }
        let page = state.pages.dirty.range(first..last).next().map(|(b, _)| *b);
        let end = page.unwrap_or(last).min(last);
        let found = self.extents(inode, state, first, end, SEEK_STEP)?;
        if let Some(data) = found.iter().find(|e| !e.is_unwritten()) {
            return Ok(Sought::At(data.at.max(first)));
        }
        Ok(match (found.last(), page) {
            (Some(seen), _) if found.len() == SEEK_STEP => Sought::NotBefore(seen.end()),
            (_, Some(page)) => Sought::At(page),
            _ => Sought::Nowhere,
        })
    }

    fn next_hole(
        &self,
        inode: &Inode,
        state: &InodeState,
        first: u64,
        last: u64,
    ) -> Result<Sought> {
        let mut at = first;
        for _ in 0..SEEK_STEP {
            if at >= last {
                return Ok(Sought::At(last));
            }
            if state.pages.dirty.contains_key(&at) {
                at += 1;
                continue;
            }
            let found = self.extents(inode, state, at, at + 1, 1)?;
            match found.first() {
                Some(e) if !e.is_unwritten() => at = e.end(),
                _ => return Ok(Sought::At(at)),
            }
        }
        Ok(Sought::NotBefore(at))
    }
}

/// Copies the part of a file block that is within the buffer, which begins at `offset`.
fn copy_block(buf: &mut [u8], offset: u64, block: u64, bytes: &[u8]) {
    let start = block * BLOCK;
    let skip = offset.saturating_sub(start) as usize;
    let at = start.saturating_sub(offset) as usize;
    let from = bytes.get(skip..).unwrap_or_default();
    let to = buf.get_mut(at..).unwrap_or_default();
    let n = from.len().min(to.len());
    if let (Some(to), Some(from)) = (to.get_mut(..n), from.get(..n)) {
        to.copy_from_slice(from);
    }
}
