//! Writeback: allocates space for unwritten pages, writes them, and only then commits extents.
//!
//! Pages are written in ascending order and in bounded batches. Each batch is one transaction under
//! the file's lock, which readers share while data is written. Pages over preallocated space
//! (unwritten extents) are written there; all others go to new blocks, so that data which the log
//! may still refer to is never overwritten. The committed size follows the written data.
//!
//! The runs of a batch are written at the same time. Few pages can be staged instead: for the log
//! record that follows, or, when many files are written back, to be written with the pages of other
//! files in few long writes.

use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::fs::FileSystem;
use crate::fs::extents::{Extent, Extents};
use crate::fs::locked::{attrs, attrs_mut};
use crate::fs::room::{becomes_inline, inline_growth};
use crate::fs::sizes::INODE_LEN;
use crate::inode::pages::PageReservation;
use crate::inode::{Inode, InodeState};
use crate::space::{BlockRun, Class, Funding};
use crate::txn::{Births, Commit, Need, Receipt, Reservation};
use cairnfs_disk::device::{DataStamp, Page};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::{BLOCK_SIZE, MAX_EXTENT_BLOCKS, MAX_INLINE, checksum};
use cairnfs_disk::sync::RwLockUpgradableReadGuard;

/// Most pages of a batch.
const BATCH_PAGES: usize = MAX_EXTENT_BLOCKS as usize;
/// Most separate ranges of file blocks of a batch.
const BATCH_RANGES: usize = 16;
/// Most pages of a batch that are staged.
const STAGED: usize = 16;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// File blocks; an fsync writes few.
type Blocks = SmallVec<[u64; STAGED]>;

/// Pages with adjacent device blocks.
struct Placed {
    run: BlockRun,
    /// The birth of blocks that an extent has already; 0 if they are new.
    birth: u64,
    /// The file block of each page.
    blocks: Blocks,
}

impl Placed {
    /// Whether its blocks have an extent and are inherited.
    fn is_frozen(&self, births: &Births) -> bool {
        self.birth > 0 && births.is_inherited(self.birth)
    }
}

/// All pages of a batch with their device blocks.
type Places = SmallVec<[Placed; 1]>;

/// Runs of pages, each with its first device block.
type Runs = SmallVec<[(u64, Vec<Page>); 1]>;

/// Whether a batch of few pages is staged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Staging {
    /// It is written at once.
    Never,
    /// The caller writes the log next.
    ForRecord,
    /// The caller writes back more files, and writes what is staged.
    WithOthers,
}

/// A range of file blocks with its old extents and its new mapping.
struct Replacement {
    range: (u64, u64),
    /// Indexes into the extents that the batch touches.
    old: Range<usize>,
    new: Extents,
}

impl FileSystem {
    /// Writes and commits a file's dirty state: data, size, times.
    ///
    /// # Errors
    /// A device failure. Space was reserved when the data was accepted.
    pub(super) fn write_back(&self, inode: &Arc<Inode>) -> Result<()> {
        self.sweep(inode, u64::MAX, Staging::Never)
    }

    /// Like [`Self::write_back`], for the data below a file block.
    ///
    /// # Errors
    /// As [`Self::write_back`].
    pub(super) fn write_back_below(&self, inode: &Arc<Inode>, end: u64) -> Result<()> {
        self.sweep(inode, end, Staging::Never)
    }

    /// Like [`Self::write_back`], for a caller that writes the log next: a small amount of data may
    /// be staged, to be written together with the log record.
    ///
    /// # Errors
    /// As [`Self::write_back`].
    pub(super) fn write_back_staged(&self, inode: &Arc<Inode>) -> Result<()> {
        self.sweep(inode, u64::MAX, Staging::ForRecord)
    }

    /// Whether all dirty data of a file can be staged.
    pub(super) fn has_little_data(&self, inode: &Inode) -> bool {
        match inode.read().pages.dirty.len() {
            0 => true,
            pages => pages <= STAGED && self.core().stages(),
        }
    }

