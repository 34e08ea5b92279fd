//! Serves a mount that does nothing, as a baseline for other benchmarks: the upper bound of any
//! FUSE file system.
//!
//! It is mounted and served like a volume. Ends at an unmount or a signal, and leaves no mount
//! behind.

mod server;

use std::io::Write;
use std::path::{Path, PathBuf};

use cairnfs_fuse::{MountOptions, serve};

use crate::Result;
use crate::target::at;

use server::Server;

/// Serve a mount that does nothing: the ceiling of FUSE, for workloads that make and remove
#[derive(Debug, Clone, clap::Args)]
pub struct Noop {
    /// Mount options, as for `cairnfs mount`; threads=N sets the number of event loops.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,

    /// Directory to mount on.
    mountpoint: PathBuf,
}

impl Noop {
    /// Serves until the mount ends; prints a line to `out` when it is ready.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let mut options = MountOptions::default();
        for list in &self.options {
            options.apply(list)?;
        }
        let dir = self.mountpoint.canonicalize();
        let dir = dir.map_err(|e| at(self.mountpoint.display(), e))?;
        let mut printed = Ok(());
        let ready = || {
            printed = writeln!(out, "serving {}; Ctrl-C unmounts", dir.display())
                .and_then(|()| out.flush());
        };
        serve(
            Server::new(options.write),
            Path::new("noop"),
            &dir,
            &options,
            true,
            ready,
        )?;
        Ok(printed?)
    }
}
