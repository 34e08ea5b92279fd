//! What answers the requests of the benchmark: nothing, or an engine.

use std::path::Path;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, MakeOptions, Options, make};
use cairnfs_channel::{Answered, Asked, Handler};
use cairnfs_disk::types::{Creds, KillPrivileges, SetAttr, SetTime, Time};

use crate::Result;

pub const CREATE: u64 = 1;
pub const WRITE: u64 = 2;
pub const CHOWN: u64 = 3;
pub const CHMOD: u64 = 4;
pub const UTIMENS: u64 = 5;
pub const CLOSE: u64 = 6;
/// The last five in one.
pub const FINISH: u64 = 7;

const ROOT: u64 = cairnfs_disk::format::ROOT_INO;
const VOLUME: u64 = 4 << 30;

/// Stores nothing.
pub struct Nothing;

impl Handler for Nothing {
    fn handle(&mut self, _: &Asked<'_>, _: &[u8], reply: &mut Vec<u8>) -> Answered {
        reply.extend([0; 8]);
        Answered::Now
    }
}

/// An engine with a directory for each channel.
pub struct Engine {
    fs: Arc<FileSystem>,
    dirs: Vec<u64>,
}

impl Engine {
    /// Makes a volume at `path`.
    pub fn make(path: &Path, channels: usize) -> Result<Self> {
        let options = MakeOptions {
            size: Some(VOLUME),
            ..MakeOptions::default()
        };
        make(path, &options, &mut |_, _| {})?;
        let fs = FileSystem::open(path, &Options::default())?;
        let dirs = (0..channels).map(|number| {
            let name = number.to_string();
            let made = fs.mkdir(ROOT, name.as_bytes(), 0o755, Creds::default());
            made.map(|attr| attr.ino)
        });
        let dirs = dirs.collect::<cairnfs::Result<_>>()?;
        Ok(Self { fs, dirs })
    }

    fn answer(
        &self,
        channel: u64,
        request: &[u8],
        reply: &mut Vec<u8>,
    ) -> Option<cairnfs::Result<()>> {
        let (call, rest) = take(request)?;
        let (first, rest) = take(rest)?;
        if call == CREATE {
            let dir = self
                .dirs
                .get(usize::try_from(channel).ok()?.checked_sub(1)?)?;
            let name = rest.get(..usize::try_from(first).ok()?)?;
            let made = self.fs.mknod(*dir, name, 0o100_600, 0, Creds::default());
            return Some(made.map(|attr| reply.extend(attr.ino.to_le_bytes())));
        }
        let owner = SetAttr {
            uid: Some(0),
            gid: Some(0),
            ..SetAttr::default()
        };
        let mode = SetAttr {
            mode: Some(0o644),
            ..SetAttr::default()
        };
        let time = Some(SetTime::At(Time {
            secs: 1_000_000_000,
            nanos: 0,
        }));
        let times = SetAttr {
            atime: time,
            mtime: time,
            ..SetAttr::default()
        };
        let contents = || {
            let (len, bytes) = take(rest)?;
            bytes.get(..usize::try_from(len).ok()?)
        };
        let write = |bytes| {
            self.fs
                .write(first, 0, bytes, KillPrivileges::default())
                .map(|_| ())
        };
        let set = |set: &SetAttr| self.fs.setattr(first, set).map(|_| ());
        Some(match call {
            WRITE => write(contents()?),
            CHOWN => set(&owner),
            CHMOD => set(&mode),
            UTIMENS => set(&times),
            CLOSE => {
                self.fs.forget(first, 1);
                Ok(())
            }
            FINISH => {
                let all = SetAttr {
                    mode: mode.mode,
                    atime: time,
                    mtime: time,
                    ..owner
                };
                let done = write(contents()?).and_then(|()| set(&all));
                self.fs.forget(first, 1);
                done
            }
            _ => return None,
        })
    }
}

/// The first word, and what is behind it.
fn take(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*word), rest))
}

impl Handler for Engine {
    fn handle(&mut self, from: &Asked<'_>, request: &[u8], reply: &mut Vec<u8>) -> Answered {
        let channel = from.channel;
        match self.answer(channel, request, reply) {
            Some(Ok(())) => {}
            failed => eprintln!("cairnfs-bench: a call of client {channel} failed: {failed:?}"),
        }
        Answered::Now
    }
}
