//! Durability on request.

use crate::deliberate::{Deliberate, happens};
use crate::error::Result;
use crate::fs::FileSystem;
use crate::fs::locked::attrs;
use crate::fs::observe::Call;
use crate::txn::Wish;

impl FileSystem {
    /// Makes a file or directory durable: data, attributes, extended attributes, every name it has
    /// and the directories that lead to it; of a directory also all its entries. With `data_only`
    /// all but the times of a file.
    ///
    /// # Errors
    /// The device's failure, now or earlier: then nothing is known of what was not yet durable.
    pub fn fsync(&self, ino: u64, data_only: bool) -> Result<()> {
        self.observed(Call::Fsync { ino, data_only }, || {
            self.sync_inodes(&[ino], data_only)
        })
    }

    /// Makes several files and directories durable, each as [`FileSystem::fsync`] does, with one
    /// flush for all.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`]; one that does not exist.
    pub fn fsync_all(&self, inodes: &[u64]) -> Result<()> {
        self.observed(Call::FsyncAll { inodes }, || {
            self.sync_inodes(inodes, false)
        })
    }

    fn sync_inodes(&self, inodes: &[u64], data_only: bool) -> Result<()> {
        let _forcing = self.core.forcing();
        let mut wishes = Vec::with_capacity(inodes.len());
        for ino in inodes {
            let inode = self.inode(*ino)?;
            attrs(&inode.read())?;
            if !self.core.read_only() && !happens(Deliberate::FsyncWithoutPages) {
                self.write_back_staged(&inode)?;
            }
            wishes.push(Wish {
                ino: *ino,
                data_only,
            });
        }
        if self.core.read_only() {
            return Ok(());
        }
        self.core.force_inodes(&wishes)
    }

    /// Brings everything committed so far into the index and moves the log's tail. Workers do this
    /// when it is due; a program that drives the volume itself does it when it likes.
    ///
    /// # Errors
    /// The device's failure, damage in the index: both stop the volume.
    pub fn merge(&self) -> Result<()> {
        self.core.merge()
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn sync(&self) -> Result<()> {
        self.observed(Call::Sync, || self.sync_all())
    }

    pub(super) fn sync_all(&self) -> Result<()> {
        if self.core.read_only() {
            return Ok(());
        }
        self.write_back_all()?;
        self.core.force_all()
    }
}
