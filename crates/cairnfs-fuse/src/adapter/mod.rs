//! Implements fuser's callbacks by [`Ops`]: decodes the arguments, calls, replies.
//!
//! This module holds what belongs to the wire protocol: which messages the kernel need not send at
//! all (answered with `ENOSYS`), and which requests run outside the event loops. Each message is
//! counted when it arrives, except those by which commands ask the daemon. Admission and replies are
//! in `replies`, unsolicited messages to the kernel in `notices`. Every request gets exactly one
//! reply.

mod ioctls;
mod notices;
mod replies;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use cairnfs::fs::FsyncRequest;
use cairnfs::types::{Attr, SetAttr};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::control;
use crate::convert::{absent_attr, file_attr, file_type, set_time, wire_time};
use crate::door::Purpose;
use crate::ending::End;
use crate::messages::Operation;
use crate::negotiate;
use crate::ops::{Caller, NewEntry, Ops, caught};
use crate::options::{MountOptions, WriteMode};
use crate::syncs::Syncs;
use crate::waiting::Waiting;

use ioctls::Ioctl;
pub use notices::Notices;
pub use replies::TTL;
use replies::{
    caller, generation, guarded, reply_attr, reply_empty, reply_entry, reply_ioctl, reply_xattr,
    ttl, writing_back,
};

