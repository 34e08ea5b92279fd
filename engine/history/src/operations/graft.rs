//! A tree that nobody sees yet, and changes of it by inode number.
//!
//! Uses the file system of a staged head: a head without a name, which is garbage until a change of
//! roots names it. Streams and merges refer to inodes that have no name for a while. Here each of
//! these has one in a directory of its own, the *shelf*, so the tree is sound after every step.
//! Owners, modes, times and flags are set at the end, because the other changes depend on flags and
//! change times; until then they are in a file on the shelf. So memory is bounded.

use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::received::Received;
use cairnfs_disk::format::stream::RawStreamInode;
use cairnfs_disk::types::{
    Attr, Creds, Fallocate, FileKind, Flags, RenameMode, SetAttr, SetTime, Time,
};

/// Bytes of a record of final attributes.
const RECORD: usize = size_of::<RawStreamInode>();
/// Records read at a time.
const TOGETHER: usize = 512;
/// Name of the file of final attributes.
const LATER: &[u8] = b"attributes";

/// A tree that is being made.
pub(super) struct Graft {
    fs: Arc<FileSystem>,
    shelf: u64,
    shelf_name: Vec<u8>,
    later: u64,
    later_len: u64,
    /// The inode whose extended attributes were set last. How many names it has is checked when all
    /// were: names that are removed may come after those in their place.
    named: Option<u64>,
    /// The final attributes of the root directory, from which the shelf is removed last.
    root: RawStreamInode,
}

/// The attributes of an inode as a record has them.
pub(super) fn record_of(attr: &Attr) -> RawStreamInode {
    RawStreamInode {
        ino: attr.ino.into(),
        mode: attr.mode.into(),
        uid: attr.uid.into(),
        gid: attr.gid.into(),
        flags: attr.flags.bits().into(),
        rdev: attr.rdev.into(),
        size: attr.size.into(),
        atime: attr.atime.into(),
        mtime: attr.mtime.into(),
        ctime: attr.ctime.into(),
        btime: attr.btime.into(),
    }
}

fn on_shelf(ino: u64) -> Vec<u8> {
    format!("{ino:x}").into_bytes()
}

impl Graft {
    /// Begins to change the tree of `fs`, which nobody else uses.
    pub fn new(fs: Arc<FileSystem>) -> Result<Self> {
        let root = record_of(&fs.getattr(ROOT_INO)?);
        loosen(&fs, ROOT_INO)?;
        // A hostile stream must not be able to name it.
        let unguessable = (getrandom::u64(), getrandom::u64());
        let (Ok(a), Ok(b)) = unguessable else {
            return Err(Error::Unsupported("the system has no random numbers"));
        };
        let shelf_name = format!(".cairnfs-{a:016x}{b:016x}").into_bytes();
        let owner = Creds::default();
        let shelf = fs.mkdir(ROOT_INO, &shelf_name, 0o700, owner)?.ino;
        let mode = FileKind::File.mode_bits() | 0o600;
        let later = fs.mknod(shelf, LATER, mode, 0, owner)?.ino;
        Ok(Self {
            fs,
            shelf,
            shelf_name,
            later,
            later_len: 0,
            named: None,
            root,
        })
    }

    /// The file system of the tree.
    pub fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// The attributes of an inode; `None` if there is none.
    pub fn attr(&self, ino: u64) -> Result<Option<Attr>> {
        // The files of the graft itself are not part of the tree.
        if ino == self.shelf || ino == self.later {
            Ok(None)
        } else {
            self.fs.attr_of(ino)
        }
    }

