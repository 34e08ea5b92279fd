//! Placement of allocations, the bitmaps read for them, and the writes and discards of the device.

use super::*;

const ORDINARY: Funding = Funding::New(Class::Ordinary);

#[test]
fn growing_file_stays_contiguous() {
    let volume = Volume::new(512 * MIB, &[]);
    let space = volume.open();
    let mut end = space.alloc(0, 256, ORDINARY).unwrap().unwrap().end();
    for want in [1, 3, 256, 7, 100] {
        let run = space.alloc(end, want, ORDINARY).unwrap().unwrap();
        assert_eq!(run, BlockRun::new(end, want));
        end = run.end();
    }
}

#[test]
fn long_runs_are_contiguous_and_apart_from_nodes() {
    for size in [64 * MIB, 1024 * MIB] {
        let volume = Volume::new(size, &[]);
        let space = volume.open();
        let mut data = space.alloc(0, 256, ORDINARY).unwrap().unwrap();
        let mut node = space.alloc_unit(ORDINARY).unwrap().unwrap();
        for _ in 0..20 {
            let run = space.alloc(0, 256, ORDINARY).unwrap().unwrap();
            assert_eq!(run, BlockRun::new(data.end(), 256));
            data = run;
            let next = space.alloc_unit(ORDINARY).unwrap().unwrap();
            assert_eq!(next, node + NODE_BLOCKS);
            node = next;
        }
    }
}

#[test]
fn small_requests_fill_broken_units_first() {
    let volume = Volume::new(64 * MIB, &[]);
    let space = volume.open();
    let units = space.free_units();
    for _ in 0..40 {
        space.alloc(0, 1, ORDINARY).unwrap().unwrap();
    }
    assert!(space.free_units() >= units - 11);
    let long = space.alloc(0, 250, ORDINARY).unwrap().unwrap();
    assert_eq!(long.len, 250);
    let rest = space.alloc(0, 2, ORDINARY).unwrap().unwrap();
    assert_eq!(
        rest,
        BlockRun::new(long.end(), 2),
        "the rest of the unit that the long run broke"
    );
}

#[test]
fn long_run_is_found_behind_fragmented_group() {
    let volume = Volume::new(512 * MIB, &[]);
    let space = volume.open();
    // The first group keeps only holes of 8 blocks.
    let mut holes = Vec::new();
    loop {
        let run = space.alloc(0, 8, ORDINARY).unwrap().unwrap();
        if run.start >= GROUP_BLOCKS {
            break;
        }
        holes.push(run);
    }
    release(&space, holes.into_iter().step_by(2)).unwrap();
    space
        .slots
        .iter()
        .for_each(|s| s.store(0, Ordering::Relaxed));
    let run = space.alloc(0, 256, ORDINARY).unwrap().unwrap();
    assert_eq!(run.len, 256);
    assert!(run.start >= GROUP_BLOCKS);
}

#[test]
fn open_reads_group_table_only() {
    let volume = Volume::new(16 << 40, &[]);
    assert!(volume.device.inner.allocated_bytes() < 8 * MIB);
    volume.device.reads.lock().clear();
    let space = volume.open();
    let table = BlockRun::new(
        volume.geometry.table_start(0),
        volume.geometry.table_blocks(),
    );
    assert_eq!(*volume.device.reads.lock(), [table]);
    space.alloc(0, 100, ORDINARY).unwrap().unwrap();
    space.alloc_unit(ORDINARY).unwrap().unwrap();
    assert_eq!(volume.device.reads.lock().len(), 3);
}

#[test]
fn units_are_counted_only_as_far_as_needed() {
    // A third of every group is in use, so the lower bound of free units is 0 in every group.
    let size = 40 << 30;
    let geometry = Geometry::for_size(size, None).unwrap();
    let used: Vec<BlockRun> = (0..geometry.groups())
        .map(|g| BlockRun::new(g * GROUP_BLOCKS + 20_000, 11_000))
        .filter(|r| geometry.in_data(r.start, r.len))
        .collect();
    let volume = Volume::new(size, &used);
    let space = volume.open();
    volume.device.reads.lock().clear();
    assert!(space.reserve(1000, 100, Class::Ordinary).unwrap());
    let reads = volume.device.reads.lock().len();
    assert!(reads > 0 && reads < 10, "{reads} bitmaps read");
    let run = space.alloc(0, 1000, Funding::Reserved).unwrap().unwrap();
    assert_eq!(run.len, 1000);
    space.unreserve(0, 100);
    assert!(space.reserve(space.free_blocks(), 0, Class::Merge).unwrap());
    space.unreserve(space.free_blocks(), 0);
    check(&space);
}

