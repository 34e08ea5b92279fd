//! Reading and setting attributes. One call sets its attributes in one transaction.

use std::cell::LazyCell;
use std::sync::Arc;

use crate::fs::FileSystem;
use crate::fs::access::Follower;
use crate::fs::flags::{killed, may_set};
use crate::fs::locked::{attrs, attrs_mut};
use crate::fs::observe::Call;
use crate::fs::sizes::INODE_LEN;
use crate::inode::Inode;
use crate::inode::attrs::Attrs;
use crate::txn::Need;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::S_IFMT;
use cairnfs_disk::types::{Attr, KillPrivileges, SetAttr, SetTime, Time};

/// Clears set-id bits as a write does.
pub(super) fn kill_privileges(attrs: &mut Attrs, kill: KillPrivileges) {
    attrs.mode &= !killed(attrs, kill);
}

/// Sets all attributes except the size; calls `now` only if it is needed. With `keep`, ctime
/// changes only if `set` has it, or the flags change.
fn apply(a: &mut Attrs, set: &SetAttr, keep: bool, now: impl FnOnce() -> Time) {
    let now = LazyCell::new(now);
    let time = |set| match set {
        SetTime::Now => *now,
        SetTime::At(t) => t,
    };
    kill_privileges(a, set.kill_privileges);
    if let Some(mode) = set.mode {
        a.mode = a.mode & S_IFMT | mode & !S_IFMT;
    }
    a.uid = set.uid.unwrap_or(a.uid);
    a.gid = set.gid.unwrap_or(a.gid);
    a.flags = set.flags.unwrap_or(a.flags);
    if let Some(t) = set.atime {
        a.atime = time(t);
    }
    if let Some(t) = set.mtime {
        a.mtime = time(t);
    }
    a.ctime = match set.ctime {
        Some(t) => t,
        // No kernel front end sends a ctime with a change of flags.
        None if keep && set.flags.is_none() => a.ctime,
        None => *now,
    };
}

impl FileSystem {
    /// Sets all attributes except the size.
    fn apply(&self, attrs: &mut Attrs, set: &SetAttr) {
        let keep = self.engine.times.kept_by_front(attrs);
        apply(attrs, set, keep, || self.core().now());
    }

    /// Sets all attributes except the size, for a file whose size changes.
    pub(super) fn apply_resized(&self, attrs: &mut Attrs, set: &SetAttr) {
        self.touch(attrs);
        let stamped = attrs.ctime;
        let keep = self.engine.times.kept_by_front(attrs);
        apply(attrs, set, keep, || stamped);
    }

    /// Updates mtime and ctime of a regular file whose contents or size change.
    pub(super) fn touch(&self, attrs: &mut Attrs) {
        self.engine.times.touch(attrs, || self.core().now());
    }

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// No such inode.
    pub fn getattr(&self, ino: u64) -> Result<Attr> {
        self.engine.lifecycle.check_open()?;
        if let Some(attrs) = self.items().glance(ino)? {
            return Ok(attrs.public(ino, 0));
        }
        let inode = self.inode(ino)?;
        let state = inode.read();
        Ok(attrs(&state)?.public(ino, state.pages.unplaced()))
    }

    /// Sets attributes in one transaction; a changed mode also updates the access list. Mode or
    /// flags that are set together with a size are set in a second transaction. Does not check who
    /// may set append-only and immutable: a front end checks `CAP_LINUX_IMMUTABLE`.
    ///
    /// # Errors
    /// No such inode; a size for anything but a regular file; flags for anything but a file or
    /// directory; [`Error::NotPermitted`] for an append-only or immutable one; no space.
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
        let mut set = *set;
        if let Some(size) = set.size {
            let later = SetAttr {
                mode: set.mode.take(),
                flags: set.flags.take(),
                ..SetAttr::default()
            };
            let attr = self.truncate(&inode, size, &set)?;
            if later == SetAttr::default() {
                return Ok(attr);
            }
            set = later;
        }
        // Waits for changes of the contents that the new flags would refuse.
        let _contents = set.flags.map(|_| inode.contents());
        match self.set_in_place(&inode, &set)? {
            Some(attr) => Ok(attr),
            None => self.set_in_transaction(&inode, &set),
        }
    }

    fn set_in_transaction(&self, inode: &Arc<Inode>, set: &SetAttr) -> Result<Attr> {
        let mut room = 0;
        loop {
            let need = Need::items(1 + usize::from(room > 0), INODE_LEN + room, 0);
            let reservation = self.reserve(need.deleting())?;
            let mut state = inode.write();
            may_set(attrs(&state)?, set)?;
            let follower = self.follower(inode, &state, set)?;
            let logged = follower.as_ref().map_or(0, Follower::logged);
            if logged > room {
                room = logged;
                continue;
            }
            let mut commit = self.commit()?;
            self.apply(attrs_mut(&mut state)?, set);
            if let Some(follower) = follower {
                self.put_follower(&mut commit, inode, &mut state, follower);
            }
            commit.put_inode(inode, &mut state);
            let receipt = commit.finish(reservation);
            let attr = attrs(&state)?.public(inode.ino, state.pages.unplaced());
            drop(state);
            self.core().throttle(receipt)?;
            return Ok(attr);
        }
    }

    /// Sets attributes without a transaction where none is needed; `None` if one is.
    ///
    /// For an inode without links in memory only: after a crash the inode is removed anyway, and a
    /// link commits all attributes. A kernel sends such a change after each unlink.
    ///
    /// For times of an inode that the current dirty set has and the log has not, in place. A kernel
    /// sends its cached times with such a change after each change of a file.
    fn set_in_place(&self, inode: &Inode, set: &SetAttr) -> Result<Option<Attr>> {
        let mut state = inode.write();
        let old = attrs(&state)?;
        may_set(old, set)?;
        let more = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        if old.nlink > 0 && (more || set.flags.is_some()) {
            return Ok(None);
        }
        if self.follower(inode, &state, set)?.is_some() {
            return Ok(None);
        }
        let mut new = old.clone();
        self.apply(&mut new, set);
        self.check_changeable()?;
        match new.nlink {
            0 => {}
            _ if !self.core().put_times(&mut state, &new)? => return Ok(None),
            _ => {}
        }
        let attr = new.public(inode.ino, state.pages.unplaced());
        *attrs_mut(&mut state)? = new;
        Ok(Some(attr))
    }
}
