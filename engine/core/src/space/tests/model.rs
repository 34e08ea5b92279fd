//! Random operations, compared with a model of plain sets of blocks.

use std::collections::BTreeSet;

use cairnfs_tier::size;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Op {
    /// Allocate data behind the nth owned run, or anywhere.
    Alloc(Option<usize>, u64, Funding),
    /// Reserve, then allocate all of it in pieces.
    Promised(u64, u64, u64, Class),
    Unit(Class),
    /// Release a part of the nth owned run.
    Release(usize, u64, bool),
    Claim(u64, u64),
    Add(usize),
    Remove(usize),
    Write,
    Commit,
    /// Reopen, from the state written last (true) or the last committed state.
    Crash(bool),
}

fn class() -> impl Strategy<Value = Class> + Clone {
    prop_oneof![
        Just(Class::Ordinary),
        Just(Class::Delete),
        Just(Class::Merge)
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let want = prop_oneof![4 => 1..6u64, 3 => 1..300u64, 1 => 300..3000u64];
    let class = class();
    prop_oneof![
        6 => (prop::option::of(0..64usize), want.clone(), class.clone())
            .prop_map(|(goal, want, c)| Op::Alloc(goal, want, Funding::New(c))),
        3 => (want.clone(), 0..20u64, 1..70u64, class.clone())
            .prop_map(|(b, u, piece, c)| Op::Promised(b, u, piece, c)),
        3 => class.prop_map(Op::Unit),
        6 => (0..64usize, want.clone(), any::<bool>()).prop_map(|(n, l, d)| Op::Release(n, l, d)),
        1 => (any::<u64>(), want).prop_map(|(at, len)| Op::Claim(at, len)),
        4 => (0..64usize).prop_map(Op::Add),
        3 => (0..64usize).prop_map(Op::Remove),
        2 => Just(Op::Write),
        2 => Just(Op::Commit),
        1 => any::<bool>().prop_map(Op::Crash),
    ]
}

struct Model {
    volume: Volume,
    space: Space,
    runs: Vec<BlockRun>,
    live: BTreeSet<u64>,
    image: BTreeSet<u64>,
    durable: BTreeSet<u64>,
    written: Option<(TableState, BTreeSet<u64>)>,
}

fn each(run: BlockRun) -> std::ops::Range<u64> {
    run.start..run.end()
}

impl Model {
    fn new(size: u64) -> Self {
        let volume = Volume::new(size, &[]);
        Self {
            space: volume.open(),
            volume,
            runs: Vec::new(),
            live: BTreeSet::new(),
            image: BTreeSet::new(),
            durable: BTreeSet::new(),
            written: None,
        }
    }

    fn nth(&self, n: usize) -> Option<usize> {
        (!self.runs.is_empty()).then(|| n % self.runs.len())
    }

    fn took(&mut self, run: BlockRun) {
        assert!(run.len > 0 && self.volume.geometry.in_data(run.start, run.len));
        for block in each(run) {
            assert!(self.live.insert(block), "block {block} given twice");
        }
        self.runs.push(run);
    }

    /// Whether the reservations leave the reserve that the class must leave.
    fn leaves_reserve(&self, class: Class) -> bool {
        let (blocks, units) = self.space.reserved();
        let kept = units + self.space.standing(class);
        let kept_blocks = match class {
            Class::Ordinary => self.space.kept_blocks() + 4 * units,
            _ => 4 * kept,
        };
        blocks + kept_blocks <= self.space.free_blocks() && kept <= self.space.free_units()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc(goal, want, funding) => {
                let goal = goal
                    .and_then(|n| self.nth(n))
                    .map_or(0, |n| self.runs[n].end());
                match self.space.alloc(goal, want, funding).unwrap() {
                    Some(run) => {
                        assert!(run.len <= want);
                        self.took(run);
                    }
                    None => {
                        let Funding::New(class) = funding else {
                            unreachable!()
                        };
                        assert!(!self.space.reserve(1, 0, class).unwrap());
                    }
                }
            }
            Op::Promised(blocks, units, piece, class) => {
                if !self.space.reserve(blocks, units, class).unwrap() {
                    return;
                }
                assert!(self.leaves_reserve(class));
                let (mut blocks, mut units) = (blocks, units);
                while blocks + units > 0 {
                    if blocks > 0 {
                        let run = self.space.alloc(0, piece.min(blocks), Funding::Reserved);
                        let run = run.unwrap().unwrap();
                        blocks -= run.len;
                        self.took(run);
                    }
                    if units > 0 {
                        let unit = self.space.alloc_unit(Funding::Reserved).unwrap().unwrap();
                        units -= 1;
                        self.took(BlockRun::new(unit, NODE_BLOCKS));
                    }
                }
            }
            Op::Unit(class) => {
                if let Some(unit) = self.space.alloc_unit(Funding::New(class)).unwrap() {
                    assert!(unit.is_multiple_of(NODE_BLOCKS));
                    self.took(BlockRun::new(unit, NODE_BLOCKS));
                }
            }
            Op::Release(n, len, discard) => self.release(n, len, discard),
            Op::Claim(at, len) => {
                let (first, count) = (self.volume.geometry.data_start(), self.volume.data_blocks());
                let run = BlockRun::new(first + at % count, len);
                let sound =
                    run.end() <= first + count && each(run).all(|b| !self.live.contains(&b));
                if sound {
                    self.space.claim(run).unwrap();
                    self.took(run);
                } else if len == 1 {
                    let claimed = self.space.claim(run);
                    let outside = run.end() > first + count;
                    assert!(if outside {
                        claimed.is_err()
                    } else {
                        claimed.unwrap() == 0
                    });
                }
            }
            Op::Add(n) => {
                let Some(n) = self.nth(n) else { return };
                let run = self.runs[n];
                let sound = each(run).all(|b| !self.image.contains(&b));
                assert_eq!(self.space.image_add(run).is_ok(), sound);
                self.image.extend(each(run));
            }
            Op::Remove(n) => {
                let Some(n) = self.nth(n) else { return };
                let run = self.runs[n];
                let sound = each(run).all(|b| self.image.contains(&b));
                assert_eq!(self.space.image_remove(run).is_ok(), sound);
                if sound {
                    each(run).for_each(|b| assert!(self.image.remove(&b)));
                }
            }
            Op::Write => {
                let state = self.space.write_image().unwrap();
                self.written = Some((state, self.image.clone()));
            }
            Op::Commit => {
                self.space.commit_image();
                if let Some((state, image)) = self.written.take() {
                    (self.volume.state, self.durable) = (state, image);
                }
            }
            Op::Crash(durable) => self.crash(durable),
        }
    }

    fn release(&mut self, n: usize, len: u64, discard: bool) {
        let Some(n) = self.nth(n) else { return };
        let run = self.runs[n];
        let part = BlockRun::new(run.start, len.min(run.len));
        let sound = each(part).all(|b| !self.image.contains(&b));
        // In two pieces, out of order.
        let half = part.len / 2;
        let mut pieces = vec![
            BlockRun::new(part.start + half, part.len - half),
            BlockRun::new(part.start, half),
        ];
        assert_eq!(self.space.release(&mut pieces, discard).is_ok(), sound);
        if sound {
            each(part).for_each(|b| assert!(self.live.remove(&b)));
            self.runs.swap_remove(n);
            if part.len < run.len {
                self.runs
                    .push(BlockRun::new(part.end(), run.len - part.len));
            }
        }
    }

    fn crash(&mut self, durable: bool) {
        if let Some((state, image)) = self.written.take()
            && durable
        {
            (self.volume.state, self.durable) = (state, image);
        }
        self.space = self.volume.open();
        self.image = self.durable.clone();
        self.live = self.durable.clone();
        self.runs = self.live.iter().map(|b| BlockRun::new(*b, 1)).collect();
        self.runs.dedup_by(|next, last| {
            let joined = last.end() == next.start;
            last.len += u64::from(joined);
            joined
        });
    }

    fn compare(&self) {
        check(&self.space);
        assert!(
            used(&self.space, |m| &m.live)
                .into_iter()
                .eq(self.live.iter().copied())
        );
        assert!(
            used(&self.space, |m| &m.image)
                .into_iter()
                .eq(self.image.iter().copied())
        );
        assert_eq!(self.space.reserved(), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(size(100, 300)))]
    #[test]
    fn allocator_agrees_with_block_sets(
        size in prop_oneof![Just(16 * MIB), Just(132 * MIB)],
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut model = Model::new(size);
        for (i, op) in ops.into_iter().enumerate() {
            model.apply(op);
            if i % 16 == 15 {
                model.compare();
            }
        }
        model.compare();
    }
}

