//! Names: lookup, creation of files of every kind, hard links.
//!
//! A directory entry gets an index from a counter that only grows, so no index is used twice; the
//! index is also its position in listings. An entry may be changed to name another inode, or get
//! another name: it keeps its index. The entry and the directory's attributes are committed in one
//! transaction with the inode that the entry names.

use std::sync::Arc;

use crate::fs::FileSystem;
use crate::fs::flags::{may_add_entry, may_change};
use crate::fs::locked::{Locked, attrs, attrs_mut, dir_attrs, found_attrs, live_dir};
use crate::fs::observe::Call;
use crate::fs::sizes::{ENTRY_MAX, INODE_LEN, is_large_orphan};
use crate::fs::xattr::Given;
use crate::inode::attrs::Attrs;
use crate::inode::{Inode, InodeState};
use crate::txn::{Commit, NameAt, NameFound, Need};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::item::{
    DirEntryRef, ORPHAN_TRUNCATE, S_IFDIR, S_IFLNK, S_IFMT, S_ISGID, encode_dir_entry,
    holds_separator,
};
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::{MAX_LINKS, MAX_NAME, MAX_SYMLINK, ROOT_INO};
use cairnfs_disk::types::{Attr, Creds, FileKind, Flags, Time};

/// Refuses names that no entry can have.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || holds_separator(name) {
        return Err(Error::Invalid("a name is empty, or has '/' or NUL in it"));
    }
    if name == b"." || name == b".." {
        return Err(Error::Invalid(
            "\".\" and \"..\" cannot be made, moved or removed",
        ));
    }
    Ok(())
}

/// Attributes of an inode to be created.
pub(super) struct New<'a> {
    mode: u32,
    rdev: u64,
    creds: Creds,
    target: Option<&'a [u8]>,
    xattrs: &'a [Given<'a>],
    /// Number, time of creation and flags of the inode; of the flags it gets only those that a
    /// directory passes on. `None` for a new number, now, and the flags of the directory.
    number: Option<(u64, Time, Flags)>,
}

impl<'a> New<'a> {
    /// With a given number, time of creation and flags, and for a symbolic link a target.
    pub fn numbered(
        number: (u64, Time, Flags),
        mode: u32,
        rdev: u64,
        target: Option<&'a [u8]>,
    ) -> Self {
        Self {
            target,
            number: Some(number),
            ..Self::bare(mode, rdev, Creds::default())
        }
    }

    /// Without a symlink target and without extended attributes.
    fn bare(mode: u32, rdev: u64, creds: Creds) -> Self {
        Self {
            mode,
            rdev,
            creds,
            target: None,
            xattrs: &[],
            number: None,
        }
    }
}

