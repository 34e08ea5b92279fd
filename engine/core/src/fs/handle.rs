//! Lookup by inode number, for file handles that outlive the kernel's inode cache and the mount.
//!
//! While a volume is open, numbers are not reused; after a crash those of inodes that were not
//! durable are, with a later time of birth. Numbers come from the caller and may be forged: a
//! lookup of a number without an inode adds nothing to the inode table.

use crate::fs::FileSystem;
use crate::fs::locked::live_dir;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::Attr;

impl FileSystem {
    /// Looks up an inode by number and takes one use of it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the number was never assigned, the inode is removed, or it is about
    /// to be removed because it has neither names nor uses.
    pub fn lookup_number(&self, ino: u64) -> Result<Attr> {
        self.engine.lifecycle.check_open()?;
        if !self.items().may_exist(ino)? {
            return Err(Error::NotFound);
        }
        self.use_inode(&*self.items().inode(ino)?)
    }

    /// The parent of a directory, with one use taken. The root is its own parent.
    ///
    /// # Errors
    /// As for [`FileSystem::lookup_number`]; not a directory.
    pub fn lookup_parent(&self, ino: u64) -> Result<Attr> {
        self.engine.lifecycle.check_open()?;
        if !self.items().may_exist(ino)? {
            return Err(Error::NotFound);
        }
        let parent = live_dir(&self.items().inode(ino)?.read())?.parent;
        self.lookup_number(parent)
    }
}
