//! Guards for uses of inodes: each gives its use back when dropped, on error paths too.
//!
//! Uses only the engine. A guard never outlives its engine, and keeps its inode in memory.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Result;
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::types::Attr;

/// A use held within one call. It borrows the engine, so that taking it touches no reference count
/// that other threads share.
pub(super) struct Use<'f> {
    fs: &'f FileSystem,
    inode: Option<Arc<Inode>>,
    ino: u64,
}

impl<'f> Use<'f> {
    /// Takes charge of the use that was taken of `inode`.
    pub(super) fn of(fs: &'f FileSystem, inode: Arc<Inode>) -> Self {
        Self {
            fs,
            ino: inode.ino,
            inode: Some(inode),
        }
    }

    pub(super) fn ino(&self) -> u64 {
        self.ino
    }

    /// Hands the use on to a guard that may outlive the call.
    pub(super) fn keep(mut self, fs: &Arc<FileSystem>) -> Handle {
        Handle {
            fs: Arc::clone(fs),
            inode: self.inode.take(),
            ino: self.ino,
        }
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        if let Some(inode) = &self.inode {
            self.fs.forget_one(inode);
        }
    }
}

/// A use held by an open file or listing.
pub(super) struct Handle {
    fs: Arc<FileSystem>,
    inode: Option<Arc<Inode>>,
    ino: u64,
}

impl Handle {
    pub(super) fn fs(&self) -> &FileSystem {
        &self.fs
    }

    /// The engine, for what is opened in turn.
    pub(super) fn engine(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    pub(super) fn ino(&self) -> u64 {
        self.ino
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(inode) = &self.inode {
            self.fs.forget_one(inode);
        }
    }
}

/// The directories from the root down to where a walk stands.
pub(super) type Trail = SmallVec<[Arc<Inode>; 8]>;

/// Looks a name up and guards the use that this takes.
pub(super) fn lookup<'f>(fs: &'f FileSystem, dir: &Inode, name: &[u8]) -> Result<(Use<'f>, Attr)> {
    let (inode, attr) = fs.lookup_in(dir, name)?;
    Ok((Use::of(fs, inode), attr))
}
