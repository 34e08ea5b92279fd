//! Listings: `ScanDir` and `DirEntry`, as `os.scandir` has them.
//!
//! Entries are fetched in batches, without the GIL, on request with their metadata.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use cairnfs::{Error, FileKind, Metadata, ReadDir};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::error::os_error;
use crate::path::{PathArg, name_object};
use crate::process::Owned;
use crate::shared::Shared;
use crate::stat::Stat;

/// Entries fetched at once.
const BATCH: usize = 256;

/// The directory of a listing.
struct Dir {
    volume: Arc<Shared>,
    /// As given, with a slash at the end.
    prefix: Vec<u8>,
    /// Whether names are `bytes`.
    bytes: bool,
}

struct Found {
    name: Vec<u8>,
    ino: u64,
    kind: FileKind,
    metadata: Option<Metadata>,
}

/// Iterator over the entries of a directory, and a context manager, like that of `os.scandir`.
#[pyclass(frozen, module = "cairnfs")]
pub struct ScanDir {
    dir: Arc<Dir>,
    with_stat: bool,
    listing: Owned<Mutex<Listing>>,
}

struct Listing {
    /// `None` at the end, and when it is closed.
    left: Option<ReadDir>,
    found: VecDeque<Found>,
}

impl Listing {
    fn fill(&mut self, with_stat: bool) -> cairnfs::Result<()> {
        let Some(left) = &mut self.left else {
            return Ok(());
        };
        for entry in left.by_ref().take(BATCH) {
            let entry = entry?;
            let metadata = match with_stat.then(|| entry.metadata()) {
                Some(Ok(metadata)) => Some(metadata),
                // It was removed since it was listed; `stat` of the entry says so.
                Some(Err(e)) if matches!(e.cause(), Error::NotFound) => None,
                Some(Err(e)) => return Err(e),
                None => None,
            };
            self.found.push_back(Found {
                ino: entry.ino(),
                kind: entry.file_type()?,
                name: entry.file_name().into_vec(),
                metadata,
            });
        }
        if self.found.is_empty() {
            self.left = None;
        }
        Ok(())
    }
}

impl ScanDir {
    pub fn new(volume: Arc<Shared>, path: &PathArg, left: ReadDir, with_stat: bool) -> Self {
        let mut prefix = path.as_bytes().to_vec();
        if prefix.last() != Some(&b'/') {
            prefix.push(b'/');
        }
        Self {
            dir: Arc::new(Dir {
                volume,
                prefix,
                bytes: path.is_bytes(),
            }),
            with_stat,
            listing: Owned::new(Mutex::new(Listing {
                left: Some(left),
                found: VecDeque::new(),
            })),
        }
    }
}

#[pymethods]
impl ScanDir {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<DirEntry>> {
        let listing = self.listing.here()?;
        let next = |listing: &mut Listing| listing.found.pop_front();
        let mut found = next(&mut listing.lock().unwrap_or_else(PoisonError::into_inner));
        if found.is_none() {
            self.dir.volume.open()?;
            let filled = py.detach(|| {
                let mut listing = listing.lock().unwrap_or_else(PoisonError::into_inner);
                listing.fill(self.with_stat)?;
                Ok(next(&mut listing))
            });
            found = filled.map_err(|e| os_error(py, &e, None))?;
        }
        Ok(found.map(|found| DirEntry {
            dir: Arc::clone(&self.dir),
            found,
        }))
    }

    /// Ends the listing.
    fn close(&self, py: Python<'_>) {
        let Some(listing) = self.listing.get() else {
            return;
        };
        py.detach(|| {
            let mut listing = listing.lock().unwrap_or_else(PoisonError::into_inner);
            listing.left = None;
            listing.found.clear();
        });
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }
}

/// An entry of a directory, like `os.DirEntry`.
#[pyclass(frozen, module = "cairnfs")]
pub struct DirEntry {
    dir: Arc<Dir>,
    found: Found,
}

impl DirEntry {
    fn full_path(&self) -> Vec<u8> {
        [self.dir.prefix.as_slice(), &self.found.name].concat()
    }

    fn metadata(&self, py: Python<'_>, follow: bool) -> PyResult<Metadata> {
        let follow = follow && self.found.kind.is_symlink();
        if let (false, Some(metadata)) = (follow, self.found.metadata) {
            return Ok(metadata);
        }
        let volume = self.dir.volume.open()?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(self.full_path()));
        let found = py.detach(|| {
            if follow {
                volume.metadata(&path)
            } else {
                volume.symlink_metadata(&path)
            }
        });
        found.map_err(|e| match self.path(py).and_then(|path| path.extract()) {
            Ok(path) => os_error(py, &e, Some(&path)),
            Err(failed) => failed,
        })
    }

    fn is_kind(
        &self,
        py: Python<'_>,
        follow: bool,
        is: impl Fn(FileKind) -> bool,
    ) -> PyResult<bool> {
        if !(follow && self.found.kind.is_symlink()) {
            return Ok(is(self.found.kind));
        }
        match self.metadata(py, true) {
            Ok(metadata) => Ok(is(metadata.file_type())),
            Err(e) if e.is_instance_of::<pyo3::exceptions::PyFileNotFoundError>(py) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

#[pymethods]
impl DirEntry {
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        name_object(py, &self.found.name, self.dir.bytes)
    }

    /// The path given to `scandir`, joined with the name.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        name_object(py, &self.full_path(), self.dir.bytes)
    }

    /// `DirEntry[str]`, for annotations.
    #[classmethod]
    fn __class_getitem__(cls: &Bound<'_, PyType>, _item: &Bound<'_, PyAny>) -> Py<PyType> {
        cls.clone().unbind()
    }

    fn inode(&self) -> u64 {
        self.found.ino
    }

    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_dir(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.is_kind(py, follow_symlinks, FileKind::is_dir)
    }

    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_file(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.is_kind(py, follow_symlinks, FileKind::is_file)
    }

    fn is_symlink(&self) -> bool {
        self.found.kind.is_symlink()
    }

    #[pyo3(signature = (*, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<Stat> {
        let metadata = self.metadata(py, follow_symlinks)?;
        Ok(Stat::new(metadata, self.dir.volume.dev))
    }

    fn __fspath__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.path(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<DirEntry {}>", self.name(py)?.repr()?))
    }
}
