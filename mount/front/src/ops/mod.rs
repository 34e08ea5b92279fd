//! The operations of a mounted volume, independent of the transport.
//!
//! Uses the engine, and of the transport only the kinds of askers: requests come as plain arguments, refusals are
//! returned as errno values. Inodes are named by the kernel's node ids, whose meaning [`crate::trees`]
//! knows. The operations are in files of their own by subject: `entries`, `attributes`, `contents`,
//! `asking` (what concerns the mount as a whole), `programs` (what programs ask without the kernel) and
//! `replacing` (another tree takes the place of the mounted one). They handle umask, clearing of privileges, inherited access control lists, reserved
//! attributes, the end of a mount, and lost writes. The kernel has already checked permissions
//! (`default_permissions`).
//!
//! Checks in the daemon would not be as strict. `open` of a cached file, and a walk through cached
//! names, send no message, and the names below a directory cannot be dropped before its chmod returns:
//! the notification waits for the lock that the chmod holds. A message has user, group and thread of
//! its caller; groups and capabilities in `/proc` are the thread's own, and requests through overlayfs,
//! NFS or an io_uring personality are made with others. No reply refreshes a directory's attributes but
//! one that returns it, so a create costs a GETATTR on kernels up to 6.18.
//!
//! Invariant: an operation looks up once which tree its ids mean, and does all of its work there. If
//! the tree was replaced meanwhile and refuses, nothing was done, and the operation begins again.

mod asking;
mod attributes;
mod contents;
pub mod deferred;
mod entries;
mod program_contents;
mod program_dirs;
mod program_looks;
pub mod programs;
mod replacing;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairnfs::Error;
use cairnfs::fs::FileSystem;
use cairnfs_disk::device::waiting::{self, Waits};
use cairnfs_disk::types::{Attr, FileKind};
use cairnfs_transport::Asker;
use parking_lot::{Mutex, MutexGuard, RwLock};

pub use self::entries::Unused;
use crate::access_lists::Lists;
use crate::admission::Admission;
use crate::cached_listings::Listings;
pub use crate::caller::Caller;
pub use crate::convert::Outcome;
use crate::convert::Refusal;
use crate::deferrals::Deferrals;
use crate::fault::{InjectedFault, is_injected};
use crate::full::Full;
use crate::known_dirs::KnownDirs;
use crate::losses::Losses;
use crate::messages::{Messages, Operation};
use crate::options::WriteMode;
use crate::program_counts::ProgramCounts;
use crate::program_files::ProgramFiles;
use crate::status::{Backup, Transport};
use crate::trees::{Place, STALE, Trees};

/// Time for which a replacement waits for the renewal of a listing.
const RENEWAL_MAX: Duration = Duration::from_secs(1);

/// Runs one operation. A panic in it is logged and refused as EIO.
pub fn caught<T>(what: &str, ino: u64, op: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(op)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        tracing::error!("{what} of inode {ino} panicked: {text}");
        Err(Refusal(libc::EIO))
    })
}

/// Parameters of a new directory entry.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry<'a> {
    /// The calling process.
    pub caller: Caller,
    /// Inode number of the directory.
    pub dir: u64,
    /// The name in it.
    pub name: &'a [u8],
    /// Type bits and permissions as asked for.
    pub mode: u32,
    /// The caller's umask; it applies only if the directory has no default access control list.
    pub umask: u32,
}

/// Requests from the daemon to the kernel. The implementation logs failures.
pub trait Kernel: Send + Sync {
    /// Makes the kernel drop its cached attributes and access list of an inode. Returns at once.
    fn forget_attributes(&self, ino: u64);

    /// As [`Self::forget_attributes`]; returns whether the kernel has the inode.
    fn drops_attributes(&self, ino: u64) -> bool {
        self.forget_attributes(ino);
        true
    }

    /// Makes the kernel drop what it knows of a name in a directory, also that there is none. Waits
    /// for operations in this directory, so it must not be called in an event loop, nor with a lock
    /// that an operation needs.
    fn forget_name(&self, dir: u64, name: &[u8]);

    /// Makes the kernel write back the dirty pages of a file from byte `offset` on, and waits for
    /// that; the kernel also drops its clean pages there, of a directory the cached listing, and the
    /// attributes. Returns whether it was told. Must not be called in an event loop,
    /// which has to receive those writes.
    fn fetch_dirty(&self, ino: u64, offset: u64) -> bool;

    /// Waits, on behalf of `asker`, for a moment in which each write that the kernel has sent is
    /// answered. Returns whether there soon was one. Must not be called in an event loop.
    fn is_quiet(&self, asker: Asker) -> bool;

    /// The transport of the kernel's messages.
    fn transport(&self) -> Transport;
}

