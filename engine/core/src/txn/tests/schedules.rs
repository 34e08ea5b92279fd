//! Schedules of commits, merges and snapshots: which thread seals a set, which changes survive,
//! and what a snapshot holds.

use std::sync::{Arc, Mutex as Plain, OnceLock};

use crate::fs::{MakeOptions, make_device};
use crate::txn::roots::tree_of;
use crate::txn::{Core, Limits, Need, OpenMode};
use cairnfs_disk::device::disk::{Disk, Image};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::sync::explore::{Cost, explore};
use cairnfs_disk::sync::{thread, wait_for_ever};

const SIZE: u64 = 16 << 20;
const INO: u64 = 100;

/// Image of a newly made volume.
pub(crate) fn fresh() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let disk = Disk::new(SIZE, &Image::new());
        make_device(&*disk, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        disk.seen()
    })
}

struct Volume {
    disk: Arc<Disk>,
    core: Core,
    /// Sequence and value of each commit to the item, in order.
    history: Plain<Vec<(u64, Option<u8>)>>,
}

fn open(image: &Image) -> (Arc<Disk>, Core) {
    let disk = Disk::new(SIZE, image);
    let mode = OpenMode::seeded(Limits::for_budget(8 << 20));
    let core = Core::open(disk.clone(), mode).unwrap();
    (disk, core)
}

fn value_of(core: &Core) -> Option<u8> {
    let items = core.open_root(core.main_root()).unwrap();
    let inode = items.table().get_or_new(INO);
    let state = inode.read();
    let item = items.item(&inode, &state, Kind::Inline, 0).unwrap();
    item.map(|item| item.value[0])
}

impl Volume {
    fn new() -> Arc<Self> {
        let (disk, core) = open(fresh());
        Arc::new(Self {
            disk,
            core,
            history: Plain::default(),
        })
    }

    /// Commits a value of the item, or its deletion. Returns the sequence of the context.
    fn commit(&self, value: Option<u8>) -> u64 {
        let items = self.core.open_root(self.core.main_root()).unwrap();
        let reservation = self.core.reserve(&items, Need::items(1, 64, 1)).unwrap();
        let inode = items.table().get_or_new(INO);
        let mut state = inode.write();
        let found = items.item(&inode, &state, Kind::Inline, 0).unwrap();
        let last = self.history.lock().unwrap().last().copied();
        let seen = found.as_ref().map(|item| item.value[0]);
        assert_eq!(seen, last.and_then(|(_, value)| value), "a change is lost");
        let below = found.is_some_and(|item| item.below);
        let mut commit = self.core.commit(&items).unwrap();
        let seq = commit.seq();
        match value {
            Some(value) => {
                let bytes = vec![value; 1 + value as usize % 2 * 40];
                commit.put(&inode, &mut state, Kind::Inline, 0, &bytes, below);
            }
            None if seen.is_some() => {
                commit.delete(&inode, &mut state, Kind::Inline, 0, &[], below);
            }
            None => {}
        }
        self.history.lock().unwrap().push((seq, value));
        let receipt = commit.finish(reservation);
        drop(state);
        self.core.throttle(receipt).unwrap();
        seq
    }

    /// The item's value after all contexts up to `seq`.
    fn after(&self, seq: u64) -> Option<u8> {
        let history = self.history.lock().unwrap();
        let last = history.iter().rev().find(|(at, _)| *at <= seq);
        last.and_then(|(_, value)| *value)
    }

    /// Merges, and checks that the index holds exactly the state after the boundary.
    fn merge(&self) {
        self.core.merge().unwrap();
        let merged = self.core.superblocks.newest().merged_seq.get();
        let key = Key::new(INO, Kind::Inline, 0);
        let tree = self.core.open_root(self.core.main_root()).unwrap().tree();
        let value = self.core.index.get(&tree, &key).unwrap();
        assert_eq!(value.map(|v| v[0]), self.after(merged), "after {merged}");
    }

