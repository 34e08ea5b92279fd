//! The savings of each mechanism, measured by counters with and without it; and that only costs
//! differ.

use std::collections::HashMap;

use cairnfs::Mechanism;
use cairnfs::fs::FileSystem;
use cairnfs_disk::types::XattrMode;

use super::engine::{OWNER, ROOT, copy, create, fresh, open, open_ablated};

const FILES: u64 = 300;

/// Creates files that are not fsynced.
fn crowd(fs: &FileSystem) {
    for n in 0..FILES {
        create(fs, &n.to_string());
    }
}

/// Returns the increase of the counters during one fsync, with all mechanisms and without one.
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
fn one_flush_covers_data_and_record() {
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
fn fsync_closure_excludes_unrelated_changes() {
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
fn entries_once_logs_each_entry_once() {
    let counters = ["log_entries", "log_bytes"];
    let [with, without] = costs(Mechanism::EntriesOnce, &counters, |fs| {
        crowd(fs);
        ROOT
    });
    assert_eq!(without[0], with[0] + FILES);
    assert!(without[1] > with[1], "{with:?} {without:?}");
}

#[test]
fn attributes_known_skips_search_for_missing_attributes() {
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

fn counter(fs: &FileSystem, name: &str) -> u64 {
    let mut all = fs.counters().into_iter();
    all.find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn relogging_logs_item_once_however_often_it_changes() {
    let [with, without] = [None, Some(Mechanism::Relogging)].map(|ablated| {
        let fs = open_ablated(fresh(), ablated);
        let before = counter(&fs, "log_entries");
        // Each name changes the root's item.
        crowd(&fs);
        fs.sync().unwrap();
        counter(&fs, "log_entries") - before
    });
    assert_eq!(without, with + FILES - 1);
}

/// Sets an attribute of equal value on many files, and merges; returns the blocks that this took,
/// and the memory of the values before the merge.
fn costs_of_equal_values(fs: &FileSystem) -> [u64; 2] {
    crowd(fs);
    fs.sync().unwrap();
    fs.merge().unwrap();
    let free = fs.statfs().free;
    for n in 0..FILES {
        let ino = fs.lookup(ROOT, n.to_string().as_bytes()).unwrap().ino;
        fs.setxattr(ino, b"user.equal", &VALUE, XattrMode::Set)
            .unwrap();
    }
    let memory = counter(fs, "xattr_value_bytes");
    fs.sync().unwrap();
    fs.merge().unwrap();
    [free - fs.statfs().free, memory]
}

const VALUE: [u8; 1000] = [9; 1000];

#[test]
fn equal_values_are_stored_once() {
    let [with, without] = [None, Some(Mechanism::ValuesOnce)].map(|ablated| {
        let device = fresh();
        let fs = open_ablated(device.clone(), ablated);
        let costs = costs_of_equal_values(&fs);
        for again in [fs, open(copy(&device))] {
            for n in 0..FILES {
                let ino = again.lookup(ROOT, n.to_string().as_bytes()).unwrap().ino;
                assert_eq!(again.getxattr(ino, b"user.equal").unwrap(), VALUE);
            }
        }
        costs
    });
    let bytes = FILES * VALUE.len() as u64;
    assert!(without[0] * 4096 >= bytes && with[0] * 4096 < bytes / 2);
    assert!(
        without[1] >= bytes && with[1] < bytes / 2,
        "{with:?} {without:?}"
    );
}

#[test]
fn fsync_of_reloaded_inode_logs_only_changes() {
    let device = fresh();
    let fs = open(device.clone());
    let ino = create(&fs, "file");
    // Holes between the blocks: each is an extent of its own.
    for n in 0..EXTENTS {
        fs.write(ino, n * 8192, &[7; 4096], false).unwrap();
    }
    fs.sync().unwrap();
    fs.merge().unwrap();
    let [with, without] = [None, Some(Mechanism::ChangesOnly)].map(|ablated| {
        let fs = open_ablated(copy(&device), ablated);
        let logged = || {
            let before = counter(&fs, "log_entries");
            fs.write(ino, 0, &[8; 4096], false).unwrap();
            fs.fsync(ino, false).unwrap();
            counter(&fs, "log_entries") - before
        };
        let costs = [logged(), logged()];
        let mut bytes = vec![0; EXTENTS as usize * 8192];
        assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len() - 4096);
        assert!(
            bytes
                .chunks(4096)
                .step_by(2)
                .skip(1)
                .all(|b| b == [7; 4096])
        );
        assert_eq!(bytes[..4096], [8; 4096]);
        costs
    });
    assert!(
        with[0] < 10 && without[0] >= EXTENTS,
        "{with:?} {without:?}"
    );
    // Only the first fsync after the inode was read from the index.
    assert!(with[1] < 10 && without[1] < 10, "{with:?} {without:?}");
}

const EXTENTS: u64 = 50;

#[test]
fn fsync_of_dominant_directory_pushes_whole_context() {
    let fs = open(fresh());
    let counts = |dir_ino: u64| {
        let count = || -> HashMap<_, _> { fs.counters().into_iter().collect() };
        let before = count();
        fs.fsync(dir_ino, false).unwrap();
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

/// Returns the names in the root with inode numbers and contents.
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

/// Tests a rule of replay: a record may contain an item twice, put or deleted.
#[test]
fn contents_are_equal_without_any_one_mechanism() {
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
            assert!(seen(&after) == before, "{without:?}");
            after.merge().unwrap();
            assert!(seen(&after) == before, "{without:?}");
            before
        })
        .collect();
    assert_eq!(found[0].len() as u64, FILES - FILES.div_ceil(3));
    assert!(found.iter().all(|tree| *tree == found[0]));
}

#[test]
fn mechanisms_are_found_by_name() {
    for mechanism in Mechanism::ALL {
        assert_eq!(Mechanism::named(mechanism.name()), Some(mechanism));
    }
    assert_eq!(Mechanism::named("everything"), None);
}
