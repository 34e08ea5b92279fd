//! The native part of the Python package `cairnfs`: the library's `Volume` and `File` as Python
//! classes.
//!
//! Uses the public API of the library only. Every call of the engine runs without the GIL. No call
//! reaches the engine in a child process of the one that opened the volume: see [`process`].
//! Everything that needs no engine (file objects, trees, fsspec) is in Python.

#![allow(
    missing_docs,
    reason = "the documentation of these items is that of the Python package"
)]

mod batch;
mod branch_functions;
mod calls;
mod data;
mod entry;
mod error;
mod file;
mod path;
mod path_calls;
mod process;
mod shared;
mod stat;
mod streams;
mod times;

/// The module `cairnfs._native`.
#[pyo3::pymodule(name = "_native")]
mod native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::branch_functions::{
        diff, drop_root, find_root, free_drops, publish, restore, roots, space_of,
    };
    #[pymodule_export]
    use crate::entry::{DirEntry, ScanDir};
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::path_calls::{Sequence, Volume};
    #[pymodule_export]
    use crate::stat::Stat;
    #[pymodule_export]
    use crate::streams::{receive, send};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::process::watch_forks(module.py())
    }
}
