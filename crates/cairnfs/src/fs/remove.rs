//! Taking names away: unlink, rmdir, and what becomes of an inode that lost its last name.
//!
//! An inode that nobody uses goes in the same transaction, if it has few items; else it becomes an
//! orphan, which its last use, or the next mount, removes in bounded steps.

use std::sync::Arc;

use crate::deliberate::{Deliberate, happens};
use crate::error::{Error, Result};
use crate::format::item::ORPHAN_REMOVE;
use crate::format::key::Kind;
use crate::fs::FileSystem;
use crate::fs::extents::Extent;
use crate::fs::locked::{Locked, attrs, attrs_mut, live_dir};
use crate::fs::namespace::{INODE_LEN, change_dir, check_name};
use crate::fs::observe::Call;
use crate::inode::{Inode, InodeState};
use crate::txn::{Commit, NameAt, Need};
use crate::types::Time;

/// Most items that an inode may have to be removed within the transaction that unlinks it.
const INLINE_REMOVAL: usize = 64;

/// All items of an inode, beside the inode item itself.
#[derive(Default)]
pub(super) struct Belongings {
    /// Kind, offset, and whether it was found below the current set.
    pub items: Vec<(Kind, u64, bool)>,
    /// Its extents.
    pub extents: Vec<Extent>,
    /// There is more than was asked for.
    pub more: bool,
}

impl FileSystem {
    /// Takes a name of anything but a directory away.
    ///
    /// # Errors
    /// No such name; a directory.
    pub fn unlink(&self, dir: u64, name: &[u8]) -> Result<()> {
        self.remove_name(dir, name, false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// No such name; not a directory; not empty.
    pub fn rmdir(&self, dir: u64, name: &[u8]) -> Result<()> {
        self.remove_name(dir, name, true)
    }

    fn remove_name(&self, dir: u64, name: &[u8], directory: bool) -> Result<()> {
        let call = Call::Remove { dir, name };
        self.observed(call, || self.remove_entry(dir, name, directory))
    }

    fn remove_entry(&self, dir: u64, name: &[u8], directory: bool) -> Result<()> {
        check_name(name)?;
        let dir = self.inode(dir)?;
        let hash = self.hash(name);
        loop {
            let found = {
                let state = dir.read();
                live_dir(&state)?;
                self.core
                    .find_name(&dir, &state, hash, name)?
                    .ok_or(Error::NotFound)?
            };
            let child = match self.inode(found.ino) {
                Err(Error::NotFound) if !self.has_entry(&dir, found.index)? => continue,
                other => other?,
            };
            let need = Need::items(4, 2 * INODE_LEN + 1, INLINE_REMOVAL + 4).deleting();
            let reservation = self.core.reserve(need)?;
            let mut locked = Locked::new(&[&dir, &child]);
            // The entry may have gone while no lock was held; an index is never given again.
            let entry =
                self.core
                    .dir_entry(&dir, locked.state(&dir)?, found.index, |_, below| below)?;
            let Some(below) = entry else { continue };
            live_dir(locked.state(&dir)?)?;
            check_removable(locked.state(&child)?, directory)?;
            let belongings = self.belongings(&child, locked.state(&child)?, INLINE_REMOVAL)?;
            let now = self.core.now();
            let mut commit = self.core.commit();
            let state = locked.state(&dir)?;
            change_dir(attrs_mut(state)?, now, -i64::from(directory))?;
            let at = NameAt {
                index: found.index,
                hash,
                subdir: directory,
            };
            self.delete_entry(&mut commit, &dir, state, (&at, &child), below)?;
            commit.put_inode(&dir, state);
            self.drop_link(&mut commit, &child, locked.state(&child)?, now, &belongings)?;
            let receipt = commit.finish(reservation);
            drop(locked);
            self.core.settle(receipt)?;
            return self.reap_unused(&child);
        }
    }

    /// What an inode has, up to `most` items.
    pub(super) fn belongings(
        &self,
        inode: &Inode,
        state: &InodeState,
        most: usize,
    ) -> Result<Belongings> {
        let mut found = Belongings::default();
        let Some(attrs) = &state.attrs else {
            return Ok(found);
        };
        if attrs.is_dir() && attrs.xattrs == 0 {
            return Ok(found);
        }
        for kind in [Kind::Inline, Kind::Xattr, Kind::Extent] {
            if kind == Kind::Xattr && attrs.xattrs == 0 || kind == Kind::Extent && attrs.blocks == 0
            {
                continue;
            }
            self.core
                .items(inode, state, kind, 0, u64::MAX, &mut |offset, item| {
                    if found.items.len() == most {
                        found.more = true;
                        return Ok(false);
                    }
                    found.items.push((kind, offset, item.below));
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

    /// Takes a link from an inode; with the last one, the inode goes or becomes an orphan.
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
            if !happens(Deliberate::UnlinkWithoutOrphan) {
                self.put_orphan(commit, inode, state, ORPHAN_REMOVE);
            }
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

    /// Deletes items and frees what they hold.
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
            commit.free(extent.run());
        }
    }
}

/// Whether the name of this inode may be taken away as that of a directory, or of something else.
pub(super) fn check_removable(state: &InodeState, directory: bool) -> Result<()> {
    let attrs = attrs(state)?;
    match (attrs.is_dir(), directory) {
        (true, false) => Err(Error::IsDirectory),
        (false, true) => Err(Error::NotDirectory),
        (true, true) if attrs.size > 0 => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}
