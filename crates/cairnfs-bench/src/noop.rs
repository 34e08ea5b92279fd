//! Serves a mount that does nothing, for other benchmarks to run on: the ceiling of FUSE.
//!
//! It is mounted and served as volumes are. Ends when it is unmounted or a signal comes, and
//! leaves no mount behind.

use std::io::Write;
use std::path::{Path, PathBuf};

use cairnfs_fuse::noop::Noop as Nothing;
use cairnfs_fuse::{MountOptions, serve};

use crate::Result;
use crate::target::at;

/// Serve a mount that does nothing: the ceiling of FUSE, for workloads that make and remove
#[derive(Debug, Clone, clap::Args)]
pub struct Noop {
    /// Mount options, as for `cairnfs mount`; threads=N tells how many serve.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,

    /// Directory to mount on.
    mountpoint: PathBuf,
}

impl Noop {
    /// Serves until the end; says to `out` when it begins.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let mut options = MountOptions::default();
        for list in &self.options {
            options.apply(list)?;
        }
        let dir = self.mountpoint.canonicalize();
        let dir = dir.map_err(|e| at(self.mountpoint.display(), e))?;
        let mut told = Ok(());
        let ready = || {
            told = writeln!(out, "serving {}; Ctrl-C unmounts", dir.display())
                .and_then(|()| out.flush());
        };
        serve(
            Nothing::new(options.write),
            Path::new("noop"),
            &dir,
            &options,
            true,
            ready,
        )?;
        Ok(told?)
    }
}
