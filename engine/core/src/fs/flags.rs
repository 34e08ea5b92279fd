//! The rules for append-only and immutable inodes, each in one place.
//!
//! Pure functions of the attributes. A caller holds the locks under which it makes the change:
//! those of the inodes for names and attributes, the contents lock for contents and space. A change
//! of a file's flags also takes the contents lock, so a change and the setting of a flag that
//! refuses it are ordered. The rules are those of the kernel's file systems. Data that was accepted
//! before a flag was set is still written.

use crate::inode::attrs::Attrs;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::{S_ISGID, S_ISUID};
use cairnfs_disk::types::{Fallocate, FileKind, Flags, KillPrivileges, SetAttr, SetTime};

const IMMUTABLE: Error = Error::NotPermitted(
    "the file or directory is immutable: clear that flag first, on a mount with `chattr -i`",
);
const APPEND: Error = Error::NotPermitted(
    "the file or directory is append-only: clear that flag first, on a mount with `chattr -a`",
);

const GROUP_EXECUTES: u32 = 0o010;

/// The set-id bits that a write clears. Set-group-id is also cleared without group execute
/// permission if the caller is not in the file's group.
pub(super) fn killed(attrs: &Attrs, kill: KillPrivileges) -> u32 {
    let outside = match kill {
        KillPrivileges::No => return 0,
        KillPrivileges::ByMember => false,
        KillPrivileges::ByGroup(gid) => gid != attrs.gid,
    };
    let group = outside || attrs.mode & GROUP_EXECUTES != 0;
    if attrs.is_dir() {
        0
    } else {
        attrs.mode & (S_ISUID | if group { S_ISGID } else { 0 })
    }
}

/// Refuses all changes of an immutable inode.
fn mutable(flags: Flags) -> Result<()> {
    if flags.contains(Flags::IMMUTABLE) {
        Err(IMMUTABLE)
    } else {
        Ok(())
    }
}

/// Refuses changes of an immutable or append-only inode: extended attributes, adding or removing
/// its names, setting its size.
pub(super) fn may_change(flags: Flags) -> Result<()> {
    mutable(flags)?;
    if flags.contains(Flags::APPEND) {
        Err(APPEND)
    } else {
        Ok(())
    }
}

/// Whether an entry may be added to a directory.
pub(super) fn may_add_entry(dir: Flags) -> Result<()> {
    mutable(dir)
}

/// Whether a directory's entry for `child` may be removed or changed.
pub(super) fn may_remove_entry(dir: Flags, child: Flags) -> Result<()> {
    may_change(dir)?;
    may_change(child)
}

/// Whether a file may be written from `offset` on; append-only files only at their end, and only if no
/// set-id bit is cleared for it, which changes the mode.
pub(super) fn may_write(attrs: &Attrs, offset: u64, kill: KillPrivileges) -> Result<()> {
    if offset < attrs.size || killed(attrs, kill) != 0 {
        may_change(attrs.flags)
    } else {
        mutable(attrs.flags)
    }
}

/// Whether a file may be opened for writing, or for appending only.
#[doc(hidden)]
pub fn may_open(flags: Flags, append: bool) -> Result<()> {
    if append {
        mutable(flags)
    } else {
        may_change(flags)
    }
}

/// Whether this change of a file's space is allowed.
pub(super) fn may_allocate(attrs: &Attrs, what: Fallocate, kill: KillPrivileges) -> Result<()> {
    match what {
        Fallocate::Allocate { .. } if killed(attrs, kill) == 0 => mutable(attrs.flags),
        _ => may_change(attrs.flags),
    }
}

/// Whether these attributes may be set. Flags alone can always be set, but while a file stays
/// immutable no other flag changes.
pub(super) fn may_set(attrs: &Attrs, set: &SetAttr) -> Result<()> {
    let flags_alone = SetAttr {
        flags: set.flags,
        ..SetAttr::default()
    };
    if let Some(flags) = set.flags {
        if !matches!(attrs.kind(), FileKind::File | FileKind::Directory) {
            return Err(Error::Unsupported("flags are for files and directories"));
        }
        if *set == flags_alone {
            let stays = flags.contains(Flags::IMMUTABLE) && flags != attrs.flags;
            return if stays { mutable(attrs.flags) } else { Ok(()) };
        }
    }
    mutable(attrs.flags)?;
    let touches = |time: Option<SetTime>| matches!(time, Some(SetTime::Now));
    let times = set.atime.is_some() || set.mtime.is_some();
    let given = times && !(touches(set.atime) && touches(set.mtime));
    let owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    let owner = owner || killed(attrs, set.kill_privileges) != 0;
    if given || owner || set.size.is_some() {
        may_change(attrs.flags)
    } else {
        Ok(())
    }
}
