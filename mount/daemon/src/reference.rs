//! References, which name a branch or snapshot of an open volume, and the failures of calls on them.
//!
//! Uses the library and failures; knows no command.

use std::path::Path;
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, RootInfo};

use crate::failure::{Failure, show_bytes, shown};

/// Opens the branch or snapshot that a reference means now in an open volume; returns it with its name.
/// One that is dropped meanwhile is looked for again.
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
    loop {
        let drops = fs.core().drops_decided();
        let root = library.find_root(reference).map_err(failed)?;
        // One that is being dropped has its name still, and cannot be opened.
        let still = || {
            fs.core().settle_drops() == drops
                && library
                    .find_root(reference)
                    .is_ok_and(|now| now.id == root.id)
        };
        match fs.open_root(root.id) {
            // One that was replaced before it was opened is a snapshot.
            Ok(opened) if root.writable && !opened.core().read_only() && opened.is_read_only() => {}
            Ok(opened) => return Ok((opened, root.name.unwrap_or_default())),
            Err(error) if still() => return Err(failed(error)),
            Err(_) => {}
        }
    }
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

/// The name of a root; nothing for one without a name.
pub fn name_of(root: &RootInfo) -> &str {
    root.name.as_deref().unwrap_or_default()
}
