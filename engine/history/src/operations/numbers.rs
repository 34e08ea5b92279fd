//! What the inode numbers of a stream are here.
//!
//! Pure. A file is known by the volume that made it, its *origin*, and its number there, however many
//! volumes have sent it on. Of a part of the numbers of one origin, which begins at a multiple of
//! [`RANGE`], this volume has one range. So files that go around among volumes keep their numbers, a
//! range is taken once for each volume that made files and not for each receive, and snapshots that
//! have the same file can be compared.
//!
//! Invariants:
//! - Different numbers of a stream are different ones here: ranges overlap neither there nor here.
//! - What a number of the base of a stream is, stays as it was when that was received.
//! - Whatever a stream has in it, there are at most [`MAX_ORIGINS`] ranges.

use std::collections::BTreeMap;

use zerocopy::little_endian::U64;

use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::numbers::{Given, Part, RANGE, first_of};
use cairnfs_disk::format::received::RawRange;
use cairnfs_disk::format::stream::{MAX_ORIGINS, RawOrigin};

type Uuid = [u8; 16];

/// Numbers that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    /// The volume that made the files.
    uuid: Uuid,
    /// Its number of the first one.
    first: u64,
    /// The sender's number.
    sent: u64,
    /// The number here.
    here: u64,
    len: u64,
}

/// The number for `at` in `len` numbers from `to` on, which stand for those from `from` on.
fn moved(at: u64, from: u64, to: u64, len: u64) -> Option<u64> {
    let behind = at.checked_sub(from).filter(|behind| *behind < len)?;
    to.checked_add(behind)
}

impl Range {
    fn of(origin: &RawOrigin, here: u64) -> Self {
        Self {
            uuid: origin.uuid,
            first: origin.first.get(),
            sent: origin.sent.get(),
            here,
            len: origin.len.get(),
        }
    }

    fn raw(&self) -> RawRange {
        RawRange {
            origin: RawOrigin {
                uuid: self.uuid,
                first: U64::new(self.first),
                sent: U64::new(self.sent),
                len: U64::new(self.len),
            },
            here: U64::new(self.here),
        }
    }

    /// What is left of it between two numbers of the sender.
    fn between_sent(self, between: (u64, u64)) -> Self {
        self.between(self.sent, between)
    }

    /// What is left of it between two numbers here.
    fn between_here(self, between: (u64, u64)) -> Self {
        self.between(self.here, between)
    }

    fn between(self, begin: u64, (from, end): (u64, u64)) -> Self {
        let before = from.saturating_sub(begin).min(self.len);
        let behind = begin.saturating_add(self.len).saturating_sub(end);
        Self {
            first: self.first.saturating_add(before),
            sent: self.sent.saturating_add(before),
            here: self.here.saturating_add(before),
            len: (self.len - before).saturating_sub(behind),
            ..self
        }
    }
}

/// Ranges that do not overlap, by the first numbers that they have in one place.
#[derive(Debug, Default)]
struct Disjoint(BTreeMap<u64, Range>);

impl Disjoint {
    /// The last range that begins at `at` or before.
    fn before(&self, at: u64) -> Option<&Range> {
        self.0.range(..=at).next_back().map(|(_, range)| range)
    }

    /// Where the gap around `at` begins and ends. No range has `at`.
    fn gap(&self, at: u64) -> (u64, u64) {
        let before = self.0.range(..=at).next_back();
        let behind = self.0.range(at..).next();
        (
            before.map_or(0, |(first, range)| first.saturating_add(range.len)),
            behind.map_or(u64::MAX, |(first, _)| *first),
        )
    }

    /// Adds the parts of a range, by its numbers here, that are in the gaps.
    fn cover(&mut self, range: Range) {
        let end = range.here.saturating_add(range.len);
        let mut at = range.here;
        while at < end {
            let there = self.before(at).filter(|there| at - there.here < there.len);
            at = match there {
                Some(there) => there.here.saturating_add(there.len),
                None => {
                    let (_, behind) = self.gap(at);
                    self.0.insert(at, range.between_here((at, behind)));
                    behind
                }
            };
        }
    }

    /// Whether nothing is in the `len` numbers from `first` on.
    fn has_room(&self, first: u64, len: u64) -> bool {
        let (from, end) = self.gap(first);
        from <= first && first.saturating_add(len) <= end
    }
}

