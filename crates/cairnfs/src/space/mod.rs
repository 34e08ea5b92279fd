//! Space: allocation groups, what of them is free, and promises of space.
//!
//! Floor 2: uses device, format, errors. Each group has two states: what allocation sees (live:
//! everything in use, and what was freed but must not be reused yet), and the image: what the index
//! of the next superblock refers to. The image never holds a block that is not live. Bitmaps are
//! read when a group is first touched; opening reads the group table only.
//!
//! A unit is four aligned blocks, an index node. Blocks and units are two resources: data takes
//! broken units before it breaks whole ones, and leaves as many whole ones as are promised or held
//! for merges. So fragmentation never keeps the index from growing.

mod bitmap;
mod group;
mod image;
mod reserve;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};

pub use image::TableState;
pub use reserve::Class;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::format::geometry::{GROUP_BLOCKS, Geometry};
use crate::format::{BLOCK_SIZE, NODE_BLOCKS};
use crate::shard::thread_shard;
use crate::space::group::{Group, Search};
use crate::space::image::Table;
use crate::space::reserve::Counters;

/// Groups that a thread's allocations begin at: each thread has its own.
const CURSORS: usize = 16;

/// Adjacent blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub len: u64,
}

/// The space of an open volume.
pub struct Space {
    device: Arc<dyn Device>,
    geometry: Geometry,
    groups: Box<[Mutex<Group>]>,
    counters: Counters,
    table: Mutex<Table>,
    cursors: Box<[CachePadded<AtomicU64>]>,
    unit_cursor: AtomicU64,
}

impl Space {
    /// The free space that a superblock's group table tells.
    ///
    /// # Errors
    /// A damaged table; the device's failure.
    pub fn open(device: Arc<dyn Device>, geometry: Geometry, state: TableState) -> Result<Self> {
        let table = Table::read(&*device, &geometry, state)?;
        let groups: Box<[Mutex<Group>]> = table
            .entries()
            .map(|e| Mutex::new(Group::unloaded(u32::from(e.free.get()))))
            .collect();
        let counters = Counters::new(&geometry);
        for group in &groups {
            let group = group.lock();
            counters.add_free(u64::from(group.free()), u64::from(group.units()));
        }
        let count = groups.len() as u64;
        Ok(Self {
            device,
            geometry,
            groups,
            counters,
            table: Mutex::new(table),
            cursors: (0..CURSORS as u64)
                .map(|i| CachePadded::new(AtomicU64::new(i * count / CURSORS as u64)))
                .collect(),
            unit_cursor: AtomicU64::new(count / 2),
        })
    }

