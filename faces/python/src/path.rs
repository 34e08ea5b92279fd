//! Paths and names: `str`, `bytes` or `os.PathLike` to bytes and back.
//!
//! A `str` is UTF-8 in a volume; bytes that are not UTF-8 become lone surrogates, as in `os`. What
//! a call returns has the type of the path that it got.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyString};

/// A path as a caller gave it, readable without the GIL.
pub enum PathArg {
    Text(PyBackedStr),
    /// A `str` with lone surrogates, encoded.
    Escaped(PyBackedBytes),
    Bytes(PyBackedBytes),
}

impl PathArg {
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.as_bytes()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Escaped(bytes) | Self::Bytes(bytes) => bytes,
        }
    }

    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::Text(text) => Self::Text(text.clone_ref(py)),
            Self::Escaped(bytes) => Self::Escaped(bytes.clone_ref(py)),
            Self::Bytes(bytes) => Self::Bytes(bytes.clone_ref(py)),
        }
    }

    /// Whether names that belong to this path are `bytes`.
    pub fn is_bytes(&self) -> bool {
        matches!(self, Self::Bytes(_))
    }

    /// The path as `str` or `bytes`.
    pub fn to_object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Text(text) => Ok(PyString::new(py, text).into_any()),
            Self::Escaped(bytes) => name_object(py, bytes, false),
            Self::Bytes(bytes) => name_object(py, bytes, true),
        }
    }
}

/// A name or path of the volume as `bytes`, or as `str`.
pub fn name_object<'py>(py: Python<'py>, name: &[u8], bytes: bool) -> PyResult<Bound<'py, PyAny>> {
    if bytes {
        return Ok(PyBytes::new(py, name).into_any());
    }
    match std::str::from_utf8(name) {
        Ok(name) => Ok(PyString::new(py, name).into_any()),
        Err(_) => PyBytes::new(py, name).call_method1(
            intern!(py, "decode"),
            (intern!(py, "utf-8"), intern!(py, "surrogateescape")),
        ),
    }
}

impl<'py> FromPyObject<'_, 'py> for PathArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let path = match of_str_or_bytes(&object)? {
            Some(path) => path,
            None => {
                let wrong = || {
                    let kind = object.get_type();
                    let message = format!("path should be str, bytes or os.PathLike, not {kind}");
                    PyTypeError::new_err(message)
                };
                let fspath = intern!(object.py(), "__fspath__");
                let inner = object.get_type().getattr(fspath).map_err(|_| wrong())?;
                of_str_or_bytes(&inner.call1((object,))?)?.ok_or_else(wrong)?
            }
        };
        if path.as_bytes().contains(&0) {
            Err(PyValueError::new_err("embedded null byte"))
        } else {
            Ok(path)
        }
    }
}

fn of_str_or_bytes(object: &Bound<'_, PyAny>) -> PyResult<Option<PathArg>> {
    if let Ok(text) = object.cast::<PyString>() {
        if let Ok(text) = PyBackedStr::try_from(text.clone()) {
            return Ok(Some(PathArg::Text(text)));
        }
        let py = object.py();
        let (utf8, escape) = (intern!(py, "utf-8"), intern!(py, "surrogateescape"));
        let encoded = text.call_method1(intern!(py, "encode"), (utf8, escape))?;
        return Ok(Some(PathArg::Escaped(encoded.extract()?)));
    }
    match object.cast::<PyBytes>() {
        Ok(bytes) => Ok(Some(PathArg::Bytes(bytes.clone().into()))),
        Err(_) => Ok(None),
    }
}
