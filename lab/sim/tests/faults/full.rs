//! Fills a volume completely with each kind of operation in turn.
//!
//! The operation that needs space is refused and leaves the tree unchanged. Operations that need
//! none, or free some, are not refused, and all space is free again in the end. Power failures
//! meanwhile lose nothing.
//!
//! Contract: failure.space, failure.removal

use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, Result};
use cairnfs_disk::types::{Creds, Fallocate, RenameMode, SetAttr, XattrMode};
use cairnfs_sim::disk::SimDisk;
use cairnfs_sim::explore::{Depth, explore};
use cairnfs_sim::image::Image;
use cairnfs_sim::record::{Recording, fresh_volume, options};
use cairnfs_sim::tree::{ROOT, Tree};
use cairnfs_sim::workload::{after, steps};
use cairnfs_tier::size;

use crate::support::{Count, Told, difference, reopen, sound};

/// The initial contents: a file for each filler that needs one.
const BEFORE: &str = "
    mkdir d; mkdir e; mkdir gone; create data; write data 0 14000; create small; write small 0 1000;
    create sparse; write sparse 40000 10; create many; setxattr many a 9000; setxattr many b 10;
    create victim; write victim 0 9000; symlink s 100; create fill; create r; sync; merge";
/// Bytes left for the operation that fills the rest.
const LEFT: u64 = 768 << 10;
const BLOCK: u64 = 4096;

struct Volume {
    fs: Arc<FileSystem>,
}

type Filler = fn(&Volume, u64) -> Result<()>;

const FILLERS: [(&str, Filler); 14] = [
    ("create", |v, i| {
        v.made(v.fs.mknod(v.ino("d"), &long(i), 0o100_644, 0, Creds::default()))
    }),
    ("mkdir", |v, i| {
        v.made(v.fs.mkdir(v.ino("d"), &long(i), 0o755, Creds::default()))
    }),
    ("symlink", |v, i| {
        v.made(v.fs.symlink(v.ino("d"), &long(i), &[b't'; 3000], Creds::default()))
    }),
    ("link", |v, i| {
        v.made(v.fs.link(v.ino("data"), v.ino("d"), &long(i)))
    }),
    ("whiteout", |v, i| {
        let owner = Creds::default();
        let replace = false;
        let mode = RenameMode::Whiteout { owner, replace };
        // Each rename leaves a whiteout under the same name, for the next one to move.
        v.fs.rename(ROOT, b"r", v.ino("d"), &long(i), mode)
    }),
    ("tmpfile", |v, _| {
        v.fs.tmpfile(v.ino("d"), 0o600, Creds::default())
            .map(|_| ())
    }),
    ("write", |v, i| {
        v.fs.write(v.ino("data"), i * BLOCK, &[3; 4096], false)
            .map(|_| ())
    }),
    ("append", |v, _| {
        v.fs.append(v.ino("small"), &[5; 3000], false).map(|_| ())
    }),
    ("truncate up", |v, i| {
        v.use_up();
        v.truncate("sparse", 60_000 + i * 1000)
    }),
    ("allocate", |v, i| {
        v.allocate("sparse", 100_000 + i * BLOCK, BLOCK)
    }),
    ("allocate much", |v, i| {
        v.allocate("small", 5000 + i * 300_000, 300_000)
    }),
    ("zero", |v, i| {
        let zero = Fallocate::ZeroRange { keep_size: false };
        v.use_up();
        v.fs.fallocate(v.ino("small"), i * 9000 + 100, 7000, zero, false)
    }),
    ("setxattr", |v, i| {
        let name = format!("user.n{i}");
        v.fs.setxattr(
            v.ino("small"),
            name.as_bytes(),
            &unique_value(i, 30_000),
            XattrMode::Set,
        )
    }),
    ("small setxattr", |v, i| {
        let name = format!("user.n{i}");
        v.fs.setxattr(
            v.ino("d"),
            name.as_bytes(),
            &unique_value(i, 300),
            XattrMode::Set,
        )
    }),
];

/// Fillers that use up all space before the operation that is to be refused.
const USES_UP: [&str; 2] = ["truncate up", "zero"];

