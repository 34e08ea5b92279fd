//! What an open volume says about itself: identity, space, failures, its place on the host.
//!
//! Only reads; nothing depends on it.

use crate::fs::FileSystem;
use cairnfs_disk::device::{Device, FaultCounts, HostFile, HostRoom};
use cairnfs_disk::error::Error;
use cairnfs_disk::format::superblock::Superblock;
use cairnfs_disk::format::{BLOCK_SIZE, MAX_NAME};
use cairnfs_disk::types::{StatFs, Time, VolumeInfo};

impl FileSystem {
    /// The volume's identity and sizes.
    pub fn info(&self) -> VolumeInfo {
        let mut info = volume_info(&self.core().superblocks().newest());
        let used = self.core().journal().end().lsn - self.core().journal().ring().tail();
        info.log_used = used * BLOCK_SIZE as u64;
        info.front = self.core().front();
        info.older = self.core().older().cloned();
        info.left_out = self.core().left_out();
        info.space = self.core().space().unread().map(|error| error.to_string());
        info
    }

    /// Space of the volume, in blocks. Dirty data in memory counts as used, by an estimate.
    pub fn statfs(&self) -> StatFs {
        let geometry = self.core().geometry();
        let (free, available) = self.core().space_left();
        // An image cannot use more than the host has left.
        let host = self.core().space().host_left();
        let blocks = geometry.data_blocks();
        let available = available.min(host);
        StatFs {
            block_size: BLOCK_SIZE as u32,
            blocks,
            free,
            available,
            files: blocks.saturating_mul(INODES_PER_BLOCK),
            files_free: available.saturating_mul(INODES_PER_BLOCK),
            name_max: MAX_NAME as u32,
        }
    }

    /// The failure that stopped all changes, if one did.
    pub fn failure(&self) -> Option<Error> {
        self.core().storage().failure().map(|e| (**e).clone())
    }

    /// Errors since the volume was opened, including those that stopped nothing.
    pub fn faults(&self) -> FaultCounts {
        self.core().storage().faults()
    }

    /// The volume's file and its current name; `None` for a block device. Logs once when the file
    /// was displaced, and once when it has its name again.
    pub fn host_file(&self) -> Option<HostFile> {
        let file = self.core().storage().host_file()?;
        self.engine.host_name.note(&file);
        Some(file)
    }

    /// Space left on the host; `None` for a block device, and where the host cannot report it.
    pub fn host_room(&self) -> Option<HostRoom> {
        self.core().storage().host_room().ok().flatten()
    }
}

/// Estimated inodes per block: an empty file with its name takes about 256 bytes.
const INODES_PER_BLOCK: u64 = BLOCK_SIZE as u64 / 256;

/// Converts a superblock to its public form; sizes in bytes.
pub(super) fn volume_info(superblock: &Superblock) -> VolumeInfo {
    let block = BLOCK_SIZE as u64;
    VolumeInfo {
        uuid: superblock.uuid,
        label: superblock.label_text(),
        created: Time {
            secs: superblock.created.get() as i64,
            nanos: 0,
        },
        size: superblock.total_blocks.get() * block,
        log_size: superblock.log_blocks.get() * block,
        generation: superblock.generation.get(),
        merged_seq: superblock.merged_seq.get(),
        log_used: (superblock
            .required_lsn
            .get()
            .saturating_sub(superblock.tail_lsn.get()))
            * block,
        features: [
            superblock.compatible.get(),
            superblock.ro_compatible.get(),
            superblock.incompatible.get(),
        ],
        front: None,
        older: None,
        space: None,
        left_out: 0,
    }
}
