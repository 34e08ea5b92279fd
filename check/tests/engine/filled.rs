//! Fills a volume with various calls until it refuses them, empties it in any order, and fills it
//! again.
//!
//! Whatever fills the volume, and in whatever order syncs, merges, kills and reopens happen: the
//! volume does not stop, removal and truncation are never refused, all space becomes free again,
//! and small files fill nearly all the space that was available. `CAIRNFS_FILL_SEEDS` is the number
//! of volumes tried, `CAIRNFS_FILL_FROM` the first seed, `CAIRNFS_FILL_ROUNDS` how often each is
//! filled, and `CAIRNFS_FILL_MIB` the size of the largest in MiB.
//!
//! Contract: failure.space, failure.removal

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::{Creds, Fallocate};
use cairnfs_tier::{size, size_from};

use super::filling::{Filled, MIXES, Mix};
use super::seen::{assert_sound, options};

const BLOCK: u64 = 4096;
/// Number of blocks by which the index of an emptied volume may exceed that of a new one.
const INDEX: u64 = 16;
/// Sizes of volumes, in MiB.
const SIZES: [u64; 8] = [16, 24, 32, 64, 128, 256, 512, 1024];

/// Fills and empties a volume several times; afterwards as much space is free as before. Returns
/// the number of names made and of kills.
fn rounds(mib: u64, seed: u64, rounds: u64) -> (u64, u64) {
    let mut volume = Filled::new(mib << 20, seed, seed % 2 == 1);
    let free = volume.fs.statfs().free;
    for round in 0..rounds {
        // A few seeds with a few rounds each try all mixes.
        let mix = MIXES[((seed * 4 + round) % MIXES.len() as u64) as usize];
        volume.reopen();
        volume.syncs = [0, 0, 10, 300][volume.numbers.below(4) as usize];
        volume.disturbances = [0, 0, 3000][volume.numbers.below(3) as usize];
        let what = format!("{mib} MiB, seed {seed}, round {round}, {mix:?}");
        volume.fill(mix);
        let left = volume.fs.statfs();
        // Overwriting and punching leave single free blocks between used ones, which the index
        // cannot use.
        let part = if mix.scatters() { 8 } else { 16 };
        assert!(left.available * part < free, "{what}: {left:?} of {free}");
        volume.disturb();
        volume.disturb();
        volume.empty();
        let now = volume.fs.statfs().free;
        assert!(now + INDEX >= free, "{what}: {now} of {free}");
        assert!(volume.fs.failure().is_none(), "{what}");
    }
    volume.fs.close().unwrap();
    assert_sound(&*volume.device, "emptied");
    (volume.made, volume.kills)
}

#[test]
fn volume_can_be_filled_and_emptied_repeatedly() {
    let seeds = size_from("CAIRNFS_FILL_SEEDS", 1, 6);
    let from = size_from("CAIRNFS_FILL_FROM", 0, 0);
    let each = size_from("CAIRNFS_FILL_ROUNDS", 4, 4);
    let most = size_from("CAIRNFS_FILL_MIB", 24, 32);
    let sizes = SIZES.iter().filter(|mib| **mib <= most).count() as u64;
    let (names, kills) = (AtomicU64::new(0), AtomicU64::new(0));
    let next = AtomicU64::new(from);
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= from + seeds {
            break;
        }
        let mib = SIZES[(seed % sizes) as usize];
        let (made, killed) = rounds(mib, seed, each);
        names.fetch_add(made, Ordering::Relaxed);
        kills.fetch_add(killed, Ordering::Relaxed);
        println!("seed {seed}, {mib} MiB: {made} names, {killed} kills");
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (names, kills) = (names.into_inner(), kills.into_inner());
    println!("{seeds} volumes, each filled and emptied {each} times: {names} names, {kills} kills");
}

/// Merges in the background take many steps, each of which rewrites most nodes of the values, while
/// the foreground takes all the space that it can get.
#[test]
fn large_values_fill_volume_during_merges() {
    for seed in [3, 9] {
        let mut volume = Filled::new(16 << 20, seed, true);
        let free = volume.fs.statfs().free;
        for round in 0..6 {
            volume.syncs = [0, 300][round % 2];
            volume.fill(Mix::Attributes(5000));
            volume.empty();
            let now = volume.fs.statfs().free;
            assert!(now + INDEX >= free, "round {round}: {now} of {free}");
        }
        volume.fs.close().unwrap();
    }
}

/// What happens between the last write that fits and the first removal.
#[derive(Debug, Clone, Copy)]
enum Then {
    Sync,
    Reopen,
    SyncAndReopen,
}

