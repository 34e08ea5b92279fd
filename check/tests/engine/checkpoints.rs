//! Checkpoints: what is shipped of a volume, full or as changes, is that volume at that moment.
//!
//! Contract: checkpoint

use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Checkpoint, CheckpointId, Error, File, OpenOptions, Volume};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::types::Fallocate;
use cairnfs_tier::size_from;

use super::seen::{Seen, assert_sound, options, pressed_options, tree};
use super::snapshots::{Numbers, fresh, kill, open, open_with, random_change, volume};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// What blocks contain that were never shipped.
const GARBAGE: u8 = 0xa5;

type Runs = Vec<(u64, u64)>;

fn gained(checkpoint: &Checkpoint) -> Runs {
    let mut runs = Runs::new();
    let mut noted = |first, count| {
        runs.push((first, count));
        Ok(())
    };
    checkpoint.for_each_gained(&mut noted).unwrap();
    assert_ascending(&runs);
    runs
}

fn live(checkpoint: &Checkpoint) -> Runs {
    let mut runs = Runs::new();
    let mut noted = |first, count| {
        runs.push((first, count));
        Ok(())
    };
    checkpoint.for_each_live(&mut noted).unwrap();
    assert_ascending(&runs);
    runs
}

fn assert_ascending(runs: &[(u64, u64)]) {
    assert!(runs.iter().all(|(_, count)| *count > 0));
    let apart = |pair: &[(u64, u64)]| pair[0].0 + pair[0].1 <= pair[1].0;
    assert!(runs.windows(2).all(apart), "{runs:?}");
}

fn count(runs: &[(u64, u64)]) -> u64 {
    runs.iter().map(|(_, count)| count).sum()
}

/// The blocks of an image, as a store has them.
#[derive(Clone)]
struct Stored {
    bytes: Vec<u8>,
    live: Runs,
}

impl Stored {
    fn empty(size: u64) -> Self {
        Self {
            bytes: vec![GARBAGE; size as usize],
            live: Runs::new(),
        }
    }

    fn add(&mut self, checkpoint: &Checkpoint, (first, count): (u64, u64)) -> Result<(), Error> {
        let range = (first * BLOCK) as usize..((first + count) * BLOCK) as usize;
        checkpoint.read(first, &mut self.bytes[range])
    }

    /// A new device with its live blocks.
    fn restored(&self) -> Arc<MemoryDevice> {
        let device = MemoryDevice::new(self.bytes.len() as u64);
        for (first, count) in &self.live {
            let range = (first * BLOCK) as usize..((first + count) * BLOCK) as usize;
            device.write(first * BLOCK, &self.bytes[range]).unwrap();
        }
        Arc::new(device)
    }
}

/// Ships a whole checkpoint over what the store has of the one before.
fn ship(checkpoint: &Checkpoint, before: Option<&Stored>) -> Stored {
    let empty = || Stored::empty(checkpoint.image_size());
    let mut stored = if checkpoint.is_full() {
        empty()
    } else {
        before.unwrap().clone()
    };
    for run in gained(checkpoint) {
        stored.add(checkpoint, run).unwrap();
    }
    stored.live = live(checkpoint);
    stored
}

/// Every named root: whether it is a branch, and its files.
type State = BTreeMap<String, (bool, Vec<Seen>)>;

fn state(fs: &Arc<FileSystem>) -> State {
    let named = fs.roots().into_iter().filter_map(|root| {
        let name = root.name?;
        let tree = tree(&fs.open_root(root.id).unwrap());
        Some((name, (root.writable, tree)))
    });
    named.collect()
}

/// Restores what is stored: it must be sound, and have this state.
fn assert_restored(stored: &Stored, expected: &State, when: &str) -> Arc<MemoryDevice> {
    let device = stored.restored();
    assert_sound(&*device, when);
    // Each slot alone is the volume, too.
    for lost in SUPERBLOCK_SLOTS {
        let halved = stored.restored();
        halved.write(lost * BLOCK, &[0; BLOCK_SIZE]).unwrap();
        let fs = open(&halved);
        assert!(state(&fs) == *expected, "{when}, without slot {lost}");
    }
    let fs = open(&device);
    assert!(state(&fs) == *expected, "{when}");
    fs.close().unwrap();
    assert_sound(&*device, when);
    stored.restored()
}

