//! Dropping roots: the name goes at once, the space in the background.
//!
//! A root without a name, with at most one child and without users is *dissolved*: what belongs to
//! it alone is freed, and its child gets its parent. A [`walk`] finds what that is, in pieces
//! between which everything else goes on; then one superblock frees all of it, removes the root's
//! item and changes the child's parent. Until then the root is whole, so a crash only makes the
//! walk start again.
//!
//! [`Drops`] owns the walk in progress, what merges have [`given_up`] since it began, and units kept
//! for the superblock. Memory: a bit for each block of the groups that have any of the root's own
//! ([`crate::txn::blocks`]).
//!
//! Lock order: the turn of walks, then the lock of merges.

mod damaged;
mod dissolve;
mod given_up;
mod walk;

pub(super) use self::given_up::{GivenUp, Watch};
use self::walk::Walk;
use crate::space::{Class, Space};
use crate::txn::Core;
use crate::txn::blocks::BlockSet;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairnfs_disk::sync::{Mutex, RwLock};

/// Items and nodes that a step of a walk compares, about.
const PIECE: u64 = 1 << 14;

/// Units kept for the nodes of the volume tree that a dissolution rewrites: two paths through it.
const KEPT_UNITS: u64 = 8;

/// The dissolution of dropped roots.
#[derive(Default)]
pub struct Drops {
    /// The walk in progress.
    walk: Mutex<Option<Walk>>,
    watch: Watch,
    /// Units kept for dissolutions.
    units: AtomicU64,
    /// Whether a root was dissolved since [`Core::may_free_by_merge`] was asked.
    dissolved: AtomicBool,
    /// Whether nothing was freed with a damaged root, because another one is damaged, too.
    kept: AtomicBool,
    /// Held shared while it is decided whether a root loses its name.
    deciding: RwLock<()>,
    /// How often that was decided.
    decided: AtomicU64,
}

impl Drops {
    /// What merges hand over to a walk.
    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Reserves the missing part of the units kept for dissolutions. Returns whether they are
    /// complete.
    ///
    /// # Errors
    /// A damaged bitmap.
    pub(super) fn keep_units(&self, space: &Space, class: Class) -> Result<bool> {
        let missing = KEPT_UNITS.saturating_sub(self.units.load(Ordering::Relaxed));
        let reserved = space.reserve(0, missing, class)?;
        if reserved {
            self.units.fetch_add(missing, Ordering::Relaxed);
        }
        Ok(reserved)
    }
}

/// What a change of roots returns if the root is in use.
const IN_USE: Error = Error::Busy("the snapshot or branch is open: close it first");

impl Core {
    /// Drops the root `id` if its name is `name`: the name is gone, and that is durable, when this
    /// returns. [`Self::drop_step`] frees its space later. A root that others were forked from stays,
    /// without a name, until at most one of them is left.
    ///
    /// # Errors
    /// [`Error::NotFound`], also if it has another name; [`Error::Busy`] if it is open or pinned with its
    /// name; [`Error::NotPermitted`] for the main root; a read-only volume; no space for the merge of an earlier change of roots; the
    /// device's failure.
    pub fn drop_root(&self, id: u32, name: &str) -> Result<()> {
        self.check_changeable()?;
        self.roots.check_droppable(id)?;
        match self.unname(id, name) {
            // Changes that no merge has brought into the index keep it open.
            Err(Error::Busy(_)) => {
                self.merge()?;
                self.unname(id, name)?;
            }
            done => done?,
        }
        self.signals.want_drop();
        Ok(())
    }

    /// Takes its name from a root, and freezes it if it is a head.
    fn unname(&self, id: u32, name: &str) -> Result<()> {
        let _deciding = self.drops.deciding.read();
        if !self.heads.shut_name(id) {
            return Err(IN_USE);
        }
        let changed = self.change_roots(&[], |roots, boundary| {
            Ok(((), [(id, roots.dropped(id, name, boundary)?)].into()))
        });
        // Its state keeps it shut.
        self.heads.admit(id);
        self.drops.decided.fetch_add(1, Ordering::AcqRel);
        changed
    }

    /// How often a drop was decided since the volume was opened.
    pub fn drops_decided(&self) -> u64 {
        self.drops.decided.load(Ordering::Acquire)
    }

    /// Waits until each drop that is under way is decided; returns how many were. Until then its root is
    /// neither opened nor pinned, and has its name still.
    pub fn settle_drops(&self) -> u64 {
        drop(self.drops.deciding.write());
        self.drops_decided()
    }

