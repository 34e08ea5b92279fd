//! What the handles of an open volume hold: the engine of a root, which the last handle to any root
//! closes, and uses of inodes, each released when its guard is dropped, also on error paths.
//!
//! Uses only the engine. A guard never outlives its engine, and keeps its inode in memory.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use cairnfs_core::Inode;
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::Result;
use cairnfs_disk::types::Attr;

/// The engine of one root of an open volume, shared by the handles to that root.
#[derive(Clone)]
pub(super) struct Engine(Arc<Shared>);

struct Shared {
    fs: Arc<FileSystem>,
    /// Shared by the handles to all roots; `None` once dropped.
    share: Option<Arc<Share>>,
}

/// The share of all handles in keeping a volume open.
struct Share {
    /// Whether the handles own the engine, so that the last one closes it. The engine does not
    /// close in time by itself: a worker thread may hold the last reference for a moment, and would
    /// close it after the program believes it closed, or ended.
    owned: bool,
}

impl Engine {
    /// An engine that the last handle closes.
    pub(super) fn owned(fs: Arc<FileSystem>) -> Self {
        Self::new(fs, Arc::new(Share { owned: true }))
    }

    /// An engine that others close.
    pub(super) fn borrowed(fs: Arc<FileSystem>) -> Self {
        Self::new(fs, Arc::new(Share { owned: false }))
    }

    fn new(fs: Arc<FileSystem>, share: Arc<Share>) -> Self {
        let share = Some(share);
        Self(Arc::new(Shared { fs, share }))
    }

    /// Another root of the same volume.
    pub(super) fn with_root(&self, fs: Arc<FileSystem>) -> Self {
        let share = self.0.share.clone();
        Self(Arc::new(Shared { fs, share }))
    }

    pub(super) fn file_system(&self) -> &Arc<FileSystem> {
        &self.0.fs
    }
}

impl Deref for Engine {
    type Target = FileSystem;

    fn deref(&self) -> &FileSystem {
        &self.0.fs
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let last = self.share.take().and_then(Arc::into_inner);
        if last.is_some_and(|share| share.owned) {
            self.fs.close_on_drop();
        }
    }
}

/// A use of an inode, released on drop. A use held within one call borrows the engine, so that it
/// touches no reference count that other threads share.
pub(super) struct InodeRef<E: Deref<Target = FileSystem>> {
    fs: E,
    inode: Arc<Inode>,
}

/// A use held within one call.
pub(super) type Use<'f> = InodeRef<&'f FileSystem>;

/// A use held by an open file or a listing.
pub(super) type Handle = InodeRef<Engine>;

impl<'f> Use<'f> {
    /// Takes ownership of a use that the caller took of `inode`.
    pub(super) fn of(fs: &'f FileSystem, inode: Arc<Inode>) -> Self {
        Self { fs, inode }
    }

    /// Converts it to a guard that may outlive the call.
    pub(super) fn keep(self, engine: &Engine) -> Handle {
        // Takes another use, because the one held here is released on return.
        self.inode.take_use();
        Handle {
            fs: engine.clone(),
            inode: Arc::clone(&self.inode),
        }
    }
}

impl Handle {
    /// The engine, for opening further handles.
    pub(super) fn engine(&self) -> &Engine {
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
