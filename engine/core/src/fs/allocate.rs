//! fallocate (preallocation, holes, zeroed ranges) and copying within the volume.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::smallvec;

use crate::fs::FileSystem;
use crate::fs::attributes::kill_privileges;
use crate::fs::extents::{Extent, Extents};
use crate::fs::flags::may_allocate;
use crate::fs::locked::{attrs, attrs_mut};
use crate::fs::observe::Call;
use crate::fs::room::most;
use crate::fs::sizes::TRUNCATION_STEP;
use crate::fs::write::check_file;
use crate::inode::Inode;
use crate::inode::attrs::Attrs;
use crate::space::{Class, Funding};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::{BLOCK_SIZE, MAX_EXTENT_BLOCKS, MAX_FILE_SIZE, MAX_INLINE};
use cairnfs_disk::sync::MutexGuard;
use cairnfs_disk::types::{Fallocate, KillPrivileges, SetAttr};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks allocated in one transaction (64 MiB).
const ALLOCATE_STEP: u64 = 64 * MAX_EXTENT_BLOCKS;
/// Bytes copied at a time.
const COPY_CHUNK: u64 = 1 << 20;

/// A change of a file's space, in steps. The first step that changes something clears set-id bits.
struct Change<'a> {
    inode: &'a Arc<Inode>,
    what: Fallocate,
    kill: KillPrivileges,
    /// Whether a step set the times and cleared set-id bits.
    touched: Cell<bool>,
}

impl Change<'_> {
    /// Updates the inode's attributes in a step.
    fn touch(&self, fs: &FileSystem, attrs: &mut Attrs) {
        fs.touch(attrs);
        kill_privileges(attrs, self.kill);
        self.touched.set(true);
    }
}

impl FileSystem {
    /// Preallocates a range of a regular file, punches a hole, or makes the range read as zeros.
    /// `kill` clears set-id bits, as for a write.
    ///
    /// # Errors
    /// Not a regular file; an empty range; too large; no space.
    pub fn fallocate(
        &self,
        ino: u64,
        offset: u64,
        len: u64,
        what: Fallocate,
        kill: impl Into<KillPrivileges>,
    ) -> Result<()> {
        let kill = kill.into();
        let call = Call::Fallocate {
            ino,
            offset,
            len,
            what,
            kill,
        };
        self.observed(call, || self.change_space(ino, (offset, len), what, kill))
    }

    fn change_space(
        &self,
        ino: u64,
        (offset, len): (u64, u64),
        what: Fallocate,
        kill: KillPrivileges,
    ) -> Result<()> {
        self.check_changeable()?;
        if len == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let end = offset
            .checked_add(len)
            .filter(|e| *e <= MAX_FILE_SIZE)
            .ok_or(Error::FileTooLarge)?;
        let inode = self.inode(ino)?;
        check_file(&inode.read())?;
        if !matches!(what, Fallocate::PunchHole) {
            self.check_fits(&inode, end.div_ceil(BLOCK) - offset / BLOCK)?;
        }
        let change = Change {
            inode: &inode,
            what,
            kill,
            touched: Cell::new(false),
        };
        match what {
            Fallocate::PunchHole => self.punch(&change, offset, end)?,
            Fallocate::Allocate { keep_size } => {
                self.allocate(&change, offset, end, None)?;
                self.grow_to(&change, end, keep_size)?;
            }
            Fallocate::ZeroRange { keep_size } => {
                self.zero_range(&change, offset, end)?;
                self.grow_to(&change, end, keep_size)?;
            }
        }
        self.touch_if_untouched(&change)
    }

    /// Refuses a range for which the whole volume is too small, before anything gives way for it.
    fn check_fits(&self, inode: &Inode, range: u64) -> Result<()> {
        let has = attrs(&inode.read())?.blocks;
        if range.saturating_sub(has) > self.core().geometry().data_blocks() {
            Err(Error::NoSpace)
        } else {
            Ok(())
        }
    }