    /// Does a bounded part of the work that dropped roots have left. Returns whether some is left.
    /// Others wait for it no longer than for a superblock.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: it can be called again when there is more. Damage outside the trees of
    /// files, the device's failure: both stop the volume.
    pub fn drop_step(&self) -> Result<bool> {
        if self.read_only {
            return Ok(false);
        }
        self.storage.check()?;
        let mut turn = self.drops.walk.lock();
        let walk = match turn.take() {
            Some(walk) => walk,
            None => match self.begin_walk()? {
                Some(walk) => walk,
                None => return self.drop_garbage(),
            },
        };
        let walk = turn.insert(walk);
        let moves = self.limits.step_keys.min(PIECE);
        let last = match walk.piece(self, moves) {
            Err(Error::Corrupt(damage)) => {
                tracing::warn!(%damage, "a tree of what was dropped, or of what was forked from it, is damaged");
                walk.end_at_damage();
                true
            }
            done => done.inspect_err(|e| self.storage.fail(e.clone()))?,
        };
        if last && let Some(walk) = turn.take() {
            let dissolved = self.dissolve(&walk);
            self.heads.admit(walk.place.id);
            dissolved?;
            self.drops.dissolved.store(true, Ordering::Release);
        }
        Ok(true)
    }

    /// Begins to walk the next root that can be dissolved.
    fn begin_walk(&self) -> Result<Option<Walk>> {
        if self.roots.has_waiting() {
            self.merge()?;
        }
        // A merge that runs has begun before the watch, and would hand over nothing.
        Ok(self.merger.alone(|| {
            let mut places = self.roots.dissolvable().into_iter();
            let place = places.find(|place| self.heads.shut(place.id))?;
            self.drops.watch.begin(place.id, place.floor);
            Some(Walk::new(place))
        }))
    }

    /// The part of the walk in progress that is done, from 0 to 1, by inode numbers; 0 between two
    /// walks.
    pub fn walked(&self) -> f64 {
        let given = self.superblocks.given();
        let turn = self.drops.walk.lock();
        turn.as_ref().map_or(0.0, |walk| walk.part_of(given))
    }

    /// Drops all heads without a name that are not in use. Each is a change of roots.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; damage in the index, the device's failure.
    pub fn drop_unfinished(&self) -> Result<()> {
        while !self.read_only && self.drop_garbage()? {}
        Ok(())
    }

    /// Drops a head without a name that is not in use: the process that made it is gone, or has
    /// given it up. Returns whether there was one.
    fn drop_garbage(&self) -> Result<bool> {
        for id in self.roots.nameless_heads() {
            match self.unname_garbage(id) {
                Err(Error::Busy(_) | Error::NotFound) => {}
                dropped => return dropped.map(|()| true),
            }
        }
        Ok(false)
    }

    /// As [`Self::unname`], of a head without a name. Changes that no merge has brought into the
    /// index keep a head open: those that replay found after its making, or that the input of a
    /// merge holds. They are merged first. A head that its maker still fills causes no merge but that
    /// of a change of roots, which one merge ends.
    fn unname_garbage(&self, id: u32) -> Result<()> {
        match self.unname(id, "") {
            Err(Error::Busy(_)) if self.roots.has_pending() || self.heads.has_only_changes(id) => {
                self.merge()?;
                self.unname(id, "")
            }
            done => done,
        }
    }

    /// Merges what was committed before, for those who look at trees of the index. Does nothing if
    /// nothing waits.
    ///
    /// # Errors
    /// As [`Self::merge`].
    pub fn merge_waiting(&self) -> Result<()> {
        self.check_changeable()?;
        self.merger.at_rest(self, || Ok(()))
    }

    /// Bytes that belong to a root alone: what dropping it frees. Nothing if other roots were forked
    /// from it. Of a head, as the last merge left it. Takes as long as reading the nodes in which
    /// the root differs from its neighbours in the history.
    ///
    /// # Errors
    /// [`Error::NotFound`]; damage in the index, the device's failure; those of a merge, if the root
    /// was made since the last one.
    pub fn space_of(&self, id: u32) -> Result<u64> {
        if self.roots.is_only_logged(id) {
            self.merger.merge_roots(self)?;
        }
        let Some(place) = self.roots.place_of(id)? else {
            return Ok(0);
        };
        let mut walk = Walk::new(place);
        while !walk.piece(self, PIECE)? {}
        Ok(walk.result(&BlockSet::default()).len() * BLOCK_SIZE as u64)
    }

    /// Whether roots were dissolved since the last call, and changes wait for a merge. The merge frees
    /// the blocks that other roots gave up while the dissolved roots still had them.
    pub fn may_free_by_merge(&self) -> bool {
        self.drops.dissolved.swap(false, Ordering::AcqRel) && self.heads.are_dirty()
    }

    /// Whether blocks of a dropped root stay in use, because another root is damaged, too.
    pub fn keeps_dropped(&self) -> bool {
        self.drops.kept.load(Ordering::Acquire)
    }

    /// Whether a root waits for [`Self::drop_step`].
    pub fn has_dropped(&self) -> bool {
        self.roots.has_waiting()
            || !self.roots.dissolvable().is_empty()
            || !self.roots.nameless_heads().is_empty()
    }
}