#[test]
fn changes_since_a_checkpoint_are_all_that_is_shipped() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    for n in 0..3000 {
        v.write(format!("small{n}"), "x").unwrap();
    }
    v.write("large", vec![1; 8 << 20]).unwrap();
    v.set_xattr("large", "user.long", [7; 50_000]).unwrap();
    let first = v.checkpoint(None).unwrap();
    assert!(first.is_full() && !first.is_unchanged());
    let stored = ship(&first, None);
    let before = state(&fs);
    let (whole, id) = (count(&gained(&first)), first.id());
    assert!(whole > 2048, "{whole}");
    first.shipped().unwrap();
    assert_restored(&stored, &before, "the first one");

    let nothing = v.checkpoint(Some(id)).unwrap();
    assert!(nothing.is_unchanged() && nothing.id() == id);
    assert_eq!(count(&gained(&nothing)), 0);
    nothing.shipped().unwrap();

    v.write("small7", "y").unwrap();
    let mut file = v
        .open_with("large", OpenOptions::new().write(true))
        .unwrap();
    file.seek(SeekFrom::Start(4 << 20)).unwrap();
    file.write_all(&[2; 4096]).unwrap();
    drop(file);
    let second = v.checkpoint(Some(id)).unwrap();
    assert!(!second.is_full() && !second.is_unchanged());
    let more = count(&gained(&second));
    // The superblocks, the table, a bitmap; a block of data; the path to three leaves and the roots.
    assert!((10..60).contains(&more), "{more}");
    let stored = ship(&second, Some(&stored));
    second.shipped().unwrap();
    assert_restored(&stored, &state(&fs), "the second one");
    fs.close().unwrap();
}

/// The time of a checkpoint of few changes does not depend on the size of the volume: nodes that did
/// not change are not read.
#[test]
fn small_change_of_a_large_tree_reads_few_nodes() {
    let read_by = |files: u32| {
        let device = fresh(256 * MIB);
        let fs = open(&device);
        let v = volume(&fs);
        for n in 0..files {
            v.write(format!("small{n}"), "x").unwrap();
        }
        let first = v.checkpoint(None).unwrap();
        let id = first.id();
        first.shipped().unwrap();
        v.write("small7", "y").unwrap();
        let second = v.checkpoint(Some(id)).unwrap();
        let nodes = || {
            let counters = fs.counters();
            let of = |name: &str| counters.iter().find(|(n, _)| *n == name).unwrap().1;
            of("node_cache_hits") + of("node_cache_misses")
        };
        let before = nodes();
        let blocks = count(&gained(&second));
        (blocks, nodes() - before)
    };
    let (few, many) = (read_by(1000), read_by(40_000));
    assert!(many.0 <= few.0 + 40 && many.0 < 100, "{few:?} {many:?}");
    assert!(many.1 <= few.1 + 10 && many.1 < 40, "{few:?} {many:?}");
}

/// Appended blocks are shipped without those before them, and preallocated ones when they are
/// written.
#[test]
fn blocks_next_to_shipped_ones_are_shipped_alone() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    v.write("log", vec![1; 100 * BLOCK_SIZE]).unwrap();
    v.write("allocated", "").unwrap();
    let allocated = v.metadata("allocated").unwrap().ino();
    let how = Fallocate::Allocate { keep_size: false };
    fs.fallocate(allocated, 0, 200 * BLOCK, how, false).unwrap();
    let first = v.checkpoint(None).unwrap();
    let (mut stored, mut id) = (ship(&first, None), first.id());
    // Unwritten blocks are live, and not shipped.
    assert!(count(&live(&first)) >= count(&gained(&first)) + 200);
    first.shipped().unwrap();
    for round in 0..20_u8 {
        let mut log = v.open_with("log", OpenOptions::new().append(true)).unwrap();
        log.write_all(&[round; BLOCK_SIZE]).unwrap();
        let mut file = v
            .open_with("allocated", OpenOptions::new().write(true))
            .unwrap();
        file.seek(SeekFrom::Start(u64::from(round) * 2 * BLOCK))
            .unwrap();
        file.write_all(&[round; 2 * BLOCK_SIZE]).unwrap();
        drop((log, file));
        let next = v.checkpoint(Some(id)).unwrap();
        let blocks = count(&gained(&next));
        // With up to 16 blocks before the new ones, twice.
        assert!(blocks < 70, "{blocks}");
        (stored, id) = (ship(&next, Some(&stored)), next.id());
        next.shipped().unwrap();
        assert_restored(&stored, &state(&fs), "appended");
    }
    assert!(fs.statfs().free > 0);
    fs.close().unwrap();
}

