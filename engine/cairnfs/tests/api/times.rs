//! Times are ordered like the calls that set them, and are not changed for a front end that
//! maintains them itself. Times that are set in place, without a transaction, survive a power cut
//! like others and take no reservation.
//!
//! Contract: posix.times

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairnfs::device::MemoryDevice;
use cairnfs::fs::{FileSystem, Options};
use cairnfs_disk::types::{Fallocate, SetAttr, SetTime, Time, XattrMode};

use super::engine::{FailingFlushes, OWNER, ROOT, copy, create, fresh, open, open_with};

fn at(secs: i64) -> Time {
    Time { secs, nanos: 5 }
}

/// Sets the times as a kernel does after a change in its own cache.
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

fn counter(fs: &FileSystem, name: &str) -> u64 {
    let counters = fs.counters();
    counters.iter().find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn last_of_repeated_times_is_durable_after_sync() {
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
        // Without a sync the new times need not be durable, and the synced ones are kept.
        set(&fs, ino, first + 6);
        assert_eq!(after_a_cut(&device, ino), found, "round {round}");
    }
}

#[test]
fn times_set_after_change_take_no_log_space() {
    let fs = open(fresh());
    let ino = create(&fs, "file");
    let net = || counter(&fs, "bytes_formatted") - counter(&fs, "bytes_relogged");
    let before = (
        net(),
        counter(&fs, "vectors_allocated"),
        counter(&fs, "commits"),
    );
    for secs in 0..10 {
        set(&fs, ino, secs);
    }
    let after = (
        net(),
        counter(&fs, "vectors_allocated"),
        counter(&fs, "commits"),
    );
    assert_eq!(after, before);
}

#[test]
fn setting_times_fails_after_volume_failure() {
    let device = FailingFlushes::new();
    let fs = open(device.clone());
    let [file, other] = ["file", "other"].map(|name| create(&fs, name));
    set(&fs, file, 1);
    device.fail();
    fs.fsync(other, false).unwrap_err();
    let times = SetAttr {
        ctime: Some(at(9)),
        ..SetAttr::default()
    };
    fs.setattr(file, &times).unwrap_err();
}

#[test]
fn times_after_fdatasync_are_durable_with_next_fsync() {
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

/// Executes the calls that set times, one after the other, and passes to `each` the latest time
/// that the call set.
fn calls(fs: &FileSystem, ino: u64, round: u32, each: &mut dyn FnMut(&str, Time)) {
    let changed = |ino: u64| {
        let attr = fs.getattr(ino).unwrap();
        attr.ctime.max(attr.mtime)
    };
    let [a, b] = ["a", "b"].map(|name| format!("{name}{round}"));
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let made = fs.mknod(ROOT, a, 0o100_644, 0, OWNER).unwrap();
    each("mknod", made.btime);
    fs.write(ino, u64::from(round), b"bytes", false).unwrap();
    each("write", changed(ino));
    each("mkdir", fs.mkdir(ROOT, b, 0o755, OWNER).unwrap().btime);
    let now = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    each("setattr", fs.setattr(ino, &now).unwrap().mtime);
    let value = round.to_le_bytes();
    fs.setxattr(ino, b"user.a", &value, XattrMode::Set).unwrap();
    each("setxattr", changed(ino));
    let size = SetAttr {
        size: Some(1000 + u64::from(round)),
        ..SetAttr::default()
    };
    each("truncate", fs.setattr(ino, &size).unwrap().mtime);
    fs.link(made.ino, ROOT, format!("l{round}").as_bytes())
        .unwrap();
    each("link", changed(made.ino));
    let what = Fallocate::Allocate { keep_size: true };
    fs.fallocate(ino, 1 << 20, 4096 * (1 + u64::from(round)), what, false)
        .unwrap();
    each("fallocate", changed(ino));
    fs.unlink(ROOT, a).unwrap();
    each("unlink", changed(ROOT));
}

#[test]
fn times_follow_order_of_calls() {
    for kernel_clock in [false, true] {
        let options = Options {
            kernel_clock,
            ..Options::default()
        };
        let fs = open_with(fresh(), options);
        let ino = create(&fs, "file");
        let mut last = at(0);
        for round in 0..300 {
            calls(&fs, ino, round, &mut |name, time| {
                assert!(
                    last <= time,
                    "round {round}, {name}: {time:?} after {last:?}"
                );
                last = time;
            });
        }
    }
}

#[test]
fn without_content_times_changes_leave_times_alone() {
    let options = Options {
        content_times: false,
        ..Options::default()
    };
    let fs = open_with(fresh(), options);
    let [ino, other] = ["file", "other"].map(|name| create(&fs, name));
    fs.write(other, 0, &[7; 9000], false).unwrap();
    set(&fs, ino, 1);
    let keep_size = true;
    let changes: [(&str, &dyn Fn()); 7] = [
        ("write", &|| {
            fs.write(ino, 0, &[1; 9000], true).unwrap();
        }),
        ("copy", &|| {
            fs.copy_range(other, 0, ino, 100, 5000, false).unwrap();
        }),
        ("allocate", &|| {
            fs.fallocate(ino, 0, 1 << 20, Fallocate::Allocate { keep_size }, false)
                .unwrap();
        }),
        ("zero", &|| {
            fs.fallocate(ino, 10, 5000, Fallocate::ZeroRange { keep_size }, false)
                .unwrap();
        }),
        ("punch", &|| {
            fs.fallocate(ino, 0, 8192, Fallocate::PunchHole, false)
                .unwrap();
        }),
        ("size", &|| {
            let set = SetAttr {
                size: Some(3000),
                ..SetAttr::default()
            };
            fs.setattr(ino, &set).unwrap();
        }),
        ("set-id bits", &|| {
            let set = SetAttr {
                kill_privileges: true.into(),
                ..SetAttr::default()
            };
            fs.setattr(ino, &set).unwrap();
        }),
    ];
    for (what, change) in changes {
        change();
        fs.sync().unwrap();
        let attr = fs.getattr(ino).unwrap();
        assert_eq!((attr.mtime, attr.ctime), (at(1), at(2)), "{what}");
    }
    // The engine maintains the times of inodes that are not regular files.
    let before = fs.getattr(ROOT).unwrap().mtime;
    create(&fs, "third");
    assert!(before < fs.getattr(ROOT).unwrap().mtime);
}

#[test]
fn long_write_does_not_move_ctime_backwards() {
    let fs = FileSystem::open_device(fresh(), &Options::default()).unwrap();
    let file = create(&fs, "file");
    let data = vec![1; 64 << 20];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fs.write(file, 0, &data, false).unwrap();
            done.store(true, Ordering::Relaxed);
        });
        let mut last = fs.getattr(file).unwrap().ctime;
        while !done.load(Ordering::Relaxed) {
            let mode = SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            };
            fs.setattr(file, &mode).unwrap();
            for _ in 0..2 {
                let now = fs.getattr(file).unwrap().ctime;
                assert!(now >= last, "{now:?} after {last:?}");
                last = now;
            }
        }
    });
}
