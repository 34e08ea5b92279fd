//! What a volume shares with its files, listings and branches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::process::Owned;

/// What a volume and its files share.
pub struct Shared {
    pub volume: Owned<cairnfs::Volume>,
    /// Set when the volume is closed; one for all its branches.
    pub closed: Arc<AtomicBool>,
    pub umask: u32,
    /// `st_dev` of its files.
    pub dev: u64,
}

impl Shared {
    pub fn new(volume: cairnfs::Volume, closed: Arc<AtomicBool>, umask: u32) -> Self {
        // An inode number means something in one branch of one volume.
        let name = volume.name();
        let roots = volume.roots();
        let root = roots.iter().find(|root| root.name == name);
        let branch = root.map_or(0, |root| u64::from(root.id));
        let (id, _) = u128::from_be_bytes(volume.info().uuid).overflowing_shr(65);
        Self {
            volume: Owned::new(volume),
            closed,
            umask,
            dev: (id as u64).wrapping_add(branch) & (u64::MAX >> 1),
        }
    }

    /// The library's volume.
    ///
    /// # Errors
    /// `ValueError` if it is closed, `OSError` in a child process.
    pub fn open(&self) -> PyResult<&cairnfs::Volume> {
        if self.closed.load(Ordering::Acquire) {
            return Err(PyValueError::new_err("I/O operation on closed volume"));
        }
        self.volume.here()
    }

    pub fn mode(&self, mode: u32) -> u32 {
        mode & !self.umask & 0o7777
    }
}