#[test]
fn neighbouring_bitmaps_are_written_at_once() {
    let volume = Volume::new(4096 * MIB, &[]);
    let space = volume.open();
    for group in 2..30 {
        let run = BlockRun::new(group * GROUP_BLOCKS + 5, 3);
        space.claim(run).unwrap();
        space.image_add(run).unwrap();
    }
    volume.device.writes.lock().clear();
    space.write_image().unwrap();
    let bitmaps = BlockRun::new(volume.geometry.bitmap_block(2, 1), 28);
    let table = BlockRun::new(volume.geometry.table_start(1), 1);
    assert_eq!(*volume.device.writes.lock(), [bitmaps, table]);
}

#[test]
fn release_discards_words_that_become_free() {
    let volume = Volume::new(256 * MIB, &[]);
    let space = volume.open();
    let first = volume.geometry.data_start().next_multiple_of(64) + 64;
    let discards = |runs: &[BlockRun]| {
        volume.device.discards.lock().clear();
        space.release(&mut runs.to_vec(), true).unwrap();
        check(&space);
        std::mem::take(&mut *volume.device.discards.lock())
    };
    space.claim(BlockRun::new(first, 640)).unwrap();
    // A word is discarded as a whole when its last used blocks are freed, and not before.
    assert_eq!(discards(&[BlockRun::new(first, 60)]), []);
    let word = BlockRun::new(first, 64);
    assert_eq!(
        discards(&[BlockRun::new(first + 62, 2), BlockRun::new(first + 60, 2)]),
        [word]
    );
    // Adjacent words are discarded with one call; a word with a used block splits them.
    let rest = [
        BlockRun::new(first + 320, 320),
        BlockRun::new(first + 64, 128),
        BlockRun::new(first + 193, 127),
    ];
    let expected = [
        BlockRun::new(first + 64, 128),
        BlockRun::new(first + 256, 384),
    ];
    assert_eq!(discards(&rest), expected);
    assert_eq!(
        discards(&[BlockRun::new(first + 192, 1)]),
        [BlockRun::new(first + 192, 64)]
    );
    assert_eq!(space.free_blocks(), volume.data_blocks());
}

#[test]
fn blocks_cannot_be_allocated_during_their_discard() {
    struct Asking {
        inner: MemoryDevice,
        space: Mutex<std::sync::Weak<Space>>,
        asked: Mutex<u32>,
    }
    impl Device for Asking {
        fn size(&self) -> u64 {
            self.inner.size()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.inner.read(offset, buf)
        }
        fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
            self.inner.write(offset, buf)
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            let space = self.space.lock().upgrade().unwrap();
            let discarded = blocks(offset, len);
            // No lock is held, or this would deadlock.
            let run = space.alloc(discarded.start, 64, ORDINARY).unwrap().unwrap();
            assert!(run.end() <= discarded.start || run.start >= discarded.end());
            let claim = space.claim(BlockRun::new(discarded.start, 1));
            assert_eq!(claim.unwrap(), 0);
            *self.asked.lock() += 1;
            Ok(())
        }
    }
    let device = Arc::new(Asking {
        inner: MemoryDevice::new(64 * MIB),
        space: Mutex::default(),
        asked: Mutex::new(0),
    });
    let geometry = Geometry::for_size(64 * MIB, None).unwrap();
    let state = Space::format(&*device, &geometry, true, &[]).unwrap();
    let space = Arc::new(Space::open(device.clone(), geometry, state).unwrap());
    *device.space.lock() = Arc::downgrade(&space);
    let word = geometry.data_start().next_multiple_of(64);
    space.claim(BlockRun::new(word + 10, 10)).unwrap();
    space
        .release(&mut vec![BlockRun::new(word + 10, 10)], true)
        .unwrap();
    assert_eq!(*device.asked.lock(), 1);
    let run = space.alloc(word, 64, ORDINARY).unwrap().unwrap();
    assert_eq!(run, BlockRun::new(word, 64));
}
