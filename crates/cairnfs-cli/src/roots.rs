//! What the commands on snapshots and branches have in common: the open volume as the library has
//! it, their options, what they say, and their failures.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, RootInfo, Time};
use serde::Serialize;

use crate::failure::{AnyError, Failure, show_bytes, shown};
use crate::output;
use crate::volume::{Access, Volume};

/// An open volume, for calls on whole roots.
pub struct Roots {
    opened: Volume,
    library: cairnfs::Volume,
}

impl Roots {
    /// Opens a volume that is not mounted.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open(path: &Path, access: Access) -> Result<Self, Failure> {
        if path.is_dir() {
            return Err(Failure::new(shown(path), "is a directory, not a volume")
                .hint("name the file or device that holds the volume, which must not be mounted"));
        }
        let opened = Volume::open(path, access)?;
        let library = cairnfs::Volume::from(opened.fs().clone());
        Ok(Self { opened, library })
    }

    /// The calls.
    pub fn volume(&self) -> &cairnfs::Volume {
        &self.library
    }

    /// Opens the branch or snapshot of a reference.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub fn open_root(&self, reference: &str) -> Result<cairnfs::Volume, Failure> {
        let failed = |e: Error| root_failure(self.path(), reference, &e);
        let root = self.library.find_root(reference).map_err(failed)?;
        let name = root.name.unwrap_or_default();
        self.library.open_branch(&name).map_err(failed)
    }

    /// The file or device.
    pub fn path(&self) -> &Path {
        self.opened.path()
    }

    /// Writes all changes and closes the volume.
    ///
    /// # Errors
    /// The changes could not be written.
    pub fn close(self) -> Result<(), Failure> {
        self.opened.close()
    }
}

/// How a command that changes roots tells what it did.
#[derive(Debug, clap::Args)]
pub struct Telling {
    /// Print nothing except errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

impl Telling {
    /// Tells a result as JSON, or as lines of text.
    ///
    /// # Errors
    /// Standard output failed.
    pub fn tell(&self, json: &impl Serialize, lines: &[impl Display]) -> Result<(), AnyError> {
        if self.json {
            return output::json(json);
        }
        let mut out = io::stdout().lock();
        for line in lines.iter().filter(|_| !self.quiet) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

/// Arguments of a command that makes a snapshot or branch.
#[derive(Debug, clap::Args)]
pub struct NewRoot {
    /// File or block device
    volume: PathBuf,
    /// Its name
    name: String,
    #[command(flatten)]
    telling: Telling,
}

impl NewRoot {
    /// Makes it of the root of the reference `from`, by `make`, which gets the name.
    ///
    /// # Errors
    /// There is no such root, or nothing can be made of it.
    pub fn make(
        &self,
        from: &str,
        make: impl FnOnce(cairnfs::Volume, &str) -> cairnfs::Result<()>,
    ) -> Result<ExitCode, AnyError> {
        let roots = Roots::open(&self.volume, Access::Write)?;
        let made = roots.open_root(from).and_then(|from| {
            let made = make(from, &self.name).and_then(|()| roots.volume().find_root(&self.name));
            made.map_err(|e| change_failure(roots.path(), &self.name, &e))
        });
        let closed = roots.close();
        let made = made?;
        closed?;
        let line = format!("Made the {} {}", kind(&made), show_name(&made));
        self.telling.tell(&JsonRoot::from(&made), &[line])?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A root as JSON.
#[derive(Serialize)]
pub struct JsonRoot {
    id: u32,
    name: Option<String>,
    kind: &'static str,
    parent: Option<u32>,
    /// When it was made; of the main branch of a volume without snapshots unknown.
    created: Option<String>,
}

impl From<&RootInfo> for JsonRoot {
    fn from(root: &RootInfo) -> Self {
        Self {
            id: root.id,
            name: root.name.clone(),
            kind: kind(root),
            parent: root.parent,
            created: created(root).map(output::utc_time),
        }
    }
}

/// What a root is, in a word or two.
pub fn kind(root: &RootInfo) -> &'static str {
    match (root.writable, &root.name) {
        (true, Some(_)) => "branch",
        // A branch without a name is what was prepared and not finished; the next opening drops it.
        (true, None) => "unfinished",
        (false, Some(_)) => "snapshot",
        (false, None) if root.being_dropped => "being dropped",
        (false, None) => "fork point",
    }
}

/// When a root was made, if that is known.
pub fn created(root: &RootInfo) -> Option<Time> {
    Some(root.created).filter(|time| *time != Time::default())
}

/// The name of a root for people.
pub fn show_name(root: &RootInfo) -> String {
    match &root.name {
        Some(name) => show_bytes(name.as_bytes()),
        None => "-".to_owned(),
    }
}

/// The line that says how to take a change of `branch` back, which has kept a snapshot.
pub fn take_back(volume: &Path, kept: &str, branch: &str) -> String {
    let volume = output::word(&shown(volume));
    let (kept, branch) = (output::word(kept), output::word(branch));
    format!("To take this back: cairnfs restore {volume} {kept} --branch {branch}")
}

/// Opens the branch or snapshot of a reference in an open volume; returns it with its name.
///
/// # Errors
/// There is none, or it cannot be opened.
pub fn open_in(
    fs: &Arc<FileSystem>,
    path: &Path,
    reference: &str,
) -> Result<(Arc<FileSystem>, String), Failure> {
    let failed = |e: Error| root_failure(path, reference, &e);
    let library = cairnfs::Volume::from(Arc::clone(fs));
    let root = library.find_root(reference).map_err(failed)?;
    let name = root.name.unwrap_or_default();
    let opened = fs.open_named(&name).map_err(failed)?;
    Ok((opened, name))
}

/// The failure of a call on the root `reference`.
pub fn root_failure(path: &Path, reference: &str, why: &Error) -> Failure {
    let what = format!("{}: {}", shown(path), show_bytes(reference.as_bytes()));
    match why {
        // The text of this error begins with the reference.
        Error::NoRoot { why, .. } => Failure::new(what, why)
            .hint("a snapshot or branch is NAME, BRANCH@SNAPSHOT or BRANCH@TIME"),
        other => Failure::engine(what, other),
    }
}

/// The failure of a call that would give a root the name `name`.
pub fn change_failure(path: &Path, name: &str, why: &Error) -> Failure {
    match why {
        Error::Exists => {
            let what = format!("{}: {}", shown(path), show_bytes(name.as_bytes()));
            Failure::new(what, "a snapshot or branch has this name already")
                .hint("choose another name; to see all: cairnfs log VOLUME")
        }
        other => root_failure(path, name, other),
    }
}
