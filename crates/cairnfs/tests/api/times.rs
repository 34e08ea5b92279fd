//! Times that are set in place, without a transaction: they are there after a power cut like any
//! others, and cost nothing that is reserved.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairnfs::device::{Device, MemoryDevice};
use cairnfs::fs::FileSystem;
use cairnfs::types::{SetAttr, SetTime, Time, XattrMode};
use cairnfs::{Error, Result};

use super::engine::{copy, create, fresh, open};

fn at(secs: i64) -> Time {
    Time { secs, nanos: 5 }
}

/// As a kernel does behind a change of its own.
fn set(fs: &FileSystem, ino: u64, secs: i64) {
    let times = SetAttr {
        mtime: Some(SetTime::At(at(secs))),
        ctime: Some(at(secs + 1)),
        ..SetAttr::default()
    };
    let attr = fs.setattr(ino, &times).unwrap();
    assert_eq!((attr.mtime, attr.ctime), (at(secs), at(secs + 1)));
}

fn after_a_cut(device: &Arc<MemoryDevice>, ino: u64) -> (Time, Time) {
    let attr = open(copy(device)).getattr(ino).unwrap();
    (attr.mtime, attr.ctime)
}

fn by(fs: &FileSystem, name: &str) -> u64 {
    let counters = fs.counters();
    counters.iter().find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn times_that_are_set_again_and_again_are_durable_with_the_next_sync() {
    let device = fresh();
    let fs = open(device.clone());
    let ino = create(&fs, "file");
    let syncs: [&dyn Fn(); 4] = [
        &|| fs.fsync(ino, false).unwrap(),
        &|| fs.sync().unwrap(),
        &|| fs.sync().unwrap(),
        &|| fs.merge().unwrap(),
    ];
    for (round, sync) in syncs.iter().cycle().take(12).enumerate() {
        let first = round as i64 * 10;
        for secs in first..first + 3 {
            set(&fs, ino, secs);
        }
        if round / syncs.len() == 1 {
            fs.setxattr(ino, b"user.a", &[7; 400], XattrMode::Set)
                .unwrap();
        }
        set(&fs, ino, first + 4);
        sync();
        let found = after_a_cut(&device, ino);
        assert_eq!(found, (at(first + 4), at(first + 5)), "round {round}");
        // Not synced: nothing is promised, and what was synced is not harmed.
        set(&fs, ino, first + 6);
        assert_eq!(after_a_cut(&device, ino), found, "round {round}");
    }
}

#[test]
fn times_behind_a_change_take_no_log() {
    let fs = open(fresh());
    let ino = create(&fs, "file");
    let net = || by(&fs, "bytes_formatted") - by(&fs, "bytes_relogged");
    let before = (net(), by(&fs, "vectors_allocated"), by(&fs, "commits"));
    for secs in 0..10 {
        set(&fs, ino, secs);
    }
    let after = (net(), by(&fs, "vectors_allocated"), by(&fs, "commits"));
    assert_eq!(after, before);
}

/// A device whose flushes fail from some time on.
struct Failing {
    device: Arc<MemoryDevice>,
    fails: AtomicBool,
}

impl Device for Failing {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.device.write(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        match self.fails.load(Ordering::Relaxed) {
            true => Err(Error::Io {
                op: "flush",
                offset: 0,
                len: 0,
                source: Arc::new(io::Error::other("the device has failed")),
            }),
            false => self.device.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }
}

#[test]
fn times_are_refused_once_the_volume_has_failed() {
    let device = Arc::new(Failing {
        device: fresh(),
        fails: AtomicBool::new(false),
    });
    let fs = open(device.clone());
    let [file, other] = ["file", "other"].map(|name| create(&fs, name));
    set(&fs, file, 1);
    device.fails.store(true, Ordering::Relaxed);
    fs.fsync(other, false).unwrap_err();
    let times = SetAttr {
        ctime: Some(at(9)),
        ..SetAttr::default()
    };
    fs.setattr(file, &times).unwrap_err();
}

#[test]
fn times_wait_with_the_size_of_what_was_written() {
    let device = fresh();
    let fs = open(device.clone());
    let ino = create(&fs, "file");
    fs.write(ino, 0, &[3; 5000], false).unwrap();
    set(&fs, ino, 7);
    fs.fsync(ino, true).unwrap();
    let again = open(copy(&device));
    assert_eq!(again.getattr(ino).unwrap().size, 5000);
    set(&fs, ino, 8);
    fs.fsync(ino, false).unwrap();
    assert_eq!(after_a_cut(&device, ino), (at(8), at(9)));
}
