//! Handles belong to the process that opened them.
//!
//! After a fork the child has a copy of the engine's memory without its threads, and with locks in
//! any state. In the child a handle is neither used nor dropped, so the child cannot write to the
//! volume, whatever it calls and however it ends.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Forks between the process that loaded the module and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

const EBADF: i32 = 9;

/// Counts a fork, in the child, before any other Python code runs there.
#[pyfunction]
fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Has Python call [`forked`] in each child.
pub fn watch_forks(py: Python<'_>) -> PyResult<()> {
    let hooks = PyDict::new(py);
    hooks.set_item("after_in_child", wrap_pyfunction!(forked, py)?)?;
    let os = py.import("os")?;
    os.call_method("register_at_fork", (), Some(&hooks))?;
    Ok(())
}

/// A handle of the engine, with the process that opened it.
pub struct Owned<T: Send> {
    /// Always there until the drop.
    value: Option<T>,
    forks: u64,
}

impl<T: Send> Owned<T> {
    pub fn new(value: T) -> Self {
        Self {
            value: Some(value),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }

    /// The handle; `None` in a child process.
    pub fn get(&self) -> Option<&T> {
        let same = self.forks == FORKS.load(Ordering::Relaxed);
        self.value.as_ref().filter(|_| same)
    }

    /// The handle, or the error of a call in a child process.
    pub fn here(&self) -> PyResult<&T> {
        self.get().ok_or_else(|| {
            PyOSError::new_err((
                EBADF,
                "the volume was opened by the parent of this process, and is used only there; \
                 open it here after the parent has closed it",
            ))
        })
    }
}

impl<T: Send> Drop for Owned<T> {
    fn drop(&mut self) {
        let same = self.get().is_some();
        let value = self.value.take();
        if !same {
            mem::forget(value);
            return;
        }
        // The last handle closes the volume, which takes a while.
        let mut value = Some(value);
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}