thread_local! {
    /// Buffer for the data of this thread's READ requests; it grows to the largest request.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system as fuser calls it.
pub struct Adapter {
    ops: Arc<Ops>,
    waiting: Waiting,
    working: Waiting,
    syncs: Syncs<Ops>,
    write: WriteMode,
}

impl Adapter {
    /// Creates an adapter that serves `ops` with `options`.
    pub fn new(ops: Arc<Ops>, options: &MountOptions) -> Self {
        Self {
            write: options.write,
            waiting: Waiting::new(options.event_loops()),
            working: Waiting::for_long_work(),
            syncs: Syncs::new(Arc::clone(&ops)),
            ops,
        }
    }

    /// Returns the handle by which the session ends this mount.
    pub(crate) fn end(&self) -> End {
        End::new(self.ops(), [self.working.clone(), self.waiting.clone()])
    }

    /// Returns the operations that this adapter serves.
    pub fn ops(&self) -> Arc<Ops> {
        Arc::clone(&self.ops)
    }

    /// Makes a file or directory durable, then replies.
    fn sync(&self, ino: INodeNo, data_only: bool, reply: ReplyEmpty) {
        // Held until the request is counted among those in flight, which the end of a mount awaits.
        let _inside = match self.ops.door().enter(Purpose::WriteBack) {
            Ok(inside) => inside,
            Err(refused) => return reply.error(refused.into()),
        };
        let request = FsyncRequest {
            ino: ino.0,
            data_only,
        };
        self.syncs.sync(request, &self.waiting, move |outcome| {
            reply_empty(reply, outcome.map_err(Errno::from));
        });
    }
}

/// Sets attributes. Admitted as writeback because the kernel also writes back cached times by
/// SETATTR.
fn set_attributes(ops: &Ops, caller: Caller, ino: INodeNo, set: SetAttr) -> Result<Attr, Errno> {
    writing_back(ops, "setattr", ino, || {
        let size = set.size;
        let attr = ops.setattr(caller, ino.0, set)?;
        if let Some(size) = size {
            ops.losses().truncated(ino.0, size);
        }
        Ok(attr)
    })
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate::ask(config, self.write)
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.ops.received(Operation::Lookup);
        match guarded(&self.ops, "lookup", parent, || {
            self.ops.lookup(parent.0, name.as_bytes())
        }) {
            Ok(Some(attr)) => reply.entry(&TTL, &file_attr(&attr), generation(&attr)),
            Ok(None) => reply.entry(&TTL, &absent_attr(), Generation(0)),
            Err(e) => reply.error(e),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.ops.received(Operation::Forget);
        // FORGET has no reply; `caught` has logged a panic.
        let left = caught("forget", ino.0, || Ok(self.ops.forget(ino.0, nlookup)));
        if left == Ok(true) {
            let ops = self.ops();
            self.working.run_elsewhere(move |_under_way| {
                let _ = writing_back(&ops, "removal", ino, || {
                    ops.remove_unused(ino.0);
                    Ok(())
                });
            });
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        self.ops.received(Operation::Getattr);
        let found = guarded(&self.ops, "getattr", ino, || {
            self.ops.getattr(ino.0, fh.is_some())
        });
        reply_attr(reply, TTL, found);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.ops.received(Operation::Setattr);
        let set = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(wire_time),
            ..SetAttr::default()
        };
        let caller = caller(req);
        if size.is_some() && self.ops.resizes_slowly(ino.0) {
            let ops = self.ops();
            return self.working.run_elsewhere(move |_under_way| {
                reply_attr(reply, ttl(&ops), set_attributes(&ops, caller, ino, set));
            });
        }
        let outcome = set_attributes(&self.ops, caller, ino, set);
        reply_attr(reply, ttl(&self.ops), outcome);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.ops.received(Operation::Readlink);
        match guarded(&self.ops, "readlink", ino, || self.ops.readlink(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(e),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.ops.received(Operation::Mknod);
        let new = NewEntry {
            caller: caller(req),
            dir: parent.0,
            name: name.as_bytes(),
            mode,
            umask,
        };
        let outcome = guarded(&self.ops, "mknod", parent, || {
            self.ops.mknod(new, u64::from(rdev))
        });
        reply_entry(reply, outcome);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.ops.received(Operation::Mkdir);
        let new = NewEntry {
            caller: caller(req),
            dir: parent.0,
            name: name.as_bytes(),
            mode: mode | libc::S_IFDIR,
            umask,
        };
        reply_entry(
            reply,
            guarded(&self.ops, "mkdir", parent, || self.ops.mkdir(new)),
        );
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ops.received(Operation::Unlink);
        let outcome = guarded(&self.ops, "unlink", parent, || {
            self.ops.unlink(parent.0, name.as_bytes())
        });
        reply_empty(reply, outcome);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ops.received(Operation::Rmdir);
        let outcome = guarded(&self.ops, "rmdir", parent, || {
            self.ops.rmdir(parent.0, name.as_bytes())
        });
        reply_empty(reply, outcome);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.ops.received(Operation::Symlink);
        let target = target.as_os_str().as_bytes();
        let outcome = guarded(&self.ops, "symlink", parent, || {
            self.ops
                .symlink(caller(req), parent.0, link_name.as_bytes(), target)
        });
        reply_entry(reply, outcome);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.ops.received(Operation::Rename);
        let from = (parent.0, name.as_bytes());
        let to = (newparent.0, newname.as_bytes());
        let ops = &self.ops;
        let outcome = guarded(&self.ops, "rename", parent, || {
            ops.rename(caller(req), from, to, flags.bits())
        });
        reply_empty(reply, outcome);
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.ops.received(Operation::Link);
        let outcome = guarded(&self.ops, "link", ino, || {
            self.ops.link(ino.0, newparent.0, newname.as_bytes())
        });
        reply_entry(reply, outcome);
    }

    /// `ENOSYS` makes the kernel send neither OPEN nor RELEASE for the rest of the mount.
    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.ops.received(Operation::Open);
        reply.error(Errno::ENOSYS);
    }

    /// `ENOSYS` makes the kernel create files by MKNOD and open them without a message.
    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        self.ops.received(Operation::Create);
        reply.error(Errno::ENOSYS);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.ops.received(Operation::Flush);
        reply.error(Errno::ENOSYS);
    }

    /// `ENOSYS` makes the kernel send no OPENDIR and cache listings. Directory cookies are stable,
    /// so an open directory needs no state here.
    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.ops.received(Operation::Opendir);
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.ops.received(Operation::Read);
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let room = buffer.get_mut(..size).unwrap_or_default();
            match writing_back(&self.ops, "read", ino, || {
                self.ops.read(ino.0, offset, room)
            }) {
                Ok(len) => reply.data(room.get(..len).unwrap_or_default()),
                Err(e) => reply.error(e),
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.ops.received(Operation::Write);
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let killer = kill.then(|| caller(req));
        let cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let bytes = offset..offset.saturating_add(data.len() as u64);
        let written = writing_back(&self.ops, "write", ino, || {
            let written = match cached {
                true => self.ops.write_cached(ino.0, offset, data, killer),
                false => self.ops.write(ino.0, offset, data, killer),
            };
            match &written {
                Ok(_) => self.ops.losses().written(ino.0, bytes),
                Err(why) if cached => self.ops.losses().refused(ino.0, bytes, *why),
                Err(_) => {}
            }
            written
        });
        match written {
            Ok(len) => reply.written(len as u32),
            Err(e) => reply.error(e),
        }
        if cached && written == Err(Errno::EPERM) {
            let ops = self.ops();
            self.waiting
                .run_elsewhere(move |_under_way| ops.drop_cached(ino.0, offset));
        }
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.ops.received(Operation::Fsync);
        self.sync(ino, datasync, reply);
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.ops.received(Operation::Fsyncdir);
        self.sync(ino, datasync, reply);
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.ops.received(Operation::Readdir);
        let mut added = false;
        let outcome = guarded(&self.ops, "readdir", ino, || {
            self.ops.readdir(ino.0, offset, &mut |entry| {
                let name = OsStr::from_bytes(entry.name);
                let kind = file_type(entry.kind);
                let full = reply.add(INodeNo(entry.ino), entry.cookie, kind, name);
                added |= !full;
                !full
            })
        });
        match outcome {
            Err(e) if !added => reply.error(e),
            _ => reply.ok(),
        }
    }

    /// An error after the first entry is returned by the next call instead: the kernel must receive
    /// the entries already added because each of them took a lookup reference.
    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.ops.received(Operation::Readdirplus);
        let mut added = false;
        let outcome = guarded(&self.ops, "readdir", ino, || {
            self.ops.readdir_plus(ino.0, offset, &mut |entry, attr| {
                let name = OsStr::from_bytes(entry.name);
                let generation = generation(attr);
                let attr = file_attr(attr);
                let full = reply.add(attr.ino, entry.cookie, name, &TTL, &attr, generation);
                added |= !full;
                !full
            })
        });
        match outcome {
            Err(e) if !added => reply.error(e),
            _ => reply.ok(),
        }
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.ops.received(Operation::Statfs);
        match guarded(&self.ops, "statfs", ino, || Ok(self.ops.statfs())) {
            Ok(s) => reply.statfs(
                s.blocks,
                s.free,
                s.available,
                s.files,
                s.files_free,
                s.block_size,
                s.name_max,
                s.block_size,
            ),
            Err(e) => reply.error(e),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.ops.received(Operation::Setxattr);
        let outcome = guarded(&self.ops, "setxattr", ino, || {
            self.ops
                .setxattr(caller(req), ino.0, name.as_bytes(), value, flags)
        });
        reply_empty(reply, outcome);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if control::is_reserved(name.as_bytes()) {
            let (ops, name, caller) = (self.ops(), name.to_owned(), caller(req));
            return self.waiting.run_elsewhere(move |_under_way| {
                let outcome = guarded(&ops, "control", ino, || ops.answer(caller, name.as_bytes()));
                reply_xattr(reply, size, outcome);
            });
        }
        self.ops.received(Operation::Getxattr);
        let outcome = guarded(&self.ops, "getxattr", ino, || {
            self.ops.getxattr(ino.0, name.as_bytes())
        });
        reply_xattr(reply, size, outcome);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.ops.received(Operation::Listxattr);
        let outcome = guarded(&self.ops, "listxattr", ino, || {
            self.ops.listxattr(caller(req), ino.0)
        });
        reply_xattr(reply, size, outcome);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ops.received(Operation::Removexattr);
        let outcome = guarded(&self.ops, "removexattr", ino, || {
            self.ops.removexattr(ino.0, name.as_bytes())
        });
        reply_empty(reply, outcome);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.ops.received(Operation::Fallocate);
        let (ops, caller) = (self.ops(), caller(req));
        self.working.run_elsewhere(move |_under_way| {
            let outcome = guarded(&ops, "fallocate", ino, || {
                ops.fallocate(caller, ino.0, offset, length, mode)
            });
            reply_empty(reply, outcome);
        });
    }

    /// Runs outside the event loops because it waits for writeback, which arrives at the event
    /// loops.
    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.ops.received(Operation::Lseek);
        let ops = self.ops();
        self.waiting.run_elsewhere(move |_under_way| {
            let outcome = guarded(&ops, "lseek", ino, || ops.seek(ino.0, offset, whence));
            match outcome {
                Ok(found) => reply.offset(found),
                Err(e) => reply.error(e),
            }
        });
    }

    /// Only ioctls for inode flags are supported. Setting flags waits for writeback, so it runs
    /// outside the event loops. Unsupported ioctls are answered at once because programs send
    /// TCGETS to every file (`isatty`).
    fn ioctl(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.ops.received(Operation::Ioctl);
        match ioctls::parse(cmd, in_data) {
            Err(refused) => reply.error(refused.into()),
            Ok(Ioctl::Get(form)) => {
                let flags = guarded(&self.ops, "ioctl", ino, || self.ops.flags(ino.0));
                reply_ioctl(reply, flags.map(|flags| form.bytes(flags)));
            }
            Ok(Ioctl::Set(flags)) => {
                let ops = self.ops();
                self.waiting.run_elsewhere(move |_under_way| {
                    let set = guarded(&ops, "ioctl", ino, || ops.set_flags(ino.0, flags));
                    reply_ioctl(reply, set.map(|()| Vec::new()));
                });
            }
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.ops.received(Operation::CopyFileRange);
        let (from, to) = ((ino_in.0, offset_in), (ino_out.0, offset_out));
        let (ops, caller) = (self.ops(), caller(req));
        self.working.run_elsewhere(move |_under_way| {
            let outcome = guarded(&ops, "copy_file_range", ino_in, || {
                ops.copy_range(caller, from, to, len)
            });
            match outcome {
                Ok(copied) => reply.written(copied),
                Err(e) => reply.error(e),
            }
        });
    }
}
