//! Paths of inodes, for messages, and what they are made from.
//!
//! An inode records its parent directory; its name is searched for among the entries there. The
//! work is bounded, and no lock is held between two directories, so the path is a hint that may be
//! stale.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::fs::FileSystem;
use crate::fs::locked::attrs;
use cairnfs_disk::format::ROOT_INO;

/// Most entries of a directory that are examined.
#[doc(hidden)]
pub const MAX_ENTRIES: usize = 16_384;
/// Most levels of a path.
const MAX_LEVELS: usize = 64;

impl FileSystem {
    /// A path from the root to an inode, for messages. A component that cannot be found within the
    /// bounds is "...".
    pub fn path_hint(&self, ino: u64) -> PathBuf {
        let mut names = Vec::new();
        let mut at = ino;
        while at != ROOT_INO {
            let above = self.parent(at).filter(|_| names.len() < MAX_LEVELS);
            let Some((dir, name)) = above else {
                names.push(b"...".to_vec());
                break;
            };
            names.push(name);
            at = dir;
        }
        let mut path = PathBuf::from("/");
        path.extend(names.iter().rev().map(|name| OsStr::from_bytes(name)));
        path
    }

    /// The directory that an inode records as its parent: of a file with several names, that of one of
    /// them. It may be out of date when this returns.
    pub fn parent_hint(&self, ino: u64) -> Option<u64> {
        let inode = self.inode(ino).ok()?;
        let parent = attrs(&inode.read()).ok()?.parent;
        Some(parent)
    }

    /// The parent directory of an inode, and the inode's name there.
    fn parent(&self, ino: u64) -> Option<(u64, Vec<u8>)> {
        let dir = self.parent_hint(ino)?;
        let mut name = None;
        let mut seen = 0;
        // Another cookie might be that of an earlier listing, which lacks later entries.
        let listed = self.readdir(dir, 0, &mut |entry| {
            seen += 1;
            if entry.ino == ino {
                name = Some(entry.name.to_vec());
            }
            name.is_none() && seen < MAX_ENTRIES
        });
        if let (None, Err(_)) = (&name, listed) {
            return None;
        }
        Some((dir, name.unwrap_or_else(|| b"...".to_vec())))
    }
}
