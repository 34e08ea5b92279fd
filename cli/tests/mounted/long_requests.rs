//! Long requests do not delay other requests.
//!
//! Each kind of long request runs once per event loop, on uncached files, over a device that
//! holds reads back: none of them can end. Other requests must be answered all the same.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use cairnfs::fs::FileSystem;
use cairnfs_disk::format::{BLOCK_SIZE, ROOT_INO};
use cairnfs_disk::types::Creds;
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};

use crate::gate::{EVENT_LOOPS, Held, Mount};
use crate::place::able;

/// Number of single blocks in each file, each followed by a hole: the extents fill many index
/// nodes.
const BLOCKS: u64 = 3000;
const BLOCK: u64 = BLOCK_SIZE as u64;
const LEN: u64 = 2 * BLOCK * BLOCKS;
/// Bytes copied; a copy also fills the holes.
const COPIED: u64 = LEN / 4;

fn scatter(fs: &FileSystem) {
    let creds = Creds { uid: 0, gid: 0 };
    for n in 0..EVENT_LOOPS {
        let name = format!("f{n}");
        let made = fs.mknod(ROOT_INO, name.as_bytes(), 0o100_644, 0, creds);
        let ino = made.unwrap().ino;
        for block in 0..BLOCKS {
            fs.write(ino, 2 * block * BLOCK, &[7; BLOCK_SIZE], false)
                .unwrap();
        }
    }
}

/// Runs `prepare` and then `long` with each of the scattered files, and makes other requests
/// before `long` ends.
fn others_are_answered<T: Send + 'static>(
    prepare: impl Fn(&Path, File) -> T,
    long: impl Fn(T) + Send + Sync + 'static,
) {
    if !able(&[]) {
        return;
    }
    let mount = Mount::filled(scatter);
    let paths = (0..EVENT_LOOPS).map(|n| mount.at(format!("f{n}")));
    let prepared = paths.map(|path| {
        let file = File::options().read(true).write(true).open(&path);
        prepare(&path, file.unwrap())
    });
    let prepared: Vec<_> = prepared.collect();
    fs::create_dir(mount.at("new")).unwrap();
    fs::write(mount.at("new/seen"), b"seen").unwrap();
    mount.gate.hold(Held::Reads);
    let long = Arc::new(long);
    let running = prepared.into_iter().map(|with| {
        let long = Arc::clone(&long);
        thread::spawn(move || long(with))
    });
    let running: Vec<_> = running.collect();
    mount.gate.wait_for(EVENT_LOOPS);
    fs::create_dir(mount.at("new/dir")).unwrap();
    fs::rename(mount.at("new/seen"), mount.at("new/dir/moved")).unwrap();
    assert_eq!(fs::read(mount.at("new/dir/moved")).unwrap(), b"seen");
    assert_eq!(fs::read_dir(mount.at("new")).unwrap().count(), 1);
    mount.gate.open();
    running.into_iter().for_each(|one| one.join().unwrap());
}

/// Needs only the file.
fn opened(_: &Path, file: File) -> File {
    file
}

#[test]
fn copies_do_not_delay_other_requests() {
    let both = |path: &Path, file| {
        let mut new = File::options();
        let new = new.read(true).write(true).create_new(true);
        (file, new.open(path.with_extension("copy")).unwrap())
    };
    others_are_answered(both, |(file, copy)| {
        let (mut from, mut to) = (0, 0);
        while from < COPIED {
            let len = (COPIED - from) as usize;
            let n = copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), len);
            assert!(n.unwrap() > 0);
        }
        assert_eq!(copy.metadata().unwrap().len(), COPIED);
        let mut block = [0; BLOCK_SIZE];
        copy.read_exact_at(&mut block, COPIED - 2 * BLOCK).unwrap();
        assert_eq!(block, [7; BLOCK_SIZE]);
    });
}

#[test]
fn hole_punching_does_not_delay_other_requests() {
    others_are_answered(opened, |file| {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, hole, 0, LEN).unwrap();
        assert_eq!(seek(&file, SeekFrom::Data(0)), Err(rustix::io::Errno::NXIO));
    });
}

#[test]
fn allocations_do_not_delay_other_requests() {
    others_are_answered(opened, |file| {
        fallocate(&file, FallocateFlags::empty(), 0, LEN).unwrap();
        assert_eq!(file.metadata().unwrap().len(), LEN);
    });
}

#[test]
fn truncations_do_not_delay_other_requests() {
    others_are_answered(opened, |file| {
        file.set_len(BLOCK).unwrap();
        assert_eq!(file.metadata().unwrap().len(), BLOCK);
    });
}

#[test]
fn file_removals_do_not_delay_other_requests() {
    let without_name = |path: &Path, file| {
        fs::remove_file(path).unwrap();
        file
    };
    others_are_answered(without_name, drop);
}
