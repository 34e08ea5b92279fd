//! Enumerates the states that a power failure may leave, from recorded events.
//!
//! Between two flushes, writes may reach the disk in any order, and any subset of the sectors of
//! each write may be on it. A state is given by the event after which the power failed and by a
//! choice among the unflushed writes. The enumeration depends on the events alone, so the number of
//! the event and the number of the choice are a permanent id of the state.
//!
//! After each write only choices that include this write are new; those without it were enumerated
//! before. Where an event adds a promise without a flush, all choices are enumerated again, because
//! more must hold then.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use crate::disk::Event;
use crate::image::{Image, SECTOR};

/// Up to this number of unflushed writes, all subsets are enumerated.
const EXHAUSTIVE: usize = 5;
/// Number of random subsets beyond that.
const RANDOM: u64 = 6;

/// What is left of an unflushed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// None of its sectors.
    Dropped,
    /// All of its sectors.
    Kept,
    /// This many of its first sectors.
    First(u32),
    /// All sectors except the last.
    ButLast,
    /// All sectors except the first.
    ButFirst,
    /// Some of its sectors, chosen by this seed.
    Some(u64),
}

/// Id of a crash state of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId {
    /// Number of events that had happened when the power failed.
    pub event: u32,
    /// Number of the choice among the unflushed writes.
    pub choice: u32,
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.event, self.choice)
    }
}

impl FromStr for StateId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no state: two numbers with a dot, as 12.3");
        let (event, choice) = text.split_once('.').ok_or_else(wrong)?;
        Ok(Self {
            event: event.parse().map_err(|_| wrong())?,
            choice: choice.parse().map_err(|_| wrong())?,
        })
    }
}

/// Walks along the events; keeps the durable contents and the unflushed writes.
pub struct Cursor<'a> {
    events: &'a [Event],
    at: usize,
    durable: Image,
    pending: Vec<usize>,
}

impl<'a> Cursor<'a> {
    /// A cursor before the first event of `events`.
    pub fn new(start: Image, events: &'a [Event]) -> Self {
        Self {
            events,
            at: 0,
            durable: start,
            pending: Vec::new(),
        }
    }

    /// Number of events passed.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Number of unflushed writes.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Passes one more event; `false` if there is none.
    pub fn step(&mut self) -> bool {
        match self.events.get(self.at) {
            None => return false,
            Some(Event::Write { .. }) => self.pending.push(self.at),
            Some(Event::Flush) => {
                for write in std::mem::take(&mut self.pending) {
                    apply(&mut self.durable, self.events.get(write), Fate::Kept);
                }
            }
        }
        self.at += 1;
        true
    }

    /// Passes events until `event` are passed.
    pub fn step_to(&mut self, event: usize) {
        while self.at < event && self.step() {}
    }

    /// The choices to try here. After a write, those that keep some of it. All of them if `again`
    /// is set because more must hold than before, or if nothing is unflushed.
    pub fn choices(&self, again: bool) -> Vec<Vec<Fate>> {
        let n = self.pending.len();
        let newest = n > 0 && self.pending.last().is_some_and(|w| w + 1 == self.at);
        let mut taken = ChosenFates::default();
        if again || n == 0 {
            self.subsets(n, false, &mut taken);
        } else if newest {
            self.subsets(n, true, &mut taken);
        }
        if newest {
            self.torn(n, &mut taken);
        }
        taken.list
    }

    fn subsets(&self, n: usize, with_newest: bool, taken: &mut ChosenFates) {
        let kept = |i: usize, bit: bool| {
            if bit || with_newest && i + 1 == n {
                Fate::Kept
            } else {
                Fate::Dropped
            }
        };
        let mut take = |choose: &dyn Fn(usize) -> bool| {
            taken.add((0..n).map(|i| kept(i, choose(i))).collect());
        };
        if n <= EXHAUSTIVE {
            for mask in 0..1u32 << n {
                take(&|i| mask >> i & 1 != 0);
            }
            return;
        }
        take(&|_| false);
        take(&|_| true);
        for out in spread(n) {
            take(&|i| i != out);
            take(&|i| i == out);
            take(&|i| i <= out);
        }
        for seed in 0..RANDOM {
            let bits = mix(self.at as u64, seed);
            take(&|i| mix(bits, i as u64) & 1 != 0);
        }
    }

    fn torn(&self, n: usize, taken: &mut ChosenFates) {
        let len = match self.pending.last().and_then(|w| self.events.get(*w)) {
            Some(Event::Write { data, .. }) => (data.len() / SECTOR) as u32,
            _ => 0,
        };
        if len < 2 {
            return;
        }
        let random = Fate::Some(mix(self.at as u64, 77));
        for others in [Fate::Kept, Fate::Dropped] {
            for newest in [
                Fate::First(1),
                Fate::First(len / 2),
                Fate::ButLast,
                Fate::ButFirst,
                random,
            ] {
                let mut fates = vec![others; n];
                if let Some(last) = fates.last_mut() {
                    *last = newest;
                }
                taken.add(fates);
            }
        }
    }

