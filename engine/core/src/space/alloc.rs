//! Allocation: data runs, index nodes, and the claims of recovery.
//!
//! A data allocation tries its goal first, then a few groups beginning with that of its thread's
//! slot, then all groups. Small requests fill broken units before they break a new one; long
//! requests take a run that is long enough: the next one, or in a group that is more than half full
//! the shortest one. Every allocation uses a reservation, so the final search cannot fail: if it
//! finds nothing although nothing changed meanwhile, the counts are wrong, and it returns an error
//! instead of searching forever.

use std::cell::Cell;

use super::bitmap::{BITS, Kind};
use super::group::{Group, Maps};
use super::{BlockRun, Class, Funding, SLOTS, Space, block_of, parts};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::format::geometry::GROUP_BLOCKS;
use cairnfs_disk::sync::atomic::Ordering;
use cairnfs_disk::sync::thread_local;

/// Number of groups that are searched for a run of the requested length before a shorter run is
/// accepted; and number of groups that are considered for the search: the longest run of most of them
/// is known.
const PROBES: usize = 8;
const LOOKS: usize = 128;
/// A free run of this many blocks at the goal is accepted for any request, in blocks.
const GOOD_RUN: u32 = 16;

/// In a group with fewer free blocks a long request takes the shortest run that is long enough, so
/// that long runs remain for long requests. In others it takes the next one, which is found sooner
/// and leaves files in the order in which they were written.
const FULL: u32 = GROUP_BLOCKS as u32 / 2;

thread_local! {
    /// The id of the space that this thread last allocated from, and its slot there.
    static SLOT: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

impl Space {
    /// Allocates a run of 1 to `want` blocks for data, at `goal` if possible (0: anywhere).
    /// `None` if not even one block can be reserved.
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

    /// Allocates a unit for an index node; the units of one merge are close together and ascending.
    /// `None` if no unit can be reserved.
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

    /// Allocates a unit at `goal` or near it, if possible before it. `None` if no unit can be
    /// reserved.
    pub fn alloc_unit_near(&self, goal: u64) -> Result<Option<u64>> {
        if !self.reserve(0, 1, Class::Ordinary)? {
            return Ok(None);
        }
        let taken = self.take_unit_near(goal);
        if !matches!(taken, Ok(Some(_))) {
            self.unreserve(0, 1);
        }
        taken
    }

    fn take_unit_near(&self, goal: u64) -> Result<Option<u64>> {
        let home = (goal / GROUP_BLOCKS) as usize;
        let groups = (0..=home).rev().chain(home + 1..self.groups.len());
        for index in groups {
            let group = self.group(index)?;
            if u64::from(group.free()) < NODE_BLOCKS {
                continue;
            }
            let hint = match index.cmp(&home) {
                std::cmp::Ordering::Equal => (goal % GROUP_BLOCKS) as u32,
                std::cmp::Ordering::Less => BITS - 1,
                std::cmp::Ordering::Greater => 0,
            };
            let mut maps = self.lock(index)?;
            if let Some(bit) = maps.live.find_unit(hint) {
                maps.live.set(bit, NODE_BLOCKS as u32);
                group.count_taken(NODE_BLOCKS as u32, 1);
                self.budget.took_unit();
                return Ok(Some(block_of(index, bit)));
            }
        }
        Ok(None)
    }

    /// Recovery: marks the blocks as in use that replayed items refer to. Blocks that are already
    /// in use (the index refers to them, too) stay so. Returns how many were free.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the run is outside the data area; [`Error::NoSpace`] if the blocks are
    /// reserved, which cannot happen because recovery claims before it reserves; an unreadable
    /// bitmap.
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

    /// Allocates reserved blocks for data.
    fn take_data(&self, goal: u64, want: u32) -> Result<BlockRun> {
        // While units are counted by a lower bound only, there may seem to be too few to break.
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

    /// This thread's slot. Slots are numbered by first use, so that a single thread always
    /// allocates in the same order.
    fn slot(&self) -> &cairnfs_disk::sync::atomic::AtomicUsize {
        let (id, mut slot) = SLOT.with(Cell::get);
        if id != self.id {
            slot = self.next_slot.fetch_add(1, Ordering::Relaxed) % SLOTS;
            SLOT.with(|s| s.set((self.id, slot)));
        }
        self.slots.get(slot).unwrap_or(&self.slots[0])
    }

    /// All groups once, beginning with `start`.
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

    /// Allocates `len` free blocks at `bit`, or fewer if this would break more units than the
    /// budget allows.
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

    /// Searches one group for `want` blocks, and takes the run if it has at least `least` blocks.
    /// If the group has no run of `want` blocks, its longest run is recorded.
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
        let found = match kind {
            Kind::Free if group.free() < FULL => maps.live.find_tight(want),
            _ => maps.live.find(kind, hint, want),
        };
        let Some(span) = found else {
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
                    // The next small request takes the rest of the unit that was just broken.
                    maps.loose_hint = end;
                }
            }
        }
        Ok(Found::Taken(run))
    }

    /// Allocates a run of `want` blocks from one of the next groups, else the longest run found.
    fn take_near(&self, start: usize, want: u32) -> Result<Option<(usize, BlockRun)>> {
        let small = u64::from(want) < NODE_BLOCKS;
        let long = if self.budget.breakable() > 0 {
            Kind::Free
        } else {
            Kind::Loose
        };
        let mut best = (0, 0);
        let mut probes = 0;
        let usable = |(_, group): &(usize, &Group)| {
            group.free() > 0 && (long == Kind::Free || group.has_loose())
        };
        for (index, group) in self.around(start).filter(usable).take(LOOKS) {
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
                // An earlier search covered the whole group, and nothing was freed since.
                best = (index, longest);
                continue;
            }
            if probes == PROBES {
                continue;
            }
            probes += 1;
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

    /// Allocates any run that data may use, in any group.
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

    /// Allocates a reserved unit.
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

    /// Where the node search begins in a group. With a single group this is the middle, because
    /// data fills the group from the front.
    fn first_unit(&self) -> u32 {
        if self.groups.len() > 1 {
            return 0;
        }
        let middle = (self.geometry.data_start() + self.geometry.total_blocks) / 2;
        (middle as u32).min(BITS)
    }

    /// Called when a search found nothing for a reservation. If another thread allocated or
    /// released blocks meanwhile, the search may have missed them and is repeated. Otherwise the
    /// next search must be `sure`: it must not skip a group because of its counts, which are not
    /// updated atomically together. If that search fails as well, the counts are wrong.
    fn search_again(&self, before: (u64, u64), sure: bool) -> Result<bool> {
        if self.budget.moves() != before {
            cairnfs_disk::sync::thread::yield_now();
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

/// The result of a search in one group.
enum Found {
    Taken(BlockRun),
    Shorter(u32),
    Nothing,
}
