//! `Volume`: the calls of `os` on paths, each one call of the library without the GIL.
//!
//! `cairnfs.Volume` adds what consists of several calls. Modes get the volume's umask, because a
//! process cannot read its own without changing it for all threads.

use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cairnfs::{Error, FileKind, FileTimes, Metadata, OpenOptions, RenameMode, XattrMode};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::batch;
use crate::data::Data;
use crate::entry::ScanDir;
use crate::error::os_error;
use crate::file::{File, read_to_bytes};
use crate::path::{PathArg, name_object};
use crate::shared::Shared;
use crate::stat::Stat;
use crate::times::time_of;

/// Files up to this size are read with one release of the GIL.
const SMALL: u64 = 64 << 10;

/// A point in the order of the changes of a volume.
#[pyclass(frozen, module = "cairnfs")]
pub struct Sequence {
    /// The flag of the volume, which no other volume has.
    pub(super) volume: Arc<AtomicBool>,
    pub(super) sequence: cairnfs::Sequence,
}

/// An open volume; see `cairnfs.Volume`.
#[pyclass(frozen, subclass, module = "cairnfs._native")]
pub struct Volume {
    pub(super) shared: Arc<Shared>,
    pub(super) name: Option<PathArg>,
}

/// Refuses a single path where many are wanted.
fn many(paths: &Bound<'_, PyAny>) -> PyResult<()> {
    if paths.is_instance_of::<PyString>() || paths.is_instance_of::<PyBytes>() {
        Err(PyTypeError::new_err(
            "an iterable of paths is needed, not one path",
        ))
    } else {
        Ok(())
    }
}

