//! Dropping roots, and the space that belongs to one alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fs::FileSystem;
use crate::fs::observe::Call;
use crate::fs::reclaim::done_or_later;
use crate::journal::signals::Signals;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::DropProgress;

/// Held by a reader of a root, after everything by which it reads. When it is dropped, the background
/// looks for roots without a name that nobody reads any more.
#[derive(Clone)]
#[doc(hidden)]
pub struct ReaderEnds(Arc<Signals>);

impl Drop for ReaderEnds {
    fn drop(&mut self) {
        self.0.want_drop();
    }
}

impl FileSystem {
    /// Drops a snapshot or a branch: its name is gone, and that is durable, when this returns. What
    /// belongs to it alone is freed in the background, or by [`Self::drop_step`] if the volume has no
    /// workers.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`]; [`Error::Busy`] if it is open; [`Error::NotPermitted`] for `main`; a
    /// read-only volume; the device's failure.
    pub fn drop_root(&self, name: &str) -> Result<()> {
        self.observed(Call::DropRoot { name }, || {
            self.engine.lifecycle.check_open()?;
            loop {
                let id = self.id_named(name)?;
                match self.drop_id(id, name) {
                    Err(Error::NotFound) if !self.is_named(id, name) => {}
                    done => return done,
                }
            }
        })
    }

    /// As [`Self::drop_root`], of the root with this id if it still has this name, which may be empty.
    ///
    /// # Errors
    /// [`Error::NotFound`]; as [`Self::drop_root`].
    #[doc(hidden)]
    pub fn drop_id(&self, id: u32, name: &str) -> Result<()> {
        match self.core().drop_root(id, name) {
            // A root without a handle may still be open, because of unwritten data, or a worker.
            Err(Error::Busy(why)) => {
                if self.close_root(id)? {
                    self.core().drop_root(id, name)
                } else {
                    Err(Error::Busy(why))
                }
            }
            done => done,
        }
    }

    /// For a reader that may be the last one of a root without a name.
    #[doc(hidden)]
    pub fn reader_ends(&self) -> ReaderEnds {
        ReaderEnds(self.core().signals().clone())
    }

    /// Lets the space of a root be freed that has lost its name, unless a caller has it open: then
    /// that begins with the first merge or interval after its last handle.
    #[doc(hidden)]
    pub fn free_dropped(&self, id: u32) {
        if let Err(error) = self.close_root(id) {
            tracing::debug!(root = id, %error, "a root without a name was not closed");
        }
        self.core().signals().want_drop();
    }

    /// Does a bounded part of freeing what dropped roots have left. Returns whether some is left.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: call it again when there is more. A damaged volume, the device's failure.
    pub fn drop_step(&self) -> Result<bool> {
        self.engine.lifecycle.check_open()?;
        self.core().drop_step()
    }

    /// Does all of the work that dropped roots have left, instead of the background. Between two
    /// steps, each of which is bounded, `go_on` gets the progress and decides whether to continue.
    ///
    /// # Errors
    /// As [`Self::drop_step`].
    pub fn free_drops(&self, mut go_on: impl FnMut(DropProgress) -> bool) -> Result<()> {
        let progress = || {
            let left = self.roots().into_iter().filter(|root| root.being_dropped);
            DropProgress {
                left: left.count(),
                part: self.core().walked(),
                kept: self.core().keeps_dropped(),
            }
        };
        while go_on(progress()) && self.drop_step()? {}
        Ok(())
    }

    /// Takes away the heads without a name that calls have left which were interrupted when the volume
    /// was open before. Their space is freed in the background, as of other roots that were dropped:
    /// a command that is short may end before that, but not before this.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub(super) fn drop_unfinished(&self) -> Result<()> {
        let dropped = self.core().drop_unfinished();
        done_or_later(dropped, "dropping what an interrupted call had prepared")
    }

    /// Bytes that belong to a root alone, which dropping it frees. Brings what calls that have returned
    /// have changed into the index first, if that is possible.
    ///
    /// # Errors
    /// [`Error::NotFound`]; a damaged volume, the device's failure.
    pub fn space_of(&self, id: u32) -> Result<u64> {
        self.index_changes();
        self.core().space_of(id)
    }

    /// As [`Self::space_of`], of each root, by id, with one merge for all. One that goes meanwhile is
    /// left out.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn spaces(&self) -> Result<BTreeMap<u32, u64>> {
        self.index_changes();
        let mut spaces = BTreeMap::new();
        for root in self.roots() {
            match self.core().space_of(root.id) {
                Err(Error::NotFound) => {}
                bytes => drop(spaces.insert(root.id, bytes?)),
            }
        }
        Ok(spaces)
    }

    /// Writes back and merges what calls that have returned have changed in any root: the space that a
    /// root has alone depends on others, too. Without space for that, or on a volume that has stopped,
    /// the index stays as the last merge left it.
    fn index_changes(&self) {
        let core = self.core();
        let indexed = core
            .check_changeable()
            .and_then(|()| self.write_back_roots())
            .and_then(|()| core.merge_waiting());
        if let Err(error) = indexed {
            tracing::debug!(%error, "space is counted as the last merge left it");
        }
    }

    /// A merge in a worker. Dropped roots that came out of use, or found no space, get a new try.
    pub(super) fn work_merge(&self) -> Result<()> {
        self.core().merge()?;
        if self.core().has_dropped() {
            self.core().signals().want_drop();
        }
        Ok(())
    }

    /// The work of a worker: one step, and a request for the next one, so that merges come first. The
    /// last one is followed by a merge, if that frees what was removed meanwhile.
    pub(super) fn work_drop(&self) -> Result<()> {
        self.engine.roots.retire();
        let core = self.core();
        match core.drop_step()? {
            true => core.signals().want_drop(),
            false if core.may_free_by_merge() => core.signals().want_merge(),
            false => {}
        }
        Ok(())
    }

    /// Frees what dropped roots have left, for a call that finds no space.
    pub(super) fn drop_for_space(&self) -> Result<bool> {
        self.engine.roots.retire();
        let mut any = false;
        while self.core().drop_step()? {
            any = true;
        }
        Ok(any)
    }
}
