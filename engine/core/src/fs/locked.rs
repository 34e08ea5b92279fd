//! Locks the states of several inodes for one change, in order of inode number.

use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

use crate::inode::attrs::Attrs;
use crate::inode::{Inode, InodeState};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::sync::RwLockWriteGuard;

/// Inode states locked for writing.
pub struct Locked<'a> {
    guards: SmallVec<[(u64, RwLockWriteGuard<'a, InodeState>); 4]>,
}

impl<'a> Locked<'a> {
    /// Locks the inodes, each once, in order of inode number.
    pub fn new(inodes: &[&'a Arc<Inode>]) -> Self {
        let mut sorted: SmallVec<[&'a Arc<Inode>; 4]> = inodes.iter().copied().collect();
        sorted.sort_by_key(|i| i.ino);
        sorted.dedup_by_key(|i| i.ino);
        Self {
            guards: sorted.iter().map(|i| (i.ino, i.write())).collect(),
        }
    }

    /// Adds the lock of a second inode, whose number is larger, to a lock that is held.
    pub fn two(
        (inode, state): (&Arc<Inode>, RwLockWriteGuard<'a, InodeState>),
        larger: &'a Arc<Inode>,
    ) -> Self {
        assert!(
            inode.ino < larger.ino,
            "inodes are locked in the order of their numbers"
        );
        Self {
            guards: smallvec![(inode.ino, state), (larger.ino, larger.write())],
        }
    }

    /// The state of one of the locked inodes.
    pub fn state(&mut self, inode: &Inode) -> Result<&mut InodeState> {
        self.guards
            .iter_mut()
            .find(|(ino, _)| *ino == inode.ino)
            .map(|(_, guard)| &mut **guard)
            .ok_or(Error::Invalid("an inode that was not locked"))
    }

    /// The attributes of one of the locked inodes.
    pub fn attrs(&mut self, inode: &Inode) -> Result<&mut Attrs> {
        attrs_mut(self.state(inode)?)
    }
}

/// The attributes of an inode; an error if it is removed.
pub fn attrs_mut(state: &mut InodeState) -> Result<&mut Attrs> {
    match &mut state.attrs {
        Some(attrs) => Ok(attrs),
        None => Err(Error::NotFound),
    }
}

/// The attributes of an inode; an error if it is removed.
pub fn attrs(state: &InodeState) -> Result<&Attrs> {
    match &state.attrs {
        Some(attrs) => Ok(attrs),
        None => Err(Error::NotFound),
    }
}

/// The attributes of an inode that was found by its name or number. [`Error::NotFound`] also if it
/// has neither names nor uses: its removal, which runs in steps, may have begun, and it must not be
/// seen half removed.
pub fn found_attrs<'s>(inode: &Inode, state: &'s InodeState) -> Result<&'s Attrs> {
    match attrs(state)? {
        attrs if attrs.nlink == 0 && inode.uses() == 0 => Err(Error::NotFound),
        attrs => Ok(attrs),
    }
}

/// The attributes of a directory; an error for any other inode.
pub fn dir_attrs(state: &InodeState) -> Result<&Attrs> {
    let attrs = attrs(state)?;
    if attrs.is_dir() {
        Ok(attrs)
    } else {
        Err(Error::NotDirectory)
    }
}

/// The attributes of a directory; an error if it is unlinked.
pub fn live_dir(state: &InodeState) -> Result<&Attrs> {
    let attrs = dir_attrs(state)?;
    if attrs.nlink == 0 {
        return Err(Error::NotFound);
    }
    Ok(attrs)
}