#[pymethods]
impl Volume {
    #[new]
    #[pyo3(signature = (
        path, mode = "r+", *, size = None, label = None, branch = None,
        cache_budget = None, durability_interval = Some(5.0), umask = 0o022, owner = None,
        recovery = true, _branch_of = None, _make = false,
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        path: Option<PathArg>,
        mode: &str,
        size: Option<u64>,
        label: Option<String>,
        branch: Option<String>,
        cache_budget: Option<usize>,
        durability_interval: Option<f64>,
        umask: u32,
        owner: Option<(u32, u32)>,
        recovery: bool,
        _branch_of: Option<PyRef<'_, Volume>>,
        _make: bool,
    ) -> PyResult<Self> {
        if let (Some(parent), Some(name)) = (&_branch_of, &branch) {
            return parent.branched(py, name, _make);
        }
        let mut options = cairnfs::Volume::options().recovery(recovery);
        if !matches!(mode, "r" | "r+" | "a" | "x") {
            let message = format!("mode should be 'r', 'r+', 'a' or 'x', not {mode:?}");
            return Err(PyValueError::new_err(message));
        }
        options = options.read_only(mode == "r").create(mode == "a");
        let interval = durability_interval.map(Duration::try_from_secs_f64);
        let interval = interval
            .transpose()
            .map_err(|e| PyValueError::new_err(format!("durability_interval: {e}")))?;
        options = options.durability_interval(interval);
        if let Some(label) = label {
            options = options.label(label);
        }
        if let Some(size) = size {
            options = options.size(size);
        }
        if let Some(budget) = cache_budget {
            options = options.cache_budget(budget);
        }
        if let Some((uid, gid)) = owner {
            options = options.owner(uid, gid);
        }
        let opened = py.detach(|| {
            let volume = match path.as_ref().map(PathArg::as_path) {
                None => options.in_memory(),
                Some(path) if mode == "x" => options.create_new(path),
                Some(path) => options.open(path),
            }?;
            match branch {
                Some(name) => volume.open_branch(&name),
                None => Ok(volume),
            }
        });
        let volume = opened.map_err(|e| os_error(py, &e, path.as_ref()))?;
        Ok(Self {
            shared: Arc::new(Shared::volume(volume, umask)),
            name: path,
        })
    }

    /// The path of the file or device; `None` for a volume in memory.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.name
            .as_ref()
            .map(|name| name.to_object(py))
            .transpose()
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Permissions that new files do not get.
    #[getter]
    fn umask(&self) -> u32 {
        self.shared.umask
    }

    /// Whether it was opened read-only.
    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.shared.open()?.is_read_only())
    }

    /// Writes everything and closes the volume; later calls of it, its branches and files raise
    /// `ValueError`. A branch is closed for itself. In a child process it writes nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = self.shared.close(py);
        closed.map_err(|e| os_error(py, &e, self.name.as_ref()))
    }

    /// Makes all changes durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.whole(py, cairnfs::Volume::sync)
    }

    /// A point after all changes that have returned.
    fn sequence(&self) -> PyResult<Sequence> {
        let sequence = self.shared.open()?.sequence();
        Ok(Sequence {
            volume: Arc::clone(&self.shared.closed),
            sequence,
        })
    }

    /// Makes all changes before a sequence durable; callers at the same time share one sync.
    fn sync_through(&self, py: Python<'_>, sequence: PyRef<'_, Sequence>) -> PyResult<()> {
        let mark = self.own(&sequence)?;
        self.whole(py, |volume| volume.sync_through(mark))
    }

    /// Whether all changes before a sequence are known to be durable.
    fn is_durable(&self, sequence: PyRef<'_, Sequence>) -> PyResult<bool> {
        let mark = self.own(&sequence)?;
        Ok(self.shared.open()?.is_durable(mark))
    }

    /// Makes a directory durable with all its entries.
    fn sync_dir(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.on(py, &path, |volume, path| volume.sync_dir(path))
    }

    /// Makes a read-only snapshot of all files, which `open_branch` opens.
    fn snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.whole(py, |volume| volume.snapshot(name))
    }

    /// The names of the snapshots.
    fn snapshots(&self) -> PyResult<Vec<String>> {
        self.root_names(false)
    }

    /// The names of the branches, also that of the first, `main`.
    fn branches(&self) -> PyResult<Vec<String>> {
        self.root_names(true)
    }

    /// The name of this branch or snapshot.
    #[getter]
    fn branch_name(&self) -> PyResult<Option<String>> {
        Ok(self.shared.open()?.name())
    }

    /// Gives a branch or snapshot another name.
    fn rename_branch(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        self.whole(py, |volume| volume.rename_root(old, new))
    }

    /// Discards free space in the file or device; the number of bytes.
    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        self.whole(py, cairnfs::Volume::trim)
    }

    /// Fields of `os.statvfs_result`, in order.
    fn _statvfs(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let s = self.whole(py, |volume| Ok(volume.statfs()))?;
        let read_only = u64::from(self.shared.open()?.is_read_only());
        let (size, name_max) = (u64::from(s.block_size), u64::from(s.name_max));
        let blocks = [size, size, s.blocks, s.free, s.available];
        let files = [s.files, s.files_free, s.files_free, read_only, name_max];
        Ok([blocks, files].concat())
    }

    /// UUID, label, size and others of the volume.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = self.whole(py, |volume| Ok(volume.info()))?;
        let dict = PyDict::new(py);
        dict.set_item("uuid", PyBytes::new(py, &info.uuid))?;
        dict.set_item("label", info.label)?;
        dict.set_item("size", info.size)?;
        dict.set_item("log_size", info.log_size)?;
        dict.set_item("log_used", info.log_used)?;
        Ok(dict)
    }

    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, path: PathArg, follow_symlinks: bool) -> PyResult<Stat> {
        self.stat_of(py, &path, follow_symlinks)
    }

    fn lstat(&self, py: Python<'_>, path: PathArg) -> PyResult<Stat> {
        self.stat_of(py, &path, false)
    }

    fn exists(&self, path: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.is_there(path, true, |_| true)
    }

    fn lexists(&self, path: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.is_there(path, false, |_| true)
    }

    fn isfile(&self, path: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.is_there(path, true, Metadata::is_file)
    }

    fn isdir(&self, path: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.is_there(path, true, Metadata::is_dir)
    }

    fn islink(&self, path: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.is_there(path, false, Metadata::is_symlink)
    }

    #[pyo3(signature = (path, mode = 0o777))]
    fn mkdir(&self, py: Python<'_>, path: PathArg, mode: u32) -> PyResult<()> {
        let mode = self.shared.mode(mode) & 0o1777;
        self.on(py, &path, |volume, path| volume.mkdir(path, mode))
    }

    fn unlink(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.unlinked(py, &path)
    }

    fn remove(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.unlinked(py, &path)
    }

    fn rmdir(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.on(py, &path, |volume, path| volume.remove_dir(path))
    }

    fn _remove_tree(&self, py: Python<'_>, path: PathArg) -> PyResult<()> {
        self.on(py, &path, |volume, path| volume.remove_dir_all(path))
    }

    fn rename(&self, py: Python<'_>, src: PathArg, dst: PathArg) -> PyResult<()> {
        self.renamed(py, &src, &dst, RenameMode::Replace)
    }

    fn replace(&self, py: Python<'_>, src: PathArg, dst: PathArg) -> PyResult<()> {
        self.renamed(py, &src, &dst, RenameMode::Replace)
    }

    /// Renames, and fails if the new name exists.
    fn rename_noreplace(&self, py: Python<'_>, src: PathArg, dst: PathArg) -> PyResult<()> {
        self.renamed(py, &src, &dst, RenameMode::NoReplace)
    }

    /// Exchanges two names.
    fn exchange(&self, py: Python<'_>, src: PathArg, dst: PathArg) -> PyResult<()> {
        self.renamed(py, &src, &dst, RenameMode::Exchange)
    }

    fn link(&self, py: Python<'_>, src: PathArg, dst: PathArg) -> PyResult<()> {
        self.on_two(py, (&src, &dst), |volume, src, dst| {
            volume.hard_link(src, dst)
        })
    }

    fn symlink(&self, py: Python<'_>, src: PathArg, dst: PathArg) -> PyResult<()> {
        self.on_two(py, (&src, &dst), |volume, src, dst| {
            volume.symlink(src, dst)
        })
    }

    fn readlink<'py>(&self, py: Python<'py>, path: PathArg) -> PyResult<Bound<'py, PyAny>> {
        let target = self.on(py, &path, |volume, path| volume.read_link(path))?;
        name_object(py, target.as_os_str().as_bytes(), path.is_bytes())
    }

    /// The path without symbolic links; every part must exist.
    fn realpath<'py>(&self, py: Python<'py>, path: PathArg) -> PyResult<Bound<'py, PyAny>> {
        let real = self.on(py, &path, |volume, path| volume.canonicalize(path))?;
        name_object(py, real.as_os_str().as_bytes(), path.is_bytes())
    }

    #[pyo3(signature = (path, mode = 0o600, device = 0))]
    fn mknod(&self, py: Python<'_>, path: PathArg, mode: u32, device: u64) -> PyResult<()> {
        const TYPE: u32 = 0o170_000;
        let kind = match mode & TYPE {
            0 => FileKind::File.mode_bits(),
            kind => kind,
        };
        let mode = kind | self.shared.mode(mode);
        self.on(py, &path, |volume, path| volume.mknod(path, mode, device))
    }

    fn chmod(&self, py: Python<'_>, path: PathArg, mode: u32) -> PyResult<()> {
        let permissions = Permissions::from_mode(mode & 0o7777);
        self.on(py, &path, |volume, path| {
            volume.set_permissions(path, permissions)
        })
    }

    #[pyo3(signature = (path, uid, gid, *, follow_symlinks = true))]
    fn chown(
        &self,
        py: Python<'_>,
        path: PathArg,
        uid: i64,
        gid: i64,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let id = |id: i64| match id {
            -1 => Ok(None),
            id => u32::try_from(id).map(Some),
        };
        let (uid, gid) = (id(uid)?, id(gid)?);
        self.on(py, &path, |volume, path| {
            if follow_symlinks {
                volume.chown(path, uid, gid)
            } else {
                volume.lchown(path, uid, gid)
            }
        })
    }

    /// Sets times in nanoseconds since 1970.
    fn _utime(
        &self,
        py: Python<'_>,
        path: PathArg,
        atime: i128,
        mtime: i128,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let times = FileTimes::new().set_accessed(time_of(atime)?);
        let times = times.set_modified(time_of(mtime)?);
        self.on(py, &path, |volume, path| {
            if follow_symlinks {
                volume.set_times(path, times)
            } else {
                volume.set_times_nofollow(path, times)
            }
        })
    }

    fn truncate(&self, py: Python<'_>, path: PathArg, length: i64) -> PyResult<()> {
        self.on(py, &path, |volume, path| {
            let length = u64::try_from(length).map_err(|_| Error::Invalid("a negative length"))?;
            let file = volume.open_with(path, OpenOptions::new().write(true))?;
            file.set_len(length)
        })
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: PathArg,
        attribute: PathArg,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.on(py, &path, |volume, path| {
            let value = volume.get_xattr(path, attribute.as_path())?;
            value.ok_or(Error::NoAttribute)
        })?;
        Ok(PyBytes::new(py, &value))
    }

    /// Flags are `os.XATTR_CREATE` or `os.XATTR_REPLACE`.
    #[pyo3(signature = (path, attribute, value, flags = 0))]
    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathArg,
        attribute: PathArg,
        value: Data,
        flags: u32,
    ) -> PyResult<()> {
        let mode = match flags {
            0 => Ok(XattrMode::Set),
            1 => Ok(XattrMode::Create),
            2 => Ok(XattrMode::Replace),
            _ => Err(Error::Invalid("flags")),
        };
        self.on(py, &path, |volume, path| {
            volume.set_xattr_with(path, attribute.as_path(), &*value, mode?)
        })
    }

    #[pyo3(signature = (path = None))]
    fn listxattr(&self, py: Python<'_>, path: Option<PathArg>) -> PyResult<Vec<Py<PyAny>>> {
        let path = path.map_or_else(|| root_path(py), Ok)?;
        let names = self.on(py, &path, |volume, path| volume.list_xattrs(path))?;
        let object =
            |name: &std::ffi::OsString| name_object(py, name.as_bytes(), false).map(Bound::unbind);
        names.iter().map(object).collect()
    }

    fn removexattr(&self, py: Python<'_>, path: PathArg, attribute: PathArg) -> PyResult<()> {
        self.on(py, &path, |volume, path| {
            volume.remove_xattr(path, attribute.as_path())
        })
    }

    /// The names in a directory.
    #[pyo3(signature = (path = None))]
    fn listdir<'py>(&self, py: Python<'py>, path: Option<PathArg>) -> PyResult<Bound<'py, PyList>> {
        let path = path.map_or_else(|| root_path(py), Ok)?;
        let names = self.on(py, &path, |volume, path| {
            let entries = volume.read_dir(path)?;
            entries
                .map(|e| e.map(|e| e.file_name()))
                .collect::<cairnfs::Result<Vec<_>>>()
        })?;
        name_list(py, &names, &path)
    }

    /// The names of directories and of everything else in a directory; a symbolic link to a
    /// directory counts as one, as in `os.walk`.
    fn _walk_level<'py>(&self, py: Python<'py>, path: PathArg) -> PyResult<Bound<'py, PyTuple>> {
        let (dirs, files) = self.on(py, &path, |volume, path| {
            let (mut dirs, mut files) = (Vec::new(), Vec::new());
            for entry in volume.read_dir(path)? {
                let entry = entry?;
                let is_dir = match entry.file_type()? {
                    FileKind::Symlink => volume.metadata(entry.path()).is_ok_and(|m| m.is_dir()),
                    kind => kind.is_dir(),
                };
                if is_dir { &mut dirs } else { &mut files }.push(entry.file_name());
            }
            Ok((dirs, files))
        })?;
        let lists = [name_list(py, &dirs, &path)?, name_list(py, &files, &path)?];
        PyTuple::new(py, lists)
    }

    /// The entries of a directory; with `stat`, each has its metadata already.
    #[pyo3(signature = (path = None, *, stat = false))]
    fn scandir(&self, py: Python<'_>, path: Option<PathArg>, stat: bool) -> PyResult<ScanDir> {
        let path = path.map_or_else(|| root_path(py), Ok)?;
        let entries = self.on(py, &path, |volume, path| volume.read_dir(path))?;
        Ok(ScanDir::new(Arc::clone(&self.shared), &path, entries, stat))
    }

    fn read_bytes<'py>(&self, py: Python<'py>, path: PathArg) -> PyResult<Bound<'py, PyBytes>> {
        let (file, len, small) = self.on(py, &path, |volume, path| {
            let file = volume.open_file(path)?;
            let len = file.metadata()?.len();
            let mut small = vec![0; len.min(SMALL) as usize];
            let got = file.read_at(&mut small, 0)?;
            small.truncate(got);
            Ok((file, len, small))
        })?;
        if len <= SMALL {
            Ok(PyBytes::new(py, &small))
        } else {
            read_to_bytes(py, len, move |buf| file.read_at(buf, 0))
        }
    }

    /// Creates or replaces a file; the number of bytes.
    fn write_bytes(&self, py: Python<'_>, path: PathArg, data: Data) -> PyResult<usize> {
        let options = self.replacing(0o666);
        let volume = self.shared.open()?;
        py.detach(|| batch::write_file(&volume, &path, &data, &options))
            .map_err(|e| os_error(py, &e, Some(&path)))?;
        Ok(data.len())
    }

    /// Creates or replaces files: pairs of path and bytes, or a dict.
    fn write_many(&self, py: Python<'_>, files: &Bound<'_, PyAny>) -> PyResult<()> {
        let options = self.replacing(0o666);
        batch::write_many(py, &self.shared.open()?, files, &options)
    }

    /// The contents of files, in order.
    fn read_many<'py>(
        &self,
        py: Python<'py>,
        paths: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        many(paths)?;
        batch::read_many(py, &self.shared.open()?, paths)
    }

    /// Copies contents and permissions, and returns the number of bytes. An error names `dst`.
    fn _copy(&self, py: Python<'_>, src: PathArg, dst: PathArg) -> PyResult<u64> {
        self.on(py, &dst, |volume, to| volume.copy(src.as_path(), to))
    }

    #[pyo3(signature = (path, *, read, write, append, truncate, create, exclusive, perm, sync))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    #[allow(
        clippy::fn_params_excessive_bools,
        reason = "they are keywords in Python"
    )]
    fn _open(
        &self,
        py: Python<'_>,
        path: PathArg,
        read: bool,
        write: bool,
        append: bool,
        truncate: bool,
        create: bool,
        exclusive: bool,
        perm: u32,
        sync: Option<&str>,
    ) -> PyResult<File> {
        let mut options = OpenOptions::new();
        options.read(read).write(write).append(append);
        options
            .truncate(truncate)
            .create(create)
            .create_new(exclusive);
        options.mode(self.shared.mode(perm));
        match sync {
            None => {}
            Some("data") => _ = options.sync_data(true),
            Some("all") => _ = options.sync_all(true),
            Some(other) => {
                let message = format!("sync should be None, 'data' or 'all', not {other:?}");
                return Err(PyValueError::new_err(message));
            }
        }
        let file = self.on(py, &path, |volume, path| {
            let file = volume.open_with(path, &options)?;
            if file.metadata()?.is_dir() {
                Err(Error::IsDirectory)
            } else {
                Ok(file)
            }
        })?;
        Ok(File::new(Arc::clone(&self.shared), file))
    }

    /// A file without a name, for reading and writing.
    fn _open_temporary(&self, py: Python<'_>, path: PathArg) -> PyResult<File> {
        let file = self.on(py, &path, |volume, path| volume.tempfile(path))?;
        Ok(File::new(Arc::clone(&self.shared), file))
    }
}

fn root_path(py: Python<'_>) -> PyResult<PathArg> {
    PyString::new(py, "/").extract()
}

fn name_list<'py>(
    py: Python<'py>,
    names: &[std::ffi::OsString],
    path: &PathArg,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for name in names {
        list.append(name_object(py, name.as_bytes(), path.is_bytes())?)?;
    }
    Ok(list)
}
