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

    fn shown(&self) -> String {
        let stat = &self.metadata;
        format!(
            "Stat(st_mode={:#o}, st_ino={}, st_nlink={}, st_uid={}, st_gid={}, st_size={}, st_mtime={})",
            stat.mode(),
            stat.ino(),
            stat.nlink(),
            stat.uid(),
            stat.gid(),
            stat.len(),
            self.st_mtime()
        )
    }
}

fn nanos(time: Time) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

fn seconds(time: Time) -> f64 {
    time.secs as f64 + f64::from(time.nanos) * 1e-9
}

/// The attributes: name, type and value.
macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident: $type:ty = |$stat:ident| $value:expr,)*) => {
        #[pymethods]
        impl Stat {
            $($(#[$doc])* #[getter]
            fn $name(&self) -> $type {
                let $stat = self;
                $value
            })*

            fn __repr__(&self) -> String {
                self.shown()
            }
        }
    };
}

attributes! {
    st_mode: u32 = |stat| stat.metadata.mode(),
    st_ino: u64 = |stat| stat.metadata.ino(),
    /// A number that differs between volumes.
    st_dev: u64 = |stat| stat.dev,
    st_nlink: u64 = |stat| stat.metadata.nlink(),
    st_uid: u32 = |stat| stat.metadata.uid(),
    st_gid: u32 = |stat| stat.metadata.gid(),
    st_size: u64 = |stat| stat.metadata.len(),
    st_blocks: u64 = |stat| stat.metadata.blocks(),
    st_blksize: u32 = |_stat| 4096,
    st_rdev: u64 = |stat| stat.metadata.rdev(),
    st_atime: f64 = |stat| seconds(stat.metadata.attr().atime),
    st_mtime: f64 = |stat| seconds(stat.metadata.attr().mtime),
    st_ctime: f64 = |stat| seconds(stat.metadata.attr().ctime),
    st_birthtime: f64 = |stat| seconds(stat.metadata.attr().btime),
    st_atime_ns: i128 = |stat| nanos(stat.metadata.attr().atime),
    st_mtime_ns: i128 = |stat| nanos(stat.metadata.attr().mtime),
    st_ctime_ns: i128 = |stat| nanos(stat.metadata.attr().ctime),
    st_birthtime_ns: i128 = |stat| nanos(stat.metadata.attr().btime),
}
