//! The operations of a mounted volume, independent of the transport.
//!
//! Uses the engine and knows nothing of the transport: requests come as plain arguments, refusals are
//! returned as errno values. This module handles umask, clearing of privileges, inherited access
//! control lists, reserved attributes, the end of a mount, and lost writes. The kernel has already
//! checked permissions (`default_permissions`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cairnfs::Error;
use cairnfs::acl::{self, Acl};
use cairnfs::device::waiting::Waits;
use cairnfs::fs::{FileSystem, FsyncRequest};
use cairnfs::types::{
    Attr, EntryRef, Flags, KillPrivileges, RenameMode, SeekTo, SetAttr, StatFs, XattrMode,
};
use parking_lot::RwLock;

pub use crate::caller::Caller;
use crate::control::{self, Question};
use crate::convert::{Refusal, fallocate_mode};
use crate::door::Door;
use crate::full::Full;
use crate::lists::Lists;
use crate::losses::Losses;
use crate::messages::{Messages, Operation};
use crate::mountinfo;
use crate::options::WriteMode;
use crate::status::{self, Status, Transport};
use crate::syncs::Durable;

/// The result of a request.
pub type Outcome<T> = Result<T, Refusal>;

/// Maximum number of bytes that one request copies: it occupies a thread, and its reply has 32
/// bits.
const COPY_MAX: u64 = 1 << 30;

/// A file with at most this much space, in bytes, is truncated in the event loop.
const LITTLE: u64 = 2 << 20;

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

    /// Makes the kernel write back the dirty pages of a file from byte `offset` on, and waits for
    /// that; the kernel also drops its clean pages there. Must not be called in an event loop,
    /// which has to receive those writes.
    fn fetch_dirty(&self, ino: u64, offset: u64);

    /// The transport of the kernel's messages.
    fn transport(&self) -> Transport;
}

/// The access control lists that a new inode inherits.
#[derive(Default)]
struct Inherited {
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

/// The operations of a mounted volume.
pub struct Ops {
    fs: Arc<FileSystem>,
    volume: PathBuf,
    /// Held shared by requests that write back data or times from the kernel's cache, so that a
    /// sync can wait for those that arrived before it. In `write=through` mode, too, the kernel
    /// caches dirty data of mapped files.
    arriving: RwLock<()>,
    kernel: OnceLock<Box<dyn Kernel>>,
    full: Full,
    write: WriteMode,
    losses: Losses,
    door: Door,
    lists: Lists,
    messages: Messages,
}

impl Ops {
    /// Creates the operations of an open volume. `volume` is the path reported to commands, `write`
    /// the mode agreed with the kernel.
    pub fn new(fs: Arc<FileSystem>, volume: &Path, write: WriteMode) -> Self {
        Self {
            fs,
            volume: volume.to_path_buf(),
            arriving: RwLock::new(()),
            kernel: OnceLock::new(),
            full: Full::default(),
            write,
            losses: Losses::default(),
            door: Door::default(),
            lists: Lists::default(),
            messages: Messages::default(),
        }
    }

    /// The admission state of the mount.
    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    /// Counts a message from the kernel; the front calls this once for each that it receives.
    pub(crate) fn received(&self, operation: Operation) {
        self.messages.count(operation);
    }

    /// Runs operations without waiting for the device; returns what was left out.
    pub(crate) fn without_waiting(&self, op: impl FnOnce()) -> Waits {
        self.fs.without_waiting(op).1
    }

    /// Waits for what [`Ops::without_waiting`] has left out.
    pub(crate) fn settle(&self, waits: Waits) -> Outcome<()> {
        self.fs.settle(waits).map_err(Refusal::from)
    }

    /// Data that the kernel had accepted and the volume refused.
    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Sets the channel to the kernel, once the session exists. Later calls have no effect.
    pub fn connect(&self, kernel: Box<dyn Kernel>) {
        self.kernel.get_or_init(|| kernel);
    }

