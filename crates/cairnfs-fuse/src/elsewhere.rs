//! Where a file system is mounted besides the mount in question: in this mount namespace, and in those
//! of other processes.
//!
//! Reads the tables of mounts in `/proc` and nothing else, so no file system is asked for anything. A
//! FUSE connection lives as long as any mount of it does; mounts in the namespaces of processes that
//! cannot be seen from here are not found.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::holders;
use crate::mountinfo::{self, MountEntry};

/// Another mount of the same file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    /// The mountpoint, as its namespace names it.
    pub mountpoint: PathBuf,
    /// Process id and name of a process in the mount's namespace; `None` for this namespace.
    pub process: Option<(u32, String)>,
}

/// Another mount of the file system that `mount` showed, if one is left. Mounts in this namespace are
/// found first.
pub fn of(mount: &MountEntry) -> Option<Elsewhere> {
    let here = || mountinfo::list(Path::new("/proc/self/mountinfo"));
    if let Some(other) = here().into_iter().find(|e| is_other(e, mount)) {
        return Some(Elsewhere {
            mountpoint: other.mountpoint,
            process: None,
        });
    }
    holders::numbers(Path::new("/proc")).find_map(|(pid, proc)| {
        let mounts = mountinfo::list(&proc.join("mountinfo"));
        let other = mounts.into_iter().find(|e| is_other(e, mount))?;
        Some(Elsewhere {
            mountpoint: other.mountpoint,
            process: Some((pid, holders::name(&proc))),
        })
    })
}

/// The kernel numbers mounts across all namespaces. A device number may be in use again for another
/// volume.
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
    fn another_mount_of_the_same_device_is_found() {
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
    fn a_namespace_is_named_by_a_process() {
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
