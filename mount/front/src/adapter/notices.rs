//! Unsolicited messages to the kernel: cache invalidation.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use cairnfs_transport::session::Traffic;
use cairnfs_transport::{Asker, Notification, Notifier, Quiet};

use crate::apart::notifying;
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
        let sent = self.notifier.send(&Notification::inval_inode(ino, -1, 0));
        kept(ino, sent);
    }

    fn drops_attributes(&self, ino: u64) -> bool {
        let sent = self
            .notifier
            .send_known(&Notification::inval_inode(ino, -1, 0));
        sent.unwrap_or_else(|error| kept(ino, Err(error)))
    }

    fn forget_name(&self, dir: u64, name: &[u8]) {
        if let Err(e) = self.tell(&Notification::inval_entry(dir, name, false)) {
            let name = String::from_utf8_lossy(name);
            tracing::warn!("the kernel keeps the name {name:?} in inode {dir}: {e}");
        }
    }

    fn fetch_dirty(&self, ino: u64, offset: u64) -> bool {
        // A negative offset would drop only the attributes.
        let from = offset.min(i64::MAX as u64).cast_signed();
        kept(ino, self.tell(&Notification::inval_inode(ino, from, 0)))
    }

    fn is_quiet(&self, asker: Asker) -> bool {
        self.quiet.comes(asker, &|| self.mounted.unanswered())
    }

    fn transport(&self) -> Transport {
        Transport {
            name: self.traffic.transport().to_owned(),
            polled: self.traffic.polled(),
            followed: self.traffic.followed(),
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

    /// Sends a notification that waits for requests of the mount.
    fn tell(&self, notification: &Notification) -> io::Result<()> {
        let told = notifying::write(&self.mounted, self.notifier.as_fd(), notification);
        told.unwrap_or_else(|| self.notifier.send(notification))
    }
}

/// Logs a failure; returns whether there was none.
fn kept(ino: u64, sent: io::Result<()>) -> bool {
    if let Err(e) = &sent {
        tracing::warn!("the kernel keeps what it has of inode {ino}: {e}");
    }
    sent.is_ok()
}