/// What a volume had stays readable while everything is overwritten and removed, and its space
/// returns when the checkpoint ends.
#[test]
fn checkpoint_keeps_what_the_volume_had() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    for n in 0..20_u8 {
        v.write(format!("file{n}"), vec![n; 1 << 20]).unwrap();
    }
    let checkpoint = v.checkpoint(None).unwrap();
    let before = state(&fs);
    let runs = gained(&checkpoint);
    for round in 0..10_u8 {
        for n in 0..2_u8 {
            let name = format!("file{}", 2 * round + n);
            v.write(&name, vec![100; 900_000]).unwrap();
            v.remove_file(&name).unwrap();
        }
        // What came after is reused at once.
        for n in 0..40 {
            v.write("temporary", vec![n; 1 << 20]).unwrap();
        }
        fs.merge().unwrap();
    }
    v.remove_file("temporary").unwrap();
    fs.merge().unwrap();
    let held = fs.statfs().free;
    let mut stored = Stored::empty(checkpoint.image_size());
    for run in runs {
        stored.add(&checkpoint, run).unwrap();
    }
    stored.live = live(&checkpoint);
    drop(checkpoint);
    assert!(fs.statfs().free >= held + (19 << 8), "{held}");
    assert_restored(&stored, &before, "kept");
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

/// A volume that runs out of space lets a checkpoint go, and no call fails for it; the next one is
/// compared with the same one as before.
#[test]
fn checkpoint_gives_way() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    v.write("base", vec![1; 4 << 20]).unwrap();
    let first = v.checkpoint(None).unwrap();
    let (stored, id) = (ship(&first, None), first.id());
    first.shipped().unwrap();
    v.write("large", vec![2; 30 << 20]).unwrap();
    let broken = v.checkpoint(Some(id)).unwrap();
    let runs = gained(&broken);
    assert!(matches!(v.checkpoint(Some(id)), Err(Error::Busy(_))));
    // Only with the space of the file that the checkpoint has.
    v.remove_file("large").unwrap();
    v.write("other", vec![3; 40 << 20]).unwrap();
    let (first_block, blocks) = runs[runs.len() - 1];
    let mut buf = vec![0; (blocks * BLOCK) as usize];
    let refused = broken.read(first_block, &mut buf).unwrap_err();
    assert!(matches!(refused, Error::GaveWay), "{refused}");
    let refused = broken.for_each_live(|_, _| Ok(())).unwrap_err();
    assert!(matches!(refused, Error::GaveWay), "{refused}");
    let next = v.checkpoint(Some(id));
    assert!(
        matches!(next, Ok(ref next) if !next.is_full()),
        "{:?}",
        next.err()
    );
    drop(broken);
    let next = next.unwrap();
    let stored = ship(&next, Some(&stored));
    next.shipped().unwrap();
    assert_restored(&stored, &state(&fs), "after one that gave way");
    fs.close().unwrap();
}