    /// Locks a group, with its bitmaps loaded.
    fn group(&self, number: u64) -> Result<MutexGuard<'_, Group>> {
        let group = self
            .groups
            .get(number as usize)
            .ok_or(Error::Invalid("a block behind the end of the volume"))?;
        let mut group = group.lock();
        if !group.is_loaded() {
            let entry = self.table.lock().entry(number);
            let bound = group.units();
            group.load(&*self.device, &self.geometry, number, &entry)?;
            self.counters.add_free(0, u64::from(group.units() - bound));
        }
        Ok(group)
    }

    /// The parts of a run by group: the group's number, and the part relative to its begin.
    fn by_group(run: Run) -> impl Iterator<Item = (u64, u64, u64)> {
        let end = run.start.saturating_add(run.len);
        let mut at = run.start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let number = at / GROUP_BLOCKS;
            let until = end.min((number + 1) * GROUP_BLOCKS);
            let part = (number, at % GROUP_BLOCKS, until - at);
            at = until;
            Some(part)
        })
    }

    fn check(&self, run: Run) -> Result<()> {
        if self.geometry.in_data(run.start, run.len) {
            return Ok(());
        }
        Err(Error::corrupt(
            run.start,
            "block address",
            "blocks of the data area",
            format!("{} blocks from {}", run.len, run.start),
        ))
    }

    /// Allocates adjacent blocks for data, 1 to `want` of them, against a reservation made before.
    /// Tries to begin at `goal`, then to find a run long enough, then the longest at hand. `None`
    /// only if no block is free.
    ///
    /// # Errors
    /// A damaged bitmap; the device's failure.
    pub fn alloc_reserved(&self, goal: u64, want: u64) -> Result<Option<Run>> {
        for may_break in [Some(self.counters.held()), Some(0)] {
            let spare = may_break.map_or(0, |held| self.counters.units().saturating_sub(held));
            if let Some(run) = self.alloc_sparing(goal, want, spare)? {
                self.counters.consume(run.len);
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// Allocates, breaking at most `spare` whole units.
    fn alloc_sparing(&self, goal: u64, want: u64, spare: u64) -> Result<Option<Run>> {
        let search = Search { want, spare };
        if goal > 0 && goal < self.geometry.total_blocks {
            let number = goal / GROUP_BLOCKS;
            let mut group = self.group(number)?;
            if let Some((at, len)) = group.take_at(goal % GROUP_BLOCKS, &search) {
                return Ok(Some(self.taken(number, at, len, &mut group)));
            }
        }
        let shard = thread_shard(CURSORS);
        let Some(cursor) = self.cursors.get(shard) else {
            return Ok(None);
        };
        let count = self.groups.len() as u64;
        let first = cursor.load(Ordering::Relaxed);
        // First a run as long as wanted, then whatever there is.
        for least in [want.min(16), 1] {
            for i in 0..count {
                let number = (first + i) % count;
                let Some(group) = self.groups.get(number as usize) else {
                    continue;
                };
                if u64::from(group.lock().free()) < least {
                    continue;
                }
                let mut group = self.group(number)?;
                if let Some((at, len)) = group.take_run(least, &search) {
                    cursor.store(number, Ordering::Relaxed);
                    return Ok(Some(self.taken(number, at, len, &mut group)));
                }
            }
        }
        Ok(None)
    }

    fn taken(&self, number: u64, at: u64, len: u64, group: &mut Group) -> Run {
        self.counters.sub_free(len, u64::from(group.take_broken()));
        Run {
            start: number * GROUP_BLOCKS + at,
            len,
        }
    }

    /// Allocates a unit for an index node. `None` if no whole unit is free.
    ///
    /// # Errors
    /// A damaged bitmap; the device's failure.
    pub fn alloc_unit(&self) -> Result<Option<u64>> {
        let count = self.groups.len() as u64;
        let first = self.unit_cursor.load(Ordering::Relaxed);
        for i in 0..count {
            let number = (first + i) % count;
            let enough = self
                .groups
                .get(number as usize)
                .is_some_and(|g| u64::from(g.lock().free()) >= NODE_BLOCKS);
            if !enough {
                continue;
            }
            let mut group = self.group(number)?;
            if let Some(at) = group.take_unit() {
                self.unit_cursor.store(number, Ordering::Relaxed);
                return Ok(Some(self.taken(number, at, NODE_BLOCKS, &mut group).start));
            }
        }
        Ok(None)
    }

    /// Marks blocks that recovery found referred to. Blocks in use already stay so.
    ///
    /// # Errors
    /// Blocks outside the data area; a damaged bitmap; the device's failure.
    pub fn claim(&self, run: Run) -> Result<()> {
        self.check(run)?;
        for (number, at, len) in Self::by_group(run) {
            let mut group = self.group(number)?;
            let claimed = group.claim(at, len);
            self.counters
                .sub_free(claimed, u64::from(group.take_broken()));
        }
        Ok(())
    }

    /// Makes blocks usable again; they must be in use. Where 64 aligned blocks become free at once
    /// or together with free neighbours, the device is told first, while they are still taken.
    ///
    /// # Errors
    /// Blocks that are free already: the volume's state is wrong. The device's failure.
    pub fn release(&self, runs: &mut Vec<Run>, discard: bool) -> Result<()> {
        runs.sort_unstable();
        let mut kept: Vec<Run> = Vec::new();
        for run in runs.drain(..) {
            self.check(run)?;
            for (number, at, len) in Self::by_group(run) {
                let mut group = self.group(number)?;
                let released = group.release(at, len, discard, &mut |word_at| {
                    let start = number * GROUP_BLOCKS + word_at;
                    match kept.last_mut() {
                        Some(last) if last.start + last.len == start => last.len += 64,
                        _ => kept.push(Run { start, len: 64 }),
                    }
                });
                let Some((blocks, units)) = released else {
                    return Err(Error::corrupt(
                        run.start,
                        "free space",
                        "blocks in use",
                        format!("free ones among the {} to be freed", run.len),
                    ));
                };
                self.counters.change_free(blocks, units);
            }
        }
        for run in kept {
            let block = BLOCK_SIZE as u64;
            self.device.discard(run.start * block, run.len * block)?;
            for (number, at, len) in Self::by_group(run) {
                let mut group = self.group(number)?;
                let (blocks, units) = group.free_words(at, len);
                self.counters.add_free(blocks, units);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
