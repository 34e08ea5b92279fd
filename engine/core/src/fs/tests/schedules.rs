//! Thread schedules of the whole engine: a few calls by a few threads on one directory, with merges
//! and power cuts between them.

#[path = "branch_schedules.rs"]
mod branches;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use crate::fs::{FileSystem, Options, Pressure};
use crate::txn::schedules::fresh;
use cairnfs_disk::device::disk::{Disk, Image};
use cairnfs_disk::error::Error;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::sync::explore::{Cost, explore};
use cairnfs_disk::sync::{thread, wait_for_ever};
use cairnfs_disk::types::{Attr, Creds, Fallocate, RenameMode, SeekTo, SetAttr, XattrMode};

const SIZE: u64 = 16 << 20;

struct Volume {
    disk: Arc<Disk>,
    fs: Arc<FileSystem>,
}

fn open(image: &Image) -> Arc<Volume> {
    open_with(image, None)
}

fn open_with(image: &Image, pressure: Option<Pressure>) -> Arc<Volume> {
    let disk = Disk::new(SIZE, image);
    let options = Options {
        pressure,
        workers: false,
        durability_interval: None,
        cache_budget: 8 << 20,
        seed: Some(1),
        ..Options::default()
    };
    let fs = FileSystem::open_device(disk.clone(), &options).unwrap();
    Arc::new(Volume { disk, fs })
}

impl Volume {
    fn create(&self, name: &str) -> Result<u64, Error> {
        let creds = Creds { uid: 0, gid: 0 };
        let made = self
            .fs
            .mknod(ROOT_INO, name.as_bytes(), 0o100_644, 0, creds)?;
        self.fs.forget(made.ino, 1);
        Ok(made.ino)
    }

    fn write(&self, ino: u64, data: &[u8]) {
        assert_eq!(self.fs.write(ino, 0, data, true).unwrap(), data.len());
    }

    fn rename(&self, from: &str, to: &str) {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        self.fs
            .rename(ROOT_INO, from, ROOT_INO, to, RenameMode::Replace)
            .unwrap();
    }

    fn unlink(&self, name: &str) {
        self.fs.unlink(ROOT_INO, name.as_bytes()).unwrap();
    }

    fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut each = |entry: cairnfs_disk::types::EntryRef<'_>| {
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            assert!(entry.is_dots() || names.insert(name), "listed twice");
            true
        };
        self.fs.readdir(ROOT_INO, 0, &mut each).unwrap();
        for name in &names {
            let found = self.fs.lookup(ROOT_INO, name.as_bytes()).unwrap();
            assert_eq!(found.nlink, 1);
            self.fs.forget(found.ino, 1);
        }
        names
    }

    fn contents(&self, name: &str) -> Vec<u8> {
        let found = self.fs.lookup(ROOT_INO, name.as_bytes()).unwrap();
        let mut data = vec![0; found.size as usize];
        assert_eq!(self.fs.read(found.ino, 0, &mut data).unwrap(), data.len());
        self.fs.forget(found.ino, 1);
        data
    }

    /// The volume after a power cut now.
    fn cut(&self) -> Arc<Volume> {
        open(&self.disk.durable())
    }

    /// Checks that the names are these: in memory, after a power cut, and after closing; and that
    /// no other space is in use.
    fn check(&self, names: &[&str]) {
        let expected: BTreeSet<String> = names.iter().map(|n| (*n).to_owned()).collect();
        assert_eq!(self.names(), expected);
        self.fs.sync().unwrap();
        assert_eq!(self.cut().names(), expected);
        self.fs.close().unwrap();
        self.fs.core().reservations().sweep();
        assert_eq!(self.fs.core().space().reserved(), (0, 0));
        let journal = self.fs.core().journal();
        let used = journal.end().lsn - journal.ring().tail();
        let blocks = self.fs.core().geometry().log_blocks;
        let fresh = crate::journal::ring::Ring::new(blocks, 0, used);
        let free = journal.ring().free();
        assert_eq!(free, fresh.free(), "log space that nobody has");
        let again = open(&self.disk.seen());
        assert_eq!(again.names(), expected);
        assert!(again.fs.items().orphans().unwrap().is_empty());
    }
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

