//! Whole roots as the objects of operations: comparing two, sending and
//! receiving one, publishing and restoring a branch.
//!
//! Connects the file system with references, comparison and streams, which do not know
//! each other. References are resolved here; everything below works with ids and trees.

mod apply;
mod compare;
mod frozen;
mod graft;
mod limited;
mod lineage;
mod named;
mod numbers;
mod publish;
mod receive;
mod received;
mod region;
mod replaced;
mod restore;
mod send;
mod stage;
mod succession;

pub use compare::Diff;
pub use publish::{PublishOptions, Published, publish};
pub use receive::receive;
pub use replaced::drop_oldest;
pub use restore::restore;
pub use send::send;
pub use succession::{ChangedInode, Succession};

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::operations::named::with_roots;
use cairnfs_core::fs::FileSystem;
use cairnfs_core::refs;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::RootInfo;

/// Drops the root of a reference. Its name is gone at once, its space is freed in the background.
///
/// # Errors
/// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot); a root that is in use, or cannot be dropped; the
/// device's failure.
pub fn drop_root(fs: &FileSystem, reference: &str) -> Result<()> {
    with_roots(fs, [reference], |[root]| fs.drop_id(root.id, name_of(root)))
}

/// Makes a snapshot of the branch of a reference.
///
/// # Errors
/// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot); [`Error::Exists`](cairnfs_disk::Error::Exists);
/// [`Error::Invalid`](cairnfs_disk::Error::Invalid) for a snapshot; as a snapshot of an open branch.
pub fn snapshot(fs: &FileSystem, branch: &str, name: &str) -> Result<RootInfo> {
    with_roots(fs, [branch], |[root]| {
        if root.writable {
            fs.open_root(root.id)?.new_snapshot(name)
        } else {
            Err(Error::Invalid(
                "a snapshot of a snapshot is the same one: make a branch of it, or rename it",
            ))
        }
    })
}

/// Makes a branch that begins as the root of a reference.
///
/// # Errors
/// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot); [`Error::Exists`](cairnfs_disk::Error::Exists); as a branch of an
/// open one.
pub fn branch(fs: &FileSystem, from: &str, name: &str) -> Result<RootInfo> {
    with_roots(fs, [from], |[root]| fs.open_root(root.id)?.new_branch(name))
}

fn name_of(root: &RootInfo) -> &str {
    root.name.as_deref().unwrap_or_default()
}

/// The names on a path in a tree, from its root directory on.
fn names_of(path: &Path) -> Vec<&[u8]> {
    let names = path.as_os_str().as_bytes().split(|b| *b == b'/');
    let names = names.filter(|name| !name.is_empty() && *name != b".");
    names.collect()
}

/// The root of a reference.
///
/// # Errors
/// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot), which lists what there is.
pub fn find(fs: &FileSystem, reference: &str) -> Result<RootInfo> {
    find_in_zone(fs, reference, None)
}

/// The root of a reference, whose times are in a time zone, as in [`refs::resolve`].
pub fn find_in_zone(fs: &FileSystem, reference: &str, zone: Option<&str>) -> Result<RootInfo> {
    refs::resolve(reference, &fs.roots(), fs.core().now(), zone).cloned()
}
