//! Requests as a mounted file system gets them, as text: a word, paths and numbers.
//!
//! Uses the operations of the FUSE front end, which do not depend on FUSE. The model treats each
//! request as one call, however many calls of the engine the front end makes for it, except for the
//! few that the contract allows to happen in steps.

use std::path::Path;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, FsyncRequest};
use cairnfs_disk::types::{Flags, KillPrivileges, SetAttr, SetTime, Time};
use cairnfs_fuse::ops::{Caller, Found, NewEntry, Ops, Outcome};
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::syncs::Durable;
use cairnfs_sim::record::Run;
use cairnfs_sim::tree::ROOT;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Requests that the contract allows to happen in steps.
pub const STEPWISE: [&str; 4] = ["allocate", "punch", "zero", "copy"];

/// The superuser; `OTHER_USER` is a user who owns nothing.
const ROOT_USER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};
const OTHER_USER: Caller = Caller {
    uid: 9,
    gid: 9,
    pid: 0,
};

/// The front end of a volume.
pub struct Front {
    ops: Ops,
    written: u8,
}

/// The words of a request.
struct Words<'t>(Vec<&'t str>);

impl<'t> Words<'t> {
    fn path(&self, i: usize) -> &'t str {
        self.0[i]
    }

    fn number(&self, i: usize) -> u64 {
        let word = self.0[i];
        match word.strip_prefix("0o") {
            Some(octal) => u64::from_str_radix(octal, 8).unwrap(),
            None => word.parse().unwrap(),
        }
    }

    fn small(&self, i: usize) -> u32 {
        self.number(i) as u32
    }
}

/// An access list with these permissions for the owner, user 7, the group, the mask, and others.
fn list(perms: [u16; 5]) -> Vec<u8> {
    let [owner, user, group, mask, other] = perms;
    let none = u32::MAX;
    let entries = [
        (0x01, owner, none),
        (0x02, user, 7),
        (0x04, group, none),
        (0x10, mask, none),
        (0x20, other, none),
    ];
    bytes(&entries)
}

fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

impl Front {
    /// The front end of an open volume.
    pub fn new(fs: &Arc<FileSystem>) -> Self {
        Self {
            ops: Ops::new(fs.clone(), Path::new("simulated"), WriteMode::Through),
            written: 0,
        }
    }

    /// Runs requests separated by semicolons; refused requests are skipped.
    pub fn run_all(&mut self, text: &str, run: Option<&Run>) {
        for one in text.split(';').map(str::trim).filter(|r| !r.is_empty()) {
            // POSIX allows these errors.
            let _ = self.run(one, run);
        }
    }

    /// Runs a request; its calls are one request for the model that `run` keeps.
    pub fn run(&mut self, text: &str, run: Option<&Run>) -> Outcome<()> {
        let words = Words(text.split_whitespace().collect());
        let word = words.path(0);
        let stepwise = STEPWISE.contains(&word.trim_end_matches("-by-other"));
        match run.filter(|_| !stepwise) {
            Some(run) => run.request(|| self.request(word, &words)),
            None => self.request(word, &words),
        }
    }

    /// Runs `change`, which may put another tree in the place of the mounted one.
    pub fn replacing<R>(&self, change: impl FnOnce() -> R) -> R {
        let (result, switched) = self.ops.replacing(change, |_| true);
        switched.unwrap();
        result
    }

    fn look_up(&self, path: &str) -> Outcome<u64> {
        let mut at = ROOT;
        for name in path.split('/').filter(|n| !n.is_empty() && *n != ".") {
            let found = self.ops.lookup(at, name.as_bytes())?;
            at = found.ok_or(cairnfs::Error::NotFound)?.node;
            self.ops.forget(at, 1);
        }
        Ok(at)
    }

