//! Orders of events among promises, allocations, releases and claims on nearly full volumes.

use std::collections::HashSet;

use super::*;
use crate::sync::explore::{Cost, explore};
use crate::sync::{thread, wait_for_ever};

/// Blocks of a unit.
const UNIT: u64 = NODE_BLOCKS;

/// A volume of which only the blocks `free` of are free.
fn volume(size: u64, free: &[BlockRun]) -> Volume {
    let geometry = Geometry::for_size(size, None).unwrap();
    let mut at = geometry.data_start();
    let mut used = Vec::new();
    for run in free {
        used.push(BlockRun::new(at, run.start - at));
        at = run.end();
    }
    used.push(BlockRun::new(at, geometry.total_blocks - at));
    used.retain(|run| run.len > 0);
    Volume::new(size, &used)
}

/// What somebody has; nobody else may get it.
#[derive(Default)]
struct Owned(std::sync::Mutex<HashSet<u64>>);

impl Owned {
    fn take(&self, run: BlockRun) {
        let mut owned = self.0.lock().unwrap();
        for block in run.start..run.end() {
            assert!(owned.insert(block), "block {block} is given twice");
        }
    }

    fn give(&self, run: BlockRun) {
        let mut owned = self.0.lock().unwrap();
        for block in run.start..run.end() {
            assert!(owned.remove(&block));
        }
    }

