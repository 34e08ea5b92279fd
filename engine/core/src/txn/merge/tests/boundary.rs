//! Many inodes, and several committers during merges: each merge takes every inode exactly in its
//! state at the boundary, whichever thread sealed it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::RngExt;
use proptest::test_runner::TestRng;

use crate::fs::{MakeOptions, make_device};
use crate::inode::attrs::Attrs;
use crate::txn::{Core, Limits, Need, OpenMode};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::types::Time;

const INODES: u64 = 3000;
const FIRST: u64 = 1000;
const COMMITTERS: u32 = 3;
const MERGES: usize = 12;

/// For each inode the values of its item, with the context of each.
type History = Mutex<Vec<Vec<(u64, Option<u32>)>>>;

/// The item that is changed of an inode: a lone inode item, an item of a set, or an orphan item.
fn kind_of(inode: u64) -> (Kind, u64) {
    match inode % 50 {
        7 => (Kind::Orphan, FIRST + inode),
        n if n % 2 == 0 => (Kind::Inode, 0),
        _ => (Kind::Inline, 0),
    }
}

fn key_of(inode: u64) -> Key {
    match kind_of(inode) {
        (Kind::Orphan, ino) => Key::orphan(ino),
        (kind, offset) => Key::new(FIRST + inode, kind, offset),
    }
}

fn encode(kind: Kind, number: u32) -> Vec<u8> {
    if kind != Kind::Inode {
        return number.to_le_bytes().repeat(1 + number as usize % 40);
    }
    let mut attrs = Attrs::new(0o100_644, (0, 0), 0, 1, Time::default());
    attrs.size = u64::from(number);
    attrs.disk_size = attrs.size;
    attrs.encode().to_vec()
}

fn decode(inode: u64, value: &[u8]) -> u32 {
    match kind_of(inode).0 {
        Kind::Inode => Attrs::decode(FIRST + inode, value).unwrap().size as u32,
        _ => u32::from_le_bytes(value[..4].try_into().unwrap()),
    }
}

fn open(device: &Arc<dyn Device>, in_memory: usize) -> Core {
    let mut limits = Limits::for_budget(8 << 20);
    limits.inodes = in_memory;
    let mode = OpenMode::seeded(limits);
    Core::open(device.clone(), mode).unwrap()
}

/// One transaction that changes two inodes.
fn commit(core: &Core, history: &History, rng: &mut TestRng, number: u32) {
    let items = core.open_root(core.main_root()).unwrap();
    let reservation = core.reserve(&items, Need::items(8, 2048, 8)).unwrap();
    let first = rng.random_range(0..INODES - 1);
    let chosen = [first, rng.random_range(first + 1..INODES)];
    let inodes = chosen.map(|inode| items.table().get_or_new(FIRST + inode));
    let [mut one, mut two] = inodes.each_ref().map(|inode| inode.write());
    let states = [&mut *one, &mut *two];
    let mut commit = core.commit(&items).unwrap();
    let seq = commit.seq();
    for ((chosen, inode), state) in chosen.into_iter().zip(&inodes).zip(states) {
        let (kind, offset) = kind_of(chosen);
        let found = items.item(inode, state, kind, offset).unwrap();
        let seen = found.as_ref().map(|item| decode(chosen, &item.value));
        let mut history = history.lock().unwrap();
        let history = &mut history[chosen as usize];
        let last = history.last().and_then(|(_, value)| *value);
        assert_eq!(seen, last, "inode {chosen} before context {seq}");
        let below = found.as_ref().is_some_and(|item| item.below);
        let value = rng.random_ratio(2, 3).then_some(number);
        match value {
            Some(number) => commit.put(inode, state, kind, offset, &encode(kind, number), below),
            None if found.is_some() => commit.delete(inode, state, kind, offset, &[], below),
            None => continue,
        }
        history.push((seq, value));
    }
    let receipt = commit.finish(reservation);
    drop((one, two));
    core.throttle(receipt).unwrap();
}

/// Compares the index with the state at the boundary of the newest merge.
fn compare(core: &Core, history: &History) {
    let _one = core.merger.left.lock();
    let merged = core.superblocks.newest().merged_seq.get();
    let tree = core.open_root(core.main_root()).unwrap().tree();
    for inode in 0..INODES {
        let found = core.index.get(&tree, &key_of(inode)).unwrap();
        let history = &history.lock().unwrap()[inode as usize];
        let mut before = history.iter().rev().filter(|(seq, _)| *seq <= merged);
        let expected = before.next().and_then(|(_, value)| *value);
        let found = found.map(|value| decode(inode, &value));
        assert_eq!(found, expected, "inode {inode} after {merged}");
    }
}

#[test]
fn concurrent_merges_take_exact_state_at_boundary() {
    let device = MemoryDevice::new(256 << 20);
    make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let device: Arc<dyn Device> = Arc::new(device);
    let history = History::new(vec![Vec::new(); INODES as usize]);
    for (round, in_memory) in [64, 1 << 16, 64, 1 << 16].into_iter().enumerate() {
        let core = open(&device, in_memory);
        let ended = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for committer in 0..COMMITTERS {
                let (core, history, ended) = (&core, &history, &ended);
                let seed = [round as u8 * 8 + committer as u8; 32];
                threads.spawn(move || {
                    let mut rng = TestRng::from_seed(Default::default(), &seed);
                    let mut number = (round as u32 * COMMITTERS + committer) << 24;
                    while !ended.load(Ordering::Relaxed) {
                        number += 1;
                        commit(core, history, &mut rng, number);
                    }
                });
            }
            for _ in 0..MERGES {
                core.merge().unwrap();
                compare(&core, &history);
            }
            ended.store(true, Ordering::Relaxed);
        });
        // After every other round the memory is lost and the log is replayed.
        if round % 2 == 0 {
            core.force_all().unwrap();
            continue;
        }
        core.merge().unwrap();
        compare(&core, &history);
        core.reservations.sweep();
        assert_eq!((core.dirty_bytes(), core.space().reserved()), (0, (0, 0)));
    }
}
