//! Messages to the kernel that answer no request: what it has cached is stale.

use std::io;
use std::sync::Arc;

use rustix::io::Errno as SystemError;
use zerocopy::IntoBytes;

use crate::abi::{self, DeleteOut, InvalEntryOut, InvalInodeOut, notice};
use crate::dev::Channel;

/// Sends notifications of one connection. They go over `/dev/fuse` whatever the transport of
/// requests is. The kernel may send requests while it executes one, and wait for their replies: a
/// thread that such a request needs must not notify.
#[derive(Debug, Clone)]
pub struct Notifier {
    channel: Arc<Channel>,
}

impl Notifier {
    pub(crate) fn new(channel: Arc<Channel>) -> Self {
        Self { channel }
    }

    /// Makes the kernel drop attributes of an inode, and its pages from byte `offset` on; a negative
    /// offset drops the attributes only, `length` 0 or less means up to the end. Dirty pages are
    /// written back first, and the call returns after that.
    ///
    /// # Errors
    /// The connection has ended, or the kernel does not know the notification. An inode that the
    /// kernel does not know is no error.
    pub fn inval_inode(&self, ino: u64, offset: i64, length: i64) -> io::Result<()> {
        let body = InvalInodeOut {
            ino,
            off: offset,
            len: length,
        };
        self.send(notice::INVAL_INODE, &[body.as_bytes()])
    }

    /// Makes the kernel drop an entry; if `expire_only`, it is kept while it is in use, and looked up
    /// again.
    ///
    /// # Errors
    /// As [`Self::inval_inode`].
    pub fn inval_entry(&self, dir: u64, name: &[u8], expire_only: bool) -> io::Result<()> {
        let body = InvalEntryOut {
            parent: dir,
            namelen: name.len() as u32,
            flags: match expire_only {
                true => abi::EXPIRE_ONLY,
                false => 0,
            },
        };
        self.send(notice::INVAL_ENTRY, &[body.as_bytes(), name, &[0]])
    }

    /// Announces that entry `name` of inode `ino` was removed.
    ///
    /// # Errors
    /// As [`Self::inval_inode`].
    pub fn delete(&self, dir: u64, ino: u64, name: &[u8]) -> io::Result<()> {
        let body = DeleteOut {
            parent: dir,
            child: ino,
            namelen: name.len() as u32,
            padding: 0,
        };
        self.send(notice::DELETE, &[body.as_bytes(), name, &[0]])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        match self.channel.write(0, code, parts) {
            Err(SystemError::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }
}
