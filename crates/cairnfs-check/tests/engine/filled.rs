//! A volume is filled by whatever calls until it refuses, emptied in any order, and filled again.
//!
//! Whatever filled it, in whatever order of syncs, merges, kills and openings: the volume does not
//! stop, removing and cutting off is never refused, all space comes back, and small files fill nearly
//! all that was there. `CAIRNFS_FILL_SEEDS` tells how many volumes are tried, `CAIRNFS_FILL_FROM` the
//! first one's seed, `CAIRNFS_FILL_ROUNDS` how often each is filled.

use std::sync::Arc;

use cairnfs::device::{Device, MemoryDevice};
use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs::types::{Creds, Fallocate, RenameMode, SetAttr, XattrMode};
use cairnfs::{Error, Result};
use parking_lot::RwLock;

use crate::seen::{assert_sound, options};

const BLOCK: u64 = 4096;
/// Blocks that an empty volume may have fewer than when it was new: its index's.
const INDEX: u64 = 16;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |v| v.parse().unwrap())
}

/// Numbers that follow from a seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a round fills the volume with.
#[derive(Debug, Clone, Copy)]
enum Mix {
    /// Files of one size.
    Files(u64),
    /// Files of all sizes, overwritten and appended to.
    Changing,
    /// Empty files with attributes of that many bytes.
    Attributes(u64),
    /// Names: directories, links, symlinks.
    Names,
    /// Space allocated ahead, holes, edges.
    Space,
}

const MIXES: [Mix; 12] = [
    Mix::Files(0),
    Mix::Files(100),
    Mix::Files(1500),
    Mix::Files(4200),
    Mix::Files(20_000),
    Mix::Files(1 << 20),
    Mix::Changing,
    Mix::Attributes(40),
    Mix::Attributes(300),
    Mix::Attributes(5000),
    Mix::Names,
    Mix::Space,
];

/// A device of which a copy can be taken as a kill leaves it, between two writes.
struct Stopped {
    device: MemoryDevice,
    writing: RwLock<()>,
}

impl Stopped {
    fn new(size: u64) -> Self {
        Self {
            device: MemoryDevice::new(size),
            writing: RwLock::new(()),
        }
    }

    fn copy(&self) -> Self {
        let _nobody = self.writing.write();
        let copy = Self::new(self.device.size());
        let mut chunk = vec![0; 1 << 20];
        for at in (0..self.device.size()).step_by(chunk.len()) {
            self.device.read(at, &mut chunk).unwrap();
            if chunk.iter().any(|b| *b != 0) {
                copy.device.write(at, &chunk).unwrap();
            }
        }
        copy
    }
}

impl Device for Stopped {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let _writing = self.writing.read();
        self.device.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let _writing = self.writing.read();
        self.device.discard(offset, len)
    }
}

struct Filled {
    device: Arc<Stopped>,
    fs: Arc<FileSystem>,
    options: Options,
    numbers: Numbers,
    /// Names in the root, and whether each is a directory.
    names: Vec<(Vec<u8>, bool)>,
    made: u64,
    /// One in so many calls is followed by a sync; 0 for none.
    syncs: u64,
}

impl Filled {
    fn new(size: u64, seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let device = Arc::new(Stopped::new(size));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let options = Options {
            cache_budget: if numbers.one_in(2) {
                8 << 20
            } else {
                512 << 20
            },
            ..options(numbers.one_in(2))
        };
        let fs = FileSystem::open_device(device.clone(), &options).unwrap();
        Self {
            device,
            fs,
            options,
            numbers,
            names: Vec::new(),
            made: 0,
            syncs: 0,
        }
    }

    /// Syncs, merges, opens anew or kills, or does nothing.
    fn disturb(&mut self) {
        match self.numbers.below(6) {
            0 => self.fs.sync().unwrap(),
            1 => self.fs.merge().unwrap(),
            2 => {
                self.fs.close().unwrap();
                self.open();
            }
            3 => {
                // What a killed process leaves; all that was there is to be there, so it was synced.
                self.fs.sync().unwrap();
                let killed = Arc::new(self.device.copy());
                self.fs.close().unwrap();
                self.device = killed;
                self.open();
            }
            _ => {}
        }
    }

    fn open(&mut self) {
        self.fs = FileSystem::open_device(self.device.clone(), &self.options).unwrap();
    }

    fn lookup(&self, name: &[u8]) -> u64 {
        let ino = self.fs.lookup(1, name).unwrap().ino;
        self.fs.forget(ino, 1);
        ino
    }

    fn make(&mut self) -> Result<u64> {
        let name = format!("f{}", self.made).into_bytes();
        self.made += 1;
        let ino = self.fs.mknod(1, &name, 0o100_644, 0, Creds::default())?.ino;
        self.fs.forget(ino, 1);
        self.names.push((name, false));
        Ok(ino)
    }

    fn any(&mut self) -> Option<u64> {
        let n = self.numbers.below(self.names.len() as u64) as usize;
        let (name, dir) = self.names.get(n)?.clone();
        (!dir).then(|| self.lookup(&name))
    }

