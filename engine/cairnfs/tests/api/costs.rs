//! The cost of a change depends on the change, not on the size of the inode: it is the same on a
//! large inode and on a tiny one, with a warm and with a cold cache. Measured by counters; times
//! are printed.
//!
//! Contract: durable.cost

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairnfs::device::MemoryDevice;
use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_disk::types::{Fallocate, SetAttr, SetTime, XattrMode};

use super::engine::{OWNER, ROOT, open_with};

/// The smallest cache budget in bytes: about 2000 inodes and 128 index nodes stay in memory.
const BUDGET: usize = 8 << 20;

/// Number of files whose lookups evict everything else from that.
const CROWD: u64 = 12_000;

/// Levels of the index of the volumes here, and of one with a million files.
const LEVELS: u64 = 2;
const LEVELS_OF_THE_LARGEST: u64 = 3;

/// Index descents of an operation: to an inode, to a name and to its entry. The removal of an entry
/// needs one more, to the file's inode.
const WAYS: u64 = 3;

/// Counters that measure work.
const WORK: &[&str] = &[
    "fsync_inodes",
    "fsync_entries",
    "fsync_log_blocks",
    "log_bytes",
    "device_writes",
    "device_write_bytes",
    "device_flushes",
    "device_reads",
    "device_read_bytes",
    "index_nodes",
    "commits",
    "bytes_formatted",
    "contexts",
];

struct Ground {
    fs: Arc<FileSystem>,
    crowd: u64,
}

impl Ground {
    fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(4 << 30));
        // The hashes of names decide how often a descent meets the end of a node, and needs the next.
        let make = MakeOptions {
            seed: Some(1),
            ..MakeOptions::default()
        };
        make_device(&*device, &make, &mut |_, _| {}).unwrap();
        let options = Options {
            cache_budget: BUDGET,
            ..Options::default()
        };
        let fs = open_with(device, options);
        let crowd = mkdir(&fs, "crowd");
        for n in 0..CROWD {
            create(&fs, crowd, n);
        }
        Self { fs, crowd }
    }

    /// Merges everything into the index.
    fn settle(&self) {
        self.fs.sync().unwrap();
        self.fs.merge().unwrap();
    }

    /// Evicts all other inodes and nodes from memory.
    fn crowd_out(&self) {
        for n in 0..CROWD {
            let name = n.to_string();
            let found = self.fs.lookup(self.crowd, name.as_bytes()).unwrap();
            self.fs.forget(found.ino, 1);
        }
    }

    fn counters(&self) -> HashMap<&'static str, u64> {
        let mut counters: HashMap<_, _> = self.fs.counters().into_iter().collect();
        let nodes = ["node_cache_hits", "node_cache_misses"].map(|name| counters[name]);
        counters.insert("index_nodes", nodes.iter().sum());
        counters
    }

    /// Returns the increase of the counters during `change`, and its duration.
    fn work(&self, change: &dyn Fn(&FileSystem)) -> (Vec<u64>, Duration) {
        let before = self.counters();
        let start = Instant::now();
        change(&self.fs);
        let time = start.elapsed();
        let after = self.counters();
        let rose = WORK.iter().map(|name| after[name] - before[name]);
        (rose.collect(), time)
    }

    /// A change and its fsync on a large inode must cost the same as on a tiny one, both warm and
    /// cold, except up to `nodes` index nodes of the descents, some of which the tiny inode may not
    /// need.
    fn compare(
        &self,
        what: &str,
        nodes: u64,
        [tiny, large]: [u64; 2],
        change: &dyn Fn(&FileSystem, u64),
    ) {
        for cold in [false, true, false] {
            self.settle();
            let [small, big] = [tiny, large].map(|ino| {
                if cold {
                    self.crowd_out();
                }
                self.work(&|fs| change(fs, ino))
            });
            println!(
                "{what}, cold {cold}: {:?} on a tiny one, {:?}",
                small.1, big.1
            );
            for ((name, small), big) in WORK.iter().zip(&small.0).zip(&big.0) {
                // Nodes that the tiny inode needs may still be in memory.
                let way = match *name {
                    "device_reads" | "index_nodes" => nodes,
                    "device_read_bytes" => nodes * 16384,
                    _ => 0,
                };
                assert!(
                    10 * big <= 13 * small || *big <= way,
                    "{what}, cold {cold}: {name} is {big}, {small} on a tiny one"
                );
            }
        }
    }
}

fn create(fs: &FileSystem, dir: u64, name: u64) -> u64 {
    let made = fs.mknod(dir, name.to_string().as_bytes(), 0o100_644, 0, OWNER);
    let ino = made.unwrap().ino;
    fs.forget(ino, 1);
    ino
}

fn mkdir(fs: &FileSystem, name: &str) -> u64 {
    let made = fs.mkdir(ROOT, name.as_bytes(), 0o755, OWNER).unwrap();
    fs.forget(made.ino, 1);
    made.ino
}

