//! Names: look-up, making files of every kind, links.
//!
//! An entry gets an index that only grows and is never given again, so it also is the listing's
//! cookie. The entry and the directory's attributes are one transaction with what they name.

use std::sync::Arc;

use crate::deliberate::{Deliberate, happens};
use crate::error::{Error, Result};
use crate::format::checksum::name_hash;
use crate::format::item::{
    DIR_ENTRY_HEADER, DirEntryRef, ORPHAN_TRUNCATE, RawInode, S_IFDIR, S_IFLNK, S_IFMT, S_ISGID,
    encode_dir_entry,
};
use crate::format::key::Kind;
use crate::format::{MAX_LINKS, MAX_NAME, MAX_SYMLINK, ROOT_INO};
use crate::fs::FileSystem;
use crate::fs::locked::{Locked, attrs, attrs_mut, live_dir};
use crate::fs::observe::Call;
use crate::inode::attrs::Attrs;
use crate::inode::{Inode, InodeState};
use crate::txn::{Commit, NameAt, Need};
use crate::types::{Attr, Creds, FileKind, Time};

/// Most bytes of a directory entry's value.
pub(super) const ENTRY_MAX: usize = DIR_ENTRY_HEADER + MAX_NAME;
/// Bytes of an inode item's value.
pub(super) const INODE_LEN: usize = size_of::<RawInode>();

/// Refuses what no entry can be called.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::Invalid("a name is empty, or has '/' or NUL in it"));
    }
    if name == b"." || name == b".." {
        return Err(Error::Invalid(
            "\".\" and \"..\" cannot be made, moved or removed",
        ));
    }
    Ok(())
}

struct New<'a> {
    mode: u32,
    rdev: u64,
    creds: Creds,
    target: Option<&'a [u8]>,
}