    /// The directory of a path, and the last component.
    fn entry<'p>(&self, path: &'p str) -> Outcome<(u64, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.look_up(dir)?, name.as_bytes()))
    }

    fn data(&mut self, len: u64) -> Vec<u8> {
        self.written = self.written % 250 + 1;
        vec![self.written; len as usize]
    }

    fn request(&mut self, word: &str, words: &Words<'_>) -> Outcome<()> {
        let (word, caller) = match word.strip_suffix("-by-other") {
            Some(word) => (word, OTHER_USER),
            None => (word, ROOT_USER),
        };
        match word {
            "create" | "fifo" | "mkdir" | "symlink" | "link" => {
                let made = self.make(word, words, caller)?;
                self.ops.forget(made.node, 1);
                Ok(())
            }
            "unlink" | "rmdir" | "rename" | "exchange" | "whiteout" => {
                self.rename(word, words, caller)
            }
            "setfacl" | "setdefault" | "setxattr" | "removexattr" | "removelist" => {
                self.set_xattr(word, words, caller)
            }
            "write" | "allocate" | "punch" | "zero" | "copy" => self.contents(word, words, caller),
            "fsync" | "fdatasync" => {
                let wish = FsyncRequest {
                    ino: self.look_up(words.path(1))?,
                    data_only: word == "fdatasync",
                };
                self.ops.fsync_each(&[wish]).remove(0)
            }
            "sync" => self.ops.sync(),
            _ => self.set_attributes(word, words, caller),
        }
    }

    fn make(&self, word: &str, words: &Words<'_>, caller: Caller) -> Outcome<Found> {
        let (dir, name) = self.entry(words.path(if word == "link" { 2 } else { 1 }))?;
        let new = |mode| NewEntry {
            caller,
            dir,
            name,
            mode,
            umask: 0o022,
        };
        match word {
            "create" => self.ops.mknod(new(libc::S_IFREG | 0o666), 0),
            "fifo" => self.ops.mknod(new(libc::S_IFIFO | 0o666), 0),
            "mkdir" => self.ops.mkdir(new(libc::S_IFDIR | 0o777)),
            "symlink" => self.ops.symlink(caller, dir, name, b"target"),
            _ => self.ops.link(self.look_up(words.path(1))?, dir, name),
        }
    }

    fn rename(&self, word: &str, words: &Words<'_>, caller: Caller) -> Outcome<()> {
        let from = self.entry(words.path(1))?;
        match word {
            "unlink" => self.ops.unlink(from.0, from.1),
            "rmdir" => self.ops.rmdir(from.0, from.1),
            _ => {
                let flags = match word {
                    "exchange" => libc::RENAME_EXCHANGE,
                    "whiteout" => libc::RENAME_WHITEOUT,
                    _ => 0,
                };
                let to = self.entry(words.path(2))?;
                self.ops.rename(caller, from, to, flags)
            }
        }
    }

    fn set_xattr(&mut self, word: &str, words: &Words<'_>, caller: Caller) -> Outcome<()> {
        let ino = self.look_up(words.path(1))?;
        let kill = KillPrivileges::ByGroup(caller.gid);
        let name = words.0.get(2).map(|x| format!("user.{x}"));
        let name = name.unwrap_or_default().into_bytes();
        match word {
            "setfacl" => {
                let perms = match words.number(2) {
                    // A list equivalent to a mode.
                    0 => bytes(&[
                        (0x01, 6, u32::MAX),
                        (0x04, 4, u32::MAX),
                        (0x20, 0, u32::MAX),
                    ]),
                    1 => list([6, 7, 0, 7, 0]),
                    _ => list([7, 5, 5, 5, 4]),
                };
                self.ops.setxattr(kill, ino, ACCESS, &perms, 0)
            }
            "setdefault" => {
                let perms = list([7, 6, 5, 7, 0]);
                self.ops.setxattr(kill, ino, DEFAULT, &perms, 0)
            }
            "setxattr" => {
                let value = self.data(words.number(3));
                self.ops.setxattr(kill, ino, &name, &value, 0)
            }
            "removelist" => self.ops.removexattr(ino, ACCESS),
            _ => self.ops.removexattr(ino, &name),
        }
    }

    fn set_attributes(&self, word: &str, words: &Words<'_>, caller: Caller) -> Outcome<()> {
        let mut set = SetAttr::default();
        match word {
            "chattr" => {
                let flags = Flags::from_bits(words.small(2)).unwrap();
                return self.ops.set_flags(self.look_up(words.path(1))?, flags);
            }
            "chmod" => set.mode = Some(words.small(2)),
            "chown" => (set.uid, set.gid) = (Some(words.small(2)), Some(words.small(3))),
            "truncate" => set.size = Some(words.number(2)),
            "utimes" => {
                set.mtime = Some(SetTime::At(Time {
                    secs: words.number(2) as i64,
                    nanos: 0,
                }));
                set.atime = Some(SetTime::Now);
            }
            other => panic!("`{other}` is no request"),
        }
        let ino = self.look_up(words.path(1))?;
        self.ops.setattr(caller, ino, set).map(|_| ())
    }

    fn contents(&mut self, word: &str, words: &Words<'_>, caller: Caller) -> Outcome<()> {
        let ino = self.look_up(words.path(1))?;
        let allocate = |mode| {
            let (at, len) = (words.number(2), words.number(3));
            self.ops.fallocate(caller, ino, at, len, mode)
        };
        match word {
            "allocate" => allocate(0),
            "punch" => allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
            "zero" => allocate(libc::FALLOC_FL_ZERO_RANGE),
            "copy" => {
                let to = self.look_up(words.path(2))?;
                let copied = self
                    .ops
                    .copy_range(caller, (ino, 0), (to, 0), words.number(3));
                copied.map(|_| ())
            }
            _ => {
                let data = self.data(words.number(3));
                let kills = (caller == OTHER_USER).then_some(caller);
                let written = self.ops.write(ino, words.number(2), &data, kills);
                written.map(|_| ())
            }
        }
    }
}
