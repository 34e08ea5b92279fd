//! Checkpoints: the whole volume at one moment, as blocks by their place on the device.
//!
//! A checkpoint has what the index on the device has after a merge: no root is made for it, and
//! nothing of it is on the device but its name. [`Core::capture`] pins the image of the free space
//! ([`crate::space`]), so nothing that the index has then is reused until the capture ends. What is
//! new since an earlier checkpoint is told by births alone ([`gained`]), and [`image`] makes the
//! blocks that are no part of the trees.
//!
//! That births tell it rests on three rules. What is written after a capture is born after its
//! sequence: packing and drops merge first if nothing was merged since ([`Checkpoints::is_newest`]).
//! A block that is written in place is born again. And a capture that may be the base of another one
//! is recorded in a durable superblock with a random number, so a copy of the volume that went
//! another way has other names.
//!
//! # The life of a checkpoint
//!
//! | From | To | Caused by, under | Durable then |
//! |---|---|---|---|
//! | | at rest | [`Core::capture`], under the lock of merges: everything committed is merged | the superblock of that merge |
//! | at rest | pinned | [`Space::pin_image`](crate::space::Space::pin_image), under the same lock | |
//! | pinned | captured | `Core::record`, under the same lock; skipped if nothing has changed | its name, and that of the one it is compared with |
//! | pinned | ended | the superblock cannot be written: the volume fails | |
//! | captured | captured | reading and shipping, without a lock | |
//! | captured | shipped | [`Core::shipped`]: later bitmaps are compared with it; then it ends | |
//! | captured | ended | [`Core::end_capture`], after a failure of the receiver | its name |
//! | captured | gave way | [`Core::break_capture`], or a reservation of a merge: reading fails from then on | its name |
//!
//! 1. When one is pinned, the newest superblock is durable and has every root that is committed.
//! 2. Its name is durable before any block of it is read.
//! 3. The captured sequence only grows, and is never beyond the merged one.

mod gained;
mod image;

use zerocopy::little_endian::U64;

use crate::index::Tree;
use crate::space::PinnedTable;
use crate::txn::Core;
use crate::txn::superblocks::volume_tree;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::superblock::{CHECKPOINTS, RawCheckpoint, Superblock};
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};
use cairnfs_disk::types::{CheckpointId, Time};

/// What the checkpoints of a volume have.
pub struct Checkpoints {
    /// The greatest sequence of a capture: everything born up to it may have been shipped.
    captured: AtomicU64,
}

/// A checkpoint in a superblock; none if it has none, or one that cannot be.
fn recorded(raw: &RawCheckpoint, superblock: &Superblock) -> Option<CheckpointId> {
    let (seq, number) = (raw.seq.get(), raw.number.get());
    let known = (1..=superblock.merged_seq.get()).contains(&seq);
    known.then_some(CheckpointId { seq, number })
}

/// The checkpoints that a superblock records.
fn all_recorded(superblock: &Superblock) -> impl Iterator<Item = CheckpointId> {
    let all = [superblock.checkpoint, superblock.checkpoint_before];
    let known = all.map(|raw| recorded(&raw, superblock));
    known.into_iter().flatten()
}

impl Checkpoints {
    /// The checkpoints that a superblock records.
    pub(super) fn found(superblock: &Superblock) -> Self {
        let newest = all_recorded(superblock).map(|id| id.seq).max();
        Self {
            captured: AtomicU64::new(newest.unwrap_or(0)),
        }
    }

    /// The greatest sequence of a capture; 0 without one. Extents born up to it never join others, so
    /// that these need not be shipped again.
    pub(super) fn captured(&self) -> u64 {
        self.captured.load(Ordering::Relaxed)
    }

    /// Whether nothing was merged since the newest capture: nodes born in the newest merge would be
    /// taken for its nodes.
    pub(super) fn is_newest(&self, superblock: &Superblock) -> bool {
        superblock.merged_seq.get() <= self.captured()
            && !is_injected(InjectedFault::BornBeforeCheckpoint)
    }
}

/// A captured state of the volume.
pub struct Capture {
    /// Its name.
    pub id: CheckpointId,
    /// The checkpoint with which it is compared; none if it is compared with an empty volume.
    pub since: Option<CheckpointId>,
    /// When it was made.
    pub time: Time,
    /// Whether nothing has changed since that checkpoint, whose name it has then.
    pub is_unchanged: bool,
    /// The superblocks of the image.
    superblocks: [Superblock; 2],
    /// The group table of the image.
    table: Vec<u8>,
    pinned: PinnedTable,
    /// The trees of all roots, each with the boundary up to which another tree has its nodes.
    trees: Vec<(Tree, u64)>,
}

