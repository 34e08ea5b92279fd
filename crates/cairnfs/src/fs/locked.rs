//! Several inode states locked for one change, in order of their numbers.

use smallvec::SmallVec;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::inode::attrs::Attrs;
use crate::inode::{Inode, InodeState};
use crate::sync::RwLockWriteGuard;

/// Inode states locked for changes.
pub struct Locked<'a> {
    guards: SmallVec<[(u64, RwLockWriteGuard<'a, InodeState>); 4]>,
}

impl<'a> Locked<'a> {
    /// Locks the inodes, each once.
    pub fn new(inodes: &[&'a Arc<Inode>]) -> Self {
        let mut sorted: SmallVec<[&'a Arc<Inode>; 4]> = inodes.iter().copied().collect();
        sorted.sort_by_key(|i| i.ino);
        sorted.dedup_by_key(|i| i.ino);
        Self {
            guards: sorted.iter().map(|i| (i.ino, i.write())).collect(),
        }
    }

    /// The state of one of them.
    pub fn state(&mut self, inode: &Inode) -> Result<&mut InodeState> {
        self.guards
            .iter_mut()
            .find(|(ino, _)| *ino == inode.ino)
            .map(|(_, guard)| &mut **guard)
            .ok_or(Error::Invalid("an inode that was not locked"))
    }

    /// The attributes of one of them.
    pub fn attrs(&mut self, inode: &Inode) -> Result<&mut Attrs> {
        attrs_mut(self.state(inode)?)
    }
}

/// The attributes of an inode that must exist.
pub fn attrs_mut(state: &mut InodeState) -> Result<&mut Attrs> {
    state.attrs.as_mut().ok_or(Error::NotFound)
}

/// The attributes of an inode that must exist.
pub fn attrs(state: &InodeState) -> Result<&Attrs> {
    state.attrs.as_ref().ok_or(Error::NotFound)
}

/// The attributes of a directory that is still linked.
pub fn live_dir(state: &InodeState) -> Result<&Attrs> {
    let attrs = attrs(state)?;
    if !attrs.is_dir() {
        return Err(Error::NotDirectory);
    }
    if attrs.nlink == 0 {
        return Err(Error::NotFound);
    }
    Ok(attrs)
}
