//! Snapshots and branches of the tree of files, and the list of roots.
//!
//! A fork has every call on its tree that had returned. So its unwritten data is written back before
//! the fork, outside of all locks; what is written after that belongs to calls that had not
//! returned, or is in the fork by chance.

use std::cell::Cell;
use std::sync::Arc;

use crate::fs::FileSystem;
use crate::fs::observe::Call;
use crate::refs;
use crate::txn::{ForkKind, RootPin, Unchanged};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::root::{Root, RootState};
use cairnfs_disk::types::RootInfo;

/// Times that a replacement writes back again because of writes meanwhile, until it holds writers.
const UNHELD: usize = 8;

impl FileSystem {
    /// Makes a snapshot: a read-only tree of files that stays as this tree is now, with every call
    /// that has returned. It is durable when this returns. Unwritten data is written back first;
    /// besides that, the time does not depend on the number of files, but includes the merge of an
    /// earlier snapshot if that was not merged yet.
    ///
    /// # Errors
    /// [`Error::Exists`]; a name that [`refs::check_given`] refuses; too many roots; a snapshot, or a
    /// read-only volume; no space; the device's failure.
    pub fn snapshot(&self, name: &str) -> Result<()> {
        refs::check_given(name)?;
        self.snapshot_named(name)
    }

    /// Makes a snapshot of this branch under the name [`refs::auto_name`], which tells that it may be
    /// dropped when there are too many. Returns its name.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is one of this second; as [`FileSystem::snapshot`].
    pub fn snapshot_by_itself(&self) -> Result<String> {
        let branch = self.root_info().and_then(|info| info.name);
        let branch = branch.ok_or(Error::Stale)?;
        let name = refs::auto_name(&branch, self.core().now());
        self.snapshot_named(&name).map(|()| name)
    }

    fn snapshot_named(&self, name: &str) -> Result<()> {
        self.make_snapshot(name).map(|_| ())
    }

    fn make_snapshot(&self, name: &str) -> Result<RootInfo> {
        self.observed(Call::Snapshot { name }, || {
            self.check_changeable()?;
            self.fork_named(name, ForkKind::Frozen)
        })
    }

    /// As [`FileSystem::snapshot`]; returns what the list of roots says about it.
    ///
    /// # Errors
    /// As [`FileSystem::snapshot`].
    #[doc(hidden)]
    pub fn new_snapshot(&self, name: &str) -> Result<RootInfo> {
        refs::check_given(name)?;
        self.make_snapshot(name)
    }

    /// Makes a branch: a tree of files that begins as this tree is now, with every call that has
    /// returned, and can be changed independently. It is durable when this returns, and not open
    /// yet, but its tree is there: the merge that it may need shares a flush with its record.
    ///
    /// # Errors
    /// As [`FileSystem::snapshot`]; a branch of a snapshot can be made.
    pub fn branch(&self, name: &str) -> Result<u32> {
        self.new_branch(name).map(|made| made.id)
    }

    /// As [`FileSystem::branch`]; returns what the list of roots says about it.
    ///
    /// # Errors
    /// As [`FileSystem::branch`].
    #[doc(hidden)]
    pub fn new_branch(&self, name: &str) -> Result<RootInfo> {
        refs::check_given(name)?;
        self.observed(Call::Branch { name }, || {
            self.fork_named(name, ForkKind::Head)
        })
    }

    /// Makes a branch of this tree without a name, and opens it: for changes that are shown all at
    /// once by [`FileSystem::replace_by`], or never. It is dropped after the next opening of the
    /// volume unless it has a name by then.
    ///
    /// # Errors
    /// As [`FileSystem::branch`] and [`FileSystem::open_root`].
    pub fn stage(&self) -> Result<Arc<Self>> {
        self.prepare_fork()?;
        let made = || {
            self.core()
                .fork_readable(self.root_id(), "", ForkKind::Head)
        };
        let pin = self.with_room(made)?;
        self.open_root(pin.id())
    }

    fn fork_named(&self, name: &str, kind: ForkKind) -> Result<RootInfo> {
        self.prepare_fork()?;
        self.with_room(|| {
            let (core, from) = (self.core(), self.root_id());
            let pin = match kind {
                ForkKind::Head => core.fork_readable(from, name, kind),
                ForkKind::Frozen => core.fork_pinned(from, name, kind),
            }?;
            // Others may have renamed it by now. Nobody drops it before the pin.
            let made = self.info_of(pin.id()).ok_or(Error::Stale)?;
            Ok(RootInfo {
                name: Some(name.to_owned()),
                ..made
            })
        })
    }

    /// Writes back what calls that have returned have written to this tree.
    fn prepare_fork(&self) -> Result<()> {
        self.engine.lifecycle.check_open()?;
        self.core().check_changeable()?;
        fault::unless(InjectedFault::SyncWithoutPages, || self.write_back_all())
    }

