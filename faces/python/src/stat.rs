//! `Stat`: what `os.stat_result` has, as attributes that are made when they are asked for.

use cairnfs::{Metadata, Time};
use pyo3::prelude::*;

/// Metadata of a file at one moment, with the attributes of `os.stat_result`.
#[pyclass(frozen, eq, module = "cairnfs")]
#[derive(PartialEq, Eq)]
pub struct Stat {
    metadata: Metadata,
    dev: u64,
}

impl Stat {
    pub fn new(metadata: Metadata, dev: u64) -> Self {
        Self { metadata, dev }
    }
}

fn nanos(time: Time) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

fn seconds(time: Time) -> f64 {
    time.secs as f64 + f64::from(time.nanos) * 1e-9
}

#[pymethods]
impl Stat {
    #[getter]
    fn st_mode(&self) -> u32 {
        self.metadata.mode()
    }

    #[getter]
    fn st_ino(&self) -> u64 {
        self.metadata.ino()
    }

    /// A number that differs between volumes.
    #[getter]
    fn st_dev(&self) -> u64 {
        self.dev
    }

    #[getter]
    fn st_nlink(&self) -> u64 {
        self.metadata.nlink()
    }

    #[getter]
    fn st_uid(&self) -> u32 {
        self.metadata.uid()
    }

    #[getter]
    fn st_gid(&self) -> u32 {
        self.metadata.gid()
    }

    #[getter]
    fn st_size(&self) -> u64 {
        self.metadata.len()
    }

    #[getter]
    fn st_blocks(&self) -> u64 {
        self.metadata.blocks()
    }

    #[getter]
    fn st_blksize(&self) -> u32 {
        4096
    }

    #[getter]
    fn st_rdev(&self) -> u64 {
        self.metadata.rdev()
    }

    #[getter]
    fn st_atime(&self) -> f64 {
        seconds(self.metadata.attr().atime)
    }

    #[getter]
    fn st_mtime(&self) -> f64 {
        seconds(self.metadata.attr().mtime)
    }

    #[getter]
    fn st_ctime(&self) -> f64 {
        seconds(self.metadata.attr().ctime)
    }

    #[getter]
    fn st_birthtime(&self) -> f64 {
        seconds(self.metadata.attr().btime)
    }

    #[getter]
    fn st_atime_ns(&self) -> i128 {
        nanos(self.metadata.attr().atime)
    }

    #[getter]
    fn st_mtime_ns(&self) -> i128 {
        nanos(self.metadata.attr().mtime)
    }

    #[getter]
    fn st_ctime_ns(&self) -> i128 {
        nanos(self.metadata.attr().ctime)
    }

    #[getter]
    fn st_birthtime_ns(&self) -> i128 {
        nanos(self.metadata.attr().btime)
    }

    fn __repr__(&self) -> String {
        format!(
            "Stat(st_mode={:#o}, st_ino={}, st_nlink={}, st_uid={}, st_gid={}, st_size={}, \
             st_mtime={})",
            self.st_mode(),
            self.st_ino(),
            self.st_nlink(),
            self.st_uid(),
            self.st_gid(),
            self.st_size(),
            self.st_mtime()
        )
    }
}
