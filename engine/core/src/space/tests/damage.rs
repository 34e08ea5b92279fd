//! Damaged tables and bitmaps, and invalid calls, are reported with block and reason.

use super::*;
use cairnfs_disk::format::{checksum, group::GroupEntry};
use zerocopy::{FromBytes, IntoBytes};

fn change(volume: &Volume, block: u64, change: impl FnOnce(&mut [u8])) {
    let mut bytes = vec![0; BLOCK_SIZE];
    let offset = block * BLOCK_SIZE as u64;
    volume.device.read(offset, &mut bytes).unwrap();
    change(&mut bytes);
    volume.device.write(offset, &bytes).unwrap();
}

/// Changes the entry of a group, and updates the table's checksum and sum to match.
fn change_entry(volume: &mut Volume, group: usize, edit: impl FnOnce(&mut GroupEntry)) {
    let mut crc = 0;
    let mut free = 0;
    change(volume, volume.geometry.table_start(0), |bytes| {
        let at = group * 8;
        let mut entry = GroupEntry::read_from_bytes(&bytes[at..at + 8]).unwrap();
        edit(&mut entry);
        bytes[at..at + 8].copy_from_slice(entry.as_bytes());
        crc = checksum::crc(bytes);
        for raw in bytes.chunks(8) {
            free += u64::from(GroupEntry::read_from_bytes(raw).unwrap().free.get());
        }
    });
    volume.state.crc = crc;
    volume.state.free_blocks = free;
}