/// An inode to which a lookup reference was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The id by which the kernel shall know it.
    pub node: u64,
    /// Its attributes.
    pub attr: Attr,
}

impl Deref for Found {
    type Target = Attr;

    fn deref(&self) -> &Attr {
        &self.attr
    }
}

/// The operations of a mounted volume.
pub struct Ops {
    trees: Trees,
    volume: PathBuf,
    /// Held shared by requests that write back data or times from the kernel's cache, so that a
    /// sync can wait for those that arrived before it. In `write=through` mode, too, the kernel
    /// caches dirty data of mapped files.
    arriving: RwLock<()>,
    kernel: OnceLock<Box<dyn Kernel>>,
    full: Full,
    write: WriteMode,
    losses: Losses,
    admission: Admission,
    lists: Lists,
    listings: Listings,
    dirs: KnownDirs,
    files: ProgramFiles,
    deferrals: Deferrals,
    program_counts: ProgramCounts,
    /// Held while a listing is renewed, and by a replacement: the notification of a renewal discards
    /// a GETATTR reply that is on its way.
    renewing: Mutex<()>,
    messages: Messages,
    backup: Option<AskBackup>,
    await_backup: Option<AwaitBackup>,
}

/// A name that nobody guesses.
fn door_name() -> String {
    let random = || RandomState::new().hash_one(0);
    format!(".cairnfs-{:016x}{:016x}", random(), random())
}

/// Tells how the backup of the volume goes on.
pub type AskBackup = Arc<dyn Fn() -> Backup + Send + Sync>;

/// Calls what it is given when all that is durable now is in the backup (`true`), or when it will not be.
/// Returns at once.
pub type AwaitBackup = Arc<dyn Fn(Box<dyn FnOnce(bool) + Send>) + Send + Sync>;

impl Ops {
    /// Creates the operations of an open volume. `volume` is the path reported to commands, `write`
    /// the mode agreed with the kernel.
    pub fn new(fs: Arc<FileSystem>, volume: &Path, write: WriteMode) -> Self {
        Self {
            trees: Trees::new(fs),
            volume: volume.to_path_buf(),
            arriving: RwLock::new(()),
            kernel: OnceLock::new(),
            full: Full::default(),
            write,
            losses: Losses::default(),
            admission: Admission::default(),
            lists: Lists::default(),
            listings: Listings::default(),
            dirs: KnownDirs::default(),
            files: ProgramFiles::with_door(door_name()),
            deferrals: Deferrals::default(),
            program_counts: ProgramCounts::default(),
            renewing: Mutex::default(),
            messages: Messages::default(),
            backup: None,
            await_backup: None,
        }
    }

    /// Has each fsync wait for the backup, too.
    #[must_use]
    pub fn with_syncs_by(mut self, await_backup: Option<AwaitBackup>) -> Self {
        self.await_backup = await_backup;
        self
    }

    /// Reports the backup of the volume to commands.
    #[must_use]
    pub fn with_backup(mut self, backup: Option<AskBackup>) -> Self {
        self.backup = backup;
        self
    }

    /// The admission state of the mount.
    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Counts a message from the kernel; the front calls this once for each that it receives, before
    /// anything else. What programs have deferred by then is carried out when this returns.
    pub(crate) fn received(&self, operation: Operation) {
        self.messages.count(operation);
        self.finish_deferred();
    }

    /// Carries out what programs have deferred by now: before others look, as a fork or a sync does.
    pub fn finish_deferred(&self) {
        self.deferrals.finish();
    }

    /// The leases by which programs defer calls.
    pub(crate) fn deferrals(&self) -> &Deferrals {
        &self.deferrals
    }

    /// Runs operations without waiting for the device; returns what was left out.
    pub(crate) fn without_waiting(&self, op: impl FnOnce()) -> Waits {
        self.trees.mounted().without_waiting(op).1
    }

    /// Waits for what [`Ops::without_waiting`] has left out.
    pub(crate) fn settle(&self, waits: Waits) -> Outcome<()> {
        let settled = self.trees.mounted().settle(waits);
        settled.map_err(Refusal::from)
    }

    /// Sets the channel to the kernel, once the session exists. Later calls have no effect.
    pub fn connect(&self, kernel: Box<dyn Kernel>) {
        self.kernel.get_or_init(|| kernel);
    }

    /// Runs an operation on an inode. If its tree was replaced before it could change it, the
    /// operation is repeated on the tree that is mounted then.
    fn on<T>(&self, node: u64, mut op: impl FnMut(&Place) -> Outcome<T>) -> Outcome<T> {
        loop {
            let place = self.trees.place(node)?;
            match op(&place) {
                Err(STALE) if self.trees.is_superseded(&place)? => {}
                done => return done,
            }
        }
    }