/// Ranges that do not overlap, neither there nor here.
#[derive(Debug, Default)]
struct Ranges {
    by_sent: Disjoint,
    by_here: Disjoint,
}

impl Ranges {
    /// Adds a range. Returns whether it overlaps no other.
    fn add(&mut self, range: Range) -> bool {
        let fits = self.by_sent.has_room(range.sent, range.len)
            && self.by_here.has_room(range.here, range.len);
        if fits {
            self.by_sent.0.insert(range.sent, range);
            self.by_here.0.insert(range.here, range);
        }
        fits
    }

    fn here(&self, sent: u64) -> Option<u64> {
        let range = self.by_sent.before(sent)?;
        moved(sent, range.sent, range.here, range.len)
    }

    fn sent(&self, here: u64) -> Option<u64> {
        let range = self.by_here.before(here)?;
        moved(here, range.here, range.sent, range.len)
    }
}

/// The ranges that snapshots of this volume have for files of other volumes.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<(Uuid, u64), (u64, u64)>);

impl Known {
    /// Adds what a received snapshot has.
    pub fn add(&mut self, ranges: &[RawRange]) {
        for range in ranges {
            let origin = &range.origin;
            let place = (range.here.get(), origin.len.get());
            self.0
                .entry((origin.uuid, origin.first.get()))
                .or_insert(place);
        }
    }

    /// The part of `wanted` around its number `ino` that is known.
    fn find(&self, wanted: Range, ino: u64) -> Option<Range> {
        let uuid = wanted.uuid;
        let (&(_, first), &(here, len)) = self.0.range((uuid, 0)..=(uuid, ino)).next_back()?;
        moved(ino, first, here, len)?;
        let from = first.max(wanted.first);
        let end = (first + len).min(wanted.first + wanted.len);
        Some(Range {
            uuid,
            first: from,
            sent: wanted.sent + (from - wanted.first),
            here: here + (from - first),
            len: end - from,
        })
    }
}

/// The ranges of the files of two trees of this volume, in which equal numbers are the same files;
/// `None` if the first tree has them all. Neither tree is what a sender has, so its numbers are
/// those here.
///
/// # Errors
/// [`Error::Unsupported`] if there are too many.
pub(super) fn joined(ours: &[RawRange], theirs: &[RawRange]) -> Result<Option<Vec<RawRange>>> {
    let mut all = Disjoint::default();
    ours.iter().for_each(|range| all.cover(here_only(range)));
    let before = all.0.len();
    theirs.iter().for_each(|range| all.cover(here_only(range)));
    match all.0.len() {
        len if len == before => Ok(None),
        len if len > MAX_ORIGINS => Err(Error::Unsupported(
            "both together have files of more than 1024 volumes",
        )),
        _ => Ok(Some(all.0.values().map(Range::raw).collect())),
    }
}

fn here_only(raw: &RawRange) -> Range {
    let here = raw.here.get();
    Range {
        sent: here,
        ..Range::of(&raw.origin, here)
    }
}

/// What the inode numbers of a stream are here.
pub(super) struct Numbers {
    own: Uuid,
    sender: Uuid,
    /// What this volume had given before the stream, and the ranges that were taken for it.
    given: Given,
    ranges: Ranges,
    /// Those that the sender tells the origin of, by their numbers there.
    origins: Disjoint,
    known: Known,
}

impl Numbers {
    /// Those of a stream of the volume `sender` for this volume `own`. The base of the stream has the
    /// `ranges`, other snapshots the known ones.
    pub fn new(
        (own, sender): (Uuid, Uuid),
        given: Given,
        ranges: &[RawRange],
        known: Known,
    ) -> Self {
        let mut numbers = Self {
            own,
            sender,
            given,
            ranges: Ranges::default(),
            origins: Disjoint::default(),
            known,
        };
        for range in ranges {
            let here = range.here.get();
            let sent = if numbers.is_own() {
                here
            } else {
                range.origin.sent.get()
            };
            let range = Range::of(&range.origin, here);
            numbers.ranges.add(Range { sent, ..range });
        }
        numbers
    }

    /// Whether this volume has sent the stream: then its numbers are those of the stream.
    fn is_own(&self) -> bool {
        self.own == self.sender
    }

    /// What is recorded of a tree that was received.
    pub fn ranges(&self) -> Vec<RawRange> {
        let ranges = self.ranges.by_sent.0.values();
        ranges.map(Range::raw).collect()
    }

