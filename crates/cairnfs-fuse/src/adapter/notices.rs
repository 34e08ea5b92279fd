//! The way to the kernel: unasked messages.

use fuser::{INodeNo, Notifier};

use crate::ops::Kernel;

/// The way to the kernel: unasked messages.
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
    /// The kernel writes dirty pages before it drops them, and then answers.
    fn invalidate(&self, ino: u64, offset: i64) {
        if let Err(e) = self.0.inval_inode(INodeNo(ino), offset, 0) {
            tracing::warn!("the kernel keeps what it has of inode {ino}: {e}");
        }
    }
}