    /// As [`Self::on`], for an operation that takes lookup references in a directory of the mounted
    /// tree: to new inodes, to directories, or to that of `name`, on which no program has a lease then.
    fn taking<T>(
        &self,
        dir: u64,
        name: Option<&[u8]>,
        mut op: impl FnMut(&Place) -> Outcome<T>,
    ) -> Outcome<T> {
        loop {
            let held = self.trees.hold_references();
            let place = self.trees.place(dir)?.of_mounted()?;
            if let Some(name) = name
                && let Some(channel) = self.leased_at(&place, name)?
            {
                drop(held);
                self.deferrals.end_leases(channel);
                continue;
            }
            let outcome = op(&place);
            drop(held);
            match outcome {
                Err(STALE) if self.trees.is_superseded(&place)? => {}
                done => return done,
            }
        }
    }

    /// The channel of the program that has a lease on the file with this name. References are held.
    fn leased_at(&self, dir: &Place, name: &[u8]) -> Outcome<Option<u64>> {
        if !self.files.has_leases() || is_injected(InjectedFault::LeaseOutlivesLookup) {
            return Ok(None);
        }
        let child = dir
            .fs
            .inode(dir.ino)
            .and_then(|inode| dir.fs.with_child(&inode, name, |child, _| Ok(child.ino)));
        match child {
            Ok(ino) => Ok(self.leased(&dir.fs, ino)),
            // It is told to the operation.
            Err(Error::NotFound | Error::NotDirectory | Error::NameTooLong) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The channel of the program that has a lease on this inode. References are held.
    fn leased(&self, fs: &Arc<FileSystem>, ino: u64) -> Option<u64> {
        let (channel, epoch) = self.files.lease_on(fs, ino)?;
        let is_leased = self.deferrals.is_leased(channel, epoch);
        is_leased.then_some(channel)
    }

    /// The inode with these attributes, to which [`Self::taking`] took a reference.
    fn found(&self, attr: Attr) -> Found {
        let node = self.trees.took(attr.ino);
        if attr.kind == FileKind::Directory {
            self.dirs.attributes_told(node);
        }
        Found { node, attr }
    }

    fn forget_attributes(&self, node: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.forget_attributes(node);
        }
    }

    /// The kernel takes the access time of an inode for stale, as it was read.
    fn becomes_stale(&self, place: &Place) {
        if let Some(dir) = self.listed_in(place) {
            self.listings.stale(dir);
        }
    }

    /// The node of the directory that has listed an inode, probably.
    fn listed_in(&self, place: &Place) -> Option<u64> {
        let parent = if place.mounted {
            place.fs.parent_hint(place.ino)?
        } else {
            return None;
        };
        (parent != place.ino).then(|| self.trees.known(parent))
    }

    /// The kernel has asked for the attributes of an inode. Returns whether [`Ops::renew_listings`] shall
    /// be called, by a thread that may wait for the kernel.
    pub fn asked(&self, node: u64) -> bool {
        if !self.listings.some_worn() {
            return false;
        }
        let place = self.trees.place(node).ok();
        let dir = place.and_then(|place| self.listed_in(&place));
        dir.is_some_and(|dir| self.listings.asked(dir))
    }

    /// Has the kernel list directories again whose entries have stale attributes, so that a program that
    /// asks for all of them does not cost a message for each. Waits for the kernel.
    ///
    /// A notification makes the kernel discard the reply to a GETATTR on its way, and decide once more by
    /// the mode that it has. So none is sent beside a replacement, which may change modes.
    pub fn renew_listings(&self) {
        while let Some(_held) = self.renewing.try_lock()
            && self.admission.is_open()
            && let Some(dir) = self.listings.next_worn()
            && self.drop_cached(dir, 0)
        {}
        self.listings.end_renewal();
    }

    /// Keeps renewals of listings from beginning; waits for one that runs. One whose notification waits
    /// for long has reached the kernel's attributes already.
    ///
    /// # Errors
    /// The thread must not wait.
    fn without_renewals(&self) -> Outcome<Option<MutexGuard<'_, ()>>> {
        if let Some(held) = self.renewing.try_lock() {
            return Ok(Some(held));
        }
        waiting::before()?;
        Ok(self.renewing.try_lock_for(RENEWAL_MAX))
    }

    /// Makes the kernel write back a file's dirty pages from byte `offset` on and drop the clean
    /// ones: the file may lack data that was written through a mapping. Waits for the kernel.
    /// Returns whether it could be told.
    pub(crate) fn drop_cached(&self, node: u64, offset: u64) -> bool {
        let kernel = self.kernel.get();
        kernel.is_some_and(|kernel| kernel.fetch_dirty(node, offset))
    }
}