    /// Takes note of an origin that the stream tells.
    ///
    /// # Errors
    /// [`Error::Stream`] if it tells too many, or two for one number.
    pub fn tell(&mut self, origin: &RawOrigin) -> Result<()> {
        let range = Range::of(origin, origin.sent.get());
        let has_room = self.origins.has_room(range.sent, range.len);
        if !has_room || self.origins.0.len() >= MAX_ORIGINS {
            let why = format!(
                "it tells the origin of inode {} twice, or too many",
                range.sent
            );
            return Err(Error::Stream(why));
        }
        self.origins.0.insert(range.sent, range);
        // What the base has there is known from that.
        if self.is_own() {
            self.ranges.add(range);
        }
        Ok(())
    }

    /// The number here of an inode of the stream that is here already.
    pub fn here(&self, ino: u64) -> Option<u64> {
        let here = match ino {
            ROOT_INO => return Some(ino),
            _ if self.is_own() => ino,
            _ => self.ranges.here(ino)?,
        };
        self.given.has(here).then_some(here)
    }

    /// The number that an inode here has in the stream.
    pub fn sent(&self, here: u64) -> Option<u64> {
        match here {
            ROOT_INO => Some(here),
            _ if self.is_own() => Some(here),
            _ => self.ranges.sent(here),
        }
    }

    /// The number here of a new inode of the stream. `take` gives the range of this volume for a part
    /// of the numbers of another one, or a new one in its place.
    ///
    /// # Errors
    /// [`Error::Stream`] if this volume has not given a number that is its own, or if there are too
    /// many ranges; those of `take`.
    pub fn make(&mut self, ino: u64, take: impl Fn(Part, bool) -> Result<u32>) -> Result<u64> {
        if let Some(here) = self.here(ino) {
            return Ok(here);
        }
        if !self.is_own() && self.ranges.here(ino).is_none() {
            self.add(ino, take)?;
        }
        self.here(ino).ok_or_else(|| {
            Error::Stream(format!(
                "inode {ino} is of this volume, which has not made it: this is an older state of the volume, so receive the stream in another one"
            ))
        })
    }

    /// Adds the range of an inode of the stream that is in none.
    fn add(&mut self, ino: u64, take: impl Fn(Part, bool) -> Result<u32>) -> Result<()> {
        if self.ranges.by_sent.0.len() >= MAX_ORIGINS {
            let why = format!("it has files of more than {MAX_ORIGINS} volumes");
            return Err(Error::Stream(why));
        }
        let (wanted, made) = self.wanted(ino);
        if wanted.uuid == self.own {
            let room = self.ranges.by_here.gap(made);
            self.ranges.add(wanted.between_here(room));
            return Ok(());
        }
        let known = self.known.find(wanted, made);
        let known = known.filter(|range| self.given.has(range.here));
        if known.is_some_and(|known| self.ranges.add(known)) {
            return Ok(());
        }
        let part = Part {
            uuid: wanted.uuid,
            nth: made / RANGE,
        };
        for new in [false, true] {
            let range = take(part, new)?;
            self.given.ranges = self.given.ranges.max(range.saturating_add(1));
            let here = first_of(range) + wanted.first % RANGE;
            // The base may have these numbers for files that the sender tells another place of.
            if self.ranges.add(Range { here, ..wanted }) {
                break;
            }
        }
        Ok(())
    }