    /// Opens a root of the volume. Every handle to a root sees the same files, and calls of all of
    /// them are ordered like those of one. A snapshot is read-only. Opening a branch removes the
    /// files without a name that were in use when it was made.
    ///
    /// # Errors
    /// [`Error::NotFound`] without such a root; [`Error::Busy`] if 1,000 roots are open; no space
    /// for a merge, if the root was made since the last one; the device's failure.
    pub fn open_root(&self, id: u32) -> Result<Arc<Self>> {
        self.engine.lifecycle.check_open()?;
        let items = match self.core().open_root(id) {
            // Roots without a handle may still be open, because of unwritten data.
            Err(Error::Busy(_)) => {
                self.write_back_roots()?;
                self.engine.roots.retire();
                self.core().merge()?;
                self.core().open_root(id)?
            }
            opened => opened?,
        };
        Self::open_items(&self.engine, &items)
    }

    /// Opens a root by its name, as [`FileSystem::open_root`].
    ///
    /// # Errors
    /// As [`FileSystem::open_root`]; [`Error::NoSnapshot`] if no root has the name.
    pub fn open_named(&self, name: &str) -> Result<Arc<Self>> {
        loop {
            let id = self.id_named(name)?;
            // It is not dropped between the two steps, of which the second may take a merge.
            match self.core().pin(id) {
                Ok(_pin) => {
                    let opened = self.open_root(id)?;
                    // One that was replaced before it was opened is a snapshot.
                    if self.is_named(id, name) {
                        return Ok(opened);
                    }
                }
                Err(_) if !self.is_named(id, name) => {}
                Err(_) => return Err(Error::NoSnapshot(name.into())),
            }
        }
    }

    /// Id of the root that has a name.
    pub(super) fn id_named(&self, name: &str) -> Result<u32> {
        let id = self.core().roots().named(name);
        id.ok_or_else(|| Error::NoSnapshot(name.into()))
    }

    /// Whether a name leads to a root still. Otherwise another one has it by now, or none.
    pub(super) fn is_named(&self, id: u32, name: &str) -> bool {
        self.core().roots().named(name) == Some(id)
    }

    /// Whether nothing of this tree has changed since the snapshot with this id was made, as far as that
    /// is known without a comparison. A change at the same time may be missed.
    ///
    /// # Errors
    /// Unwritten data could not be written back.
    pub fn is_unchanged_since(&self, snapshot: u32) -> Result<bool> {
        self.prepare_fork()?;
        Ok(self.core().is_unchanged_since(self.root_id(), snapshot))
    }

    /// Gives a root another name.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`] if no root has the name `old`; [`Error::Exists`] if one has the name
    /// `new`; [`Error::Invalid`] for a name that [`refs::check_given`] refuses; [`Error::NotPermitted`] for the
    /// branch `main`, which keeps its name; as [`FileSystem::snapshot`].
    pub fn rename_root(&self, old: &str, new: &str) -> Result<()> {
        loop {
            let id = self.id_named(old)?;
            match self.rename_id(id, old, new) {
                Err(Error::NotFound) if !self.is_named(id, old) => {}
                done => return done,
            }
        }
    }

    /// As [`Self::rename_root`], of the root with this id if it still has the name `old`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it does not; as [`Self::rename_root`].
    pub(crate) fn rename_id(&self, id: u32, old: &str, new: &str) -> Result<()> {
        refs::check_given(new)?;
        self.observed(Call::RenameRoot { old, new }, || {
            self.engine.lifecycle.check_open()?;
            self.core().check_changeable()?;
            self.core().rename_root(id, old, new)
        })
    }

    /// Makes the tree of `staged`, a branch, what the name of this branch means, in one step that is
    /// durable when this returns. This one becomes the snapshot `kept`, with every call that has
    /// returned, and `staged` has no other name any more. With `since`, the id of a snapshot, only
    /// if this branch has not changed since.
    ///
    /// Changes of this branch through its handles are refused from then on with [`Error::Stale`].
    ///
    /// # Errors
    /// [`Error::Stale`] if this branch has changed, or one of both is not a branch any more;
    /// [`Error::Invalid`] if this branch has no name or both are the same; as
    /// [`FileSystem::snapshot`].
    pub fn replace_by(&self, staged: &Self, kept: &str, since: Option<u32>) -> Result<()> {
        self.replace_retiring(staged, kept, since, (None, None))
    }

