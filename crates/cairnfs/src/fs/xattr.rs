//! Extended attributes: an item holds all attributes whose names have its hash.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::item::{XattrRef, decode_xattrs, encode_xattr};
use crate::format::key::Kind;
use crate::format::{MAX_NAME, MAX_XATTR_VALUE};
use crate::fs::FileSystem;
use crate::fs::locked::{attrs, attrs_mut};
use crate::fs::namespace::INODE_LEN;
use crate::fs::observe::Call;
use crate::inode::{Inode, InodeState};
use crate::txn::{Item, Need};
use crate::types::{FileKind, XattrMode};

const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];

/// Refuses names that Linux has no namespace for, and `user.` where it does not belong.
fn check_name(name: &[u8], kind: FileKind) -> Result<()> {
    if name.len() > MAX_NAME {
        return Err(Error::NameTooLong);
    }
    let bare = NAMESPACES
        .iter()
        .find_map(|space| name.strip_prefix(*space))
        .ok_or(Error::Unsupported(
            "attributes begin with user., trusted., security. or system.",
        ))?;
    if bare.is_empty() || bare.contains(&0) {
        return Err(Error::Invalid(
            "an attribute's name is empty, or has NUL in it",
        ));
    }
    if name.starts_with(b"user.") && !matches!(kind, FileKind::File | FileKind::Directory) {
        return Err(Error::NotPermitted(
            "user. attributes are for files and directories",
        ));
    }
    Ok(())
}

fn bad_item(ino: u64) -> impl FnOnce(String) -> Error {
    move |found| Error::corrupt(0, "attribute item", format!("inode {ino}"), found)
}

impl FileSystem {
    fn xattr_item(&self, inode: &Inode, state: &InodeState, name: &[u8]) -> Result<Option<Item>> {
        if attrs(state)?.xattrs == 0 {
            return Ok(None);
        }
        self.core.item(inode, state, Kind::Xattr, self.hash(name))
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// No such attribute.
    pub fn getxattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        let item = self
            .xattr_item(&inode, &state, name)?
            .ok_or(Error::NoAttribute)?;
        decode_xattrs(&item.value)
            .map_err(bad_item(ino))?
            .iter()
            .find(|x| x.name == name)
            .map(|x| x.value.to_vec())
            .ok_or(Error::NoAttribute)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// A name without a known namespace; a value over 64 KiB; it exists (create) or does not
    /// (replace); no space.
    pub fn setxattr(&self, ino: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        if value.len() > MAX_XATTR_VALUE {
            return Err(Error::AttributeTooLarge);
        }
        let call = Call::SetXattr {
            ino,
            name,
            value,
            mode,
        };
        self.observed(call, || self.change_xattr(ino, name, Some(value), mode))
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// No such attribute.
    pub fn removexattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        let call = Call::RemoveXattr { ino, name };
        self.observed(call, || {
            self.change_xattr(ino, name, None, XattrMode::Replace)
        })
    }

    fn change_xattr(
        &self,
        ino: u64,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        check_name(name, attrs(&inode.read())?.kind())?;
        let mut room = value.map_or(0, |v| v.len()) + name.len() + 8;
        loop {
            let mut need = Need::items(2, INODE_LEN + room, 1);
            if value.is_none() {
                need = need.deleting();
            }
            let reservation = self.core.reserve(need)?;
            let mut state = inode.write();
            let old = self.xattr_item(&inode, &state, name)?;
            let (new, existed) = replaced(ino, old.as_ref(), name, value)?;
            match (mode, existed) {
                (XattrMode::Create, true) => return Err(Error::Exists),
                (XattrMode::Replace, false) => return Err(Error::NoAttribute),
                _ => {}
            }
            if new.len() > room {
                // Others share the hash: their values are logged along.
                room = new.len();
                continue;
            }
            if new.len() > crate::format::MAX_VALUE {
                return Err(Error::NoSpace);
            }
            let a = attrs_mut(&mut state)?;
            a.ctime = self.core.now();
            match (existed, value) {
                (false, Some(_)) => a.xattrs += 1,
                (true, None) => a.xattrs = a.xattrs.saturating_sub(1),
                _ => {}
            }
            let receipt = self.commit_xattr(&inode, &mut state, name, &new, old, reservation);
            drop(state);
            return self.core.settle(receipt);
        }
    }

    fn commit_xattr(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        name: &[u8],
        new: &[u8],
        old: Option<Item>,
        reservation: crate::txn::Reservation<'_>,
    ) -> crate::txn::Receipt {
        let below = old.is_some_and(|i| i.below);
        let hash = self.hash(name);
        let mut commit = self.core.commit();
        if new.is_empty() {
            commit.delete(inode, state, Kind::Xattr, hash, &[], below);
        } else {
            commit.put(inode, state, Kind::Xattr, hash, new, below);
        }
        commit.put_inode(inode, state);
        commit.finish(reservation)
    }

    /// The names of all attributes, each followed by NUL.
    ///
    /// # Errors
    /// No such inode; damage.
    pub fn listxattr(&self, ino: u64) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        let mut names = Vec::new();
        if attrs(&state)?.xattrs == 0 {
            return Ok(names);
        }
        self.core
            .items(&inode, &state, Kind::Xattr, 0, u64::MAX, &mut |_, item| {
                for xattr in decode_xattrs(&item.value).map_err(bad_item(ino))? {
                    names.extend_from_slice(xattr.name);
                    names.push(0);
                }
                Ok(true)
            })?;
        Ok(names)
    }
}

/// The item's value with an attribute set or removed, and whether it was there before.
fn replaced(
    ino: u64,
    old: Option<&Item>,
    name: &[u8],
    value: Option<&[u8]>,
) -> Result<(Vec<u8>, bool)> {
    let mut new = Vec::new();
    let mut existed = false;
    if let Some(old) = old {
        for xattr in decode_xattrs(&old.value).map_err(bad_item(ino))? {
            if xattr.name == name {
                existed = true;
            } else {
                encode_xattr(&mut new, &xattr);
            }
        }
    }
    if let Some(value) = value {
        encode_xattr(&mut new, &XattrRef { name, value });
    }
    Ok((new, existed))
}
