//! An interrupted call, a failed writeback or sync, and a file without names cannot go on as if
//! nothing had happened.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cairnfs::fs::FileSystem;
use cairnfs::{Error, Result};
use cairnfs_disk::device::Device;
use cairnfs_disk::types::{Creds, SetAttr};
use cairnfs_sim::disk::{Fault, Kind, SimDisk};
use cairnfs_sim::record::options;
use cairnfs_sim::tree::{ROOT, Tree};
use cairnfs_sim::workload::{Runner, base_volume};

use crate::support::{Count, every_step, reopen, sound, trees};

/// A disk whose driver panics once, in a write or flush.
struct Panics {
    disk: SimDisk,
    left: AtomicI64,
}

impl Panics {
    fn count(&self) {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if left == 0 {
            // Unwinds like a panic, but prints nothing.
            resume_unwind(Box::new("the driver broke"));
        }
    }
}

impl Device for Panics {
    fn size(&self) -> u64 {
        self.disk.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.disk.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.count();
        self.disk.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.count();
        self.disk.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.discard(offset, len)
    }
}

/// Contract: failure.write
#[test]
fn panic_in_calling_thread_stops_volume() {
    let work = every_step();
    let trees = trees(&work);
    let mut count = Count::default();
    for n in 0.. {
        let device = Arc::new(Panics {
            disk: SimDisk::new(work.start.clone(), false),
            left: AtomicI64::new(i64::MAX),
        });
        let fs = FileSystem::open_device(device.clone(), &options(4)).unwrap();
        device.left.store(n, Ordering::SeqCst);
        let mut runner = Runner::new(&fs);
        let broken = work.steps.iter().position(|step| {
            let result = catch_unwind(AssertUnwindSafe(|| runner.run(step)));
            result.is_err()
        });
        let Some(at) = broken else {
            device.left.store(i64::MAX, Ordering::SeqCst);
            break;
        };
        count.add("panics", 1);
        let failure = fs.failure().unwrap();
        let late = fs.mkdir(ROOT, b"late", 0o755, Creds::default());
        assert!(
            matches!(late, Err(Error::Stopped(_))),
            "{late:?}, {failure}"
        );
        assert!(fs.sync().is_err() && fs.merge().is_err());
        let tree = Tree::read(&fs).unwrap();
        let known = [&trees[at], &trees[at + 1]];
        assert!(
            known.iter().any(|t| t.is_but_for_times(&tree)),
            "{}",
            work.steps[at]
        );
        assert!(fs.close().is_err());
        sound(&device.disk.image()).unwrap();
        reopen(&device.disk.image()).unwrap();
    }
    count.print("broken off");
}

#[test]
fn unlinked_file_cannot_be_linked_again() {
    let disk = Arc::new(SimDisk::new(base_volume().unwrap(), false));
    let fs = FileSystem::open_device(disk.clone(), &options(1)).unwrap();
    let open = fs.lookup(ROOT, b"f").unwrap().ino;
    fs.unlink(ROOT, b"f").unwrap();
    let again = fs.link(open, ROOT, b"again");
    assert!(matches!(again, Err(Error::NotFound)), "{again:?}");
    // A file that never had a name may get its first one, and is then like all other files.
    let unnamed = fs.tmpfile(ROOT, 0o600, Creds::default()).unwrap().ino;
    fs.link(unnamed, ROOT, b"first").unwrap();
    fs.link(unnamed, ROOT, b"second").unwrap();
    fs.unlink(ROOT, b"first").unwrap();
    fs.unlink(ROOT, b"second").unwrap();
    let again = fs.link(unnamed, ROOT, b"third");
    assert!(matches!(again, Err(Error::NotFound)), "{again:?}");
    fs.forget(open, 1);
    fs.forget(unnamed, 3);
    fs.close().unwrap();
    sound(&disk.image()).unwrap();
}

