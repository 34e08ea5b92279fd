//! Verifies the bitmaps that were not read yet, before a change is logged that may need any of them.
//!
//! A bitmap is read when its group is first used, which may be after the log has what depends on it.
//! So an opening for changes verifies those of the first [`AT_OPENING`] groups, and all of them if the
//! log has changes of roots; the first change of roots verifies the rest. What was verified does not
//! stay in memory. A piece is read without the locks of its groups; a bitmap that seems damaged is read
//! again by the usual path, which decides and returns the error.

use std::ops::Range;

use super::{Space, group};
use cairnfs_disk::device::AlignedBuf;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::BLOCK_SIZE;

/// Groups whose bitmaps an opening verifies: 512 GiB, for which it reads at most 32 MiB.
const AT_OPENING: usize = 4096;

/// Bitmaps that are read at once (1 MiB).
const TOGETHER: usize = 256;

impl Space {
    /// Verifies the bitmaps of the first groups.
    pub fn verify_first(&self) -> Result<()> {
        self.verify_until(AT_OPENING)
    }

    /// Verifies all bitmaps that were not verified since the volume was opened.
    pub fn verify_all(&self) -> Result<()> {
        self.verify_until(usize::MAX)
    }

    /// Ends early on a volume that is only read, once it is known that a bitmap cannot be read.
    fn verify_until(&self, end: usize) -> Result<()> {
        let end = end.min(self.opened.len());
        let mut next = self.verified.lock();
        while *next < end && self.unread().is_none() {
            let until = next.saturating_add(TOGETHER).min(end);
            for copy in [0, 1] {
                self.verify_piece(*next..until, copy)?;
            }
            *next = until;
        }
        Ok(())
    }

    /// Verifies the bitmaps of these groups whose active copy is `copy`.
    fn verify_piece(&self, groups: Range<usize>, copy: u8) -> Result<()> {
        let entries = groups.filter_map(|index| Some((index, *self.opened.get(index)?)));
        let mut waiting = Vec::new();
        for (index, entry) in entries.filter(|(_, entry)| entry.copy == copy) {
            if self.group(index)?.maps.lock().is_none() {
                waiting.push((index, entry));
            }
        }
        let (Some((first, _)), Some((last, _))) = (waiting.first(), waiting.last()) else {
            return Ok(());
        };
        let mut bytes = AlignedBuf::zeroed((last - first + 1) * BLOCK_SIZE);
        let at = self.geometry.bitmap_block(*first as u64, copy);
        if let Err(error) = self.device.read(at * BLOCK_SIZE as u64, &mut bytes) {
            return self.unread.pass(error);
        }
        for (index, entry) in &waiting {
            let from = (index - first) * BLOCK_SIZE;
            let block = bytes.get(from..from + BLOCK_SIZE).unwrap_or_default();
            if group::check_bitmap(block, &self.geometry, *index as u64, *entry).is_err() {
                drop(self.lock(*index)?);
            }
        }
        Ok(())
    }
}