    /// Whether a batch of so many pages can be staged now. What is staged is written under the log
    /// head's lock, so it must be little.
    fn stages(&self, staging: Staging, pages: usize) -> bool {
        if pages > STAGED {
            return false;
        }
        match staging {
            Staging::Never => false,
            Staging::ForRecord => self.core().stages(),
            // Also on a device that does not have several writes in flight: one write of the pages
            // of many files is faster than one for each.
            Staging::WithOthers => self.core().storage().has_room(),
        }
    }

    fn sweep(&self, inode: &Arc<Inode>, end: u64, staging: Staging) -> Result<()> {
        // One sweep over the pages that are dirty now: a thread that keeps writing must not keep it
        // busy for ever.
        let mut sweep = {
            let state = inode.read();
            match state.pages.dirty.last_key_value() {
                None if !state.uncommitted => return Ok(()),
                None => 0..0,
                Some((last, _)) => 0..end.min(last + 1),
            }
        };
        loop {
            if staging == Staging::WithOthers {
                self.core().write_much_staged()?;
            }
            let reservation = self.core().reserve(self.items(), batch_need().delayed())?;
            let state = inode.prepare();
            if state.attrs.is_none() {
                return Ok(());
            }
            let (receipt, reached) =
                self.write_batch(inode, state, (&sweep, staging), reservation)?;
            self.core().throttle(receipt)?;
            sweep.start = reached;
            let left = {
                let state = inode.read();
                !sweep.is_empty() && state.pages.dirty.range(sweep.clone()).next().is_some()
            };
            if !left {
                return Ok(());
            }
        }
    }

    fn write_batch(
        &self,
        inode: &Arc<Inode>,
        state: RwLockUpgradableReadGuard<'_, InodeState>,
        (sweep, staging): (&Range<u64>, Staging),
        reservation: Reservation<'_>,
    ) -> Result<(Receipt, u64)> {
        if becomes_inline(&state) {
            let state = &mut RwLockUpgradableReadGuard::upgrade(state);
            let receipt = self.write_inline(inode, state, reservation)?;
            return Ok((receipt, sweep.end));
        }
        // All reads come before the allocation, so that a failed read leaves nothing behind.
        let mut batch = take_batch(&state, sweep);
        let inline = match batch.first() {
            Some(0) => self.inline(inode, &state)?.is_some(),
            _ => false,
        };
        let inline_below = if inline {
            self.items()
                .item(inode, &state, Kind::Inline, 0)?
                .is_some_and(|i| i.below)
        } else {
            false
        };
        let touched = self.touched(inode, &state, &batch)?;
        let reserved = state.pages.blocks();
        let (mut placed, taken) = self.place_batch(&mut batch, &touched, reserved)?;
        let mut new = Extents::new();
        let stage = self.stages(staging, batch.len());
        let mut to_stage = self.write_placed(&state, &placed, &mut new, stage)?;
        // Readers are excluded only from here on.
        let state = &mut RwLockUpgradableReadGuard::upgrade(state);
        let mut commit = match self.commit() {
            Ok(commit) => commit,
            Err(e) => return Err(self.unplace(state, &placed, taken).err().unwrap_or(e)),
        };
        while let Some(births) = frozen_since(&placed, &commit) {
            // A fork came between: a frozen root has these blocks, and reads zeros there.
            drop(commit);
            if let Err(e) = self.place_anew(&mut placed, &births) {
                return Err(self.unplace(state, &placed, taken).err().unwrap_or(e));
            }
            new.clear();
            to_stage = self.write_placed(state, &placed, &mut new, stage)?;
            commit = match self.commit() {
                Ok(commit) => commit,
                Err(e) => return Err(self.unplace(state, &placed, taken).err().unwrap_or(e)),
            };
        }
        state
            .pages
            .hold(PageReservation::Blocks(reserved.saturating_sub(taken)));
        // Staged only now that it will be committed: what is staged will be written, so its blocks
        // could not be released any more.
        let data = self.core().data();
        let staged = to_stage
            .into_iter()
            .map(|(at, pages)| data.stage(at, pages));
        let stamp = staged
            .last()
            .unwrap_or_else(|| DataStamp::new(self.core().storage().stamp()));
        let runs = new.iter().map(|e| (e.block, e.crcs.clone()));
        commit.needs_data(inode, &stamp, runs);
        if inline {
            commit.delete(inode, state, Kind::Inline, 0, &[], inline_below);
        }
        let blocks = attrs(state)?.blocks;
        let grown = self.commit_ranges(&mut commit, inode, state, (&batch, &touched), new)?;
        let placed_now = attrs(state)?.blocks.saturating_sub(blocks);
        state.pages.sub_unplaced(placed_now);
        for part in &placed {
            let keep = self.engine.pages.keeps(part.blocks.len());
            let blocks = part.blocks.iter();
            let pages = blocks.filter_map(|b| state.pages.dirty.remove(b)).collect();
            if keep {
                self.core().data().keep(part.run.start, pages)
            } else {
                Page::let_go(pages)
            }
        }
        let reserved = self.take_delayed_of_written(state, batch.len() as u64);
        commit.uses_delayed(reserved, grown);
        let written = batch.last().map_or(0, |b| (b + 1) * BLOCK);
        let waiting = !state.pages.dirty.is_empty();
        let a = attrs_mut(state)?;
        a.disk_size = if waiting {
            a.disk_size.max(written.min(a.size))
        } else {
            a.size
        };
        commit.put_inode(inode, state);
        state.uncommitted = waiting;
        let reached = batch.last().map_or(sweep.end, |b| b + 1);
        Ok((commit.finish(reservation), reached))
    }

