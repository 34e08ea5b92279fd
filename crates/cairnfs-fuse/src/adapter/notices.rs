//! Unsolicited messages to the kernel: cache invalidation.

use std::sync::Arc;

use cairnfs_transport::session::Traffic;
use cairnfs_transport::{Asker, Notifier, Quiet};

use crate::mounted::Mounted;
use crate::ops::Kernel;
use crate::status::Transport;

/// Implements [`Kernel`] by FUSE_NOTIFY_INVAL_INODE and FUSE_NOTIFY_INVAL_ENTRY.
pub struct Notices {
    notifier: Notifier,
    quiet: Arc<Quiet>,
    traffic: Traffic,
    mounted: Arc<Mounted>,
}

impl Kernel for Notices {
    fn forget_attributes(&self, ino: u64) {
        self.invalidate(ino, -1);
    }

    fn forget_name(&self, dir: u64, name: &[u8]) {
        if let Err(e) = self.notifier.inval_entry(dir, name, false) {
            let name = String::from_utf8_lossy(name);
            tracing::warn!("the kernel keeps the name {name:?} in inode {dir}: {e}");
        }
    }

    fn fetch_dirty(&self, ino: u64, offset: u64) {
        self.invalidate(ino, offset as i64);
    }

    fn is_quiet(&self, asker: Asker) -> bool {
        self.quiet.comes(asker, &|| self.mounted.unanswered())
    }

    fn transport(&self) -> Transport {
        Transport {
            name: self.traffic.transport().to_owned(),
            polled: self.traffic.polled(),
        }
    }
}

impl Notices {
    /// Notifies by `notifier`, waits for `quiet`, and reports `traffic`, all of the connection that is
    /// `mounted`.
    pub fn new(
        notifier: Notifier,
        quiet: Arc<Quiet>,
        traffic: Traffic,
        mounted: Arc<Mounted>,
    ) -> Self {
        Self {
            notifier,
            quiet,
            traffic,
            mounted,
        }
    }

    /// The kernel writes dirty pages back before it drops them; the call returns after that. A
    /// negative offset drops only the attributes.
    fn invalidate(&self, ino: u64, offset: i64) {
        if let Err(e) = self.notifier.inval_inode(ino, offset, 0) {
            tracing::warn!("the kernel keeps what it has of inode {ino}: {e}");
        }
    }
}
