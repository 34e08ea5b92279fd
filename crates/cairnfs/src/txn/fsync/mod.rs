//! Fsync of single inodes: the request, its dependency closure, and the batch that shares a record
//! and a flush.
//!
//! [`deps`] records dependencies as changes commit, [`closure`] follows them. Requests that arrive
//! while another batch is being written wait for the log's head together: one thread writes their
//! record and flushes, the others sleep until it is done. The record itself is written by
//! [`crate::journal::fsync_record`]. An fsync returns only when everything that its inodes depend
//! on is durable.

mod closure;
mod deps;

pub use deps::NameAt;

use crate::error::{Error, Result};
use crate::group_commit;
use crate::group_commit::Joined;
use crate::journal::cil::Context;
use crate::sync::atomic::Ordering;
use crate::txn::Core;

/// A request to make an inode durable.
#[derive(Debug, Clone, Copy)]
pub struct FsyncRequest {
    /// Its inode number.
    pub ino: u64,
    /// Changes of times alone need not become durable (fdatasync).
    pub data_only: bool,
}

/// The batches of a volume.
pub(super) type Batches = group_commit::Batches<FsyncRequest, Result<()>>;

impl Core {
    /// Makes inodes durable with all they depend on, and directories also with their entries.
    /// Changes of other inodes are left in their context.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn force_inodes(&self, inodes: &[FsyncRequest]) -> Result<()> {
        let counters = self.journal.counters();
        let requests = inodes.len() as u64;
        counters.fsyncs.fetch_add(requests, Ordering::Relaxed);
        for request in inodes {
            let inode = self.table.get_or_new(request.ino);
            self.ablated_fsync(&inode)?;
            let stamp = inode.log_deps().more().map_or(0, |m| m.unlisted.made);
            // No lock is held, so other threads go on and share the flush.
            self.journal.data_first(stamp)?;
        }
        let result = match self.batches.join(inodes) {
            Joined::Follower(result) => {
                result.unwrap_or(Err(Error::Invalid("an fsync was broken off")))
            }
            Joined::Leader(batch) => {
                let journal = &self.journal;
                let gather = |context: &Context| self.gather(&batch.close(), context);
                let written = journal.write_fsync_record(self, gather);
                batch.end(written.and_then(|written| journal.flush_written(&written)))
            }
        };
        Self::has_waited();
        result
    }
}
