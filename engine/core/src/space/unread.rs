//! The space of a volume that is only read, where the group table or a bitmap cannot be read.
//!
//! Reading files needs no free space; only a merge of the replay does, which writes to an overlay. So
//! a group whose bitmap cannot be read counts as full there, and all groups do without the table.
//! Nothing becomes free in such a group, and its image is not kept. An opening for changes passes
//! over nothing.

use std::sync::Arc;

use super::bitmap::{BITS, Bitmap};
use super::group::{Group, Maps};
use super::{Space, TableState, table};
use cairnfs_disk::device::Device;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::group::GroupEntry;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::Ordering;

/// What could not be read.
#[derive(Default)]
pub(super) struct Unread {
    /// Whether the volume is only read.
    passes: bool,
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
    /// As [`Self::open`], of a volume that is only read: what cannot be read counts as full.
    ///
    /// # Errors
    /// A geometry that no volume has.
    pub fn open_for_reading(
        device: Arc<dyn Device>,
        geometry: Geometry,
        state: TableState,
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
        Ok(Self::with_table(device, geometry, state, opened, unread))
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
