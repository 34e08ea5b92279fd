//! What each mechanism saves, told by counters with it and without it; and that nothing but costs
//! differs.

use std::collections::HashMap;

use cairnfs::Mechanism;
use cairnfs::fs::FileSystem;

use super::engine::{OWNER, ROOT, copy, create, fresh, open, open_ablated};

const FILES: u64 = 300;

/// Files that are not asked for.
fn crowd(fs: &FileSystem) {
    for n in 0..FILES {
        create(fs, &n.to_string());
    }
}

/// By how much counters grow with each of these calls, with all mechanisms and without one.
fn costs(
    mechanism: Mechanism,
    counters: &[&str],
    prepare: impl Fn(&FileSystem) -> u64,
) -> [Vec<u64>; 2] {
    [None, Some(mechanism)].map(|without| {
        let fs = open_ablated(fresh(), without);
        let ino = prepare(&fs);
        let count = || -> HashMap<_, _> { fs.counters().into_iter().collect() };
        let before = count();
        fs.fsync(ino, false).unwrap();
        let after = count();
        let rose = counters.iter().map(|name| after[name] - before[name]);
        rose.collect()
    })
}

#[test]
fn one_flush_does_for_data_and_record() {
    for size in [4096, 65536, 1 << 20] {
        let found = costs(Mechanism::OneFlush, &["device_flushes"], |fs| {
            let ino = create(fs, "file");
            fs.write(ino, 0, &vec![7; size], false).unwrap();
            ino
        });
        assert_eq!(found, [vec![1], vec![2]], "{size}");
    }
}

#[test]
fn what_others_did_is_not_written() {
    let counters = ["fsync_records", "fsync_whole_contexts", "log_bytes"];
    let [with, without] = costs(Mechanism::FsyncClosure, &counters, |fs| {
        crowd(fs);
        create(fs, "file")
    });
    assert_eq!((with[0], with[1]), (1, 0));
    assert_eq!((without[0], without[1]), (0, 1));
    assert!(without[2] >= 8 * with[2], "{with:?} {without:?}");
}

#[test]
fn entries_are_logged_once() {
    let counters = ["log_entries", "log_bytes"];
    let [with, without] = costs(Mechanism::EntriesOnce, &counters, |fs| {
        crowd(fs);
        ROOT
    });
    assert_eq!(without[0], with[0] + FILES);
    assert!(without[1] > with[1], "{with:?} {without:?}");
}

#[test]
fn attributes_that_are_not_there_are_not_searched() {
    let counters = ["node_cache_hits", "node_cache_misses"];
    let found = costs(Mechanism::AttributesKnown, &counters, |fs| {
        crowd(fs);
        let ino = create(fs, "file");
        fs.sync().unwrap();
        fs.merge().unwrap();
        fs.fsync(ino, false).unwrap();
        fs.write(ino, 0, &[7; 4096], false).unwrap();
        ino
    });
    let nodes = found.map(|counts| counts.iter().sum::<u64>());
    assert!(nodes[1] > nodes[0], "{nodes:?}");
}

#[test]
fn a_directory_that_is_most_of_what_changed_is_not_followed() {
    let fs = open(fresh());
    let counts = |wished: u64| {
        let count = || -> HashMap<_, _> { fs.counters().into_iter().collect() };
        let before = count();
        fs.fsync(wished, false).unwrap();
        let after = count();
        ["fsync_records", "fsync_whole_contexts"].map(|name| after[name] - before[name])
    };
    crowd(&fs);
    assert_eq!(counts(ROOT), [0, 1]);
    let dir = fs.mkdir(ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    for n in 0..FILES / 3 {
        let made = fs.mknod(dir, n.to_string().as_bytes(), 0o100_644, 0, OWNER);
        made.unwrap();
    }
    for n in FILES..2 * FILES {
        create(&fs, &n.to_string());
    }
    assert_eq!(counts(dir), [1, 0]);
}

/// Names with inode numbers, and what each file holds.
fn seen(fs: &FileSystem) -> Vec<(Vec<u8>, u64, Vec<u8>)> {
    let mut names = Vec::new();
    fs.readdir(ROOT, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino));
        true
    })
    .unwrap();
    names.sort();
    let files = names
        .into_iter()
        .filter(|(name, _)| !name.starts_with(b"."));
    let with_bytes = |(name, ino)| {
        let mut bytes = vec![0; 10_000];
        let length = fs.read(ino, 0, &mut bytes).unwrap();
        bytes.truncate(length);
        (name, ino, bytes)
    };
    files.map(with_bytes).collect()
}

/// Rules of replay: an item may come twice in a record, put or deleted.
#[test]
fn a_volume_is_the_same_without_any_of_them() {
    let all = Mechanism::ALL.map(Some);
    let found: Vec<_> = [&[None], &all[..]]
        .concat()
        .into_iter()
        .map(|without| {
            let device = fresh();
            let fs = open_ablated(device.clone(), without);
            for n in 0..FILES {
                let ino = create(&fs, &n.to_string());
                fs.write(ino, 0, &[n as u8; 5000], false).unwrap();
                if n % 7 == 0 {
                    fs.fsync(ino, n % 2 == 0).unwrap();
                }
            }
            fs.sync().unwrap();
            for n in (0..FILES).step_by(3) {
                fs.unlink(ROOT, n.to_string().as_bytes()).unwrap();
            }
            fs.fsync(ROOT, false).unwrap();
            let before = seen(&fs);
            let after = open(copy(&device));
            assert_eq!(seen(&after), before, "{without:?}");
            after.merge().unwrap();
            assert_eq!(seen(&after), before, "{without:?}");
            before
        })
        .collect();
    assert_eq!(found[0].len() as u64, FILES - FILES.div_ceil(3));
    assert!(found.iter().all(|tree| *tree == found[0]));
}

#[test]
fn each_is_known_by_its_name() {
    for mechanism in Mechanism::ALL {
        assert_eq!(Mechanism::named(mechanism.name()), Some(mechanism));
    }
    assert_eq!(Mechanism::named("everything"), None);
}
