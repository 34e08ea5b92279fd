//! Disk faults seen through the public calls: failing calls, silent corruption, and lack of space.
//!
//! **Failing calls** ([`errors`], [`reads`], [`opening`]) are tried at every call of a workload.
//! After a failed write or flush nothing changes and nothing is acknowledged. A failed read fails
//! only its own call, unless that call was a merge, which cannot be undone and stops the volume.
//!
//! A failed read in writeback affects one file only ([`background`]).
//!
//! A failed read between two steps of a truncation leaves no stale data ([`truncation`]).
//!
//! **Silent faults** ([`silent`]): a call reports success but did something else. How they are
//! detected:
//!
//! | Affected by the fault | Detected by |
//! |---|---|
//! | a data block | its CRC in the extent, when it is read and is not in the cache |
//! | an index node, a large value | address, birth and CRC in the pointer, when it is read |
//! | a bitmap, the group table | the CRC in the table or the superblock, when it is loaded |
//! | a log record after which a flush and another record followed | the durable LSN in that record,
//! in the durable mark, or in a superblock, at the next mount |
//! | a superblock | its checksum, its copies; a lost one by nodes of the older tree that were reused, otherwise
//! the older one leads, with its log, to the same files |
//! | a flush | like the writes that it did not make durable, once they are lost |
//!
//! The loss of the log's last record, or of data that was written with it before one flush, *cannot
//! be detected*: everything since the last flush that a
//! later write records may be missing after a power failure. If the disk acknowledged that flush
//! without performing it, an fsync is lost and nothing on the disk shows it. The tests allow
//! exactly this: the volume is then in a state that a correct disk might have left before the
//! fault.
//!
//! **A full volume** ([`full`]): only requests that need space are refused, and none is left half
//! done.
//!
//! **A full host** ([`host`]): the host has no space left, from every write on.
//!
//! `CAIRNFS_FAULT_SEEDS=N` tries N random workloads instead of a few.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod background;
mod emptied;
mod errors;
mod full;
mod gaps;
mod host;
mod opening;
mod reads;
mod silent;
mod slow;
mod support;
mod truncation;