/// A volume knows its last two checkpoints when it is opened again after a kill, and no other one.
#[test]
fn known_checkpoints_survive_a_kill() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    let change = |fs: &Arc<FileSystem>, n: u8| {
        volume(fs).write("file", vec![n; 50_000]).unwrap();
    };
    let checkpoint = |fs: &Arc<FileSystem>, since| {
        let made = volume(fs).checkpoint(since).unwrap();
        (made.id(), made.is_full())
    };
    change(&fs, 1);
    let (a, full) = checkpoint(&fs, None);
    assert!(full);
    change(&fs, 2);
    // It was made, and never shipped.
    let (b, full) = checkpoint(&fs, Some(a));
    assert!(!full && a != b);
    drop(v);
    kill(fs);
    let fs = open(&device);
    change(&fs, 3);
    let (c, full) = checkpoint(&fs, Some(a));
    assert!(!full);
    // Which of the last two was stored is the caller's to know.
    assert!(checkpoint(&fs, Some(b)).1);
    kill(fs);
    let fs = open(&device);
    assert!(checkpoint(&fs, Some(c)).1);
    let other: CheckpointId = "12-00000000000000aa".parse().unwrap();
    assert!(checkpoint(&fs, Some(other)).1);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    let read_only = Options {
        read_only: true,
        ..options(false)
    };
    let fs = open_with(&device, &read_only);
    assert!(matches!(volume(&fs).checkpoint(None), Err(Error::ReadOnly)));
}

/// A checkpoint in the middle of being shipped.
struct Shipping {
    checkpoint: Checkpoint,
    stored: Stored,
    expected: State,
    left: Runs,
}

