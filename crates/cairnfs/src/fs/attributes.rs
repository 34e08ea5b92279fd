//! Attributes: read and set.

use std::cell::LazyCell;

use crate::error::{Error, Result};
use crate::format::item::{S_IFMT, S_ISGID, S_ISUID};
use crate::fs::FileSystem;
use crate::fs::locked::{attrs, attrs_mut};
use crate::fs::namespace::{INODE_LEN, pending_blocks};
use crate::fs::observe::Call;
use crate::inode::Inode;
use crate::inode::attrs::Attrs;
use crate::txn::Need;
use crate::types::{Attr, SetAttr, SetTime, Time};

/// Clears set-user-id, and set-group-id where the group may execute.
pub(super) fn kill_privileges(attrs: &mut Attrs) {
    if !attrs.is_file() {
        return;
    }
    attrs.mode &= !S_ISUID;
    if attrs.mode & 0o010 != 0 {
        attrs.mode &= !S_ISGID;
    }
}

/// Sets all but the size; asks for the time only if it is to be set. With `keep`, ctime changes only
/// if it is named.
fn apply(a: &mut Attrs, set: &SetAttr, keep: bool, now: impl FnOnce() -> Time) {
    let now = LazyCell::new(now);
    let time = |set| match set {
        SetTime::Now => *now,
        SetTime::At(t) => t,
    };
    if set.kill_privileges {
        kill_privileges(a);
    }
    if let Some(mode) = set.mode {
        a.mode = a.mode & S_IFMT | mode & !S_IFMT;
    }
    a.uid = set.uid.unwrap_or(a.uid);
    a.gid = set.gid.unwrap_or(a.gid);
    if let Some(t) = set.atime {
        a.atime = time(t);
    }
    if let Some(t) = set.mtime {
        a.mtime = time(t);
    }
    a.ctime = match set.ctime {
        Some(t) => t,
        None if keep => a.ctime,
        None => *now,
    };
}

impl FileSystem {
    /// Whether mtime and ctime are set by [`FileSystem::setattr`] alone, because the kernel of a
    /// mount keeps them above.
    fn front_keeps_times(&self, attrs: &Attrs) -> bool {
        !self.content_times && attrs.is_file()
    }

    /// Stamps a regular file whose contents or size change.
    pub(super) fn touch(&self, attrs: &mut Attrs) {
        if self.touch_status(attrs) {
            attrs.mtime = attrs.ctime;
        }
    }

    /// Stamps a regular file whose space changes, and nothing that can be read; whether it did.
    pub(super) fn touch_status(&self, attrs: &mut Attrs) -> bool {
        let keep = self.front_keeps_times(attrs);
        if !keep {
            attrs.ctime = self.core.now();
        }
        !keep
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// No such inode.
    pub fn getattr(&self, ino: u64) -> Result<Attr> {
        self.check_open()?;
        if let Some(attrs) = self.core.glance(ino)? {
            return Ok(attrs.public(ino, 0));
        }
        let inode = self.inode(ino)?;
        let state = inode.read();
        Ok(attrs(&state)?.public(ino, pending_blocks(&state)))
    }

    /// Sets attributes. A size is set first, in transactions of its own.
    ///
    /// # Errors
    /// No such inode; a size for anything but a regular file; no space.
    pub fn setattr(&self, ino: u64, set: &SetAttr) -> Result<Attr> {
        self.observed(Call::SetAttr { ino, set }, || self.set_attributes(ino, set))
    }

    fn set_attributes(&self, ino: u64, set: &SetAttr) -> Result<Attr> {
        let inode = self.inode(ino)?;
        for t in [set.atime, set.mtime, set.ctime.map(SetTime::At)] {
            if let Some(SetTime::At(t)) = t
                && t.nanos >= 1_000_000_000
            {
                return Err(Error::Invalid("a time of 10^9 nanoseconds or more"));
            }
        }
        if let Some(size) = set.size {
            self.truncate(&inode, size)?;
        }
        if let Some(attr) = self.set_in_place(&inode, set)? {
            return Ok(attr);
        }
        let need = Need::items(1, INODE_LEN, 0).deleting();
        let reservation = self.reserve(need)?;
        let mut state = inode.write();
        let attrs_now = attrs_mut(&mut state)?;
        let keep = self.front_keeps_times(attrs_now);
        apply(attrs_now, set, keep, || self.core.now());
        let mut commit = self.core.commit();
        commit.put_inode(&inode, &mut state);
        let receipt = commit.finish(reservation);
        let attr = attrs(&state)?.public(ino, pending_blocks(&state));
        drop(state);
        self.core.settle(receipt)?;
        Ok(attr)
    }

    /// Sets attributes without a transaction, where none is needed.
    ///
    /// Of an inode without links in memory alone: a crash takes the inode with it, and whoever gives
    /// it a name commits all of them. A kernel sends such a change after each unlink.
    ///
    /// Times of one that the open context has, and the log does not, in place. A kernel sends such a
    /// change behind each that it made of a file, for the times that it remembers.
    fn set_in_place(&self, inode: &Inode, set: &SetAttr) -> Result<Option<Attr>> {
        let mut state = inode.write();
        let old = attrs(&state)?;
        if old.nlink > 0 && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()) {
            return Ok(None);
        }
        let mut new = old.clone();
        let keep = self.front_keeps_times(old);
        apply(&mut new, set, keep, || self.core.now());
        if new.nlink > 0 && !self.core.put_times(&mut state, &new)? {
            return Ok(None);
        }
        let attr = new.public(inode.ino, pending_blocks(&state));
        *attrs_mut(&mut state)? = new;
        drop(state);
        self.core.step_aside();
        Ok(Some(attr))
    }
}
