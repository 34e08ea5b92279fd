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

/// The operations, each with its name in lower case.
macro_rules! operations {
    ($($(#[$doc:meta])* $operation:ident = $name:literal,)*) => {
        /// An operation of the protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names are those of the protocol")]
        pub enum Operation {
            $($(#[$doc])* $operation,)*
        }

        impl Operation {
            /// Its name.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Operation::$operation => $name,)*
                }
            }
        }

        /// All operations in the order of the enumeration.
        const OPERATIONS: &[Operation] = &[$(Operation::$operation),*];
    };
}

operations! {
    CopyFileRange = "copy_file_range",
    Create = "create",
    Fallocate = "fallocate",
    Flush = "flush",
    /// FORGET, or one inode of BATCH_FORGET.
    Forget = "forget",
    Fsync = "fsync",
    Fsyncdir = "fsyncdir",
    Getattr = "getattr",
    Getxattr = "getxattr",
    Ioctl = "ioctl",
    Link = "link",
    Listxattr = "listxattr",
    Lookup = "lookup",
    Lseek = "lseek",
    Mkdir = "mkdir",
    Mknod = "mknod",
    Open = "open",
    Opendir = "opendir",
    Read = "read",
    Readdir = "readdir",
    Readdirplus = "readdirplus",
    Readlink = "readlink",
    Removexattr = "removexattr",
    /// RENAME and RENAME2.
    Rename = "rename",
    Rmdir = "rmdir",
    Setattr = "setattr",
    Setxattr = "setxattr",
    Statfs = "statfs",
    Statx = "statx",
    Symlink = "symlink",
    Tmpfile = "tmpfile",
    Unlink = "unlink",
    Write = "write",
}

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
            .map(|(of, count)| (of.name().to_owned(), count.load(Ordering::Relaxed)))
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
        for (n, operation) in OPERATIONS.iter().enumerate() {
            (0..=n).for_each(|_| messages.count(*operation));
        }
        let counts = messages.counts();
        assert_eq!(counts.len(), OPERATIONS.len());
        for (n, operation) in OPERATIONS.iter().enumerate() {
            let name = operation.name();
            assert_eq!(counts[name], n as u64 + 1, "{name}");
            let spelled = format!("{operation:?}").to_lowercase();
            assert_eq!(name.replace('_', ""), spelled);
        }
    }
}
