//! Taking free space: data runs, nodes, and the claims of recovery.
//!
//! Data looks at its goal first, then into a few groups beginning with its thread's own, then
//! everywhere. Small requests fill broken units before they break a new one; long ones take the
//! first run that is long enough. Every allocation spends a promise, so the last search cannot
//! fail: if it finds nothing although nothing changed meanwhile, the counts are wrong, and it
//! says so instead of searching for ever.

use std::cell::Cell;

use super::bitmap::{BITS, Kind};
use super::group::{Group, Maps};
use super::{BlockRun, Class, Funding, SLOTS, Space, block_of, parts};
use crate::error::{Error, Result};
use crate::format::NODE_BLOCKS;
use crate::format::geometry::GROUP_BLOCKS;
use crate::sync::atomic::Ordering;
use crate::sync::thread_local;

/// Groups that are looked into for a long run before a shorter one does.
const PROBES: usize = 8;
/// A run of this many blocks at the goal is worth taking whatever was wanted.
const GOOD_RUN: u32 = 16;

thread_local! {
    /// The space that this thread allocated from last, and its slot there.
    static SLOT: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

impl Space {
    /// Allocates 1 to `want` blocks in a row for data, at `goal` if possible (0: anywhere).
    /// `None` if no promise could be made for a single block.
    ///
    /// # Errors
    /// A bitmap that had to be read is damaged or unreadable.
    pub fn alloc(&self, goal: u64, want: u64, funding: Funding) -> Result<Option<BlockRun>> {
        let want = want.clamp(1, GROUP_BLOCKS);
        match funding {
            Funding::Reserved => self.take_data(goal, want as u32).map(Some),
            Funding::New(class) => {
                let Some(promised) = self.reserve_up_to(want, class)? else {
                    return Ok(None);
                };
                let taken = self.take_data(goal, promised as u32);
                let used = taken.as_ref().map_or(0, |run| run.len);
                self.unreserve(promised - used, 0);
                taken.map(Some)
            }
        }
    }

    /// Allocates a unit for an index node; those of one merge lie close together, ascending.
    /// `None` if no promise could be made.
    ///
    /// # Errors
    /// A bitmap that had to be read is damaged or unreadable.
    pub fn alloc_unit(&self, funding: Funding) -> Result<Option<u64>> {
        match funding {
            Funding::Reserved => self.take_unit().map(Some),
            Funding::New(class) => {
                if !self.reserve(0, 1, class)? {
                    return Ok(None);
                }
                let taken = self.take_unit();
                if taken.is_err() {
                    self.unreserve(0, 1);
                }
                taken.map(Some)
            }
        }
    }

    /// Recovery: marks blocks as in use that replayed items refer to; those in use already (the
    /// index refers to them too) stay so. Returns how many were free.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they lie outside of the data area; [`Error::NoSpace`] if they were
    /// promised, which recovery never does before it claims; an unreadable bitmap.
    pub fn claim(&self, run: BlockRun) -> Result<u64> {
        self.check_run(run)?;
        let mut claimed = 0;
        for (index, bit, len) in parts(run) {
            let mut maps = self.lock(index)?;
            let end = bit + len;
            let mut at = bit;
            while let Some(free) = maps.live.first_free(at, end - at) {
                let stop = maps.live.first_used(free, end - free).unwrap_or(end);
                let len = stop - free;
                let units = maps.live.units_touched(free, len);
                if !self
                    .budget
                    .take_unpromised(len.into(), units.into(), Class::Merge)
                {
                    return Err(Error::NoSpace);
                }
                maps.live.set(free, len);
                self.group(index)?.count_taken(len, units);
                claimed += u64::from(len);
                at = stop;
            }
        }
        Ok(claimed)
    }

    fn reserve_up_to(&self, want: u64, class: Class) -> Result<Option<u64>> {
        let mut want = want;
        while !self.reserve(want, 0, class)? {
            want = self.available(class)?.min(want - 1);
            if want == 0 {
                return Ok(None);
            }
        }
        Ok(Some(want))
    }

    /// Allocates promised data.
    fn take_data(&self, goal: u64, want: u32) -> Result<BlockRun> {
        // As long as units are counted by a bound only, they could seem too few to break.
        let needed = u64::from(want) / NODE_BLOCKS + 2;
        while self.budget.breakable() < needed && self.count_one()? {}
        let goal = Some(goal).filter(|g| self.geometry.in_data(*g, 1));
        if let Some(goal) = goal
            && let Some(run) = self.take_at(goal, want)?
        {
            return Ok(run);
        }
        let slot = self.slot();
        let start = match goal {
            Some(goal) => (goal / GROUP_BLOCKS) as usize,
            None => slot.load(Ordering::Relaxed),
        };
        if let Some((index, run)) = self.take_near(start, want)? {
            if goal.is_none() && index != start {
                slot.store(index, Ordering::Relaxed);
            }
            return Ok(run);
        }
        self.take_anywhere(start, want)
    }

    /// This thread's slot. Numbered by first use, so that one thread alone always allocates in
    /// the same order.
    fn slot(&self) -> &crate::sync::atomic::AtomicUsize {
        let (id, mut slot) = SLOT.with(Cell::get);
        if id != self.id {
            slot = self.next_slot.fetch_add(1, Ordering::Relaxed) % SLOTS;
            SLOT.with(|s| s.set((self.id, slot)));
        }
        self.slots.get(slot).unwrap_or(&self.slots[0])
    }

    /// The groups from `start` on, all of them once.
    fn around(&self, start: usize) -> impl Iterator<Item = (usize, &Group)> {
        let all = || self.groups.iter().enumerate();
        all().skip(start).chain(all().take(start))
    }

    fn take_at(&self, goal: u64, want: u32) -> Result<Option<BlockRun>> {
        let (index, bit) = ((goal / GROUP_BLOCKS) as usize, (goal % GROUP_BLOCKS) as u32);
        let group = self.group(index)?;
        if group.free() == 0 {
            return Ok(None);
        }
        let mut maps = self.lock(index)?;
        let len = maps.live.free_at(bit, want);
        if len < want.div_ceil(4).min(GOOD_RUN) {
            return Ok(None);
        }
        Ok(self.take(index, group, &mut maps, bit, len))
    }

    /// Takes `len` free blocks at `bit`, or as many of the first of them as may be taken
    /// without breaking a unit that is kept.
    fn take(
        &self,
        index: usize,
        group: &Group,
        maps: &mut Maps,
        bit: u32,
        len: u32,
    ) -> Option<BlockRun> {
        let touched = maps.live.units_touched(bit, len);
        let granted = self.budget.break_units(touched.into()) as u32;
        let len = if granted < touched {
            maps.live.fit_units(bit, len, granted)
        } else {
            len
        };
        if len == 0 {
            return None;
        }
        maps.live.set(bit, len);
        group.count_taken(len, granted);
        self.budget.took_data(len.into());
        Some(BlockRun::new(block_of(index, bit), len.into()))
    }

    /// Searches one group; the search that failed to find `want` blocks is remembered.
    fn find_and_take(
        &self,
        index: usize,
        group: &Group,
        kind: Kind,
        want: u32,
        least: u32,
    ) -> Result<Found> {
        let mut maps = self.lock(index)?;
        let hint = match kind {
            Kind::Free => maps.data_hint,
            Kind::Loose => maps.loose_hint,
        };
        let Some(span) = maps.live.find(kind, hint, want) else {
            return Ok(Found::Nothing);
        };
        if span.len < want && kind == Kind::Free {
            group.longest.store(span.len, Ordering::Release);
        }
        if span.len < least {
            return Ok(Found::Shorter(span.len));
        }
        let Some(run) = self.take(index, group, &mut maps, span.bit, span.len) else {
            return Ok(Found::Nothing);
        };
        let end = span.bit + run.len as u32;
        match kind {
            Kind::Loose => maps.loose_hint = end,
            Kind::Free => {
                maps.data_hint = end;
                if !u64::from(end).is_multiple_of(NODE_BLOCKS) {
                    // The rest of the unit just broken is for the next small request.
                    maps.loose_hint = end;
                }
            }
        }
        Ok(Found::Taken(run))
    }

    /// A run of `want` blocks from one of the next groups, else the longest seen there.
    fn take_near(&self, start: usize, want: u32) -> Result<Option<(usize, BlockRun)>> {
        let small = u64::from(want) < NODE_BLOCKS;
        let long = if self.budget.breakable() > 0 {
            Kind::Free
        } else {
            Kind::Loose
        };
        let mut best = (0, 0);
        let mut probes = 0;
        for (index, group) in self.around(start) {
            if group.free() == 0 || (long == Kind::Loose && !group.has_loose()) {
                continue;
            }
            if probes == PROBES {
                break;
            }
            probes += 1;
            if small
                && group.has_loose()
                && let Found::Taken(run) = self.find_and_take(index, group, Kind::Loose, want, 1)?
            {
                return Ok(Some((index, run)));
            }
            let longest = group.longest.load(Ordering::Acquire);
            if longest.min(group.free()) <= best.1 {
                continue;
            }
            if longest < want && long == Kind::Free {
                // An earlier search saw all of it; nothing was freed since.
                best = (index, longest);
                continue;
            }
            match self.find_and_take(index, group, long, want, want)? {
                Found::Taken(run) => return Ok(Some((index, run))),
                Found::Shorter(len) if len > best.1 => best = (index, len),
                _ => {}
            }
        }
        if best.1 > 0 {
            let group = self.group(best.0)?;
            if let Found::Taken(run) = self.find_and_take(best.0, group, long, want, 1)? {
                return Ok(Some((best.0, run)));
            }
        }
        Ok(None)
    }

    /// Anything that data may use, wherever it is.
    fn take_anywhere(&self, start: usize, want: u32) -> Result<BlockRun> {
        let mut sure = false;
        loop {
            let before = self.budget.moves();
            for kind in [Kind::Loose, Kind::Free] {
                for (index, group) in self.around(start) {
                    let none = group.free() == 0 || (kind == Kind::Loose && !group.has_loose());
                    if none && !sure {
                        continue;
                    }
                    if let Found::Taken(run) = self.find_and_take(index, group, kind, want, 1)? {
                        return Ok(run);
                    }
                }
            }
            sure = self.search_again(before, sure)?;
        }
    }

    /// Allocates a promised unit.
    fn take_unit(&self) -> Result<u64> {
        let mut sure = false;
        loop {
            let before = self.budget.moves();
            let start = self.unit_group.load(Ordering::Relaxed);
            for (index, group) in self.around(start) {
                let none = u64::from(group.free()) < NODE_BLOCKS || !group.has_unit();
                if none && !sure {
                    continue;
                }
                let mut maps = self.lock(index)?;
                let epoch = self.epoch.load(Ordering::Relaxed);
                if maps.unit_epoch != epoch {
                    maps.unit_epoch = epoch;
                    maps.unit_hint = self.first_unit();
                }
                let Some(bit) = maps.live.find_unit(maps.unit_hint) else {
                    continue;
                };
                maps.live.set(bit, NODE_BLOCKS as u32);
                maps.unit_hint = bit + NODE_BLOCKS as u32;
                group.count_taken(NODE_BLOCKS as u32, 1);
                self.budget.took_unit();
                if index != start {
                    self.unit_group.store(index, Ordering::Relaxed);
                }
                return Ok(block_of(index, bit));
            }
            sure = self.search_again(before, sure)?;
        }
    }

    /// Where in a group nodes begin: where data, which begins at the front, comes late.
    fn first_unit(&self) -> u32 {
        if self.groups.len() > 1 {
            return 0;
        }
        let middle = (self.geometry.data_start() + self.geometry.total_blocks) / 2;
        (middle as u32).min(BITS)
    }

    /// A promise could not be kept: fine if others allocated or released meanwhile, for then
    /// the search may have missed what moved. Else the next one must be `sure` and skip no group
    /// for its counts, which change one after the other; if that fails too, the counts are wrong.
    fn search_again(&self, before: (u64, u64), sure: bool) -> Result<bool> {
        if self.budget.moves() != before {
            crate::sync::thread::yield_now();
            return Ok(false);
        }
        if !sure {
            return Ok(true);
        }
        Err(Error::corrupt(
            self.geometry.bitmap_start(),
            "free space",
            format_args!("{} free blocks", self.free_blocks()),
            "none that could be allocated",
        ))
    }
}

/// What a search in one group came to.
enum Found {
    Taken(BlockRun),
    Shorter(u32),
    Nothing,
}
