//! A volume that is filled by mixes of calls and emptied in any order, with disturbances.
//!
//! The calls depend on a seed. Disturbances are syncs, merges, reopening with another cache budget,
//! and kills, which lose what was not synced. Only calls that fill the volume may be refused.

use std::sync::Arc;

use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs::{Error, Result};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::types::{Creds, Fallocate, FileKind, RenameMode, SetAttr, XattrMode};
use parking_lot::RwLock;

use super::seen::options;

/// Bytes for caches and dirty data: dirty data can be a small part of a volume or all of it.
const BUDGETS: [usize; 3] = [8 << 20, 64 << 20, 2 << 30];
/// Number of refused calls after which a volume counts as full.
const REFUSALS: u32 = 64;

/// Pseudorandom numbers from a seed (SplitMix64).
pub struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a volume is filled with.
#[derive(Debug, Clone, Copy)]
pub enum Mix {
    /// Files of one size.
    Files(u64),
    /// Files of many sizes, overwritten and extended.
    Changing,
    /// Empty files with attributes of this many bytes.
    Attributes(u64),
    /// Names: directories, hard links, symbolic links.
    Names,
    /// Preallocated space, holes, and ends that are not on block boundaries.
    Space,
}

impl Mix {
    /// Whether it frees single blocks between used ones.
    pub fn scatters(self) -> bool {
        matches!(self, Self::Changing | Self::Space)
    }
}

pub const MIXES: [Mix; 12] = [
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

/// A device that can be copied between two writes, as a kill leaves it.
pub struct Stopped {
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

pub struct Filled {
    pub device: Arc<Stopped>,
    pub fs: Arc<FileSystem>,
    options: Options,
    pub numbers: Numbers,
    /// Names in the root, and whether each is a directory.
    pub names: Vec<(Vec<u8>, bool)>,
    /// Number of names made so far.
    pub made: u64,
    /// One of this many filling calls is followed by a sync; 0 for none.
    pub syncs: u64,
    /// One of this many filling calls is followed by a disturbance; 0 for none.
    pub disturbances: u64,
    /// Number of kills so far.
    pub kills: u64,
}

impl Filled {
    pub fn new(size: u64, seed: u64, workers: bool) -> Self {
        let device = Arc::new(Stopped::new(size));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let options = Options {
            cache_budget: BUDGETS[2],
            ..options(workers)
        };
        let fs = FileSystem::open_device(device.clone(), &options).unwrap();
        Self {
            device,
            fs,
            options,
            numbers: Numbers(seed),
            names: Vec::new(),
            made: 0,
            syncs: 0,
            disturbances: 0,
            kills: 0,
        }
    }

    /// Syncs, merges, reopens or kills.
    pub fn disturb(&mut self) {
        match self.numbers.below(4) {
            0 => self.fs.sync().unwrap(),
            1 => self.fs.merge().unwrap(),
            2 => self.reopen(),
            _ => self.kill(),
        }
    }

    /// Closes the volume and opens it with another cache budget.
    pub fn reopen(&mut self) {
        self.fs.close().unwrap();
        self.options.cache_budget = BUDGETS[self.numbers.below(3) as usize];
        self.open();
    }

    /// Opens the volume as a killed process leaves it. Unsynced changes may be lost, and removed
    /// names may reappear.
    fn kill(&mut self) {
        let killed = Arc::new(self.device.copy());
        self.fs.close().unwrap();
        self.device = killed;
        self.open();
        self.kills += 1;
        self.names.clear();
        let names = &mut self.names;
        self.fs
            .readdir(1, 0, &mut |e| {
                if e.name != b"." && e.name != b".." {
                    names.push((e.name.to_vec(), e.kind == FileKind::Directory));
                }
                true
            })
            .unwrap();
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
        if written as u64 == len {
            Ok(())
        } else {
            Err(Error::NoSpace)
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
        let dir = made.kind == FileKind::Directory;
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
                // A hole needs no more space than is reserved for it.
                self.fs.fallocate(ino, at, len, Fallocate::PunchHole, false)
            }
            1 => self.write(ino, at, len % 9000 + 1),
            _ => {
                let what = Fallocate::Allocate { keep_size: false };
                self.fs.fallocate(ino, at, len, what, false)
            }
        }
    }

    /// Fills the volume until [`REFUSALS`] calls were refused.
    pub fn fill(&mut self, mix: Mix) {
        let mut refused = 0;
        while refused < REFUSALS {
            match self.fill_once(mix) {
                Ok(()) => {}
                Err(Error::NoSpace) => refused += 1,
                Err(e) => panic!("{mix:?}: {e}"),
            }
            if self.syncs > 0 && self.numbers.one_in(self.syncs) {
                self.fs.sync().unwrap();
            }
            if self.disturbances > 0 && self.numbers.one_in(self.disturbances) {
                self.disturb();
            }
        }
    }

    /// The number of files that hold `len` bytes. A file is made before it is written, so some of the calls
    /// that are refused last leave a name without contents.
    pub fn whole(&self, len: u64) -> usize {
        let size = |name: &[u8]| {
            let attr = self.fs.lookup(1, name).unwrap();
            self.fs.forget(attr.ino, 1);
            attr.size
        };
        let files = self.names.iter().filter(|(_, dir)| !dir);
        files.filter(|(name, _)| size(name) == len).count()
    }

    /// Removes everything, in any order and with every kind of call that removes.
    pub fn empty(&mut self) {
        let some = self.names.len() as u64 / 4 + 100;
        while !self.names.is_empty() {
            let n = self.numbers.below(self.names.len() as u64) as usize;
            let (name, dir) = self.names.swap_remove(n);
            if dir {
                self.fs.rmdir(1, &name).unwrap();
                continue;
            }
            if self.numbers.one_in(8) {
                self.cut_off(&name);
            }
            let onto = self.names.iter().rposition(|(_, dir)| !dir);
            match onto.filter(|_| self.numbers.one_in(8)) {
                Some(onto) => self.replace(&name, onto),
                None => self.fs.unlink(1, &name).unwrap(),
            }
            if self.numbers.one_in(some) {
                self.disturb();
            }
        }
        self.fs.merge().unwrap();
    }

    fn cut_off(&mut self, name: &[u8]) {
        let ino = self.lookup(name);
        let attr = self.fs.getattr(ino).unwrap();
        let sizes = [0, 1, 1000, attr.size / 2];
        let size = sizes[self.numbers.below(4) as usize];
        if attr.kind == FileKind::File && attr.size > size {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            self.fs.setattr(ino, &set).unwrap();
        }
    }

    /// Renames onto another name, whose inode loses that link.
    fn replace(&mut self, name: &[u8], onto: usize) {
        let to = &self.names[onto].0;
        let replace = RenameMode::Replace;
        self.fs.rename(1, name, 1, to, replace).unwrap();
        if let Ok(attr) = self.fs.lookup(1, name) {
            // Both names refer to one inode, so the rename did nothing.
            self.fs.forget(attr.ino, 1);
            self.fs.unlink(1, name).unwrap();
        }
    }
}
