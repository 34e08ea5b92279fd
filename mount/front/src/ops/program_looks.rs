//! What programs ask by a channel about names and files that the kernel does not know, and what they read: it
//! changes nothing ([`super::programs`]).
//!
//! The attributes of a directory are told also if the kernel knows it: nobody else changes them. Those of a file
//! that it knows may be newer in its cache, with data that it has not written back.

use std::sync::Arc;

use cairnfs_channel::call::{NONE, READ_MAX, Request, Stat, Why};
use cairnfs_disk::types::{Attr, FileKind, Flags};

use crate::ops::Ops;
use crate::ops::programs::{At, Done, Not, Program, Serving, look_up, not};
use crate::person::{READ, SEARCH, WRITE};
use crate::program_files::ProgramFile;

/// A larger file is opened by the kernel, which reads ahead and keeps what it has read.
const MOST_SIZE: u64 = 256 << 10;

impl Ops {
    /// Reads from an open file of a program. Nothing is read that is only on the device.
    pub(super) fn read_for(&self, program: &Program, request: &Request<'_>) -> Done<Vec<u8>> {
        self.serving(program, request, |serving| {
            let [file, at, len, ..] = request.args;
            serving.read(file, at, len)
        })
    }

    /// What a program wants to be made durable: its node.
    pub(super) fn synced(&self, program: &Program, request: &Request<'_>) -> Done<u64> {
        self.serving(program, request, |serving| {
            let [number, ..] = request.args;
            let file = serving.dir(number).or_else(|_| serving.file(number))?;
            Ok(self.trees.known(file.ino))
        })
    }
}

impl Serving<'_> {
    /// The attributes of a name, if the user has permissions that are `wanted`. A link at the end is followed
    /// by the kernel, if it is to be.
    pub(super) fn stat_at(&self, at: (u64, &[u8]), follows: bool, wanted: u64) -> Done<Stat> {
        let at = self.walk(at)?;
        let attr = look_up(&at.dir.fs, at.dir.ino, at.name)?;
        let attr = match attr.kind {
            FileKind::Symlink if follows => return not(Why::Path),
            FileKind::Directory => attr,
            FileKind::Symlink | FileKind::File => self.unknown(attr)?,
            _ => return not(Why::Path),
        };
        let wanted = wanted as u32 & (READ | WRITE | SEARCH);
        if wanted != 0 {
            // The superuser executes only what somebody may execute, and nobody writes to what cannot change.
            let executes = wanted & SEARCH != 0 && attr.kind != FileKind::Directory;
            let is_odd = executes && attr.mode & 0o111 != 0o111;
            if is_odd || wanted & WRITE != 0 && attr.flags != Flags::NONE {
                return not(Why::Permission);
            }
            self.permits(&at.dir.fs, &attr, wanted)?;
        }
        Ok(self.shown(&attr))
    }

    /// Opens a file.
    pub(super) fn open(&mut self, at: (u64, &[u8]), flags: u64) -> Done<u64> {
        self.has_room()?;
        let at = self.walk(at)?;
        self.open_existing(&at, flags)
    }

    /// Opens a file that is there.
    pub(super) fn open_existing(&mut self, at: &At<'_>, flags: u64) -> Done<u64> {
        let flags = flags as i32;
        let attr = look_up(&at.dir.fs, at.dir.ino, at.name)?;
        if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 {
            return Err(Not::Failed(libc::EEXIST));
        }
        if attr.kind != FileKind::File {
            return not(Why::Path);
        }
        let attr = self.unknown(attr)?;
        let (fs, channel) = (Arc::clone(&at.dir.fs), self.program.channel);
        let file = ProgramFile::opened(fs, attr.ino, channel, flags & !libc::O_DIRECTORY);
        self.may_open(at, &attr, &file, flags)?;
        if attr.size > MOST_SIZE {
            return not(Why::Call);
        }
        file.fs.lookup_number(attr.ino)?;
        if flags & libc::O_TRUNC != 0
            && let Err(failed) = self.truncate_to(&attr, 0)
        {
            self.unused.push(file);
            return Err(failed);
        }
        Ok(self.ops.files.add(file))
    }

    /// Whether a file may be opened so.
    fn may_open(&self, at: &At<'_>, attr: &Attr, file: &ProgramFile, flags: i32) -> Done<()> {
        if !file.readable && !file.writable {
            return not(Why::Call);
        }
        let changes = file.writable || flags & libc::O_TRUNC != 0;
        if changes {
            self.without_capabilities(attr)?;
        }
        // fs.protected_regular of the kernel.
        let is_protected = flags & libc::O_CREAT != 0 && at.attr.mode & libc::S_ISVTX != 0;
        let is_odd = attr.mode & 0o6000 != 0 || attr.flags != Flags::NONE;
        let is_others = is_protected && self.program.person.uid != attr.uid;
        let atime = flags & libc::O_NOATIME != 0 && !self.program.person.owns(attr);
        if changes && is_odd || is_others || atime {
            return not(Why::Permission);
        }
        let wanted = if file.readable { READ } else { 0 } | if changes { WRITE } else { 0 };
        self.permits(&at.dir.fs, attr, wanted)
    }

    /// Bytes of an open file.
    fn read(&self, number: u64, at: u64, len: u64) -> Done<Vec<u8>> {
        let file = self.file(number)?;
        if file.is_dir || !file.readable {
            return not(Why::Call);
        }
        let offset = if at == NONE { file.offset } else { at };
        let size = file.fs.getattr(file.ino)?.size;
        let len = size.saturating_sub(offset).min(len);
        if at == NONE && len > READ_MAX as u64 {
            // In parts it would not be one read for others that have the same offset.
            return not(Why::Call);
        }
        let len = len.min(READ_MAX as u64);
        let mut bytes = vec![0; len as usize];
        let read = file.fs.read(file.ino, offset, &mut bytes)?;
        bytes.truncate(read);
        if at == NONE {
            self.ops
                .files
                .seek(number, offset.saturating_add(read as u64));
        }
        Ok(bytes)
    }
}
