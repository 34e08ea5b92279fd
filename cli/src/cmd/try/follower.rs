//! Removes mounts from the mount namespace of the program that were unmounted outside of it.
//!
//! A new mount namespace has copies of all mounts. Where the system propagates mounts, the kernel
//! removes a copy with its original. In other systems, such as containers, the copy would keep the file
//! system in use until the program ends, and `cairnfs umount` of another volume would wait for that. So
//! a thread watches the table of mounts outside, and unmounts the copies of what is gone there. It
//! never detaches: what the program uses, by a working directory, an open file, a mapping, an overlay
//! or a loop device, stays until that ends. Only root may unmount copies; those in a user namespace
//! are locked together by the kernel. Reads `/proc`, changes only the namespace of the program.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::path::{Path, PathBuf};
use std::thread;

use cairnfs_fuse::mountinfo::{self, MountEntry};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{fchdir, geteuid};

/// Time after which a copy that is in use is tried again.
const AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// The table of this process's mounts.
pub(super) const OWN_TABLE: &str = "/proc/self/mountinfo";

/// The mounts of this namespace, from before the program has begun.
pub(super) struct Outside {
    /// Becomes ready for exceptional events when the table has changed.
    table: File,
    mounts: Vec<MountEntry>,
}

/// While it lives, unmounts outside go to the namespace of the program.
pub(super) struct Follower {
    /// The thread ends when this is closed.
    _end: PipeWriter,
}

impl Outside {
    /// Reads the table; `None` where copies cannot be unmounted.
    pub(super) fn see() -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        // Opened first, so that no change is missed.
        let table = File::open(OWN_TABLE).ok()?;
        let mounts = mountinfo::list(Path::new(OWN_TABLE));
        Some(Self { table, mounts })
    }

    /// Follows with the namespace of the process `pid`, which shows a fork at `base`. `None` if that is
    /// not possible.
    pub(super) fn follow(self, pid: u32, base: &Path) -> Option<Follower> {
        let (stopped, end) = io::pipe().ok()?;
        let inside = Inside {
            process: PathBuf::from(format!("/proc/{pid}")),
            base: base.to_path_buf(),
        };
        let thread = thread::Builder::new().name("follower".into());
        // It ends by itself: a path on a daemon that does not answer must not hold up the end.
        thread.spawn(move || self.run(&inside, &stopped)).ok()?;
        Some(Follower { _end: end })
    }

    fn run(mut self, inside: &Inside, stopped: &PipeReader) {
        // A thread that shares its working directory with others cannot enter a mount namespace.
        if unshare(CloneFlags::CLONE_FS).is_err() {
            return;
        }
        let mut gone = Vec::new();
        while self.changed(stopped, !gone.is_empty()) {
            let now = mountinfo::list(Path::new(OWN_TABLE));
            let before = self.mounts.drain(..);
            gone.extend(before.filter(|mount| !now.iter().any(|other| is_same(mount, other))));
            self.mounts = now;
            if !gone.is_empty() {
                gone.retain(|mount| inside.has(mount));
                gone = inside.without(gone).unwrap_or_default();
            }
        }
    }

    /// Waits for a change, or if something is left to be done, for a moment. Returns whether to go on.
    fn changed(&self, stopped: &PipeReader, is_left: bool) -> bool {
        loop {
            let mut both = [
                PollFd::new(stopped, PollFlags::IN),
                PollFd::new(&self.table, PollFlags::PRI),
            ];
            match poll(&mut both, is_left.then_some(&AGAIN)) {
                Err(Errno::INTR) => {}
                Err(_) => return false,
                Ok(_) => {
                    let [end, _] = &both;
                    return end.revents().is_empty();
                }
            }
        }
    }
}

/// Whether two lines of a table, from different moments, are of one mount. The kernel gives the number
/// of a mount to another one as soon as it is free.
fn is_same(a: &MountEntry, b: &MountEntry) -> bool {
    a.id == b.id && a.device == b.device && a.mountpoint == b.mountpoint
}

/// The namespace of the program.
struct Inside {
    /// The directory of a process there.
    process: PathBuf,
    base: PathBuf,
}

impl Inside {
    /// Whether a copy of the mount is on top of its directory. What is below the path of the base is the
    /// fork's.
    fn has(&self, mount: &MountEntry) -> bool {
        let table = mountinfo::list(&self.process.join("mountinfo"));
        let top = table.iter().rfind(|e| e.mountpoint == mount.mountpoint);
        let is_copy = |top: &MountEntry| {
            (&top.device, &top.fs_type, &top.source)
                == (&mount.device, &mount.fs_type, &mount.source)
        };
        !mount.mountpoint.starts_with(&self.base) && top.is_some_and(is_copy)
    }

    /// Unmounts copies; returns those that are in use.
    fn without(&self, mut mounts: Vec<MountEntry>) -> io::Result<Vec<MountEntry>> {
        let own = File::open("/proc/thread-self/ns/mnt")?;
        let theirs = File::open(self.process.join("ns/mnt"))?;
        // Paths in the table begin there.
        let root = rustix::fs::open(
            self.process.join("root"),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        setns(theirs, CloneFlags::CLONE_NEWNS)?;
        let in_use = fchdir(&root).map(|()| {
            mounts.retain(|mount| {
                let path = mount.mountpoint.strip_prefix("/");
                let path = path.unwrap_or(&mount.mountpoint);
                unmount(path, UnmountFlags::NOFOLLOW) == Err(Errno::BUSY)
            });
            mounts
        });
        setns(own, CloneFlags::CLONE_NEWNS)?;
        Ok(in_use?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64, device: &str, mountpoint: &str, options: &str) -> MountEntry {
        MountEntry {
            id,
            device: device.into(),
            root: "/".into(),
            mountpoint: mountpoint.into(),
            fs_type: "fuse.cairnfs".into(),
            source: "/v.cairn".into(),
            options: options.into(),
        }
    }

    #[test]
    fn number_that_another_mount_has_got_is_not_the_same_mount() {
        let mount = entry(47, "0:41", "/a", "rw");
        assert!(is_same(&mount, &entry(47, "0:41", "/a", "ro")));
        assert!(!is_same(&mount, &entry(48, "0:41", "/a", "rw")));
        assert!(!is_same(&mount, &entry(47, "0:42", "/a", "rw")));
        assert!(!is_same(&mount, &entry(47, "0:41", "/b", "rw")));
    }
}
