//! Directories that programs open and list by a channel, beside what they change
//! ([`super::programs`]).
//!
//! The kernel learns of none of it: what programs remove next is still unknown to it. A directory whose listing
//! the kernel has cached is left to it, as nothing is faster. An open directory that is needed for a call that
//! is not served is opened through the kernel by its path, so one is served only if its path can be found. One
//! that was removed has none, and is opened through the door.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairnfs::fs::FileSystem;
use cairnfs_channel::PAYLOAD;
use cairnfs_channel::call::{Entry, Location, NONE, Why};
use cairnfs_core::fs::MAX_ENTRIES;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::types::FileKind;

use crate::convert::type_bits;
use crate::ops::entries::is_removed;
use crate::ops::programs::{Done, Not, Serving, look_up, not};
use crate::person::READ;
use crate::program_files::ProgramFile;
use crate::trees::Place;

/// Levels above a directory whose path is found.
const LEVELS: usize = 64;

impl Serving<'_> {
    /// Opens a directory.
    pub(super) fn open_dir(&self, at: (u64, &[u8])) -> Done<u64> {
        self.has_room()?;
        let at = self.walk(at)?;
        let Place { fs, .. } = at.dir;
        let dir = look_up(&fs, at.dir.ino, at.name)?;
        if dir.kind != FileKind::Directory {
            return not(Why::Path);
        }
        self.permits(&fs, &dir, READ)?;
        let node = self.ops.trees.known(dir.ino);
        if self.ops.dirs.refuses(node, None) {
            return not(Why::Cached);
        }
        self.can_be_located(&fs, dir.ino)?;
        fs.lookup_number(dir.ino)?;
        let channel = self.program.channel;
        let dir = ProgramFile::opened(fs, dir.ino, channel, libc::O_DIRECTORY);
        Ok(self.ops.files.add(dir))
    }

    /// Whether the path of a directory will be found, unless it is moved: no directory above it has more
    /// entries than are searched.
    fn can_be_located(&self, fs: &FileSystem, ino: u64) -> Done<()> {
        let mut at = ino;
        for _ in 0..LEVELS {
            if at == ROOT_INO {
                return Ok(());
            }
            let parent = fs.parent_hint(at).ok_or(Not::Mine(Why::Trouble))?;
            if fs.getattr(parent)?.size >= MAX_ENTRIES as u64 {
                return not(Why::Path);
            }
            at = parent;
        }
        not(Why::Path)
    }

    /// Entries of an open directory behind a cookie, in a reply of at most so many bytes. One without a name
    /// has none, as in the kernel.
    pub(super) fn list(&self, number: u64, cookie: u64, bytes: u64) -> Done<Vec<u64>> {
        let dir = self.dir(number)?;
        if is_removed(&dir.fs, dir.ino) {
            return Ok(Vec::new());
        }
        let mut offset = if cookie == NONE { dir.offset } else { cookie };
        let most = usize::try_from(bytes).map_or(PAYLOAD, |bytes| bytes.min(PAYLOAD));
        let (mut words, mut fits) = (Vec::new(), true);
        dir.fs.readdir(dir.ino, offset, &mut |listed| {
            let entry = Entry {
                ino: self.ops.trees.known(listed.ino),
                cookie: listed.cookie,
                kind: (type_bits(listed.kind) >> 12) as u8,
                name: listed.name,
            };
            // The status is before them.
            fits = (1 + words.len()) * 8 + entry.bytes() <= most;
            if fits {
                entry.put(&mut words);
                offset = listed.cookie;
            }
            fits
        })?;
        if words.is_empty() && !fits {
            return not(Why::Call);
        }
        self.ops.files.seek(number, offset);
        Ok(words)
    }

    /// Where an open directory is. A removed one, which the program leaves so, is in the door. If another tree
    /// has taken the place of its own, it is there at the same path, perhaps.
    pub(super) fn locate(&self, number: u64) -> Done<Vec<u64>> {
        let dir = self.ops.files.get(self.program.channel, number);
        let dir = dir.filter(|dir| dir.is_dir).ok_or(Not::Mine(Why::Call))?;
        let files = &self.ops.files;
        let path = if is_removed(&dir.fs, dir.ino) {
            files.leave(self.program.channel, number);
            Path::new("/").join(files.door()).join(number.to_string())
        } else {
            dir.fs.path_hint(dir.ino)
        };
        let location = Location {
            ino: self.ops.trees.known(dir.ino),
            offset: dir.offset,
            path: path.as_os_str().as_bytes(),
        };
        Ok(location.words())
    }
}
