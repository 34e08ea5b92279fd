//! The image of one moment, pinned: what it has is not reused, although the index gives it up.
//!
//! Nothing of it is on the device. The first change of a group's image copies its bitmap, and a
//! release of blocks that the pinned image has leaves them in use until it is unpinned. So a volume
//! that is opened again has no pinned image, and no block is lost. One image is pinned at a time.
//!
//! What is pinned gives way: a reservation for a merge that finds no space unpins it, because merges
//! must not fail for its sake; calls of users first try what costs nobody anything
//! ([`Space::unpin_image`]).
//!
//! Also here: which groups' bitmaps differ from those of an earlier pinned image. That is known in
//! memory only, so after an opening all of them may.
//!
//! # The life of a pinned image
//!
//! | From | To | Caused by, under | Durable then |
//! |---|---|---|---|
//! | | pinned | [`Space::pin_image`], under the lock of merges | the superblock with this image |
//! | pinned | pinned, a group copied | the first change of the group's image, under its lock and that of merges | |
//! | pinned | pinned, more held | a release of blocks that it has, under the group's lock | that the volume gave them up |
//! | pinned | ending | [`Space::unpin`] by its owner; [`Space::unpin_image`] for want of space: the first caller ends it | |
//! | ending | | that caller frees group by group what is held, each under the group's lock; the others wait | |
//! | any | | the volume is closed or killed | nothing of it was on the device |
//!
//! 1. One image is pinned at a time, until all that it holds is free; serial numbers ascend.
//! 2. No image is pinned while images change: both have the lock of merges. So a group's copy, or
//!    its image if there is none, is what the superblock of the pinning has.
//! 3. What is held is in use in the bitmaps, and is neither in the image nor in the log before the
//!    tail. It becomes free once: with its group's copy.
//! 4. A reader that finds the image pinned after it has read has read the pinned image.

use std::collections::BTreeSet;

use zerocopy::IntoBytes;

use super::bitmap::{BITS, Bitmap, WORD_BLOCKS};
use super::group::{Maps, PinnedMaps};
use super::release::Part;
use super::{BlockRun, Space, block_of, table};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::group::GroupEntry;
use cairnfs_disk::sync::atomic::{AtomicBool, Ordering};
use cairnfs_disk::sync::{Condvar, Mutex};

/// A pinned image.
struct Pin {
    /// Tells it from all others.
    serial: u64,
    /// The groups with [`PinnedMaps`].
    groups: BTreeSet<usize>,
    /// Blocks that were released and are held for it.
    held: u64,
    /// It is being unpinned: what it holds becomes free group by group. No other image is pinned
    /// before all of it is.
    ending: bool,
}

impl Pin {
    /// Begins to unpin it; returns the groups in which it holds blocks, or `None` if another thread
    /// unpins it.
    fn end(&mut self) -> Option<BTreeSet<usize>> {
        let first = !std::mem::replace(&mut self.ending, true);
        first.then(|| std::mem::take(&mut self.groups))
    }
}

/// Groups whose bitmaps have changed.
#[derive(Default)]
struct Changed {
    /// The name of the earlier image with which they are compared.
    since: Option<u64>,
    /// Groups changed from that one to the newest pinned image.
    before: BTreeSet<usize>,
    /// Groups changed since the newest pinned image.
    after: BTreeSet<usize>,
    /// Serial number of the newest pinned image.
    newest: u64,
}

/// The pinned image of a volume, if there is one.
#[derive(Default)]
pub(super) struct Pinning {
    pin: Mutex<Option<Pin>>,
    /// Signalled when an image is unpinned.
    unpinned: Condvar,
    /// Whether an image was ever pinned: otherwise a change of the image notes nothing.
    used: AtomicBool,
    changed: Mutex<Changed>,
}

/// What is known of a pinned image without its bitmaps.
#[derive(Debug, Clone)]
pub struct PinnedTable {
    serial: u64,
    name: u64,
    table: Vec<GroupEntry>,
    /// Groups whose bitmaps differ from those of an earlier image; none if all may.
    changed: Option<BTreeSet<usize>>,
}

