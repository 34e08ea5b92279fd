//! Calls for many files at once: one release of the GIL and one error for a whole batch.

use cairnfs::{OpenOptions, Result, Volume};
use pyo3::exceptions::PyMemoryError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::data::Data;
use crate::error::os_error;
use crate::path::PathArg;

/// Creates or replaces files, in order, up to the first error.
pub fn write_many(
    py: Python<'_>,
    volume: &Volume,
    files: &Bound<'_, PyAny>,
    options: &OpenOptions,
) -> PyResult<()> {
    let pairs = if files.is_instance_of::<PyDict>() {
        files.call_method0(intern!(py, "items"))?
    } else {
        files.clone()
    };
    let files: Vec<(PathArg, Data)> = pairs
        .try_iter()?
        .map(|pair| pair?.extract())
        .collect::<PyResult<_>>()?;
    let written = py.detach(|| {
        files.iter().try_for_each(|(path, data)| {
            write_file(volume, path, data, options).map_err(|e| (path, e))
        })
    });
    written.map_err(|(path, e)| os_error(py, &e, Some(path)))
}

/// Creates or replaces one file.
pub fn write_file(
    volume: &Volume,
    path: &PathArg,
    data: &[u8],
    options: &OpenOptions,
) -> Result<()> {
    let file = volume.open_with(path.as_path(), options)?;
    file.write_all_at(data, 0)
}

/// Reads files, in order, up to the first error.
pub fn read_many<'py>(
    py: Python<'py>,
    volume: &Volume,
    paths: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let paths: Vec<PathArg> = paths
        .try_iter()?
        .map(|path| path?.extract())
        .collect::<PyResult<_>>()?;
    let read = py.detach(|| {
        let read = |path| match read_file(volume, path) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err((path, None)),
            Err(e) => Err((path, Some(e))),
        };
        paths
            .iter()
            .map(read)
            .collect::<std::result::Result<Vec<_>, _>>()
    });
    match read {
        Ok(files) => PyList::new(py, files.iter().map(|bytes| PyBytes::new(py, bytes))),
        Err((path, Some(e))) => Err(os_error(py, &e, Some(path))),
        Err((_, None)) => Err(PyMemoryError::new_err("the files are larger than memory")),
    }
}

/// The bytes of a file; `None` if there is no memory for them.
fn read_file(volume: &Volume, path: &PathArg) -> Result<Option<Vec<u8>>> {
    let file = volume.open_file(path.as_path())?;
    let size = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(size).is_err() {
        return Ok(None);
    }
    bytes.resize(size, 0);
    let got = file.read_at(&mut bytes, 0)?;
    bytes.truncate(got);
    Ok(Some(bytes))
}