/// Operations that a full volume does not refuse.
const FREE: [(&str, Filler); 13] = [
    ("overwrite", |v, i| {
        v.fs.write(v.ino("data"), i % 3 * BLOCK + 9, &[4; 100], false)
            .map(|_| ())
    }),
    ("unlink", |v, _| v.fs.unlink(ROOT, b"victim")),
    ("rmdir", |v, _| v.fs.rmdir(ROOT, b"gone")),
    ("truncate", |v, _| v.truncate("data", 5000)),
    ("truncate to nothing", |v, _| v.truncate("data", 0)),
    ("punch", |v, _| {
        v.fs.fallocate(v.ino("data"), 1000, 9000, Fallocate::PunchHole, false)
    }),
    ("punch within a block", |v, _| {
        v.fs.fallocate(v.ino("data"), 10, 50, Fallocate::PunchHole, false)
    }),
    ("removexattr", |v, _| {
        v.fs.removexattr(v.ino("many"), b"user.a")
    }),
    ("small removexattr", |v, _| {
        v.fs.removexattr(v.ino("many"), b"user.b")
    }),
    ("chmod", |v, _| {
        let set = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        v.fs.setattr(v.ino("data"), &set).map(|_| ())
    }),
    ("rename within", |v, _| {
        v.fs.rename(ROOT, b"r", ROOT, b"t", RenameMode::Replace)
    }),
    ("rename over", |v, _| {
        v.fs.rename(ROOT, b"r", ROOT, b"victim", RenameMode::Replace)
    }),
    ("exchange within", |v, _| {
        v.fs.rename(ROOT, b"r", ROOT, b"data", RenameMode::Exchange)
    }),
];

/// A value that no other attribute has, because equal values share their space.
fn unique_value(i: u64, len: usize) -> Vec<u8> {
    let mut value = vec![7; len];
    value[..8].copy_from_slice(&i.to_le_bytes());
    value
}

/// A name of 200 bytes.
fn long(i: u64) -> Vec<u8> {
    format!("{i:0>200}").into_bytes()
}

impl Volume {
    fn open(image: &Image) -> (Self, Arc<SimDisk>) {
        let disk = Arc::new(SimDisk::new(image.clone(), false));
        let fs = FileSystem::open_device(disk.clone(), &options(8)).unwrap();
        (Self { fs }, disk)
    }

    fn ino(&self, name: &str) -> u64 {
        let ino = self.fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
        self.fs.forget(ino, 1);
        ino
    }

    fn made(&self, made: Result<cairnfs_disk::types::Attr>) -> Result<()> {
        self.fs.forget(made?.ino, 1);
        Ok(())
    }

    /// Uses up space, for an operation that needs space only temporarily.
    fn use_up(&self) {
        for len in [1 << 16, 4096] {
            while self
                .fs
                .append(self.ino("fill"), &vec![1; len], false)
                .is_ok()
            {}
        }
    }

    fn truncate(&self, name: &str, size: u64) -> Result<()> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.setattr(self.ino(name), &set).map(|_| ())
    }

    fn allocate(&self, name: &str, at: u64, len: u64) -> Result<()> {
        let what = Fallocate::Allocate { keep_size: false };
        self.fs.fallocate(self.ino(name), at, len, what, false)
    }

    /// Repeats an operation until it is refused; returns how often it succeeded.
    fn fill(&self, filler: Filler, from: u64, most: u64) -> u64 {
        for i in 0..most {
            match filler(self, from + i) {
                Err(Error::NoSpace) => return i,
                done => done.unwrap(),
            }
        }
        most
    }

    fn tree(&self) -> Tree {
        Tree::read(&self.fs).unwrap()
    }

    /// Checks that no operation that needs no space is refused.
    fn settle(&self) {
        for name in ["data", "small", "sparse", "d"] {
            self.fs.fsync(self.ino(name), false).unwrap();
        }
        self.fs.sync().unwrap();
        self.fs.merge().unwrap();
    }
}

/// Removes everything in a directory.
pub fn remove_all(fs: &FileSystem, dir: u64) -> Result<()> {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |e| {
        if e.name != b"." && e.name != b".." {
            entries.push((e.name.to_vec(), e.ino));
        }
        true
    })?;
    for (name, ino) in entries {
        if fs.getattr(ino)?.kind.is_dir() {
            remove_all(fs, ino)?;
            fs.rmdir(dir, &name)?;
        } else {
            fs.unlink(dir, &name)?;
        }
    }
    Ok(())
}

/// A volume with little space left, and its free space when it was empty.
pub fn nearly_full() -> (Image, u64) {
    let fresh = fresh_volume(16 << 20).unwrap();
    let (empty, _) = Volume::open(&fresh);
    let free = empty.fs.statfs().free;
    let before = after(fresh, &steps(BEFORE).unwrap()).unwrap();
    let (volume, disk) = Volume::open(&before);
    let available = volume.fs.statfs().available * BLOCK;
    volume.allocate("fill", 0, available - LEFT).unwrap();
    volume.fs.close().unwrap();
    (disk.image(), free)
}