    fn write(&mut self, ino: u64, at: u64, len: u64) -> Result<()> {
        let data = vec![self.made as u8 | 1; len as usize];
        let written = self.fs.write(ino, at, &data, false)?;
        match written as u64 == len {
            true => Ok(()),
            false => Err(Error::NoSpace),
        }
    }

    fn fill_once(&mut self, mix: Mix) -> Result<()> {
        match mix {
            Mix::Files(size) => {
                let ino = self.make()?;
                self.write(ino, 0, size)
            }
            Mix::Changing => match self.any() {
                Some(ino) if !self.numbers.one_in(4) => {
                    let (at, len) = (self.numbers.below(100_000), self.numbers.below(12_000));
                    self.write(ino, at, len + 1)
                }
                _ => self.make().map(|_| ()),
            },
            Mix::Attributes(len) => {
                let ino = self.make()?;
                let mut value = vec![7; len as usize];
                value[..8].copy_from_slice(&self.made.to_le_bytes());
                let name = format!("user.{}", self.numbers.below(1000));
                self.fs
                    .setxattr(ino, name.as_bytes(), &value, XattrMode::Set)
            }
            Mix::Names => self.fill_names(),
            Mix::Space => self.fill_space(),
        }
    }

    fn fill_names(&mut self) -> Result<()> {
        let name = format!(
            "{}-{}",
            self.made,
            "n".repeat(self.numbers.below(200) as usize)
        );
        let name = name.into_bytes();
        self.made += 1;
        let who = Creds::default();
        let made = match (self.numbers.below(4), self.any()) {
            (0, _) => self.fs.mkdir(1, &name, 0o755, who),
            (1, Some(ino)) => self.fs.link(ino, 1, &name),
            (2, _) => self.fs.symlink(
                1,
                &name,
                &vec![b't'; 1 + self.numbers.below(4000) as usize],
                who,
            ),
            _ => self.fs.mknod(1, &name, 0o100_600, 0, who),
        }?;
        self.fs.forget(made.ino, 1);
        let dir = made.kind == cairnfs::types::FileKind::Directory;
        self.names.push((name, dir));
        Ok(())
    }

    fn fill_space(&mut self) -> Result<()> {
        let Some(ino) = self.any().filter(|_| !self.numbers.one_in(5)) else {
            return self.make().map(|_| ());
        };
        let (at, len) = (self.numbers.below(300_000), 1 + self.numbers.below(60_000));
        match self.numbers.below(4) {
            0 => {
                // A hole needs no more than is kept for it.
                self.fs.fallocate(ino, at, len, Fallocate::PunchHole, false)
            }
            1 => self.write(ino, at, len % 9000 + 1),
            _ => {
                let what = Fallocate::Allocate { keep_size: false };
                self.fs.fallocate(ino, at, len, what, false)
            }
        }
    }

    /// Fills until the calls are refused again and again.
    fn fill(&mut self, mix: Mix) {
        let mut refused = 0;
        while refused < 8 {
            match self.fill_once(mix) {
                Ok(()) => {}
                Err(Error::NoSpace) => refused += 1,
                Err(e) => panic!("{mix:?}: {e}"),
            }
            if self.syncs > 0 && self.numbers.one_in(self.syncs) {
                self.fs.sync().unwrap();
            }
        }
    }

    /// Removes everything, in any order and by any call that removes.
    fn empty(&mut self) {
        while !self.names.is_empty() {
            let n = self.numbers.below(self.names.len() as u64) as usize;
            let (name, dir) = self.names.swap_remove(n);
            if dir {
                self.fs.rmdir(1, &name).unwrap();
                continue;
            }
            if self.numbers.one_in(8) {
                let ino = self.lookup(&name);
                let is_file = self.fs.getattr(ino).unwrap().kind == cairnfs::types::FileKind::File;
                if is_file {
                    let size = self.numbers.below(2) * 1000;
                    let less = self.fs.getattr(ino).unwrap().size > size;
                    let set = SetAttr {
                        size: less.then_some(size),
                        ..SetAttr::default()
                    };
                    self.fs.setattr(ino, &set).unwrap();
                }
            }
            let onto = self.names.iter().rposition(|(_, dir)| !dir);
            if let Some(onto) = onto.filter(|_| self.numbers.one_in(8)) {
                // In place of another, which goes.
                let to = self.names[onto].0.clone();
                self.fs
                    .rename(1, &name, 1, &to, RenameMode::Replace)
                    .unwrap();
                if self
                    .fs
                    .lookup(1, &name)
                    .map(|a| self.fs.forget(a.ino, 1))
                    .is_ok()
                {
                    // Both were names of one inode: then rename does nothing.
                    self.fs.unlink(1, &name).unwrap();
                }
            } else {
                self.fs.unlink(1, &name).unwrap();
            }
            if self.numbers.one_in(2000) {
                self.disturb();
            }
        }
        self.fs.merge().unwrap();
    }
}

