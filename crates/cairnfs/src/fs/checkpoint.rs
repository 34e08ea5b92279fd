//! Checkpoints of the whole volume, as blocks, for a backup that is made while it is used.
//!
//! As a fork, a checkpoint has every call on any tree that had returned: unwritten data is written
//! back before, outside of all locks.

use crate::error::Result;
use crate::fs::FileSystem;
use crate::txn::Capture;
use crate::types::CheckpointId;

impl FileSystem {
    /// Captures the volume at this moment, with every call that has returned. Nothing that it has
    /// then is reused before [`Self::end_capture`], unless it has to give way.
    ///
    /// # Errors
    /// [`Error::Busy`](crate::Error::Busy) while there is another capture; a read-only volume; no
    /// space; the device's failure.
    pub(crate) fn capture(&self, since: Option<CheckpointId>) -> Result<Capture> {
        self.engine.lifecycle.check_open()?;
        self.core().check_changeable()?;
        self.write_back_roots()?;
        self.with_room(|| self.core().capture(since))
    }

    /// The checkpoints that a new one can be compared with.
    pub(crate) fn known_checkpoints(&self) -> Vec<CheckpointId> {
        self.core().known_checkpoints()
    }

    /// As [`Core::gained`](crate::txn::Core::gained).
    pub(crate) fn gained(
        &self,
        capture: &Capture,
        each: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        self.engine.lifecycle.check_open()?;
        self.core().gained(capture, each)
    }

    /// As [`Core::live`](crate::txn::Core::live).
    pub(crate) fn live(
        &self,
        capture: &Capture,
        each: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        self.engine.lifecycle.check_open()?;
        self.core().live(capture, each)
    }

    /// As [`Core::read_captured`](crate::txn::Core::read_captured).
    pub(crate) fn read_captured(
        &self,
        capture: &Capture,
        block: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        self.engine.lifecycle.check_open()?;
        self.core().read_captured(capture, block, buf)
    }

    /// As [`Core::shipped`](crate::txn::Core::shipped).
    pub(crate) fn shipped(&self, capture: &Capture) -> Result<()> {
        self.core().shipped(capture)
    }

    /// As [`Core::end_capture`](crate::txn::Core::end_capture).
    pub(crate) fn end_capture(&self, capture: &Capture) -> Result<()> {
        self.core().end_capture(capture)
    }
}
