//! Faults of the disk, seen from above: failing calls, silent ones, and a disk that is full.
//!
//! **Calls that fail** ([`errors`], [`reads`], [`opening`]) are tried at every call of a workload.
//! After a failed write or flush nothing changes any more and nothing is acknowledged; a failed read
//! fails its call alone, unless that was a merge, which cannot be taken back and stops the volume.
//!
//! In writeback that concerns one file ([`background`]).
//!
//! **Calls that lie** ([`silent`]) report success and did something else. What finds them:
//!
//! | The fault hits | Found by |
//! |---|---|
//! | a data block | its CRC in the extent, when it is read and is not in the cache |
//! | an index node, a large value | address, birth and CRC in the pointer, when it is read |
//! | a bitmap, the group table | the CRC in the table or the superblock, when it is loaded |
//! | a log record behind which another was written after a flush | the durable LSN in that record, or in a superblock, at the next opening |
//! | a superblock | its checksum; a lost one by nodes of the older tree that were reused, else the older one leads, with its log, to the same files |
//! | a flush | as the writes that it did not make durable, once they are lost |
//!
//! *Nothing can find* the loss of the log's last record: what was written since the last flush that a
//! later write knows of may be missing after every power cut. If the disk acknowledged that flush
//! and lied, an fsync is lost, and no byte that is left says so. The tests allow exactly this: the
//! volume is then as an honest disk might have left it before the lie.
//!
//! **A full volume** ([`full`]): who needs space is refused, nobody else, and nothing is half done.
//!
//! **A full host** ([`host`]): the file system below the volume has no space, at every write.
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