    /// The inode with a name.
    pub fn holder(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        match self.fs.lookup(dir, name) {
            Ok(attr) => {
                self.fs.forget(attr.ino, 1);
                Ok(Some(attr.ino))
            }
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Number of names of an inode.
    pub fn names(&self, attr: &Attr) -> Result<u64> {
        let shelved = u64::from(self.is_shelved(attr.ino)?);
        Ok(match attr.kind {
            FileKind::Directory => 1 - shelved,
            _ => u64::from(attr.nlink).saturating_sub(shelved),
        })
    }

    /// The directory that holds a directory; `None` if it has no name.
    pub fn parent(&self, dir: u64) -> Result<Option<u64>> {
        if self.is_shelved(dir)? {
            return Ok(None);
        }
        let parent = self.fs.lookup_parent(dir)?;
        self.fs.forget(parent.ino, 1);
        Ok(Some(parent.ino))
    }

    /// Whether a directory has no entries.
    pub fn is_empty(&self, dir: u64) -> Result<bool> {
        Ok(self.fs.getattr(dir)?.size == 0)
    }

    fn is_shelved(&self, ino: u64) -> Result<bool> {
        Ok(self.holder(self.shelf, &on_shelf(ino))?.is_some())
    }

    /// Makes an inode of the given number without a name, a symbolic link with its target.
    pub fn create(&mut self, raw: &RawStreamInode, target: Option<&[u8]>) -> Result<()> {
        let name = on_shelf(raw.ino.get());
        let flags = Flags::from_bits(raw.flags.get()).unwrap_or_default();
        let number = (raw.ino.get(), raw.btime.into(), flags);
        let (mode, rdev) = (raw.mode.get(), raw.rdev.get());
        self.fs
            .make_numbered(self.shelf, &name, number, (mode, rdev, target))?;
        self.settle(raw)
    }

    /// Sets the attributes of an inode at the end. What forbids changes until then is removed.
    pub fn settle(&mut self, raw: &RawStreamInode) -> Result<()> {
        loosen(&self.fs, raw.ino.get())?;
        if raw.ino.get() == ROOT_INO {
            self.root = *raw;
            return Ok(());
        }
        write_all(&self.fs, self.later, self.later_len, raw.as_bytes())?;
        self.later_len += RECORD as u64;
        Ok(())
    }

    /// Removes flags that forbid changes.
    pub fn loosen(&self, ino: u64) -> Result<()> {
        loosen(&self.fs, ino)
    }

    /// Sets the size of a file.
    pub fn resize(&self, ino: u64, size: u64) -> Result<()> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.setattr(ino, &set).map(drop)
    }

    /// Writes contents of a file.
    pub fn write(&self, ino: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        write_all(&self.fs, ino, offset, bytes)
    }

    /// Makes a range of a file a hole. The end of the file is cut off and added again: so the contents
    /// of a small file, which have no blocks, become a hole, too.
    pub fn zero(&self, ino: u64, offset: u64, len: u64) -> Result<()> {
        let size = self.fs.getattr(ino)?.size;
        if offset.saturating_add(len) >= size {
            self.resize(ino, offset)?;
            return self.resize(ino, size);
        }
        self.fs
            .fallocate(ino, offset, len, Fallocate::PunchHole, false)
    }

    /// Sets or removes an extended attribute.
    pub fn set_xattr(&mut self, ino: u64, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        if self.named != Some(ino) {
            self.check_named()?;
            self.named = Some(ino);
        }
        match value {
            Some(value) => self.fs.exchange_xattr(ino, name, value),
            None => match self.fs.removexattr(ino, name) {
                Err(Error::NoAttribute) => Ok(()),
                removed => removed,
            },
        }
    }

    /// Checks the number of names of the inode whose extended attributes were set last.
    fn check_named(&mut self) -> Result<()> {
        match self.named.take() {
            Some(ino) => self.fs.check_listed(ino),
            None => Ok(()),
        }
    }

    /// Records of which streams the files are.
    pub fn set_received(&self, received: &Received) -> Result<()> {
        self.fs.set_received(&received.encode())
    }

    /// Gives an inode a name.
    pub fn link(&self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
        loosen(&self.fs, dir)?;
        let shelved = on_shelf(ino);
        if self.holder(self.shelf, &shelved)?.is_some() {
            let mode = RenameMode::NoReplace;
            return self.fs.rename(self.shelf, &shelved, dir, name, mode);
        }
        self.fs.link(ino, dir, name)?;
        self.fs.forget(ino, 1);
        Ok(())
    }

    /// Removes a name of an inode, which may be its last one.
    pub fn unlink(&self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
        loosen(&self.fs, dir)?;
        loosen(&self.fs, ino)?;
        let attr = self.fs.getattr(ino)?;
        match self.names(&attr)? {
            1 => {
                let mode = RenameMode::NoReplace;
                let name = (name, on_shelf(ino));
                self.fs.rename(dir, name.0, self.shelf, &name.1, mode)
            }
            _ => self.fs.unlink(dir, name),
        }
    }

    /// Removes an inode without names.
    pub fn remove(&mut self, ino: u64) -> Result<()> {
        self.check_named()?;
        let name = on_shelf(ino);
        match self.fs.getattr(ino)?.kind {
            FileKind::Directory => self.fs.rmdir(self.shelf, &name),
            _ => self.fs.unlink(self.shelf, &name),
        }
    }

    /// Sets the final attributes, and removes the shelf, on which no inode is left. Returns the
    /// file system.
    pub fn finish(mut self) -> Result<Arc<FileSystem>> {
        self.check_named()?;
        let fs = self.fs;
        let mut buffer = vec![0; RECORD * TOGETHER];
        let mut at = 0;
        while at < self.later_len {
            let read = fs.read(self.later, at, &mut buffer)?;
            let read = read - read % RECORD;
            if read == 0 {
                return Err(Error::UnexpectedEnd);
            }
            for bytes in buffer.get(..read).unwrap_or_default().chunks_exact(RECORD) {
                if let Ok(raw) = RawStreamInode::read_from_bytes(bytes) {
                    settle_now(&fs, &raw)?;
                }
            }
            at += read as u64;
        }
        fs.unlink(self.shelf, LATER)?;
        fs.forget(self.later, 1);
        fs.rmdir(ROOT_INO, &self.shelf_name)?;
        fs.forget(self.shelf, 1);
        fs.set_birth(ROOT_INO, self.root.btime.into())?;
        settle_now(&fs, &self.root)?;
        Ok(fs)
    }
}

/// Removes flags that forbid changes.
fn loosen(fs: &FileSystem, ino: u64) -> Result<()> {
    let flags = fs.getattr(ino)?.flags;
    let strict = Flags::IMMUTABLE.with(Flags::APPEND);
    if flags.difference(strict) == flags {
        return Ok(());
    }
    let set = SetAttr {
        flags: Some(flags.difference(strict)),
        ..SetAttr::default()
    };
    fs.setattr(ino, &set).map(drop)
}

fn settle_now(fs: &FileSystem, raw: &RawStreamInode) -> Result<()> {
    let ino = raw.ino.get();
    let Some(attr) = fs.attr_of(ino)? else {
        return Ok(());
    };
    let has_flags = matches!(attr.kind, FileKind::File | FileKind::Directory);
    let flags = Flags::from_bits(raw.flags.get()).filter(|_| has_flags);
    let set = SetAttr {
        mode: Some(raw.mode.get() & 0o7777),
        uid: Some(raw.uid.get()),
        gid: Some(raw.gid.get()),
        atime: Some(SetTime::At(raw.atime.into())),
        mtime: Some(SetTime::At(raw.mtime.into())),
        ctime: Some(Time::from(raw.ctime)),
        flags,
        ..SetAttr::default()
    };
    fs.setattr(ino, &set).map(drop)
}

fn write_all(fs: &FileSystem, ino: u64, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let written = fs.write(ino, offset, bytes, false)?;
        offset += written as u64;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}
