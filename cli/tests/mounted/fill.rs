//! Fills a mounted volume until it refuses writes, empties it in any order, and fills it again.
//!
//! Between and during these phases the volume is synced, unmounted and mounted, and the daemon is
//! killed. Removing and truncating never fails, and the free space does not drift. The variables
//! are those of the same property in-process: `CAIRNFS_FILL_SEEDS` volumes (1) from seed
//! `CAIRNFS_FILL_FROM`, each filled `CAIRNFS_FILL_ROUNDS` times (4), the largest of
//! `CAIRNFS_FILL_MIB` (16).
//!
//! Contract: failure.space, failure.removal

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use cairnfs_tier::size_from;
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr, statvfs};
use rustix::io::Errno;

use crate::place::{Place, Random, able, pattern, tell};

/// Maximum number of blocks in use in an empty volume.
const INDEX: u64 = 16;
/// Number of refused calls after which the volume counts as full.
const REFUSALS: u32 = 32;
/// Sizes of volumes, in MiB.
const SIZES: [u64; 7] = [16, 24, 64, 128, 256, 512, 1024];

#[derive(Debug, Clone, Copy)]
enum Mix {
    /// Files of one size.
    Files(usize),
    /// Files of all sizes, overwritten and appended to.
    Changing,
    /// Files with an attribute of that many bytes.
    Attributes(usize),
    /// Directories, links, symlinks.
    Names,
    /// Preallocated space, and holes.
    Space,
}

const MIXES: [Mix; 8] = [
    Mix::Files(4200),
    Mix::Files(1500),
    Mix::Names,
    Mix::Changing,
    Mix::Files(20_000),
    Mix::Space,
    Mix::Attributes(3000),
    Mix::Files(100),
];

struct Filled {
    place: Place,
    random: Random,
    names: Vec<PathBuf>,
    made: u64,
    kills: u64,
}

impl Filled {
    fn new_path(&mut self) -> PathBuf {
        self.made += 1;
        let name = match self.random.below(4) {
            0 => format!(
                "{}{}",
                self.made,
                "n".repeat(self.random.below(200) as usize)
            ),
            _ => self.made.to_string(),
        };
        self.place.at(name)
    }

    fn any(&mut self) -> Option<PathBuf> {
        let n = self.random.below(self.names.len().max(1) as u64) as usize;
        let path = self.names.get(n)?;
        let is_file = path.symlink_metadata().unwrap().is_file();
        is_file.then(|| path.clone())
    }

    /// An existing file; a new one if none exists, or with probability 1/`new`.
    fn open(&mut self, new: u64) -> io::Result<File> {
        let there = self.any().filter(|_| self.random.below(new) > 0);
        match there {
            Some(path) => File::options().write(true).open(path),
            None => {
                let path = self.new_path();
                let file = File::create(&path)?;
                self.names.push(path);
                Ok(file)
            }
        }
    }

    fn fill_once(&mut self, mix: Mix) -> io::Result<()> {
        let (at, len) = (self.random.below(300_000), 1 + self.random.below(12_000));
        match mix {
            Mix::Files(size) => self.open(1)?.write_all_at(&pattern(self.made, size), 0),
            Mix::Changing => {
                let file = self.open(4)?;
                file.write_all_at(&pattern(self.made, len as usize), at / 3)
            }
            Mix::Attributes(size) => {
                drop(self.open(1)?);
                let path = self.names.last().unwrap();
                let value = pattern(self.made, size);
                Ok(setxattr(path, "user.a", &value, XattrFlags::empty())?)
            }
            Mix::Names => self.fill_names(),
            Mix::Space => {
                let file = self.open(5)?;
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                match self.random.below(4) {
                    // Punching a hole uses only reserved space and never fails.
                    0 => fallocate(&file, hole, at, 5 * len).unwrap(),
                    1 => file.write_all_at(&pattern(self.made, len as usize), at)?,
                    _ => fallocate(&file, FallocateFlags::empty(), at, 5 * len)?,
                }
                Ok(())
            }
        }
    }

    fn fill_names(&mut self) -> io::Result<()> {
        let (path, there) = (self.new_path(), self.any());
        match (self.random.below(4), there) {
            (0, _) => fs::create_dir(&path)?,
            (1, Some(there)) => fs::hard_link(there, &path)?,
            (2, _) => symlink("t".repeat(1 + self.random.below(4000) as usize), &path)?,
            _ => drop(File::create(&path)?),
        }
        self.names.push(path);
        Ok(())
    }