    fn count(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
}

/// Opens, runs `work` in as many threads as `threads` says, and compares all counts.
fn together(volume: &Volume, threads: u64, work: fn(&Space, &Owned, u64)) {
    let space = Arc::new(volume.open());
    let free = space.free_blocks();
    let owned = Arc::new(Owned::default());
    let running: Vec<_> = (0..threads)
        .map(|me| {
            let (space, owned) = (space.clone(), owned.clone());
            thread::spawn(move || work(&space, &owned, me))
        })
        .collect();
    for thread in running {
        thread.join().unwrap();
    }
    assert_eq!(space.reserved(), (0, 0));
    assert_eq!(space.free_blocks(), free - owned.count());
    check(&space);
}

fn take_promised(space: &Space, owned: &Owned, blocks: u64) -> Vec<BlockRun> {
    let mut left = blocks;
    let mut mine = Vec::new();
    while left > 0 {
        let run = space.alloc(0, left, Funding::Reserved).unwrap().unwrap();
        owned.take(run);
        left -= run.len;
        mine.push(run);
    }
    mine
}

fn free_again(space: &Space, owned: &Owned, mine: Vec<BlockRun>, discard: bool) {
    let mut gone = mine;
    for run in &gone {
        owned.give(*run);
    }
    space.release(&mut gone, discard).unwrap();
}

#[test]
fn promises_are_kept_whoever_comes_first() {
    explore("space: promises", Cost::Medium, || {
        wait_for_ever(true);
        // Eight units, and five blocks of broken ones.
        let free = [
            BlockRun::new(2000, 8 * UNIT),
            BlockRun::new(3001, 3),
            BlockRun::new(3006, 2),
        ];
        together(&volume(16 * MIB, &free), 3, |space, owned, me| {
            for _ in 0..2 {
                let (blocks, units) = (3 + me, 1);
                if !space.reserve(blocks, units, Class::Merge).unwrap() {
                    continue;
                }
                let mut mine = take_promised(space, owned, blocks);
                let unit = space.alloc_unit(Funding::Reserved).unwrap().unwrap();
                owned.take(BlockRun::new(unit, UNIT));
                mine.push(BlockRun::new(unit, UNIT));
                mine.pop().into_iter().for_each(|unit| {
                    free_again(space, owned, vec![unit], false);
                });
                free_again(space, owned, mine, false);
            }
        });
    });
}

#[test]
fn the_last_blocks_of_two_groups_go_to_who_was_promised_them() {
    explore("space: two groups", Cost::Medium, || {
        wait_for_ever(true);
        let free = [
            BlockRun::new(8000, 2 * UNIT),
            BlockRun::new(GROUP_BLOCKS + 101, 1),
            BlockRun::new(GROUP_BLOCKS + 200, UNIT),
        ];
        together(&volume(130 * MIB, &free), 3, |space, owned, me| {
            for _ in 0..2 {
                if me == 0 {
                    let funding = Funding::New(Class::Merge);
                    if let Some(unit) = space.alloc_unit(funding).unwrap() {
                        let unit = BlockRun::new(unit, UNIT);
                        owned.take(unit);
                        free_again(space, owned, vec![unit], false);
                    }
                } else if space.reserve(3 + me, 0, Class::Merge).unwrap() {
                    let mine = take_promised(space, owned, 3 + me);
                    free_again(space, owned, mine, false);
                }
            }
        });
    });
}

#[test]
fn what_is_free_is_promised_while_groups_are_looked_at() {
    explore("space: groups not looked at", Cost::Medium, || {
        wait_for_ever(true);
        let free = [
            BlockRun::new(8000, 2 * UNIT),
            BlockRun::new(GROUP_BLOCKS + 200, 2 * UNIT),
        ];
        together(&volume(130 * MIB, &free), 2, |space, owned, _| {
            assert!(space.reserve(0, 2, Class::Merge).unwrap(), "no space");
            for _ in 0..2 {
                let unit = space.alloc_unit(Funding::Reserved).unwrap().unwrap();
                owned.take(BlockRun::new(unit, UNIT));
            }
        });
    });
}

#[test]
fn data_that_was_promised_finds_units_to_break_while_groups_are_looked_at() {
    explore("space: data in groups not looked at", Cost::Medium, || {
        wait_for_ever(true);
        let free = [
            BlockRun::new(8000, UNIT),
            BlockRun::new(GROUP_BLOCKS + 200, UNIT),
        ];
        together(&volume(130 * MIB, &free), 2, |space, owned, _| {
            assert!(space.reserve(4, 0, Class::Merge).unwrap());
            take_promised(space, owned, 4);
        });
    });
}

#[test]
fn what_is_being_discarded_is_given_to_nobody() {
    explore("space: discards", Cost::Medium, || {
        wait_for_ever(true);
        // A whole word of the bitmap, which is told to the device once it is free.
        let free = [BlockRun::new(2048, 64)];
        together(&volume(16 * MIB, &free), 3, |space, owned, me| {
            let want = [40, 20, 30][me as usize];
            for _ in 0..2 {
                if space.reserve(want, 0, Class::Merge).unwrap() {
                    let mine = take_promised(space, owned, want);
                    free_again(space, owned, mine, true);
                }
            }
        });
    });
}

#[test]
fn what_was_given_is_told_before_it_is_promised() {
    explore("space: moves", Cost::Medium, || {
        wait_for_ever(true);
        let space = Arc::new(volume(16 * MIB, &[BlockRun::new(2000, UNIT)]).open());
        let owned = Owned::default();
        assert!(space.reserve(4, 0, Class::Merge).unwrap());
        let mine = take_promised(&space, &owned, 4);
        let looks = thread::spawn({
            let space = space.clone();
            move || {
                if space.budget.available(Class::Merge).is_ok() {
                    assert_eq!(space.budget.moves().0, 4);
                }
            }
        });
        free_again(&space, &owned, mine, false);
        looks.join().unwrap();
    });
}

#[test]
fn a_block_is_claimed_once() {
    explore("space: claims", Cost::Medium, || {
        wait_for_ever(true);
        let volume = volume(16 * MIB, &[BlockRun::new(2000, 3 * UNIT)]);
        let space = Arc::new(volume.open());
        let threads = [2000, 2003, 2006].map(|start| {
            let space = space.clone();
            thread::spawn(move || space.claim(BlockRun::new(start, 5)).unwrap())
        });
        let claimed: u64 = threads.map(|t| t.join().unwrap()).iter().sum();
        assert_eq!((claimed, space.free_blocks()), (11, 1));
        check(&space);
    });
}
