//! What a record may do to the tree that a stream builds.
//!
//! Uses the target for all that earlier records did; keeps the inode that is being filled and a
//! count. Records come in phases: origins of inodes, inodes with attributes and contents, names
//! removed, names added, inodes removed. So a name is never taken twice, and the type of every inode is known when
//! it gets a name.
//!
//! Invariant: directories never hold each other. A directory gets a name only if it has none, so
//! the directories are a forest, and it may not be put below itself: from its new directory the way
//! up must not lead to it. No directory without a name may be left at the end, so all of them are
//! then below the root.

use crate::stream::target::Target;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::{S_IFDIR, S_IFMT};
use cairnfs_disk::format::received::RECEIVED;
use cairnfs_disk::format::stream::{RawStreamInode, Record, is_target};
use cairnfs_disk::format::{MAX_LINKS, ROOT_INO};
use cairnfs_disk::types::FileKind;

/// Most levels of directories above one that gets a name. The way up is followed for each, so a
/// limit bounds what a hostile stream can cost.
pub const MOST_LEVELS: usize = 4096;

/// The parts of a stream, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Phase {
    #[default]
    Origins,
    Inodes,
    Unlink,
    Link,
    Remove,
}

/// The inode that is being filled.
#[derive(Default)]
struct Filled {
    ino: u64,
    kind: Option<FileKind>,
    size: u64,
    /// Data up to this offset has come.
    upto: u64,
    /// It is a new symbolic link and must get its target.
    target: bool,
}

/// Checks the records of a stream, one after the other.
#[derive(Default)]
pub(super) struct Checker {
    phase: Phase,
    filled: Filled,
    /// Inodes without a name, which must get one or be removed.
    nameless: u64,
}

fn refuse<T>(why: String) -> Result<T> {
    Err(Error::Stream(why))
}

impl Checker {
    /// Checks a record before it is applied.
    pub fn check(&mut self, record: &Record<'_>, target: &dyn Target) -> Result<()> {
        let phase = match record {
            Record::Origin(_) => Phase::Origins,
            Record::Unlink { .. } => Phase::Unlink,
            Record::Link { .. } => Phase::Link,
            Record::Remove { .. } => Phase::Remove,
            _ => Phase::Inodes,
        };
        if phase < self.phase {
            return refuse("its records are out of order".into());
        }
        if phase > Phase::Inodes {
            self.fill_end()?;
        }
        self.phase = phase;
        match record {
            Record::Begin(_) | Record::Origin(_) | Record::End(_) => Ok(()),
            Record::Create(raw) => self.create(raw, target),
            Record::Change(raw) => self.change(raw, target),
            Record::Xattr { name, .. } if *name == RECEIVED => {
                refuse("it sets an attribute that only a receiver sets".into())
            }
            Record::Xattr { ino, .. } => {
                self.fill(*ino, target)?;
                // An inode without a target is not there yet.
                self.fill_end()
            }
            Record::Data { ino, offset, bytes } => {
                self.fill(*ino, target)?;
                self.data(*offset, bytes.len() as u64, Some(bytes))
            }
            Record::Zero { ino, offset, len } => {
                self.fill(*ino, target)?;
                self.data(*offset, *len, None)
            }
            Record::Unlink { dir, ino, name } => self.unlink((*dir, name), *ino, target),
            Record::Link { dir, ino, name } => self.link((*dir, name), *ino, target),
            Record::Remove { ino } => self.remove(*ino, target),
        }
    }

    /// Checks what must hold once all records have been applied.
    pub fn end(&mut self, target: &dyn Target) -> Result<()> {
        self.fill_end()?;
        if self.nameless > 0 {
            return refuse(format!("{} inodes have no name", self.nameless));
        }
        match target.kind(ROOT_INO)? {
            Some(FileKind::Directory) => Ok(()),
            _ => refuse("it has no root directory".into()),
        }
    }

    fn create(&mut self, raw: &RawStreamInode, target: &dyn Target) -> Result<()> {
        let ino = raw.ino.get();
        if target.kind(ino)?.is_some() {
            return refuse(format!("inode {ino} is created twice"));
        }
        self.fill_next(ino)?;
        self.nameless += 1;
        let kind = FileKind::from_mode(raw.mode.get());
        self.filled.kind = kind;
        self.filled.size = raw.size.get();
        self.filled.target = kind == Some(FileKind::Symlink);
        self.check_size()
    }

    fn change(&mut self, raw: &RawStreamInode, target: &dyn Target) -> Result<()> {
        let ino = raw.ino.get();
        let kind = target.kind(ino)?;
        if kind.is_none() || kind != FileKind::from_mode(raw.mode.get()) {
            return refuse(format!("inode {ino} is not there with this type"));
        }
        let fixed = kind != Some(FileKind::File);
        if fixed && raw.mode.get() & S_IFMT != S_IFDIR && raw.size.get() != target.size(ino)? {
            return refuse(format!("inode {ino} gets another size"));
        }
        self.fill_next(ino)?;
        self.filled.kind = kind;
        self.filled.size = raw.size.get();
        self.check_size()
    }

