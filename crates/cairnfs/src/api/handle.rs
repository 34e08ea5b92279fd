//! Guards for uses of inodes: each releases its use when dropped, also on error paths.
//!
//! Uses only the engine. A guard never outlives its engine, and keeps its inode in memory.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Result;
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::types::Attr;

/// A use of an inode, released on drop. A use held within one call borrows the engine, so that it
/// touches no reference count that other threads share.
pub(super) struct InodeRef<E: Deref<Target = FileSystem>> {
    fs: E,
    inode: Arc<Inode>,
}

/// A use held within one call.
pub(super) type Use<'f> = InodeRef<&'f FileSystem>;

/// A use held by an open file or a listing.
pub(super) type Handle = InodeRef<Arc<FileSystem>>;

impl<'f> Use<'f> {
    /// Takes ownership of a use that the caller took of `inode`.
    pub(super) fn of(fs: &'f FileSystem, inode: Arc<Inode>) -> Self {
        Self { fs, inode }
    }

    /// Converts it to a guard that may outlive the call.
    pub(super) fn keep(self, fs: &Arc<FileSystem>) -> Handle {
        // Takes another use, because the one held here is released on return.
        self.inode.take_use();
        Handle {
            fs: Arc::clone(fs),
            inode: Arc::clone(&self.inode),
        }
    }
}

impl Handle {
    /// The engine, for opening further handles.
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

/// The directories from the root to the current directory of a walk.
pub(super) type Trail = SmallVec<[Arc<Inode>; 8]>;

/// Looks up a name and guards the use of its inode.
pub(super) fn lookup<'f>(fs: &'f FileSystem, dir: &Inode, name: &[u8]) -> Result<(Use<'f>, Attr)> {
    let (inode, attr) = fs.lookup_in(dir, name)?;
    Ok((Use::of(fs, inode), attr))
}