impl Capture {
    /// The units with copies of the superblocks in its image, in any order.
    pub fn copy_units(&self) -> impl Iterator<Item = u64> + use<> {
        let [superblock, _] = &self.superblocks;
        superblock.copy_units()
    }
}

impl Core {
    /// The checkpoints that a new one can be compared with.
    pub fn known_checkpoints(&self) -> Vec<CheckpointId> {
        all_recorded(&self.superblocks.newest()).collect()
    }

    /// Captures the state of the whole volume with everything committed so far. What is new in it is
    /// told by a comparison with `since`, unless the volume does not know that checkpoint.
    ///
    /// # Errors
    /// [`Error::Busy`] while there is another capture; a read-only volume; no space for a merge; the
    /// device's failure.
    pub fn capture(&self, since: Option<CheckpointId>) -> Result<Capture> {
        self.check_changeable()?;
        let (number, time) = (self.source.random()?, self.now());
        self.merger
            .at_rest(self, || self.take_capture(since, (number, time)))
    }

    /// The same while no merge runs and everything is merged.
    fn take_capture(
        &self,
        since: Option<CheckpointId>,
        (number, time): (u64, Time),
    ) -> Result<Capture> {
        let found = self.superblocks.newest();
        let since = since.filter(|since| all_recorded(&found).any(|known| known == *since));
        let seq = found.merged_seq.get();
        assert!(
            self.checkpoints.captured() <= seq && !self.merger.has_rest(),
            "checkpoint invariants 1, 3: everything is merged and durable"
        );
        let is_unchanged = since.is_some_and(|since| found.root.birth.get() <= since.seq);
        let id = match since.filter(|_| is_unchanged) {
            Some(since) => since,
            None => CheckpointId { seq, number },
        };
        let base = since.map(|since| since.number);
        let pinned = self.space.pin_image(id.number, base)?;
        self.checkpoints.captured.fetch_max(seq, Ordering::Relaxed);
        if !is_unchanged && let Err(error) = self.record(id, since) {
            self.storage.fail(error.clone());
            self.space.unpin(&pinned, self.discard)?;
            return Err(error);
        }
        let newest = self.superblocks.newest();
        let names = [newest.checkpoint, newest.checkpoint_before];
        let is_named =
            |raw: &RawCheckpoint| (raw.seq.get(), raw.number.get()) == (id.seq, id.number);
        assert!(
            names.iter().any(is_named) || is_injected(InjectedFault::CheckpointUnrecorded),
            "checkpoint invariant 2: its name is durable before it is read"
        );
        let mut trees = self.roots.merged_trees();
        trees.push((volume_tree(&newest), 0));
        let table = pinned.encode(self.geometry.table_blocks());
        Ok(Capture {
            id,
            since,
            time,
            is_unchanged,
            superblocks: image::superblocks(&newest, &table, pinned.free_blocks()),
            table,
            pinned,
            trees,
        })
    }

    /// Records a checkpoint before anything of it is shipped: however that ends, a later one may be
    /// compared with it, or with the one before.
    fn record(&self, id: CheckpointId, since: Option<CheckpointId>) -> Result<()> {
        let raw = |id: CheckpointId| RawCheckpoint {
            seq: U64::new(id.seq),
            number: U64::new(id.number),
        };
        fault::unless(InjectedFault::CheckpointUnrecorded, || {
            self.superblocks.flip(|superblock| {
                superblock.ro_compatible |= U64::new(CHECKPOINTS);
                superblock.checkpoint = raw(id);
                superblock.checkpoint_before = since.map(raw).unwrap_or_default();
            })
        })
    }

    /// Ends a capture of which everything was shipped.
    pub fn shipped(&self, capture: &Capture) -> Result<()> {
        self.space.compare_images_with(&capture.pinned);
        self.end_capture(capture)
    }

    /// Ends a capture, if it has not given way.
    pub fn end_capture(&self, capture: &Capture) -> Result<()> {
        let ended = self.space.unpin(&capture.pinned, self.discard);
        ended.inspect_err(|error| self.storage.fail(error.clone()))
    }

    /// Ends the capture that there is, for want of space. Returns whether that freed anything.
    pub fn break_capture(&self) -> Result<bool> {
        let ended = self.space.unpin_image(self.discard);
        ended.inspect_err(|error| self.storage.fail(error.clone()))
    }

    /// [`Error::GaveWay`] in place of what was read of a capture that has given way.
    fn unless_gave_way<R>(&self, capture: &Capture, read: Result<R>) -> Result<R> {
        if self.space.is_pinned(&capture.pinned) {
            read
        } else {
            Err(Error::GaveWay)
        }
    }
}