    /// The extents that a batch overlaps, and those that end at its ranges; ascending.
    fn touched(&self, inode: &Inode, state: &InodeState, batch: &[u64]) -> Result<Extents> {
        let mut touched = Extents::new();
        for (from, to) in ranges_of(batch) {
            let seen = touched.last().map_or(0, Extent::end);
            let found = self.extents(inode, state, from.saturating_sub(1), to, usize::MAX)?;
            touched.extend(found.into_iter().filter(|e| e.at >= seen));
        }
        Ok(touched)
    }

    /// Commits the new extents range by range. Ranges that touch the same old extent, or whose
    /// extents may be joined, see the result of the range before. Returns the largest number of
    /// bytes by which the index may grow.
    fn commit_ranges(
        &self,
        commit: &mut Commit<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        (batch, touched): (&[u64], &[Extent]),
        new: Extents,
    ) -> Result<u64> {
        let mut new = new.into_iter().peekable();
        // Ranges with an old extent in common are replaced as one; the gaps keep their mapping.
        let mut groups: SmallVec<[Replacement; 1]> = SmallVec::new();
        for (from, to) in ranges_of(batch) {
            let mut pieces = Extents::new();
            while let Some(piece) = new.next_if(|p| p.at < to) {
                pieces.push(piece);
            }
            let old = replaced(touched, (from, to), &pieces, &commit.births());
            match groups.last_mut() {
                Some(group) if !old.is_empty() && old.start < group.old.end => {
                    if let Some(shared) = touched.get(old.start) {
                        group.new.extend(shared.part(group.range.1, from));
                    }
                    group.range.1 = to;
                    group.old.end = old.end;
                    group.new.extend(pieces);
                }
                _ => groups.push(Replacement {
                    range: (from, to),
                    old,
                    new: pieces,
                }),
            }
        }
        let mut grown = 0;
        for group in groups {
            let old = touched.get(group.old).unwrap_or_default();
            grown += self.replace(commit, inode, state, group.range, old, group.new)?;
        }
        Ok(grown)
    }

    /// Writes a small file's contents into an inline item.
    pub(super) fn write_inline(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        reservation: Reservation<'_>,
    ) -> Result<Receipt> {
        let below = self.has_inline_below(inode, state)?;
        let commit = self.commit()?;
        self.put_inline(commit, (inode, state), below, reservation)
    }