/// Fills and empties a volume; what is free afterwards is as much as before.
fn rounds(size: u64, seed: u64, rounds: u64) {
    let mut volume = Filled::new(size, seed);
    let free = volume.fs.statfs().free;
    for round in 0..rounds {
        let mix = MIXES[volume.numbers.below(MIXES.len() as u64) as usize];
        volume.syncs = [0, 10, 300][volume.numbers.below(3) as usize];
        let what = format!("{} MiB, seed {seed}, round {round}, {mix:?}", size >> 20);
        volume.fill(mix);
        let left = volume.fs.statfs();
        assert!(left.available * 16 < free, "{what}: {left:?} of {free}");
        volume.disturb();
        volume.disturb();
        volume.empty();
        let now = volume.fs.statfs().free;
        assert!(now + INDEX >= free, "{what}: {now} of {free}");
        assert!(volume.fs.failure().is_none(), "{what}");
    }
    volume.fs.close().unwrap();
    assert_sound(&*volume.device, "emptied");
}

#[test]
fn a_volume_is_filled_and_emptied_again_and_again() {
    let seeds = setting("CAIRNFS_FILL_SEEDS", 6);
    let from = setting("CAIRNFS_FILL_FROM", 0);
    let each = setting("CAIRNFS_FILL_ROUNDS", 4);
    let sizes = [16, 24, 32, 64];
    for seed in from..from + seeds {
        rounds(sizes[(seed % 4) as usize] << 20, seed, each);
    }
    println!("{seeds} volumes, each filled and emptied {each} times");
}

/// How much of what `df` says is available small files get into a volume, in percent.
fn share(size: u64, file: u64, item: u64, workers: bool) -> u64 {
    let device = Arc::new(MemoryDevice::new(size));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    // All of it may wait in memory.
    let waiting = Options {
        cache_budget: 512 << 20,
        ..options(workers)
    };
    let fs = FileSystem::open_device(device, &waiting).unwrap();
    let available = fs.statfs().available * BLOCK;
    let data = vec![5; file as usize];
    let mut made = 0;
    loop {
        let name = format!("{made}");
        let Ok(attr) = fs.mknod(1, name.as_bytes(), 0o100_644, 0, Creds::default()) else {
            break;
        };
        fs.forget(attr.ino, 1);
        if fs.write(attr.ino, 0, &data, false).is_err() {
            break;
        }
        made += 1;
    }
    fs.sync().unwrap();
    made * (file + item) * 100 / available
}

#[test]
fn small_files_fill_what_is_available() {
    // An inode item, an entry and its name take 170 bytes beside the contents.
    for (size, file) in [(32 << 20, 1500), (64 << 20, 100)] {
        for workers in [false, true] {
            let share = share(size, file, 170, workers);
            println!("{} MiB, files of {file} bytes: {share} %", size >> 20);
            assert!(share >= 95, "files of {file} bytes fill {share} %");
        }
    }
}

#[test]
fn what_waits_counts_as_used() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let waiting = Options {
        cache_budget: 512 << 20,
        ..options(false)
    };
    let fs = FileSystem::open_device(device, &waiting).unwrap();
    let before = fs.statfs().free;
    for i in 0..100 {
        let name = format!("{i}");
        let ino = fs
            .mknod(1, name.as_bytes(), 0o100_644, 0, Creds::default())
            .unwrap()
            .ino;
        fs.write(ino, 0, &vec![1; 40_960], false).unwrap();
    }
    let waits = fs.statfs().free;
    assert!(before - waits >= 1000, "{waits} of {before} free");
    fs.sync().unwrap();
    fs.merge().unwrap();
    let placed = fs.statfs().free;
    assert!(placed.abs_diff(waits) <= 64, "{waits}, then {placed} free");
}

/// Space allocated ahead may be written, and written over, on a volume that is full.
#[test]
fn allocated_space_is_written_on_a_full_volume() {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(true)).unwrap();
    let make = |name: &[u8]| {
        fs.mknod(1, name, 0o100_644, 0, Creds::default())
            .unwrap()
            .ino
    };
    let ahead = make(b"ahead");
    let len = 4 << 20;
    let what = Fallocate::Allocate { keep_size: false };
    fs.fallocate(ahead, 0, len, what, false).unwrap();
    let rest = make(b"rest");
    let mut at = 0;
    while let Ok(n) = fs.write(rest, at, &vec![9; 65_536], false) {
        at += n as u64;
    }
    for round in 1..4u8 {
        for at in (0..len).step_by(65_536) {
            let written = fs.write(ahead, at, &vec![round; 65_536], false);
            assert_eq!(written.unwrap(), 65_536, "round {round} at {at}");
        }
        fs.fsync(ahead, false).unwrap();
        let mut read = vec![0; len as usize];
        fs.read(ahead, 0, &mut read).unwrap();
        assert!(read.iter().all(|b| *b == round));
    }
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}