fn start(volume: &Arc<Volume>, work: fn(&Volume)) -> thread::JoinHandle<()> {
    let volume = volume.clone();
    thread::spawn(move || work(&volume))
}

#[test]
fn concurrent_name_changes_are_serializable() {
    explore("fs: names", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let threads = [
            start(&volume, |volume| {
                volume.create("a").unwrap();
                volume.fs.fsync(ROOT_INO, false).unwrap();
                assert!(volume.cut().names().contains("a"));
                volume.rename("a", "b");
            }),
            start(&volume, |volume| {
                volume.create("c").unwrap();
                volume.unlink("c");
                let _ = volume.create("same");
                volume.create("d").unwrap();
            }),
            start(&volume, |volume| {
                volume.fs.merge().unwrap();
                let _ = volume.create("same");
                volume.rename("same", "e");
                let _ = volume.create("same");
                volume.fs.merge().unwrap();
            }),
        ];
        join(threads);
        volume.check(&["b", "d", "e", "same"]);
    });
}

/// A merge whose parts have threads of their own takes what was committed before its boundary, whole,
/// and leaves the rest to the next one.
#[test]
fn merges_in_threads_keep_what_is_committed_beside_them() {
    explore("fs: merges in threads, commits", Cost::Large, || {
        wait_for_ever(true);
        let volume = open_with(fresh(), Some(Pressure::parts(i64::MAX, 1)));
        let signals = volume.fs.core().signals();
        signals.set_workers(true);
        for name in ["a", "b", "c", "d"] {
            volume.create(name).unwrap();
        }
        let threads = [
            start(&volume, |volume| {
                volume.rename("a", "e");
                let ino = volume.create("f").unwrap();
                volume.write(ino, &[1; 5000]);
                volume.unlink("b");
            }),
            start(&volume, |volume| {
                volume.fs.merge().unwrap();
                volume.fs.merge().unwrap();
            }),
        ];
        join(threads);
        assert_eq!(volume.contents("f"), [1; 5000]);
        // What follows waits for no worker.
        signals.set_workers(false);
        volume.check(&["c", "d", "e", "f"]);
    });
}

#[test]
fn concurrent_fsyncs_and_renames_keep_groups_whole() {
    explore("fs: fsyncs and renames", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let ino = volume.create("x").unwrap();
        volume.fs.fsync(ino, false).unwrap();
        let threads = [
            start(&volume, |volume| {
                let ino = volume.create("a").unwrap();
                volume.fs.fsync(ino, false).unwrap();
                assert!(volume.cut().names().contains("x"));
                volume.rename("a", "x");
                // The other rename may have replaced the file, which is then removed.
                let synced = volume.fs.fsync(ino, false);
                assert!(matches!(synced, Ok(()) | Err(Error::NotFound)));
                assert!(synced.is_err() || !volume.cut().names().contains("a"));
            }),
            start(&volume, |volume| {
                let ino = volume.create("b").unwrap();
                volume.rename("b", "x");
                volume.create("b").unwrap();
                volume.fs.fsync(ino, false).unwrap_or_default();
                assert!(volume.cut().names().contains("x"));
            }),
            start(&volume, |volume| {
                volume.create("c").unwrap();
                volume.fs.merge().unwrap();
                volume.fs.fsync(ROOT_INO, false).unwrap();
                assert!(volume.cut().names().contains("c"));
            }),
        ];
        join(threads);
        volume.check(&["b", "c", "x"]);
    });
}

#[test]
fn name_replaced_by_rename_is_always_found() {
    explore("fs: rename over a name", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        for name in ["x", "new", "newer"] {
            volume.create(name).unwrap();
        }
        let threads = [
            start(&volume, |volume| {
                volume.rename("new", "x");
                volume.rename("newer", "x");
            }),
            start(&volume, |volume| {
                for _ in 0..3 {
                    let found = volume.fs.lookup(ROOT_INO, b"x").unwrap();
                    volume.fs.forget(found.ino, 1);
                }
            }),
            start(&volume, |volume| volume.fs.merge().unwrap()),
        ];
        join(threads);
        volume.check(&["x"]);
    });
}

