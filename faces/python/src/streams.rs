//! Sending and receiving snapshots through Python's file objects.
//!
//! The engine writes to and reads from a file object as to any other, without the GIL between two
//! calls. What such a call raises ends the stream, and is raised again as it is.

use std::io::{self, BufReader, BufWriter, Read, Write};

use pyo3::exceptions::{PyBlockingIOError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::os_error;
use crate::path_calls::Volume;

/// Bytes of one call of a file object.
const STEP: usize = 256 << 10;

/// A file object of Python, and what a call of it has raised.
struct Stream<'a> {
    object: Py<PyAny>,
    raised: &'a mut Option<PyErr>,
}

impl Stream<'_> {
    /// Calls the object, with the GIL.
    fn call<T>(
        &mut self,
        what: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<T>,
    ) -> io::Result<T> {
        let result = Python::attach(|py| {
            py.check_signals()?;
            what(self.object.bind(py))
        });
        result.map_err(|error| {
            // The first one: later calls are those of buffers that are given up.
            self.raised.get_or_insert(error);
            io::Error::other("a call of the file object failed")
        })
    }
}

impl Write for Stream<'_> {
    /// Of a raw object perhaps a part.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.raised.is_some() {
            return Err(io::Error::other("the file object has failed"));
        }
        self.call(|object| {
            let data = PyBytes::new(object.py(), bytes);
            let written = object.call_method1(intern!(object.py(), "write"), (data,))?;
            if written.is_none() {
                let message = "write() of the file object would block";
                return Err(PyBlockingIOError::new_err(message));
            }
            let written: usize = written.extract()?;
            if written <= bytes.len() {
                Ok(written)
            } else {
                Err(PyValueError::new_err(
                    "write() returned more than it was given",
                ))
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.call(|object| {
            object.call_method0(intern!(object.py(), "flush"))?;
            Ok(())
        })
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.call(|object| {
            let read = object.call_method1(intern!(object.py(), "read"), (buffer.len(),))?;
            if read.is_none() {
                let message = "read() of the file object would block";
                return Err(PyBlockingIOError::new_err(message));
            }
            let read = read.cast::<PyBytes>().map_err(|_| {
                PyTypeError::new_err("read() of the file object should return bytes")
            })?;
            let read = read.as_bytes();
            let part = buffer.get_mut(..read.len());
            let part = part.ok_or_else(|| {
                PyValueError::new_err("read() returned more than it was asked for")
            })?;
            part.copy_from_slice(read);
            Ok(read.len())
        })
    }
}

/// Runs `what` without the GIL; raises what the file object raised, or the library's error.
fn through<T: Send>(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    what: impl FnOnce(Stream<'_>) -> cairnfs::Result<T> + Send,
) -> PyResult<T> {
    let object = object.clone().unbind();
    let mut raised = None;
    let result = py.detach(|| {
        what(Stream {
            object,
            raised: &mut raised,
        })
    });
    match raised {
        Some(error) => Err(error),
        None => result.map_err(|e| os_error(py, &e, None)),
    }
}

/// Writes a snapshot to a file object.
#[pyfunction]
#[pyo3(name = "_send")]
pub fn send(
    py: Python<'_>,
    volume: PyRef<'_, Volume>,
    file: &Bound<'_, PyAny>,
    snapshot: &str,
    base: Option<&str>,
) -> PyResult<()> {
    let volume = volume.shared.open()?;
    through(py, file, |stream| {
        volume.send(BufWriter::with_capacity(STEP, stream), snapshot, base)?;
        Ok(())
    })
}

/// Makes a snapshot of what a file object has; its name.
#[pyfunction]
#[pyo3(name = "_receive")]
pub fn receive(
    py: Python<'_>,
    volume: PyRef<'_, Volume>,
    file: &Bound<'_, PyAny>,
    name: Option<&str>,
) -> PyResult<String> {
    let volume = volume.shared.open()?;
    through(py, file, |stream| {
        volume.receive(BufReader::with_capacity(STEP, stream), name)
    })
}