    /// As [`Self::replace_by`]; the branch of `retired` is dropped by the same step, if it has
    /// exactly the files of the snapshot with that id. The name that goes with it, or without it that
    /// of `staged`, must be `taken`, if that is given.
    ///
    /// # Errors
    /// As [`Self::replace_by`]; [`Error::Stale`] if that branch has changed, too; [`Error::NotFound`] if
    /// it has another name.
    #[doc(hidden)]
    pub fn replace_retiring(
        &self,
        staged: &Self,
        kept: &str,
        since: Option<u32>,
        (retired, taken): (Option<(&Self, u32)>, Option<&str>),
    ) -> Result<()> {
        let (old, new) = (self.root_id(), staged.root_id());
        let call = Call::Replace { staged: new, kept };
        self.observed(call, || {
            self.engine.lifecycle.check_open()?;
            self.check_changeable()?;
            staged.write_back_all()?;
            let ended: Vec<&Self> = std::iter::once(self)
                .chain(retired.map(|(branch, _)| branch))
                .collect();
            let unchanged = Unchanged {
                since,
                retired: retired.map(|(branch, equal)| (branch.root_id(), equal)),
                taken,
            };
            let mut held = Vec::new();
            // Writers that are held leave a finite number of writes, so this ends.
            for round in 0_usize.. {
                if round == UNHELD {
                    held.extend(ended.iter().map(|fs| fs.hold_writers()));
                }
                ended.iter().try_for_each(|fs| fs.write_back_all())?;
                let written_since = Cell::new(false);
                let replaced = self.with_room(|| {
                    self.core().publish_names(old, new, kept, unchanged, || {
                        written_since.set(!close_all(&ended));
                        written_since.get()
                    })
                });
                match replaced {
                    Err(Error::Stale) if written_since.get() => {}
                    Err(error) => return Err(error),
                    Ok(()) => break,
                }
            }
            drop(held);
            // What calls that have not returned wrote meanwhile is in neither tree.
            ended.iter().try_for_each(|fs| fs.write_back_all())
        })
    }

    /// Makes a branch without a name whose tree is an empty directory, for a tree that is made step
    /// by step and gets a name when it is complete. It is dropped after the next opening of the
    /// volume unless it has a name by then.
    ///
    /// # Errors
    /// As [`FileSystem::snapshot`].
    pub fn new_empty_root(&self) -> Result<Arc<Self>> {
        let pin = self.empty_unnamed()?;
        self.open_root(pin.id())
    }

    /// Makes a root without a name from any root, with every call that has returned. It stays at
    /// least as long as the pin.
    ///
    /// # Errors
    /// As [`FileSystem::snapshot`].
    #[doc(hidden)]
    pub fn fork_unnamed(&self, from: u32, kind: ForkKind) -> Result<RootPin> {
        self.engine.lifecycle.check_open()?;
        self.core().check_changeable()?;
        self.write_back_roots()?;
        self.with_room(|| self.core().fork_readable(from, "", kind))
    }

    /// Makes a branch without a name and with an empty directory only, which stays at least as long
    /// as the pin.
    ///
    /// # Errors
    /// As [`FileSystem::snapshot`].
    #[doc(hidden)]
    pub fn empty_unnamed(&self) -> Result<RootPin> {
        self.engine.lifecycle.check_open()?;
        self.with_room(|| self.core().new_empty_head())
    }

    /// Id of this root, which does not change.
    pub fn root_id(&self) -> u32 {
        self.items().root()
    }

    /// Whether both are handles to the same tree.
    #[doc(hidden)]
    pub fn is_same_root(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.root, &other.root)
    }

    /// What the list of roots says about this one; `None` if it was dropped.
    pub fn root_info(&self) -> Option<RootInfo> {
        self.info_of(self.root_id())
    }

    fn info_of(&self, id: u32) -> Option<RootInfo> {
        self.roots().into_iter().find(|root| root.id == id)
    }

    /// The roots of the volume: branches and snapshots, in order of their ids.
    pub fn roots(&self) -> Vec<RootInfo> {
        let list = self.core().roots().list_with_going().into_iter();
        list.map(|(id, root, going)| info(id, root, going))
            .collect()
    }
}

/// Closes the lists of all these roots or of none, as [`WritebackList::close`]. No thread commits.
///
/// [`WritebackList::close`]: crate::fs::writeback_list::WritebackList::close
fn close_all(ended: &[&FileSystem]) -> bool {
    let all = ended.iter().all(|fs| fs.root.writeback.close());
    if !all {
        ended.iter().for_each(|fs| fs.root.writeback.reopen());
    }
    all
}

/// What the list says about a root.
fn info(id: u32, root: Root, being_dropped: bool) -> RootInfo {
    RootInfo {
        id,
        being_dropped,
        name: Some(root.name).filter(|name| !name.is_empty()),
        parent: Some(root.parent).filter(|parent| *parent != 0),
        writable: root.state == RootState::Head,
        boundary: root.boundary,
        created: root.created.into(),
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/roots.rs"]
mod tests;