#[test]
fn only_one_of_two_renames_claims_a_name() {
    explore("fs: two renames of a name", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        volume.create("new").unwrap();
        let claims = [RenameMode::Replace, RenameMode::NoReplace].map(|mode| {
            let volume = Arc::clone(&volume);
            thread::spawn(move || {
                match volume.fs.rename(ROOT_INO, b"new", ROOT_INO, b"mine", mode) {
                    Ok(()) => 1,
                    Err(Error::NotFound) => 0,
                    Err(other) => panic!("both names were never there: {other}"),
                }
            })
        });
        let claimed: u32 = claims.map(|thread| thread.join().unwrap()).iter().sum();
        assert_eq!(claimed, 1);
        volume.check(&["mine"]);
    });
}

#[test]
fn fsynced_data_survives_power_cut_with_its_name() {
    explore("fs: data, merges and power cuts", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let old = volume.create("old").unwrap();
        volume.write(old, &[1; 9000]);
        volume.fs.sync().unwrap();
        let threads = [
            start(&volume, |volume| {
                let ino = volume.create("small").unwrap();
                volume.write(ino, &[2; 100]);
                volume.fs.fsync(ino, false).unwrap();
                assert_eq!(volume.cut().contents("small"), [2; 100]);
            }),
            start(&volume, |volume| {
                let ino = volume.create("large").unwrap();
                volume.write(ino, &[3; 9000]);
                volume.fs.fsync(ino, false).unwrap();
                volume.write(ino, &[4; 5000]);
                assert!(volume.cut().contents("large").len() == 9000);
            }),
            start(&volume, |volume| {
                volume.fs.merge().unwrap();
                volume.unlink("old");
                volume.fs.merge().unwrap();
            }),
        ];
        join(threads);
        volume.check(&["large", "small"]);
        let again = open(&volume.disk.durable());
        let large = again.contents("large");
        assert!(large[..5000].iter().all(|b| *b == 4) && large[5000..].iter().all(|b| *b == 3));
    });
}

#[test]
fn inode_is_removed_with_last_name_and_last_use() {
    explore("fs: uses and unlink", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        volume.create("x").unwrap();
        volume.create("y").unwrap();
        let threads = [
            start(&volume, |volume| {
                for _ in 0..2 {
                    if let Ok(found) = volume.fs.lookup(ROOT_INO, b"x") {
                        volume.fs.getattr(found.ino).unwrap();
                        volume.fs.forget(found.ino, 1);
                    }
                }
            }),
            start(&volume, |volume| {
                volume.unlink("x");
                volume.rename("y", "x");
            }),
            start(&volume, |volume| volume.fs.merge().unwrap()),
        ];
        join(threads);
        volume.check(&["x"]);
    });
}

/// The shared value that the threads of a scenario set and remove.
const SHARED: [u8; 100] = [7; 100];

