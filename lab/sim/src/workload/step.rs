//! The steps of workloads, by path, and their text form.
//!
//! The text of a step is a word and its arguments, as in `rename d/h n`. A step may be refused in
//! the current state of the volume as POSIX demands; the callers decide whether that ends a
//! workload.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, Result};
use cairnfs_disk::types::{
    Creds, Fallocate, Flags, KillPrivileges, RenameMode, SetAttr, SetTime, Time, XattrMode,
};

use crate::image::{BLOCK, SECTOR};
use crate::record::fresh_hash_seed;
use crate::tree::ROOT;

const WHITEOUT: RenameMode = RenameMode::Whiteout {
    owner: Creds { uid: 0, gid: 0 },
    replace: true,
};

/// The steps: each with its word, and its arguments in the order of the text.
macro_rules! all_steps {
    ($($(#[$doc:meta])* $step:ident $word:literal $(($($arg:ident: $kind:ty),*))?,)*) => {
        /// A step of a workload.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Step {
            $($(#[$doc])* $step $(($($kind),*))?,)*
        }

        impl fmt::Display for Step {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Step::$step $(($($arg),*))? => {
                        f.write_str($word)?;
                        $($(write!(f, " {}", $arg)?;)*)?
                    })*
                }
                Ok(())
            }
        }

        impl FromStr for Step {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let wrong = || format!("`{text}` is no step");
                let mut words = text.split_whitespace();
                Ok(match words.next().ok_or_else(wrong)? {
                    $($word => Step::$step $(($({
                        let word = words.next().ok_or_else(wrong)?;
                        word.parse::<$kind>().map_err(|_| wrong())?
                    }),*))?,)*
                    _ => return Err(wrong()),
                })
            }
        }
    };
}

all_steps! {
    /// Creates an empty file.
    Create "create"(p: String),
    /// Creates an empty file with the extended attribute `user.`NAME, which has the value with this
    /// number.
    CreateWith "createwith"(p: String, x: String, n: u32),
    /// Creates a directory.
    Mkdir "mkdir"(p: String),
    /// Creates a symbolic link whose target has this many bytes.
    Symlink "symlink"(p: String, n: u32),
    /// Creates a named pipe.
    Fifo "fifo"(p: String),
    /// Creates an unnamed file and links it at this path.
    Tmpfile "tmpfile"(p: String),
    /// Creates a second link to a file.
    Link "link"(p: String, q: String),
    /// Unlinks a file.
    Unlink "unlink"(p: String),
    /// Unlinks a file while it is open; it stays open until the end of the run.
    UnlinkOpen "unlink-open"(p: String),
    /// Removes an empty directory.
    Rmdir "rmdir"(p: String),
    /// Renames, replacing the target if it exists.
    Rename "rename"(p: String, q: String),
    /// Exchanges two names.
    Exchange "exchange"(p: String, q: String),
    /// Renames, replacing the target if it exists, and leaves a whiteout.
    Whiteout "whiteout"(p: String, q: String),
    /// Writes at an offset: path, offset and length in bytes.
    Write "write"(p: String, at: u64, n: u32),
    /// Appends this many bytes.
    Append "append"(p: String, n: u32),
    /// Sets the size in bytes.
    Truncate "truncate"(p: String, n: u64),
    /// Punches a hole: path, offset and length in bytes.
    Punch "punch"(p: String, at: u64, n: u64),
    /// Zeroes a range: path, offset and length in bytes.
    Zero "zero"(p: String, at: u64, n: u64),
    /// Allocates a range, extending the file: path, offset and length in bytes.
    Allocate "allocate"(p: String, at: u64, n: u64),
    /// Allocates a range without changing the size: path, offset and length in bytes.
    Reserve "reserve"(p: String, at: u64, n: u64),
    /// Sets the permission bits.
    Chmod "chmod"(p: String, mode: u32),
    /// Sets the inode flags to these bits.
    Chattr "chattr"(p: String, flags: u32),
    /// Sets the modification time, in seconds.
    Touch "touch"(p: String, secs: u32),
    /// Sets an access list with an entry for one user, and these permissions of owner, mask and
    /// others.
    SetList "setlist"(p: String, mode: u32),
    /// Sets the size as an unprivileged user does: set-id bits are cleared.
    TruncateAs "truncate-as"(p: String, n: u64),
    /// Sets the extended attribute `user.`NAME to this many bytes.
    SetXattr "setxattr"(p: String, x: String, n: u32),
    /// Sets the extended attribute `user.`NAME to the value with this number; all values from
    /// number 1000 on have the same hash on a fresh volume.
    SetValue "setvalue"(p: String, x: String, n: u32),
    /// Removes the extended attribute `user.`NAME.
    RemoveXattr "removexattr"(p: String, x: String),
    /// Calls fsync on a file or directory.
    Fsync "fsync"(p: String),
    /// Calls fdatasync on a file.
    Fdatasync "fdatasync"(p: String),
    /// Calls sync on the volume.
    Sync "sync",
    /// Merges the log into the index.
    Merge "merge",
    /// Makes a snapshot of this name.
    Snapshot "snapshot"(name: String),
    /// Makes a branch of this name.
    Branch "branch"(name: String),
    /// Continues on the branch or snapshot of this name.
    On "on"(name: String),
    /// Drops the snapshot of this name; its space is not freed yet.
    Drop "drop"(name: String),
    /// Takes this many steps of freeing what dropped snapshots have left; all of them if it is 0.
    Free "free"(steps: u64),
}

