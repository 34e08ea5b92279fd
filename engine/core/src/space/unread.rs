//! The space of a volume that is only read, where the group table or a bitmap cannot be read.
//!
//! Reading files needs no free space; only a merge of the replay does, which writes to an overlay. So
//! a group whose bitmap cannot be read counts as full there, and all groups do without the table.
//! Nothing becomes free in such a group, and its image is not kept. An opening for changes passes
//! over nothing.
//!
//! A log with changes of roots must be merged to be read. So that free blocks are there whatever is
//! damaged, *spare groups* follow the last one. Their blocks are behind the end of the volume, and
//! exist in the overlay only.

use std::sync::Arc;

use super::bitmap::{BITS, Bitmap};
use super::budget::Budget;
use super::group::{Bounds, Group, Maps};
use super::{Space, TableState, floors, table};
use cairnfs_disk::device::Device;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::geometry::{GROUP_BLOCKS, Geometry};
use cairnfs_disk::format::group::GroupEntry;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::Ordering;

/// What could not be read.
#[derive(Default)]
pub(super) struct Unread {
    /// Whether the volume is only read.
    passes: bool,
    /// Blocks of the spare groups.
    pub spare: u64,
    first: Mutex<Option<Error>>,
}

impl Unread {
    /// Takes note of a failure, if the volume is only read.
    ///
    /// # Errors
    /// The failure itself, of any other volume.
    pub fn pass(&self, error: Error) -> Result<()> {
        if !self.passes {
            return Err(error);
        }
        self.first.lock().get_or_insert_with(|| {
            tracing::warn!(%error, "free blocks are not known: none is taken for free");
            error
        });
        Ok(())
    }
}

impl Space {
    /// As [`Self::open`], of a volume that is only read: what cannot be read counts as full. If that
    /// is anything, and the log must be merged, there are spare groups.
    ///
    /// # Errors
    /// A geometry that no volume has.
    pub fn open_for_reading(
        device: Arc<dyn Device>,
        geometry: Geometry,
        state: TableState,
        merges: bool,
    ) -> Result<Self> {
        geometry.validate().map_err(Error::Invalid)?;
        let unread = Unread {
            passes: true,
            ..Unread::default()
        };
        let (opened, free) = match table::read(&*device, &geometry, state) {
            Ok(opened) => (opened, state.free_blocks),
            Err(error) => {
                unread.pass(error)?;
                let none = vec![GroupEntry::default(); geometry.groups() as usize];
                (none, 0)
            }
        };
        let state = TableState {
            free_blocks: free,
            ..state
        };
        let mut space = Self::with_table(device, geometry, state, opened, unread);
        if merges {
            space.verify_all()?;
            if space.unread().is_some() {
                space.add_spare();
            }
        }
        Ok(space)
    }

    /// Adds spare groups, as many as the volume has and one more, or as many as can be addressed.
    fn add_spare(&mut self) {
        let most = (u64::from(u32::MAX) / GROUP_BLOCKS) as usize;
        let own = self.groups.len();
        let count = most.saturating_sub(own).min(own + 1);
        let free = self.free_blocks();
        self.groups
            .extend((0..count).map(|_| Group::unread(Bounds::whole(), BITS)));
        self.unread.spare = count as u64 * GROUP_BLOCKS;
        let units = self.groups.iter().map(|group| u64::from(group.units()));
        let floors = floors(&self.geometry);
        self.budget = Budget::new(free + self.unread.spare, units.sum(), floors);
        self.unit_group.store(own, Ordering::Relaxed);
    }

    /// The block behind the last one that can be allocated.
    pub fn end(&self) -> u64 {
        match self.unread.spare {
            0 => self.geometry.total_blocks,
            _ => self.groups.len() as u64 * GROUP_BLOCKS,
        }
    }

    /// The first failure that was passed over, if there was one.
    pub fn unread(&self) -> Option<Error> {
        self.unread.first.lock().clone()
    }

    /// Whether free blocks are known of no group.
    pub fn is_unread(&self) -> bool {
        if let [_] = self.groups.as_slice() {
            // A failure is one of a volume that is not only read.
            let _ = self.lock(0);
        }
        self.unread().is_some() && self.groups.iter().all(|group| group.free() == 0)
    }

    /// The bitmaps of a group that counts as full from now on.
    pub(super) fn full_maps(&self, group: &Group) -> Maps {
        let (free, units) = (
            group.free.swap(0, Ordering::AcqRel),
            group.units.swap(0, Ordering::AcqRel),
        );
        if !group.counted.swap(true, Ordering::AcqRel) {
            self.uncounted.fetch_sub(1, Ordering::AcqRel);
        }
        self.budget.lose(free.into(), units.into());
        let mut full = Bitmap::free();
        full.set(0, BITS);
        Maps {
            unread: true,
            ..Maps::new(full)
        }
    }
}