/// A random history of a volume with branches, and a store of its checkpoints.
struct History {
    when: String,
    numbers: Numbers,
    device: Arc<MemoryDevice>,
    options: Options,
    fs: Arc<FileSystem>,
    heads: Vec<String>,
    frozen: Vec<String>,
    /// Open files without a name.
    held: Vec<File>,
    /// The checkpoints that are stored.
    store: Vec<(CheckpointId, Stored)>,
    shipping: Option<Shipping>,
    full: usize,
    compared: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        let (device, options) = (fresh(64 * MIB), pressed_options(seed));
        let fs = open_with(&device, &options);
        for dir in 0..3 {
            volume(&fs).create_dir(format!("d{dir}")).unwrap();
        }
        Self {
            when: String::new(),
            numbers: Numbers(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)),
            device,
            options,
            fs,
            heads: vec!["main".to_owned()],
            frozen: Vec::new(),
            held: Vec::new(),
            store: Vec::new(),
            shipping: None,
            full: 0,
            compared: 0,
        }
    }

    fn one_of(&mut self, len: usize) -> usize {
        self.numbers.below(len as u64) as usize
    }

    /// Preallocates blocks of a file, or writes some of its blocks, wherever they are.
    fn change_blocks(&mut self, on: &Arc<FileSystem>) {
        let v = volume(on);
        let name = format!("d{}/p{}", self.numbers.below(3), self.numbers.below(3));
        let (from, len) = (self.numbers.below(60), 1 + self.numbers.below(30));
        if !v.exists(&name).unwrap() {
            v.write(&name, "").unwrap();
        }
        if self.numbers.below(3) == 0 {
            let ino = v.metadata(&name).unwrap().ino();
            let keep_size = self.numbers.below(2) == 0;
            let how = Fallocate::Allocate { keep_size };
            on.fallocate(ino, from * BLOCK, len * BLOCK, how, false)
                .unwrap();
            return;
        }
        let mut file = v.open_with(&name, OpenOptions::new().write(true)).unwrap();
        file.seek(SeekFrom::Start(from * BLOCK)).unwrap();
        let byte = self.numbers.below(256) as u8;
        file.write_all(&vec![byte; len as usize * BLOCK_SIZE / 2])
            .unwrap();
    }

    /// Holds a file open whose name is removed.
    fn hold(&mut self, on: &Arc<FileSystem>) {
        let v = volume(on);
        v.write("held", vec![self.held.len() as u8; 30_000])
            .unwrap();
        self.held.push(v.open_file("held").unwrap());
        v.remove_file("held").unwrap();
    }

    fn begin(&mut self) {
        let since = match self.numbers.below(8) {
            0 => None,
            1 if self.store.len() > 1 => Some(self.store[self.store.len() - 2].0),
            _ => self.store.last().map(|(id, _)| *id),
        };
        let expected = state(&self.fs);
        let checkpoint = volume(&self.fs).checkpoint(since).unwrap();
        if checkpoint.is_full() {
            self.full += 1
        } else {
            self.compared += 1
        }
        let stored = if checkpoint.is_full() {
            Stored::empty(checkpoint.image_size())
        } else {
            let mut known = self.store.iter();
            known.find(|(id, _)| Some(*id) == since).unwrap().1.clone()
        };
        let mut left = gained(&checkpoint);
        left.reverse();
        self.shipping = Some(Shipping {
            checkpoint,
            stored,
            expected,
            left,
        });
    }

    /// Ships some more blocks; the last ones end it in one of the ways in which it can end.
    fn ship_some(&mut self) {
        let Some(mut shipping) = self.shipping.take() else {
            return self.begin();
        };
        for _ in 0..1 + self.numbers.below(40) {
            let Some(run) = shipping.left.pop() else {
                return self.end(shipping);
            };
            match shipping.stored.add(&shipping.checkpoint, run) {
                Ok(()) => {}
                Err(Error::GaveWay) => return,
                Err(error) => panic!("{}: {error}", self.when),
            }
        }
        self.shipping = Some(shipping);
    }

    fn end(&mut self, shipping: Shipping) {
        let Shipping {
            checkpoint,
            mut stored,
            expected,
            ..
        } = shipping;
        stored.live = live(&checkpoint);
        let id = checkpoint.id();
        let restored = assert_restored(&stored, &expected, &self.when);
        let way = self.numbers.below(8);
        if way > 0 && self.store.last().is_none_or(|(last, _)| *last != id) {
            self.store.push((id, stored));
        }
        match way {
            // It is lost, or stored without the volume's knowledge.
            0 | 1 => drop(checkpoint),
            // The machine is lost.
            2 => {
                std::mem::forget(checkpoint);
                self.abandon();
                self.device = restored;
                self.fs = open_with(&self.device, &self.options);
                let known = self.fs.roots().into_iter();
                let names: Vec<String> = known.filter_map(|root| root.name).collect();
                self.heads.retain(|name| names.contains(name));
                self.frozen.retain(|name| names.contains(name));
                for root in self.fs.roots() {
                    if let Some(name) = root.name
                        && !self.heads.contains(&name)
                        && !self.frozen.contains(&name)
                    {
                        if root.writable {
                            self.heads.push(name)
                        } else {
                            self.frozen.push(name)
                        }
                    }
                }
            }
            _ => checkpoint.shipped().unwrap(),
        }
    }

    /// Leaves the open volume as a kill does.
    fn abandon(&mut self) {
        self.held.drain(..).for_each(std::mem::forget);
        if let Some(shipping) = self.shipping.take() {
            std::mem::forget(shipping.checkpoint);
        }
        std::mem::forget(self.fs.clone());
    }

    fn reopen(&mut self, killed: bool) {
        self.fs.sync().unwrap();
        self.held.clear();
        let before = state(&self.fs);
        if killed {
            self.abandon();
            assert_sound(&*self.device, &self.when);
        } else {
            self.shipping = None;
            self.fs.close().unwrap();
            assert_sound(&*self.device, &self.when);
        }
        self.fs = open_with(&self.device, &self.options);
        assert!(state(&self.fs) == before, "{}", self.when);
    }

    fn step(&mut self, step: u32) {
        let nth = self.one_of(self.heads.len());
        let on = self.fs.open_named(&self.heads[nth]).unwrap();
        match self.numbers.below(40) {
            0 | 1 => {
                on.snapshot(&format!("s{step}")).unwrap();
                self.frozen.push(format!("s{step}"));
            }
            2 if self.heads.len() < 5 => {
                on.branch(&format!("b{step}")).unwrap();
                self.heads.push(format!("b{step}"));
            }
            3 if !self.frozen.is_empty() => {
                let name = self.one_of(self.frozen.len());
                self.fs.drop_root(&self.frozen.remove(name)).unwrap();
            }
            4 if nth > 0 && self.held.is_empty() => {
                drop(on);
                self.fs.drop_root(&self.heads.remove(nth)).unwrap();
            }
            5 | 6 => {
                for _ in 0..self.numbers.below(30) {
                    self.fs.drop_step().unwrap();
                }
            }
            7 if nth > 0 && self.held.is_empty() => {
                let base = self.one_of(nth);
                let base = self.fs.open_named(&self.heads[base]).unwrap();
                base.replace_by(&on, &format!("k{step}"), None).unwrap();
                self.frozen.push(format!("k{step}"));
                self.heads.remove(nth);
                self.fs = self.fs.open_named("main").unwrap();
            }
            8 if !self.frozen.is_empty() && self.held.is_empty() => {
                let from = self.one_of(self.frozen.len());
                let (from, head) = (&self.frozen[from], &self.heads[nth]);
                let kept = volume(&self.fs).restore(from, head, &[]).unwrap();
                self.frozen.push(kept);
                drop(on);
                self.fs = self.fs.open_named("main").unwrap();
            }
            9 | 10 => self.fs.merge().unwrap(),
            11 => {
                drop(on);
                let killed = self.numbers.below(3) > 0;
                self.reopen(killed);
            }
            12 => self.hold(&on),
            13..=20 => {
                drop(on);
                self.ship_some();
            }
            21..=27 => self.change_blocks(&on),
            28 => drop(self.fs.trim()),
            _ => random_change(&volume(&on), &on, &mut self.numbers),
        }
    }
}