impl FileSystem {
    /// Looks up a name and takes one use of its inode.
    ///
    /// # Errors
    /// No such name; not a directory.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Result<Attr> {
        Ok(self.lookup_in(&*self.inode(dir)?, name)?.1)
    }

    /// Like [`FileSystem::lookup`], in a directory that is already loaded.
    #[doc(hidden)]
    pub fn lookup_in(&self, dir: &Inode, name: &[u8]) -> Result<(Arc<Inode>, Attr)> {
        let used = |inode: Arc<Inode>| {
            let attr = self.use_inode(&inode)?;
            Ok((inode, attr))
        };
        match name {
            b"." => used(self.inode(dir.ino)?),
            b".." => {
                let parent = dir_attrs(&dir.read())?.parent;
                used(self.inode(parent)?)
            }
            _ => self.with_child(dir, name, |child, _| used(child)),
        }
    }

    /// The inode of a name other than "." and "..", and its type bits. It is held in memory, but no
    /// use is taken, so it may be removed.
    pub(super) fn child(&self, dir: &Inode, name: &[u8]) -> Result<(Arc<Inode>, u32)> {
        self.with_child(dir, name, |child, kind| Ok((child, kind)))
    }

    /// Calls `what` with the inode of a name other than "." and "..", and its type bits. The inode
    /// is held in memory, but no use is taken. If `what` fails with [`Error::NotFound`] and the
    /// entry has changed meanwhile, the lookup is repeated.
    #[doc(hidden)]
    pub fn with_child<R>(
        &self,
        dir: &Inode,
        name: &[u8],
        what: impl Fn(Arc<Inode>, u32) -> Result<R>,
    ) -> Result<R> {
        self.engine.lifecycle.check_open()?;
        if name.len() > MAX_NAME {
            return Err(Error::NameTooLong);
        }
        let hash = self.hash(name);
        loop {
            let found = {
                let state = dir.read();
                dir_attrs(&state)?;
                let Some(found) = self.items().find_name(dir, &state, hash, name)? else {
                    return Err(Error::NotFound);
                };
                found
            };
            match self
                .inode(found.ino)
                .and_then(|child| what(child, found.kind))
            {
                // The inode was removed together with its entry; another may have replaced it
                // already.
                Err(Error::NotFound) if !self.has_entry(dir, name, &found)? => {}
                result => return result,
            }
        }
    }

    /// Whether a directory still has this entry.
    pub(super) fn has_entry(&self, dir: &Inode, name: &[u8], found: &NameFound) -> Result<bool> {
        Ok(self.find_again(dir, &dir.read(), name, found)?.is_some())
    }

    /// Looks up an entry again by its index. `None` if it was removed, renamed, or names another
    /// inode.
    pub(super) fn find_again(
        &self,
        dir: &Inode,
        state: &InodeState,
        name: &[u8],
        found: &NameFound,
    ) -> Result<Option<NameFound>> {
        let again = self
            .items()
            .dir_entry(dir, state, found.index, |entry, below| {
                let same = entry.ino == found.ino && entry.name == name;
                same.then_some(NameFound { below, ..*found })
            })?;
        Ok(again.flatten())
    }

    /// Takes one use of an inode that was found by name.
    pub(super) fn take_use(&self, ino: u64) -> Result<Attr> {
        self.use_inode(&*self.inode(ino)?)
    }

    /// Takes one use of an inode that was found by its name or number.
    pub(super) fn use_inode(&self, inode: &Inode) -> Result<Attr> {
        let state = inode.read();
        let attr = found_attrs(inode, &state)?.public(inode.ino, state.pages.unplaced());
        inode.take_use();
        Ok(attr)
    }

    pub(super) fn hash(&self, name: &[u8]) -> u64 {
        self.items().hash_of(name)
    }

    /// Creates a regular file, FIFO, socket or device; `mode` holds type bits and permissions.
    /// Takes one use.
    ///
    /// # Errors
    /// The name exists or is not valid; no space.
    pub fn mknod(&self, dir: u64, name: &[u8], mode: u32, rdev: u64, creds: Creds) -> Result<Attr> {
        Ok(self.mknod_in(&self.inode(dir)?, name, mode, rdev, creds)?.1)
    }

    /// Like [`FileSystem::mknod`], also for directories, and with extended attributes, in one
    /// transaction. Takes one use.
    ///
    /// # Errors
    /// As for [`FileSystem::mknod`] and [`FileSystem::setxattr`].
    pub fn make_with(
        &self,
        dir: u64,
        name: &[u8],
        (mode, rdev): (u32, u64),
        creds: Creds,
        xattrs: &[Given<'_>],
    ) -> Result<Attr> {
        match FileKind::from_mode(mode) {
            None => return Err(Error::Invalid("a mode without a file type")),
            Some(FileKind::Symlink) => return Err(Error::Invalid("a symlink has a target")),
            Some(_) => {}
        }
        let bare = New::bare(mode, rdev, creds);
        let new = New { xattrs, ..bare };
        Ok(self.make(&self.inode(dir)?, name, &new)?.1)
    }

    /// [`FileSystem::mknod`] in a directory that is already loaded.
    #[doc(hidden)]
    pub fn mknod_in(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        mode: u32,
        rdev: u64,
        creds: Creds,
    ) -> Result<(Arc<Inode>, Attr)> {
        match FileKind::from_mode(mode) {
            None => return Err(Error::Invalid("a mode without a file type")),
            Some(FileKind::Directory | FileKind::Symlink) => {
                return Err(Error::Invalid("mknod makes no directories and no symlinks"));
            }
            Some(_) => {}
        }
        let new = New::bare(mode, rdev, creds);
        self.make(dir, name, &new)
    }

    /// Creates a directory. Takes one use.
    ///
    /// # Errors
    /// The name exists or is not valid; no space.
    pub fn mkdir(&self, dir: u64, name: &[u8], mode: u32, creds: Creds) -> Result<Attr> {
        let new = New::bare(S_IFDIR | mode & !S_IFMT, 0, creds);
        Ok(self.make(&self.inode(dir)?, name, &new)?.1)
    }

    /// Creates a symbolic link. Takes one use.
    ///
    /// # Errors
    /// The name exists or is not valid; an empty or too long target; no space.
    pub fn symlink(&self, dir: u64, name: &[u8], target: &[u8], creds: Creds) -> Result<Attr> {
        if target.len() > MAX_SYMLINK {
            return Err(Error::NameTooLong);
        }
        if target.is_empty() || target.contains(&0) {
            return Err(Error::Invalid("a target is empty or has NUL in it"));
        }
        let target = Some(target);
        let bare = New::bare(S_IFLNK | 0o777, 0, creds);
        let new = New { target, ..bare };
        Ok(self.make(&self.inode(dir)?, name, &new)?.1)
    }

    pub(super) fn make(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        new: &New<'_>,
    ) -> Result<(Arc<Inode>, Attr)> {
        let target = new.target.unwrap_or_default();
        let call = Call::Make {
            dir: dir.ino,
            name,
            target,
            xattrs: new.xattrs,
        };
        self.engine.lifecycle.check_open()?;
        self.observed(call, || self.make_entry(dir, name, new))
    }

    fn make_entry(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        new: &New<'_>,
    ) -> Result<(Arc<Inode>, Attr)> {
        check_name(name)?;
        let target = new.target.unwrap_or_default();
        let kind = FileKind::from_mode(new.mode).unwrap_or(FileKind::File);
        let born = self.born(kind, new.xattrs)?;
        let (items, bytes) = born.need();
        let len = 2 * INODE_LEN + ENTRY_MAX + target.len() + bytes;
        let reservation = match self.reserve(Need::items(4 + items, len, 0)) {
            Ok(reservation) => reservation,
            // On a read-only or full volume an existing name must still return EEXIST.
            Err(e) => {
                return match self.child(dir, name) {
                    Ok(_) => Err(Error::Exists),
                    Err(Error::NotFound) => Err(e),
                    Err(other) => Err(other),
                };
            }
        };
        let hash = self.hash(name);
        let mut dir_state = dir.write();
        live_dir(&dir_state)?;
        if self
            .items()
            .find_name(dir, &dir_state, hash, name)?
            .is_some()
        {
            return Err(Error::Exists);
        }
        let parent = live_dir(&dir_state)?;
        may_add_entry(parent.flags)?;
        let mut made = inherit(parent, dir.ino, new, self.core().now());
        let now = made.btime;
        let ino = match new.number {
            Some((ino, born, flags)) => {
                made.btime = born;
                made.flags = flags.inherited();
                ino
            }
            None => self.core().superblocks().new_ino(dir_state.chunk()),
        };
        let kind = made.mode & S_IFMT;
        made.set_size(target.len() as u64);
        let is_dir = made.is_dir();
        let child = Arc::new(Inode::born(ino, made));
        let mut child_state = child.write();
        let mut commit = self.commit()?;
        change_dir(attrs_mut(&mut dir_state)?, now, i64::from(is_dir))?;
        self.items().table().insert(child.clone());
        self.put_entry(
            &mut commit,
            dir,
            &mut dir_state,
            hash,
            (&DirEntryRef { ino, kind, name }, &child),
        )?;
        commit.put_inode(dir, &mut dir_state);
        if let Some(target) = new.target {
            commit.put(&child, &mut child_state, Kind::Inline, 0, target, false);
        }
        if items > 0 {
            born.put(&mut commit, &child, &mut child_state);
        }
        commit.put_inode(&child, &mut child_state);
        let attr = attrs(&child_state)?.public(ino, 0);
        let receipt = commit.finish(reservation);
        drop(child_state);
        drop(dir_state);
        self.core().throttle(receipt)?;
        Ok((child, attr))
    }

    /// Adds an entry under a new index; the directory's size grows by one.
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
        let value = encode_dir_entry(entry);
        commit.put(dir, state, Kind::DirIndex, index, &value, false);
        self.items().add_name(dir, state, hash, index);
        let subdir = entry.kind == S_IFDIR;
        let at = NameAt {
            index,
            hash,
            subdir,
        };
        commit.name(dir, state, child, &at, true);
        Ok(())
    }

    /// Removes an entry; the directory's size shrinks by one.
    pub(super) fn delete_entry(
        &self,
        commit: &mut Commit<'_>,
        dir: &Arc<Inode>,
        state: &mut InodeState,
        (hash, child): (u64, &Inode),
        entry: &NameFound,
    ) -> Result<()> {
        let attrs = attrs_mut(state)?;
        attrs.set_size(attrs.size.saturating_sub(1));
        let subdir = entry.kind == S_IFDIR;
        if subdir {
            self.root.shape.change();
        }
        let note = hash.to_le_bytes();
        commit.delete(dir, state, Kind::DirIndex, entry.index, &note, entry.below);
        state.remove_name(hash, entry.index);
        let at = NameAt {
            index: entry.index,
            hash,
            subdir,
        };
        commit.name(dir, state, child, &at, false);
        Ok(())
    }

    /// Changes an entry to name another inode, or gives it another name. It keeps its index, so a
    /// listing in progress returns it once.
    pub(super) fn change_entry(
        &self,
        commit: &mut Commit<'_>,
        dir: &Arc<Inode>,
        state: &mut InodeState,
        (old_hash, old, found): (u64, &Inode, &NameFound),
        (hash, entry, child): (u64, &DirEntryRef<'_>, &Inode),
    ) {
        let index = found.index;
        let at = |hash, kind| NameAt {
            index,
            hash,
            subdir: kind == S_IFDIR,
        };
        if found.kind == S_IFDIR {
            self.root.shape.change();
        }
        let value = encode_dir_entry(entry);
        commit.put(dir, state, Kind::DirIndex, index, &value, found.below);
        state.remove_name(old_hash, index);
        self.items().add_name(dir, state, hash, index);
        commit.name(dir, state, old, &at(old_hash, found.kind), false);
        commit.name(dir, state, child, &at(hash, entry.kind), true);
    }

    /// Creates a regular file without a name; it is removed with its last use unless it is linked.
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
        let reservation = self.reserve(need)?;
        let regular = cairnfs_disk::format::item::S_IFREG | mode & !S_IFMT;
        let new = New::bare(regular, 0, creds);
        let mut dir_state = dir.write();
        let parent = live_dir(&dir_state)?;
        may_add_entry(parent.flags)?;
        let mut made = inherit(parent, dir.ino, &new, self.core().now());
        let ino = self.core().superblocks().new_ino(dir_state.chunk());
        drop(dir_state);
        made.nlink = 0;
        let attr = made.public(ino, 0);
        let child = Arc::new(Inode::born(ino, made));
        let mut state = child.write();
        state.nameless = true;
        let mut commit = self.commit()?;
        self.items().table().insert(child.clone());
        self.put_orphan(
            &mut commit,
            &child,
            &mut state,
            cairnfs_disk::format::item::ORPHAN_REMOVE,
        );
        commit.put_inode(&child, &mut state);
        let receipt = commit.finish(reservation);
        drop(state);
        self.core().throttle(receipt)?;
        Ok(attr)
    }

    /// Creates another name for a file. Data written to it before is written back first, so that a
    /// crash cannot show the name without the data. Takes one use.
    ///
    /// # Errors
    /// A directory; a file that lost its last name; the name exists or is not valid; too many
    /// links; no space.
    pub fn link(&self, ino: u64, dir: u64, name: &[u8]) -> Result<Attr> {
        let call = Call::Link { ino, dir, name };
        self.observed(call, || self.add_link(ino, dir, name))
    }

    fn add_link(&self, ino: u64, dir: u64, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        let (inode, dir) = (self.inode(ino)?, self.inode(dir)?);
        fault::unless(InjectedFault::LinkWithoutData, || self.write_back(&inode))?;
        let need = Need::items(3, 2 * INODE_LEN + ENTRY_MAX, 1);
        let reservation = self.reserve(need)?;
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
            .items()
            .find_name(&dir, locked.state(&dir)?, hash, name)?
            .is_some()
        {
            return Err(Error::Exists);
        }
        may_add_entry(locked.attrs(&dir)?.flags)?;
        may_change(locked.attrs(&inode)?.flags)?;
        let now = self.core().now();
        let mut commit = self.commit()?;
        let linked = locked.attrs(&inode)?;
        let was_orphan = linked.nlink == 0;
        linked.nlink += 1;
        linked.ctime = now;
        linked.parent = dir.ino;
        let kind = linked.mode & S_IFMT;
        change_dir(locked.attrs(&dir)?, now, 0)?;
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
        let attr = attrs(state)?.public(ino, state.pages.unplaced());
        inode.take_use();
        let receipt = commit.finish(reservation);
        drop(locked);
        self.core().throttle(receipt)?;
        Ok(attr)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Not a symbolic link.
    pub fn readlink(&self, ino: u64) -> Result<Vec<u8>> {
        self.link_target(&*self.inode(ino)?)
    }

    /// Like [`FileSystem::readlink`], of an inode that is already loaded.
    #[doc(hidden)]
    pub fn link_target(&self, inode: &Inode) -> Result<Vec<u8>> {
        let state = inode.read();
        if attrs(&state)?.kind() != FileKind::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let target = self.items().item(inode, &state, Kind::Inline, 0)?;
        target.map(|item| item.value).ok_or_else(|| {
            Error::corrupt(
                0,
                "symbolic link",
                format!("a target of inode {}", inode.ino),
                "none",
            )
        })
    }

    /// Releases uses of an inode. The root needs none.
    pub fn forget(&self, ino: u64, uses: u64) {
        if self.forget_at_once(ino, uses) {
            self.remove_unused(ino);
        }
    }

    /// Like [`FileSystem::forget`], but does not remove an inode whose removal takes several
    /// transactions; returns true if the caller has to call [`FileSystem::remove_unused`] for it.
    pub fn forget_at_once(&self, ino: u64, uses: u64) -> bool {
        let Some(inode) = self.items().table().forget(ino, uses) else {
            return false;
        };
        let large = is_large_orphan(&inode.read());
        if !large {
            self.unused(&inode);
        }
        large
    }

    /// Removes an inode that has neither names nor uses. Does nothing if it has any, or is already
    /// removed.
    pub fn remove_unused(&self, ino: u64) {
        match self.inode(ino) {
            Ok(inode) => self.unused(&inode),
            // The orphan item stays: the next mount removes the inode.
            Err(error) => tracing::debug!(ino, %error, "an unlinked inode was not found"),
        }
    }

    /// Releases one use of a loaded inode.
    #[doc(hidden)]
    pub fn forget_one(&self, inode: &Arc<Inode>) {
        if inode.drop_uses(1) {
            self.unused(inode);
        }
    }

    /// Called when an inode has lost its last use.
    fn unused(&self, inode: &Arc<Inode>) {
        // What a branch had when it was replaced stays in its snapshot.
        if inode.ino == ROOT_INO || self.engine.lifecycle.is_closed() || self.is_replaced() {
            return;
        }
        self.reap_unused(inode);
    }
}

