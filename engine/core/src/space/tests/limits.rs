//! Nearly full volumes: reservations hold, the reserve of units survives fragmentation, and each
//! class stops at its own limit.

use super::*;

/// Allocates single blocks until none are left for the class.
fn fill(space: &Space, class: Class) -> Vec<u64> {
    let mut blocks = Vec::new();
    while let Some(run) = space.alloc(0, 1, Funding::New(class)).unwrap() {
        blocks.extend(run.start..run.end());
    }
    blocks
}

#[test]
fn single_blocks_leave_units_to_merges() {
    for size in [16 * MIB, 200 * MIB] {
        let volume = Volume::new(size, &[]);
        let space = volume.open();
        let kept = space.kept_blocks() / 4;
        assert!(kept >= 64 && kept * 4 * 8 < volume.data_blocks());
        let blocks = fill(&space, Class::Ordinary);
        assert_eq!(blocks.len() as u64, volume.data_blocks() - 4 * kept);
        assert_eq!(space.available(Class::Ordinary).unwrap(), 0);
        assert!(!space.reserve(0, 1, Class::Ordinary).unwrap());
        check(&space);
        for left in (space.standing(Class::Delete)..kept).rev() {
            space
                .alloc_unit(Funding::New(Class::Delete))
                .unwrap()
                .unwrap();
            assert_eq!(space.free_units(), left);
        }
        assert_eq!(space.alloc_unit(Funding::New(Class::Delete)).unwrap(), None);
        while space
            .alloc_unit(Funding::New(Class::Merge))
            .unwrap()
            .is_some()
        {}
        assert_eq!(space.free_blocks(), 0);
        check(&space);
    }
}

#[test]
fn reserved_space_survives_filling_the_volume() {
    let volume = Volume::new(16 * MIB, &[]);
    let space = volume.open();
    assert!(space.reserve(500, 40, Class::Ordinary).unwrap());
    let before = space.free_blocks();
    let taken = fill(&space, Class::Merge);
    assert_eq!(taken.len() as u64, before - 500 - 160);
    check(&space);
    for i in 0..500 {
        let run = space.alloc(0, 500 - i, Funding::Reserved).unwrap().unwrap();
        space.unreserve(0, 0);
        if run.len > 1 {
            // Free all blocks except one, and reserve them again.
            release(&space, [BlockRun::new(run.start + 1, run.len - 1)]).unwrap();
            assert!(space.reserve(run.len - 1, 0, Class::Merge).unwrap());
        }
    }
    for _ in 0..40 {
        space.alloc_unit(Funding::Reserved).unwrap().unwrap();
    }
    assert_eq!((space.free_blocks(), space.reserved()), (0, (0, 0)));
    check(&space);
}

#[test]
fn reservations_are_exact_at_the_limit() {
    let volume = Volume::new(16 * MIB, &[]);
    let space = volume.open();
    let all = space.available(Class::Ordinary).unwrap();
    assert_eq!(all, volume.data_blocks() - space.kept_blocks());
    assert!(!space.reserve(all + 1, 0, Class::Ordinary).unwrap());
    assert!(!space.reserve(all - 3, 1, Class::Ordinary).unwrap());
    assert!(space.reserve(all - 4, 1, Class::Ordinary).unwrap());
    assert_eq!(space.available(Class::Ordinary).unwrap(), 0);
    assert!(space.reserve(4, 0, Class::Delete).unwrap());
    space.unreserve(all, 1);
    assert_eq!(space.available(Class::Ordinary).unwrap(), all);
}

#[test]
fn limits_are_exact_before_any_bitmap_was_read() {
    let size = 16 * MIB;
    let first = Geometry::for_size(size, None).unwrap().data_start();
    let volume = Volume::new(size, &[BlockRun::new(first, 2000)]);
    let most = volume.data_blocks() - 2000 - volume.open().kept_blocks();
    assert_eq!(volume.open().free_units(), 0, "known without reading");
    assert_eq!(volume.open().available(Class::Ordinary).unwrap(), most);
    let funding = Funding::New(Class::Ordinary);
    let run = volume.open().alloc(0, 3000, funding).unwrap();
    assert_eq!(run.map(|r| r.len), Some(most));
}

#[test]
fn fragmented_volume_has_no_units_but_all_blocks() {
    let size = 132 * MIB;
    let geometry = Geometry::for_size(size, None).unwrap();
    let used: Vec<BlockRun> = (geometry.data_start()..geometry.total_blocks)
        .filter(|b| b % 4 == 1)
        .map(|b| BlockRun::new(b, 1))
        .collect();
    let volume = Volume::new(size, &used);
    let space = volume.open();
    assert_eq!(space.alloc_unit(Funding::New(Class::Merge)).unwrap(), None);
    assert_eq!(space.free_units(), 0);
    let free = space.free_blocks();
    assert_eq!(free, volume.data_blocks() - used.len() as u64);
    let mut got = 0;
    while let Some(run) = space.alloc(0, 200, Funding::New(Class::Merge)).unwrap() {
        assert!(run.len <= 3);
        got += run.len;
    }
    assert_eq!((got, space.free_blocks()), (free, 0));
    check(&space);
}

#[test]
fn blocks_freed_one_by_one_become_units_again() {
    let volume = Volume::new(16 * MIB, &[]);
    let space = volume.open();
    let units = space.free_units();
    let blocks = fill(&space, Class::Merge);
    assert_eq!((space.free_blocks(), space.free_units()), (0, 0));
    for block in blocks.iter().rev() {
        release(&space, [BlockRun::new(*block, 1)]).unwrap();
    }
    assert_eq!(space.free_units(), units);
    check(&space);
}

#[test]
fn claim_does_not_take_reserved_space() {
    let volume = Volume::new(16 * MIB, &[]);
    let space = volume.open();
    assert!(space.reserve(space.free_blocks(), 0, Class::Merge).unwrap());
    let first = volume.geometry.data_start();
    assert!(matches!(
        space.claim(BlockRun::new(first, 1)),
        Err(Error::NoSpace)
    ));
    space.unreserve(1, 0);
    space.claim(BlockRun::new(first, 1)).unwrap();
    check(&space);
}
