//! Guards for uses of inodes: each gives its use back when dropped, on error paths too.
//!
//! Uses only the engine. A guard never outlives its engine, and the root's inode, which every
//! open volume holds, is never given back.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Result;
use crate::format::ROOT_INO;
use crate::fs::FileSystem;
use crate::types::Attr;

/// A use held within one call. It borrows the engine, so that walking a path touches no
/// reference count that other threads share.
pub(super) struct Use<'f> {
    fs: &'f FileSystem,
    ino: u64,
}

impl<'f> Use<'f> {
    /// Takes charge of the use that came with `attr`.
    pub(super) fn of(fs: &'f FileSystem, attr: &Attr) -> Self {
        Self { fs, ino: attr.ino }
    }

    /// The root directory, which needs no use.
    pub(super) fn root(fs: &'f FileSystem) -> Self {
        Self { fs, ino: ROOT_INO }
    }

    pub(super) fn ino(&self) -> u64 {
        self.ino
    }

    /// Hands the use on to a guard that may outlive the call.
    pub(super) fn keep(mut self, fs: &Arc<FileSystem>) -> Handle {
        // The root is what a guard need not give back: what is left here to drop does nothing.
        let ino = std::mem::replace(&mut self.ino, ROOT_INO);
        Handle {
            fs: Arc::clone(fs),
            ino,
        }
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        give_back(self.fs, self.ino);
    }
}

/// A use held by an open file or listing.
pub(super) struct Handle {
    fs: Arc<FileSystem>,
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
        give_back(&self.fs, self.ino);
    }
}

fn give_back(fs: &FileSystem, ino: u64) {
    if ino != ROOT_INO {
        fs.forget(ino, 1);
    }
}

/// The directories from the root (not included) down to where a walk stands.
pub(super) type Trail<'f> = SmallVec<[Use<'f>; 8]>;

/// Looks a name up and guards the use that this takes.
pub(super) fn lookup<'f>(fs: &'f FileSystem, dir: u64, name: &[u8]) -> Result<(Use<'f>, Attr)> {
    let attr = fs.lookup(dir, name)?;
    Ok((Use::of(fs, &attr), attr))
}
