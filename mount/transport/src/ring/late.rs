//! Requests of rings that other threads serve, because the thread of a ring must not wait.
//!
//! Such a request may hold locks of its inode while it waits. So further requests for the same inode
//! are served by other threads, too, until it has ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::region::Incoming;
use crate::abi::InHeader;
use crate::reply::Sink;
use crate::server::{self, Server};

/// The inodes of the requests that other threads serve; shared by all rings of a connection.
#[derive(Default)]
pub(crate) struct Late {
    /// Number of requests, so that a ring need not take the lock while there are none.
    count: AtomicUsize,
    inodes: Mutex<HashMap<u64, usize>>,
    /// Number of requests whose replies will come from other threads.
    owed: AtomicUsize,
}

impl Late {
    /// Whether a reply will come from another thread.
    pub(super) fn is_owed(&self) -> bool {
        self.owed.load(Ordering::Relaxed) > 0
    }

    /// The reply to a request will come from another thread, until [`Self::paid`].
    pub(super) fn owes(&self) {
        self.owed.fetch_add(1, Ordering::Relaxed);
    }

    /// It has come.
    pub(super) fn paid(&self) {
        self.owed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a request for this inode is served elsewhere.
    pub(super) fn has(&self, ino: u64) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.inodes.lock().contains_key(&ino)
    }

    fn add(&self, ino: u64) {
        *self.inodes.lock().entry(ino).or_default() += 1;
        self.count.fetch_add(1, Ordering::Release);
    }

    fn remove(&self, ino: u64) {
        let mut inodes = self.inodes.lock();
        if let Some(count) = inodes.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                inodes.remove(&ino);
            }
        }
        drop(inodes);
        self.count.fetch_sub(1, Ordering::Release);
    }
}

/// A request that another thread will serve: a copy, because the kernel may reuse the entry once the
/// reply is there.
pub(super) struct Request {
    header: InHeader,
    op: Vec<u8>,
    payload: Vec<u8>,
    late: Arc<Late>,
}

impl Request {
    pub(super) fn new(header: &InHeader, request: &Incoming<'_>, late: &Arc<Late>) -> Self {
        late.add(header.nodeid);
        Self {
            header: *header,
            op: request.op.to_vec(),
            payload: request.payload.to_vec(),
            late: Arc::clone(late),
        }
    }

    /// Serves it in this thread.
    pub(super) fn serve(self, server: &impl Server, sink: &Arc<dyn Sink>) {
        server::serve(server, &self.header, &self.op, &self.payload, sink);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.late.remove(self.header.nodeid);
    }
}
