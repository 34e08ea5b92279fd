//! A log without a volume around it, and what recovery finds in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use zerocopy::little_endian::U64;

use crate::journal::position::LogPosition;
use crate::journal::recover::{read_context, scan};
use crate::journal::ring::Ring;
use crate::journal::{Journal, PushLimits};
use cairnfs_disk::device::{Device, Storage};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::LOG_START;
use cairnfs_disk::format::superblock::Superblock;

/// Values by (sequence, object).
pub(super) type Values = BTreeMap<(u64, u64), Vec<u8>>;

/// An empty log.
#[derive(Clone, Copy)]
pub(super) struct NewLog {
    /// Its size in blocks.
    pub blocks: u64,
    /// The LSN at which it begins; its place follows from it.
    pub start: u64,
    /// Records that a push formats before its turn.
    pub ahead: usize,
}

impl NewLog {
    /// One that begins at its first block.
    pub const fn of_blocks(blocks: u64) -> Self {
        Self {
            blocks,
            start: blocks,
            ahead: 1,
        }
    }

    /// Bytes of a device that has nothing behind the log.
    pub fn device_bytes(self) -> u64 {
        (LOG_START + self.blocks) * BLOCK_SIZE as u64
    }

    fn superblock(self) -> Superblock {
        Superblock {
            log_blocks: U64::new(self.blocks),
            uuid: [3; 16],
            tail_lsn: U64::new(self.start),
            ..zerocopy::FromZeros::new_zeroed()
        }
    }

    /// Its journal, whose first context is 1.
    pub fn journal(self, device: Arc<dyn Device>) -> Journal {
        let end = LogPosition {
            lsn: self.start,
            chain: 0,
        };
        self.mounted(device, 9, end)
    }

    /// A journal of a mount with this nonce, which continues at `end`; its first context is 1.
    pub fn mounted(self, device: Arc<dyn Device>, nonce: u64, end: LogPosition) -> Journal {
        let storage = Arc::new(Storage::new(device));
        let limits = PushLimits {
            ahead: self.ahead,
            ..PushLimits::LEAST
        };
        let with = (limits, Arc::default());
        Journal::new(storage, &self.superblock(), nonce, end, 1, with)
    }

    /// What recovery finds: all values, none of which is logged twice, and the end.
    pub fn found(self, device: &dyn Device) -> (Values, LogPosition) {
        let scan = scan(device, &self.superblock(), false, false).unwrap();
        let mut values = Values::new();
        for context in &scan.contexts {
            read_context(device, &self.superblock(), context, &mut |entry| {
                let key = (context.seq, entry.key.object);
                assert_eq!(values.insert(key, entry.value.to_vec()), None, "twice");
                Ok(())
            })
            .unwrap();
        }
        (values, scan.end)
    }

    /// Checks that a journal whose log ends at `end` has lost no byte of log space.
    pub fn check_space(self, journal: &Journal, end: LogPosition) {
        assert_eq!(end, journal.end());
        let fresh = Ring::new(self.blocks, self.start, end.lsn - self.start);
        assert_eq!(journal.ring().free(), fresh.free());
    }
}