#[test]
fn crash_before_superblock_keeps_old_image() {
    let mut volume = Volume::new(300 * MIB, &[]);
    let space = volume.open();
    let old = space
        .alloc(0, 100, Funding::New(Class::Ordinary))
        .unwrap()
        .unwrap();
    space.image_add(old).unwrap();
    volume.state = space.write_image().unwrap();
    space.commit_image();
    let new = space
        .alloc(0, 50, Funding::New(Class::Ordinary))
        .unwrap()
        .unwrap();
    for _ in 0..3 {
        // Written repeatedly without a commit: the active copies are never touched.
        space.image_remove(old).unwrap();
        space.image_add(new).unwrap();
        let next = space.write_image().unwrap();
        let reopened = volume.open();
        assert!(used(&reopened, |m| &m.live).into_iter().eq(each(old)));
        let after = Space::open(volume.device.clone(), volume.geometry, next).unwrap();
        assert!(used(&after, |m| &m.live).into_iter().eq(each(new)));
        space.image_add(old).unwrap();
        space.image_remove(new).unwrap();
    }
}

#[test]
fn changes_between_writing_and_commit_are_in_the_next_image() {
    let mut volume = Volume::new(16 * MIB, &[]);
    let space = volume.open();
    let run = space
        .alloc(0, 8, Funding::New(Class::Ordinary))
        .unwrap()
        .unwrap();
    space.image_add(BlockRun::new(run.start, 4)).unwrap();
    let first = space.write_image().unwrap();
    space.image_add(BlockRun::new(run.start + 4, 4)).unwrap();
    space.commit_image();
    volume.state = first;
    assert_eq!(used(&volume.open(), |m| &m.live).len(), 4);
    volume.state = space.write_image().unwrap();
    assert_eq!(used(&volume.open(), |m| &m.live).len(), 8);
}