/// Checks that a refused operation changes nothing. The operations before it are repeated to get
/// the tree just before.
fn refusal(start: &Image, filler: Filler, done: u64, uses_up: bool) {
    let (volume, _) = Volume::open(start);
    assert_eq!(volume.fill(filler, 0, done), done);
    let mut last = volume.tree();
    for i in done..done + 3 {
        let refused = filler(&volume, i);
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        let tree = volume.tree();
        // A filler that uses up all space first has done so by now; the second time there is none
        // left to use.
        let took = uses_up && i == done;
        assert!(took || tree == last, "{}", difference(&tree, &last));
        last = tree;
    }
    volume.settle();
    let settled = volume.tree();
    assert_eq!(settled, last, "{}", difference(&settled, &last));
}

/// Contract: failure.space
#[test]
fn full_volume_refuses_only_what_needs_space() {
    let (start, free) = nearly_full();
    let mut count = Count::default();
    for (name, filler) in FILLERS {
        let told = Told::new(name.into());
        let (volume, disk) = Volume::open(&start);
        let done = volume.fill(filler, 0, 20_000);
        assert!(done < 20_000, "never refused");
        count.add(name, done);
        refusal(&start, filler, done, USES_UP.contains(&name));
        volume.settle();
        let tree = volume.tree();
        volume.fs.close().unwrap();
        let full = disk.image();
        sound(&full).unwrap();
        assert_eq!(reopen(&full).unwrap(), tree);
        for (name, free) in FREE {
            let (volume, _) = Volume::open(&full);
            let more = volume.fill(filler, 100_000, 20_000);
            assert!(more < 20_000);
            let freed = free(&volume, 0);
            assert!(freed.is_ok(), "{name} is refused: {freed:?}");
            volume.settle();
            volume.fs.close().unwrap();
        }
        let (volume, disk) = Volume::open(&full);
        remove_all(&volume.fs, ROOT).unwrap();
        volume.fs.merge().unwrap();
        let now = volume.fs.statfs().free;
        assert!(now + 64 >= free, "{now} of {free} blocks came back");
        volume.fs.close().unwrap();
        sound(&disk.image()).unwrap();
        told.well();
    }
    count.print("done until refused");
}

#[test]
fn power_cut_on_full_volume_loses_nothing() {
    let (start, _) = nearly_full();
    let mut count = Count::default();
    for (name, filler) in FILLERS {
        let told = Told::new(name.into());
        let (volume, disk) = Volume::open(&start);
        volume.fill(filler, 0, 20_000);
        volume.fs.close().unwrap();
        let disk = Arc::new(SimDisk::new(disk.image(), true));
        let (recording, ()) = Recording::on(&disk, &options(9), |fs| {
            let volume = Volume { fs: fs.clone() };
            volume.fill(filler, 100_000, 200);
            volume.fs.sync().unwrap();
            volume.fs.unlink(ROOT, b"victim").unwrap();
            volume.truncate("data", 5000).unwrap();
            volume.fs.merge().unwrap();
            volume.fill(filler, 200_000, 200);
            volume.fs.sync().unwrap();
        })
        .unwrap();
        let depth = Depth {
            states: size(6, 12),
            interrupted: 8,
            within: 2,
            used: 0,
        };
        let tally = explore(&recording, &depth, &mut |_| {});
        assert!(tally.failures.is_empty(), "{}", tally.failures[0]);
        count.add("states", tally.states);
        told.well();
    }
    count.print("crash states of full volumes");
}

/// Values that two files share each lose one use at a time; each time the large value's count is
/// rewritten.
#[test]
fn full_volume_allows_removing_shared_large_values() {
    const VALUES: u64 = 40;
    let (volume, disk) = Volume::open(&fresh_volume(64 << 20).unwrap());
    let file = |n: u64| long(n % (2 * VALUES));
    let made = |name: &[u8]| volume.fs.mknod(ROOT, name, 0o100_644, 0, Creds::default());
    volume.made(made(b"fill")).unwrap();
    for n in 0..2 * VALUES {
        volume.made(made(&file(n))).unwrap();
        let value = vec![(n % VALUES) as u8; 65_000];
        let ino = volume.fs.lookup(ROOT, &file(n)).unwrap().ino;
        let set = XattrMode::Set;
        volume.fs.setxattr(ino, b"user.v", &value, set).unwrap();
        volume.fs.forget(ino, 1);
    }
    volume.fs.sync().unwrap();
    volume.fs.merge().unwrap();
    volume.use_up();
    volume.fs.sync().unwrap();
    volume.fs.merge().unwrap();
    volume.use_up();
    for half in [0..VALUES, VALUES..2 * VALUES] {
        for n in half {
            volume.fs.unlink(ROOT, &file(n)).unwrap();
        }
        volume.fs.sync().unwrap();
        volume.fs.merge().unwrap();
        sound(&disk.image()).unwrap();
    }
    volume.fs.close().unwrap();
}
