//! The states that a power cut may leave, enumerated from recorded events.
//!
//! Between two flushes any part of what was written may be on the disk, in any order, and of each
//! write any of its sectors. A state is told by where the power failed and by a choice among the
//! writes that no flush covers. The enumeration is a function of the events alone, so a place and a
//! number name a state for ever: its id.
//!
//! At each write only choices with that write are new: those without it were taken before. Where
//! something was promised without a flush, all choices are taken again, for more must hold then.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use crate::disk::Event;
use crate::image::{Image, SECTOR};

/// Up to so many unflushed writes all their subsets are taken.
const EXHAUSTIVE: usize = 5;
/// Subsets taken at random where there are more.
const RANDOM: u64 = 6;

/// What became of an unflushed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Nothing of it is on the disk.
    Dropped,
    /// All of it is.
    Kept,
    /// Its first sectors are, so many.
    First(u32),
    /// All but its last sector.
    ButLast,
    /// All but its first sector.
    ButFirst,
    /// Some of its sectors, by this number.
    Some(u64),
}

/// Names a crash state of a recording: how many events had happened, and which choice it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId {
    /// Events that had happened when the power failed.
    pub event: u32,
    /// Which of the choices there.
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

/// Walks along events; knows what is durable, and what is not.
pub struct Cursor<'a> {
    events: &'a [Event],
    at: usize,
    durable: Image,
    pending: Vec<usize>,
}

impl<'a> Cursor<'a> {
    /// Before the first event.
    pub fn new(start: Image, events: &'a [Event]) -> Self {
        Self {
            events,
            at: 0,
            durable: start,
            pending: Vec::new(),
        }
    }

    /// Events that have happened.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Writes that no flush covers.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Lets one more event happen; `false` if there is none.
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

    /// Lets events happen until `event` have.
    pub fn step_to(&mut self, event: usize) {
        while self.at < event && self.step() {}
    }

    /// The choices to take here: after a write those that keep some of it; all of them if
    /// `again` says that more must hold now than before, and where nothing is unflushed.
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
        let kept = |i: usize, bit: bool| match bit || with_newest && i + 1 == n {
            true => Fate::Kept,
            false => Fate::Dropped,
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

    /// The disk after the power failed here, with this choice.
    pub fn image(&self, fates: &[Fate]) -> Image {
        let mut image = self.durable.clone();
        for (write, fate) in self.pending.iter().zip(fates) {
            apply(&mut image, self.events.get(*write), *fate);
        }
        image
    }
}

/// Choices without repetition.
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

/// A few of `0..n`, the ends among them.
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

/// A number that depends on both, evenly (the finalizer of splitmix64).
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

    /// Every disk that can be told apart after these events, whenever the power failed.
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
    fn every_subset_of_whole_writes_is_there() {
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
    fn what_was_flushed_stays() {
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
    fn a_write_may_be_torn_at_a_sector() {
        let seen = disks(&[write(1, 1)]);
        let mut first = Image::new(1 << 20);
        first.write_sectors(BLOCK as u64, &[1; BLOCK], |s| s == 0);
        assert!(seen.contains(&first.digest()));
        assert!(seen.len() >= 6, "{}", seen.len());
    }

    #[test]
    fn ids_read_as_they_are_written() {
        let id = StateId {
            event: 12,
            choice: 3,
        };
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("12".parse::<StateId>().is_err());
        assert!("a.b".parse::<StateId>().is_err());
    }
}
