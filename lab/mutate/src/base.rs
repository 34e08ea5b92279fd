//! Sound volumes to be damaged, made by the engine and left as a kill leaves them.
//!
//! The UUID and the hash seed are fixed, so that the trees have the same shape each time. Times and
//! the random numbers of mounts differ, and nothing here depends on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairnfs::Result;
use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::superblock::Superblock;
use cairnfs_disk::types::{Creds, Fallocate, RenameMode, SetAttr, XattrMode};
use parking_lot::Mutex;
use zerocopy::little_endian::U64;

use crate::image::{Image, copy};
use crate::layout::Layout;
use crate::random::Random;
use crate::seal;

/// Size of every base but the largest in bytes: the minimum.
pub const SIZE: u64 = 16 << 20;
const UUID: [u8; 16] = *b"damaged volumes!";
const HASH_SEED: u64 = 0x5eed;
const WHO: Creds = Creds { uid: 1, gid: 2 };
const FILE: u32 = 0o100_644;
const DEPTH: usize = 24;
/// Number of older contents that are kept of each block.
const KEPT: usize = 3;

/// A sound volume.
pub struct Base {
    /// Its name in messages.
    pub name: &'static str,
    /// Its contents.
    pub image: Image,
    /// The places of its structures.
    pub layout: Layout,
    /// The blocks that are not all zeros.
    pub used: Vec<u64>,
    /// Blocks with their earlier contents, before they were overwritten.
    pub older: Vec<(u64, Box<[u8]>)>,
}

/// A device that keeps the contents it overwrites.
struct Recorder {
    device: MemoryDevice,
    older: Mutex<BTreeMap<u64, Vec<Box<[u8]>>>>,
}

impl Device for Recorder {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let mut before = vec![0; buf.len()];
        self.device.read(offset, &mut before)?;
        let first = offset / BLOCK_SIZE as u64;
        for (block, bytes) in (first..).zip(before.chunks(BLOCK_SIZE)) {
            if bytes.iter().any(|b| *b != 0) {
                let mut older = self.older.lock();
                let list = older.entry(block).or_default();
                list.push(bytes.into());
                if list.len() > KEPT {
                    list.remove(0);
                }
            }
        }
        self.device.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.device.flush()
    }
    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

/// The volumes that are damaged.
pub fn bases() -> Vec<Base> {
    let empty = make("empty", |_, _| {});
    vec![empty, one_of_everything(), two_levels(), forked(), stated()]
}

/// A volume with all kinds of files and items, some of them only in the log.
pub fn one_of_everything() -> Base {
    make("one of everything", everything)
}

/// A volume whose index has a level above its leaves, and whose log wraps at the end of the ring.
pub fn two_levels() -> Base {
    make("two levels", levels)
}

/// A volume with a snapshot, a branch with a snapshot of its own, nameless fork points, and dropped
/// roots whose space is not free yet.
pub fn forked() -> Base {
    make("forked", forks)
}

/// A volume whose durable mark states that nearly all of its log is durable: two syncs follow it.
pub fn stated() -> Base {
    make("stated", |fs, device| {
        levels(fs, device);
        fs.sync_stated().unwrap();
        for name in ["later", "latest"] {
            file(fs, 1, name, 3000);
            fs.sync().unwrap();
        }
    })
}

/// A volume with all kinds of items in the index, and nothing to merge in the log.
pub fn merged() -> Base {
    make("merged", |fs, device| {
        everything(fs, device);
        fs.merge().unwrap();
    })
}

/// A volume of `size` bytes with a snapshot and later files that only the log has.
pub fn snapshot_in_log(size: u64) -> Base {
    make_large("snapshot in the log", size, |fs, device| {
        everything(fs, device);
        fs.merge().unwrap();
        file(fs, 1, "before", 3000);
        fs.snapshot("monday").unwrap();
        file(fs, 1, "after", 3000);
        fs.sync().unwrap();
    })
}

