//! Access control lists through the operations of a mount, tested without a kernel: mode and list
//! of an inode change together, for concurrent readers and on a full volume.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_disk::acl::{ACCESS, Acl, DEFAULT};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::{KillPrivileges, SetAttr};
use cairnfs_fuse::convert::Refusal;
use cairnfs_fuse::ops::{Caller, Kernel, NewEntry, Ops};
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::status::Transport;
use cairnfs_transport::Asker;

const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};

fn ops(size: u64) -> Ops {
    Ops::new(volume(size), Path::new("test"), WriteMode::Through)
}

fn volume(size: u64) -> Arc<FileSystem> {
    let device = MemoryDevice::new(size);
    make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    FileSystem::open_device(Arc::new(device), &Options::default()).unwrap()
}

fn make(ops: &Ops, name: &str, mode: u32) -> Result<u64, Refusal> {
    let new = NewEntry {
        caller: ROOT,
        dir: 1,
        name: name.as_bytes(),
        mode: libc::S_IFREG | mode,
        umask: 0,
    };
    Ok(ops.mknod(new, 0)?.ino)
}

/// Encodes a list with `users` named users and these permissions of owner, mask and others.
fn list(users: u32, mode: u32) -> Vec<u8> {
    let entry = |tag: u16, perm: u32, id: u32| {
        let perm = (perm & 7) as u16;
        [
            &tag.to_le_bytes()[..],
            &perm.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    };
    let mut bytes = 2u32.to_le_bytes().to_vec();
    bytes.extend(entry(0x01, mode >> 6, u32::MAX));
    (0..users).for_each(|user| bytes.extend(entry(0x02, 6, 1000 + user)));
    bytes.extend(entry(0x04, 0, u32::MAX));
    if users > 0 {
        bytes.extend(entry(0x10, mode >> 3, u32::MAX));
    }
    bytes.extend(entry(0x20, mode, u32::MAX));
    bytes
}

fn chmod(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

/// Reads mode and list as a kernel does, by separate requests.
fn mode_and_list(ops: &Ops, ino: u64) -> (u32, Acl, u32) {
    let before = ops.getattr(ino, false).unwrap().mode;
    let list = match ops.getxattr(ino, ACCESS) {
        Ok(value) => Acl::parse(&value).unwrap(),
        Err(refusal) => {
            assert_eq!(refusal, Refusal(libc::ENODATA));
            Acl::of_mode(before)
        }
    };
    (before, list, ops.getattr(ino, false).unwrap().mode)
}

/// Each change is atomic for readers: during a change they find the state before it or after it. If
/// a reader finds the same mode twice within one change, the list it read in between belongs to
/// that mode.
/// Contract: atomic.attributes
#[test]
fn concurrent_readers_see_matching_mode_and_list() {
    let ops = ops(64 << 20);
    let ino = make(&ops, "f", 0o600).unwrap();
    let changes = AtomicU64::new(0);
    let seen = AtomicU64::new(0);
    const ROUNDS: u64 = 3000;
    thread::scope(|scope| {
        scope.spawn(|| {
            // Continues until a reader has read a pair between two changes.
            for round in 0.. {
                if round >= ROUNDS && seen.load(Ordering::Relaxed) > 0 {
                    break;
                }
                thread::yield_now();
                changes.fetch_add(1, Ordering::SeqCst);
                match round % 4 {
                    0 => ops
                        .setxattr(KillPrivileges::No, ino, ACCESS, &list(1, 0o670), 0)
                        .unwrap(),
                    1 => drop(ops.setattr(ROOT, ino, chmod(0o640)).unwrap()),
                    2 => ops
                        .setxattr(KillPrivileges::No, ino, ACCESS, &list(9, 0o620), 0)
                        .unwrap(),
                    _ => ops
                        .setxattr(KillPrivileges::No, ino, ACCESS, &list(0, 0o600), 0)
                        .unwrap(),
                }
            }
            changes.store(u64::MAX, Ordering::SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let change = changes.load(Ordering::SeqCst);
                    if change == u64::MAX {
                        return;
                    }
                    let (before, list, after) = mode_and_list(&ops, ino);
                    let same = before == after && changes.load(Ordering::SeqCst) == change;
                    if same {
                        seen.fetch_add(1, Ordering::Relaxed);
                        assert_eq!(before & 0o777, list.permissions());
                        assert_eq!(before & 0o777 == 0o600, list.is_minimal());
                    }
                }
            });
        }
    });
}

/// The refusal comes before any change of mode or list.
/// Contract: atomic.attributes
#[test]
fn full_volume_refuses_list_and_keeps_mode() {
    let ops = ops(16 << 20);
    let refused = (0..10_000).find_map(|n| {
        let ino = make(&ops, &n.to_string(), 0o600).unwrap();
        // All values differ because equal values are stored once.
        let value = list(7000 - n, 0o660);
        let set = ops.setxattr(KillPrivileges::No, ino, ACCESS, &value, 0);
        set.err().map(|e| (ino, e))
    });
    let (ino, error) = refused.unwrap();
    assert_eq!(error, Refusal(libc::ENOSPC));
    let (mode, list, _) = mode_and_list(&ops, ino);
    assert_eq!((mode & 0o7777, list), (0o600, Acl::of_mode(0o600)));
}

/// The kernel asks for the attributes before it accepts more for its cache.
/// Contract: failure.space
#[test]
fn writer_of_the_kernels_cache_is_refused_on_a_full_volume_with_a_snapshot() {
    let fs = volume(16 << 20);
    fs.snapshot("before").unwrap();
    let ops = Ops::new(fs, Path::new("test"), WriteMode::Back);
    let filler = make(&ops, "filler", 0o600).unwrap();
    let block = [1; 4096];
    let mut at = (0..).step_by(block.len());
    let written = || ops.write(filler, at.next().unwrap(), &block, None);
    assert_eq!(
        std::iter::repeat_with(written).find_map(Result::err),
        Some(Refusal(libc::ENOSPC))
    );
    let other = make(&ops, "other", 0o600).unwrap();
    ops.getattr(other, true).unwrap();
    ops.write_cached(other, 0, &block, None).unwrap_err();
    assert_eq!(ops.getattr(other, true).unwrap_err(), Refusal(libc::ENOSPC));
}

#[test]
fn chmod_updates_list_and_list_updates_mode() {
    let ops = ops(64 << 20);
    let ino = make(&ops, "f", 0o2750).unwrap();
    let mode = || ops.getattr(ino, false).unwrap().mode & 0o7777;
    let none = Refusal(libc::ENODATA);
    assert_eq!(ops.getxattr(ino, ACCESS).unwrap_err(), none);
    // The caller is not in the file's group, so set-group-id is cleared.
    let stranger = KillPrivileges::ByGroup(50);
    ops.setxattr(stranger, ino, ACCESS, &list(1, 0o761), 0)
        .unwrap();
    assert_eq!(mode(), 0o761);
    assert_eq!(ops.getxattr(ino, ACCESS).unwrap(), list(1, 0o761));
    let after = ops.setattr(ROOT, ino, chmod(0o1616)).unwrap();
    assert_eq!((after.mode & 0o7777, mode()), (0o1616, 0o1616));
    assert_eq!(ops.getxattr(ino, ACCESS).unwrap(), list(1, 0o616));
    ops.setxattr(KillPrivileges::No, ino, ACCESS, &list(0, 0o604), 0)
        .unwrap();
    assert_eq!(mode(), 0o1604);
    // The inode had a list, and the kernel may have cached the mode that belongs to it.
    assert_eq!(ops.getxattr(ino, ACCESS).unwrap(), list(0, 0o604));
    assert!(ops.listxattr(ROOT, ino).unwrap().is_empty());
    assert_eq!(ops.getxattr(ino, DEFAULT).unwrap_err(), none);
    ops.removexattr(ino, ACCESS).unwrap();
    assert_eq!(ops.removexattr(ino, b"user.x").unwrap_err(), none);
    for name in [ACCESS, DEFAULT] {
        let refused = ops
            .setxattr(KillPrivileges::No, ino, name, b"no list", 0)
            .unwrap_err();
        assert_eq!(refused, Refusal(libc::EINVAL));
    }
    // Mode and list of an unlinked inode change together, too.
    ops.setxattr(KillPrivileges::No, ino, ACCESS, &list(9, 0o660), 0)
        .unwrap();
    ops.unlink(1, b"f").unwrap();
    ops.setattr(ROOT, ino, chmod(0o600)).unwrap();
    assert_eq!(ops.getxattr(ino, ACCESS).unwrap(), list(9, 0o600));
}

/// A kernel that records an inode's mode at the time of each invalidation.
struct Watching {
    ops: Arc<Ops>,
    seen: Arc<Mutex<Vec<u32>>>,
}

impl Kernel for Watching {
    fn forget_attributes(&self, ino: u64) {
        let mode = self.ops.getattr(ino, false).unwrap().mode;
        self.seen.lock().unwrap().push(mode & 0o7777);
    }
    fn forget_name(&self, _dir: u64, _name: &[u8]) {}
    fn fetch_dirty(&self, _ino: u64, _offset: u64) -> bool {
        true
    }
    fn is_quiet(&self, _asker: Asker) -> bool {
        true
    }
    fn transport(&self) -> Transport {
        Transport::default()
    }
}

#[test]
fn kernel_drops_cached_missing_list_before_mode_changes() {
    let ops = Arc::new(ops(64 << 20));
    let ino = make(&ops, "f", 0o640).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    ops.connect(Box::new(Watching {
        ops: ops.clone(),
        seen: seen.clone(),
    }));
    ops.setxattr(KillPrivileges::No, ino, ACCESS, &list(1, 0o670), 0)
        .unwrap();
    assert_eq!(*seen.lock().unwrap(), [0o640]);
    // The kernel has a list cached, which decides about access whatever the mode is.
    ops.setxattr(KillPrivileges::No, ino, ACCESS, &list(2, 0o660), 0)
        .unwrap();
    ops.setxattr(KillPrivileges::No, ino, ACCESS, &list(0, 0o600), 0)
        .unwrap();
    assert_eq!(seen.lock().unwrap().len(), 1);
    assert_eq!(ops.getxattr(ino, ACCESS).unwrap(), list(0, 0o600));
    ops.forget(ino, 1);
    let none = ops.getxattr(ino, ACCESS).unwrap_err();
    assert_eq!(none, Refusal(libc::ENODATA));
}