    /// The range that an inode in no range needs, as if all numbers were the same here, and the
    /// number that the inode has for its origin.
    fn wanted(&self, ino: u64) -> (Range, u64) {
        let told = self.origins.before(ino);
        let told = told.filter(|range| ino - range.sent < range.len);
        let whole = match told {
            Some(range) => *range,
            None => {
                let (from, end) = self.origins.gap(ino);
                Range {
                    uuid: self.sender,
                    first: from,
                    sent: from,
                    here: from,
                    len: end - from,
                }
            }
        };
        let made = whole.first + (ino - whole.sent);
        // The part of the origin's numbers, as numbers of the sender.
        let from = ino.saturating_sub(made % RANGE);
        let part = (from, ino.saturating_add(RANGE - made % RANGE));
        let wanted = whole
            .between_sent(part)
            .between_sent(self.ranges.by_sent.gap(ino));
        let here = wanted.first;
        (Range { here, ..wanted }, made)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const OWN: Uuid = [1; 16];
    const SENDER: Uuid = [2; 16];
    const OTHER: Uuid = [3; 16];

    fn origin(uuid: Uuid, first: u64, sent: u64, len: u64) -> RawOrigin {
        RawOrigin {
            uuid,
            first: U64::new(first),
            sent: U64::new(sent),
            len: U64::new(len),
        }
    }

    fn range(origin: RawOrigin, here: u64) -> RawRange {
        let here = U64::new(here);
        RawRange { origin, here }
    }

    /// Those of a stream of the sender, with what the base and other snapshots have.
    fn numbers(next: u64, base: &[RawRange], others: &[RawRange]) -> Numbers {
        let mut known = Known::default();
        known.add(base);
        known.add(others);
        let given = Given { next, ranges: 9 };
        Numbers::new((OWN, SENDER), given, base, known)
    }

    /// The number here of a new inode for which the range 9 may be taken.
    fn made(numbers: &mut Numbers, ino: u64) -> u64 {
        numbers.make(ino, |_, _| Ok(9)).unwrap()
    }

    #[test]
    fn numbers_of_a_base_with_a_shift_stay_and_greater_ones_get_a_range() {
        let shifted = range(origin(SENDER, 0, 0, 1 << 40), 80);
        let mut numbers = numbers(80 + (1 << 40), &[shifted], &[]);
        // The sender tells of numbers that the base has as its own.
        numbers.tell(&origin(OTHER, 0, 100, 1 << 40)).unwrap();
        assert_eq!(made(&mut numbers, 120), 200);
        assert_eq!(numbers.sent(200), Some(120));
        let greater = (1 << 40) + 500;
        assert_eq!(made(&mut numbers, greater), first_of(9) + 500);
        assert_eq!(numbers.here(greater + 1), Some(first_of(9) + 501));
        assert_eq!(numbers.ranges().len(), 2);
    }

    #[test]
    fn files_of_other_volumes_have_the_numbers_of_other_snapshots() {
        let others = [range(origin(OTHER, 0, 77, RANGE), first_of(4))];
        let mut numbers = numbers(80, &[], &others);
        numbers.tell(&origin(OTHER, 0, first_of(1), RANGE)).unwrap();
        assert_eq!(made(&mut numbers, first_of(1) + 20), first_of(4) + 20);
        assert_eq!(made(&mut numbers, 30), first_of(9) + 30);
        assert_eq!(numbers.here(31), Some(first_of(9) + 31));
        assert_eq!(numbers.here(first_of(2)), None);
    }

    #[test]
    fn files_of_this_volume_come_back_if_it_has_made_them() {
        let mut numbers = numbers(80, &[], &[]);
        numbers.tell(&origin(OWN, 0, first_of(1), RANGE)).unwrap();
        assert_eq!(made(&mut numbers, first_of(1) + 20), 20);
        for ino in [15, 80, 81] {
            let refused = numbers.make(first_of(1) + ino, |_, _| Ok(9)).unwrap_err();
            assert!(matches!(refused, Error::Stream(_)), "{refused}");
        }
    }

    /// An earlier version had ranges for others among the numbers of its own files.
    #[test]
    fn own_files_beside_a_range_of_an_earlier_version_come_back() {
        let others = [range(origin(OTHER, 0, 0, 1 << 40), 80)];
        let mut numbers = numbers(200 + (1 << 40), &[], &others);
        numbers.tell(&origin(OTHER, 0, first_of(1), RANGE)).unwrap();
        numbers.tell(&origin(OWN, 0, first_of(2), RANGE)).unwrap();
        assert_eq!(made(&mut numbers, first_of(1) + 20), 100);
        assert_eq!(made(&mut numbers, first_of(2) + 20), 20);
    }

    #[test]
    fn two_origins_of_one_number_and_too_many_are_refused() {
        let mut numbers = numbers(80, &[], &[]);
        numbers.tell(&origin(OTHER, 0, 1000, 10)).unwrap();
        for sent in [991, 1000, 1009] {
            numbers.tell(&origin(OWN, 0, sent, 10)).unwrap_err();
        }
        for n in 1..MAX_ORIGINS as u64 {
            numbers.tell(&origin(OTHER, 0, 1000 + 10 * n, 10)).unwrap();
        }
        numbers.tell(&origin(OTHER, 0, 1, 1)).unwrap_err();
    }

    /// Two numbers of a stream that claim to be one file are not one here.
    #[test]
    fn one_origin_of_two_numbers_is_refused() {
        let mut numbers = numbers(80, &[], &[]);
        numbers.tell(&origin(OWN, 0, first_of(1), RANGE)).unwrap();
        numbers.tell(&origin(OWN, 0, first_of(2), RANGE)).unwrap();
        assert_eq!(made(&mut numbers, first_of(1) + 20), 20);
        numbers.make(first_of(2) + 20, |_, _| Ok(9)).unwrap_err();
    }

    #[test]
    fn ranges_of_a_stream_are_bounded() {
        let mut numbers = numbers(80, &[], &[]);
        for n in 0..MAX_ORIGINS as u64 {
            numbers
                .make(16 + n * RANGE, |_, _| Ok(9 + n as u32))
                .unwrap();
        }
        let more = 16 + MAX_ORIGINS as u64 * RANGE;
        numbers.make(more, |_, _| Ok(2000)).unwrap_err();
    }

    #[test]
    fn joined_ranges_have_what_either_has_once() {
        let part = |first, len| range(origin(OTHER, first, 7, len), first_of(4) + first);
        let whole = range(origin(SENDER, 0, 0, RANGE), first_of(1));
        let found = joined(&[part(100, 10)], &[part(0, 200), whole]).unwrap();
        let found = found.unwrap().into_iter();
        let found: Vec<_> = found
            .map(|r| (r.here.get(), r.origin.sent.get(), r.origin.len.get()))
            .collect();
        let at = |first, len| (first_of(4) + first, first_of(4) + first, len);
        let all = first_of(1);
        assert_eq!(
            found,
            [(all, all, RANGE), at(0, 100), at(100, 10), at(110, 90)]
        );
        for (ours, theirs) in [(vec![part(0, 200)], vec![part(100, 10)]), (vec![], vec![])] {
            assert_eq!(joined(&ours, &theirs).unwrap(), None);
        }
        let many: Vec<_> = (0..MAX_ORIGINS as u64).map(|n| part(2 * n, 1)).collect();
        joined(&many, &[whole]).unwrap_err();
    }

    /// Numbers around the bounds of ranges.
    fn number() -> impl Strategy<Value = u64> {
        let base = prop_oneof![
            Just(0),
            Just(80),
            Just(1 << 40),
            (0..4u64).prop_map(|n| n * RANGE),
            (0..4u32).prop_map(first_of),
        ];
        (base, 16..60u64).prop_map(|(base, more)| base + more)
    }

    fn origins() -> impl Strategy<Value = Vec<RawOrigin>> {
        let uuid = prop_oneof![Just(OWN), Just(SENDER), Just(OTHER)];
        let len = prop_oneof![Just(30), Just(RANGE), Just(1 << 40)];
        let one = (uuid, number(), number(), len);
        let one = one.prop_map(|(uuid, first, sent, len)| origin(uuid, first, sent, len));
        proptest::collection::vec(one, 0..5)
    }

    proptest! {
        /// Whatever a stream tells and snapshots have, its inodes are different ones here, there is
        /// a way back, and the next stream finds them where they were.
        #[test]
        fn different_inodes_stay_different(
            told in origins(),
            base in proptest::collection::vec((origins(), number()), 0..3),
            inos in proptest::collection::vec(number(), 1..40),
        ) {
            let have = |(list, here): (Vec<RawOrigin>, u64)| {
                list.into_iter().map(move |origin| range(origin, here))
            };
            let base: Vec<RawRange> = base.into_iter().flat_map(have).collect();
            let mut numbers = numbers(2 << 40, &[], &base);
            for origin in &told {
                let _ = numbers.tell(origin);
            }
            let mut found = BTreeMap::new();
            let next = Cell::new(9);
            for ino in inos {
                let take = |_, _| {
                    next.set(next.get() + 1);
                    Ok(next.get() - 1)
                };
                if let Ok(here) = numbers.make(ino, take) {
                    prop_assert_eq!(*found.entry(here).or_insert(ino), ino);
                    prop_assert_eq!(numbers.sent(here), Some(ino));
                }
            }
            let given = Given { next: 2 << 40, ranges: next.get() };
            let later = Numbers::new((OWN, SENDER), given, &numbers.ranges(), Known::default());
            for (here, ino) in found {
                prop_assert_eq!(later.here(ino), Some(here));
            }
        }
    }
}
