//! Writing the durable mark ([`cairnfs_disk::format::mark`]), which states how far the log is durable.
//!
//! The records of a sync say what was durable before them, and nothing says that the flush behind
//! them succeeded until something later is written. If nothing is, the mark says it: after the worker's
//! interval, and at once after a sync that a user asked for. It is written only if the log has become
//! durable further than the last one says, so an idle volume is not written to, and an fsync has
//! no part in it. It takes no space in the log, so a full log changes nothing.
//!
//! It is written to all its places at once: what overwrites the front of a volume with the beginning
//! of its log leaves it in the copies. A unit that becomes one with copies gets it before any
//! superblock names the unit, so what is found in a named place was written there as the mark.

use crate::txn::Core;
use cairnfs_disk::device::Device;
use cairnfs_disk::error::Result;
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::mark::RawMark;
use cairnfs_disk::format::superblock::mark_block_of;
use cairnfs_disk::sync::Mutex;

/// What the durable mark of an open volume says.
pub(super) struct DurableMark {
    /// Locked while the mark is written.
    stated: Mutex<u64>,
}

impl DurableMark {
    /// The mark that was found when the volume was opened.
    pub fn found(stated: u64) -> Self {
        Self {
            stated: Mutex::new(stated),
        }
    }
}

impl Core {
    /// Writes how far the log is durable to the mark, and makes that durable, unless the mark says
    /// so already. Does nothing while the host is full: then what it would say is held as well.
    pub fn state_durable(&self) -> Result<()> {
        let mut stated = self.mark.stated.lock();
        let mut durable = self.journal.durable_lsn();
        if self.read_only || durable <= *stated || self.storage.is_holding() {
            return Ok(());
        }
        let now = durable;
        fault::inject(InjectedFault::MarkAhead, || durable += 1);
        fault::unless(InjectedFault::MarkMissing, || {
            let places = self.superblocks.newest().mark_blocks();
            let front_only = is_injected(InjectedFault::MarkUncopied);
            let places = places.filter(|(_, place)| *place == 0 || !front_only);
            self.write_mark(durable, places)?;
            self.storage.flush_through(self.storage.stamp())
        })?;
        *stated = now;
        Ok(())
    }

    /// Gives units that are to have copies of the superblock what the mark says; does not flush.
    pub(super) fn mark_units(&self, units: [u64; 2]) -> Result<()> {
        let stated = self.mark.stated.lock();
        let units = units.into_iter().filter(|unit| *unit != 0);
        self.write_mark(
            *stated,
            units.map(mark_block_of).map(|block| (block, block)),
        )
    }

    fn write_mark(&self, durable: u64, places: impl Iterator<Item = (u64, u64)>) -> Result<()> {
        let uuid = self.superblocks.newest().uuid;
        for (block, place) in places {
            let mark = RawMark::new(uuid, place, durable);
            self.storage
                .write(block * BLOCK_SIZE as u64, &mark.encode())?;
        }
        Ok(())
    }
}
