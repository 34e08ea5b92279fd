//! Opens the volume of a mount, and the branch or snapshot that `-o branch=` names.
//!
//! Uses the engine, references and failures.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use cairnfs::Error;
use cairnfs::fs::{FileSystem, Options};
use cairnfs_disk::format::root::MAIN_NAME;
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::{MountOptions, mountinfo};

use crate::exit::{Failure, failed, in_line};
use crate::failure;
use crate::reference;

/// Why a volume was not opened.
pub(crate) enum Unopened {
    /// Another process has it open.
    InUse(String),
    /// Any other reason.
    Failed(String),
}

impl From<Unopened> for Failure {
    fn from(why: Unopened) -> Self {
        match why {
            Unopened::InUse(text) | Unopened::Failed(text) => failed(text),
        }
    }
}

/// The open volume, by a handle to the tree that is called main.
pub(crate) struct OpenVolume(RwLock<Arc<FileSystem>>);

impl OpenVolume {
    pub fn new(fs: Arc<FileSystem>) -> Self {
        Self(RwLock::new(fs))
    }

    /// A handle, to be dropped soon: it keeps its tree open.
    pub fn get(&self) -> Arc<FileSystem> {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Gives up a tree that has lost the name, so that it can be dropped.
    ///
    /// # Errors
    /// The one that has it cannot be opened.
    pub fn follow(&self) -> cairnfs::Result<()> {
        let fs = self.get();
        let is_main = |root: cairnfs::RootInfo| root.name.as_deref() == Some(MAIN_NAME);
        if !fs.root_info().is_some_and(is_main) {
            let main = fs.open_named(MAIN_NAME)?;
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = main;
        }
        Ok(())
    }
}

/// Opens the volume.
pub(crate) fn open(volume: &Path, options: &MountOptions) -> Result<Arc<FileSystem>, Unopened> {
    FileSystem::open(volume, &engine_options(options)).map_err(|error| {
        let text = in_line(&failure::Failure::opening(volume, &error));
        match error {
            Error::InUse(_) => Unopened::InUse(text),
            _ => Unopened::Failed(text),
        }
    })
}

/// Opens the branch or snapshot of the options; returns it with the options of its mount.
pub(crate) fn open_root(
    fs: &Arc<FileSystem>,
    volume: &Path,
    options: &MountOptions,
) -> Result<(Arc<FileSystem>, MountOptions), Failure> {
    let mut options = options.clone();
    let opened = |reference: &str| {
        reference::open_in(fs, volume, reference).map_err(|f| failed(in_line(&f)))
    };
    let Some(reference) = options.branch.take() else {
        // The handle follows only after the name has gone to another tree.
        let root = if fs.is_replaced() {
            opened(MAIN_NAME)?.0
        } else {
            Arc::clone(fs)
        };
        return Ok((root, options));
    };
    let (root, name) = opened(&reference)?;
    options.read_only |= root.is_read_only();
    options.source = options
        .source
        .or_else(|| Some(mountinfo::branch_source(volume, &name)));
    Ok((root, options))
}

/// The options of the volume as a whole.
pub fn engine_options(options: &MountOptions) -> Options {
    let mut engine = Options {
        read_only: options.read_only,
        recovery: options.recovery,
        discard: options.discard,
        // Programs that write in small pieces need this: the next piece belongs to a block just
        // written.
        keep_written: options.write == WriteMode::Through,
        kernel_caches: true,
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
