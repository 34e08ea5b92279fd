//! Lookups of "." and ".." as a kernel sends them for file handles, tested without a kernel:
//! untrusted inode numbers occupy no memory, and no inode is found that is deleted or about to be.
//!
//! Contract: posix.handles

use std::path::Path;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_fuse::convert::Refusal;
use cairnfs_fuse::ops::{Caller, NewEntry, Ops};
use cairnfs_fuse::options::WriteMode;

const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};

const STALE: Refusal = Refusal(libc::ESTALE);

fn new(dir: u64, name: &str, mode: u32) -> NewEntry<'_> {
    NewEntry {
        caller: ROOT,
        dir,
        name: name.as_bytes(),
        mode,
        umask: 0,
    }
}

struct Volume {
    device: Arc<MemoryDevice>,
    fs: Arc<FileSystem>,
    ops: Ops,
}

impl Volume {
    fn open(device: Arc<MemoryDevice>) -> Self {
        let fs = FileSystem::open_device(device.clone(), &Options::default()).unwrap();
        let ops = Ops::new(fs.clone(), Path::new("test"), WriteMode::Through);
        Self { device, fs, ops }
    }

    fn new() -> Self {
        let device = MemoryDevice::new(64 << 20);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        Self::open(Arc::new(device))
    }

    fn reopen(self) -> Self {
        self.fs.close().unwrap();
        Self::open(self.device)
    }

    fn file(&self, dir: u64, name: &str) -> u64 {
        let made = self.ops.mknod(new(dir, name, libc::S_IFREG | 0o644), 0);
        made.unwrap().ino
    }

    fn directory(&self, dir: u64, name: &str) -> u64 {
        self.ops.mkdir(new(dir, name, 0o755)).unwrap().ino
    }

    /// Returns the inode that a lookup finds; gives its lookup reference back.
    fn find(&self, ino: u64, name: &str) -> Result<u64, Refusal> {
        let found = self.ops.lookup(ino, name.as_bytes())?.unwrap().ino;
        self.ops.forget(found, 1);
        Ok(found)
    }

    fn inodes_in_memory(&self) -> u64 {
        let counters = self.fs.counters();
        let counter = counters
            .iter()
            .find(|(name, _)| *name == "inodes_in_memory");
        counter.unwrap().1
    }
}

#[test]
fn dot_and_dotdot_resolve_inode_numbers() {
    let volume = Volume::new();
    let d = volume.directory(1, "d");
    let (e, file) = (volume.directory(d, "e"), volume.file(d, "file"));
    let check = |volume: &Volume, parent_of_e: u64| {
        for ino in [1, d, e, file] {
            assert_eq!(volume.find(ino, "."), Ok(ino));
        }
        assert_eq!(volume.find(e, ".."), Ok(parent_of_e));
        assert_eq!(volume.find(d, ".."), Ok(1));
        assert_eq!(volume.find(1, ".."), Ok(1));
        assert_eq!(volume.find(file, ".."), Err(Refusal(libc::ENOTDIR)));
    };
    check(&volume, d);
    let volume = volume.reopen();
    check(&volume, d);
    volume
        .ops
        .rename(ROOT, (d, b"e"), (1, b"moved"), 0)
        .unwrap();
    check(&volume, 1);
    check(&volume.reopen(), 1);
}

#[test]
fn removed_inode_is_stale_after_last_forget() {
    let volume = Volume::new();
    let (gone, file) = (volume.directory(1, "gone"), volume.file(1, "file"));
    volume.ops.rmdir(1, b"gone").unwrap();
    volume.ops.unlink(1, b"file").unwrap();
    // The lookup reference of its creation is still held.
    assert_eq!(volume.find(file, "."), Ok(file));
    volume.ops.forget(file, 1);
    volume.ops.forget(gone, 1);
    let check = |volume: &Volume| {
        for name in [".", ".."] {
            assert_eq!(volume.find(gone, name), Err(STALE));
            assert_eq!(volume.find(file, name), Err(STALE));
        }
    };
    check(&volume);
    check(&volume.reopen());
}

#[test]
fn inode_with_pending_removal_is_stale() {
    let volume = Volume::new();
    let file = volume.file(1, "file");
    // Sparse, so that its removal takes more than one transaction.
    for n in 0..1000 {
        let written = volume.ops.write(file, n * 8192, &[1; 4096], None);
        written.unwrap();
    }
    volume.ops.sync().unwrap();
    volume.ops.unlink(1, b"file").unwrap();
    let left = volume.ops.forget(file, 1);
    assert_eq!(volume.find(file, "."), Err(STALE));
    let left = left.expect("its removal is left to a worker");
    volume.ops.remove_unused(left);
    assert_eq!(volume.find(file, "."), Err(STALE));
}

#[test]
fn lookup_of_unused_number_is_stale_and_leaves_no_state() {
    let volume = Volume::new();
    let first = volume.file(1, "first");
    let before = volume.inodes_in_memory();
    for name in [".", ".."] {
        for never in [0, 2, 3, 4, 15, 1 << 32, 1 << 63, u64::MAX] {
            assert_eq!(volume.find(never, name), Err(STALE), "{never}");
        }
        for later in first + 1..first + 5000 {
            assert_eq!(volume.find(later, name), Err(STALE), "{later}");
        }
    }
    assert_eq!(volume.inodes_in_memory(), before);
    let made: Vec<u64> = (0..200).map(|n| volume.file(1, &n.to_string())).collect();
    assert!(
        made.iter()
            .all(|ino| (first + 1..first + 5000).contains(ino))
    );
    let check = |volume: &Volume| {
        assert!(made.iter().all(|ino| volume.find(*ino, ".") == Ok(*ino)));
    };
    check(&volume);
    check(&volume.reopen());
}
