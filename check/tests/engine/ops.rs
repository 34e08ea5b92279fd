//! Random operations on a few names in a few directories.

use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, Result};
use cairnfs_disk::types::{Creds, Fallocate, RenameMode, SetAttr, XattrMode};
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub enum Op {
    Create(u8, u8),
    Mkdir(u8, u8),
    Symlink(u8, u8, u16),
    Unlink(u8, u8),
    Rmdir(u8, u8),
    Link(u8, u8, u8, u8),
    Rename(u8, u8, u8, u8, u8),
    Write(u8, u8, u32, u32),
    Truncate(u8, u8, u32),
    Punch(u8, u8, u32, u32),
    Allocate(u8, u8, u32, u32),
    Xattr(u8, u8, u8, u32),
    NoXattr(u8, u8, u8),
    Chmod(u8, u8),
    Hold(u8, u8),
    Release,
    Fsync(u8, u8),
    Sync,
    Merge,
}

pub fn op() -> impl Strategy<Value = Op> {
    let d = 0u8..4;
    let n = 0u8..7;
    let at = prop_oneof![Just(0u32), 0u32..5000, 0u32..400_000];
    let len = prop_oneof![1u32..100, 1u32..5000, 1u32..300_000];
    prop_oneof![
        4 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Create(a, b)),
        2 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Mkdir(a, b)),
        1 => (d.clone(), n.clone(), 1u16..4000).prop_map(|(a, b, c)| Op::Symlink(a, b, c)),
        3 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Unlink(a, b)),
        1 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Rmdir(a, b)),
        1 => (d.clone(), n.clone(), d.clone(), n.clone()).prop_map(|(a, b, c, e)| Op::Link(a, b, c, e)),
        3 => (d.clone(), n.clone(), d.clone(), n.clone(), 0u8..4).prop_map(|(a, b, c, e, f)| Op::Rename(a, b, c, e, f)),
        6 => (d.clone(), n.clone(), at.clone(), len.clone()).prop_map(|(a, b, c, e)| Op::Write(a, b, c, e)),
        2 => (d.clone(), n.clone(), at.clone()).prop_map(|(a, b, c)| Op::Truncate(a, b, c)),
        1 => (d.clone(), n.clone(), at.clone(), len.clone()).prop_map(|(a, b, c, e)| Op::Punch(a, b, c, e)),
        1 => (d.clone(), n.clone(), at.clone(), len.clone()).prop_map(|(a, b, c, e)| Op::Allocate(a, b, c, e)),
        4 => (d.clone(), n.clone(), 0u8..4, prop_oneof![0u32..50, 0u32..65_000, Just(400), Just(70), Just(5000)]).prop_map(|(a, b, c, e)| Op::Xattr(a, b, c, e)),
        1 => (d.clone(), n.clone(), 0u8..4).prop_map(|(a, b, c)| Op::NoXattr(a, b, c)),
        1 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Chmod(a, b)),
        1 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Hold(a, b)),
        1 => Just(Op::Release),
        2 => (d, n).prop_map(|(a, b)| Op::Fsync(a, b)),
        1 => Just(Op::Sync),
        2 => Just(Op::Merge),
    ]
}

/// Runs operations on a volume; POSIX allows some to be refused.
pub struct Run {
    pub fs: Arc<FileSystem>,
    pub held: Vec<u64>,
}

impl Run {
    fn lookup(&self, dir: u64, name: &str) -> Result<u64> {
        let ino = self.fs.lookup(dir, name.as_bytes())?.ino;
        self.fs.forget(ino, 1);
        Ok(ino)
    }

    /// Directory 0 is the root; the others are found by walking that name.
    fn dir(&self, dir: u8) -> u64 {
        match dir {
            0 => 1,
            d => self.lookup(1, &format!("n{d}")).unwrap_or(1),
        }
    }

    fn file(&self, dir: u8, name: u8) -> Result<u64> {
        self.lookup(self.dir(dir), &format!("n{name}"))
    }