impl Volume {
    fn set(&self, name: &str, value: &[u8]) {
        let found = self.fs.lookup(ROOT_INO, name.as_bytes()).unwrap();
        self.fs
            .setxattr(found.ino, b"user.x", value, XattrMode::Set)
            .unwrap();
        self.fs.forget(found.ino, 1);
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, Error> {
        let found = self.fs.lookup(ROOT_INO, name.as_bytes()).unwrap();
        let value = self.fs.getxattr(found.ino, b"user.x");
        self.fs.forget(found.ino, 1);
        value
    }

    /// The use counts of shared values in the index.
    fn uses(&self) -> Vec<u64> {
        self.fs.items().shared_uses().unwrap()
    }
}

#[test]
fn shared_value_is_kept_while_in_use() {
    explore("fs: shared values", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        for name in ["a", "b", "c"] {
            volume.create(name).unwrap();
        }
        volume.set("a", &SHARED);
        volume.set("c", &SHARED);
        volume.fs.merge().unwrap();
        assert_eq!(volume.uses(), [2]);
        let threads = [
            start(&volume, |volume| {
                volume.set("a", b"own");
                volume.set("a", &SHARED);
                volume.unlink("c");
            }),
            start(&volume, |volume| {
                volume.set("b", &SHARED);
                assert_eq!(volume.get("b").unwrap(), SHARED);
                let seen = volume.get("a").unwrap();
                assert!(seen == SHARED || seen == b"own");
            }),
            start(&volume, |volume| volume.fs.merge().unwrap()),
        ];
        join(threads);
        volume.fs.merge().unwrap();
        assert_eq!(volume.uses(), [2]);
        assert_eq!(volume.cut().get("b").unwrap(), SHARED);
        volume.set("b", b"own");
        volume.unlink("a");
        volume.fs.merge().unwrap();
        assert_eq!(volume.uses(), [0; 0]);
        volume.check(&["b"]);
    });
}

#[test]
fn sync_through_makes_changes_before_sequence_durable() {
    explore("fs: sequences", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let change = |name: &'static str| {
            move |volume: &Volume| {
                let ino = volume.create(name).unwrap();
                volume.write(ino, &[1; 5000]);
                let sequence = volume.fs.sequence();
                // Another thread's sync may have made it durable already.
                let known = volume.fs.is_durable(sequence);
                if !known {
                    volume.fs.sync_through(sequence).unwrap();
                }
                assert!(volume.fs.is_durable(sequence));
                assert_eq!(volume.cut().contents(name), [1; 5000]);
            }
        };
        let begin = |work: Box<dyn Fn(&Volume) + Send>| {
            let volume = volume.clone();
            thread::spawn(move || work(&volume))
        };
        let threads = [
            begin(Box::new(change("a"))),
            begin(Box::new(change("b"))),
            begin(Box::new(|volume| volume.fs.sync().unwrap())),
        ];
        join(threads);
        volume.check(&["a", "b"]);
    });
}

#[test]
fn hole_beside_append_keeps_size_after_power_cut() {
    explore("fs: hole beside append", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let file = volume.create("f").unwrap();
        volume.write(file, &[1; 9000]);
        let threads = [
            start(&volume, |volume| {
                let file = volume.fs.lookup(ROOT_INO, b"f").unwrap().ino;
                let hole = Fallocate::PunchHole;
                volume.fs.fallocate(file, 0, 1 << 40, hole, true).unwrap();
                volume.fs.forget(file, 1);
            }),
            start(&volume, |volume| {
                let file = volume.fs.lookup(ROOT_INO, b"f").unwrap().ino;
                volume.fs.append(file, &[2; 9000], true).unwrap();
                volume.fs.forget(file, 1);
            }),
        ];
        join(threads);
        volume.fs.fsync(file, false).unwrap();
        assert_eq!(volume.contents("f").len(), 18_000);
        assert_eq!(volume.contents("f"), volume.cut().contents("f"));
        volume.check(&["f"]);
    });
}

#[test]
fn listing_with_attributes_delivers_replaced_name() {
    explore("fs: listing of a replaced name", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        volume.create("f").unwrap();
        let replacing = start(&volume, |volume| {
            volume.create("t").unwrap();
            volume.rename("t", "f");
        });
        let mut names = Vec::new();
        let mut uses = Vec::new();
        let mut each = |entry: cairnfs_disk::types::EntryRef<'_>, attr: Option<&Attr>| {
            if !entry.is_dots() {
                names.push(entry.name.to_vec());
                uses.extend(attr.map(|attr| attr.ino));
            }
            true
        };
        volume.fs.readdir_plus(ROOT_INO, 0, &mut each).unwrap();
        assert_eq!(names.iter().filter(|name| **name == b"f").count(), 1);
        uses.into_iter().for_each(|ino| volume.fs.forget(ino, 1));
        join([replacing]);
        volume.check(&["f"]);
    });
}

