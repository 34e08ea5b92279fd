//! Several threads sync at once: each file is durable once its sync has returned, whichever thread
//! was the flush leader.
//!
//! The disk events differ from run to run, so a failure has no id for a replay.
//!
//! Contract: durable.fsync

use std::collections::HashSet;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, FsyncRequest, Options};
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::types::Creds;
use cairnfs_sim::disk::SimDisk;
use cairnfs_sim::image::Image;
use cairnfs_sim::record::{VOLUME_SIZE, crowded, fresh_volume, options};
use cairnfs_sim::states::{Cursor, mix};
use cairnfs_sim::tree::{ROOT, Tree};
use cairnfs_tier::size;
use parking_lot::Mutex;

const THREADS: u64 = 4;
const FILES: u64 = 12;

/// A file whose sync had returned after this many events.
struct Promised {
    events: usize,
    ino: u64,
    bytes: Vec<u8>,
}

/// Every other round has many workers besides the threads that sync.
fn options_of(round: u64) -> Options {
    match round % 2 {
        0 => options(round),
        _ => crowded(round),
    }
}

/// The data that a thread writes to a file: inline, one block, or several blocks.
fn contents(thread: u64, file: u64) -> Vec<u8> {
    let len = [100, 4096, 9000][(mix(thread, file) % 3) as usize];
    vec![(1 + thread * FILES + file) as u8; len]
}

/// Syncs a file with each of the calls that promise durability in turn.
fn make_durable(fs: &FileSystem, ino: u64, file: u64) {
    let wish = FsyncRequest {
        ino,
        data_only: false,
    };
    match file % 3 {
        0 => fs.fsync(ino, false).unwrap(),
        1 => fs.sync_through(fs.sequence()).unwrap(),
        _ => fs.fsync_each(&[wish]).remove(0).unwrap(),
    }
}

fn work(fs: &FileSystem, disk: &SimDisk, thread: u64, promised: &Mutex<Vec<Promised>>) {
    let creds = Creds::default();
    for file in 0..size(FILES / 2, FILES) {
        let name = format!("{thread}.{file}");
        let ino = fs.mknod(ROOT, name.as_bytes(), 0o100_644, 0, creds);
        let ino = ino.unwrap().ino;
        let bytes = contents(thread, file);
        fs.write(ino, 0, &bytes, false).unwrap();
        make_durable(fs, ino, file);
        fs.forget(ino, 1);
        let events = disk.recorded();
        let kept = Promised { events, ino, bytes };
        promised.lock().push(kept);
        if (thread + file).is_multiple_of(7) {
            fs.merge().unwrap();
        }
    }
}

fn assert_kept(image: Image, at: usize, promised: &[Promised]) {
    let disk = Arc::new(SimDisk::new(image, false));
    let report = check(&*disk, &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    let fs = FileSystem::open_device(disk.clone(), &options(9)).unwrap();
    let tree = Tree::read(&fs).unwrap();
    disk.cut();
    for file in promised.iter().filter(|p| p.events <= at) {
        let node = tree.nodes.get(&file.ino);
        let node = node.unwrap_or_else(|| panic!("inode {} is lost at {at}", file.ino));
        let found: Vec<u8> = node.blocks.values().flatten().copied().collect();
        assert!(found == file.bytes, "inode {} is not whole", file.ino);
    }
}

/// Contract: durable.sync
#[test]
fn concurrent_fsyncs_keep_every_promised_file() {
    let (mut states, mut disks, mut most) = (0u64, HashSet::new(), 0);
    for round in 0..size(2, 6) {
        let start = fresh_volume(VOLUME_SIZE).unwrap();
        let disk = Arc::new(SimDisk::new(start.clone(), true));
        disk.slow_down();
        let fs = FileSystem::open_device(disk.clone(), &options_of(round)).unwrap();
        let promised = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (fs, disk, promised) = (&fs, &disk, &promised);
                scope.spawn(move || work(fs, disk, thread, promised));
            }
        });
        disk.cut();
        let promised = promised.into_inner();
        let events = disk.take_events();
        let mut cursor = Cursor::new(start, &events);
        while cursor.step() {
            let at = cursor.at();
            let more = promised.iter().any(|p| p.events == at);
            most = most.max(cursor.pending());
            for fates in cursor.choices(more) {
                let image = cursor.image(&fates);
                disks.insert(image.digest());
                states += 1;
                assert_kept(image, at, &promised);
            }
        }
    }
    assert!(most > 1, "no two writes were ever unflushed");
    println!(
        "threads that sync at once: {states} crash states recovered, {} distinct disks, up to {most} unflushed writes",
        disks.len()
    );
}