/// A volume of hundreds of files, with changes of any of them, snapshots and branches that only the log
/// has.
pub fn roots_in_log(seed: u64) -> Base {
    make_large("roots in the log", SIZE, |fs, _| {
        let mut random = Random::new(seed);
        let dirs: Vec<u64> = (0..4).map(|i| dir(fs, 1, &format!("dir-{i}"))).collect();
        let mut files = Vec::new();
        for i in 0..600 {
            let (above, name) = (dirs[i % 4], format!("file-{i}"));
            let ino = file(fs, above, &name, random.below(3000));
            if random.once_in(8) {
                set(fs, ino, "user.value", random.below(4000));
            }
            files.push((above, name, ino));
        }
        fs.merge().unwrap();
        for n in 0..3 + random.below(60) {
            if random.once_in(12) {
                fs.snapshot(&format!("snapshot-{n}")).unwrap();
            }
            change_one(fs, (&dirs, &mut files), n, &mut random);
        }
        fs.snapshot("last").unwrap();
        for n in 100..100 + random.below(20) {
            change_one(fs, (&dirs, &mut files), n, &mut random);
        }
        fs.sync().unwrap();
    })
}

/// Makes, changes, renames or removes one of the `files`.
fn change_one(
    fs: &FileSystem,
    (dirs, files): (&[u64], &mut Vec<(u64, String, u64)>),
    n: usize,
    random: &mut Random,
) {
    let at = random.below(files.len());
    let (above, name, ino) = files[at].clone();
    let to = *random.pick(dirs);
    match random.below(6) {
        0 | 1 => {
            let name = format!("new-{n}");
            let ino = file(fs, to, &name, random.below(9000));
            files.push((to, name, ino));
        }
        2 => {
            let mode = SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            };
            fs.setattr(ino, &mode).unwrap();
        }
        3 => {
            fs.unlink(above, name.as_bytes()).unwrap();
            files.swap_remove(at);
        }
        4 => {
            let moved = format!("moved-{n}");
            fs.rename(
                above,
                name.as_bytes(),
                to,
                moved.as_bytes(),
                RenameMode::Replace,
            )
            .unwrap();
            files[at] = (to, moved, ino);
        }
        _ => {
            let bytes = contents(random.below(9000), n);
            fs.write(ino, random.below(5000) as u64, &bytes, false)
                .unwrap();
            set(fs, ino, "user.value", random.below(4000));
        }
    }
}

/// A volume of thousands of files, whose index has two levels above its leaves, and nothing to merge
/// in the log.
pub fn thousands() -> Base {
    make_large("thousands", 2 * SIZE, |fs, _| fill_thousands(fs))
}

/// A volume of `DEPTH` nested directories called `a`, each beside one called `b`.
pub fn nested() -> Base {
    make("nested", |fs, _| {
        let deeper = |above, _| {
            dir(fs, above, "b");
            dir(fs, above, "a")
        };
        let last = (0..DEPTH).fold(1, deeper);
        file(fs, last, "file", 100);
        fs.merge().unwrap();
    })
}

fn options() -> Options {
    Options {
        cache_budget: 4 << 20,
        durability_interval: None,
        workers: false,
        ..Options::default()
    }
}

fn make(name: &'static str, fill: fn(&FileSystem, &dyn Device)) -> Base {
    make_large(name, SIZE, fill)
}

fn make_large(name: &'static str, size: u64, fill: impl FnOnce(&FileSystem, &dyn Device)) -> Base {
    let recorder = Arc::new(Recorder {
        device: MemoryDevice::new(size),
        older: Mutex::default(),
    });
    make_device(&*recorder, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    fix_identity(&*recorder);
    let fs = FileSystem::open_device(recorder.clone(), &options()).unwrap();
    fill(&fs, &*recorder);
    let image = copy(&*recorder);
    drop(fs);
    let layout = Layout::of(&image);
    let older = std::mem::take(&mut *recorder.older.lock());
    Base {
        name,
        used: layout.used(&image),
        older: older
            .into_iter()
            .flat_map(|(block, list)| list.into_iter().map(move |bytes| (block, bytes)))
            .collect(),
        layout,
        image,
    }
}

/// Gives a new volume the UUID and hash seed of all bases.
fn fix_identity(device: &dyn Device) {
    let mut image = copy(device);
    let layout = Layout::of(&image);
    for node in layout.nodes.keys() {
        image.patch(*node, 24, &UUID[..8]);
        seal::node(&mut image, &layout, *node);
    }
    let newest = layout.superblock.slot_block();
    let block = image.read(newest, 1);
    let mut superblock = Superblock::decode(newest, &block).unwrap();
    superblock.uuid = UUID;
    superblock.hash_seed = U64::new(HASH_SEED);
    for slot in SUPERBLOCK_SLOTS {
        superblock.generation = U64::new(1 + u64::from(slot == newest));
        assert_eq!(superblock.slot_block(), slot);
        image.write(slot, &superblock.encode());
    }
    for block in layout.used(&image) {
        let at = block * BLOCK_SIZE as u64;
        device.write(at, &image.read(block, 1)).unwrap();
    }
}

fn contents(len: usize, salt: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i / 5 + i * i / 77 + salt) as u8)
        .collect()
}