/// Lengths of values in bytes, in turn: around the smallest that is stored once for several inodes,
/// and the largest that is stored in a node.
const VALUE_LENGTHS: [usize; 5] = [400, 65, 64, 5000, 20_000];

/// From this number on all values have the same hash.
const COLLIDING: u32 = 1000;

/// The value with this number, the same each time.
fn value(number: u32) -> Vec<u8> {
    if number >= COLLIDING {
        return colliding(u64::from(number));
    }
    let turn = number as usize % VALUE_LENGTHS.len();
    let len = VALUE_LENGTHS.get(turn).copied().unwrap_or_default();
    let mut bytes = vec![number as u8 + 1; len];
    let number = number.to_le_bytes();
    bytes.iter_mut().zip(number).for_each(|(b, n)| *b = n);
    bytes
}

/// An access list with an entry for one user, and these permissions of owner, mask and others.
fn access_list(mode: u32) -> Vec<u8> {
    let entry = |tag: u16, perm: u32, id: u32| {
        let perm = (perm & 7) as u16;
        let (tag, perm, id) = (tag.to_le_bytes(), perm.to_le_bytes(), id.to_le_bytes());
        [&tag[..], &perm[..], &id[..]].concat()
    };
    let entries = [
        entry(0x01, mode >> 6, u32::MAX),
        entry(0x02, 6, 1000),
        entry(0x04, 5, u32::MAX),
        entry(0x10, mode >> 3, u32::MAX),
        entry(0x20, mode, u32::MAX),
    ];
    [2u32.to_le_bytes().to_vec(), entries.concat()].concat()
}

/// Values with equal hashes: a step of the hash multiplies two words after mixing a constant into
/// each. If the first word is equal to its constant, the product is zero whatever the second word
/// is.
fn colliding(number: u64) -> Vec<u8> {
    let seed = fresh_hash_seed().unwrap_or_default();
    let first = 0xbe4b_a423_396c_feb8_u64.wrapping_add(seed);
    let mut bytes = [first.to_le_bytes(), number.to_le_bytes()].concat();
    bytes.resize(200, 5);
    bytes
}

/// Parses steps separated by semicolons or newlines.
///
/// # Errors
/// The first text that is not a step.
pub fn steps(text: &str) -> Result<Vec<Step>, String> {
    text.split([';', '\n'])
        .map(str::trim)
        .filter(|step| !step.is_empty())
        .map(str::parse)
        .collect()
}

/// Runs steps on a volume.
pub struct Runner<'a> {
    main: &'a FileSystem,
    /// The root on which steps run, if it is not the main one. Inode numbers of open files are those
    /// of the root on which they were opened.
    branch: Option<Arc<FileSystem>>,
    written: u8,
    open: Vec<u64>,
}

impl<'a> Runner<'a> {
    /// A runner on this volume.
    pub fn new(fs: &'a FileSystem) -> Self {
        // Superblock generations and mount records only grow, so a later run writes different
        // bytes.
        let info = fs.info();
        let runs = info.generation + info.log_used / BLOCK as u64;
        Self {
            main: fs,
            branch: None,
            written: (runs * 37 % 250) as u8,
            open: Vec::new(),
        }
    }

