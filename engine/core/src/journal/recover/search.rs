//! Searching the ring after the end of the chain for records that the chain should have reached.
//!
//! Such a record does not belong to the log any more, but shows which part of it was durable, or
//! that a newer superblock existed.

use super::reader::Reader;
use cairnfs_disk::error::Result;

/// Blocks per read.
const AT_ONCE: u64 = 64;

/// What records after the end of the chain show.
#[derive(Default)]
pub(super) struct Beyond {
    /// The largest LSN that one of them names as durable.
    pub durable: u64,
    /// The largest superblock generation that one of them names.
    pub generation: u64,
    /// How many headers of records are where their LSN says.
    pub records: u64,
}

/// Searches after the end of the log for records that show that more of it was durable. With
/// `came_round`, records of other rounds of the ring are also checked for newer generations.
pub(super) fn search_beyond(
    reader: &mut Reader<'_>,
    end: u64,
    stop: u64,
    came_round: bool,
) -> Result<Beyond> {
    let mut beyond = Beyond::default();
    let mut lsn = end;
    while lsn < stop {
        let blocks = AT_ONCE.min(stop - lsn);
        for (found, header) in reader.headers(lsn, blocks)? {
            let here = header.lsn.get() == found;
            if here {
                beyond.durable = beyond.durable.max(header.durable_lsn.get().min(found));
                beyond.records += 1;
            }
            // After a superblock was lost, the log may have wrapped around.
            let place = reader.is_same_block(header.lsn.get(), found);
            if here || came_round && place {
                beyond.generation = beyond.generation.max(header.generation.get());
            }
        }
        lsn += blocks;
    }
    Ok(beyond)
}
