//! Access control lists, which the kernel fetches and caches separately from the mode.
//!
//! The kernel reads the mode, possibly from before a change, and then the list, which it may also
//! have fetched before a change. In a mode that belongs to a list, the group bits hold the mask. If
//! the kernel takes such a mode for one without a list, it grants the group the mask's permissions.
//! So the kernel must never combine an inode's new mode with "no list", nor its old mode with the
//! information that the list was removed:
//!
//! - Before a list is set on an inode without one, the kernel drops its cached answer. A new
//!   request for the list waits until mode and list are changed.
//! - An inode whose list was removed is still reported to have one until the kernel forgets the
//!   inode: the minimal list that is equivalent to its mode.

use std::collections::HashSet;

use cairnfs::acl::{ACCESS, Acl};
use cairnfs::fs::FileSystem;
use cairnfs::types::KillPrivileges;
use cairnfs::{Error, Result};
use parking_lot::RwLock;

/// Number of shards, selected by inode number.
const PARTS: usize = 32;

/// The access control list state of a mount.
#[derive(Default)]
pub struct Lists {
    /// Inodes whose list was removed. Locked exclusively while a list is set, shared while one is
    /// read.
    had_one: [RwLock<HashSet<u64>>; PARTS],
}

impl Lists {
    /// Returns the access list of an inode.
    ///
    /// # Errors
    /// [`Error::NoAttribute`] if it has none; the engine's errors.
    pub fn read(&self, fs: &FileSystem, ino: u64) -> Result<Vec<u8>> {
        let had_one = self.part(ino)?.read();
        match had_one.contains(&ino) {
            true => fs.access_list(ino),
            false => fs.getxattr(ino, ACCESS),
        }
    }

    /// Sets the access list of an inode, and its mode. `forget` makes the kernel drop its cached
    /// mode and list; it must not wait.
    ///
    /// # Errors
    /// The engine's errors.
    pub fn set(
        &self,
        fs: &FileSystem,
        ino: u64,
        (value, kill): (&[u8], KillPrivileges),
        forget: impl FnOnce(),
    ) -> Result<()> {
        let mut had_one = self.part(ino)?.write();
        let has_one = match fs.getxattr(ino, ACCESS) {
            Ok(_) => true,
            Err(Error::NoAttribute) => false,
            Err(error) => return Err(error),
        };
        match has_one {
            true if Acl::parse(value).is_some_and(|list| list.is_minimal()) => {
                had_one.insert(ino);
            }
            true => {}
            false => forget(),
        }
        fs.set_access_list(ino, value, kill)
    }

    /// The kernel has dropped all its references to the inode, and with them its cached mode.
    pub fn forgotten(&self, ino: u64) {
        if let Ok(part) = self.part(ino)
            && part.read().contains(&ino)
        {
            part.write().remove(&ino);
        }
    }

    fn part(&self, ino: u64) -> Result<&RwLock<HashSet<u64>>> {
        let part = self.had_one.get(ino as usize % PARTS);
        part.ok_or(Error::Invalid("an inode without a part"))
    }
}
