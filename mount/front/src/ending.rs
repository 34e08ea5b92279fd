//! The interface by which a session ends the file system that it serves.
//!
//! Called by the sessions in threads of their own, never in an event loop.

use std::io;
use std::sync::Arc;

use crate::convert::Refusal;
use crate::ops::Ops;
use crate::programs::Programs;
use crate::waiting::Waiting;

/// The steps at the end of a mount.
pub trait Ending: Send + Sync {
    /// Makes the kernel write back the dirty pages of open files, answers the requests in flight,
    /// and refuses all later ones. The connection itself stays open.
    fn cut_off(&self) {}

    /// Waits for requests that run outside the event loops.
    fn finish(&self) {}

    /// Releases what the kernel has referred to, and all trees but the one that is served. Nothing is
    /// answered afterwards.
    fn release(&self) {}

    /// Makes everything durable that the file system was sent.
    ///
    /// # Errors
    /// The reason why not everything is.
    fn make_durable(&self) -> Result<(), String> {
        Ok(())
    }
}

/// For a file system without state to finish.
impl Ending for () {}

/// Ends the mount of a volume.
pub(crate) struct End {
    ops: Arc<Ops>,
    programs: Arc<Programs>,
    pools: [Waiting; 3],
}

impl End {
    /// Creates the handle; `pools` run the requests that event loops do not answer.
    pub fn new(ops: Arc<Ops>, programs: Arc<Programs>, pools: [Waiting; 3]) -> Self {
        Self {
            ops,
            programs,
            pools,
        }
    }
}

impl Ending for End {
    fn cut_off(&self) {
        let _no_leases = self.ops.deferrals().suspend();
        self.ops.take_all();
        self.finish();
        self.ops.admission().shut();
    }

    fn finish(&self) {
        self.pools.iter().for_each(Waiting::finish);
    }

    fn release(&self) {
        self.programs.end();
        self.ops.end();
    }

    fn make_durable(&self) -> Result<(), String> {
        let failed = |refusal: Refusal| io::Error::from_raw_os_error(refusal.0).to_string();
        let synced = self.ops.sync();
        synced.map_err(|refusal| self.ops.stopped().unwrap_or_else(|| failed(refusal)))
    }
}
