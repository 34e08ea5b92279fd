//! Concurrent threads: no block is allocated twice, and every reservation is honoured.

use std::collections::HashSet;
use std::sync::atomic::AtomicU32;

use super::*;

/// A small random generator with a seed for each thread.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// The owning thread of each block; 0 if none.
struct Owners(Vec<AtomicU32>);

impl Owners {
    fn take(&self, run: BlockRun, me: u32) {
        for block in run.start..run.end() {
            assert_eq!(self.0[block as usize].swap(me, Ordering::Relaxed), 0);
        }
    }

    fn give(&self, run: BlockRun, me: u32) {
        for block in run.start..run.end() {
            assert_eq!(self.0[block as usize].swap(0, Ordering::Relaxed), me);
        }
    }
}

fn work(space: &Space, owners: &Owners, me: u32, rounds: u32) -> Vec<BlockRun> {
    let mut random = Random(u64::from(me) * 0x9e37_79b9 + 1);
    let mut mine: Vec<BlockRun> = Vec::new();
    for _ in 0..rounds {
        let (blocks, units) = (random.below(200), random.below(8));
        let class = [Class::Ordinary, Class::Delete, Class::Merge][random.below(3) as usize];
        if space.reserve(blocks, units, class).unwrap() {
            let mut left = blocks;
            while left > 0 {
                let want = left.min(1 + random.below(64));
                let run = space.alloc(0, want, Funding::Reserved).unwrap().unwrap();
                owners.take(run, me);
                left -= run.len;
                mine.push(run);
            }
            for _ in 0..units {
                let unit = space.alloc_unit(Funding::Reserved).unwrap().unwrap();
                let run = BlockRun::new(unit, NODE_BLOCKS);
                owners.take(run, me);
                mine.push(run);
            }
        }
        let mut freed = Vec::new();
        while !mine.is_empty() && random.below(5) > 0 {
            let run = mine.swap_remove(random.below(mine.len() as u64) as usize);
            owners.give(run, me);
            freed.push(run);
        }
        space.release(&mut freed, random.below(2) == 0).unwrap();
    }
    mine
}

fn hammer(size: u64, rounds: u32) {
    let volume = Volume::new(size, &[]);
    let space = volume.open();
    let owners = Owners(
        (0..volume.geometry.total_blocks)
            .map(|_| AtomicU32::new(0))
            .collect(),
    );
    let left: Vec<BlockRun> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=16)
            .map(|me| {
                scope.spawn({
                    let (s, o) = (&space, &owners);
                    move || work(s, o, me, rounds)
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().unwrap())
            .collect()
    });
    check(&space);
    let owned: HashSet<u64> = left.iter().flat_map(|r| r.start..r.end()).collect();
    assert_eq!(used(&space, |m| &m.live).len(), owned.len());
    assert_eq!(space.reserved(), (0, 0));
    release(&space, left).unwrap();
    assert_eq!(space.free_blocks(), volume.data_blocks());
    check(&space);
}

#[test]
fn threads_allocate_and_free_on_nearly_full_volume() {
    hammer(16 * MIB, 2000);
}

#[test]
fn threads_allocate_and_free_in_many_groups() {
    hammer(520 * MIB, 1000);
}

#[test]
fn threads_allocate_data_in_different_groups() {
    let volume = Volume::new(1024 * MIB, &[]);
    let space = volume.open();
    let groups: HashSet<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| space.alloc(0, 256, Funding::New(Class::Ordinary))))
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap().unwrap().unwrap().start / GROUP_BLOCKS)
            .collect()
    });
    assert_eq!(groups.len(), 4);
}
