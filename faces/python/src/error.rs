//! Errors of the library as exceptions: `OSError` with errno, message and file name, so that Python
//! makes it a `FileNotFoundError` and the like.

use cairnfs::Error;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::path::PathArg;

/// The exception of an error, with the path it is about.
pub fn os_error(py: Python<'_>, error: &Error, path: Option<&PathArg>) -> PyErr {
    os_error_of_two(py, error, path, None)
}

/// The exception of an error of a call with two paths.
pub fn os_error_of_two(
    py: Python<'_>,
    error: &Error,
    path: Option<&PathArg>,
    second: Option<&PathArg>,
) -> PyErr {
    let make = || {
        let message = error.cause().to_string();
        let kind = py.get_type::<PyOSError>();
        let name = |path: Option<&PathArg>| path.map(|p| p.to_object(py)).transpose();
        let (errno, no_winerror) = (error.errno(), None::<i32>);
        // The type chooses the subclass, which `PyErr::new` would not.
        match (name(path)?, name(second)?) {
            (None, _) => kind.call1((errno, message)),
            (Some(path), None) => kind.call1((errno, message, path)),
            (Some(path), second) => kind.call1((errno, message, path, no_winerror, second)),
        }
    };
    make().map_or_else(|failed| failed, PyErr::from_value)
}
