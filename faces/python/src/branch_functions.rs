//! Calls on branches and snapshots as a whole, as functions of a volume with plain results: tuples,
//! which `cairnfs._history` names.

use std::time::{Duration, Instant};

use cairnfs::{Error, FileChange, PublishOptions, RootInfo, Status};
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::error::os_error;
use crate::path::{PathArg, name_object};
use crate::path_calls::Volume;

/// Time between two looks at signals and calls of a progress function.
const STEP: Duration = Duration::from_millis(50);

/// Id, name, parent, whether it can be changed, time of creation in nanoseconds, whether it is being
/// dropped.
type Root = (u32, Option<String>, Option<u32>, bool, i128, bool);

fn root_of(root: RootInfo) -> Root {
    let created = i128::from(root.created.secs) * 1_000_000_000 + i128::from(root.created.nanos);
    let (id, parent) = (root.id, root.parent);
    (
        id,
        root.name,
        parent,
        root.writable,
        created,
        root.being_dropped,
    )
}

/// All branches and snapshots.
#[pyfunction]
#[pyo3(name = "_roots")]
pub fn roots(py: Python<'_>, volume: PyRef<'_, Volume>) -> PyResult<Vec<Root>> {
    let roots = volume.whole(py, |volume| Ok(volume.roots()))?;
    Ok(roots.into_iter().map(root_of).collect())
}

/// The branch or snapshot of a reference.
#[pyfunction]
#[pyo3(name = "_find_root")]
pub fn find_root(py: Python<'_>, volume: PyRef<'_, Volume>, reference: &str) -> PyResult<Root> {
    volume
        .whole(py, |volume| volume.find_root(reference))
        .map(root_of)
}

/// Bytes that dropping a branch or snapshot frees.
#[pyfunction]
#[pyo3(name = "_space_of")]
pub fn space_of(py: Python<'_>, volume: PyRef<'_, Volume>, id: u32) -> PyResult<u64> {
    volume.whole(py, |volume| volume.space_of(id))
}

/// A changed file: status, path, old paths, new paths, inode, old inode, type bits, size, written,
/// changed ranges, changed attributes, changed extended attributes.
#[derive(IntoPyObject)]
pub struct Change<'py>(
    &'static str,
    Bound<'py, PyAny>,
    Vec<Bound<'py, PyAny>>,
    Vec<Bound<'py, PyAny>>,
    u64,
    Option<u64>,
    u32,
    u64,
    u64,
    Vec<(u64, u64)>,
    Vec<(&'static str, i128, i128)>,
    Vec<(String, &'static str)>,
);

fn word(status: Status) -> &'static str {
    match status {
        Status::Added => "added",
        Status::Removed => "removed",
        Status::Renamed => "renamed",
        Status::Changed => "changed",
    }
}

fn change_of<'py>(py: Python<'py>, file: &FileChange) -> PyResult<Change<'py>> {
    let paths = |paths: &[cairnfs::FilePath]| -> PyResult<Vec<_>> {
        let names = paths.iter().map(|path| name_object(py, &path.bytes, false));
        names.collect()
    };
    let contents = file.contents.iter().map(|range| (range.start, range.end));
    let attributes = file.attributes.iter().map(|a| (a.name, a.old, a.new));
    let xattrs = file.xattrs.iter().map(|x| (x.name.clone(), word(x.status)));
    Ok(Change(
        word(file.status),
        name_object(py, &file.path.bytes, false)?,
        paths(&file.old_paths)?,
        paths(&file.new_paths)?,
        file.ino,
        file.old_ino,
        file.kind.mode_bits(),
        file.size,
        file.written,
        contents.collect(),
        attributes.collect(),
        xattrs.collect(),
    ))
}

/// The files that differ between two states.
#[pyfunction]
#[pyo3(name = "_diff")]
pub fn diff<'py>(
    py: Python<'py>,
    volume: PyRef<'_, Volume>,
    old: &str,
    new: &str,
    since_fork: bool,
) -> PyResult<Vec<Change<'py>>> {
    let diff = volume.whole(py, |volume| {
        if since_fork {
            volume.diff_since_fork(old, new)
        } else {
            volume.diff(old, new)
        }
    })?;
    let files = diff.report().files.iter();
    files.map(|file| change_of(py, file)).collect()
}

/// The snapshot of the state before, whether changes were merged, and conflicts as paths and texts.
type Published<'py> = (Option<String>, bool, Vec<(Bound<'py, PyAny>, String)>);

/// Publishes a branch.
#[pyfunction]
#[pyo3(name = "_publish")]
pub fn publish<'py>(
    py: Python<'py>,
    volume: PyRef<'_, Volume>,
    branch: &str,
    onto: Option<String>,
    ours: Vec<PathArg>,
    theirs: Vec<PathArg>,
    dry_run: bool,
) -> PyResult<Published<'py>> {
    let paths = |list: &[PathArg]| list.iter().map(|p| p.as_path().into()).collect();
    let options = PublishOptions {
        onto,
        ours: paths(&ours),
        theirs: paths(&theirs),
        dry_run,
    };
    // The caller raises them, as an exception that has all of them.
    let published = volume.whole(py, |volume| match volume.publish(branch, &options) {
        Err(Error::Conflicts(conflicts)) => Ok(cairnfs::Published {
            conflicts,
            ..cairnfs::Published::default()
        }),
        done => done,
    })?;
    let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let conflicts = published.conflicts.iter().map(|conflict| {
        let path = name_object(py, &conflict.path, false)?;
        Ok((path, conflict.kind.why("the base", show)))
    });
    let conflicts = conflicts.collect::<PyResult<_>>()?;
    Ok((published.kept, published.merged, conflicts))
}

/// Restores a branch, or files of it; the snapshot of the state before.
#[pyfunction]
#[pyo3(name = "_restore")]
pub fn restore(
    py: Python<'_>,
    volume: PyRef<'_, Volume>,
    reference: &str,
    branch: &str,
    paths: Vec<PathArg>,
) -> PyResult<String> {
    let paths: Vec<_> = paths.iter().map(|p| p.as_path().into()).collect();
    volume.whole(py, |volume| volume.restore(reference, branch, &paths))
}

/// Drops a branch or snapshot.
#[pyfunction]
#[pyo3(name = "_drop_root")]
pub fn drop_root(py: Python<'_>, volume: PyRef<'_, Volume>, reference: &str) -> PyResult<()> {
    volume.whole(py, |volume| volume.drop_root(reference))
}

/// Frees what was dropped; `progress` gets how many are left and the part of the first one that is
/// done, several times a second, and ends it by `False`.
#[pyfunction]
#[pyo3(name = "_free_drops")]
pub fn free_drops(
    py: Python<'_>,
    volume: PyRef<'_, Volume>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let progress = progress.map(|call| call.clone().unbind());
    let mut raised = None;
    let mut next = Instant::now();
    let engine = volume.shared.open()?;
    let freed = py.detach(|| {
        engine.free_drops(|now| {
            if Instant::now() < next {
                return true;
            }
            next = Instant::now() + STEP;
            Python::attach(|py| {
                let go_on = py.check_signals().and_then(|()| match &progress {
                    Some(call) => {
                        let said = call.bind(py).call1((now.left, now.part))?;
                        Ok(!said.is(PyBool::new(py, false)))
                    }
                    None => Ok(true),
                });
                go_on.unwrap_or_else(|error| {
                    raised = Some(error);
                    false
                })
            })
        })
    });
    match raised {
        Some(error) => Err(error),
        None => freed.map_err(|e| os_error(py, &e, None)),
    }
}
