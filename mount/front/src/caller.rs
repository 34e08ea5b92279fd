//! The caller of a request, and which set-id bits its request clears.
//!
//! A request carries user, group and thread id. Supplementary groups and the capability
//! `CAP_FSETID`, which it does not carry, are read from `/proc` if they matter. The thread waits
//! for its answer meanwhile, so its id cannot be reused. If a thread is invisible (another pid
//! namespace) or its user or group differ from the request's, nothing is assumed in its favour: the
//! bits are cleared.

use std::fs;

use cairnfs_disk::types::{Attr, Creds, KillPrivileges};

const SET_USER_ID: u32 = libc::S_ISUID;
const SET_GROUP_ID: u32 = libc::S_ISGID;

/// Number of the capability to keep set-id bits, `CAP_FSETID`.
const FSETID: u32 = 4;

/// The caller of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User id for file systems (fsuid).
    pub uid: u32,
    /// Group id for file systems (fsgid).
    pub gid: u32,
    /// Thread id; 0 if the thread is invisible from here.
    pub pid: u32,
}

/// Credentials of a thread as read from `/proc`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    uid: Option<u32>,
    gid: Option<u32>,
    groups: Vec<u32>,
    capabilities: u64,
}

/// Prefix of attribute names that only the superuser may see.
const TRUSTED: &[u8] = b"trusted.";

impl Caller {
    /// The names of attributes, each followed by NUL, that are listed for the caller. The kernel
    /// requires `CAP_SYS_ADMIN` to read or set a trusted one, but leaves listing to the file system.
    /// A request does not carry capabilities, so only the superuser is taken to have it.
    pub fn seen_names(self, names: Vec<u8>) -> Vec<u8> {
        if self.uid == 0 {
            return names;
        }
        let names = names.split_inclusive(|byte| *byte == 0);
        names
            .filter(|n| !n.starts_with(TRUSTED))
            .flatten()
            .copied()
            .collect()
    }

    /// Owner and group of inodes that the caller creates.
    pub fn creds(self) -> Creds {
        Creds {
            uid: self.uid,
            gid: self.gid,
        }
    }

    /// Whether the caller may change the mode of an inode.
    pub fn owns(self, attr: &Attr) -> bool {
        self.uid == 0 || self.uid == attr.uid
    }

    /// The bits that a change of contents or space clears.
    pub fn kills_by_change(self, attr: &Attr) -> KillPrivileges {
        if attr.mode & (SET_USER_ID | SET_GROUP_ID) != 0 && !self.keeps_set_ids() {
            self.kills(attr)
        } else {
            KillPrivileges::No
        }
    }

    /// The bits that a write clears if the kernel requests it; the kernel has checked the
    /// capability.
    pub fn kills_by_write(self, attr: &Attr) -> KillPrivileges {
        match attr.mode & (SET_USER_ID | SET_GROUP_ID) {
            0 => KillPrivileges::No,
            _ => self.kills(attr),
        }
    }

    /// The bits that a change of owner or group clears; here the capability counts only as
    /// membership in the group.
    pub fn kills_by_chown(self, attr: &Attr) -> KillPrivileges {
        if attr.mode & SET_GROUP_ID != 0 && !self.keeps_set_ids() {
            self.kills(attr)
        } else {
            KillPrivileges::ByMember
        }
    }

    /// The bits that a caller without the capability clears.
    fn kills(self, attr: &Attr) -> KillPrivileges {
        let member = attr.mode & SET_GROUP_ID == 0
            || self.gid == attr.gid
            || self.status().groups.contains(&attr.gid);
        if member {
            KillPrivileges::ByMember
        } else {
            KillPrivileges::ByGroup(self.gid)
        }
    }

    /// Whether the caller has the capability to keep set-id bits. Only the superuser's is trusted:
    /// another user may have it in its own user namespace, where it does not apply to this mount.
    fn keeps_set_ids(self) -> bool {
        self.uid == 0 && self.status().capabilities >> FSETID & 1 == 1
    }

    /// The thread's credentials; empty if they are unknown or do not match the request.
    fn status(self) -> Status {
        let text = match self.pid {
            0 => None,
            pid => fs::read_to_string(format!("/proc/{pid}/status")).ok(),
        };
        let status = text.map(|text| Status::parse(&text)).unwrap_or_default();
        if (status.uid, status.gid) == (Some(self.uid), Some(self.gid)) {
            status
        } else {
            Status::default()
        }
    }
}

impl Status {
    /// Parses `/proc/PID/status`. The fields of users and groups are real, effective, saved and
    /// file system ids.
    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name));
            rest.unwrap_or_default().split_whitespace()
        };
        let last = |name: &str| field(name).next_back()?.parse().ok();
        let capabilities = field("CapEff:").next();
        Self {
            uid: last("Uid:"),
            gid: last("Gid:"),
            groups: field("Groups:").filter_map(|g| g.parse().ok()).collect(),
            capabilities: capabilities
                .and_then(|bits| u64::from_str_radix(bits, 16).ok())
                .unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairnfs_disk::types::{FileKind, Flags, Time};

    fn attr(mode: u32) -> Attr {
        let time = Time::default();
        Attr {
            ino: 2,
            kind: FileKind::File,
            mode,
            nlink: 1,
            uid: 7,
            gid: 70,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: Flags::NONE,
        }
    }

    #[test]
    fn proc_status_is_parsed() {
        let text = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapEff:\t0000000000000010\n";
        let status = Status {
            uid: Some(4),
            gid: Some(8),
            groups: vec![9, 10],
            capabilities: 0x10,
        };
        assert_eq!(Status::parse(text), status);
        assert_eq!(Status::parse("Groups:\t\n"), Status::default());
        assert_eq!(Status::parse("Uid: x\nCapEff: \n"), Status::default());
    }

    #[test]
    fn invisible_caller_is_not_trusted() {
        let root = Caller {
            uid: 0,
            gid: 0,
            pid: 0,
        };
        assert_eq!(root.kills_by_change(&attr(0o755)), KillPrivileges::No);
        assert_eq!(
            root.kills_by_change(&attr(0o2644)),
            KillPrivileges::ByGroup(0)
        );
        let own = rustix::process::getpid().as_raw_nonzero().get() as u32;
        let other = Caller {
            uid: 4_000_000,
            gid: 70,
            pid: own,
        };
        assert_eq!(other.status(), Status::default());
        assert_eq!(
            other.kills_by_change(&attr(0o2644)),
            KillPrivileges::ByMember
        );
    }

    #[test]
    fn trusted_attribute_names_are_filtered() {
        let seen = |uid, names: &[u8]| {
            let caller = Caller {
                uid,
                gid: uid,
                pid: 0,
            };
            caller.seen_names(names.to_vec())
        };
        assert_eq!(seen(7, b""), b"");
        let names = b"trusted.a\0user.trusted.b\0trusted.\0";
        assert_eq!(seen(7, names), b"user.trusted.b\0");
        assert_eq!(seen(0, names), names);
    }
}
