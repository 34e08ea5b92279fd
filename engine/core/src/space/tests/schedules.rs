//! Schedule tests of reservations, allocations, releases and claims on nearly full volumes.

use std::collections::HashSet;

use super::*;
use cairnfs_disk::sync::explore::{Cost, explore};
use cairnfs_disk::sync::{thread, wait_for_ever};

/// Blocks of a unit.
const UNIT: u64 = NODE_BLOCKS;

/// A volume in which only the blocks of `free` are free.
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

/// The allocated blocks; allocating one twice panics.
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

/// Opens the volume, runs `work` in `threads` threads, and checks all counters.
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
    let mut freed = mine;
    for run in &freed {
        owned.give(*run);
    }
    space.release(&mut freed, discard).unwrap();
}

#[test]
fn concurrent_reservations_are_honoured() {
    explore("space: promises", Cost::Medium, || {
        wait_for_ever(true);
        // Eight units, and five blocks of broken units.
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
fn last_blocks_of_two_groups_go_to_reservation_holders() {
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
fn free_units_can_be_reserved_while_groups_are_counted() {
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
fn reserved_data_can_break_units_while_groups_are_counted() {
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
fn blocks_being_discarded_are_not_allocated() {
    explore("space: discards", Cost::Medium, || {
        wait_for_ever(true);
        // A whole word of the bitmap, which is discarded once it is free.
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
fn freed_blocks_are_counted_before_they_can_be_reserved() {
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
fn concurrent_claims_count_each_block_once() {
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

/// What is given up while an image is unpinned is free in the end, whichever comes first.
#[test]
fn image_unpinned_while_it_is_given_up() {
    explore("space: unpinned", Cost::Medium, || {
        let volume = Volume::new(16 * MIB, &[]);
        let space = Arc::new(volume.open());
        let free = space.free_blocks();
        let funding = Funding::New(Class::Ordinary);
        let runs: Vec<BlockRun> = (0..3)
            .map(|_| space.alloc(0, 8, funding).unwrap().unwrap())
            .collect();
        runs.iter().for_each(|run| space.image_add(*run).unwrap());
        let table = space.pin_image(1, None).unwrap();
        let merge = {
            let space = space.clone();
            thread::spawn(move || {
                for run in runs {
                    space.image_remove(run).unwrap();
                    release(&space, [run]).unwrap();
                }
            })
        };
        let other = {
            let space = space.clone();
            thread::spawn(move || space.unpin_image(false).unwrap())
        };
        space.unpin(&table, false).unwrap();
        other.join().unwrap();
        merge.join().unwrap();
        assert_eq!(space.free_blocks(), free);
        check(&space);
    });
}

/// An image is pinned while another thread still frees what an earlier one held.
#[test]
fn image_pinned_behind_one_that_gives_way() {
    explore("space: pinned again", Cost::Medium, || {
        let volume = Volume::new(16 * MIB, &[]);
        let space = Arc::new(volume.open());
        let funding = Funding::New(Class::Ordinary);
        let [first, second] = [0, 1].map(|_| space.alloc(0, 8, funding).unwrap().unwrap());
        let written = || {
            space.write_image().unwrap();
            space.commit_image();
        };
        let give_up = |run| {
            space.image_remove(run).unwrap();
            release(&space, [run]).unwrap();
        };
        space.image_add(first).unwrap();
        space.image_add(second).unwrap();
        written();
        let free = space.free_blocks();
        let earlier = space.pin_image(1, None).unwrap();
        give_up(first);
        written();
        let other = {
            let (space, earlier) = (space.clone(), earlier.clone());
            thread::spawn(move || space.unpin(&earlier, false).unwrap())
        };
        space.unpin(&earlier, false).unwrap();
        let later = space.pin_image(2, None).unwrap();
        give_up(second);
        other.join().unwrap();
        let mut block = vec![0; BLOCK_SIZE];
        space.read_pinned(&later, 0, &mut block).unwrap();
        assert_eq!(space.free_blocks(), free + 8, "the second run is held");
        space.unpin(&later, false).unwrap();
        assert_eq!(space.free_blocks(), free + 16);
        check(&space);
    });
}
