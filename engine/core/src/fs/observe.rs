//! Observing a volume: each call that changes it or makes it durable, and the call's outcome.
//!
//! Observed calls run one at a time: while a volume has an observer, its changing calls wait for
//! one another, so the order that the observer sees is the order in which they took effect.

use std::fmt::Debug;
use std::sync::Arc;

use crate::fs::FileSystem;
use crate::inode::Inode;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::types::{
    Attr, Fallocate, KillPrivileges, RenameMode, RootInfo, SetAttr, XattrMode,
};

/// A call that changes a volume, or makes it durable. Inodes are given by number, in the root of the
/// file system that is called. Copying within the volume is observed as its writes.
#[derive(Debug, Clone, Copy)]
pub enum Call<'a> {
    /// A file, directory, symbolic link or special file is created under a name.
    Make {
        /// The directory.
        dir: u64,
        /// The name.
        name: &'a [u8],
        /// The target of a symbolic link; empty for all other kinds.
        target: &'a [u8],
        /// Names and values of its initial extended attributes.
        xattrs: &'a [(&'a [u8], &'a [u8])],
    },
    /// A file without a name is created.
    Tmpfile,
    /// Another name is added to a file.
    Link {
        /// The file.
        ino: u64,
        /// The directory.
        dir: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A name is removed.
    Remove {
        /// The directory.
        dir: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A name is moved, or exchanged with another. The outcome is the whiteout, if one was made.
    Rename {
        /// Directory and name before.
        from: (u64, &'a [u8]),
        /// Directory and name after.
        to: (u64, &'a [u8]),
        /// What happens to an existing entry of the new name.
        mode: RenameMode,
    },
    /// Bytes are written to a file.
    Write {
        /// The file.
        ino: u64,
        /// The offset in bytes; `None` for the end.
        offset: Option<u64>,
        /// The bytes.
        data: &'a [u8],
        /// Which set-id bits are cleared.
        kill: KillPrivileges,
    },
    /// Attributes are set.
    SetAttr {
        /// The inode.
        ino: u64,
        /// The attributes.
        set: &'a SetAttr,
    },
    /// Space of a file is allocated, zeroed or freed.
    Fallocate {
        /// The file.
        ino: u64,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The operation.
        what: Fallocate,
        /// Which set-id bits are cleared.
        kill: KillPrivileges,
    },
    /// An access list is set, and the mode with it.
    SetAccessList {
        /// The inode.
        ino: u64,
        /// The encoded list.
        value: &'a [u8],
        /// Whether a list may or must exist.
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
        /// The inodes.
        inodes: &'a [u64],
    },
    /// An inode is made durable.
    Fsync {
        /// The inode.
        ino: u64,
        /// Times need not become durable.
        data_only: bool,
    },
    /// Everything is made durable.
    Sync,
    /// A snapshot of all files of this root is made.
    Snapshot {
        /// Its name.
        name: &'a str,
    },
    /// A snapshot is dropped.
    DropRoot {
        /// Its name.
        name: &'a str,
    },
    /// A branch that begins with all files of this root is made. The outcome is its id.
    Branch {
        /// Its name.
        name: &'a str,
    },
    /// Another branch takes the name of this one.
    Replace {
        /// Id of the other branch.
        staged: u32,
        /// The name of this one from then on.
        kept: &'a str,
    },
    /// A root gets another name.
    RenameRoot {
        /// Its name.
        old: &'a str,
        /// Its new name.
        new: &'a str,
    },
}

impl Call<'_> {
    /// Whether it waits while the writers of its root are held: it changes files, or what they were
    /// forked from.
    fn is_held(&self) -> bool {
        match self {
            Call::Make { .. }
            | Call::Tmpfile
            | Call::Link { .. }
            | Call::Remove { .. }
            | Call::Rename { .. }
            | Call::Write { .. }
            | Call::SetAttr { .. }
            | Call::Fallocate { .. }
            | Call::SetAccessList { .. }
            | Call::SetXattr { .. }
            | Call::RemoveXattr { .. }
            | Call::Snapshot { .. }
            | Call::Branch { .. } => true,
            Call::FsyncAll { .. }
            | Call::Fsync { .. }
            | Call::Sync
            | Call::DropRoot { .. }
            | Call::Replace { .. }
            | Call::RenameRoot { .. } => false,
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// It succeeded without a value.
    Done,
    /// It returned an inode, with these attributes.
    Inode(&'a Attr),
    /// It returned a number: bytes written, the offset of an append, or the id of a branch.
    Number(u64),
    /// It failed.
    Failed(&'a Error),
}

/// Receives the calls of a volume. All methods run while the next call waits, and must not change
/// the volume.
pub trait Observer: Debug + Send + Sync {
    /// A call begins.
    fn begin(&self, call: &Call<'_>);
    /// The last call that began has ended; `fs` is the root that was called, in the state after it.
    fn end(&self, fs: &FileSystem, call: &Call<'_>, outcome: &Outcome<'_>);
    /// Whether to make everything durable before the next call, as at the end of a durability
    /// interval; asked after each call. A failure of it is not reported to a caller.
    fn interval_ends(&self) -> bool {
        false
    }
}

/// A result type of observed calls.
pub(super) trait Answer {
    /// The result as an observer sees it.
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

impl Answer for RootInfo {
    fn outcome(&self) -> Outcome<'_> {
        if self.writable {
            Outcome::Number(self.id.into())
        } else {
            Outcome::Done
        }
    }
}

/// An observer, and the lock that orders observed calls.
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
    /// Runs a call, and reports it to the observer if there is one. A panic in it stops the volume,
    /// because its state is then unknown.
    pub(super) fn observed<T: Answer>(
        &self,
        call: Call<'_>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if call.is_held() {
            self.root.gate.pass()?;
        }
        let run = || {
            let guard = self.core().storage().guard("a call panicked");
            let result = run();
            guard.done();
            result
        };
        let Some(watch) = &self.engine.watch else {
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
            // The volume keeps a failure, and the next fsync or sync returns it.
            let _ = self.sync_all();
        }
        result
    }
}