    /// Looks up a name; `None` if it does not exist. Takes a lookup reference. The kernel asks for
    /// "." and ".." to resolve a file handle; `dir` is then an untrusted number: of an inode of any
    /// type, or of one that does not exist.
    ///
    /// # Errors
    /// The engine's errors, as for all operations here. `ESTALE` for "." and ".." of an inode that
    /// does not exist.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Outcome<Option<Attr>> {
        let stale = |error| match error {
            Error::NotFound => Refusal(libc::ESTALE),
            other => other.into(),
        };
        match name {
            b"." => self.fs.lookup_number(dir).map(Some).map_err(stale),
            b".." => self.fs.lookup_parent(dir).map(Some).map_err(stale),
            _ => match self.fs.lookup(dir, name) {
                Ok(attr) => Ok(Some(attr)),
                Err(Error::NotFound) => Ok(None),
                Err(e) => Err(e.into()),
            },
        }
    }

    /// Returns `uses` lookup references. Returns whether an inode without names is left whose
    /// removal takes long; the caller then calls [`Ops::remove_unused`].
    pub fn forget(&self, ino: u64, uses: u64) -> bool {
        self.full.remove(ino);
        self.lists.forgotten(ino);
        let left = self.fs.forget_at_once(ino, uses);
        self.losses.forget(ino, || left || !self.has_name(ino));
        left
    }

    /// Removes an inode without names or references.
    pub fn remove_unused(&self, ino: u64) {
        self.fs.remove_unused(ino);
    }

    fn has_name(&self, ino: u64) -> bool {
        self.fs.getattr(ino).is_ok_and(|attr| attr.nlink > 0)
    }

    /// Whether a change of a file's size may take long, so that it must not run in an event loop.
    pub fn resizes_slowly(&self, ino: u64) -> bool {
        self.fs
            .getattr(ino)
            .is_ok_and(|attr| attr.blocks > LITTLE / 512)
    }

    /// Prepares the end of a mount whose files are open: makes the kernel write back its dirty
    /// pages, and ask before it accepts more data, which is then refused. Must not be called in an
    /// event loop.
    pub(crate) fn take_all(&self) {
        self.door.close();
        let Some(kernel) = self.kernel.get() else {
            return;
        };
        // Twice: a write that was admitted before the door closed can reach the kernel's cache
        // after the first round.
        for _ in 0..2 {
            for ino in self.fs.inodes_in_use() {
                kernel.fetch_dirty(ino, 0);
            }
        }
    }

    /// Returns attributes. `writer` is whether the request comes through an open file, as it does
    /// before the kernel accepts data for it.
    pub fn getattr(&self, ino: u64, writer: bool) -> Outcome<Attr> {
        if writer && self.full.refuses(ino, || self.fs.statfs().available) {
            return Err(Error::NoSpace.into());
        }
        Ok(self.fs.getattr(ino)?)
    }

    /// Changes attributes; returns those after the change.
    pub fn setattr(&self, caller: Caller, ino: u64, mut set: SetAttr) -> Outcome<Attr> {
        let _arriving = self.arriving.read();
        set.kill_privileges = self.kills_by_setattr(caller, ino, &set)?;
        Ok(self.fs.setattr(ino, &set)?)
    }

    /// The inode flags.
    pub fn flags(&self, ino: u64) -> Outcome<Flags> {
        Ok(self.fs.getattr(ino)?.flags)
    }

    /// Sets inode flags. The kernel has checked the caller's permission. Data that the kernel
    /// cached before is written back first. Waits for the kernel.
    ///
    /// Append-only is refused with the writeback cache: the kernel then sends appended data as
    /// whole pages in any order, which cannot be distinguished from an overwrite.
    pub fn set_flags(&self, ino: u64, flags: Flags) -> Outcome<()> {
        let old = self.fs.getattr(ino)?;
        let begins = |flag| flags.contains(flag) && !old.flags.contains(flag);
        if begins(Flags::APPEND) && old.kind.is_file() && self.write == WriteMode::Back {
            return Err(Refusal(libc::EOPNOTSUPP));
        }
        if begins(Flags::APPEND) || begins(Flags::IMMUTABLE) {
            self.drop_cached(ino, 0);
        }
        let set = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        self.fs.setattr(ino, &set)?;
        self.forget_attributes(ino);
        Ok(())
    }

