//! Pinned images: what they have is not reused, and everything is free when they are unpinned.

use super::*;

/// Allocates and gives to the image `count` runs of `len` blocks, and writes the image.
fn index_has(space: &Space, count: u64, len: u64) -> Vec<BlockRun> {
    let runs: Vec<BlockRun> = (0..count)
        .map(|_| {
            let funding = Funding::New(Class::Ordinary);
            space.alloc(0, len, funding).unwrap().unwrap()
        })
        .collect();
    runs.iter().for_each(|run| space.image_add(*run).unwrap());
    written(space);
    runs
}

fn written(space: &Space) {
    space.write_image().unwrap();
    space.commit_image();
}

/// Removes a run from the image and frees it.
fn give_up(space: &Space, run: BlockRun) {
    space.image_remove(run).unwrap();
    release(space, [run]).unwrap();
}

/// The blocks of the data area that a pinned image has.
fn pinned(space: &Space, table: &PinnedTable) -> Vec<u64> {
    let mut blocks = Vec::new();
    let mut add = |run: BlockRun| {
        blocks.extend(run.start..run.end());
        Ok(())
    };
    space.each_pinned(table, &mut add).unwrap();
    blocks
}

#[test]
fn pinned_blocks_are_not_reused() {
    let volume = Volume::new(200 * MIB, &[]);
    let space = volume.open();
    let runs = index_has(&space, 20, 50);
    let free = space.free_blocks();
    let table = space.pin_image(7, None).unwrap();
    assert!(matches!(space.pin_image(8, None), Err(Error::Busy(_))));
    let before = used(&space, |maps| &maps.image);
    give_up(&space, runs[3]);
    // What the image has gained since is free at once.
    let later = index_has(&space, 1, 30)[0];
    assert_eq!(space.free_blocks(), free - 30);
    give_up(&space, later);
    assert_eq!(space.free_blocks(), free);
    // A part of a run that is released together with others.
    space.image_remove(runs[4]).unwrap();
    let again = index_has(&space, 1, 9)[0];
    space.image_remove(again).unwrap();
    release(&space, [runs[4], again]).unwrap();
    assert_eq!(space.free_blocks(), free);
    assert_eq!(pinned(&space, &table), before);
    check(&space);
    written(&space);
    assert_eq!(pinned(&space, &table), before);
    space.unpin(&table, false).unwrap();
    assert_eq!(space.free_blocks(), free + 100);
    assert!(matches!(
        space.each_pinned(&table, |_| Ok(())),
        Err(Error::GaveWay)
    ));
    check(&space);
    assert!(!space.unpin_image(false).unwrap(), "nothing is pinned");
}

#[test]
fn image_that_holds_nothing_does_not_give_way() {
    let volume = Volume::new(200 * MIB, &[]);
    let space = volume.open();
    let runs = index_has(&space, 2, 50);
    let table = space.pin_image(7, None).unwrap();
    assert!(!space.unpin_image(false).unwrap());
    assert!(space.is_pinned(&table));
    give_up(&space, runs[1]);
    assert!(space.unpin_image(false).unwrap());
    assert!(!space.is_pinned(&table));
    check(&space);
}

/// The table and the bitmaps of a pinned image are those of a volume that has just them.
#[test]
fn pinned_image_opens_as_free_space() {
    let volume = Volume::new(200 * MIB, &[]);
    let space = volume.open();
    let runs = index_has(&space, 20, 50);
    written(&space);
    let table = space.pin_image(7, None).unwrap();
    let (before, free) = (used(&space, |maps| &maps.image), table.free_blocks());
    runs.iter().for_each(|run| give_up(&space, *run));
    written(&space);
    let copy = Arc::new(MemoryDevice::new(200 * MIB));
    let geometry = volume.geometry;
    let block = |at: u64, bytes: &[u8]| copy.write(at * BLOCK_SIZE as u64, bytes).unwrap();
    let bytes = table.encode(geometry.table_blocks());
    block(geometry.table_start(0), &bytes);
    for group in 0..geometry.groups() {
        let mut bytes = vec![0; BLOCK_SIZE];
        space.read_pinned(&table, group, &mut bytes).unwrap();
        block(geometry.bitmap_block(group, 0), &bytes);
    }
    let state = TableState {
        copy: 0,
        crc: cairnfs_disk::format::checksum::crc(&bytes),
        free_blocks: free,
    };
    let opened = Space::open(copy, geometry, state).unwrap();
    assert_eq!(used(&opened, |maps| &maps.live), before);
    check(&opened);
}

/// Nothing that a merge needs is refused for the sake of what is pinned; other requests are.
#[test]
fn pinned_image_gives_way_to_merges() {
    let volume = Volume::new(16 * MIB, &[]);
    let space = volume.open();
    let runs = index_has(&space, 100, 4);
    let table = space.pin_image(7, None).unwrap();
    runs.iter().for_each(|run| give_up(&space, *run));
    while space
        .alloc_unit(Funding::New(Class::Delete))
        .unwrap()
        .is_some()
    {}
    assert!(space.is_pinned(&table));
    let left = space.free_units();
    for _ in 0..left {
        assert!(
            space
                .alloc_unit(Funding::New(Class::Merge))
                .unwrap()
                .is_some()
        );
    }
    assert!(space.is_pinned(&table));
    assert!(
        space
            .alloc_unit(Funding::New(Class::Merge))
            .unwrap()
            .is_some()
    );
    assert!(!space.is_pinned(&table));
    check(&space);
}

/// Which bitmaps have changed is known from a pinned image that was shipped on.
#[test]
fn changed_bitmaps_are_known() {
    let volume = Volume::new(600 * MIB, &[]);
    let space = volume.open();
    let changed = |table: &PinnedTable| -> Vec<u64> {
        let groups = 0..volume.geometry.groups();
        groups.filter(|group| table.is_changed(*group)).collect()
    };
    let all: Vec<u64> = (0..volume.geometry.groups()).collect();
    let change = |group: u64| {
        let run = BlockRun::new(group * GROUP_BLOCKS + 20_000, 1);
        space.claim(run).unwrap();
        space.image_add(run).unwrap();
        written(&space);
        give_up(&space, run);
        written(&space);
    };
    change(1);
    let first = space.pin_image(1, None).unwrap();
    assert_eq!(changed(&first), all);
    space.compare_images_with(&first);
    space.unpin(&first, false).unwrap();
    change(2);
    // One that is not shipped.
    let second = space.pin_image(2, Some(1)).unwrap();
    assert_eq!(changed(&second), [2]);
    change(3);
    space.unpin(&second, false).unwrap();
    let third = space.pin_image(3, Some(1)).unwrap();
    assert_eq!(changed(&third), [2, 3]);
    change(4);
    space.compare_images_with(&third);
    space.unpin(&third, false).unwrap();
    let fourth = space.pin_image(4, Some(3)).unwrap();
    assert_eq!(changed(&fourth), [4]);
    space.compare_images_with(&fourth);
    space.unpin(&fourth, false).unwrap();
    // The same name again, because nothing but copies of bitmaps has changed.
    let same = space.pin_image(4, Some(4)).unwrap();
    space.unpin(&fourth, false).unwrap();
    assert!(space.is_pinned(&same));
    space.compare_images_with(&same);
    space.unpin(&same, false).unwrap();
    let again = space.pin_image(6, Some(4)).unwrap();
    assert_eq!(changed(&again), Vec::<u64>::new());
    space.unpin(&again, false).unwrap();
    let other = space.pin_image(5, Some(1)).unwrap();
    assert_eq!(changed(&other), all);
}
