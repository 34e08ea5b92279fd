//! What a volume shares with its files, listings and branches.
//!
//! A call takes a clone of the library's volume, so that a branch can be closed, and by that be free
//! to be dropped, while other threads use it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::process::Owned;

/// What a volume and its files share.
pub struct Shared {
    /// `None` when it is closed, if it is a branch.
    volume: Owned<RwLock<Option<cairnfs::Volume>>>,
    /// Set when the volume is closed; one for all its branches.
    pub closed: Arc<AtomicBool>,
    /// Whether the volume goes on when this is closed.
    branch: bool,
    pub umask: u32,
    /// `st_dev` of its files.
    pub dev: u64,
}

impl Shared {
    /// A volume, which other branches do not know yet.
    pub fn volume(volume: cairnfs::Volume, umask: u32) -> Self {
        Self::new(volume, Arc::default(), umask, false)
    }

    /// A branch of this volume.
    pub fn branch(&self, branch: cairnfs::Volume) -> Self {
        Self::new(branch, Arc::clone(&self.closed), self.umask, true)
    }

    fn new(volume: cairnfs::Volume, closed: Arc<AtomicBool>, umask: u32, branch: bool) -> Self {
        // An inode number means something in one branch of one volume.
        let name = volume.name();
        let roots = volume.roots();
        let root = roots.iter().find(|root| root.name == name);
        let number = root.map_or(0, |root| u64::from(root.id));
        let (id, _) = u128::from_be_bytes(volume.info().uuid).overflowing_shr(65);
        Self {
            volume: Owned::new(RwLock::new(Some(volume))),
            closed,
            branch,
            umask,
            dev: (id as u64).wrapping_add(number) & (u64::MAX >> 1),
        }
    }

    /// The library's volume.
    ///
    /// # Errors
    /// `ValueError` if it is closed, `OSError` in a child process.
    pub fn open(&self) -> PyResult<cairnfs::Volume> {
        let closed = || PyValueError::new_err("I/O operation on closed volume");
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let volume = self.volume.here()?.read();
        let volume = volume.unwrap_or_else(PoisonError::into_inner);
        volume.clone().ok_or_else(closed)
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        let gone = |volume: &RwLock<Option<_>>| {
            let volume = volume.read().unwrap_or_else(PoisonError::into_inner);
            volume.is_none()
        };
        self.closed.load(Ordering::Acquire) || self.volume.get().is_some_and(gone)
    }

    /// Closes the volume for all its branches, or a branch for itself. In a child process it only
    /// says that it is closed.
    pub fn close(&self, py: Python<'_>) -> cairnfs::Result<()> {
        let Some(volume) = self.volume.get() else {
            self.closed.store(true, Ordering::Release);
            return Ok(());
        };
        if !self.branch && self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let taken = {
            let mut volume = volume.write().unwrap_or_else(PoisonError::into_inner);
            volume.take()
        };
        py.detach(|| match taken {
            Some(volume) if !self.branch => volume.close(),
            branch => {
                drop(branch);
                Ok(())
            }
        })
    }

    pub fn mode(&self, mode: u32) -> u32 {
        mode & !self.umask & 0o7777
    }
}
