//! Bytes that a caller gives, readable without the GIL.
//!
//! `bytes` cannot change and are used in place. Any other buffer may be changed by another thread
//! while the engine computes its checksum, so it is copied first.

use std::ops::Deref;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView, PySlice, PyString};

/// Most bytes that one write copies; the rest is the next write's.
const COPY_LIMIT: usize = 16 << 20;

/// Bytes to be written.
pub enum Data {
    Shared(PyBackedBytes),
    Copied(Vec<u8>),
}

impl Data {
    /// The beginning of a buffer, which one write takes.
    pub fn beginning(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(object, COPY_LIMIT)
    }

    fn of(object: &Bound<'_, PyAny>, limit: usize) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Shared(bytes.clone().into()));
        }
        let view = byte_view(object)?;
        let len = view.len()?;
        let view = if len > limit {
            part(&view, 0, limit)?
        } else {
            view
        };
        let buffer = PyBuffer::<u8>::get(&view)?;
        Ok(Self::Copied(buffer.to_vec(object.py())?))
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::Copied(bytes) => bytes,
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Data {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Self::of(&object, usize::MAX)
    }
}

/// A buffer as a memoryview of bytes.
pub fn byte_view<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if object.is_instance_of::<PyString>() {
        let message = "a bytes-like object is required, not 'str'";
        return Err(PyTypeError::new_err(message));
    }
    PyMemoryView::from(object)?.call_method1(intern!(py, "cast"), (intern!(py, "B"),))
}

/// A part of a memoryview of bytes.
pub fn part<'py>(
    view: &Bound<'py, PyAny>,
    start: usize,
    end: usize,
) -> PyResult<Bound<'py, PyAny>> {
    view.get_item(PySlice::new(
        view.py(),
        start.cast_signed(),
        end.cast_signed(),
        1,
    ))
}
