//! Space is allocated in a file while its dirty data is written back: by another thread, or by the
//! allocation itself to free reserved space.
//!
//! Contract: failure.space

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::{Creds, Fallocate};

use super::seen::{assert_sound, options};

const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };
const BLOCK: u64 = 4096;

fn volume(size: u64) -> (Arc<MemoryDevice>, Arc<FileSystem>) {
    let device = Arc::new(MemoryDevice::new(size));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    (device, fs)
}

fn make(fs: &FileSystem, name: &[u8]) -> u64 {
    let who = Creds::default();
    fs.mknod(1, name, 0o100_644, 0, who).unwrap().ino
}

/// A file with one extent.
fn begun(fs: &FileSystem) -> u64 {
    let file = make(fs, b"file");
    fs.write(file, 0, &[1; 4096], false).unwrap();
    fs.fsync(file, false).unwrap();
    file
}

#[test]
fn allocation_may_write_back_its_own_file() {
    let (device, fs) = volume(32 << 20);
    let file = begun(&fs);
    let removed = make(&fs, b"removed");
    fs.write(removed, 0, &vec![8; 4 << 20], false).unwrap();
    fs.forget(removed, 1);
    let rest = make(&fs, b"rest");
    let mut at = 0;
    while fs.statfs().available > 200 {
        at += fs.write(rest, at, &[9; 65_536], false).unwrap() as u64;
    }
    fs.sync().unwrap();
    fs.merge().unwrap();
    // The freed blocks are available only after a merge.
    fs.unlink(1, b"removed").unwrap();
    fs.write(file, 5 * BLOCK, &[5; 4096], false).unwrap();
    fs.fallocate(file, 0, 4 << 20, KEEP, false).unwrap();
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

#[test]
fn allocation_during_fsync_loses_no_data() {
    let (device, fs) = volume(64 << 20);
    let file = begun(&fs);
    let blocks = || (0..3000).map(|i| 5 + 3 * i);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs.fsync(file, false).unwrap();
            }
        });
        for block in blocks() {
            fs.write(file, block * BLOCK, &[7; 4096], false).unwrap();
            let at = block * BLOCK;
            fs.fallocate(file, at, BLOCK, KEEP, false).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let lost = blocks().filter(|block| {
        let mut read = [0; 4096];
        fs.read(file, block * BLOCK, &mut read).unwrap();
        read != [7; 4096]
    });
    assert_eq!(lost.count(), 0, "blocks that were written read otherwise");
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}
