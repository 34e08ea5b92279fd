//! A slow write of data: no other thread waits for it, and its fsync does not return early. A small
//! amount of data is written together with the log record, for which other threads wait in any
//! case.

use std::sync::Arc;

use cairnfs::Result;
use cairnfs::fs::FileSystem;
use cairnfs_disk::types::Creds;
use cairnfs_sim::disk::SimDisk;
use cairnfs_sim::record::{VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::tree::{ROOT, Tree};

fn make(fs: &FileSystem, name: &str) -> u64 {
    let made = fs.mknod(ROOT, name.as_bytes(), 0o100_644, 0, Creds::default());
    let ino = made.unwrap().ino;
    fs.forget(ino, 1);
    ino
}

/// The size of a file if the process were killed at this point.
fn size_after_kill(disk: &SimDisk, ino: u64) -> Option<u64> {
    let copy = Arc::new(SimDisk::new(disk.image(), false));
    let fs = FileSystem::open_device(copy, &options(2)).unwrap();
    Tree::read(&fs).unwrap().nodes.get(&ino).map(|n| n.size)
}

#[test]
fn slow_data_write_of_fsync_does_not_delay_other_threads() {
    slow_data_write_does_not_delay_other_threads(|fs, slow| fs.fsync(slow, false));
}

#[test]
fn slow_data_write_of_sync_does_not_delay_other_threads() {
    slow_data_write_does_not_delay_other_threads(|fs, _| fs.sync());
}

fn slow_data_write_does_not_delay_other_threads(sync: fn(&FileSystem, u64) -> Result<()>) {
    let image = fresh_volume(VOLUME_SIZE).unwrap();
    let disk = Arc::new(SimDisk::new(image, false));
    let fs = FileSystem::open_device(disk.clone(), &options(1)).unwrap();
    let (slow, quick) = (make(&fs, "slow"), make(&fs, "quick"));
    fs.sync().unwrap();
    fs.write(slow, 0, &[1; 100_000], false).unwrap();
    disk.hold_write(0);
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| sync(&fs, slow));
        disk.wait_held();
        // All of these calls return while the other thread still waits.
        fs.write(quick, 0, &[2; 20_000], false).unwrap();
        fs.fsync(quick, false).unwrap();
        make(&fs, "more");
        assert_eq!(size_after_kill(&disk, quick), Some(20_000));
        assert_eq!(size_after_kill(&disk, slow), Some(0));
        assert!(!syncing.is_finished());
        disk.release();
        syncing.join().unwrap().unwrap();
    });
    assert_eq!(size_after_kill(&disk, slow), Some(100_000));
}