impl FileSystem {
    /// The inode of a name, with one use taken.
    ///
    /// # Errors
    /// No such name; not a directory.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Result<Attr> {
        if name.len() > MAX_NAME {
            return Err(Error::NameTooLong);
        }
        let dir = self.inode(dir)?;
        loop {
            let (ino, index) = {
                let state = dir.read();
                let attrs = attrs(&state)?;
                if !attrs.is_dir() {
                    return Err(Error::NotDirectory);
                }
                match name {
                    b"." => (dir.ino, None),
                    b".." => (attrs.parent, None),
                    _ => {
                        let hash = self.hash(name);
                        let found = self.core.find_name(&dir, &state, hash, name)?;
                        let found = found.ok_or(Error::NotFound)?;
                        (found.ino, Some(found.index))
                    }
                }
            };
            match (self.take_use(ino), index) {
                // Gone since, and the entry with it: another may have taken its place at once.
                (Err(Error::NotFound), Some(index)) if !self.has_entry(&dir, index)? => {}
                (result, _) => return result,
            }
        }
    }

    /// Whether a directory still has the entry at an index, which no other will ever have.
    pub(super) fn has_entry(&self, dir: &Inode, index: u64) -> Result<bool> {
        let entry = self.core.dir_entry(dir, &dir.read(), index, |_, _| ())?;
        Ok(entry.is_some())
    }

    /// Takes a use of an inode that was found by name.
    pub(super) fn take_use(&self, ino: u64) -> Result<Attr> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        let attr = attrs(&state)?.public(ino, pending_blocks(&state));
        inode.take_use();
        Ok(attr)
    }

    pub(super) fn hash(&self, name: &[u8]) -> u64 {
        name_hash(self.core.hash_seed(), name)
    }

    /// Makes a regular file, FIFO, socket or device; `mode` holds type bits and permissions.
    /// Takes one use.
    ///
    /// # Errors
    /// The name is taken or cannot be; no space.
    pub fn mknod(&self, dir: u64, name: &[u8], mode: u32, rdev: u64, creds: Creds) -> Result<Attr> {
        match FileKind::from_mode(mode) {
            None => return Err(Error::Invalid("a mode without a file type")),
            Some(FileKind::Directory | FileKind::Symlink) => {
                return Err(Error::Invalid("mknod makes no directories and no symlinks"));
            }
            Some(_) => {}
        }
        let new = New {
            mode,
            rdev,
            creds,
            target: None,
        };
        self.make(dir, name, &new)
    }

    /// Makes a directory. Takes one use.
    ///
    /// # Errors
    /// The name is taken or cannot be; no space.
    pub fn mkdir(&self, dir: u64, name: &[u8], mode: u32, creds: Creds) -> Result<Attr> {
        let new = New {
            mode: S_IFDIR | mode & !S_IFMT,
            rdev: 0,
            creds,
            target: None,
        };
        self.make(dir, name, &new)
    }

    /// Makes a symbolic link. Takes one use.
    ///
    /// # Errors
    /// The name is taken or cannot be; an empty or too long target; no space.
    pub fn symlink(&self, dir: u64, name: &[u8], target: &[u8], creds: Creds) -> Result<Attr> {
        if target.len() > MAX_SYMLINK {
            return Err(Error::NameTooLong);
        }
        if target.is_empty() || target.contains(&0) {
            return Err(Error::Invalid("a target is empty or has NUL in it"));
        }
        let new = New {
            mode: S_IFLNK | 0o777,
            rdev: 0,
            creds,
            target: Some(target),
        };
        self.make(dir, name, &new)
    }

    fn make(&self, dir: u64, name: &[u8], new: &New<'_>) -> Result<Attr> {
        let target = new.target.unwrap_or_default();
        let call = Call::Make { dir, name, target };
        self.observed(call, || self.make_entry(dir, name, new))
    }

    fn make_entry(&self, dir: u64, name: &[u8], new: &New<'_>) -> Result<Attr> {
        check_name(name)?;
        let dir = self.inode(dir)?;
        let target = new.target.unwrap_or_default();
        let need = Need::items(4, 2 * INODE_LEN + ENTRY_MAX + target.len(), 0);
        let reservation = self.core.reserve(need)?;
        let hash = self.hash(name);
        let mut dir_state = dir.write();
        let (gid, mode) = inherit(live_dir(&dir_state)?, new);
        if self.core.find_name(&dir, &dir_state, hash, name)?.is_some() {
            return Err(Error::Exists);
        }
        let ino = self.core.new_ino(&mut dir_state.chunk);
        let mut made = Attrs::new(
            mode,
            (new.creds.uid, gid),
            new.rdev,
            dir.ino,
            self.core.now(),
        );
        made.set_size(target.len() as u64);
        let now = made.btime;
        let is_dir = made.is_dir();
        change_dir(attrs_mut(&mut dir_state)?, now, i64::from(is_dir))?;
        let child = Arc::new(Inode::born(ino, made));
        let mut child_state = child.write();
        self.core.table().insert(child.clone());
        let mut commit = self.core.commit();
        self.put_entry(
            &mut commit,
            &dir,
            &mut dir_state,
            hash,
            (
                &DirEntryRef {
                    ino,
                    kind: mode & S_IFMT,
                    name,
                },
                &child,
            ),
        )?;
        commit.put_inode(&dir, &mut dir_state);
        if let Some(target) = new.target {
            commit.put(&child, &mut child_state, Kind::Inline, 0, target, false);
        }
        commit.put_inode(&child, &mut child_state);
        let attr = attrs(&child_state)?.public(ino, 0);
        let receipt = commit.finish(reservation);
        drop(child_state);
        drop(dir_state);
        self.core.settle(receipt)?;
        Ok(attr)
    }

    /// Adds an entry under a new index; the directory's size grows by it.
    pub(super) fn put_entry(
        &self,
        commit: &mut Commit<'_>,
        dir: &Arc<Inode>,
        state: &mut InodeState,
        hash: u64,
        (entry, child): (&DirEntryRef<'_>, &Inode),
    ) -> Result<()> {
        let attrs = attrs_mut(state)?;
        let index = attrs.next_index;
        attrs.next_index += 1;
        attrs.set_size(attrs.size + 1);
        let mut value = Vec::with_capacity(DIR_ENTRY_HEADER + entry.name.len());
        encode_dir_entry(&mut value, entry);
        commit.put(dir, state, Kind::DirIndex, index, &value, false);
        state.current.add_name(hash, index);
        let subdir = entry.kind == S_IFDIR;
        let at = NameAt {
            index,
            hash,
            subdir,
        };
        commit.name(dir, state, child, &at, true);
        Ok(())
    }

    /// Takes an entry away; the directory's size shrinks by it.
    pub(super) fn delete_entry(
        &self,
        commit: &mut Commit<'_>,
        dir: &Arc<Inode>,
        state: &mut InodeState,
        (at, child): (&NameAt, &Inode),
        below: bool,
    ) -> Result<()> {
        let attrs = attrs_mut(state)?;
        attrs.set_size(attrs.size.saturating_sub(1));
        let note = at.hash.to_le_bytes();
        commit.delete(dir, state, Kind::DirIndex, at.index, &note, below);
        state.current.remove_name(at.hash, at.index);
        commit.name(dir, state, child, at, false);
        Ok(())
    }

    /// Makes a regular file without a name; it goes with its last use unless it is linked.
    /// Takes one use.
    ///
    /// # Errors
    /// Not a directory; no space.
    pub fn tmpfile(&self, dir: u64, mode: u32, creds: Creds) -> Result<Attr> {
        self.observed(Call::Tmpfile, || self.make_unnamed(dir, mode, creds))
    }

    fn make_unnamed(&self, dir: u64, mode: u32, creds: Creds) -> Result<Attr> {
        let dir = self.inode(dir)?;
        let need = Need::items(2, INODE_LEN + 1, 0);
        let reservation = self.core.reserve(need)?;
        let new = New {
            mode: crate::format::item::S_IFREG | mode & !S_IFMT,
            rdev: 0,
            creds,
            target: None,
        };
        let mut dir_state = dir.write();
        let (gid, mode) = inherit(live_dir(&dir_state)?, &new);
        let ino = self.core.new_ino(&mut dir_state.chunk);
        drop(dir_state);
        let mut made = Attrs::new(mode, (creds.uid, gid), 0, dir.ino, self.core.now());
        made.nlink = 0;
        let attr = made.public(ino, 0);
        let child = Arc::new(Inode::born(ino, made));
        let mut state = child.write();
        state.nameless = true;
        self.core.table().insert(child.clone());
        let mut commit = self.core.commit();
        self.put_orphan(
            &mut commit,
            &child,
            &mut state,
            crate::format::item::ORPHAN_REMOVE,
        );
        commit.put_inode(&child, &mut state);
        let receipt = commit.finish(reservation);
        drop(state);
        self.core.settle(receipt)?;
        Ok(attr)
    }

    /// Makes a further name for a file. What was written to it before is written out first, so
    /// that a crash cannot show the name without the data. Takes one use.
    ///
    /// # Errors
    /// A directory; a file that lost its last name; the name is taken or cannot be; too many links;
    /// no space.
    pub fn link(&self, ino: u64, dir: u64, name: &[u8]) -> Result<Attr> {
        let call = Call::Link { ino, dir, name };
        self.observed(call, || self.add_link(ino, dir, name))
    }

    fn add_link(&self, ino: u64, dir: u64, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        let (inode, dir) = (self.inode(ino)?, self.inode(dir)?);
        if !happens(Deliberate::LinkWithoutData) {
            self.write_back(&inode)?;
        }
        let need = Need::items(3, 2 * INODE_LEN + ENTRY_MAX, 1);
        let reservation = self.core.reserve(need)?;
        let hash = self.hash(name);
        let mut locked = Locked::new(&[&inode, &dir]);
        live_dir(locked.state(&dir)?)?;
        let linked = locked.attrs(&inode)?;
        if linked.is_dir() {
            return Err(Error::NotPermitted("a directory has one name only"));
        }
        if linked.nlink >= MAX_LINKS {
            return Err(Error::TooManyLinks);
        }
        if linked.nlink == 0 && !locked.state(&inode)?.nameless {
            return Err(Error::NotFound);
        }
        if self
            .core
            .find_name(&dir, locked.state(&dir)?, hash, name)?
            .is_some()
        {
            return Err(Error::Exists);
        }
        let now = self.core.now();
        let linked = locked.attrs(&inode)?;
        let was_orphan = linked.nlink == 0;
        linked.nlink += 1;
        linked.ctime = now;
        linked.parent = dir.ino;
        let kind = linked.mode & S_IFMT;
        change_dir(locked.attrs(&dir)?, now, 0)?;
        let mut commit = self.core.commit();
        let state = locked.state(&dir)?;
        let entry = DirEntryRef { ino, kind, name };
        self.put_entry(&mut commit, &dir, state, hash, (&entry, &inode))?;
        commit.put_inode(&dir, state);
        let state = locked.state(&inode)?;
        state.nameless = false;
        if was_orphan {
            if state.truncating {
                self.put_orphan(&mut commit, &inode, state, ORPHAN_TRUNCATE);
            } else {
                self.delete_orphan(&mut commit, &inode, state);
            }
        }
        commit.put_inode(&inode, state);
        let attr = attrs(state)?.public(ino, pending_blocks(state));
        inode.take_use();
        let receipt = commit.finish(reservation);
        drop(locked);
        self.core.settle(receipt)?;
        Ok(attr)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Not a symbolic link.
    pub fn readlink(&self, ino: u64) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        if attrs(&state)?.kind() != FileKind::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let target = self.core.item(&inode, &state, Kind::Inline, 0)?;
        target.map(|item| item.value).ok_or_else(|| {
            Error::corrupt(
                0,
                "symbolic link",
                format!("a target of inode {ino}"),
                "none",
            )
        })
    }

    /// Gives back uses of an inode. The root is never in need of any.
    pub fn forget(&self, ino: u64, uses: u64) {
        let Some(inode) = self.core.table().forget(ino, uses) else {
            return;
        };
        if ino == ROOT_INO {
            return;
        }
        if !self.closed.load(crate::sync::atomic::Ordering::Acquire)
            && let Err(error) = self.reap_unused(&inode)
        {
            // The orphan item stays: the next mount removes the inode.
            tracing::warn!(ino, %error, "removing an unlinked inode was put off");
        }
    }
}

