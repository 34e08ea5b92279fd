//! How work on a backup tells its progress, and learns that it shall end.

use crate::error::Result;

/// Told of bytes, and asked now and then whether to go on. Called by several threads.
pub trait Watch: Sync {
    /// So many more bytes will be done.
    fn expect(&self, _bytes: u64) {}

    /// So many bytes are done.
    fn done(&self, _bytes: u64) {}

    /// Fails if the work shall end.
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted).
    fn go_on(&self) -> Result<()> {
        Ok(())
    }
}

/// Nobody is told.
pub struct Unwatched;

impl Watch for Unwatched {}
