//! The blocks that stat(2) reports for a file on a mount: too few make programs that skip holes
//! lose data.
//!
//! The results count that a program sees after another one has written and closed the file:
//! before anything is on the device, afterwards, and after a remount.
//!
//! Contract: posix

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, seek};
use rustix::io::Errno;

use crate::place::{Place, able, pattern, shell};

/// Bytes of a unit of `st_blocks`.
const UNIT: u64 = 512;

/// Sizes on both sides of all boundaries: units, inline data, blocks.
fn sizes() -> impl Iterator<Item = usize> {
    (1..5000).step_by(97).chain([
        511, 512, 513, 1024, 2047, 2048, 2049, 4095, 4096, 4097, 5000,
    ])
}

/// Makes files of all kinds in the directory `files`.
fn make(place: &Place) {
    let dir = place.at("files");
    fs::create_dir(&dir).unwrap();
    for size in sizes() {
        fs::write(dir.join(format!("size{size}")), pattern(size as u64, size)).unwrap();
    }
    let sparse = |name: &str, size: u64, islands: &[(u64, usize)]| {
        let file = File::create(dir.join(name)).unwrap();
        file.set_len(size).unwrap();
        for (at, len) in islands {
            file.write_all_at(&pattern(*at + 1, *len), *at).unwrap();
        }
    };
    sparse("all hole", 3 << 20, &[]);
    sparse("small hole", 1500, &[]);
    sparse("small data", 1500, &[(1400, 100)]);
    sparse(
        "islands",
        5 << 20,
        &[(0, 10), (70_000, 9000), (1 << 20, 4096)],
    );
    sparse("at the end", 2 << 20, &[((2 << 20) - 700, 700)]);
    sparse("at the beginning", 2 << 20, &[(0, 700)]);
    let file = File::create(dir.join("allocated")).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    file.write_all_at(&pattern(5, 5000), 100_000).unwrap();
}

/// Asserts that every file reports blocks for its data, and that SEEK_DATA finds all of it.
fn assert_files_report_their_data(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let units = path.metadata().unwrap().blocks();
        if let Some(size) = path.to_str().unwrap().split_once("size") {
            let size: u64 = size.1.parse().unwrap();
            assert_eq!(size, bytes.len() as u64);
            assert!(units >= size.div_ceil(UNIT), "{path:?} has {units} units");
        }
        let has_data = bytes.iter().any(|b| *b != 0);
        assert!(units > 0 || !has_data, "{path:?} has no blocks");
        let file = File::open(&path).unwrap();
        let mut at = 0;
        while at < bytes.len() as u64 {
            let data = match seek(&file, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => bytes.len() as u64,
                found => found.unwrap(),
            };
            let hole = &bytes[at as usize..data as usize];
            assert!(hole.iter().all(|b| *b == 0), "{path:?}: data in a hole");
            at = if data < bytes.len() as u64 {
                seek(&file, SeekFrom::Hole(data)).unwrap()
            } else {
                data
            };
        }
    }
}

/// Copies the files with all programs that skip holes, and compares.
fn assert_copies_are_equal(place: &Place) {
    place.sh("rm -rf ../copies; mkdir -p ../copies/{tar,raw,auto,always,rsync}
        tar -cSf ../copies/a.tar -C files .; tar -xf ../copies/a.tar -C ../copies/tar
        tar -cSf ../copies/b.tar --hole-detection=raw -C files .; tar -xf ../copies/b.tar -C ../copies/raw
        cp -r --sparse=auto files/. ../copies/auto
        cp -r --sparse=always files/. ../copies/always
        rsync -rS files/ ../copies/rsync/
        for copy in tar raw auto always rsync; do diff -r files ../copies/$copy; done");
}

#[test]
fn programs_that_skip_holes_copy_all_data() {
    if !able(&["tar", "cp", "rsync", "diff"]) {
        return;
    }
    let mut place = Place::mounted("256M", "");
    make(&place);
    assert_files_report_their_data(&place.at("files"));
    assert_copies_are_equal(&place);
    place.ok(&["sync", "m"]);
    assert_files_report_their_data(&place.at("files"));
    assert_copies_are_equal(&place);
    place.remount("");
    assert_files_report_their_data(&place.at("files"));
    assert_copies_are_equal(&place);
    // Overwritten, and not on the device yet.
    for size in sizes() {
        let path = place.at("files").join(format!("size{size}"));
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&pattern(9, size.min(50)), 0).unwrap();
    }
    assert_files_report_their_data(&place.at("files"));
    assert_copies_are_equal(&place);
    place.finish();
}

/// A block counts once, both while its new contents wait for the write and afterwards.
#[test]
fn overwritten_blocks_count_once() {
    if !able(&["du"]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    let path = place.at("f");
    let units = || path.metadata().unwrap().blocks();
    fs::write(&path, pattern(1, 1 << 20)).unwrap();
    let expected = (1 << 20) / UNIT;
    assert_eq!(units(), expected, "before it is on the device");
    place.ok(&["sync", "m"]);
    assert_eq!(units(), expected);
    let overwrite = |at: u64, len: usize| {
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&pattern(at + 2, len), at).unwrap();
    };
    overwrite(0, 1 << 20);
    assert_eq!(units(), expected, "while it is overwritten");
    overwrite(5000, 100_000);
    assert_eq!(units(), expected, "while it is overwritten again");
    place.ok(&["sync", "m"]);
    assert_eq!(units(), expected, "after that");
    overwrite(1 << 20, 4096);
    assert_eq!(units(), expected + 8, "a block more");
    place.remount("");
    assert_eq!(units(), expected + 8);
    assert_eq!(
        shell(&place.dir(), "du -k f").split('\t').next(),
        Some("1028")
    );
    // Allocated space that is then written counts once.
    let file = File::create(place.at("allocated")).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    file.write_all_at(&pattern(3, 300_000), 4096).unwrap();
    drop(file);
    let units = || place.at("allocated").metadata().unwrap().blocks();
    assert_eq!(units(), expected, "while it is written");
    place.ok(&["sync", "m"]);
    assert_eq!(units(), expected);
    place.finish();
}