/// Attributes of a new inode in directory `ino`: set-group-id and flags are inherited.
fn inherit(dir: &Attrs, ino: u64, new: &New<'_>, now: Time) -> Attrs {
    let passes = dir.mode & S_ISGID != 0 && new.mode & S_IFMT == S_IFDIR;
    let pass = if passes { S_ISGID } else { 0 };
    let owner = (new.creds.uid, group_in(dir, new.creds));
    let mut made = Attrs::new(new.mode | pass, owner, new.rdev, ino, now);
    made.flags = dir.flags.inherited();
    made
}

/// Group of a new inode in a directory.
pub(super) fn group_in(dir: &Attrs, creds: Creds) -> u32 {
    match dir.mode & S_ISGID {
        0 => creds.gid,
        _ => dir.gid,
    }
}

/// Records a change of a directory's entries; `subdirs` is the change in its subdirectory count.
pub(super) fn change_dir(attrs: &mut Attrs, now: Time, subdirs: i64) -> Result<()> {
    attrs.nlink = links_with(attrs, subdirs)?;
    attrs.mtime = now;
    attrs.ctime = now;
    Ok(())
}

/// The links of a directory that gains `subdirs` subdirectories; an error if they are too many.
pub(super) fn links_with(attrs: &Attrs, subdirs: i64) -> Result<u32> {
    match i64::from(attrs.nlink) + subdirs {
        links if links > i64::from(MAX_LINKS) => Err(Error::TooManyLinks),
        links => Ok(links.max(0) as u32),
    }
}
