//! Counts the log records that an opening without recovery did not apply, and finds their newest time.

use crate::inode::attrs::Attrs;
use crate::journal::recover::{read_context, scan};
use crate::txn::Core;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::types::UnappliedLog;

impl Core {
    /// Counts the log records that are newer than the newest superblock, on a volume that was opened
    /// without recovery. A damaged log is read up to the damage.
    ///
    /// # Errors
    /// A log that cannot be read; the device's failure.
    pub fn unapplied(&self) -> Result<UnappliedLog> {
        let superblock = self.superblocks.newest();
        let merged = superblock.merged_seq.get();
        let found = scan(&*self.storage, &superblock, false, true)?;
        let mut log = UnappliedLog {
            damaged: found.lost.is_some(),
            ..UnappliedLog::default()
        };
        let contexts = found.contexts.iter();
        for context in contexts.filter(|context| context.seq > merged && !context.mount) {
            log.records += 1;
            read_context(&*self.storage, &superblock, context, &mut |entry| {
                if entry.key.kind == Kind::Inode
                    && !entry.delete
                    && let Ok(attrs) = Attrs::decode(entry.key.object, entry.value)
                {
                    log.changed = log.changed.max(Some(attrs.ctime));
                }
                Ok(())
            })?;
        }
        Ok(log)
    }
}
