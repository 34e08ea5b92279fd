//! Removing names: unlink, rmdir, and the removal of an inode that lost its last name.
//!
//! An unused inode is removed in the same transaction if it has few items; otherwise it becomes an
//! orphan, which is removed in bounded steps after its last use, or by the next mount.

use std::sync::Arc;

use crate::fs::FileSystem;
use crate::fs::extents::Extent;
use crate::fs::flags::may_remove_entry;
use crate::fs::locked::{Locked, attrs, attrs_mut, live_dir};
use crate::fs::namespace::{change_dir, check_name};
use crate::fs::observe::Call;
use crate::fs::sizes::{INLINE_REMOVAL, INODE_LEN};
use crate::index::hides;
use crate::inode::{Inode, InodeState};
use crate::txn::{Commit, NameFound, Need, Reservation, count_attributes};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::item::{ORPHAN_REMOVE, S_IFDIR};
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::types::{Flags, Time};

/// All items of an inode except the inode item.
#[derive(Default)]
pub(super) struct Belongings {
    /// Kind, offset, and whether the item was found below the current dirty set.
    pub items: Vec<(Kind, u64, bool)>,
    /// Attributes in its attribute items.
    pub xattrs: usize,
    /// Its extents.
    pub extents: Vec<Extent>,
    /// There are more items than the caller asked for.
    pub more: bool,
}

impl FileSystem {
    /// Removes a name of anything but a directory. If the inode cannot be read, the name alone goes.
    ///
    /// # Errors
    /// No such name; a directory.
    pub fn unlink(&self, dir: u64, name: &[u8]) -> Result<()> {
        self.remove_name(&self.inode(dir)?, name, false)
    }

