//! The user that a program runs as, and what the file system permits that user.
//!
//! Grants are certain, refusals are not: what is not granted here is asked of the kernel, which decides. So
//! a program is served only if its ids are all the same, and of capabilities only a complete superuser's count,
//! in the daemon's user namespace. In another one a user who is not the superuser here has the same ids, as
//! they are told here, and the rights of owner, group and mode that go with them.

use std::fs;

use cairnfs_disk::types::Attr;

use crate::caller::Caller;
use crate::fault::{InjectedFault, is_injected};

/// `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH`, `CAP_FOWNER`, `CAP_FSETID`.
const SUPER: u64 = 0b1_1111;

/// Read, write and search permission, as bits of a mode.
pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const SEARCH: u32 = 1;

/// The user of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// The process.
    pub pid: u32,
    groups: Vec<u32>,
    /// Whether all of [`SUPER`] are there.
    is_super: bool,
}

impl Person {
    /// The user of a process that waits for its answer; `None` if what it may do is not certain.
    pub fn of_process(pid: u32) -> Option<Self> {
        let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
        let is_own = namespace(&pid.to_string())? == namespace("self")?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Self::of_status(pid, &status).filter(|person| is_own || person.uid != 0)
    }

    /// The user of a process with this `/proc/PID/status`.
    pub fn of_status(pid: u32, status: &str) -> Option<Self> {
        let field = |name: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(name));
            Some(rest?.split_whitespace())
        };
        let same = |name: &str| {
            let ids: Vec<u32> = field(name)?
                .map(str::parse)
                .collect::<Result<_, _>>()
                .ok()?;
            let first = *ids.first()?;
            ids.iter().all(|id| *id == first).then_some(first)
        };
        let (uid, gid) = (same("Uid:")?, same("Gid:")?);
        let groups = field("Groups:")?.map(str::parse);
        let capabilities = u64::from_str_radix(field("CapEff:")?.next()?, 16).ok()?;
        let is_super = uid == 0 && capabilities & SUPER == SUPER;
        Some(Self {
            uid,
            gid,
            pid,
            groups: groups.collect::<Result<_, _>>().ok()?,
            is_super,
        })
        .filter(|person| person.uid != 0 || person.is_super)
    }

    /// The user as the caller of a request.
    pub(crate) fn caller(&self) -> Caller {
        Caller {
            uid: self.uid,
            gid: self.gid,
            pid: self.pid,
        }
    }

    /// Whether the superuser.
    pub(crate) fn is_super(&self) -> bool {
        self.is_super
    }

    /// Whether the user may change attributes of an inode.
    pub(crate) fn owns(&self, attr: &Attr) -> bool {
        self.is_super || self.uid == attr.uid
    }

    /// Whether the permissions in a mode decide, whatever access control list there is.
    pub(crate) fn needs_no_list(&self, attr: &Attr) -> bool {
        self.owns(attr)
    }

    /// Whether a mode permits all of `wanted`.
    pub(crate) fn permits(&self, attr: &Attr, wanted: u32) -> bool {
        let in_group = || self.gid == attr.gid || self.groups.contains(&attr.gid);
        let bits = match () {
            () if self.is_super || is_injected(InjectedFault::PermissionUnchecked) => return true,
            () if self.uid == attr.uid => attr.mode >> 6,
            () if in_group() => attr.mode >> 3,
            () => attr.mode,
        };
        bits & wanted == wanted
    }

    /// Whether the sticky bit of a directory permits to remove an inode from it.
    pub(crate) fn may_remove(&self, dir: &Attr, inode: &Attr) -> bool {
        is_injected(InjectedFault::StickyBitIgnored)
            || dir.mode & libc::S_ISVTX == 0
            || self.owns(dir)
            || self.owns(inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program_files::door_attr;

    fn status(uid: &str, gid: &str, capabilities: &str) -> Option<Person> {
        let text = format!("Uid:\t{uid}\nGid:\t{gid}\nGroups:\t8 9 \nCapEff:\t{capabilities}\n");
        Person::of_status(3, &text)
    }

    #[test]
    fn only_a_user_whose_rights_are_certain_is_served() {
        let person = status("7 7 7 7", "8 8 8 8", "0").unwrap();
        assert_eq!((person.uid, person.gid, person.pid), (7, 8, 3));
        assert!(!person.is_super() && person.groups == [8, 9]);
        assert!(status("0 0 0 0", "0 0 0 0", "1ff").unwrap().is_super());
        assert!(!status("7 7 7 7", "0 0 0 0", "1ff").unwrap().is_super());
        for (uid, gid, capabilities) in [
            ("7 0 7 7", "8 8 8 8", "0"),
            ("7 7 7 7", "8 8 8 9", "0"),
            ("0 0 0 0", "0 0 0 0", "f"),
            ("0 0 0 0", "0 0 0 0", ""),
            ("", "8 8 8 8", "0"),
        ] {
            assert_eq!(status(uid, gid, capabilities), None);
        }
        assert!(Person::of_process(std::process::id()).is_some());
    }

    #[test]
    fn permissions_are_those_of_the_first_class_that_fits() {
        let person = status("7 7 7 7", "8 8 8 8", "0").unwrap();
        let attr = |uid, gid, mode| Attr {
            uid,
            gid,
            mode,
            ..door_attr()
        };
        for (attr, permitted) in [
            (attr(7, 0, 0o300), true),
            (attr(7, 8, 0o477), false),
            (attr(1, 9, 0o730), true),
            (attr(1, 9, 0o747), false),
            (attr(1, 2, 0o773), true),
            (attr(1, 2, 0o774), false),
        ] {
            assert_eq!(person.permits(&attr, WRITE | SEARCH), permitted, "{attr:?}");
        }
        let sticky = attr(1, 2, 0o1777);
        assert!(person.may_remove(&sticky, &attr(7, 2, 0)));
        assert!(!person.may_remove(&sticky, &attr(1, 8, 0o777)));
        assert!(person.may_remove(&attr(1, 2, 0o777), &attr(1, 8, 0)));
    }
}
