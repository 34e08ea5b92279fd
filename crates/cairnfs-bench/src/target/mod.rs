//! What is measured: the library by path, the library by inode, or a directory by system calls.
//!
//! Workloads see only the two traits here. A target that counts what it writes tells its
//! counters; another tells none, and its columns are left out.

mod directory;
mod engine;
mod library;

use std::path::{Path, PathBuf};

use cairnfs::Volume;

use crate::args::Args;
use crate::{Failure, Result};

/// A file system to be measured. Calls from several threads run side by side.
pub trait Target: Send + Sync {
    /// What it is, and where.
    fn name(&self) -> &str;

    /// By which calls it is used.
    fn interface(&self) -> &'static str;

    /// Makes a directory; its parent exists. Paths are relative, without `.` and `..`.
    fn make_dir(&self, path: &str) -> Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &str) -> Result<()>;

    /// A directory to work in.
    fn dir<'a>(&'a self, path: &str) -> Result<Box<dyn Dir + 'a>>;

    /// Makes everything durable.
    fn sync(&self) -> Result<()>;

    /// Ends the use, if the target was opened for it: what else is to be written is written.
    fn close(&self) -> Result<()>;

    /// Counters since it was opened; also after it was closed.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// A directory that one thread works in.
pub trait Dir {
    /// Makes a file with these bytes, and syncs it if told.
    fn create(&self, name: &str, contents: &[u8], sync: bool) -> Result<()>;

    /// Lists the directory and asks for the attributes of every entry; gives the number of
    /// entries, and of the bytes that they hold.
    fn walk(&self) -> Result<(u64, u64)>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Result<()>;
}

/// Opens, or makes, what the arguments name.
pub fn open(args: &Args) -> Result<Box<dyn Target>> {
    let Some(path) = args.volume() else {
        return Ok(Box::new(directory::Directory::open(&args.target)?));
    };
    let image = Image::at(path)?;
    let volume = Volume::options()
        .create(true)
        .size(args.volume_size)
        .label("bench")
        .open(&image.path)?;
    Ok(match args.by_inode {
        true => Box::new(engine::Engine::new(volume, image)),
        false => Box::new(library::Library::new(volume, image)),
    })
}

/// The file or device that a volume is in.
struct Image {
    path: PathBuf,
    name: String,
    /// Removes the temporary directory, if there is one.
    _temporary: Option<tempfile::TempDir>,
}

impl Image {
    fn at(path: &str) -> Result<Self> {
        if !path.is_empty() {
            return Ok(Self {
                path: PathBuf::from(path),
                name: path.to_owned(),
                _temporary: None,
            });
        }
        let dir = tempfile::tempdir()?;
        Ok(Self {
            path: dir.path().join("bench.cairn"),
            name: format!("temporary volume in {}", parent_of(dir.path()).display()),
            _temporary: Some(dir),
        })
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Says which entry a failure is about.
fn at(path: impl std::fmt::Display, error: impl std::fmt::Display) -> Failure {
    format!("{path}: {error}").into()
}
