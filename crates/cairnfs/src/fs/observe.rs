//! Watching what is asked of a volume: each call that changes it or makes it durable, and how it
//! ended.
//!
//! Calls are watched one at a time: while a volume has an observer, its changing calls wait for one
//! another, so the order that the observer sees is the order they took.

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::sync::Mutex;
use crate::types::{Attr, Fallocate, KillPrivileges, RenameMode, SetAttr, XattrMode};

/// A call that changes a volume, or makes it durable. Inodes are given by number. Copying within the
/// volume shows as the writes it consists of.
#[derive(Debug, Clone, Copy)]
pub enum Call<'a> {
    /// A file, directory, symbolic link or special file is made under a name.
    Make {
        /// The directory.
        dir: u64,
        /// The name.
        name: &'a [u8],
        /// What a symbolic link holds; empty for all else.
        target: &'a [u8],
        /// Names and values of the attributes that it is made with.
        xattrs: &'a [(&'a [u8], &'a [u8])],
    },
    /// A file without a name is made.
    Tmpfile,
    /// A further name for a file.
    Link {
        /// The file.
        ino: u64,
        /// The directory.
        dir: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A name is taken away.
    Remove {
        /// The directory.
        dir: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A name is moved, or exchanged with another. It gives the whiteout if it leaves one.
    Rename {
        /// Directory and name before.
        from: (u64, &'a [u8]),
        /// Directory and name after.
        to: (u64, &'a [u8]),
        /// What happens to what the new name holds.
        mode: RenameMode,
    },
    /// Bytes are written to a file.
    Write {
        /// The file.
        ino: u64,
        /// Where; `None` for the end.
        offset: Option<u64>,
        /// The bytes.
        data: &'a [u8],
        /// Set-id bits that are cleared.
        kill: KillPrivileges,
    },
    /// Attributes are set.
    SetAttr {
        /// The inode.
        ino: u64,
        /// Which.
        set: &'a SetAttr,
    },
    /// Space of a file is allocated, zeroed or given back.
    Fallocate {
        /// The file.
        ino: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What.
        what: Fallocate,
        /// Set-id bits that are cleared.
        kill: KillPrivileges,
    },
    /// An access list is set, and the mode follows.
    SetAccessList {
        /// The inode.
        ino: u64,
        /// The list's bytes.
        value: &'a [u8],
        /// Whether there may or must be a list.
        mode: XattrMode,
        /// Whether set-group-id is cleared.
        kill: KillPrivileges,
    },
    /// An extended attribute is set.
    SetXattr {
        /// The inode.
        ino: u64,
        /// The attribute.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// Whether it may or must exist.
        mode: XattrMode,
    },
    /// An extended attribute is removed.
    RemoveXattr {
        /// The inode.
        ino: u64,
        /// The attribute.
        name: &'a [u8],
    },
    /// Several inodes are made durable at once.
    FsyncAll {
        /// They.
        inodes: &'a [u64],
    },
    /// An inode is made durable.
    Fsync {
        /// The inode.
        ino: u64,
        /// Times alone need not be.
        data_only: bool,
    },
    /// Everything is made durable.
    Sync,
}

/// How a call ended.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// It was done, and there is nothing to tell.
    Done,
    /// It gave an inode, with these attributes.
    Inode(&'a Attr),
    /// It gave a number: bytes written, or where an append began.
    Number(u64),
    /// It failed.
    Failed(&'a Error),
}

/// Who is told of the calls. Both methods run while the next call waits, and must not change the
/// volume.
pub trait Observer: Debug + Send + Sync {
    /// A call begins.
    fn begin(&self, call: &Call<'_>);
    /// The call that began last has ended; `fs` shows what it left.
    fn end(&self, fs: &FileSystem, call: &Call<'_>, outcome: &Outcome<'_>);
    /// Whether everything becomes durable now, before the next call, as at the end of an interval;
    /// asked after each call. Nobody is promised anything by that.
    fn interval_ends(&self) -> bool {
        false
    }
}

/// What calls return.
pub(super) trait Answer {
    /// As an observer is told.
    fn outcome(&self) -> Outcome<'_>;
}

impl Answer for () {
    fn outcome(&self) -> Outcome<'_> {
        Outcome::Done
    }
}

impl Answer for Attr {
    fn outcome(&self) -> Outcome<'_> {
        Outcome::Inode(self)
    }
}

impl Answer for Option<Attr> {
    fn outcome(&self) -> Outcome<'_> {
        self.as_ref().map_or(Outcome::Done, Outcome::Inode)
    }
}

impl Answer for (Arc<Inode>, Attr) {
    fn outcome(&self) -> Outcome<'_> {
        Outcome::Inode(&self.1)
    }
}

impl Answer for usize {
    fn outcome(&self) -> Outcome<'_> {
        Outcome::Number(*self as u64)
    }
}

impl Answer for u64 {
    fn outcome(&self) -> Outcome<'_> {
        Outcome::Number(*self)
    }
}

/// An observer, and whose turn it is.
pub(super) struct Watch {
    observer: Arc<dyn Observer>,
    turn: Mutex<()>,
}

impl Watch {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            observer,
            turn: Mutex::new(()),
        }
    }
}

impl FileSystem {
    /// Runs a call, and tells the observer if there is one. A panic in it stops the volume: what it
    /// was doing is not known.
    pub(super) fn observed<T: Answer>(
        &self,
        call: Call<'_>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let run = || {
            let guard = self.core.storage().guard("a call panicked");
            let result = run();
            guard.done();
            result
        };
        let Some(watch) = &self.watch else {
            return run();
        };
        let _turn = watch.turn.lock();
        watch.observer.begin(&call);
        let result = run();
        let outcome = match &result {
            Ok(answer) => answer.outcome(),
            Err(e) => Outcome::Failed(e),
        };
        watch.observer.end(self, &call, &outcome);
        if watch.observer.interval_ends() {
            // A failure is kept by the volume, and the next call that promises anything tells it.
            let _ = self.sync_all();
        }
        result
    }
}
