//! Messages to the kernel that answer no request: what it has cached is stale.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno as SystemError;
use zerocopy::IntoBytes;

use crate::abi::{self, DeleteOut, InvalEntryOut, InvalInodeOut, OutHeader, notice};
use crate::dev::Channel;

/// A notification, which is one write to a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification(Vec<u8>);

impl Notification {
    /// Makes the kernel drop attributes of an inode, and its pages from byte `offset` on; a negative
    /// offset drops the attributes only, `length` 0 or less means up to the end. Dirty pages are
    /// written back first, and the write returns after that.
    pub fn inval_inode(ino: u64, offset: i64, length: i64) -> Self {
        let body = InvalInodeOut {
            ino,
            off: offset,
            len: length,
        };
        Self::new(notice::INVAL_INODE, &[body.as_bytes()])
    }

    /// Makes the kernel drop an entry; if `expire_only`, it is kept while it is in use, and looked up
    /// again.
    pub fn inval_entry(dir: u64, name: &[u8], expire_only: bool) -> Self {
        let body = InvalEntryOut {
            parent: dir,
            namelen: name.len() as u32,
            flags: if expire_only { abi::EXPIRE_ONLY } else { 0 },
        };
        Self::new(notice::INVAL_ENTRY, &[body.as_bytes(), name, &[0]])
    }

    /// Announces that entry `name` of inode `ino` was removed.
    pub fn delete(dir: u64, ino: u64, name: &[u8]) -> Self {
        let body = DeleteOut {
            parent: dir,
            child: ino,
            namelen: name.len() as u32,
            padding: 0,
        };
        Self::new(notice::DELETE, &[body.as_bytes(), name, &[0]])
    }

    /// A notification has no number, and its code in place of the error.
    fn new(code: i32, body: &[&[u8]]) -> Self {
        let body = body.concat();
        let header = OutHeader {
            len: (size_of::<OutHeader>() + body.len()) as u32,
            error: code,
            unique: 0,
        };
        Self([header.as_bytes(), &body].concat())
    }

    /// The bytes to write.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The result of a write that the kernel has answered so. That it does not know the inode or entry
    /// is no error.
    ///
    /// # Errors
    /// The connection has ended, or the kernel does not know the notification.
    pub fn outcome(written: Result<usize, SystemError>) -> io::Result<()> {
        match written {
            Ok(_) | Err(SystemError::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sends notifications of one connection. They go over `/dev/fuse` whatever the transport of
/// requests is. The kernel may send requests while it executes one, and wait for their replies: a
/// thread that such a request needs must not notify. As it waits without an end by signals, another
/// process may write [`Notification::bytes`] to the connection.
#[derive(Debug, Clone)]
pub struct Notifier {
    channel: Arc<Channel>,
}

impl Notifier {
    pub(crate) fn new(channel: Arc<Channel>) -> Self {
        Self { channel }
    }

    /// Sends a notification.
    pub fn send(&self, notification: &Notification) -> io::Result<()> {
        self.send_known(notification).map(drop)
    }

    /// As [`Self::send`]; returns whether the kernel knows the inode or entry.
    ///
    /// # Errors
    /// As [`Notification::outcome`].
    pub fn send_known(&self, notification: &Notification) -> io::Result<bool> {
        loop {
            match rustix::io::write(&*self.channel, notification.bytes()) {
                Err(SystemError::INTR) => {}
                Err(SystemError::NOENT) => return Ok(false),
                written => return Notification::outcome(written).map(|()| true),
            }
        }
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