/// Creates a file with contents, and forgets it.
fn file(fs: &FileSystem, dir: u64, name: &str, len: usize) -> u64 {
    let ino = fs.mknod(dir, name.as_bytes(), FILE, 0, WHO).unwrap().ino;
    fs.write(ino, 0, &contents(len, name.len()), false).unwrap();
    fs.forget(ino, 1);
    ino
}

fn dir(fs: &FileSystem, parent: u64, name: &str) -> u64 {
    let ino = fs.mkdir(parent, name.as_bytes(), 0o755, WHO).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

fn set(fs: &FileSystem, ino: u64, name: &str, len: usize) {
    let value = contents(len, 3);
    fs.setxattr(ino, name.as_bytes(), &value, XattrMode::Set)
        .unwrap();
}

/// All kinds of files and items, half of them merged, then a log of several contexts, and unlinked
/// inodes in use.
fn everything(fs: &FileSystem, _: &dyn Device) {
    let a = dir(fs, 1, "a");
    let b = dir(fs, a, "b");
    let c = dir(fs, b, "c");
    let inline = file(fs, a, "inline", 700);
    let blocks = file(fs, a, "blocks", 30_000);
    let sparse = file(fs, b, "sparse", 5000);
    fs.write(sparse, 9 << 20, &contents(9000, 1), false)
        .unwrap();
    fs.fallocate(
        sparse,
        64 << 20,
        100_000,
        Fallocate::Allocate { keep_size: true },
        false,
    )
    .unwrap();
    let link = fs.symlink(a, b"link", b"../a/inline", WHO).unwrap().ino;
    fs.forget(link, 1);
    for (name, mode) in [("fifo", 0o010_600), ("device", 0o020_600)] {
        let ino = fs.mknod(c, name.as_bytes(), mode, 0x501, WHO).unwrap().ino;
        fs.forget(ino, 1);
    }
    for to in ["hard", "harder"] {
        fs.link(blocks, c, to.as_bytes()).unwrap();
        fs.forget(blocks, 1);
    }
    set(fs, inline, "user.small", 20);
    set(fs, blocks, "user.large", 50_000);
    set(fs, a, "user.larger", 65_000);
    set(fs, a, "user.cell", 3000);
    for i in 0..12 {
        file(fs, c, &format!("many-{i}"), 300 * i);
    }
    fs.merge().unwrap();
    fs.write(blocks, 8000, &contents(20_000, 9), false).unwrap();
    fs.merge().unwrap();
    unmerged(fs, a, c, blocks);
}

/// Changes that are only in the log.
fn unmerged(fs: &FileSystem, a: u64, c: u64, blocks: u64) {
    let late = file(fs, a, "late", 6000);
    set(fs, late, "user.late", 9000);
    fs.fsync(late, false).unwrap();
    fs.rename(c, b"many-3", a, b"moved", RenameMode::Replace)
        .unwrap();
    fs.unlink(c, b"many-4").unwrap();
    fs.fsync(a, false).unwrap();
    fs.write(blocks, 4096, &contents(4096, 5), false).unwrap();
    fs.fsync(blocks, false).unwrap();
    let held = file(fs, a, "held", 20_000);
    fs.lookup(a, b"held").unwrap();
    fs.unlink(a, b"held").unwrap();
    fs.fsync(a, false).unwrap();
    let shorter = SetAttr {
        size: Some(10_000),
        ..SetAttr::default()
    };
    fs.setattr(blocks, &shorter).unwrap();
    let d = dir(fs, c, "d");
    fs.rename(c, b"d", 1, b"d", RenameMode::Replace).unwrap();
    file(fs, d, "last", 100);
    fs.sync().unwrap();
    fs.write(held, 0, b"more", false).unwrap();
}

/// Directories with many files of all kinds, of which some share attribute values, or have several
/// names.
fn fill_thousands(fs: &FileSystem) {
    let dirs: Vec<u64> = (0..6).map(|i| dir(fs, 1, &format!("dir-{i}"))).collect();
    let inner: Vec<u64> = (0..40)
        .map(|i| dir(fs, dirs[i % 6], &format!("inner-{i}")))
        .collect();
    let link = |ino, to: u64, name: String| {
        fs.link(ino, to, name.as_bytes()).unwrap();
        fs.forget(ino, 1);
    };
    for i in 0..13_000 {
        let above = dirs[i * i % 6];
        let len = match i % 40 {
            0 => 9000 + i,
            1..8 => 0,
            n => n * 26,
        };
        let ino = file(fs, above, &format!("file-{i}-{}", "n".repeat(i % 30)), len);
        if i % 25 == 0 {
            set(fs, ino, "user.shared", 100 + i % 1000);
        }
        if i % 200 == 0 {
            set(fs, ino, "user.long", 20_000 + i % 1000);
            link(ino, inner[i % 40], format!("hard-{i}"));
        }
        if i % 60 == 0 {
            let made = fs.symlink(inner[i % 40], format!("link-{i}").as_bytes(), b"../x", WHO);
            fs.forget(made.unwrap().ino, 1);
        }
        if i % 7 == 0 {
            file(fs, inner[i % 40], &format!("in-{i}"), i % 300);
        }
        if i % 1000 == 0 {
            fs.merge().unwrap();
        }
    }
    fs.merge().unwrap();
}

/// Fills and merges the log until it ends a few blocks before the end of its ring.
fn to_the_end_of_the_ring(fs: &FileSystem, device: &dyn Device) {
    loop {
        fs.merge().unwrap();
        let layout = Layout::of(&copy(device));
        let ring = layout.geometry.log_blocks;
        let left = ring - layout.superblock.tail_lsn.get() % ring;
        if left <= 4 {
            return;
        }
        // A merge writes a record too: half of the remaining blocks never exceed the end.
        for _ in 0..left / 2 {
            set(fs, 1, "user.round", 1);
            fs.sync().unwrap();
        }
    }
}

/// Roots of all kinds and states, in the index and in the log.
fn forks(fs: &FileSystem, device: &dyn Device) {
    everything(fs, device);
    fs.snapshot("kept").unwrap();
    fs.branch("branch").unwrap();
    file(fs, 1, "later", 9000);
    fs.snapshot("dropped").unwrap();
    file(fs, 1, "last", 9000);
    let branch = fs.open_named("branch").unwrap();
    file(&branch, 1, "other", 9000);
    branch.snapshot("of the branch").unwrap();
    fs.drop_root("dropped").unwrap();
    fs.drop_root("kept").unwrap();
    fs.sync().unwrap();
    fs.merge().unwrap();
    file(&branch, 1, "new", 9000);
    fs.snapshot("logged").unwrap();
    fs.sync().unwrap();
}

/// A tree of several leaves, and deletions in the index.
fn levels(fs: &FileSystem, device: &dyn Device) {
    let dirs: Vec<u64> = (0..4).map(|i| dir(fs, 1, &format!("dir-{i}"))).collect();
    let target = vec![b'x'; 1500];
    for i in 0..80 {
        let name = format!("link-{i}");
        let made = fs.symlink(dirs[i % 4], name.as_bytes(), &target, WHO);
        fs.forget(made.unwrap().ino, 1);
        file(
            fs,
            dirs[(i + 1) % 4],
            &format!("file-{i}"),
            50 + 80 * (i % 30),
        );
    }
    fs.merge().unwrap();
    for i in 0..30 {
        fs.unlink(dirs[i % 4], format!("link-{i}").as_bytes())
            .unwrap();
    }
    fs.rename(1, b"dir-1", dirs[0], b"below", RenameMode::Replace)
        .unwrap();
    to_the_end_of_the_ring(fs, device);
    for i in 0..6 {
        file(fs, dirs[2], &format!("new-{i}"), 1900);
        fs.unlink(dirs[3], format!("link-{}", 31 + 4 * i).as_bytes())
            .unwrap();
        fs.sync().unwrap();
    }
}
