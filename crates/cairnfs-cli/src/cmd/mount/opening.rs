//! Opens the volume of a mount, and the branch or snapshot that `-o branch=` names.
//!
//! Uses the engine, roots and failures. If the branch cannot be opened, the volume is closed
//! again.

use std::path::Path;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::{MountOptions, mountinfo};

use super::{Failure, failed};
use crate::failure;
use crate::roots;

/// Opens the volume and the tree to mount. Returns both, and the options of the mount.
pub(super) fn open(
    volume: &Path,
    options: &MountOptions,
) -> Result<(Arc<FileSystem>, Arc<FileSystem>, MountOptions), Failure> {
    let fs = FileSystem::open(volume, &engine_options(options))
        .map_err(|e| failed(in_line(&failure::Failure::opening(volume, &e))))?;
    let (root, options) = open_root(&fs, volume, options).inspect_err(|_| drop(fs.close()))?;
    Ok((fs, root, options))
}

/// Opens the branch or snapshot of the options; returns it with the options of its mount.
fn open_root(
    fs: &Arc<FileSystem>,
    volume: &Path,
    options: &MountOptions,
) -> Result<(Arc<FileSystem>, MountOptions), Failure> {
    let mut options = options.clone();
    let Some(reference) = options.branch.take() else {
        return Ok((Arc::clone(fs), options));
    };
    let (root, name) = roots::open_in(fs, volume, &reference).map_err(|f| failed(in_line(&f)))?;
    options.read_only |= root.is_read_only();
    options.source = options
        .source
        .or_else(|| Some(mountinfo::branch_source(volume, &name)));
    Ok((root, options))
}

/// A failure and the next step, in one line.
fn in_line(failure: &failure::Failure) -> String {
    match failure.next_step() {
        Some(step) => format!("{failure}; {step}"),
        None => failure.to_string(),
    }
}

fn engine_options(options: &MountOptions) -> Options {
    let mut engine = Options {
        read_only: options.read_only,
        recovery: options.recovery,
        discard: options.discard,
        // Programs that write in small pieces need this: the next piece belongs to a block just
        // written.
        keep_written: options.write == WriteMode::Through,
        kernel_clock: true,
        content_times: options.write == WriteMode::Through,
        ..Options::default()
    };
    if let Some(bytes) = options.cache {
        engine.cache_budget = bytes;
    }
    if let Some(interval) = options.durability {
        engine.durability_interval = interval;
    }
    engine
}