/// A change of a file by number alone, so that its removal does not wait for the change, beside its
/// removal: no space may stay in use or reserved.
fn change_beside_removal(change: fn(&FileSystem, u64) -> Result<(), Error>) {
    wait_for_ever(true);
    let volume = open(fresh());
    let file = volume.create("f").unwrap();
    let unused = volume.fs.core().space().free_blocks();
    volume.write(file, &[1; 100]);
    let changing = {
        let volume = volume.clone();
        thread::spawn(move || {
            let done = change(&volume.fs, file);
            assert!(matches!(done, Ok(()) | Err(Error::NotFound)));
        })
    };
    join([changing, start(&volume, |volume| volume.unlink("f"))]);
    // Blocks that a merge takes from the index are free after it; a second one frees its own nodes.
    volume.fs.merge().unwrap();
    volume.fs.merge().unwrap();
    assert_eq!(volume.fs.core().space().free_blocks(), unused);
    volume.check(&[]);
}

#[test]
fn allocation_beside_removal_keeps_no_space() {
    explore("fs: allocation beside removal", Cost::Large, || {
        change_beside_removal(|fs, file| {
            let what = Fallocate::Allocate { keep_size: true };
            fs.fallocate(file, 0, 9000, what, true)
        });
    });
}

#[test]
fn growth_beside_removal_keeps_no_space() {
    explore("fs: growth beside removal", Cost::Large, || {
        change_beside_removal(|fs, file| fs.extend(file, 9000));
    });
}

#[test]
fn zeroing_beside_removal_keeps_no_space() {
    explore("fs: zeroing beside removal", Cost::Large, || {
        change_beside_removal(|fs, file| {
            let what = Fallocate::ZeroRange { keep_size: false };
            fs.fallocate(file, 50, 9000, what, true)
        });
    });
}

const EXTENTS: u64 = 5;
/// Bytes of an extent, and the distance of two of them.
const EXTENT: u64 = 4096;
const STRIDE: u64 = 2 * EXTENT;

/// Image of a volume with the file `f`, which has more extents than one step handles. It is made
/// once, so that the schedules contain nothing but the calls that are examined.
fn with_extents() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let volume = open(fresh());
        let ino = volume.create("f").unwrap();
        for i in 0..EXTENTS {
            let data = [7; EXTENT as usize];
            volume.fs.write(ino, i * STRIDE, &data, true).unwrap();
        }
        volume.fs.close().unwrap();
        volume.disk.seen()
    })
}

#[test]
fn lookup_beside_removal_finds_whole_file_or_none() {
    explore("fs: lookup beside removal", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(with_extents());
        let removing = start(&volume, |volume| volume.unlink("f"));
        if let Ok(found) = volume.fs.lookup(ROOT_INO, b"f") {
            let mut data = vec![0; found.size as usize];
            volume.fs.read(found.ino, 0, &mut data).unwrap();
            let written = data.iter().filter(|byte| **byte == 7).count() as u64;
            assert_eq!(written, EXTENTS * EXTENT, "{found:?}");
            volume.fs.forget(found.ino, 1);
        }
        join([removing]);
        assert!(volume.names().is_empty());
    });
}

#[test]
fn search_for_data_beside_truncation_ends() {
    explore("fs: search for data beside truncation", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let ino = volume.create("f").unwrap();
        for i in 0..5 {
            let what = Fallocate::Allocate { keep_size: false };
            let allocated = volume.fs.fallocate(ino, i * STRIDE, EXTENT, what, true);
            allocated.unwrap();
        }
        volume.fs.write(ino, 5 * STRIDE, b"end", true).unwrap();
        let truncating = {
            let volume = volume.clone();
            thread::spawn(move || {
                let set = SetAttr {
                    size: Some(100),
                    ..SetAttr::default()
                };
                volume.fs.setattr(ino, &set).map(drop).unwrap();
            })
        };
        let found = volume.fs.seek(ino, 0, SeekTo::Data);
        assert!(matches!(found, Ok(_) | Err(Error::NoSuchOffset)));
        join([truncating]);
        volume.check(&["f"]);
    });
}