    pub fn apply(&mut self, op: &Op) -> Result<()> {
        let fs = self.fs.clone();
        let name = |n: u8| format!("n{n}").into_bytes();
        let creds = Creds { uid: 1, gid: 1 };
        match *op {
            Op::Create(d, n) => {
                let a = fs.mknod(self.dir(d), &name(n), 0o100_644, 0, creds)?;
                fs.forget(a.ino, 1);
            }
            Op::Mkdir(d, n) => {
                let a = fs.mkdir(self.dir(d), &name(n), 0o755, creds)?;
                fs.forget(a.ino, 1);
            }
            Op::Symlink(d, n, len) => {
                let a = fs.symlink(self.dir(d), &name(n), &vec![b'x'; len.into()], creds)?;
                fs.forget(a.ino, 1);
            }
            Op::Unlink(d, n) => fs.unlink(self.dir(d), &name(n))?,
            Op::Rmdir(d, n) => fs.rmdir(self.dir(d), &name(n))?,
            Op::Link(d, n, e, m) => {
                let a = fs.link(self.file(d, n)?, self.dir(e), &name(m))?;
                fs.forget(a.ino, 1);
            }
            Op::Rename(d, n, e, m, how) => {
                let mode = [
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                    RenameMode::Whiteout {
                        owner: creds,
                        replace: true,
                    },
                ][usize::from(how)];
                fs.rename(self.dir(d), &name(n), self.dir(e), &name(m), mode)?;
            }
            Op::Write(d, n, at, len) => {
                let data: Vec<u8> = (0..len).map(|i| (i / 7 + at) as u8).collect();
                fs.write(self.file(d, n)?, at.into(), &data, false)?;
            }
            Op::Truncate(d, n, size) => {
                let set = SetAttr {
                    size: Some(size.into()),
                    ..SetAttr::default()
                };
                fs.setattr(self.file(d, n)?, &set)?;
            }
            Op::Punch(d, n, at, len) => {
                fs.fallocate(
                    self.file(d, n)?,
                    at.into(),
                    len.into(),
                    Fallocate::PunchHole,
                    false,
                )?;
            }
            Op::Allocate(d, n, at, len) => {
                let how = match len % 4 {
                    0 => Fallocate::Allocate { keep_size: true },
                    1 => Fallocate::Allocate { keep_size: false },
                    2 => Fallocate::ZeroRange { keep_size: true },
                    _ => Fallocate::ZeroRange { keep_size: false },
                };
                fs.fallocate(self.file(d, n)?, at.into(), len.into(), how, false)?;
            }
            Op::Xattr(d, n, x, len) => {
                let value = vec![x % 2; len as usize];
                let key = format!("user.x{x}");
                fs.setxattr(self.file(d, n)?, key.as_bytes(), &value, XattrMode::Set)?;
            }
            Op::NoXattr(d, n, x) => {
                fs.removexattr(self.file(d, n)?, format!("user.x{x}").as_bytes())?;
            }
            Op::Chmod(d, n) => {
                let set = SetAttr {
                    mode: Some(0o600),
                    ..SetAttr::default()
                };
                fs.setattr(self.file(d, n)?, &set)?;
            }
            Op::Hold(d, n) => {
                let a = fs.lookup(self.dir(d), &name(n))?;
                self.held.push(a.ino);
            }
            Op::Release => {
                if let Some(ino) = self.held.pop() {
                    fs.forget(ino, 1);
                }
            }
            Op::Fsync(d, n) => fs.fsync(self.file(d, n)?, false)?,
            Op::Sync => fs.sync()?,
            Op::Merge => fs.merge()?,
        }
        Ok(())
    }
}

/// Errors that a random operation may return.
pub fn refused(e: &Error) -> bool {
    matches!(
        e,
        Error::NotFound
            | Error::Exists
            | Error::NotDirectory
            | Error::IsDirectory
            | Error::NotEmpty
            | Error::NoAttribute
            | Error::Invalid(_)
            | Error::NotPermitted(_)
            | Error::NoSpace
    )
}