    /// The root on which steps run.
    fn fs(&self) -> &FileSystem {
        self.branch.as_deref().unwrap_or(self.main)
    }

    fn continue_on(&mut self, name: &str) -> Result<()> {
        self.branch = match name {
            "main" => None,
            name => Some(self.main.open_named(name)?),
        };
        Ok(())
    }

    fn look_up(&self, path: &str) -> Result<u64> {
        let mut at = ROOT;
        for name in path.split('/').filter(|n| !n.is_empty() && *n != ".") {
            at = self.fs().lookup(at, name.as_bytes())?.ino;
            self.fs().forget(at, 1);
        }
        Ok(at)
    }

    /// The directory of a path, and the last component.
    fn entry<'p>(&self, path: &'p str) -> Result<(u64, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.look_up(dir)?, name.as_bytes()))
    }

    /// `len` bytes that differ from those of nearby writes, and from sector to sector.
    fn bytes(&mut self, len: u32) -> Vec<u8> {
        self.written = self.written % 250 + 1;
        let first = usize::from(self.written);
        let byte = |at: usize| (1 + (first + at / SECTOR * 11) % 255) as u8;
        (0..len as usize).map(byte).collect()
    }

    /// Runs a step.
    ///
    /// # Errors
    /// The error of the call that the step makes.
    pub fn run(&mut self, step: &Step) -> Result<()> {
        let branch = self.branch.clone();
        let fs = branch.as_deref().unwrap_or(self.main);
        let creds = Creds::default();
        let made = match step {
            Step::Create(p) => {
                let (dir, name) = self.entry(p)?;
                fs.mknod(dir, name, 0o100_644, 0, creds)?.ino
            }
            Step::CreateWith(p, x, n) => {
                let (dir, name) = self.entry(p)?;
                let (full, value) = (format!("user.{x}"), value(*n));
                let given = [(full.as_bytes(), &value[..]), (b"user.small", b"1")];
                fs.make_with(dir, name, (0o100_644, 0), creds, &given)?.ino
            }
            Step::Mkdir(p) => {
                let (dir, name) = self.entry(p)?;
                fs.mkdir(dir, name, 0o755, creds)?.ino
            }
            Step::Symlink(p, n) => {
                let (dir, name) = self.entry(p)?;
                fs.symlink(dir, name, &vec![b't'; *n as usize], creds)?.ino
            }
            Step::Fifo(p) => {
                let (dir, name) = self.entry(p)?;
                fs.mknod(dir, name, 0o010_600, 0, creds)?.ino
            }
            Step::Link(p, q) => {
                let (dir, name) = self.entry(q)?;
                fs.link(self.look_up(p)?, dir, name)?.ino
            }
            Step::Tmpfile(p) => return self.tmpfile(p),
            Step::On(name) => return self.continue_on(name),
            other => return self.change(other),
        };
        fs.forget(made, 1);
        Ok(())
    }

    fn tmpfile(&mut self, path: &str) -> Result<()> {
        let (dir, name) = self.entry(path)?;
        let ino = self.fs().tmpfile(dir, 0o600, Creds::default())?.ino;
        let bytes = self.bytes(5000);
        let linked = self
            .fs()
            .write(ino, 0, &bytes, false)
            .and_then(|_| self.fs().link(ino, dir, name));
        self.fs().forget(ino, 1);
        self.fs().forget(linked?.ino, 1);
        Ok(())
    }

    fn change(&mut self, step: &Step) -> Result<()> {
        let branch = self.branch.clone();
        let fs = branch.as_deref().unwrap_or(self.main);
        let rename = |from: &str, to: &str, mode| {
            let (from, to) = (self.entry(from)?, self.entry(to)?);
            fs.rename(from.0, from.1, to.0, to.1, mode)
        };
        match step {
            Step::Unlink(p) => {
                let (dir, name) = self.entry(p)?;
                fs.unlink(dir, name)
            }
            Step::UnlinkOpen(p) => {
                let (dir, name) = self.entry(p)?;
                self.open.push(fs.lookup(dir, name)?.ino);
                fs.unlink(dir, name)
            }
            Step::Rmdir(p) => {
                let (dir, name) = self.entry(p)?;
                fs.rmdir(dir, name)
            }
            Step::Rename(p, q) => rename(p, q, RenameMode::Replace),
            Step::Exchange(p, q) => rename(p, q, RenameMode::Exchange),
            Step::Whiteout(p, q) => rename(p, q, WHITEOUT),
            Step::Chmod(p, mode) => self.set(p, |set| set.mode = Some(*mode)),
            Step::Chattr(p, flags) => {
                let flags = Flags::from_bits(*flags).ok_or(Error::Unsupported("no such flag"))?;
                self.set(p, |set| set.flags = Some(flags))
            }
            Step::Touch(p, secs) => {
                let time = Time {
                    secs: i64::from(*secs),
                    nanos: 0,
                };
                self.set(p, |set| set.mtime = Some(SetTime::At(time)))
            }
            Step::SetList(p, mode) => {
                fs.set_access_list(self.look_up(p)?, &access_list(*mode), KillPrivileges::No)
            }
            Step::SetXattr(p, x, n) => {
                let bytes = self.bytes(*n);
                self.set_xattr(p, x, &bytes)
            }
            Step::SetValue(p, x, n) => self.set_xattr(p, x, &value(*n)),
            Step::RemoveXattr(p, x) => {
                fs.removexattr(self.look_up(p)?, format!("user.{x}").as_bytes())
            }
            Step::Fsync(p) => fs.fsync(self.look_up(p)?, false),
            Step::Fdatasync(p) => fs.fsync(self.look_up(p)?, true),
            Step::Sync => fs.sync_stated(),
            Step::Merge => fs.merge(),
            Step::Snapshot(name) => fs.snapshot(name),
            Step::Branch(name) => fs.branch(name).map(|_| ()),
            Step::Drop(name) => fs.drop_root(name),
            Step::Free(steps) => {
                let mut done = 0;
                while (*steps == 0 || done < *steps) && fs.drop_step()? {
                    done += 1;
                }
                Ok(())
            }
            other => self.change_contents(other),
        }
    }

    /// Sets the attributes of a file that `choose` gives.
    fn set(&self, path: &str, choose: impl FnOnce(&mut SetAttr)) -> Result<()> {
        let mut set = SetAttr::default();
        choose(&mut set);
        self.fs().setattr(self.look_up(path)?, &set).map(|_| ())
    }

    fn set_xattr(&self, path: &str, name: &str, value: &[u8]) -> Result<()> {
        let (ino, name) = (self.look_up(path)?, format!("user.{name}"));
        self.fs()
            .setxattr(ino, name.as_bytes(), value, XattrMode::Set)
    }

    fn truncate(&self, path: &str, size: u64, kill_privileges: KillPrivileges) -> Result<()> {
        self.set(path, |set| {
            set.size = Some(size);
            set.kill_privileges = kill_privileges;
        })
    }

    fn change_contents(&mut self, step: &Step) -> Result<()> {
        let allocate = |p: &str, at: &u64, n: &u64, what| {
            let ino = self.look_up(p)?;
            self.fs().fallocate(ino, *at, *n, what, false)
        };
        match step {
            Step::Write(p, at, n) => {
                let (ino, bytes) = (self.look_up(p)?, self.bytes(*n));
                self.fs().write(ino, *at, &bytes, false).map(|_| ())
            }
            Step::Append(p, n) => {
                let (ino, bytes) = (self.look_up(p)?, self.bytes(*n));
                self.fs().append(ino, &bytes, false).map(|_| ())
            }
            Step::Truncate(p, n) => self.truncate(p, *n, KillPrivileges::No),
            Step::TruncateAs(p, n) => self.truncate(p, *n, KillPrivileges::ByMember),
            Step::Punch(p, at, n) => allocate(p, at, n, Fallocate::PunchHole),
            Step::Zero(p, at, n) => allocate(p, at, n, Fallocate::ZeroRange { keep_size: false }),
            Step::Allocate(p, at, n) => {
                allocate(p, at, n, Fallocate::Allocate { keep_size: false })
            }
            Step::Reserve(p, at, n) => allocate(p, at, n, Fallocate::Allocate { keep_size: true }),
            _ => Err(Error::Invalid("a step that changes no contents")),
        }
    }
}