#[test]
fn attributes_of_unnamed_file_are_logged_with_first_link() {
    let disk = Arc::new(SimDisk::new(base_volume().unwrap(), false));
    let fs = FileSystem::open_device(disk.clone(), &options(1)).unwrap();
    let commits = || fs.counters().iter().find(|c| c.0 == "commits").unwrap().1;
    let set = SetAttr {
        mode: Some(0o640),
        uid: Some(7),
        ..SetAttr::default()
    };
    let lost = fs.lookup(ROOT, b"f").unwrap().ino;
    fs.unlink(ROOT, b"f").unwrap();
    let unnamed = fs.tmpfile(ROOT, 0o600, Creds::default()).unwrap().ino;
    let before = commits();
    for ino in [lost, unnamed] {
        let attr = fs.setattr(ino, &set).unwrap();
        assert_eq!((attr.mode & 0o777, attr.uid, attr.nlink), (0o640, 7, 0));
        assert_eq!(fs.getattr(ino).unwrap(), attr);
    }
    assert_eq!(commits(), before);
    fs.link(unnamed, ROOT, b"first").unwrap();
    fs.forget(lost, 1);
    fs.forget(unnamed, 2);
    fs.close().unwrap();
    sound(&disk.image()).unwrap();
    let fs = FileSystem::open_device(disk, &options(2)).unwrap();
    let attr = fs.lookup(ROOT, b"first").unwrap();
    assert_eq!((attr.mode & 0o777, attr.uid, attr.nlink), (0o640, 7, 1));
    assert!(matches!(fs.lookup(ROOT, b"f"), Err(Error::NotFound)));
}

#[test]
fn failed_read_in_writeback_leaks_no_space() {
    // After the reopen, the file's extents and the bitmaps are not in memory.
    let start = base_volume().unwrap();
    let mut failed = 0;
    for n in 0.. {
        let disk = Arc::new(SimDisk::new(start.clone(), false));
        let fs = FileSystem::open_device(disk.clone(), &options(1)).unwrap();
        let ino = fs.lookup(ROOT, b"f").unwrap().ino;
        let free = fs.statfs().free;
        fs.write(ino, 0, &[1; 8192], false).unwrap();
        fs.write(ino, 40_000, &[1; 8192], false).unwrap();
        disk.plan(Kind::Read, n, Fault::Error);
        let result = fs.fsync(ino, false);
        if disk.hit().is_none() {
            break;
        }
        failed += u64::from(result.is_err());
        fs.fsync(ino, false).unwrap();
        let none = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        fs.setattr(ino, &none).unwrap();
        fs.merge().unwrap();
        // The three blocks that the file had are free too.
        assert_eq!(fs.statfs().free, free + 3, "read {n}");
        fs.forget(ino, 1);
        fs.close().unwrap();
        sound(&disk.image()).unwrap();
    }
    println!("failed reads in writeback: {failed}");
    assert!(failed > 0);
}

#[test]
fn failed_sync_keeps_all_files_dirty() {
    let start = base_volume().unwrap();
    let mut failed = 0;
    for n in 0.. {
        let disk = Arc::new(SimDisk::new(start.clone(), false));
        let fs = FileSystem::open_device(disk.clone(), &options(1)).unwrap();
        let d = fs.lookup(ROOT, b"d").unwrap().ino;
        for (dir, name) in [(ROOT, b"f"), (ROOT, b"g"), (d, b"h")] {
            let ino = fs.lookup(dir, name).unwrap().ino;
            fs.write(ino, 0, &[9; 4096], false).unwrap();
        }
        disk.plan(Kind::Read, n, Fault::Error);
        failed += u64::from(fs.sync().is_err());
        if disk.hit().is_none() {
            break;
        }
        fs.sync().unwrap();
        let tree = Tree::read(&fs).unwrap();
        disk.cut();
        assert_eq!(reopen(&disk.image()).unwrap(), tree, "read {n}");
    }
    println!("failed syncs: {failed}");
    assert!(failed > 0);
}
