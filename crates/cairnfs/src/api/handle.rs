//! Guards for uses of inodes: each gives its use back when dropped, on error paths too.
//!
//! Uses only the engine. A guard never outlives its engine, and keeps its inode in memory.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Result;
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::types::Attr;

/// A use of an inode, given back when it is dropped. InodeRef within one call it borrows the engine, so
/// that taking it touches no reference count that other threads share.
pub(super) struct InodeRef<E: Deref<Target = FileSystem>> {
    fs: E,
    inode: Arc<Inode>,
}

/// A use held within one call.
pub(super) type Use<'f> = InodeRef<&'f FileSystem>;

/// A use held by an open file or listing.
pub(super) type Handle = InodeRef<Arc<FileSystem>>;

impl<'f> Use<'f> {
    /// Takes charge of the use that was taken of `inode`.
    pub(super) fn of(fs: &'f FileSystem, inode: Arc<Inode>) -> Self {
        Self { fs, inode }
    }

    /// Goes on in a guard that may outlive the call.
    pub(super) fn keep(self, fs: &Arc<FileSystem>) -> Handle {
        // A further use; the one held here goes with it.
        self.inode.take_use();
        Handle {
            fs: Arc::clone(fs),
            inode: Arc::clone(&self.inode),
        }
    }
}

impl Handle {
    /// The engine, for what is opened in turn.
    pub(super) fn engine(&self) -> &Arc<FileSystem> {
        &self.fs
    }
}

impl<E: Deref<Target = FileSystem>> InodeRef<E> {
    pub(super) fn fs(&self) -> &FileSystem {
        &self.fs
    }

    pub(super) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    pub(super) fn ino(&self) -> u64 {
        self.inode.ino
    }
}

impl<E: Deref<Target = FileSystem>> Drop for InodeRef<E> {
    fn drop(&mut self) {
        self.fs.forget_one(&self.inode);
    }
}

/// The directories from the root down to where a walk stands.
pub(super) type Trail = SmallVec<[Arc<Inode>; 8]>;

/// Looks a name up and guards the use that this takes.
pub(super) fn lookup<'f>(fs: &'f FileSystem, dir: &Inode, name: &[u8]) -> Result<(Use<'f>, Attr)> {
    let (inode, attr) = fs.lookup_in(dir, name)?;
    Ok((Use::of(fs, inode), attr))
}
