//! What the end of a mount asks of what it serves.
//!
//! Called by the session, in its own thread and never where requests are received.

use std::sync::Arc;

use crate::ops::Ops;
use crate::waiting::Waiting;

/// What is asked.
pub trait Ending: Send {
    /// Takes over what the kernel holds of open files, answers the requests under way, and refuses
    /// all later ones. The connection lives on.
    fn cut_off(&self) {}

    /// Waits for requests that are under way outside of the event loops.
    fn finish(&self) {}
}

/// For what holds nothing.
impl Ending for () {}

/// For a volume.
pub(crate) struct End {
    ops: Arc<Ops>,
    pools: [Waiting; 2],
}

impl End {
    /// Requests that are not answered by event loops run in `pools`.
    pub fn new(ops: Arc<Ops>, pools: [Waiting; 2]) -> Self {
        Self { ops, pools }
    }
}

impl Ending for End {
    fn cut_off(&self) {
        self.ops.take_all();
        self.finish();
        self.ops.door().shut();
    }

    fn finish(&self) {
        self.pools.iter().for_each(Waiting::finish);
    }
}