    /// Makes the kernel write back a file's dirty pages from byte `offset` on and drop the clean
    /// ones: the file may lack data that was written through a mapping. Waits for the kernel.
    pub(crate) fn drop_cached(&self, ino: u64, offset: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.fetch_dirty(ino, offset);
        }
    }

    /// Returns the target of a symlink.
    pub fn readlink(&self, ino: u64) -> Outcome<Vec<u8>> {
        Ok(self.fs.readlink(ino)?)
    }

    /// Creates a file, FIFO, socket or device. Takes a lookup reference.
    pub fn mknod(&self, new: NewEntry<'_>, rdev: u64) -> Outcome<Attr> {
        let (mode, lists) = self.inherit(&new)?;
        self.make(&new, (mode, rdev), &lists)
    }

    /// Creates a regular file without a name. Takes a lookup reference.
    pub fn tmpfile(&self, new: NewEntry<'_>) -> Outcome<Attr> {
        let (mode, lists) = self.inherit(&new)?;
        let attr = self.fs.tmpfile(new.dir, mode, new.caller.creds())?;
        if let Some(list) = &lists.access {
            let set = self.fs.set_access_list(attr.ino, list, KillPrivileges::No);
            // The file was not returned to a caller yet.
            set.inspect_err(|_| self.fs.forget(attr.ino, 1))?;
        }
        Ok(attr)
    }

    /// Creates a directory. Takes a lookup reference.
    pub fn mkdir(&self, new: NewEntry<'_>) -> Outcome<Attr> {
        let (mode, lists) = self.inherit(&new)?;
        let mode = libc::S_IFDIR | mode & !libc::S_IFMT;
        self.make(&new, (mode, 0), &lists)
    }

    /// Creates a symlink. Takes a lookup reference.
    pub fn symlink(&self, caller: Caller, dir: u64, name: &[u8], target: &[u8]) -> Outcome<Attr> {
        Ok(self.fs.symlink(dir, name, target, caller.creds())?)
    }

    /// Adds a name to an inode. Takes a lookup reference.
    pub fn link(&self, ino: u64, dir: u64, name: &[u8]) -> Outcome<Attr> {
        Ok(self.fs.link(ino, dir, name)?)
    }

    /// Removes a name of an inode that is not a directory.
    pub fn unlink(&self, dir: u64, name: &[u8]) -> Outcome<()> {
        Ok(self.fs.unlink(dir, name)?)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: u64, name: &[u8]) -> Outcome<()> {
        Ok(self.fs.rmdir(dir, name)?)
    }

    /// Renames, with the flags of `renameat2`.
    pub fn rename(
        &self,
        caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Outcome<()> {
        const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
        let whiteout = |replace| RenameMode::Whiteout {
            owner: caller.creds(),
            replace,
        };
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            libc::RENAME_WHITEOUT => whiteout(true),
            WHITEOUT_NOREPLACE => whiteout(false),
            _ => return Err(Refusal(libc::EINVAL)),
        };
        Ok(self.fs.rename(from.0, from.1, to.0, to.1, mode)?)
    }

    /// Calls `each` for the entries after a cookie until it returns false.
    pub fn readdir(
        &self,
        dir: u64,
        cookie: u64,
        each: &mut dyn FnMut(EntryRef<'_>) -> bool,
    ) -> Outcome<()> {
        Ok(self.fs.readdir(dir, cookie, each)?)
    }

    /// Like [`Ops::readdir`], with attributes. Takes a lookup reference to each inode for which
    /// `each` returned true, except "." and "..".
    pub fn readdir_plus(
        &self,
        dir: u64,
        cookie: u64,
        each: &mut dyn FnMut(EntryRef<'_>, &Attr) -> bool,
    ) -> Outcome<()> {
        Ok(self.fs.readdir_plus(dir, cookie, each)?)
    }

    /// Reads into `buf`; returns the number of bytes, fewer than `buf` holds only at the end of the
    /// file.
    pub fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> Outcome<usize> {
        self.fs.read(ino, offset, buf).map_err(|error| {
            if Refusal::is_logged(&error) {
                let path = self.fs.path_hint(ino);
                let end = offset.saturating_add(buf.len() as u64).saturating_sub(1);
                tracing::error!("reading bytes {offset} to {end} of {path:?}: {error}");
            }
            Refusal(error.errno())
        })
    }

    /// Writes; returns the number of bytes. If `killer` (the writing process) is given, the kernel
    /// leaves clearing set-user-id and set-group-id to this function, and is notified that they are
    /// cleared.
    pub fn write(
        &self,
        ino: u64,
        offset: u64,
        data: &[u8],
        killer: Option<Caller>,
    ) -> Outcome<usize> {
        let _arriving = self.arriving.read();
        let kill = match killer {
            Some(caller) => caller.kills_by_write(&self.fs.getattr(ino)?),
            None => KillPrivileges::No,
        };
        let len = match self.fs.write(ino, offset, data, kill) {
            Err(Error::NoSpace | Error::HostFull { .. }) => return Err(self.refuse(ino)),
            other => other?,
        };
        self.forget_killed(ino, kill);
        Ok(len)
    }

    /// Like [`Ops::write`], for data from the kernel's cache. The kernel takes a short write for a
    /// complete one, so a short write is refused. The kernel continues with the file size that
    /// includes the refused data, so the file gets that size, with a hole; this also lets a program
    /// truncate the file on a full volume.
    pub fn write_cached(
        &self,
        ino: u64,
        offset: u64,
        data: &[u8],
        killer: Option<Caller>,
    ) -> Outcome<usize> {
        let written = match self.write(ino, offset, data, killer) {
            Ok(len) if len < data.len() => Err(self.refuse(ino)),
            other => other,
        };
        if self.write == WriteMode::Back && written == Err(Error::NoSpace.into()) {
            self.extend(ino, offset.saturating_add(data.len() as u64));
        }
        written
    }

    fn extend(&self, ino: u64, size: u64) {
        let _arriving = self.arriving.read();
        if let Err(error) = self.fs.extend(ino, size) {
            tracing::warn!("inode {ino} is shorter than the kernel has it ({size} bytes): {error}");
        }
    }

    /// A write found no space. With the writeback cache the file's writers must be refused from
    /// then on.
    fn refuse(&self, ino: u64) -> Refusal {
        if self.write == WriteMode::Back {
            self.full.add(ino);
            self.forget_attributes(ino);
        }
        Error::NoSpace.into()
    }

    /// Allocates or frees the space of a range (bytes), with the modes of `fallocate(2)`.
    pub fn fallocate(
        &self,
        caller: Caller,
        ino: u64,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Outcome<()> {
        let what = fallocate_mode(mode).ok_or(Refusal(libc::EOPNOTSUPP))?;
        let kill = caller.kills_by_change(&self.fs.getattr(ino)?);
        self.fs.fallocate(ino, offset, len, what, kill)?;
        self.forget_killed(ino, kill);
        Ok(())
    }

    /// Finds data or a hole, with the `whence` values of `lseek(2)`. Waits for the kernel.
    ///
    /// The kernel sends LSEEK without writing its cache back first. Without the writeback done
    /// here, data just written would be reported as a hole, and a copy would lose it.
    pub fn seek(&self, ino: u64, offset: i64, whence: i32) -> Outcome<i64> {
        let to = match whence {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return Err(Refusal(libc::EINVAL)),
        };
        let offset = u64::try_from(offset).map_err(|_| Refusal(libc::ENXIO))?;
        self.drop_cached(ino, offset);
        let found = self.fs.seek(ino, offset, to)?;
        i64::try_from(found).map_err(|_| Refusal(libc::EOVERFLOW))
    }

    /// Copies between files (inode, offset in bytes); returns the number of bytes copied.
    pub fn copy_range(
        &self,
        caller: Caller,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    ) -> Outcome<u32> {
        let kill = caller.kills_by_change(&self.fs.getattr(to.0)?);
        let len = len.min(COPY_MAX);
        let copied = self.fs.copy_range(from.0, from.1, to.0, to.1, len, kill)?;
        self.forget_killed(to.0, kill);
        u32::try_from(copied).map_err(|_| Refusal(libc::EIO))
    }

    /// Makes all earlier changes durable. Waits for the device.
    pub fn sync(&self) -> Outcome<()> {
        drop(self.arriving.write());
        Ok(self.fs.sync()?)
    }

    /// A message with reason and recommended action if the volume has stopped.
    pub(crate) fn stopped(&self) -> Option<String> {
        Some(status::stopped_by(&self.volume, &self.fs.failure()?))
    }

    /// Returns the volume's space and inode counts.
    pub fn statfs(&self) -> StatFs {
        self.fs.statfs()
    }

    /// Returns the value of an attribute. Reserved ones are answered by [`Ops::answer`] instead.
    pub fn getxattr(&self, ino: u64, name: &[u8]) -> Outcome<Vec<u8>> {
        if name == acl::ACCESS {
            return Ok(self.lists.read(&self.fs, ino)?);
        }
        match control::is_reserved(name) {
            true => Err(Refusal(libc::ENODATA)),
            false => Ok(self.fs.getxattr(ino, name)?),
        }
    }

    /// Answers a question, that is, returns the value of a reserved attribute. May wait for the
    /// device.
    pub fn answer(&self, caller: Caller, name: &[u8]) -> Outcome<Vec<u8>> {
        let question = Question::parse(name);
        let ours = caller.uid == 0 || caller.uid == rustix::process::geteuid().as_raw();
        if question.is_some_and(Question::is_privileged) && !ours {
            return Err(Refusal(libc::EPERM));
        }
        match question {
            Some(Question::Sync) => {
                self.sync()?;
                let lost = self.losses.take(|ino| self.has_name(ino));
                Ok(control::sync_answer(&lost).into_bytes())
            }
            Some(Question::Volume) => Ok(mountinfo::bytes(&self.volume).to_vec()),
            Some(Question::Status) => {
                let transport = self.kernel.get().map(|kernel| kernel.transport());
                let status = Status::of(
                    &self.fs,
                    &self.volume,
                    self.losses.count(),
                    &self.messages,
                    transport.unwrap_or_default(),
                );
                Ok(control::status_answer(&status))
            }
            Some(Question::Writable) => Ok(control::writable_answer(self.fs.is_read_only())),
            Some(Question::Trim) => Ok(self.fs.trim()?.to_string().into_bytes()),
            None => Err(Refusal(libc::ENODATA)),
        }
    }

    /// Sets an attribute, with the flags of `setxattr(2)`; `kill` applies to an access list.
    pub fn setxattr(
        &self,
        kill: KillPrivileges,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Outcome<()> {
        if control::is_reserved(name) {
            return Err(Refusal(libc::EPERM));
        }
        if name == acl::ACCESS {
            let forget = || self.forget_attributes(ino);
            return Ok(self.lists.set(&self.fs, ino, (value, kill), forget)?);
        }
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Refusal(libc::EINVAL)),
        };
        Ok(self.fs.setxattr(ino, name, value, mode)?)
    }

    /// Returns the names of all attributes that the caller may see, each followed by NUL.
    pub fn listxattr(&self, caller: Caller, ino: u64) -> Outcome<Vec<u8>> {
        Ok(caller.seen_names(self.fs.listxattr(ino)?))
    }

    /// Removes an attribute.
    pub fn removexattr(&self, ino: u64, name: &[u8]) -> Outcome<()> {
        if control::is_reserved(name) {
            return Err(Refusal(libc::EPERM));
        }
        match self.fs.removexattr(ino, name) {
            // Removing an access list that does not exist succeeds.
            Err(Error::NoAttribute) if name == acl::ACCESS || name == acl::DEFAULT => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Which set-id bits a change of attributes clears.
    fn kills_by_setattr(&self, caller: Caller, ino: u64, set: &SetAttr) -> Outcome<KillPrivileges> {
        let given = set.uid.is_some() || set.gid.is_some();
        // The kernel sends a SETATTR without owner, size and times before it changes contents, and
        // for a chown that changes neither owner nor group.
        let nothing = set.atime.is_none() && set.mtime.is_none();
        if set.mode.is_some() || !(given || set.size.is_some() || nothing) {
            return Ok(KillPrivileges::No);
        }
        let attr = self.fs.getattr(ino)?;
        Ok(match set.size {
            Some(_) => caller.kills_by_change(&attr),
            None if given || caller.owns(&attr) => caller.kills_by_chown(&attr),
            // The two cases cannot be distinguished for other users. They may write but not chown,
            // and the write that follows clears the bits itself.
            None => KillPrivileges::No,
        })
    }

    /// Invalidates the kernel's attributes after set-id bits were cleared.
    fn forget_killed(&self, ino: u64, kill: KillPrivileges) {
        if kill != KillPrivileges::No {
            self.forget_attributes(ino);
        }
    }

    fn forget_attributes(&self, ino: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.forget_attributes(ino);
        }
    }

    fn list(&self, ino: u64, name: &[u8]) -> Outcome<Option<Acl>> {
        match self.fs.getxattr(ino, name) {
            Ok(value) => Ok(Acl::parse(&value)),
            Err(Error::NoAttribute | Error::Unsupported(_)) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns the mode of a new inode, and the access control lists that it inherits from its
    /// directory.
    fn inherit(&self, new: &NewEntry<'_>) -> Outcome<(u32, Inherited)> {
        let Some(default) = self.list(new.dir, acl::DEFAULT)? else {
            return Ok((new.mode & !new.umask, Inherited::default()));
        };
        let mut access = default.clone();
        let mode = access.restrict(new.mode);
        let is_dir = new.mode & libc::S_IFMT == libc::S_IFDIR;
        let lists = Inherited {
            access: (!access.is_minimal()).then(|| access.to_bytes()),
            default: is_dir.then(|| default.to_bytes()),
        };
        Ok((mode, lists))
    }

    /// Creates an inode together with its inherited lists, atomically.
    fn make(&self, new: &NewEntry<'_>, mode: (u32, u64), lists: &Inherited) -> Outcome<Attr> {
        let lists = [(acl::ACCESS, &lists.access), (acl::DEFAULT, &lists.default)];
        let given: Vec<_> = lists
            .iter()
            .filter_map(|(name, list)| Some((*name, list.as_deref()?)))
            .collect();
        let creds = new.caller.creds();
        Ok(self.fs.make_with(new.dir, new.name, mode, creds, &given)?)
    }
}

impl Durable for Ops {
    fn write_out_at_once(&self, ino: u64) -> Outcome<bool> {
        Ok(self.fs.write_out_at_once(ino)?)
    }

    fn write_out(&self, ino: u64) -> Outcome<()> {
        Ok(self.fs.write_out(ino)?)
    }

    fn fsync_each(&self, requests: &[FsyncRequest]) -> Vec<Outcome<()>> {
        let synced = self.fs.fsync_each(requests).into_iter();
        synced.map(|one| one.map_err(Refusal::from)).collect()
    }
}