/// Fills a volume with files of `file` bytes whose data is all in memory. Then every file can be
/// removed or truncated until none is left, and the volume takes as many again.
fn one_size_is_emptied(size: u64, file: u64, then: Then, workers: bool) {
    let what = format!("{} MiB, {file} bytes, {then:?}", size >> 20);
    let mut volume = Filled::new(size, file ^ size, workers);
    let free = volume.fs.statfs().free;
    let mut before: Option<usize> = None;
    for _ in 0..2 {
        volume.fill(Mix::Files(file));
        // The calls that are refused last are those that make a name or those that write to it, as it
        // comes: up to 64 names more have no contents, and take the room of at most one file.
        let held = volume.whole(file);
        assert!(
            before.is_none_or(|b: usize| b.abs_diff(held) <= 1),
            "{what}: {held}, before {before:?}"
        );
        before = Some(held);
        if !matches!(then, Then::Reopen) {
            volume.fs.sync().unwrap();
        }
        if !matches!(then, Then::Sync) {
            volume.reopen();
        }
        volume.empty();
        let now = volume.fs.statfs().free;
        assert!(now + INDEX >= free, "{what}: {now} of {free}");
    }
    println!("{what}: {before:?} files");
    volume.fs.close().unwrap();
    assert_sound(&*volume.device, &what);
}

/// Contract: failure.removal
#[test]
fn files_with_unwritten_data_can_be_removed_when_full() {
    for then in [Then::Sync, Then::Reopen, Then::SyncAndReopen] {
        for (mib, file) in [(64, 20_000), (64, 4200), (200, 20_000)] {
            // With workers once in the short tier.
            let workers = mib == 200;
            if !workers || size(matches!(then, Then::SyncAndReopen), true) {
                one_size_is_emptied(mib << 20, file, then, workers);
            }
        }
    }
}

/// The percentage of the space reported as available that small files can fill.
fn share(size: u64, file: u64, item: u64, workers: bool) -> u64 {
    let device = Arc::new(MemoryDevice::new(size));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    // All data may stay in memory.
    let waiting = Options {
        cache_budget: 512 << 20,
        ..options(workers)
    };
    let fs = FileSystem::open_device(device, &waiting).unwrap();
    let available = fs.statfs().available * BLOCK;
    let data = vec![5; file as usize];
    let mut made = 0;
    loop {
        let name = format!("{made}");
        let Ok(attr) = fs.mknod(1, name.as_bytes(), 0o100_644, 0, Creds::default()) else {
            break;
        };
        fs.forget(attr.ino, 1);
        if fs.write(attr.ino, 0, &data, false).is_err() {
            break;
        }
        made += 1;
    }
    fs.sync().unwrap();
    made * (file + item) * 100 / available
}

#[test]
fn small_files_fill_the_available_space() {
    // An inode item, an entry and its name take 170 bytes besides the contents.
    for (bytes, file) in [(size(16, 32) << 20, 1500), (size(32, 64) << 20, 100)] {
        for workers in [false, true] {
            let share = share(bytes, file, 170, workers);
            println!("{} MiB, files of {file} bytes: {share} %", bytes >> 20);
            assert!(share >= 95, "files of {file} bytes fill {share} %");
        }
    }
}

#[test]
fn unwritten_data_counts_as_used_space() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let waiting = Options {
        cache_budget: 512 << 20,
        ..options(false)
    };
    let fs = FileSystem::open_device(device, &waiting).unwrap();
    let before = fs.statfs().free;
    for i in 0..100 {
        let name = format!("{i}");
        let ino = fs
            .mknod(1, name.as_bytes(), 0o100_644, 0, Creds::default())
            .unwrap()
            .ino;
        fs.write(ino, 0, &vec![1; 40_960], false).unwrap();
    }
    let waits = fs.statfs().free;
    assert!(before - waits >= 1000, "{waits} of {before} free");
    fs.sync().unwrap();
    fs.merge().unwrap();
    let placed = fs.statfs().free;
    assert!(placed.abs_diff(waits) <= 64, "{waits}, then {placed} free");
}

/// Preallocated space can be written and overwritten on a full volume.
#[test]
fn full_volume_allows_writing_preallocated_space() {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(true)).unwrap();
    let make = |name: &[u8]| {
        fs.mknod(1, name, 0o100_644, 0, Creds::default())
            .unwrap()
            .ino
    };
    let ahead = make(b"ahead");
    let len = 4 << 20;
    let what = Fallocate::Allocate { keep_size: false };
    fs.fallocate(ahead, 0, len, what, false).unwrap();
    let rest = make(b"rest");
    let mut at = 0;
    while let Ok(n) = fs.write(rest, at, &vec![9; 65_536], false) {
        at += n as u64;
    }
    for round in 1..4u8 {
        for at in (0..len).step_by(65_536) {
            let written = fs.write(ahead, at, &vec![round; 65_536], false);
            assert_eq!(written.unwrap(), 65_536, "round {round} at {at}");
        }
        fs.fsync(ahead, false).unwrap();
        let mut read = vec![0; len as usize];
        fs.read(ahead, 0, &mut read).unwrap();
        assert!(read.iter().all(|b| *b == round));
    }
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}