impl PinnedTable {
    /// The bytes of the group table of a volume with this image alone, whose bitmaps all have copy 0.
    pub fn encode(&self, blocks: u64) -> Vec<u8> {
        let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
        let entry = |entry: &GroupEntry| GroupEntry { copy: 0, ..*entry };
        let table: Vec<GroupEntry> = self.table.iter().map(entry).collect();
        for (to, from) in bytes.iter_mut().zip(table.as_bytes()) {
            *to = *from;
        }
        bytes
    }

    /// Free blocks.
    pub fn free_blocks(&self) -> u64 {
        let free = self.table.iter().map(|entry| u64::from(entry.free.get()));
        free.sum()
    }

    /// Whether the bitmap of a group may differ from that of the earlier image.
    pub fn is_changed(&self, group: u64) -> bool {
        let changed = self.changed.as_ref();
        changed.is_none_or(|changed| changed.contains(&(group as usize)))
    }
}

impl Space {
    /// Pins the image under a name. The caller has the lock of merges, and the newest superblock is
    /// durable and has this image. `since` is the name of an earlier pinned image with which bitmaps
    /// are compared.
    ///
    /// # Errors
    /// [`Error::Busy`] while another one is pinned, or is being unpinned.
    pub fn pin_image(&self, name: u64, since: Option<u64>) -> Result<PinnedTable> {
        let table = self.image.lock().table().to_vec();
        let mut pin = self.pinning.pin.lock();
        if pin.is_some() {
            return Err(Error::Busy("another checkpoint is being shipped"));
        }
        self.pinning.used.store(true, Ordering::Release);
        let mut changed = self.pinning.changed.lock();
        let serial = changed.newest + 1;
        *pin = Some(Pin {
            serial,
            groups: BTreeSet::new(),
            held: 0,
            ending: false,
        });
        let after = std::mem::take(&mut changed.after);
        changed.before.extend(after);
        changed.newest = serial;
        let known = since.is_some() && since == changed.since;
        Ok(PinnedTable {
            serial,
            name,
            table,
            changed: known.then(|| changed.before.clone()),
        })
    }

    /// Whether this image is still pinned.
    pub fn is_pinned(&self, table: &PinnedTable) -> bool {
        let pin = self.pinning.pin.lock();
        pin.as_ref()
            .is_some_and(|pin| pin.serial == table.serial && !pin.ending)
    }

    /// From now on bitmaps are compared with those of this image.
    pub fn compare_images_with(&self, table: &PinnedTable) {
        let mut changed = self.pinning.changed.lock();
        if changed.newest == table.serial {
            changed.since = Some(table.name);
            changed.before.clear();
        }
    }

    /// Unpins this image, if it still is pinned. Otherwise waits until it is unpinned.
    pub fn unpin(&self, table: &PinnedTable, discard: bool) -> Result<()> {
        let mut pin = self.pinning.pin.lock();
        while let Some(found) = pin.as_mut().filter(|found| found.serial == table.serial) {
            if let Some(groups) = found.end() {
                drop(pin);
                return self.free_held(groups, discard);
            }
            self.pinning.unpinned.wait(&mut pin);
        }
        Ok(())
    }

    /// Unpins the pinned image if it holds any block, and frees what only it has. Returns whether
    /// there was such an image.
    pub fn unpin_image(&self, discard: bool) -> Result<bool> {
        let mut pin = self.pinning.pin.lock();
        let groups = pin.as_mut().filter(|pin| pin.held > 0).and_then(Pin::end);
        drop(pin);
        match groups {
            Some(groups) => self.free_held(groups, discard).map(|()| true),
            None => Ok(false),
        }
    }

    /// Frees what the image holds that is being unpinned; then another one can be pinned.
    fn free_held(&self, groups: BTreeSet<usize>, discard: bool) -> Result<()> {
        let freed = groups
            .into_iter()
            .try_for_each(|index| self.free_held_in(index, discard));
        let ended = self.pinning.pin.lock().take();
        assert!(
            ended.is_some_and(|pin| pin.ending),
            "pin invariant 1: one image is pinned until all of it is free"
        );
        self.pinning.unpinned.notify_all();
        freed
    }

    fn free_held_in(&self, index: usize, discard: bool) -> Result<()> {
        let Some(pinned) = self.lock(index)?.pinned.take() else {
            return Ok(());
        };
        let held = (0..(BITS / WORD_BLOCKS) as usize).map(|word| Part {
            word,
            mask: pinned.held.word(word),
        });
        let mut held: Vec<Part> = held.filter(|part| part.mask != 0).collect();
        self.release_words(index, &mut held, discard)
    }