    /// Whether the inline item of a file also exists below its current set.
    pub(super) fn has_inline_below(&self, inode: &Inode, state: &InodeState) -> Result<bool> {
        let item = self.items().item(inode, state, Kind::Inline, 0)?;
        Ok(item.is_some_and(|i| i.below))
    }

    /// Commits a small file's contents as an inline item, which also exists `below` or does not.
    pub(super) fn put_inline(
        &self,
        mut commit: Commit<'_>,
        (inode, state): (&Arc<Inode>, &mut InodeState),
        below: bool,
        reservation: Reservation<'_>,
    ) -> Result<Receipt> {
        let size = attrs(state)?.size;
        let pages = std::mem::take(&mut state.pages.dirty);
        if let Some(page) = pages.get(&0)
            && size > 0
        {
            let contents = page.bytes().get(..size as usize).unwrap_or_default();
            commit.put(inode, state, Kind::Inline, 0, contents, below);
        }
        let grown = if pages.is_empty() {
            0
        } else {
            inline_growth(size)
        };
        let reserved = self.take_delayed_of_written(state, pages.len() as u64);
        commit.uses_delayed(reserved, grown);
        attrs_mut(state)?.disk_size = size;
        commit.put_inode(inode, state);
        Ok(commit.finish(reservation))
    }

    /// Device blocks for a batch: preallocated space where there is some, otherwise new runs that
    /// continue the file's last extent before the batch. If the space runs out, the batch is cut
    /// there; it is an error only if nothing was allocated. `touched` are the extents that the
    /// batch touches. `reserved` blocks are reserved for the file's pages; a page over an unwritten
    /// extent has none, also if a fork comes between. Also returns how many of them it used.
    fn place_batch(
        &self,
        batch: &mut Blocks,
        touched: &[Extent],
        reserved: u64,
    ) -> Result<(Places, u64)> {
        let items = self.items();
        let before = |first: &u64| touched.iter().find(|e| e.at < *first && *first <= e.end());
        let mut goal = batch.first().map_or(0, |first| {
            before(first).map_or(0, |e| e.block + (first - e.at))
        });
        let own = |block: u64| {
            touched
                .iter()
                .filter(|e| e.is_unwritten() || is_injected(InjectedFault::DataInPlace))
                .filter(|e| !items.is_inherited(e.birth))
                .find(|e| e.at <= block && block < e.end())
                .map(|e| (e.block + (block - e.at), e.birth))
        };
        let mut placed = Places::new();
        let mut used = 0;
        let mut without_place = Blocks::new();
        for block in batch.iter() {
            match own(*block) {
                Some(place) => push_place(&mut placed, place, *block),
                None => without_place.push(*block),
            }
        }
        let mut rest = without_place.as_slice();
        while let Some(first) = rest.first() {
            let want = rest.len() as u64;
            let found = match reserved.saturating_sub(used) {
                0 => self.alloc_unreserved(goal, want),
                left => self
                    .core()
                    .space()
                    .alloc(goal, want.min(left), Funding::Reserved)
                    .and_then(|run| run.ok_or(Error::NoSpace)),
            };
            let run = match found {
                Ok(run) => run,
                Err(e) => {
                    end_before(*first, batch, &mut placed);
                    return if batch.is_empty() {
                        Err(e)
                    } else {
                        Ok((placed, used))
                    };
                }
            };
            used += run.len;
            let (taken, later) = rest.split_at(rest.len().min(run.len as usize));
            placed.push(Placed {
                run,
                birth: 0,
                blocks: taken.into(),
            });
            goal = run.start + run.len;
            rest = later;
        }
        Ok((placed, used.min(reserved)))
    }

    /// Allocates blocks for which nothing was reserved, because the pages' blocks were preallocated
    /// before a fork.
    fn alloc_unreserved(&self, goal: u64, want: u64) -> Result<BlockRun> {
        let funding = Funding::New(Class::Rewrite);
        let found = self.core().space().alloc(goal, want, funding)?;
        found.ok_or(Error::NoSpace)
    }

