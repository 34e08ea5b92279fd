//! The tree that a stream builds, as the receiver sees it.

use cairnfs_disk::error::Result;
use cairnfs_disk::format::stream::{RawBegin, Record};
use cairnfs_disk::types::FileKind;

/// The tree that a stream builds: the base of the stream with the records applied so far, hidden
/// until the stream has ended. What the checks need to know of earlier records they ask here.
///
/// Inode numbers are those of the stream. A tree on another volume maps them to its own.
pub trait Target {
    /// Type of an inode; `None` if there is none. Inodes without names are found, too.
    fn kind(&self, ino: u64) -> Result<Option<FileKind>>;

    /// Size of a file or symbolic link in bytes.
    fn size(&self, ino: u64) -> Result<u64>;

    /// Number of names of an inode. A directory has one or none.
    fn names(&self, ino: u64) -> Result<u64>;

    /// The directory that holds a directory; `None` if it has no name.
    fn parent(&self, dir: u64) -> Result<Option<u64>>;

    /// The inode with a name.
    fn holder(&self, dir: u64, name: &[u8]) -> Result<Option<u64>>;

    /// Whether a directory has no entries.
    fn is_empty(&self, dir: u64) -> Result<bool>;

    /// Begins: finds the base of the stream, or an empty tree that has only a root directory.
    ///
    /// # Errors
    /// There is no such base; a failure of the target.
    fn begin(&mut self, begin: &RawBegin) -> Result<()>;

    /// Applies a record that was checked.
    fn apply(&mut self, record: &Record<'_>) -> Result<()>;
}
