//! What programs do to the files that they have open by a channel ([`super::programs`]): contents, size, offset.

use std::sync::Arc;

use cairnfs_channel::call;
use cairnfs_channel::call::{NONE, Stat, Why};
use cairnfs_disk::types::{Attr, SetAttr, Time};

use crate::convert::file_attr;
use crate::fault::{InjectedFault, is_injected};
use crate::ops::programs::{Done, Not, Serving, not};
use crate::program_files::ProgramFile;

impl Serving<'_> {
    /// A file that the program has open and the kernel does not know.
    pub(super) fn file(&self, number: u64) -> Done<ProgramFile> {
        let file = self.seen(number)?;
        if file.is_dir && self.ops.is_known(file.ino) {
            return not(Why::Known);
        }
        Ok(file)
    }

    /// The same, or a directory, which the kernel may know: it changes nothing of one that it has not told.
    fn seen(&self, number: u64) -> Done<ProgramFile> {
        let Some(file) = self.ops.files.get(self.program.channel, number) else {
            return not(Why::Call);
        };
        let is_mounted = Arc::ptr_eq(&file.fs, &self.ops.trees.mounted());
        let is_known = || !file.is_dir && self.ops.is_known(file.ino);
        if !is_mounted || !is_injected(InjectedFault::KnownFileServed) && is_known() {
            return not(Why::Known);
        }
        Ok(file)
    }

    /// A directory of the mounted tree that the program has open.
    pub(super) fn dir(&self, number: u64) -> Done<ProgramFile> {
        let file = self.ops.files.get(self.program.channel, number);
        let is_mounted = |dir: &ProgramFile| Arc::ptr_eq(&dir.fs, &self.ops.trees.mounted());
        let dir = file.filter(|file| file.is_dir && is_mounted(file));
        dir.ok_or(Not::Mine(Why::Known))
    }

    pub(super) fn attr_of(&self, number: u64) -> Done<Attr> {
        let file = self.file(number)?;
        Ok(file.fs.getattr(file.ino)?)
    }

    /// A file whose contents may be changed here, with its attributes.
    fn writable(&self, number: u64) -> Done<(ProgramFile, Attr)> {
        let file = self.file(number)?;
        let attr = file.fs.getattr(file.ino)?;
        if !file.writable || attr.mode & 0o6000 != 0 {
            return not(Why::Permission);
        }
        Ok((file, attr))
    }

    pub(super) fn write(&self, number: u64, at: u64, bytes: &[u8]) -> Done<u64> {
        let (file, attr) = self.writable(number)?;
        let offset = match at {
            _ if file.append => attr.size,
            NONE => file.offset,
            offset => offset,
        };
        let mut written = self.ops.write(file.ino, offset, bytes, None)? as u64;
        if let Some(rest) = bytes
            .get(written as usize..)
            .filter(|rest| !rest.is_empty())
            && file.lease.is_some()
        {
            // What was set aside is for this.
            self.ops.deferrals.meets_trouble(self.program.channel);
            let more = self
                .ops
                .write(file.ino, offset.saturating_add(written), rest, None);
            written += more.unwrap_or(0) as u64;
        }
        if at == NONE {
            self.ops.files.seek(number, offset.saturating_add(written));
        }
        Ok(written)
    }

    pub(super) fn truncate(&self, number: u64, size: u64) -> Done<()> {
        let (_, attr) = self.writable(number)?;
        self.truncate_to(&attr, size)
    }

    pub(super) fn truncate_to(&self, attr: &Attr, size: u64) -> Done<()> {
        let size = Some(size);
        let set = SetAttr {
            size,
            ..SetAttr::default()
        };
        self.set_as(attr, set)
    }

    pub(super) fn seek(&self, number: u64, offset: i64, whence: u64) -> Done<u64> {
        let file = self.seen(number)?;
        let from = match i32::try_from(whence) {
            Ok(libc::SEEK_SET) => 0,
            Ok(libc::SEEK_CUR) => file.offset,
            Ok(libc::SEEK_END) if !file.is_dir => file.fs.getattr(file.ino)?.size,
            _ => return not(Why::Call),
        };
        let to = from.checked_add_signed(offset);
        let Some(to) = to.filter(|to| i64::try_from(*to).is_ok()) else {
            return not(Why::Trouble);
        };
        self.ops.files.seek(number, to);
        Ok(to)
    }

    pub(super) fn stat(&self, number: u64) -> Done<Stat> {
        let file = self.seen(number)?;
        Ok(self.shown(&file.fs.getattr(file.ino)?))
    }

    /// Attributes as the kernel shows them.
    pub(super) fn shown(&self, attr: &Attr) -> Stat {
        let seen = file_attr(self.ops.trees.known(attr.ino), attr);
        let time = |time: Time| [time.secs.cast_unsigned(), time.nanos.into()];
        let [[a, an], [m, mn], [c, cn]] = [attr.atime, attr.mtime, attr.ctime].map(time);
        let [b, bn] = if self.program.birth_times {
            time(attr.btime)
        } else {
            [0, call::OMIT]
        };
        Stat {
            ino: seen.ino,
            mode: seen.mode.into(),
            nlink: seen.nlink.into(),
            uid: seen.uid.into(),
            gid: seen.gid.into(),
            size: seen.size,
            blocks: seen.blocks,
            blksize: seen.blksize.into(),
            times: [a, an, m, mn, c, cn, b, bn],
        }
    }
}