    /// Gives new blocks to pages that were placed on blocks which are inherited now.
    fn place_anew(&self, placed: &mut Places, births: &Births) -> Result<()> {
        while let Some(at) = placed.iter().position(|part| part.is_frozen(births)) {
            let part = placed.remove(at);
            let mut rest = part.blocks.as_slice();
            while !rest.is_empty() {
                let run = self.alloc_unreserved(0, rest.len() as u64)?;
                let (taken, later) = rest.split_at(rest.len().min(run.len as usize));
                placed.push(Placed {
                    run,
                    birth: 0,
                    blocks: taken.into(),
                });
                rest = later;
            }
        }
        Ok(())
    }

    /// Releases the new blocks of a batch that is not committed, `taken` of which were reserved for
    /// the file's pages.
    fn unplace(&self, state: &mut InodeState, placed: &Places, taken: u64) -> Result<()> {
        let space = self.core().space();
        let new = placed.iter().filter(|part| part.birth == 0);
        space.release(&mut new.map(|part| part.run).collect(), false)?;
        if !space.reserve(taken, 0, Class::Merge)? {
            let left = state.pages.blocks().saturating_sub(taken);
            state.pages.hold(PageReservation::Blocks(left));
        }
        Ok(())
    }

    /// Writes pages, and adds their extents to `new`. What is to be staged is returned instead.
    fn write_placed(
        &self,
        state: &InodeState,
        placed: &Places,
        new: &mut Extents,
        stage: bool,
    ) -> Result<Runs> {
        let mut runs = Runs::new();
        for part in placed {
            runs.push((part.run.start, pages_of(state, part, new)?));
        }
        new.sort_by_key(|e| e.at);
        if stage {
            return Ok(runs);
        }
        self.core().data().write(runs)?;
        Ok(Runs::new())
    }

    /// Writes back every file of this root that is on the list; files with few pages in writes for
    /// many of them, the last of which have returned with this call. A file that cannot be written
    /// back keeps its pages for the next attempt, and does not stop the others.
    ///
    /// # Errors
    /// The first error; a device failure.
    pub(super) fn write_back_all(&self) -> Result<()> {
        self.write_back_until(|| false)
    }

    /// The same, but not more files when there are `enough`.
    ///
    /// # Errors
    /// As [`Self::write_back_all`].
    pub(super) fn write_back_until(&self, enough: impl Fn() -> bool) -> Result<()> {
        let drained = self.drain_list(enough);
        // Also for a thread that found the list empty because another one was here before it.
        drained.and(self.core().write_staged())
    }

    fn drain_list(&self, enough: impl Fn() -> bool) -> Result<()> {
        let write = |inode: &Arc<Inode>| {
            let written = if self.items().is_head() {
                self.sweep(inode, u64::MAX, Staging::WithOthers)
            } else {
                Err(Error::Stale)
            };
            if matches!(written, Err(Error::Stale)) {
                return self.forget_changes(inode, &mut inode.write());
            }
            written.inspect_err(|error| {
                tracing::warn!(ino = inode.ino, %error, "data of a file could not be written back");
                self.list_file(inode, &mut inode.write());
            })
        };
        let (result, gone) = self.root.writeback.drain(enough, write);
        self.evict_gone(gone);
        result
    }

    /// Forgets what was written to a file of a branch while it was replaced or dropped, which
    /// nothing can commit any more: the file is again as it was committed last. A thread that
    /// changes the file gets [`Error::Stale`].
    pub(super) fn forget_changes(&self, inode: &Arc<Inode>, state: &mut InodeState) -> Result<()> {
        self.drop_pages(state, 0);
        self.items().load_again(inode, state)
    }
}

/// The log space of a batch, at most: every page its own extent, every range splitting two.
fn batch_need() -> Need {
    let edges = 2 * BATCH_RANGES * crate::fs::extents::EXTENT_MAX;
    Need::items(
        2 * BATCH_PAGES + 2,
        edges + BATCH_PAGES * 28 + INODE_LEN + MAX_INLINE,
        BATCH_PAGES + 2 * BATCH_RANGES,
    )
}

