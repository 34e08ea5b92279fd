//! Unsolicited messages to the kernel: cache invalidation.

use fuser::{INodeNo, Notifier};

use crate::ops::Kernel;

/// Implements [`Kernel`] by FUSE_NOTIFY_INVAL_INODE.
pub struct Notices(pub Notifier);

impl Kernel for Notices {
    fn forget_attributes(&self, ino: u64) {
        self.invalidate(ino, -1);
    }

    fn fetch_dirty(&self, ino: u64, offset: u64) {
        self.invalidate(ino, offset as i64);
    }
}

impl Notices {
    /// The kernel writes dirty pages back before it drops them; the call returns after that. A
    /// negative offset drops only the attributes.
    fn invalidate(&self, ino: u64, offset: i64) {
        if let Err(e) = self.0.inval_inode(INodeNo(ino), offset, 0) {
            tracing::warn!("the kernel keeps what it has of inode {ino}: {e}");
        }
    }
}