    fn check_size(&self) -> Result<()> {
        let Filled {
            ino, kind, size, ..
        } = self.filled;
        let most = match kind {
            Some(FileKind::File) => u64::MAX,
            Some(FileKind::Symlink) => cairnfs_disk::format::MAX_SYMLINK as u64,
            _ => 0,
        };
        if size <= most {
            Ok(())
        } else {
            refuse(format!("inode {ino} of {size} bytes"))
        }
    }

    /// Goes on to the next inode; numbers ascend.
    fn fill_next(&mut self, ino: u64) -> Result<()> {
        self.fill_end()?;
        if ino <= self.filled.ino {
            return refuse(format!("inode {ino} comes too late"));
        }
        self.filled = Filled {
            ino,
            ..Filled::default()
        };
        Ok(())
    }

    /// The contents or attributes of an inode follow.
    fn fill(&mut self, ino: u64, target: &dyn Target) -> Result<()> {
        if ino == self.filled.ino {
            return Ok(());
        }
        let Some(kind) = target.kind(ino)? else {
            return refuse(format!("inode {ino} is not there"));
        };
        self.fill_next(ino)?;
        self.filled.kind = Some(kind);
        if kind == FileKind::File {
            self.filled.size = target.size(ino)?;
        }
        Ok(())
    }

    fn fill_end(&self) -> Result<()> {
        if self.filled.target {
            refuse(format!("symbolic link {} has no target", self.filled.ino))
        } else {
            Ok(())
        }
    }

    fn data(&mut self, offset: u64, len: u64, bytes: Option<&[u8]>) -> Result<()> {
        let filled = &mut self.filled;
        let end = offset.saturating_add(len);
        let fits = offset >= filled.upto && end <= filled.size;
        let allowed = match (filled.kind, bytes) {
            (Some(FileKind::File), _) => fits,
            (Some(FileKind::Symlink), Some(bytes)) => {
                std::mem::take(&mut filled.target) && len == filled.size && fits && is_target(bytes)
            }
            _ => false,
        };
        if !allowed {
            return refuse(format!("{len} bytes at {offset} of inode {}", filled.ino));
        }
        filled.upto = end;
        Ok(())
    }

    fn unlink(&mut self, (dir, name): (u64, &[u8]), ino: u64, target: &dyn Target) -> Result<()> {
        if target.kind(dir)? != Some(FileKind::Directory) || target.holder(dir, name)? != Some(ino)
        {
            return refuse(format!("inode {ino} does not have the name to remove"));
        }
        if target.names(ino)? == 1 {
            self.nameless += 1;
        }
        Ok(())
    }

    fn link(&mut self, (dir, name): (u64, &[u8]), ino: u64, target: &dyn Target) -> Result<()> {
        if target.kind(dir)? != Some(FileKind::Directory) {
            return refuse(format!("inode {dir} has entries and is no directory"));
        }
        let Some(kind) = target.kind(ino)?.filter(|_| ino != ROOT_INO) else {
            return refuse(format!("inode {ino} gets a name and is not there"));
        };
        if target.holder(dir, name)?.is_some() {
            return refuse(format!("a name in directory {dir} comes twice"));
        }
        let names = target.names(ino)?;
        if names >= MAX_LINKS.into() || kind == FileKind::Directory && names > 0 {
            return refuse(format!("inode {ino} gets too many names"));
        }
        if kind == FileKind::Directory {
            check_above(dir, ino, target)?;
        }
        if names == 0 {
            self.nameless = self.nameless.saturating_sub(1);
        }
        Ok(())
    }

    fn remove(&mut self, ino: u64, target: &dyn Target) -> Result<()> {
        let kind = target.kind(ino)?;
        let full = kind == Some(FileKind::Directory) && !target.is_empty(ino)?;
        if kind.is_none() || ino == ROOT_INO || target.names(ino)? > 0 || full {
            return refuse(format!("inode {ino} is removed and in use"));
        }
        self.nameless = self.nameless.saturating_sub(1);
        Ok(())
    }
}

/// Refuses to put the directory `ino` into `dir` if that is `ino` or below it.
fn check_above(dir: u64, ino: u64, target: &dyn Target) -> Result<()> {
    let mut at = dir;
    for _ in 0..MOST_LEVELS {
        if at == ino {
            return refuse(format!("directory {ino} is below itself"));
        }
        match target.parent(at)?.filter(|_| at != ROOT_INO) {
            Some(above) => at = above,
            None => return Ok(()),
        }
    }
    refuse(format!(
        "directory {ino} has more than {MOST_LEVELS} directories above it"
    ))
}
