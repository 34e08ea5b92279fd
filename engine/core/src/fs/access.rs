//! Access lists: the mode and the access list of an inode change in one transaction.
//!
//! The list is computed and committed with the mode under one hold of the inode's lock, so two
//! changes never mix, and a reader sees both from before or both from after a change. Uses the
//! transaction of the attributes (`xattr`, `attributes`); [`cairnfs_disk::acl`] defines what a list means.

use std::sync::Arc;

use crate::fs::FileSystem;
use crate::fs::locked::attrs;
use crate::fs::observe::Call;
use crate::fs::xattr::{Found, New, put_item};
use crate::inode::attrs::Attrs;
use crate::inode::{Inode, InodeState};
use crate::txn::Commit;
use cairnfs_disk::acl::{ACCESS, Acl};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::S_ISGID;
use cairnfs_disk::types::{KillPrivileges, SetAttr, XattrMode};

/// An access list that must change together with the mode.
pub(super) struct Follower {
    hash: u64,
    found: Found,
    value: Vec<u8>,
}

impl Follower {
    /// Bytes of its item in log format.
    pub fn logged(&self) -> usize {
        self.found.logged() + ACCESS.len() + self.value.len() + 8
    }
}

/// Sets the mode's permissions from an access list.
fn follow(attrs: &mut Attrs, list: &Acl, kill: KillPrivileges) {
    attrs.mode = attrs.mode & !0o777 | list.permissions();
    if matches!(kill, KillPrivileges::ByGroup(gid) if gid != attrs.gid) {
        attrs.mode &= !S_ISGID;
    }
}

impl FileSystem {
    /// The access list of an inode; if it has none, the list that is equivalent to its mode.
    ///
    /// Each list is complete, so a caller that checks access needs only the list, and cannot
    /// combine a mode and a list of different times into permissions that neither grants alone.
    ///
    /// # Errors
    /// No such inode; damage.
    pub fn access_list(&self, ino: u64) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let at = (self.hash(ACCESS), ACCESS);
        let state = inode.read();
        let kept = if Self::lacks(&state, at.0)? {
            None
        } else {
            self.items().attribute(&inode, &state, at)?
        };
        if let Some(value) = kept {
            return Ok(value);
        }
        let list = Acl::of_mode(attrs(&state)?.mode);
        let knows = state.knows_attributes();
        drop(state);
        if !knows {
            self.remember_attributes(&inode)?;
        }
        Ok(list.to_bytes())
    }

    /// Sets the access list of an inode and its mode, in one transaction. A list that is equivalent
    /// to a mode is not stored. `kill` clears set-group-id if the caller is not in the file's
    /// group, also for a directory.
    ///
    /// # Errors
    /// Not an access control list; no space.
    pub fn set_access_list(&self, ino: u64, value: &[u8], kill: KillPrivileges) -> Result<()> {
        self.set_access_list_of(&self.inode(ino)?, value, XattrMode::Set, kill)
    }

    /// Like [`FileSystem::set_access_list`] for a loaded inode; `mode` is whether a list must
    /// exist.
    pub(super) fn set_access_list_of(
        &self,
        inode: &Arc<Inode>,
        value: &[u8],
        mode: XattrMode,
        kill: KillPrivileges,
    ) -> Result<()> {
        self.engine.lifecycle.check_open()?;
        let list = Acl::parse(value).ok_or(Error::Invalid("not an access control list"))?;
        let call = Call::SetAccessList {
            ino: inode.ino,
            value,
            mode,
            kill,
        };
        let kept = Some(value).filter(|_| !list.is_minimal());
        let also = |attrs: &mut Attrs| follow(attrs, &list, kill);
        self.observed(call, || {
            self.change_xattr(inode, (ACCESS, kept), mode, also)
        })
    }

    /// The changed access list of an inode once these attributes are set; `None` if it stays.
    pub(super) fn follower(
        &self,
        inode: &Inode,
        state: &InodeState,
        set: &SetAttr,
    ) -> Result<Option<Follower>> {
        let Some(mode) = set.mode else {
            return Ok(None);
        };
        let hash = self.hash(ACCESS);
        if Self::lacks(state, hash)? {
            return Ok(None);
        }
        let at = (hash, ACCESS);
        let Some(old) = self.items().attribute(inode, state, at)? else {
            return Ok(None);
        };
        // A malformed list grants nothing, and stays as it is.
        let Some(mut list) = Acl::parse(&old) else {
            return Ok(None);
        };
        list.set_permissions(mode);
        let value = list.to_bytes();
        if value == old {
            return Ok(None);
        }
        let found = self.find_attribute(inode, state, at)?;
        Ok(Some(Follower { hash, found, value }))
    }

    /// Puts the changed access list; the caller puts the inode item.
    pub(super) fn put_follower(
        &self,
        commit: &mut Commit<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        follower: Follower,
    ) {
        let Follower { hash, found, value } = follower;
        let new = New::of(self.core().values(), &value);
        let (others, below) = found.parts();
        let mut changes = commit.of(inode, state);
        put_item(&mut changes, (hash, below), (ACCESS, Some(&new), others));
    }
}