    /// Like [`FileSystem::unlink`], in a directory that is already loaded.
    #[doc(hidden)]
    pub fn unlink_in(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        self.remove_name(dir, name, false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// No such name; not a directory; not empty; damage that may hide entries.
    pub fn rmdir(&self, dir: u64, name: &[u8]) -> Result<()> {
        self.remove_name(&self.inode(dir)?, name, true)
    }

    fn remove_name(&self, dir: &Arc<Inode>, name: &[u8], directory: bool) -> Result<()> {
        self.engine.lifecycle.check_open()?;
        let call = Call::Remove { dir: dir.ino, name };
        self.observed(call, || self.remove_entry(dir, name, directory))
    }

    fn remove_entry(&self, dir: &Arc<Inode>, name: &[u8], directory: bool) -> Result<()> {
        check_name(name)?;
        let need = Need::items(4, 2 * INODE_LEN + 1, INLINE_REMOVAL + 4).deleting();
        let reservation = match self.reserve(need) {
            Ok(reservation) => reservation,
            // On a read-only or full volume a missing name must still return ENOENT.
            Err(e) => return self.child(dir, name).and(Err(e)),
        };
        let hash = self.hash(name);
        loop {
            let state = dir.write();
            live_dir(&state)?;
            let found = self.items().find_name(dir, &state, hash, name)?;
            let found = found.ok_or(Error::NotFound)?;
            // An inode created in the directory has a larger number: the lock order holds.
            if found.ino > dir.ino
                && let Some(child) = self.items().table().ready(found.ino)
            {
                let locked = Locked::two((dir, state), &child);
                return self.remove_found(
                    locked,
                    reservation,
                    (dir, &child),
                    (hash, found),
                    directory,
                );
            }
            drop(state);
            let child = match self.inode(found.ino) {
                Err(Error::NotFound) if !self.has_entry(dir, name, &found)? => continue,
                Err(error) if found.kind != S_IFDIR && is_lost(&error) => {
                    return self.remove_name_alone(dir, reservation, name, (hash, found));
                }
                other => other?,
            };
            let mut locked = Locked::new(&[dir, &child]);
            // The entry may have been removed or changed while no lock was held.
            let state = locked.state(dir)?;
            let Some(found) = self.find_again(dir, state, name, &found)? else {
                continue;
            };
            live_dir(state)?;
            return self.remove_found(locked, reservation, (dir, &child), (hash, found), directory);
        }
    }

    /// Removes an entry, under the locks of the directory and of the child.
    fn remove_found(
        &self,
        mut locked: Locked<'_>,
        reservation: Reservation<'_>,
        (dir, child): (&Arc<Inode>, &Arc<Inode>),
        (hash, found): (u64, NameFound),
        directory: bool,
    ) -> Result<()> {
        let flags = locked.attrs(child)?.flags;
        may_remove_entry(locked.attrs(dir)?.flags, flags)?;
        let state = locked.state(child)?;
        self.check_emptied(child, state, directory)?;
        let belongings = self.belongings(child, state, INLINE_REMOVAL)?;
        let now = self.core().now();
        let mut commit = self.commit()?;
        let state = locked.state(dir)?;
        change_dir(attrs_mut(state)?, now, -i64::from(directory))?;
        self.delete_entry(&mut commit, dir, state, (hash, child), &found)?;
        commit.put_inode(dir, state);
        let state = locked.state(child)?;
        self.drop_link(&mut commit, child, state, now, &belongings)?;
        let orphaned = is_orphaned(state);
        let receipt = commit.finish(reservation);
        drop(locked);
        self.core().throttle(receipt)?;
        if orphaned {
            self.reap_unused(child);
        }
        Ok(())
    }

    /// Removes an entry whose inode is damaged or missing.
    fn remove_name_alone(
        &self,
        dir: &Arc<Inode>,
        reservation: Reservation<'_>,
        name: &[u8],
        (hash, found): (u64, NameFound),
    ) -> Result<()> {
        let child = self.items().table().get_or_new(found.ino);
        let mut state = dir.write();
        live_dir(&state)?;
        let found = self.find_again(dir, &state, name, &found)?;
        let found = found.ok_or(Error::NotFound)?;
        may_remove_entry(attrs(&state)?.flags, Flags::default())?;
        let mut commit = self.commit()?;
        change_dir(attrs_mut(&mut state)?, self.core().now(), 0)?;
        self.delete_entry(&mut commit, dir, &mut state, (hash, &child), &found)?;
        commit.put_inode(dir, &mut state);
        let receipt = commit.finish(reservation);
        drop(state);
        self.core().throttle(receipt)?;
        Ok(())
    }

    /// As [`check_removable`]. If all entries that are left are damaged, the error is the damage:
    /// they may be the only names of files.
    fn check_emptied(&self, child: &Inode, state: &InodeState, directory: bool) -> Result<()> {
        let checked = check_removable(state, directory);
        if !matches!(checked, Err(Error::NotEmpty)) || !self.core().storage().has_faults() {
            return checked;
        }
        let mut some = false;
        let range = (0, u64::MAX);
        let kind = Kind::DirIndex;
        let unread = self
            .items()
            .scan_readable(child, state, kind, range, &mut |_, _| {
                some = true;
                Ok(false)
            })?;
        match unread {
            Some(damage) if !some => Err(damage),
            _ => checked,
        }
    }

    /// The items of an inode, at limit `limit`.
    pub(super) fn belongings(
        &self,
        inode: &Inode,
        state: &InodeState,
        limit: usize,
    ) -> Result<Belongings> {
        let mut found = Belongings::default();
        let Some(attrs) = &state.attrs else {
            return Ok(found);
        };
        if attrs.is_dir() && attrs.xattrs == 0 {
            return Ok(found);
        }
        let has_inline = attrs.blocks == 0 && attrs.disk_size > 0;
        for (kind, some) in [
            (Kind::Inline, has_inline),
            (Kind::Xattr, attrs.xattrs > 0),
            (Kind::Extent, attrs.blocks > 0),
        ] {
            if !some {
                continue;
            }
            self.items()
                .scan(inode, state, kind, 0, u64::MAX, &mut |offset, item| {
                    if found.items.len() == limit {
                        found.more = true;
                        return Ok(false);
                    }
                    found.items.push((kind, offset, item.below));
                    if kind == Kind::Xattr {
                        found.xattrs += count_attributes(inode.ino, &item)?;
                    }
                    if kind == Kind::Extent {
                        found
                            .extents
                            .push(Extent::decode(inode.ino, offset, &item)?);
                    }
                    Ok(true)
                })?;
        }
        Ok(found)
    }

    /// Drops one link of an inode; after the last one, removes it or makes it an orphan.
    pub(super) fn drop_link(
        &self,
        commit: &mut Commit<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        now: Time,
        belongings: &Belongings,
    ) -> Result<()> {
        let attrs = attrs_mut(state)?;
        attrs.nlink = if attrs.is_dir() {
            0
        } else {
            attrs.nlink.saturating_sub(1)
        };
        attrs.ctime = now;
        if attrs.is_dir() {
            commit.removed(inode);
        }
        if attrs.nlink > 0 {
            commit.put_inode(inode, state);
        } else if inode.uses() > 0 || belongings.more {
            fault::unless(InjectedFault::UnlinkWithoutOrphan, || {
                self.put_orphan(commit, inode, state, ORPHAN_REMOVE);
            });
            commit.put_inode(inode, state);
        } else {
            self.delete_belongings(commit, inode, state, belongings);
            if state.truncating {
                self.delete_orphan(commit, inode, state);
            }
            commit.delete_inode(inode, state);
        }
        Ok(())
    }

    /// Deletes items and frees their blocks.
    pub(super) fn delete_belongings(
        &self,
        commit: &mut Commit<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        belongings: &Belongings,
    ) {
        self.drop_pages(state, 0);
        for (kind, offset, below) in &belongings.items {
            commit.delete(inode, state, *kind, *offset, &[], *below);
        }
        for extent in &belongings.extents {
            commit.free(extent.run(), extent.birth);
        }
    }
}

/// Whether the inode of an entry is damaged, or missing.
fn is_lost(error: &Error) -> bool {
    hides(error) || matches!(error, Error::NotFound)
}

/// Whether an inode has lost its last name but is not removed yet.
pub(super) fn is_orphaned(state: &InodeState) -> bool {
    state.attrs.as_ref().is_some_and(|a| a.nlink == 0)
}

/// Checks that the name of this inode may be removed by rmdir (`directory`) or unlink.
pub(super) fn check_removable(state: &InodeState, directory: bool) -> Result<()> {
    let attrs = attrs(state)?;
    match (attrs.is_dir(), directory) {
        (true, false) => Err(Error::IsDirectory),
        (false, true) => Err(Error::NotDirectory),
        (true, true) if attrs.size > 0 => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}
