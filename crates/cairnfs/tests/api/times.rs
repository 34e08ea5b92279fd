//! Times that are set in place, without a transaction: they are there after a power cut like any
//! others, and cost nothing that is reserved.

use std::sync::Arc;

use cairnfs::device::MemoryDevice;
use cairnfs::fs::FileSystem;
use cairnfs::types::{SetAttr, SetTime, Time, XattrMode};

use super::mechanisms::{copy, create, fresh, open};

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
    let attr = open(copy(device), None).getattr(ino).unwrap();
    (attr.mtime, attr.ctime)
}

fn by(fs: &FileSystem, name: &str) -> u64 {
    let counters = fs.counters();
    counters.iter().find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn times_that_are_set_again_and_again_are_durable_with_the_next_sync() {
    let device = fresh();
    let fs = open(device.clone(), None);
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
    let fs = open(fresh(), None);
    let ino = create(&fs, "file");
    let net = || by(&fs, "bytes_formatted") - by(&fs, "bytes_relogged");
    let before = (net(), by(&fs, "vectors_allocated"), by(&fs, "commits"));
    for secs in 0..10 {
        set(&fs, ino, secs);
    }
    let after = (net(), by(&fs, "vectors_allocated"), by(&fs, "commits"));
    assert_eq!(after, (before.0, before.1, before.2 + 10));
}

#[test]
fn times_are_refused_where_nothing_may_be_changed() {
    let device = fresh();
    let fs = open(device, None);
    let ino = create(&fs, "file");
    fs.close().unwrap();
    let times = SetAttr {
        ctime: Some(at(1)),
        ..SetAttr::default()
    };
    assert!(fs.setattr(ino, &times).is_err());
}
