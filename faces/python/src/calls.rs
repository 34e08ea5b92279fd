//! How the methods of `Volume` call the library: without the GIL, with the paths in the errors.

use std::path::Path;
use std::sync::Arc;

use cairnfs::{Error, Metadata, OpenOptions, RenameMode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{os_error, os_error_of_two};
use crate::path::PathArg;
use crate::path_calls::{Sequence, Volume};
use crate::stat::Stat;

impl Volume {
    /// Calls `what` without the GIL; an error gets the path.
    pub(super) fn on<T: Send>(
        &self,
        py: Python<'_>,
        path: &PathArg,
        what: impl FnOnce(&cairnfs::Volume, &Path) -> cairnfs::Result<T> + Send,
    ) -> PyResult<T> {
        let volume = self.shared.open()?;
        py.detach(|| what(&volume, path.as_path()))
            .map_err(|e| os_error(py, &e, Some(path)))
    }

    /// Calls `what` with two paths, as [`on`](Self::on).
    pub(super) fn on_two<T: Send>(
        &self,
        py: Python<'_>,
        (from, to): (&PathArg, &PathArg),
        what: impl FnOnce(&cairnfs::Volume, &Path, &Path) -> cairnfs::Result<T> + Send,
    ) -> PyResult<T> {
        let volume = self.shared.open()?;
        py.detach(|| what(&volume, from.as_path(), to.as_path()))
            .map_err(|e| os_error_of_two(py, &e, Some(from), Some(to)))
    }

    /// Calls `what` for the whole volume, without the GIL.
    pub(super) fn whole<T: Send>(
        &self,
        py: Python<'_>,
        what: impl FnOnce(&cairnfs::Volume) -> cairnfs::Result<T> + Send,
    ) -> PyResult<T> {
        let volume = self.shared.open()?;
        py.detach(|| what(&volume))
            .map_err(|e| os_error(py, &e, None))
    }

    /// Whether the path leads to a file for which `is` holds. A path that cannot exist does not.
    pub(super) fn is_there(
        &self,
        path: &Bound<'_, PyAny>,
        follow: bool,
        is: impl Fn(&Metadata) -> bool,
    ) -> PyResult<bool> {
        let py = path.py();
        let volume = self.shared.open()?;
        let path = match path.extract::<PathArg>() {
            Err(e) if e.is_instance_of::<PyValueError>(py) => return Ok(false),
            path => path?,
        };
        let found = py.detach(|| {
            if follow {
                volume.metadata(path.as_path())
            } else {
                volume.symlink_metadata(path.as_path())
            }
        });
        match found {
            Ok(metadata) => Ok(is(&metadata)),
            Err(e) => match e.cause() {
                Error::NotFound | Error::NotDirectory | Error::NameTooLong | Error::SymlinkLoop => {
                    Ok(false)
                }
                _ => Err(os_error(py, &e, Some(&path))),
            },
        }
    }

    pub(super) fn stat_of(&self, py: Python<'_>, path: &PathArg, follow: bool) -> PyResult<Stat> {
        let metadata = self.on(py, path, |volume, path| {
            if follow {
                volume.metadata(path)
            } else {
                volume.symlink_metadata(path)
            }
        })?;
        Ok(Stat::new(metadata, self.shared.dev))
    }

    /// Options of a call that replaces a whole file.
    pub(super) fn replacing(&self, perm: u32) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        options.mode(self.shared.mode(perm));
        options
    }

    pub(super) fn unlinked(&self, py: Python<'_>, path: &PathArg) -> PyResult<()> {
        self.on(py, path, |volume, path| volume.remove_file(path))
    }

    pub(super) fn renamed(
        &self,
        py: Python<'_>,
        src: &PathArg,
        dst: &PathArg,
        mode: RenameMode,
    ) -> PyResult<()> {
        self.on_two(py, (src, dst), |volume, src, dst| {
            volume.rename_with(src, dst, mode)
        })
    }
}

impl Volume {
    /// A branch of this volume, which is made before if `make`.
    pub(super) fn branched(&self, py: Python<'_>, name: &str, make: bool) -> PyResult<Self> {
        let branch = self.whole(py, |volume| {
            if make {
                volume.branch(name)
            } else {
                volume.open_branch(name)
            }
        })?;
        Ok(Self {
            shared: Arc::new(self.shared.branch(branch)),
            name: self.name.as_ref().map(|name| name.clone_ref(py)),
        })
    }

    pub(super) fn root_names(&self, writable: bool) -> PyResult<Vec<String>> {
        let roots = self.shared.open()?.roots();
        let kind = roots.into_iter().filter(|root| root.writable == writable);
        Ok(kind.filter_map(|root| root.name).collect())
    }

    pub(super) fn own(&self, sequence: &Sequence) -> PyResult<cairnfs::Sequence> {
        if Arc::ptr_eq(&sequence.volume, &self.shared.closed) {
            Ok(sequence.sequence)
        } else {
            Err(PyValueError::new_err("a sequence of another volume"))
        }
    }
}