    /// Called before the image of a group changes, with its bitmaps locked.
    pub(super) fn image_changes(&self, index: usize, maps: &mut Maps) {
        if maps.pinned.is_some() || !self.pinning.used.load(Ordering::Acquire) {
            return;
        }
        self.pinning.changed.lock().after.insert(index);
        let mut pin = self.pinning.pin.lock();
        if let Some(pin) = pin.as_mut().filter(|pin| !pin.ending) {
            pin.groups.insert(index);
            maps.pinned = Some(Box::new(PinnedMaps {
                image: maps.image.clone(),
                held: Bitmap::free(),
            }));
        }
    }

    /// The part of these blocks that may be reused now; the others are held, because the pinned image
    /// has them.
    pub(super) fn not_pinned(&self, maps: &mut Maps, masks: &mut Vec<Part>) {
        let Some(pinned) = &mut maps.pinned else {
            return;
        };
        if is_injected(InjectedFault::PinnedReused) {
            return;
        }
        let mut count = 0;
        for part in masks.iter_mut() {
            let held = part.mask & pinned.image.word(part.word);
            let before = pinned.held.word(part.word);
            pinned.held.set_word(part.word, before | held);
            part.mask &= !held;
            count += u64::from(held.count_ones());
        }
        if let Some(pin) = &mut *self.pinning.pin.lock() {
            pin.held += count;
        }
        masks.retain(|part| part.mask != 0);
    }

    /// Calls `read` with the bitmap of a group as the pinned image has it.
    fn with_pinned<R>(&self, index: usize, read: impl FnOnce(&Bitmap) -> R) -> Result<R> {
        let group = self.group(index)?;
        let slot = group.maps.lock();
        match &*slot {
            Some(maps) => Ok(read(maps.pinned.as_ref().map_or(&maps.image, |p| &p.image))),
            // Not read since the volume was opened, so not changed either. It does not stay.
            None => Ok(read(&self.read_maps(index, group)?.image)),
        }
    }

    /// Encodes the bitmap of a group into a block.
    ///
    /// # Errors
    /// [`Error::GaveWay`]; a damaged bitmap.
    pub fn read_pinned(&self, image: &PinnedTable, group: u64, block: &mut [u8]) -> Result<()> {
        let entry = self.with_pinned(group as usize, |map| table::encode(map, 0, block))?;
        let known = image.table.get(group as usize);
        match self.is_pinned(image) {
            false => Err(Error::GaveWay),
            true if known.is_some_and(|known| known.crc == entry.crc) => Ok(()),
            true => Err(Error::corrupt(
                self.geometry.bitmap_block(group, 0),
                "pinned bitmap",
                format_args!("{:08x}", known.map_or(0, |known| known.crc.get())),
                format_args!("{:08x}", entry.crc.get()),
            )),
        }
    }

    /// Passes the blocks of the data area that the image has to `run`, in ascending order.
    ///
    /// # Errors
    /// [`Error::GaveWay`]; a damaged bitmap; those of `run`.
    pub fn each_pinned(
        &self,
        image: &PinnedTable,
        mut run: impl FnMut(BlockRun) -> Result<()>,
    ) -> Result<()> {
        let (first, end) = (self.geometry.data_start(), self.geometry.total_blocks);
        for index in 0..self.groups.len() {
            let runs = self.with_pinned(index, |map| used_runs(index, map))?;
            if !self.is_pinned(image) {
                return Err(Error::GaveWay);
            }
            for found in runs {
                let start = found.start.max(first);
                let len = found.end().min(end).saturating_sub(start);
                if len > 0 {
                    run(BlockRun::new(start, len))?;
                }
            }
        }
        Ok(())
    }
}

/// The runs of blocks in use of a group.
fn used_runs(index: usize, map: &Bitmap) -> Vec<BlockRun> {
    let mut runs = Vec::new();
    let mut at = 0;
    while let Some(used) = map.first_used(at, BITS - at) {
        let end = map.first_free(used, BITS - used).unwrap_or(BITS);
        runs.push(BlockRun::new(block_of(index, used), (end - used).into()));
        at = end;
    }
    runs
}
