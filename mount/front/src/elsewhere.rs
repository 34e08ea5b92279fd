//! Finds other mounts of the same file system: in this mount namespace, and in those of other
//! processes.
//!
//! Reads only the tables of mounts in `/proc`, so no file system receives a request. A FUSE
//! connection lives while any mount of it exists. Mounts in the namespaces of processes that are
//! invisible from here are not found.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::holders::{self, Holders};
use crate::mountinfo::{self, MountEntry};

/// Another mount of the same file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    /// The mountpoint, as a path in its namespace.
    pub mountpoint: PathBuf,
    /// Process id and name of a process in the mount's namespace; `None` for this namespace.
    pub process: Option<(u32, String)>,
}

/// Returns another mount of the file system of `mount`, if one exists. Mounts in this namespace are
/// found first.
pub fn of(mount: &MountEntry) -> Option<Elsewhere> {
    let here = || mountinfo::list(Path::new("/proc/self/mountinfo"));
    if let Some(other) = here().into_iter().find(|e| is_other(e, mount)) {
        return Some(Elsewhere {
            mountpoint: other.mountpoint,
            process: None,
        });
    }
    let mut seen = HashSet::from([view(Path::new("/proc/self"))]);
    holders::numbers(Path::new("/proc")).find_map(|(pid, proc)| {
        let view = view(&proc);
        if view.is_some() && !seen.insert(view) {
            return None;
        }
        let mounts = mountinfo::list(&proc.join("mountinfo"));
        let other = mounts.into_iter().find(|e| is_other(e, mount))?;
        Some(Elsewhere {
            mountpoint: other.mountpoint,
            process: Some((pid, holders::name(&proc))),
        })
    })
}

/// Finds all processes that keep the file system of `mount` in use: by files at or below its directory,
/// and by mount namespaces in which it is mounted, too.
pub fn users(mount: &MountEntry) -> Holders {
    let mut users = holders::of(&mount.mountpoint);
    let mut views = HashMap::from([(view(Path::new("/proc/self")), false)]);
    for (pid, proc) in holders::numbers(Path::new("/proc")) {
        let has = views.entry(view(&proc)).or_insert_with(|| {
            let mounts = mountinfo::list(&proc.join("mountinfo"));
            mounts.iter().any(|entry| is_other(entry, mount))
        });
        if *has {
            users.add(pid, holders::name(&proc));
        }
    }
    users
}

/// What decides which mounts a process sees: its mount namespace, and its root directory there. All
/// processes with the same have the same table, which is long where much is mounted.
fn view(process: &Path) -> Option<(PathBuf, PathBuf)> {
    let namespace = fs::read_link(process.join("ns/mnt")).ok()?;
    Some((namespace, fs::read_link(process.join("root")).ok()?))
}

/// Mount ids are unique across all namespaces. The device number alone does not suffice because it
/// may have been reused for another volume.
fn is_other(entry: &MountEntry, mount: &MountEntry) -> bool {
    let same = (&entry.device, &entry.fs_type, &entry.source)
        == (&mount.device, &mount.fs_type, &mount.source);
    same && entry.id != mount.id
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "on {}", self.mountpoint.display())?;
        match &self.process {
            None => Ok(()),
            Some((pid, name)) => write!(f, " in the mount namespace of {name} (pid {pid})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_mount_of_same_device_is_found() {
        let root = mountinfo::at(Path::new("/proc")).unwrap().unwrap();
        let mut asked = root.clone();
        asked.id = u64::MAX;
        let found = of(&asked).unwrap();
        assert_eq!(found.process, None);
        assert!(found.to_string().starts_with("on /"), "{found}");
        asked.source = "another".into();
        assert_eq!(of(&asked), None);
    }

    #[test]
    fn namespace_is_described_by_process() {
        let found = Elsewhere {
            mountpoint: "/m".into(),
            process: Some((7, "sh".into())),
        };
        assert_eq!(
            found.to_string(),
            "on /m in the mount namespace of sh (pid 7)"
        );
    }
}