    fn check(&self) {
        assert_eq!(value_of(&self.core), self.after(u64::MAX));
        self.merge();
        self.core.reservations.sweep();
        let reserved = self.core.space().reserved();
        assert_eq!(reserved, (0, 0), "promises that nobody has");
        assert_eq!(self.core.dirty_bytes(), 0);
        let ring = self.core.journal().ring();
        let used = self.core.journal().end().lsn - ring.tail();
        let log_blocks = self.core.geometry().log_blocks;
        let fresh = crate::journal::ring::Ring::new(log_blocks, 0, used);
        assert_eq!(ring.free(), fresh.free(), "log space that nobody has");
        let (_, again) = open(&self.disk.durable());
        assert_eq!(value_of(&again), self.after(u64::MAX));
    }
}

#[test]
fn merge_takes_exact_state_after_its_boundary() {
    explore("txn: commits and merges", Cost::Large, || {
        wait_for_ever(true);
        let volume = Volume::new();
        let commits = [[Some(1), None, Some(2)], [Some(3), Some(4), None]].map(|values| {
            let volume = volume.clone();
            thread::spawn(move || {
                for value in values {
                    volume.commit(value);
                }
            })
        });
        for _ in 0..2 {
            volume.merge();
        }
        for thread in commits {
            thread.join().unwrap();
        }
        volume.check();
    });
}

#[test]
fn forced_commits_survive_power_cut() {
    explore("txn: force and power cut", Cost::Large, || {
        wait_for_ever(true);
        let volume = Volume::new();
        let commits = thread::spawn({
            let volume = volume.clone();
            move || {
                for value in [1, 2] {
                    let seq = volume.commit(Some(value));
                    let merge = || volume.core.merge();
                    volume.core.journal().force(seq, &merge).unwrap();
                    let (_, cut) = open(&volume.disk.durable());
                    assert_eq!(value_of(&cut), Some(value));
                }
            }
        });
        let merges = thread::spawn({
            let volume = volume.clone();
            move || volume.merge()
        });
        volume.core.force_all().unwrap();
        commits.join().unwrap();
        merges.join().unwrap();
        volume.check();
    });
}

/// The boundary of a merged snapshot, and the item's value in it.
fn in_snapshot(core: &Core, name: &str) -> (u64, Option<u8>) {
    let id = core.roots.named(name).unwrap();
    let root = core.roots.merged(id).unwrap();
    let key = Key::new(INO, Kind::Inline, 0);
    let tree = tree_of(&root.tree);
    let value = core.index.get(&tree, &key).unwrap();
    (root.boundary, value.map(|value| value[0]))
}

#[test]
fn snapshot_has_exact_state_after_its_boundary() {
    explore("txn: commits, snapshots and merges", Cost::Large, || {
        wait_for_ever(true);
        let volume = Volume::new();
        let commits = thread::spawn({
            let volume = volume.clone();
            move || {
                for value in [Some(1), None, Some(2)] {
                    volume.commit(value);
                }
            }
        });
        let merges = thread::spawn({
            let volume = volume.clone();
            // Another merge may follow at once, so the tree is not compared here.
            move || volume.core.merge().unwrap()
        });
        for name in ["a", "b"] {
            volume.core.snapshot(name).unwrap();
            let (_, cut) = open(&volume.disk.durable());
            let (boundary, value) = in_snapshot(&cut, name);
            assert_eq!(value, volume.after(boundary), "{name}, after a power cut");
        }
        commits.join().unwrap();
        merges.join().unwrap();
        volume.merge();
        assert_eq!(value_of(&volume.core), volume.after(u64::MAX));
        let (_, again) = open(&volume.disk.durable());
        for core in [&volume.core, &again] {
            for name in ["a", "b"] {
                let (boundary, value) = in_snapshot(core, name);
                assert_eq!(value, volume.after(boundary), "{name}");
            }
        }
    });
}
