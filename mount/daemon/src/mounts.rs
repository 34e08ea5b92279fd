//! The mounts of an open volume, as commands on snapshots and branches use them.

use std::io;
use std::path::PathBuf;

use crate::failure::Failure;
use crate::handover::frames::NamedMount;

/// The mounts of an open volume.
pub trait Mounts {
    /// Makes the kernel send what programs have written to a branch, if it is mounted.
    ///
    /// # Errors
    /// It cannot be asked for that.
    fn fetch(&self, branch: &str) -> io::Result<()>;

    /// Calls `change`, which may give the name of a branch to another root. A mount of the branch then
    /// shows the new root. Meanwhile nothing is mounted of what the names `others` lead to, and no other
    /// call of this kind concerns any of these names.
    ///
    /// # Errors
    /// The mount still shows the root of before.
    fn replacing(
        &self,
        branch: &str,
        others: &[&str],
        change: &mut dyn FnMut(),
    ) -> cairnfs::Result<()>;

    /// The name of the branch or snapshot that a mount shows now; `None` if it has none.
    fn name_of(&self, mount: &NamedMount) -> Option<String>;

    /// Whether a mount with this device number is one of these.
    fn serves(&self, device: &str) -> bool;

    /// Where a branch is mounted.
    fn mounted_on(&self, root: u32) -> Option<PathBuf>;

    /// Waits until all that was done before is in the backup of the mounts, if they have one.
    ///
    /// # Errors
    /// Those of `check`, which fails once the command was interrupted.
    fn ship(&self, check: &dyn Fn() -> Result<(), Failure>) -> Result<Shipping, Failure>;
}

/// What became of a moment that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shipping {
    /// There is no backup.
    No,
    /// All is in the store.
    Stored,
    /// It is not, or perhaps not all of it, because of this.
    Failed(String),
}
