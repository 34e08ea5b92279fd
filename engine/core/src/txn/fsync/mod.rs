//! Fsync of single inodes: the request, its dependency closure, and the batch that shares a record
//! and a flush.
//!
//! [`deps`] records dependencies as changes commit, [`closure`] follows them. Requests that arrive
//! while another batch is being written wait for the log's head together: one thread writes their
//! record and flushes, the others sleep until it is done. The record itself is written by
//! [`crate::journal::fsync_record`]. An fsync returns only when everything that its inodes depend
//! on is durable.
//!
//! [`Fsyncs`] owns the batches and the number of fsyncs in progress, beside which workers do not
//! raise their priority.
//!
//! # The life of a batch
//!
//! | From | To | Caused by, under | Durable then |
//! |---|---|---|---|
//! | | open | the first request, which leads; the lock of the batches | data that the record will have no checks of |
//! | open | open, with more requests | others join and sleep; the same lock | the same |
//! | open | closed | the leader, in [`gather`]: all earlier contexts are written, no thread commits | nothing more |
//! | closed | written | the leader, in its turn at the log's head: a record, or the whole context | nothing more |
//! | closed | written | the same, without a record: the log has everything already | nothing more |
//! | written | ended | the leader, when a flush that began later has returned | everything that its inodes depend on |
//! | open | ended, failed | no log space; the volume has failed | nothing more |
//! | any | given up | the leader panics, which fails the volume if the batch is closed: followers get an error | nothing more |
//!
//! 1. What a request has to make durable was committed before it joined, so it is in the open
//!    context, or in an earlier one, when the batch is closed.
//! 2. A record has the sequence of the context that is open, and comes before that context's.
//! 3. A request that joins after the closing is in another batch. Each gets the result of its own.
//! 4. What is gathered is not changed any more, and no batch gathers it again.

mod closure;
mod deps;

pub use deps::NameAt;

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use self::closure::gather;
use crate::journal::cil::Context;
use crate::txn::{Core, ItemStore};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::group_commit::{self, Joined};
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

/// A request to make an inode durable.
#[derive(Debug, Clone, Copy)]
pub struct FsyncRequest {
    /// Its inode number.
    pub ino: u64,
    /// Changes of times alone need not become durable (fdatasync).
    pub data_only: bool,
}

/// An inode of a root. The same number in two roots is two inodes.
pub(super) type Place = (u32, u64);

/// A request with the root of its inode.
#[derive(Clone)]
struct Request {
    items: Arc<ItemStore>,
    ino: u64,
    data_only: bool,
}

impl Request {
    fn place(&self) -> Place {
        (self.items.root(), self.ino)
    }
}

/// The batches of a volume, which serve all roots together.
type Batches = group_commit::Batches<Request, Result<()>>;

/// The fsyncs of a volume.
#[derive(Default)]
pub struct Fsyncs {
    /// Number of fsyncs in progress.
    in_progress: CachePadded<AtomicU64>,
    /// Fsyncs that are served together.
    batches: Batches,
}

/// An fsync in progress.
pub struct FsyncInProgress<'a>(&'a AtomicU64);

impl Drop for FsyncInProgress<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Fsyncs {
    /// Registers an fsync in progress until the returned value is dropped.
    pub fn begin(&self) -> FsyncInProgress<'_> {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        FsyncInProgress(&self.in_progress)
    }

    /// Number of fsyncs in progress.
    pub fn in_progress(&self) -> u64 {
        self.in_progress.load(Ordering::Relaxed)
    }

    /// As [`Core::force_inodes`].
    pub(super) fn force(
        &self,
        core: &Core,
        items: &Arc<ItemStore>,
        inodes: &[FsyncRequest],
    ) -> Result<()> {
        let journal = &*core.journal;
        let requests = inodes.len() as u64;
        journal
            .counters()
            .fsyncs
            .fetch_add(requests, Ordering::Relaxed);
        for request in inodes {
            write_data_first(core, items, request.ino)?;
        }
        let requests: SmallVec<[Request; 2]> = inodes
            .iter()
            .map(|request| Request {
                items: items.clone(),
                ino: request.ino,
                data_only: request.data_only,
            })
            .collect();
        self.force_requests(core, &requests)
    }

    fn force_requests(&self, core: &Core, requests: &[Request]) -> Result<()> {
        let journal = &*core.journal;
        match self.batches.join(requests) {
            Joined::Follower(result) => {
                result.unwrap_or(Err(Error::Invalid("an fsync was broken off")))
            }
            Joined::Leader(batch) => {
                let gather = |context: &Context| gather(core, &batch.close(), context);
                let written = journal.write_fsync_record(core, gather);
                batch.end(written.and_then(|written| journal.flush_written(&written)))
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
impl Fsyncs {
    /// Makes an inode of each of these roots durable, all in one batch.
    pub(super) fn force_together(&self, core: &Core, roots: &[Arc<ItemStore>], ino: u64) {
        let request = |items: &Arc<ItemStore>| Request {
            items: items.clone(),
            ino,
            data_only: false,
        };
        let requests: Vec<Request> = roots.iter().map(request).collect();
        for request in &requests {
            write_data_first(core, &request.items, ino).unwrap();
        }
        self.force_requests(core, &requests).unwrap();
    }
}

/// Makes data of an inode durable that the record will not have checksums of.
fn write_data_first(core: &Core, items: &ItemStore, ino: u64) -> Result<()> {
    let inode = items.table().get_or_new(ino);
    core.ablated_fsync(items, &inode)?;
    let stamp = inode.log_deps().more().map_or(0, |m| m.unlisted.made);
    // No lock is held, so other threads go on and share the flush.
    core.journal.data_first(stamp)
}