    /// The states from here to the last event.
    pub fn states(mut self) -> Vec<StateId> {
        let mut states = Vec::new();
        loop {
            let event = self.at as u32;
            let choices = self.choices(false).len() as u32;
            states.extend((0..choices).map(|choice| StateId { event, choice }));
            if !self.step() {
                return states;
            }
        }
    }

    /// Passes events up to a state, and returns the disk in it; `None` if there is no such state.
    /// `again` is as for [`Self::choices`].
    pub fn image_in(&mut self, id: StateId, again: bool) -> Option<Image> {
        self.step_to(id.event as usize);
        let choices = self.choices(again);
        let fates = choices.get(id.choice as usize)?;
        (self.at == id.event as usize).then(|| self.image(fates))
    }

    /// The disk after the power fails here with this choice.
    pub fn image(&self, fates: &[Fate]) -> Image {
        let mut image = self.durable.clone();
        for (write, fate) in self.pending.iter().zip(fates) {
            apply(&mut image, self.events.get(*write), *fate);
        }
        image
    }
}

/// A list of choices without duplicates.
#[derive(Default)]
struct ChosenFates {
    list: Vec<Vec<Fate>>,
    known: HashSet<Vec<Fate>>,
}

impl ChosenFates {
    fn add(&mut self, fates: Vec<Fate>) {
        if self.known.insert(fates.clone()) {
            self.list.push(fates);
        }
    }
}

/// About four of `0..n`, with both ends among them.
fn spread(n: usize) -> impl Iterator<Item = usize> {
    let step = n.div_ceil(4).max(1);
    (0..n).step_by(step).chain(n.checked_sub(1))
}

fn apply(image: &mut Image, event: Option<&Event>, fate: Fate) {
    let Some(Event::Write { offset, data }) = event else {
        return;
    };
    let last = (data.len() / SECTOR).saturating_sub(1);
    match fate {
        Fate::Dropped => {}
        Fate::Kept => image.write(*offset, data),
        Fate::First(n) => image.write_sectors(*offset, data, |s| s < n as usize),
        Fate::ButLast => image.write_sectors(*offset, data, |s| s != last),
        Fate::ButFirst => image.write_sectors(*offset, data, |s| s != 0),
        Fate::Some(seed) => image.write_sectors(*offset, data, |s| mix(seed, s as u64) & 1 != 0),
    }
}

/// Mixes two numbers into an evenly distributed one (the finalizer of splitmix64).
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a ^ b.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::BLOCK;

    fn write(block: u64, byte: u8) -> Event {
        Event::Write {
            offset: block * BLOCK as u64,
            data: vec![byte; BLOCK].into(),
        }
    }

    /// Digests of all distinct disks after these events, with the power failing at any of them.
    fn disks(events: &[Event]) -> HashSet<u64> {
        let mut cursor = Cursor::new(Image::new(1 << 20), events);
        let mut seen = HashSet::new();
        loop {
            for fates in cursor.choices(false) {
                seen.insert(cursor.image(&fates).digest());
            }
            if !cursor.step() {
                return seen;
            }
        }
    }

    #[test]
    fn every_subset_of_complete_writes_is_enumerated() {
        let events = [write(1, 1), write(2, 2), write(3, 3)];
        let seen = disks(&events);
        for mask in 0..8u8 {
            let mut image = Image::new(1 << 20);
            for (i, event) in events.iter().enumerate() {
                if mask >> i & 1 != 0 {
                    apply(&mut image, Some(event), Fate::Kept);
                }
            }
            assert!(seen.contains(&image.digest()), "{mask:03b}");
        }
    }

    #[test]
    fn flushed_writes_are_in_every_later_state() {
        let events = [write(1, 1), Event::Flush, write(2, 2)];
        let mut cursor = Cursor::new(Image::new(1 << 20), &events);
        cursor.step_to(2);
        let mut found = Vec::new();
        while {
            for fates in cursor.choices(false) {
                let mut bytes = [0; BLOCK];
                cursor.image(&fates).read(BLOCK as u64, &mut bytes);
                found.push(bytes[0]);
            }
            cursor.step()
        } {}
        assert!(
            found.len() > 2 && found.iter().all(|b| *b == 1),
            "{found:?}"
        );
    }

    #[test]
    fn write_may_be_torn_at_a_sector() {
        let seen = disks(&[write(1, 1)]);
        let mut first = Image::new(1 << 20);
        first.write_sectors(BLOCK as u64, &[1; BLOCK], |s| s == 0);
        assert!(seen.contains(&first.digest()));
        assert!(seen.len() >= 6, "{}", seen.len());
    }

    #[test]
    fn state_ids_round_trip_as_text() {
        let id = StateId {
            event: 12,
            choice: 3,
        };
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("12".parse::<StateId>().is_err());
        assert!("a.b".parse::<StateId>().is_err());
    }
}