/// Random histories with branches, snapshots, publishes, restores, drops, preallocated files, large
/// attributes and open files without a name, with merges, kills and openings, of which checkpoints
/// are shipped piece by piece meanwhile, lost, stored without the volume's knowledge, or all that is
/// left: each restores the volume as it was, and in the end no block is lost.
/// `CAIRNFS_FORK_SEEDS=N` sets the number of histories.
#[test]
fn checkpoints_of_random_histories_restore_each_moment() {
    let seeds = size_from("CAIRNFS_FORK_SEEDS", 1, 5);
    let (mut full, mut compared) = (0, 0);
    for seed in 1..=seeds {
        let mut history = History::new(seed);
        for step in 0..400 {
            history.when = format!("seed {seed}, step {step}");
            history.step(step);
        }
        history.held.clear();
        history.shipping = None;
        let fs = &history.fs;
        let names = history.frozen.iter().chain(&history.heads);
        for name in names.filter(|name| *name != "main") {
            fs.drop_root(name).unwrap();
        }
        while fs.drop_step().unwrap() {}
        fs.merge().unwrap();
        let at_last = fs.statfs().free;
        fs.close().unwrap();
        assert_sound(&*history.device, &format!("seed {seed}, one root left"));
        let fs = open(&history.device);
        assert!(fs.statfs().free.abs_diff(at_last) < 64, "seed {seed}");
        fs.close().unwrap();
        full += history.full;
        compared += history.compared;
    }
    assert!(compared > 2 * full && full > 0, "{full} {compared}");
}

/// A call on a volume does not wait for a checkpoint that is being shipped.
#[test]
fn checkpoint_beside_writers() {
    let device = fresh(64 * MIB);
    let fs = open_with(&device, &options(true));
    let v = volume(&fs);
    let mut store: Option<(CheckpointId, Stored)> = None;
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            for n in 0..2000_u32 {
                let name = format!("file{}", n % 50);
                v.write(&name, vec![n as u8; 1 + n as usize * 37 % 60_000])
                    .unwrap();
                if n % 7 == 0 {
                    v.remove_file(&name).unwrap();
                }
            }
        });
        while !writer.is_finished() {
            let since = store.as_ref().map(|(id, _)| *id);
            let next: Checkpoint = v.checkpoint(since).unwrap();
            let stored = ship(&next, store.as_ref().map(|(_, stored)| stored));
            assert_sound(&*stored.restored(), "beside a writer");
            store = Some((next.id(), stored));
            next.shipped().unwrap();
        }
        writer.join().unwrap();
    });
    let (id, before) = store.unwrap();
    let last = v.checkpoint(Some(id)).unwrap();
    let stored = ship(&last, Some(&before));
    last.shipped().unwrap();
    assert_restored(&stored, &state(&fs), "the last one");
    let _: Volume = v;
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}
