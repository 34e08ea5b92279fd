//! Discarding the free space of a volume on request.

use crate::fs::FileSystem;
use cairnfs_disk::device::Device;
use cairnfs_disk::error::{Error, Result};

impl FileSystem {
    /// Discards all free space, like fstrim(8), whether or not the volume was opened with
    /// `discard`. Returns the bytes discarded, some of which may have been discarded before. Merges
    /// first, which makes recently freed space usable.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not discard; a read-only volume; a device failure.
    pub fn trim(&self) -> Result<u64> {
        self.engine.lifecycle.check_open()?;
        self.core().merge()?;
        let storage = self.core().storage();
        let guard = storage.guard("a call panicked");
        let trimmed = self.core().space().trim();
        guard.done();
        if storage.discards() {
            trimmed
        } else {
            Err(Error::Unsupported("the device does not discard"))
        }
    }
}
