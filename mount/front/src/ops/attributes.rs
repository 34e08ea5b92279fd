//! Operations on the attributes of an inode: those of stat(2), flags, extended attributes, access
//! control lists.

use cairnfs::Error;
use cairnfs_disk::acl;
use cairnfs_disk::types::{Attr, Flags, KillPrivileges, SetAttr, XattrMode};

use crate::control;
use crate::convert::Refusal;
use crate::ops::{Caller, Ops, Outcome};
use crate::options::WriteMode;
use crate::program_files::{DOOR, door_attr};
use crate::trees::Place;

impl Ops {
    /// Returns attributes. `writer` is whether the request comes through an open file, as it does
    /// before the kernel accepts data for it.
    pub fn getattr(&self, node: u64, writer: bool) -> Outcome<Attr> {
        if writer && self.full.refuses(node, || self.statfs().available) {
            return Err(Error::NoSpace.into());
        }
        if node == DOOR {
            return Ok(door_attr());
        }
        self.dirs.attributes_told(node);
        let place = self.trees.place(node)?;
        let attr = place.fs.getattr(place.ino)?;
        Ok(place.shown(attr))
    }

    /// Changes attributes; returns those after the change.
    pub fn setattr(&self, caller: Caller, node: u64, mut set: SetAttr) -> Outcome<Attr> {
        let _arriving = self.arriving.read();
        self.dirs.attributes_told(node);
        self.on(node, |place| {
            set.kill_privileges = kills_by_setattr(caller, place, &set)?;
            let attr = place.fs.setattr(place.ino, &set)?;
            if let Some(size) = set.size {
                self.losses.truncated(place.file(), size);
            }
            Ok(attr)
        })
    }

    /// The inode flags.
    pub fn flags(&self, node: u64) -> Outcome<Flags> {
        Ok(self.getattr(node, false)?.flags)
    }

    /// Sets inode flags. The kernel has checked the caller's permission. Data that the kernel
    /// cached before is written back first. Waits for the kernel.
    ///
    /// Append-only is refused with the writeback cache: the kernel then sends appended data as
    /// whole pages in any order, which cannot be distinguished from an overwrite.
    pub fn set_flags(&self, node: u64, flags: Flags) -> Outcome<()> {
        self.on(node, |place| {
            let old = place.fs.getattr(place.ino)?;
            let begins = |flag| flags.contains(flag) && !old.flags.contains(flag);
            if begins(Flags::APPEND) && old.kind.is_file() && self.write == WriteMode::Back {
                return Err(Refusal(libc::EOPNOTSUPP));
            }
            if begins(Flags::APPEND) || begins(Flags::IMMUTABLE) {
                self.drop_cached(node, 0);
            }
            let set = SetAttr {
                flags: Some(flags),
                ..SetAttr::default()
            };
            place.fs.setattr(place.ino, &set)?;
            self.forget_attributes(node);
            Ok(())
        })
    }

    /// Returns the value of an attribute. Reserved ones are answered by [`Ops::answer`] instead.
    pub fn getxattr(&self, node: u64, name: &[u8]) -> Outcome<Vec<u8>> {
        if name == acl::ACCESS {
            // Looked up with the lock of lists, so that it is not of a tree that was replaced.
            return self.lists.read(node, || self.trees.place(node));
        }
        if control::is_reserved(name) {
            return Err(Refusal(libc::ENODATA));
        }
        let place = self.trees.place(node)?;
        Ok(place.fs.getxattr(place.ino, name)?)
    }

    /// Sets an attribute, with the flags of `setxattr(2)`; `kill` applies to an access list.
    pub fn setxattr(
        &self,
        kill: KillPrivileges,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Outcome<()> {
        if control::is_reserved(name) {
            return Err(Refusal(libc::EPERM));
        }
        if name == acl::ACCESS {
            // A renewal could have the kernel decide by the old mode, without the list.
            let _no_renewal = self.without_renewals()?;
            self.listings.forgotten(node);
            return self.on(node, |place| {
                let forget = || self.forget_attributes(node);
                self.lists.set(place, node, (value, kill), forget)
            });
        }
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Refusal(libc::EINVAL)),
        };
        self.on(node, |place| {
            Ok(place.fs.setxattr(place.ino, name, value, mode)?)
        })
    }

    /// Returns the names of all attributes that the caller may see, each followed by NUL.
    pub fn listxattr(&self, caller: Caller, node: u64) -> Outcome<Vec<u8>> {
        let place = self.trees.place(node)?;
        Ok(caller.seen_names(place.fs.listxattr(place.ino)?))
    }

    /// Removes an attribute.
    pub fn removexattr(&self, node: u64, name: &[u8]) -> Outcome<()> {
        if control::is_reserved(name) {
            return Err(Refusal(libc::EPERM));
        }
        self.on(node, |place| match place.fs.removexattr(place.ino, name) {
            // Removing an access list that does not exist succeeds.
            Err(Error::NoAttribute) if name == acl::ACCESS || name == acl::DEFAULT => Ok(()),
            removed => Ok(removed?),
        })
    }

    /// Invalidates the kernel's attributes after set-id bits were cleared.
    pub(super) fn forget_killed(&self, node: u64, kill: KillPrivileges) {
        if kill != KillPrivileges::No {
            self.forget_attributes(node);
        }
    }
}

/// Which set-id bits a change of attributes clears.
fn kills_by_setattr(caller: Caller, place: &Place, set: &SetAttr) -> Outcome<KillPrivileges> {
    let given = set.uid.is_some() || set.gid.is_some();
    // The kernel sends a SETATTR without owner, size and times before it changes contents, and
    // for a chown that changes neither owner nor group.
    let nothing = set.atime.is_none() && set.mtime.is_none();
    if set.mode.is_some() || !(given || set.size.is_some() || nothing) {
        return Ok(KillPrivileges::No);
    }
    let attr = place.fs.getattr(place.ino)?;
    Ok(match set.size {
        Some(_) => caller.kills_by_change(&attr),
        None if given || caller.owns(&attr) => caller.kills_by_chown(&attr),
        // The two cases cannot be distinguished for other users. They may write but not chown,
        // and the write that follows clears the bits itself.
        None => KillPrivileges::No,
    })
}