    /// Locks the contents for one step. A large range may take long, so other threads may change
    /// the file between two steps.
    fn step<'a>(&self, change: &Change<'a>) -> Result<MutexGuard<'a, ()>> {
        let inode = change.inode;
        let contents = inode.contents();
        may_allocate(attrs(&inode.read())?, change.what, change.kill)?;
        self.resume_truncate(inode)?;
        Ok(contents)
    }

    /// Sets the size after the space is allocated, so that a failure leaves it unchanged.
    fn grow_to(&self, change: &Change<'_>, end: u64, keep_size: bool) -> Result<()> {
        let _contents = self.step(change)?;
        let size = attrs(&change.inode.read())?.size;
        if keep_size || end <= size {
            return Ok(());
        }
        let set = SetAttr {
            kill_privileges: change.kill,
            ..SetAttr::default()
        };
        self.grow(change.inode, end, &set, Class::Rewrite)?;
        change.touched.set(true);
        Ok(())
    }

    /// Sets times and clears set-id bits even if no step changed anything; they are committed with
    /// the next writeback.
    fn touch_if_untouched(&self, change: &Change<'_>) -> Result<()> {
        if change.touched.get() {
            return Ok(());
        }
        let _contents = self.step(change)?;
        let mut state = change.inode.write();
        change.touch(self, attrs_mut(&mut state)?);
        state.uncommitted = true;
        self.list_changed(change.inode, &mut state)
    }

    /// Makes a range read as zeros. Its space is reserved before the old contents are dropped.
    fn zero_range(&self, change: &Change<'_>, offset: u64, end: u64) -> Result<()> {
        let blocks = end.div_ceil(BLOCK) - offset / BLOCK;
        self.reserve_blocks(blocks, Class::Ordinary)?;
        let mut left = blocks;
        let result = self
            .punch(change, offset, end)
            .and_then(|()| self.allocate(change, offset, end, Some(&mut left)));
        self.core().space().unreserve(left, 0);
        result
    }

    /// Punches a hole, in steps. Blocks that are covered in part are rewritten with zeros in that
    /// part.
    fn punch(&self, change: &Change<'_>, offset: u64, end: u64) -> Result<()> {
        self.zero_edges(change, offset, end)?;
        let (mut from, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        while from < last {
            let _contents = self.step(change)?;
            // Another thread may have written since the last step, and made the file larger: a hole
            // takes the data, but not the size.
            self.write_back(change.inode)?;
            from = self.punch_step(change, from, last)?;
        }
        Ok(())
    }

    /// Zeroes the blocks that a range covers in part, or the whole range in a small file.
    fn zero_edges(&self, change: &Change<'_>, offset: u64, end: u64) -> Result<()> {
        let _contents = self.step(change)?;
        let size = attrs(&change.inode.read())?.size;
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        // A small file may have inline contents, without blocks that could be freed.
        let edges = if first > last || size <= MAX_INLINE as u64 {
            vec![(offset, end)]
        } else {
            vec![(offset, first * BLOCK), (last * BLOCK, end)]
        };
        for (from, to) in edges {
            self.zero_edge(change, from, to.min(size))?;
        }
        // The edges must be durable no later than the hole.
        self.write_back(change.inode)
    }

    /// Zeroes part of a block in its page, if the block has contents.
    fn zero_edge(&self, change: &Change<'_>, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let inode = change.inode;
        let mut state = self.reserve_and_lock(inode, most(1), Class::Rewrite)?;
        let block = from / BLOCK;
        let mut taken = 0;
        if !state.pages.dirty.contains_key(&block) {
            let page = self.load_page(inode, &state, block);
            if let Ok(Some(page)) = page {
                let unplaced = attrs(&state)?.blocks == 0;
                state.pages.add_unplaced(u64::from(unplaced));
                state.pages.dirty.insert(block, page);
                taken = 1;
            } else {
                self.adjust_delayed(&mut state, most(1), 0);
                return page.map(|_| ());
            }
        }
        self.adjust_delayed(&mut state, most(1), taken);
        let range = (from % BLOCK) as usize..((to - 1) % BLOCK) as usize + 1;
        if let Some(part) = state
            .pages
            .dirty
            .get_mut(&block)
            .and_then(|p| p.bytes_mut().get_mut(range))
        {
            part.fill(0);
        }
        change.touch(self, attrs_mut(&mut state)?);
        state.uncommitted = true;
        self.list_changed(inode, &mut state)
    }

    /// Frees up to [`TRUNCATION_STEP`] extents in `from..to`; returns the block at which to
    /// continue. No data of the file waits to be written.
    fn punch_step(&self, change: &Change<'_>, from: u64, to: u64) -> Result<u64> {
        let inode = change.inode;
        let reservation = self.reserve(Self::replace_need(TRUNCATION_STEP, 2, 0).deleting())?;
        let mut state = inode.write();
        let old = self.extents(inode, &state, from, to, TRUNCATION_STEP)?;
        let until = match old.last() {
            Some(last) if old.len() == TRUNCATION_STEP => last.end().min(to),
            _ => to,
        };
        let mut commit = self.commit()?;
        change.touch(self, attrs_mut(&mut state)?);
        self.replace(
            &mut commit,
            inode,
            &mut state,
            (from, until),
            &old,
            Extents::new(),
        )?;
        commit.put_inode(inode, &mut state);
        let receipt = commit.finish(reservation);
        drop(state);
        self.core().throttle(receipt)?;
        Ok(until)
    }

    /// Allocates the holes of a range, from `funds` if space was reserved.
    fn allocate(
        &self,
        change: &Change<'_>,
        offset: u64,
        end: u64,
        mut funds: Option<&mut u64>,
    ) -> Result<()> {
        let last = end.div_ceil(BLOCK);
        let mut from = offset / BLOCK;
        while from < last {
            let to = last.min(from + ALLOCATE_STEP);
            let _contents = self.step(change)?;
            self.leave_inline(change.inode, class_with(&funds))?;
            self.allocate_step(change, from, to, funds.as_deref_mut())?;
            from = to;
        }
        Ok(())
    }

    /// Moves inline contents to a block, because a file with extents has no inline contents.
    fn leave_inline(&self, inode: &Arc<Inode>, class: Class) -> Result<()> {
        let inline = {
            let state = inode.read();
            let may = attrs(&state)?.blocks == 0;
            may && (!state.pages.dirty.is_empty() || self.inline(inode, &state)?.is_some())
        };
        if !inline {
            return Ok(());
        }
        let mut state = self.reserve_and_lock(inode, most(1), class)?;
        let page = if state.pages.dirty.contains_key(&0) {
            Ok(None)
        } else {
            self.load_page(inode, &state, 0)
        };
        let unplaced = u64::from(attrs(&state)?.blocks == 0);
        let mut taken = 0;
        let loaded = page.map(|page| {
            if let Some(page) = page {
                state.pages.add_unplaced(unplaced);
                state.pages.dirty.insert(0, page);
                taken = 1;
            }
        });
        self.adjust_delayed_for_blocks(&mut state, most(1), taken);
        loaded?;
        state.uncommitted = true;
        self.list_changed(inode, &mut state)?;
        drop(state);
        self.write_back(inode)
    }

    /// Allocates unwritten extents for the holes in `from..to`.
    fn allocate_step(
        &self,
        change: &Change<'_>,
        from: u64,
        to: u64,
        funds: Option<&mut u64>,
    ) -> Result<()> {
        let inode = change.inode;
        let holes = {
            let state = inode.read();
            holes(
                &self.extents(inode, &state, from, to, usize::MAX)?,
                from,
                to,
            )
        };
        let blocks: u64 = holes.iter().map(|(a, b)| b - a).sum();
        if blocks == 0 {
            return Ok(());
        }
        let class = class_with(&funds);
        if let Some(funds) = funds {
            return self.allocate_holes(change, &holes, funds, class);
        }
        self.reserve_blocks(blocks, class)?;
        let mut left = blocks;
        let result = self.allocate_holes(change, &holes, &mut left, class);
        self.core().space().unreserve(left, 0);
        result
    }

    /// Allocates unwritten extents in these holes. Checks again that they are holes: writeback does
    /// not take the contents lock, and a reservation may write the file's own data back.
    fn allocate_holes(
        &self,
        change: &Change<'_>,
        holes: &[(u64, u64)],
        left: &mut u64,
        class: Class,
    ) -> Result<()> {
        let inode = change.inode;
        let mut goal = 0;
        for (from, to) in holes {
            let mut at = *from;
            while at < *to {
                let mut need = Self::replace_need(1, 3, 0);
                need.class = class;
                let reservation = self.reserve(need)?;
                let mut state = inode.write();
                // Of a removed inode nothing may be allocated: no item would refer to the blocks.
                attrs(&state)?;
                let end = (*to).min(at + MAX_EXTENT_BLOCKS);
                let want = match self.extents(inode, &state, at, end, 1)?.first() {
                    Some(placed) if placed.at <= at => {
                        at = placed.end();
                        continue;
                    }
                    placed => placed.map_or(end, |e| e.at) - at,
                };
                let mut commit = self.commit()?;
                let run = self
                    .core()
                    .space()
                    .alloc(goal, want, Funding::Reserved)?
                    .ok_or(Error::NoSpace)?;
                *left = left.saturating_sub(run.len);
                goal = run.start + run.len;
                change.touch(self, attrs_mut(&mut state)?);
                let new = smallvec![Extent::unwritten(at, run.start, run.len)];
                let range = (at, at + run.len);
                let waiting = state.pages.dirty.range(range.0..range.1).count();
                state.pages.sub_unplaced(waiting as u64);
                self.replace(&mut commit, inode, &mut state, range, &[], new)?;
                commit.put_inode(inode, &mut state);
                state.uncommitted = !state.pages.dirty.is_empty();
                let receipt = commit.finish(reservation);
                drop(state);
                self.core().throttle(receipt)?;
                at += run.len;
            }
        }
        Ok(())
    }

    /// Copies up to `len` bytes between regular files; returns how many. Short at the source's end.
    /// `kill` clears set-id bits of the target, as for a write.
    ///
    /// # Errors
    /// As [`FileSystem::read`] and [`FileSystem::write`]; overlapping ranges of one file.
    pub fn copy_range(
        &self,
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        len: u64,
        kill: impl Into<KillPrivileges>,
    ) -> Result<u64> {
        let kill = kill.into();
        // The end is sampled once: a copy within one file must not follow what it appends.
        let len = len.min(self.getattr(from)?.size.saturating_sub(from_offset));
        let apart = from_offset.saturating_add(len) <= to_offset
            || to_offset.saturating_add(len) <= from_offset;
        if from == to && !apart {
            return Err(Error::Invalid("overlapping ranges"));
        }
        let mut buffer = vec![0; len.min(COPY_CHUNK) as usize];
        let mut copied = 0;
        while copied < len {
            let want = (len - copied).min(COPY_CHUNK) as usize;
            let part = buffer.get_mut(..want).unwrap_or_default();
            let n = self.read(from, from_offset + copied, part)?;
            if n == 0 {
                break;
            }
            let data = part.get(..n).unwrap_or_default();
            let written = match self.write(to, to_offset + copied, data, kill) {
                Ok(w) => w,
                Err(_) if copied > 0 => break,
                Err(e) => return Err(e),
            };
            copied += written as u64;
            if written < n {
                break;
            }
        }
        Ok(copied)
    }
}

/// The class of an allocation: with funds it must not fail, so it may use the rewrite reserve.
fn class_with(funds: &Option<&mut u64>) -> Class {
    match funds {
        Some(_) => Class::Rewrite,
        None => Class::Ordinary,
    }
}

/// The parts of `from..to` that no extent covers.
fn holes(extents: &[Extent], from: u64, to: u64) -> Vec<(u64, u64)> {
    let mut holes = Vec::new();
    let mut at = from;
    for extent in extents {
        if extent.at > at {
            holes.push((at, extent.at.min(to)));
        }
        at = at.max(extent.end());
    }
    if at < to {
        holes.push((at, to));
    }
    holes
}