/// Whether a new extent continues `extent`, so that both can be one item.
fn goes_on(extent: &Extent, new: &[Extent], births: &Births) -> bool {
    let joins = |next| extent.joined_birth(next, births).is_some();
    new.iter().any(joins)
}

/// Indexes of the extents in `touched` that a range replaces: those that it overlaps, and the one
/// just before it if the new extents continue it.
fn replaced(
    touched: &[Extent],
    (from, to): (u64, u64),
    new: &[Extent],
    births: &Births,
) -> Range<usize> {
    let start = touched.partition_point(|e| e.end() < from);
    let end = touched.partition_point(|e| e.at < to);
    let before = touched.get(start).filter(|e| e.end() == from);
    if before.is_some_and(|e| !goes_on(e, new, births)) {
        start + 1..end
    } else {
        start..end
    }
}

/// The pages of a place; adds their extents to `new`.
fn pages_of(state: &InodeState, placed: &Placed, new: &mut Extents) -> Result<Vec<Page>> {
    let mut extent: Option<Extent> = None;
    let mut pages = Vec::with_capacity(placed.blocks.len());
    for (place, block) in (placed.run.start..).zip(&placed.blocks) {
        let page = state.pages.dirty.get(block);
        let page = page.cloned().ok_or(Error::Invalid("a page that is gone"))?;
        let crc = checksum::crc(page.bytes());
        pages.push(page);
        match &mut extent {
            Some(e) if e.end() == *block => e.crcs.push(crc),
            _ => {
                let birth = fault::or(InjectedFault::OldBirthInPlace, || 0, || placed.birth);
                let mut next = Extent::written(*block, place, vec![crc]);
                next.birth = birth;
                new.extend(extent.replace(next));
            }
        }
    }
    new.extend(extent);
    Ok(pages)
}

/// Ends a batch before a file block.
fn end_before(end: u64, batch: &mut Blocks, placed: &mut Places) {
    batch.retain(|b| *b < end);
    for part in placed.iter_mut() {
        part.blocks.retain(|b| *b < end);
        part.run.len = part.blocks.len() as u64;
    }
    placed.retain(|p| !p.blocks.is_empty());
}

/// What is inherited now, if pages were written to blocks that were not inherited before.
fn frozen_since(placed: &Places, commit: &Commit<'_>) -> Option<Births> {
    let births = commit.births();
    let frozen = placed.iter().any(|part| part.is_frozen(&births));
    frozen.then_some(births)
}

fn push_place(placed: &mut Places, (place, birth): (u64, u64), block: u64) {
    match placed.last_mut() {
        Some(p) if p.run.start + p.run.len == place && p.birth == birth => {
            p.run.len += 1;
            p.blocks.push(block);
        }
        _ => placed.push(Placed {
            run: BlockRun {
                start: place,
                len: 1,
            },
            birth,
            blocks: smallvec![block],
        }),
    }
}

/// The first pages of the sweep, limited in number and in separate ranges.
fn take_batch(state: &InodeState, sweep: &Range<u64>) -> Blocks {
    let mut batch = Blocks::new();
    let mut ranges = 0;
    for (block, _) in state.pages.dirty.range(sweep.clone()) {
        if batch.last().is_none_or(|l| l + 1 != *block) {
            ranges += 1;
        }
        if ranges > BATCH_RANGES || batch.len() == BATCH_PAGES {
            break;
        }
        batch.push(*block);
    }
    batch
}

/// The runs of adjacent file blocks in a batch.
fn ranges_of(batch: &[u64]) -> SmallVec<[(u64, u64); 1]> {
    let mut ranges = SmallVec::<[(u64, u64); 1]>::new();
    for block in batch {
        match ranges.last_mut() {
            Some((_, end)) if *end == *block => *end += 1,
            _ => ranges.push((*block, *block + 1)),
        }
    }
    ranges
}
