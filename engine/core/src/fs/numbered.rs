//! Inodes whose numbers are given: for trees that are made from another tree, before anyone sees
//! them.

use crate::fs::FileSystem;
use crate::fs::locked::attrs_mut;
use crate::fs::namespace::New;
use crate::fs::sizes::INODE_LEN;
use crate::txn::Need;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::{Attr, Flags, Time};

impl FileSystem {
    /// Creates a file of any kind, with a number that no inode of this tree has, a time of creation,
    /// and those of the flags that a directory passes on, which only files and directories can get
    /// later; with a target if `mode` is that of a symbolic link.
    ///
    /// # Errors
    /// As for [`FileSystem::make_with`].
    #[doc(hidden)]
    pub fn make_numbered(
        &self,
        dir: u64,
        name: &[u8],
        number: (u64, Time, Flags),
        (mode, rdev, target): (u32, u64, Option<&[u8]>),
    ) -> Result<()> {
        let new = New::numbered(number, mode, rdev, target);
        let (inode, _) = self.make(&self.inode(dir)?, name, &new)?;
        self.forget_one(&inode);
        Ok(())
    }

    /// Sets the time of creation of an inode.
    ///
    /// # Errors
    /// No such inode; a read-only volume, no space.
    #[doc(hidden)]
    pub fn set_birth(&self, ino: u64, time: Time) -> Result<()> {
        let inode = self.inode(ino)?;
        let reservation = self.reserve(Need::items(1, INODE_LEN, 0))?;
        let mut state = inode.write();
        let mut commit = self.commit()?;
        attrs_mut(&mut state)?.btime = time;
        commit.put_inode(&inode, &mut state);
        let receipt = commit.finish(reservation);
        drop(state);
        self.core().throttle(receipt)
    }

    /// The attributes of an inode; `None` if there is none of that number.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    #[doc(hidden)]
    pub fn attr_of(&self, ino: u64) -> Result<Option<Attr>> {
        match self.lookup_number(ino) {
            Ok(attr) => {
                self.forget(ino, 1);
                Ok(Some(attr))
            }
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