/// Appends one byte and fsyncs.
fn append(fs: &FileSystem, ino: u64) {
    fs.append(ino, b"x", false).unwrap();
    fs.fsync(ino, false).unwrap();
}

fn extents(count: u64) {
    let ground = Ground::new();
    let fs = &ground.fs;
    let files = [1, count].map(|extents| {
        let file = create(fs, ROOT, extents);
        let allocate = Fallocate::Allocate { keep_size: false };
        for n in 0..extents {
            fs.fallocate(file, n << 20, 4096, allocate, false).unwrap();
        }
        fs.write(file, extents << 20, &[1; 100], false).unwrap();
        file
    });
    ground.compare(&format!("{count} extents"), WAYS * LEVELS, files, &append);
}

fn attributes(count: u64) {
    let ground = Ground::new();
    let fs = &ground.fs;
    let files = [0, 2, count].map(|attributes| {
        let file = create(fs, ROOT, attributes);
        fs.write(file, 0, &[1; 5000], false).unwrap();
        for n in 0..attributes {
            let name = format!("user.{n}");
            fs.setxattr(file, name.as_bytes(), &[7; 30], XattrMode::Set)
                .unwrap();
        }
        file
    });
    let [none, two, many] = files;
    let what = format!("{count} attributes");
    ground.compare(&what, WAYS * LEVELS, [none, many], &append);
    let changed = format!("{what}, one changed");
    ground.compare(&changed, WAYS * LEVELS, [two, many], &|fs, file| {
        fs.setxattr(file, b"user.1", &[8; 30], XattrMode::Set)
            .unwrap();
        fs.fsync(file, false).unwrap();
    });
}

fn entries(count: u64, levels: u64) {
    let ground = Ground::new();
    let fs = &ground.fs;
    let dirs = [1, count].map(|entries| {
        let dir = mkdir(fs, &format!("dir{entries}"));
        for n in 0..entries {
            create(fs, dir, n);
        }
        dir
    });
    let what = format!("{count} entries");
    ground.compare(
        &format!("{what}, one new"),
        WAYS * levels,
        dirs,
        &|fs, dir| {
            let before = fs.getattr(dir).unwrap().size;
            create(fs, dir, 1_000_000_000 + before);
            fs.fsync(dir, false).unwrap();
        },
    );
    ground.compare(
        &format!("{what}, one gone"),
        (WAYS + 1) * levels,
        dirs,
        &|fs, dir| {
            let last = fs.getattr(dir).unwrap().size - 1;
            fs.unlink(dir, (1_000_000_000 + last).to_string().as_bytes())
                .unwrap();
            fs.fsync(dir, false).unwrap();
        },
    );
}

#[test]
fn append_cost_is_independent_of_extent_count() {
    extents(20_000);
}

#[test]
fn change_cost_is_independent_of_attribute_count() {
    attributes(6_000);
}

#[test]
fn entry_cost_is_independent_of_directory_size() {
    entries(50_000, LEVELS);
}

#[test]
#[ignore = "deep: takes long"]
fn change_cost_on_largest_file_and_directory() {
    extents(100_000);
    entries(1_000_000, LEVELS_OF_THE_LARGEST);
}

#[test]
fn fsync_of_times_reads_no_index_nodes() {
    let ground = Ground::new();
    let file = create(&ground.fs, ROOT, 0);
    append(&ground.fs, file);
    ground.settle();
    let touch = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    // Neither contents nor attributes are looked up; the file has no attributes.
    let (work, _) = ground.work(&|fs| {
        fs.setattr(file, &touch).unwrap();
        fs.fsync(file, false).unwrap();
    });
    let of = |name| work[WORK.iter().position(|n| *n == name).unwrap()];
    assert_eq!((of("index_nodes"), of("device_reads")), (0, 0));
    assert_eq!((of("fsync_entries"), of("fsync_log_blocks")), (1, 1));
}

#[test]
fn directory_fsync_skips_files_already_logged() {
    const OTHERS: u64 = 1500;
    let ground = Ground::new();
    let fs = &ground.fs;
    ground.settle();
    let dir = mkdir(fs, "dir");
    fs.fsync(dir, false).unwrap();
    // One entry without an fsync keeps the directory's change list from being dropped as a whole.
    create(fs, dir, OTHERS);
    for n in 0..OTHERS {
        let file = create(fs, dir, n);
        fs.fsync(file, false).unwrap();
    }
    let (work, _) = ground.work(&|fs| fs.fsync(dir, false).unwrap());
    let of = |name| work[WORK.iter().position(|n| *n == name).unwrap()];
    assert_eq!(of("contexts"), 0, "not the whole context");
    assert!(of("fsync_inodes") <= 100, "{}", of("fsync_inodes"));
    assert_eq!(of("fsync_entries"), 3);
}
