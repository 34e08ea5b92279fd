//! A volume is filled by whatever calls until it refuses, emptied in any order, and filled again.
//!
//! Whatever filled it, in whatever order of syncs, merges, kills and openings: the volume does not
//! stop, removing and cutting off is never refused, all space comes back, and small files fill nearly
//! all that was there. `CAIRNFS_FILL_SEEDS` sets how many volumes are tried, `CAIRNFS_FILL_FROM` the
//! first one's seed, `CAIRNFS_FILL_ROUNDS` how often each is filled, `CAIRNFS_FILL_MIB` the size of
//! the largest.

use std::sync::Arc;

use cairnfs::device::MemoryDevice;
use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs::types::{Creds, Fallocate};

use crate::filling::{Filled, MIXES, Mix};
use crate::seen::{assert_sound, options};

const BLOCK: u64 = 4096;
/// Blocks that an empty volume may have fewer than when it was new: its index's.
const INDEX: u64 = 16;
/// Sizes of volumes, in MiB.
const SIZES: [u64; 8] = [16, 24, 32, 64, 128, 256, 512, 1024];

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |v| v.parse().unwrap())
}

/// Fills and empties a volume; what is free afterwards is as much as before. Gives the names made and
/// the kills.
fn rounds(mib: u64, seed: u64, rounds: u64) -> (u64, u64) {
    let mut volume = Filled::new(mib << 20, seed, seed % 2 == 1);
    let free = volume.fs.statfs().free;
    for round in 0..rounds {
        // A few seeds of a few rounds try all mixes.
        let mix = MIXES[((seed * 4 + round) % MIXES.len() as u64) as usize];
        volume.reopen();
        volume.syncs = [0, 0, 10, 300][volume.numbers.below(4) as usize];
        volume.disturbances = [0, 0, 3000][volume.numbers.below(3) as usize];
        let what = format!("{mib} MiB, seed {seed}, round {round}, {mix:?}");
        volume.fill(mix);
        let left = volume.fs.statfs();
        // Overwriting and punching leave blocks between others, which the index cannot use.
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
fn a_volume_is_filled_and_emptied_again_and_again() {
    let seeds = setting("CAIRNFS_FILL_SEEDS", 6);
    let from = setting("CAIRNFS_FILL_FROM", 0);
    let each = setting("CAIRNFS_FILL_ROUNDS", 4);
    let most = setting("CAIRNFS_FILL_MIB", 32);
    let sizes = SIZES.iter().filter(|mib| **mib <= most).count() as u64;
    let (mut names, mut kills) = (0, 0);
    for seed in from..from + seeds {
        let mib = SIZES[(seed % sizes) as usize];
        let (made, killed) = rounds(mib, seed, each);
        names += made;
        kills += killed;
        println!("seed {seed}, {mib} MiB: {made} names, {killed} kills");
    }
    println!("{seeds} volumes, each filled and emptied {each} times: {names} names, {kills} kills");
}

/// Merges in the background go in many steps, each of which writes most nodes of the values anew, while
/// the foreground takes all space that it can get.
#[test]
fn large_values_fill_a_volume_beside_merges() {
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

/// Files of `file` bytes fill a volume while all of them wait in memory; then each can be removed or
/// cut off, whatever removes it, until nothing is left, and the volume takes as many again.
fn one_size_is_emptied(size: u64, file: u64, then: Then, workers: bool) {
    let what = format!("{} MiB, {file} bytes, {then:?}", size >> 20);
    let mut volume = Filled::new(size, file ^ size, workers);
    let free = volume.fs.statfs().free;
    let mut before: Option<usize> = None;
    for _ in 0..2 {
        volume.fill(Mix::Files(file));
        let held = volume.names.len();
        assert!(
            before.is_none_or(|b: usize| b.abs_diff(held) * 100 <= b),
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

#[test]
fn files_that_all_waited_can_be_removed() {
    for then in [Then::Sync, Then::Reopen, Then::SyncAndReopen] {
        for (size, file) in [(64, 20_000), (64, 4200), (200, 20_000)] {
            one_size_is_emptied(size << 20, file, then, size == 200);
        }
    }
}

/// How much of what `df` says is available small files get into a volume, in percent.
fn share(size: u64, file: u64, item: u64, workers: bool) -> u64 {
    let device = Arc::new(MemoryDevice::new(size));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    // All of it may wait in memory.
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
fn small_files_fill_what_is_available() {
    // An inode item, an entry and its name take 170 bytes beside the contents.
    for (size, file) in [(32 << 20, 1500), (64 << 20, 100)] {
        for workers in [false, true] {
            let share = share(size, file, 170, workers);
            println!("{} MiB, files of {file} bytes: {share} %", size >> 20);
            assert!(share >= 95, "files of {file} bytes fill {share} %");
        }
    }
}

#[test]
fn what_waits_counts_as_used() {
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

/// Space allocated ahead may be written, and written over, on a volume that is full.
#[test]
fn allocated_space_is_written_on_a_full_volume() {
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
