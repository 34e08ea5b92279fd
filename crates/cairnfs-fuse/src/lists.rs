//! Access lists, which the kernel fetches and keeps apart from the mode that belongs to them.
//!
//! It reads the mode, which it may have from before a change, and then the list, which it may have
//! fetched before one. A mode that comes with a list has the mask in the place of the group's
//! permissions; taken for a mode without one, it grants the group what only the mask allows. So a
//! kernel must neither have an inode's new mode and know of no list, nor its old mode and hear that
//! the list is gone:
//!
//! - Before a list is set the kernel forgets what it knows of one, and asks in vain until mode and
//!   list are there.
//! - An inode whose list was taken away has one until it is forgotten: that for which its mode stands.

use std::collections::HashSet;

use cairnfs::acl::{ACCESS, Acl};
use cairnfs::fs::FileSystem;
use cairnfs::types::KillPrivileges;
use cairnfs::{Error, Result};
use parking_lot::RwLock;

/// Parts, by inode.
const PARTS: usize = 32;

/// What a mount remembers of access lists.
#[derive(Default)]
pub struct Lists {
    /// Inodes whose list was taken away. Locked while one is set, shared while one is read.
    had_one: [RwLock<HashSet<u64>>; PARTS],
}

impl Lists {
    /// The access list of an inode.
    ///
    /// # Errors
    /// [`Error::NoAttribute`] if it has none; what the engine says.
    pub fn read(&self, fs: &FileSystem, ino: u64) -> Result<Vec<u8>> {
        let had_one = self.part(ino)?.read();
        match had_one.contains(&ino) {
            true => fs.access_list(ino),
            false => fs.getxattr(ino, ACCESS),
        }
    }

    /// Sets the access list of an inode, and its mode. `forget` has the kernel forget what it knows
    /// of them; without waiting.
    ///
    /// # Errors
    /// What the engine says.
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

    /// The kernel knows nothing of an inode any more.
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
