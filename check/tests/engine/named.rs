//! Regression tests for single histories.
//!
//! Contract: atomic

use std::sync::Arc;

use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::types::{Creds, Fallocate, SetAttr, XattrMode};

fn device(size: u64, log: Option<u64>) -> Arc<dyn Device> {
    let d = MemoryDevice::new(size);
    make_device(
        &d,
        &MakeOptions {
            log_size: log,
            ..MakeOptions::default()
        },
        &mut |_, _| (),
    )
    .unwrap();
    Arc::new(d)
}
fn with_budget(budget: usize) -> Options {
    Options {
        workers: false,
        cache_budget: budget,
        durability_interval: None,
        ..Options::default()
    }
}
fn open(d: &Arc<dyn Device>, budget: usize) -> Arc<FileSystem> {
    FileSystem::open_device(d.clone(), &with_budget(budget)).unwrap()
}
fn creds() -> Creds {
    Creds { uid: 0, gid: 0 }
}
fn file(fs: &FileSystem, name: &str) -> u64 {
    fs.mknod(1, name.as_bytes(), 0o100644, 0, creds())
        .unwrap()
        .ino
}
fn size_to(n: u64) -> SetAttr {
    SetAttr {
        size: Some(n),
        ..SetAttr::default()
    }
}

/// Ends the use of a volume as a kill does, and opens it again.
fn kill(fs: Arc<FileSystem>, device: &Arc<dyn Device>, budget: usize) -> Arc<FileSystem> {
    std::mem::forget(fs);
    open(device, budget)
}

#[test]
fn punch_hole_in_small_file() {
    let d = device(64 << 20, None);
    let fs = open(&d, 64 << 20);
    let a = file(&fs, "a");
    fs.write(a, 0, &[7; 100], false).unwrap();
    fs.fallocate(a, 0, 4096, Fallocate::PunchHole, false)
        .unwrap();
    let mut buf = [1; 100];
    fs.read(a, 0, &mut buf).unwrap();
    assert_eq!(buf, [0; 100]);
}

#[test]
fn zero_range_in_small_file() {
    let d = device(64 << 20, None);
    let fs = open(&d, 64 << 20);
    let a = file(&fs, "a");
    fs.write(a, 0, &[7; 100], false).unwrap();
    fs.fallocate(a, 0, 8192, Fallocate::ZeroRange { keep_size: true }, false)
        .unwrap();
    let mut buf = [1; 100];
    fs.read(a, 0, &mut buf).unwrap();
    assert_eq!(buf, [0; 100]);
}

#[test]
fn many_mounts_without_close() {
    let d = device(64 << 20, None);
    for _ in 0..1100 {
        std::mem::forget(open(&d, 8 << 20));
    }
}

#[test]
fn removed_large_file_frees_its_space() {
    let d = device(512 << 20, None);
    let fs = open(&d, 64 << 20);
    let before = fs.statfs().free;
    let a = file(&fs, "a");
    for i in 0..100u64 {
        fs.write(a, i << 20, &vec![7; 1 << 20], false).unwrap();
    }
    fs.sync().unwrap();
    fs.forget(a, 1);
    fs.unlink(1, b"a").unwrap();
    fs.sync().unwrap();
    assert!(
        fs.statfs().free + 100 > before,
        "{} of {before} blocks free",
        fs.statfs().free
    );
}

#[test]
fn truncate_of_unlinked_file_keeps_its_orphan_item() {
    let d = device(512 << 20, None);
    let fs = open(&d, 64 << 20);
    let a = file(&fs, "a");
    for i in 0..600u64 {
        fs.write(a, i * 8192, &[7; 4096], false).unwrap();
    }
    fs.sync().unwrap();
    fs.unlink(1, b"a").unwrap();
    fs.setattr(a, &size_to(0)).unwrap();
    fs.sync().unwrap();
    let fs = kill(fs, &d, 64 << 20);
    let left = fs.getattr(a);
    assert!(left.is_err(), "{left:?}");
}

/// The attributes of an orphan are removed in several transactions; each shared value loses its
/// uses, also if the process is killed first.
#[test]
fn removed_orphan_releases_shared_values() {
    for killed in [false, true] {
        let d = device(128 << 20, None);
        let mut fs = open(&d, 64 << 20);
        let (gone, stays) = (file(&fs, "gone"), file(&fs, "stays"));
        let value = |n: usize| vec![n as u8; [100, 400, 5000][n % 3]];
        for n in 0..1000 {
            let set = |ino| {
                let name = format!("user.{n}");
                let set = fs.setxattr(ino, name.as_bytes(), &value(n % 60), XattrMode::Set);
                set.unwrap();
            };
            set(gone);
            if n < 20 {
                set(stays);
            }
        }
        fs.merge().unwrap();
        fs.unlink(1, b"gone").unwrap();
        fs.merge().unwrap();
        let shared = || {
            let report = check(&*d, &CheckOptions::default(), &mut |_| {}).unwrap();
            assert!(report.is_clean(), "{:#?}", report.findings);
            (report.stats.xattrs, report.stats.shared_values)
        };
        assert_eq!(shared(), (1020, 60), "it is in use");
        if killed {
            fs = kill(fs, &d, 64 << 20);
        } else {
            fs.forget(gone, 1);
        }
        fs.merge().unwrap();
        assert_eq!(shared(), (20, 20), "killed: {killed}");
        fs.unlink(1, b"stays").unwrap();
        if !killed {
            fs.forget(stays, 1);
        }
        fs.close().unwrap();
        assert_eq!(shared(), (0, 0), "killed: {killed}");
    }
}

#[test]
fn replay_in_steps_keeps_logged_data() {
    let d = device(128 << 20, Some(32 << 20));
    let fs = open(&d, 1 << 30);
    // More metadata than a small budget holds, before the data.
    for i in 0..9000 {
        let n = file(&fs, &format!("meta{i}"));
        fs.forget(n, 1);
    }
    fs.sync().unwrap();
    let mut files = Vec::new();
    for i in 0..70u64 {
        let n = file(&fs, &format!("data{i}"));
        fs.write(n, 0, &vec![i as u8 + 1; 1 << 20], false).unwrap();
        fs.fsync(n, false).unwrap();
        files.push(n);
    }
    let fs = kill(fs, &d, 8 << 20);
    let mut bad = Vec::new();
    for (i, n) in files.iter().enumerate() {
        let mut buf = vec![0; 1 << 20];
        match fs.read(*n, 0, &mut buf) {
            Ok(len) if len == buf.len() && buf.iter().all(|b| *b == i as u8 + 1) => {}
            other => bad.push((i, format!("{other:?}"))),
        }
    }
    assert!(
        bad.is_empty(),
        "{} bad: {:?}; failure {:?}",
        bad.len(),
        bad.first(),
        fs.failure()
    );
    fs.close().unwrap();
}

#[test]
fn orphan_removed_in_log_leaves_index() {
    for merged in [false, true] {
        let d = device(64 << 20, None);
        let fs = open(&d, 64 << 20);
        let a = file(&fs, "a");
        fs.unlink(1, b"a").unwrap();
        fs.merge().unwrap();
        fs.forget(a, 1);
        fs.sync().unwrap();
        // No other item in the log, or after it, is an orphan item.
        let fs = kill(fs, &d, 64 << 20);
        if merged {
            fs.merge().unwrap();
        }
        fs.close().unwrap();
        drop(fs);
        let report = check(&*d, &CheckOptions::default(), &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
    }
}