/// Group and mode of what is made in a directory: its set-group-id bit passes on.
fn inherit(dir: &Attrs, new: &New<'_>) -> (u32, u32) {
    if dir.mode & S_ISGID == 0 {
        return (new.creds.gid, new.mode);
    }
    let pass = if new.mode & S_IFMT == S_IFDIR {
        S_ISGID
    } else {
        0
    };
    (dir.gid, new.mode | pass)
}

/// Notes a change of a directory's entries; `subdirs` is by how many its subdirectories grow.
pub(super) fn change_dir(attrs: &mut Attrs, now: Time, subdirs: i64) -> Result<()> {
    let nlink = i64::from(attrs.nlink) + subdirs;
    if nlink > i64::from(MAX_LINKS) {
        return Err(Error::TooManyLinks);
    }
    attrs.nlink = nlink.max(0) as u32;
    attrs.mtime = now;
    attrs.ctime = now;
    Ok(())
}

/// Unwritten blocks, for `st_blocks`; a file small enough to stay inline takes none.
pub(super) fn pending_blocks(state: &InodeState) -> u64 {
    let inline = state
        .attrs
        .as_ref()
        .is_some_and(|a| a.blocks == 0 && a.size <= crate::format::MAX_INLINE as u64);
    if inline {
        0
    } else {
        state.pages.dirty.len() as u64
    }
}