    fn fill(&mut self, mix: Mix) {
        let mut refused = 0;
        while refused < REFUSALS {
            match self.fill_once(mix) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) => refused += 1,
                Err(e) => panic!("{mix:?}: {e}"),
            }
            if self.random.below(2000) == 0 {
                self.disturb();
            }
        }
    }

    /// Syncs, remounts, or kills the daemon.
    fn disturb(&mut self) {
        match self.random.below(3) {
            0 => drop(self.place.ok(&["sync", "m"])),
            1 => self.place.remount("durability=1"),
            _ => {
                self.place.kill();
                self.place.check();
                self.place.mount("durability=1");
                self.kills += 1;
                // After the kill, changes that were not durable may be lost, and removed files
                // may exist again.
                let entries = fs::read_dir(self.place.dir()).unwrap();
                self.names = entries.map(|entry| entry.unwrap().path()).collect();
            }
        }
    }

    /// Removes everything, by random calls that remove files.
    fn empty(&mut self) {
        let some = self.names.len() as u64 / 2 + 1;
        while !self.names.is_empty() {
            let n = self.random.below(self.names.len() as u64) as usize;
            let path = self.names.swap_remove(n);
            self.remove(&path);
            if self.random.below(some) == 0 {
                self.disturb();
            }
        }
    }

    fn remove(&mut self, path: &Path) {
        let kind = path.symlink_metadata().unwrap();
        if kind.is_dir() {
            return fs::remove_dir(path).unwrap();
        }
        if kind.is_file() {
            match self.random.below(8) {
                0 => drop(File::create(path).unwrap()),
                1 => {
                    let file = File::options().write(true).open(path).unwrap();
                    file.set_len(kind.len() / 2).unwrap();
                }
                _ => {}
            }
        }
        let onto = self.names.last().filter(|to| !to.is_dir());
        match onto.filter(|_| self.random.below(8) == 0) {
            // A rename between two names of one inode keeps both.
            Some(to) => {
                fs::rename(path, to).unwrap();
                if path.symlink_metadata().is_ok() {
                    fs::remove_file(path).unwrap();
                }
            }
            None => fs::remove_file(path).unwrap(),
        }
    }

    /// Free blocks and available blocks, as df(1) shows them.
    fn space(&self) -> (u64, u64) {
        let stat = statvfs(self.place.dir()).unwrap();
        (stat.f_bfree, stat.f_bavail)
    }
}

/// Fills and empties one volume. Returns the number of names made and of kills.
fn rounds(mib: u64, seed: u64, rounds: u64) -> (u64, u64) {
    let mut volume = Filled {
        place: Place::mounted(&format!("{mib}M"), "durability=1"),
        random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
        names: Vec::new(),
        made: 0,
        kills: 0,
    };
    let (free, _) = volume.space();
    for round in 0..rounds {
        let mix = MIXES[((seed + round) % MIXES.len() as u64) as usize];
        let what = format!("{mib} MiB, seed {seed}, round {round}, {mix:?}");
        println!("{what}");
        volume.fill(mix);
        let (_, available) = volume.space();
        // Overwriting and punching leave single free blocks, which the index cannot use.
        let part = match mix {
            Mix::Changing | Mix::Space => 8,
            _ => 16,
        };
        assert!(available * part < free, "{what}: {available} of {free}");
        volume.disturb();
        volume.disturb();
        volume.empty();
        volume.place.remount("durability=1");
        let (now, _) = volume.space();
        assert!(now + INDEX >= free, "{what}: {now} of {free}");
    }
    let Filled {
        place, made, kills, ..
    } = volume;
    place.finish();
    (made, kills)
}

#[test]
fn mounted_volume_is_filled_and_emptied_repeatedly() {
    if !able(&[]) {
        return;
    }
    let seeds = size_from("CAIRNFS_FILL_SEEDS", 1, 1);
    let from = size_from("CAIRNFS_FILL_FROM", 0, 0);
    let each = size_from("CAIRNFS_FILL_ROUNDS", 2, 4);
    let most = size_from("CAIRNFS_FILL_MIB", 16, 16);
    let sizes = SIZES.iter().filter(|mib| **mib <= most).count() as u64;
    let (mut names, mut kills) = (0, 0);
    for seed in from..from + seeds {
        let tried = rounds(SIZES[(seed % sizes) as usize], seed, each);
        names += tried.0;
        kills += tried.1;
    }
    tell(&format!(
        "{seeds} mounted volumes, each filled and emptied {each} times: {names} names, {kills} kills"
    ));
}
