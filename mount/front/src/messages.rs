//! Counts the kernel's messages to the daemon, by operation of the FUSE protocol.
//!
//! The front that receives messages calls [`Messages::count`] once for each, before it does
//! anything else; nothing here knows a transport. A message that the front refuses or answers with
//! `ENOSYS` counts too. Not counted are messages that no front sees (INIT, DESTROY, INTERRUPT,
//! RELEASE) and those by which commands ask the daemon ([`crate::control`]): a report does not
//! change itself.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// An operation of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the protocol")]
pub enum Operation {
    CopyFileRange,
    Create,
    Fallocate,
    Flush,
    /// FORGET, or one inode of BATCH_FORGET.
    Forget,
    Fsync,
    Fsyncdir,
    Getattr,
    Getxattr,
    Ioctl,
    Link,
    Listxattr,
    Lookup,
    Lseek,
    Mkdir,
    Mknod,
    Open,
    Opendir,
    Read,
    Readdir,
    Readdirplus,
    Readlink,
    Removexattr,
    /// RENAME and RENAME2.
    Rename,
    Rmdir,
    Setattr,
    Setxattr,
    Statfs,
    Statx,
    Symlink,
    Tmpfile,
    Unlink,
    Write,
}

/// All operations in the order of the enumeration, with their names in lower case.
const OPERATIONS: [(Operation, &str); 33] = [
    (Operation::CopyFileRange, "copy_file_range"),
    (Operation::Create, "create"),
    (Operation::Fallocate, "fallocate"),
    (Operation::Flush, "flush"),
    (Operation::Forget, "forget"),
    (Operation::Fsync, "fsync"),
    (Operation::Fsyncdir, "fsyncdir"),
    (Operation::Getattr, "getattr"),
    (Operation::Getxattr, "getxattr"),
    (Operation::Ioctl, "ioctl"),
    (Operation::Link, "link"),
    (Operation::Listxattr, "listxattr"),
    (Operation::Lookup, "lookup"),
    (Operation::Lseek, "lseek"),
    (Operation::Mkdir, "mkdir"),
    (Operation::Mknod, "mknod"),
    (Operation::Open, "open"),
    (Operation::Opendir, "opendir"),
    (Operation::Read, "read"),
    (Operation::Readdir, "readdir"),
    (Operation::Readdirplus, "readdirplus"),
    (Operation::Readlink, "readlink"),
    (Operation::Removexattr, "removexattr"),
    (Operation::Rename, "rename"),
    (Operation::Rmdir, "rmdir"),
    (Operation::Setattr, "setattr"),
    (Operation::Setxattr, "setxattr"),
    (Operation::Statfs, "statfs"),
    (Operation::Statx, "statx"),
    (Operation::Symlink, "symlink"),
    (Operation::Tmpfile, "tmpfile"),
    (Operation::Unlink, "unlink"),
    (Operation::Write, "write"),
];

/// Number of messages since the mount, by operation. Shared by all threads, without a lock.
#[derive(Debug)]
pub struct Messages {
    counts: [AtomicU64; OPERATIONS.len()],
}

impl Default for Messages {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; OPERATIONS.len()],
        }
    }
}

thread_local! {
    /// Whether messages of this thread were counted before.
    static AGAIN: Cell<bool> = const { Cell::new(false) };
}

/// Runs a job that serves messages again, which were counted the first time.
pub fn uncounted(job: impl FnOnce()) {
    AGAIN.set(true);
    // Requests that panic are answered by the transport, so this returns.
    job();
    AGAIN.set(false);
}

impl Messages {
    /// Counts one message.
    pub fn count(&self, operation: Operation) {
        if AGAIN.get() {
            return;
        }
        if let Some(count) = self.counts.get(operation as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of messages of each operation, those with none included.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let counts = OPERATIONS.iter().zip(&self.counts);
        counts
            .map(|((_, name), count)| ((*name).to_owned(), count.load(Ordering::Relaxed)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_are_served_again_are_counted_once() {
        let messages = Messages::default();
        messages.count(Operation::Read);
        uncounted(|| messages.count(Operation::Read));
        messages.count(Operation::Read);
        assert_eq!(messages.counts()["read"], 2);
    }

    #[test]
    fn each_operation_has_its_own_count() {
        let messages = Messages::default();
        for (n, (operation, _)) in OPERATIONS.into_iter().enumerate() {
            (0..=n).for_each(|_| messages.count(operation));
        }
        let counts = messages.counts();
        assert_eq!(counts.len(), OPERATIONS.len());
        for (n, (operation, name)) in OPERATIONS.into_iter().enumerate() {
            assert_eq!(counts[name], n as u64 + 1, "{name}");
            let spelled = format!("{operation:?}").to_lowercase();
            assert_eq!(name.replace('_', ""), spelled);
        }
    }
}