fn damage<T>(result: Result<T>, block: u64) -> String {
    match result.map(|_| ()) {
        Err(Error::Corrupt(found)) => {
            assert_eq!(found.block, block, "{found}");
            found.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn damaged_group_table_is_found_at_open() {
    let mut volume = Volume::new(256 * MIB, &[]);
    let table = volume.geometry.table_start(0);
    volume.state.free_blocks += 1;
    assert!(damage(volume.try_open(), table).contains("free blocks"));
    volume.state.free_blocks -= 1;
    change(&volume, table, |bytes| bytes[9] ^= 1);
    assert!(damage(volume.try_open(), table).contains("checksum"));
    change(&volume, table, |bytes| bytes[9] ^= 1);
    volume.try_open().unwrap();
    change_entry(&mut volume, 1, |e| e.copy = 2);
    assert!(damage(volume.try_open(), table).contains("copy"));
    change_entry(&mut volume, 1, |e| e.copy = 0);
    change_entry(&mut volume, 1, |e| e.free = 40_000.into());
    assert!(damage(volume.try_open(), table).contains("at most 32768"));
}

#[test]
fn damaged_bitmap_is_found_on_first_use() {
    let volume = Volume::new(256 * MIB, &[]);
    let bitmap = volume.geometry.bitmap_block(1, 0);
    change(&volume, bitmap, |bytes| bytes[100] ^= 4);
    let space = volume.open();
    space
        .claim(BlockRun::new(volume.geometry.data_start(), 1))
        .unwrap();
    let run = BlockRun::new(GROUP_BLOCKS + 5, 1);
    assert!(damage(space.claim(run), bitmap).contains("checksum"));
    let funding = Funding::New(Class::Merge);
    damage(space.alloc(run.start, 1, funding), bitmap);
    let kept = space.reserved();
    assert_eq!(kept, (0, 0), "a failed allocation keeps its promise");
}

#[test]
fn verification_finds_a_damaged_bitmap_again_and_again_with_few_reads() {
    let volume = Volume::new(1024 * MIB, &[]);
    let space = volume.open();
    volume.device.reads.lock().clear();
    space.verify_first().unwrap();
    space.verify_all().unwrap();
    assert_eq!(volume.device.reads.lock().len(), 1);
    let bitmap = volume.geometry.bitmap_block(5, 0);
    change(&volume, bitmap, |bytes| bytes[100] ^= 4);
    // What was verified is not read again.
    space.verify_all().unwrap();
    let space = volume.open();
    for _ in 0..2 {
        assert!(damage(space.verify_first(), bitmap).contains("checksum"));
        assert!(damage(space.verify_all(), bitmap).contains("checksum"));
    }
    // The bitmaps of groups that are in use are in memory.
    change(&volume, bitmap, |bytes| bytes[100] ^= 4);
    let space = volume.open();
    space.claim(BlockRun::new(5 * GROUP_BLOCKS, 1)).unwrap();
    change(&volume, bitmap, |bytes| bytes[100] ^= 4);
    space.verify_all().unwrap();
}

#[test]
fn what_is_only_read_has_spare_blocks_if_a_bitmap_is_damaged_and_the_log_is_merged() {
    let volume = Volume::new(256 * MIB, &[]);
    let (end, total) = (3 * GROUP_BLOCKS, volume.geometry.total_blocks);
    let open = |merges| {
        let (device, state) = (volume.device.clone(), volume.state);
        Space::open_for_reading(device, volume.geometry, state, merges).unwrap()
    };
    assert_eq!(open(true).end(), total);
    for group in 0..2 {
        let bitmap = volume.geometry.bitmap_block(group, 0);
        change(&volume, bitmap, |bytes| bytes[100] ^= 4);
    }
    assert_eq!(open(false).end(), total);
    let space = open(true);
    assert!(space.unread().is_some() && space.end() >= end);
    let unit = space
        .alloc_unit(Funding::New(Class::Merge))
        .unwrap()
        .unwrap();
    assert!(unit >= total, "{unit}");
    let run = BlockRun::new(unit, NODE_BLOCKS);
    space.image_add(run).unwrap();
    volume.device.writes.lock().clear();
    space.write_image().unwrap();
    space.commit_image();
    let table = volume.geometry.table_start(1);
    assert_eq!(*volume.device.writes.lock(), [BlockRun::new(table, 1)]);
    space.image_remove(run).unwrap();
    release(&space, [run]).unwrap();
}

#[test]
fn bitmaps_that_contradict_the_table_or_the_geometry_are_found() {
    // The flipped bits: of one data block, or of a data block and one outside the data area.
    for (group, bits, words) in [
        (
            1,
            &[17][..],
            "expected 32768 free blocks in group 1, found 32767",
        ),
        (0, &[3, 32_000], "block 3 free"),
        (2, &[32_767, 5], "block 98303 free"),
    ] {
        let mut volume = Volume::new(300 * MIB, &[]);
        let bitmap = volume.geometry.bitmap_block(group as u64, 0);
        let mut crc = 0;
        change(&volume, bitmap, |bytes| {
            for bit in bits {
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            crc = checksum::crc(bytes);
        });
        change_entry(&mut volume, group, |e| e.crc = crc.into());
        let space = volume.open();
        let said = damage(space.lock(group).map(|_| ()), bitmap);
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn invalid_calls_are_refused_and_change_nothing() {
    let volume = Volume::new(256 * MIB, &[]);
    let space = volume.open();
    let first = volume.geometry.data_start();
    let run = BlockRun::new(first + 10, 10);
    space.claim(run).unwrap();
    let end = volume.geometry.total_blocks;
    assert_eq!(space.claim(BlockRun::new(first + 19, 1)).unwrap(), 0);
    for outside in [
        BlockRun::new(first - 1, 2),
        BlockRun::new(end - 1, 2),
        BlockRun::new(u64::MAX, 2),
        BlockRun::new(first, 0),
    ] {
        damage(space.claim(outside), outside.start);
        damage(space.image_add(outside), outside.start);
        if outside.len > 0 {
            damage(release(&space, [outside]), outside.start);
        }
    }
    damage(release(&space, [BlockRun::new(first + 15, 6)]), first + 20);
    damage(
        release(&space, [run, BlockRun::new(first + 12, 1)]),
        first + 12,
    );
    damage(space.image_add(BlockRun::new(first + 9, 2)), first + 9);
    space.image_add(run).unwrap();
    damage(space.image_add(BlockRun::new(first + 19, 1)), first + 19);
    damage(space.image_remove(BlockRun::new(first + 19, 2)), first + 20);
    damage(release(&space, [run]), first + 10);
    assert_eq!(used(&space, |m| &m.live).len(), 10);
    assert_eq!(used(&space, |m| &m.image).len(), 10);
    check(&space);
}

#[test]
fn format_refuses_overlap_and_ignores_old_bytes() {
    let volume = Volume::new(256 * MIB, &[]);
    let first = volume.geometry.data_start();
    let format =
        |fresh, used: &[BlockRun]| Space::format(&*volume.device, &volume.geometry, fresh, used);
    let overlap = [BlockRun::new(first, 5), BlockRun::new(first + 4, 1)];
    assert!(matches!(format(true, &overlap), Err(Error::Invalid(_))));
    let outside = [BlockRun::new(first - 1, 1)];
    assert!(matches!(format(true, &outside), Err(Error::Invalid(_))));
    for group in 0..2 {
        change(&volume, volume.geometry.bitmap_block(group, 0), |b| {
            b.fill(0x5a)
        });
    }
    let across = BlockRun::new(GROUP_BLOCKS - 3, 6);
    let state = format(false, &[across, BlockRun::new(first, 1)]).unwrap();
    let space = Space::open(volume.device.clone(), volume.geometry, state).unwrap();
    let expected = std::iter::once(first).chain(across.start..across.end());
    assert!(used(&space, |m| &m.live).into_iter().eq(expected));
    check(&space);
}
