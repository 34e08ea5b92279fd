//! Implements the transport's [`Server`] by [`Ops`]: converts arguments, calls, replies.
//!
//! This module holds what belongs to the wire protocol: which messages the kernel need not send at
//! all (answered with `ENOSYS`), and which requests run outside the event loops. Each message is
//! counted when it arrives, except those by which commands ask the daemon. Admission and replies are
//! in `replies`, unsolicited messages to the kernel in `notices`. Every request gets exactly one
//! reply.

mod ioctls;
mod notices;
mod replies;

use std::sync::Arc;

use cairnfs::fs::FsyncRequest;
use cairnfs_disk::device::waiting;
use cairnfs_disk::types::{Attr, KillPrivileges, SetAttr};
use cairnfs_transport::abi::{Opcode, StatfsOut};
use cairnfs_transport::reply::{
    ReplyAttr, ReplyCopied, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpenEntry, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
};
use cairnfs_transport::request::{
    CopyFileRange, Fallocate, Ioctl, NewNode, Rename, Setattr, Setxattr, Statx, Write,
};
use cairnfs_transport::{Attempt, Errno, Header, Job, Offer, RING_DEPTH, Server, Wanted};

use crate::admission::Purpose;
use crate::control;
use crate::convert::{Refusal, set_time, type_bits, wire_time};
use crate::ending::End;
use crate::messages::{Operation, uncounted};
use crate::negotiate;
use crate::ops::{Caller, Found, NewEntry, Ops, Outcome, caught};
use crate::options::{MountOptions, WriteMode};
use crate::program_files::DOOR;
use crate::programs::{Durable, Programs};
use crate::syncs::Syncs;
use crate::trees::STALE;
use crate::waiting::Waiting;

pub use notices::Notices;
use replies::{
    Answer, absent, caller, entry, entry_alone, entry_of_door, guarded, reply_attr, statx_reply,
    ttl, writing_back,
};
pub use replies::{TTL, attr_reply, entry_reply};

/// Requests in rings that wait for the kernel at one time; further ones are refused with `EBUSY`.
/// They wait until it has written data back, which it does through entries of the same rings: the
/// reply to one of its requests fetches the next one, so a few free entries are enough.
const WAITING_FOR_KERNEL: usize = RING_DEPTH - 8;

/// The file system as the transport calls it.
pub struct Adapter {
    ops: Arc<Ops>,
    waiting: Waiting,
    waiting_for_rings: Waiting,
    working: Waiting,
    /// Serves the requests of rings that have to wait. Its jobs wait for the device only, never for
    /// the kernel, whose requests they may be.
    late: Waiting,
    /// Shared by requests that wait for the kernel.
    for_kernel: Arc<()>,
    syncs: Syncs<Ops>,
    programs: Arc<Programs>,
    write: WriteMode,
    birth_times: bool,
}

impl Adapter {
    /// Creates an adapter that serves `ops` with `options`.
    pub fn new(ops: Arc<Ops>, options: &MountOptions) -> Self {
        let waiting = Waiting::new(options.event_loops());
        let syncs = Syncs::new(Arc::clone(&ops));
        let durable = Durable {
            syncs: syncs.clone(),
            waiting: waiting.for_rings(),
        };
        Self {
            write: options.write,
            birth_times: options.birth_times,
            waiting_for_rings: waiting.for_rings(),
            waiting,
            for_kernel: Arc::default(),
            working: Waiting::for_long_work(),
            late: Waiting::for_rings_only(),
            syncs,
            programs: Arc::new(Programs::new(
                Arc::clone(&ops),
                durable,
                options.birth_times,
            )),
            ops,
        }
    }

    /// Returns the handle by which the session ends this mount.
    pub(crate) fn end(&self) -> End {
        // In this order: a late request may hand work over to the others.
        let pools = [&self.late, &self.working, &self.waiting];
        End::new(self.ops(), self.programs(), pools.map(Waiting::clone))
    }

    /// Returns the operations that this adapter serves.
    pub fn ops(&self) -> Arc<Ops> {
        Arc::clone(&self.ops)
    }

    /// Counts a message, runs its operation if new requests are admitted, and replies.
    fn serve<T>(
        &self,
        operation: Operation,
        ino: u64,
        reply: impl Answer<T>,
        op: impl FnOnce(&Ops) -> Outcome<T>,
    ) {
        self.ops.received(operation);
        reply.answer(guarded(&self.ops, operation.name(), ino, || op(&self.ops)));
    }

    /// Returns the programs that have channels to this mount.
    pub(crate) fn programs(&self) -> Arc<Programs> {
        Arc::clone(&self.programs)
    }

    /// After an answer about the attributes of an inode, has listings renewed if that pays.
    fn renew_listings(&self, ino: u64) {
        if self.ops.asked(ino) {
            let ops = self.ops();
            self.late
                .run_elsewhere(move |_under_way| ops.renew_listings());
        }
    }

    /// Permits a request to wait for the kernel, unless too many do; `bounded` if it is in a ring.
    fn wait_for_kernel(&self, bounded: bool) -> Result<Arc<()>, Errno> {
        let one = Arc::clone(&self.for_kernel);
        // The adapter has one reference, too.
        if bounded && Arc::strong_count(&one) > WAITING_FOR_KERNEL + 1 {
            Err(Errno::new(libc::EBUSY))
        } else {
            Ok(one)
        }
    }

    /// The kernel gets an inode by the door.
    fn through_door(&self, found: &Found, name: &[u8], reply: ReplyEntry) {
        reply.entry(&entry_of_door(found));
        // The name is not needed once the file is open, and would keep the inode in the kernel's cache, with
        // its space, after the file was removed. The kernel waits for the end of this.
        let (ops, name) = (self.ops(), name.to_vec());
        self.working
            .run_elsewhere(move |_under_way| ops.forget_in_door(&name));
    }

    /// Makes a file or directory durable, then replies.
    fn sync(&self, ino: u64, data_only: bool, reply: ReplyEmpty) {
        // Held until the request is counted among those in flight, which the end of a mount awaits.
        let _inside = match self.ops.admission().enter(Purpose::WriteBack) {
            Ok(inside) => inside,
            Err(refused) => return reply.error(refused.into()),
        };
        let request = FsyncRequest { ino, data_only };
        let waiting = if reply.may_wait() {
            &self.waiting
        } else {
            &self.waiting_for_rings
        };
        self.syncs.sync(request, waiting, move |outcome| {
            reply.answer(outcome.map_err(Errno::from));
        });
    }
}

/// Sets attributes. Admitted as writeback because the kernel also writes back cached times by
/// SETATTR.
fn set_attributes(ops: &Ops, caller: Caller, ino: u64, set: SetAttr) -> Result<Attr, Errno> {
    writing_back(ops, "setattr", ino, || ops.setattr(caller, ino, set))
}

fn new_entry<'a>(from: &Header, new: &NewNode<'a>) -> NewEntry<'a> {
    NewEntry {
        caller: caller(from),
        dir: from.ino,
        name: new.name,
        mode: new.mode,
        umask: new.umask,
    }
}

impl Server for Adapter {
    fn negotiate(&self, offer: &Offer) -> Result<Wanted, String> {
        negotiate::ask(offer, self.write)
    }

    fn without_waiting(&self, serve: &mut dyn FnMut()) -> Attempt {
        let waits = self.ops.without_waiting(serve);
        let settle = waits.owed.map(|_| {
            let ops = self.ops();
            let settle = move || writing_back(&ops, "settling", 0, || ops.settle(waits));
            Box::new(settle) as Box<dyn FnOnce() -> Result<(), Errno> + Send>
        });
        Attempt {
            refused: waits.refused,
            owed: settle,
        }
    }

    fn hand_over(&self, again: bool, job: Job) {
        self.late
            .run_elsewhere(move |_under_way| if again { uncounted(job) } else { job() });
    }

    fn announce_waits(&self, before: Box<dyn Fn()>) {
        waiting::announce(before);
    }

    /// `ENOSYS` makes the kernel send neither OPEN, RELEASE nor FLUSH for the rest of the mount,
    /// create files by MKNOD, and cache listings. Directory cookies are stable, so an open
    /// directory needs no state here.
    fn unsupported(&self, from: &Header) {
        match from.opcode {
            Opcode::OPEN => self.ops.received(Operation::Open),
            Opcode::CREATE => self.ops.received(Operation::Create),
            Opcode::FLUSH => self.ops.received(Operation::Flush),
            Opcode::OPENDIR => self.ops.received(Operation::Opendir),
            _ => {}
        }
    }

    fn lookup(&self, from: &Header, name: &[u8], reply: ReplyEntry) {
        self.ops.received(Operation::Lookup);
        match guarded(&self.ops, "lookup", from.ino, || {
            self.ops.lookup(from.ino, name)
        }) {
            Ok(Some(found)) if from.ino == DOOR => self.through_door(&found, name, reply),
            Ok(Some(found)) => reply.entry(&entry(&found)),
            Ok(None) => reply.entry(&absent()),
            Err(e) => reply.error(e),
        }
    }

    fn forget(&self, ino: u64, lookups: u64) {
        self.ops.received(Operation::Forget);
        // FORGET has no reply; `caught` has logged a panic.
        let left = caught("forget", ino, || Ok(self.ops.forget(ino, lookups)));
        if let Ok(Some(unused)) = left {
            let ops = self.ops();
            self.working.run_elsewhere(move |_under_way| {
                let _ = writing_back(&ops, "removal", ino, || {
                    ops.remove_unused(unused);
                    Ok(())
                });
            });
        }
    }

    fn getattr(&self, from: &Header, by_handle: bool, reply: ReplyAttr) {
        self.ops.received(Operation::Getattr);
        let found = guarded(&self.ops, "getattr", from.ino, || {
            self.ops.getattr(from.ino, by_handle)
        });
        reply_attr(reply, (from.ino, TTL), found);
        self.renew_listings(from.ino);
    }

    /// Only with the option `btime`: the kernel sends it once for each inode to programs that ask
    /// for the time of birth, which some do with every stat.
    fn statx(&self, from: &Header, asked: &Statx, reply: ReplyStatx) {
        self.ops.received(Operation::Statx);
        if !self.birth_times {
            return reply.error(Errno::ENOSYS);
        }
        let found = guarded(&self.ops, "statx", from.ino, || {
            self.ops.getattr(from.ino, asked.by_handle)
        });
        match found {
            Ok(attr) => reply.statx(&statx_reply(from.ino, &attr, TTL)),
            Err(e) => reply.error(e),
        }
        self.renew_listings(from.ino);
    }

    fn setattr(&self, from: &Header, set: &Setattr, reply: ReplyAttr) {
        self.ops.received(Operation::Setattr);
        let (ino, caller) = (from.ino, caller(from));
        let set = SetAttr {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(set_time),
            mtime: set.mtime.map(set_time),
            ctime: set.ctime.map(wire_time),
            ..SetAttr::default()
        };
        if set.size.is_some() && self.ops.resizes_slowly(ino) {
            let ops = self.ops();
            return self.working.run_elsewhere(move |_under_way| {
                let changed = set_attributes(&ops, caller, ino, set);
                reply_attr(reply, (ino, ttl(&ops)), changed);
            });
        }
        let outcome = set_attributes(&self.ops, caller, ino, set);
        reply_attr(reply, (ino, ttl(&self.ops)), outcome);
    }

    fn readlink(&self, from: &Header, reply: ReplyData) {
        self.serve(Operation::Readlink, from.ino, reply, |ops| {
            ops.readlink(from.ino)
        });
    }

    fn mknod(&self, from: &Header, new: &NewNode<'_>, reply: ReplyEntry) {
        self.ops.received(Operation::Mknod);
        // The kernel asks for names that it takes for free: if one exists, a publish, a restore or a
        // program beside the kernel has brought it since. On ESTALE it looks again, so an open(2)
        // without O_EXCL opens the file.
        let outcome = guarded(&self.ops, Operation::Mknod.name(), from.ino, || {
            let made = self.ops.mknod(new_entry(from, new), u64::from(new.rdev));
            made.map_err(|refusal| match refusal {
                Refusal(libc::EEXIST) => STALE,
                other => other,
            })
        });
        match outcome {
            Ok(found) if from.ino == DOOR => self.through_door(&found, new.name, reply),
            outcome => reply.answer(outcome),
        }
    }

    fn mkdir(&self, from: &Header, new: &NewNode<'_>, reply: ReplyEntry) {
        let new = NewEntry {
            mode: new.mode | libc::S_IFDIR,
            ..new_entry(from, new)
        };
        self.serve(Operation::Mkdir, from.ino, reply, |ops| ops.mkdir(new));
    }

    fn tmpfile(&self, from: &Header, new: &NewNode<'_>, reply: ReplyOpenEntry) {
        let new = new_entry(from, new);
        self.serve(Operation::Tmpfile, from.ino, reply, |ops| ops.tmpfile(new));
    }

    fn unlink(&self, from: &Header, name: &[u8], reply: ReplyEmpty) {
        self.serve(Operation::Unlink, from.ino, reply, |ops| {
            ops.unlink(from.ino, name)
        });
    }

    fn rmdir(&self, from: &Header, name: &[u8], reply: ReplyEmpty) {
        self.serve(Operation::Rmdir, from.ino, reply, |ops| {
            ops.rmdir(from.ino, name)
        });
    }

    fn symlink(&self, from: &Header, name: &[u8], target: &[u8], reply: ReplyEntry) {
        self.serve(Operation::Symlink, from.ino, reply, |ops| {
            ops.symlink(caller(from), from.ino, name, target)
        });
    }

    fn rename(&self, from: &Header, rename: &Rename<'_>, reply: ReplyEmpty) {
        let old = (from.ino, rename.name);
        let new = (rename.new_dir, rename.new_name);
        self.serve(Operation::Rename, from.ino, reply, |ops| {
            ops.rename(caller(from), old, new, rename.flags)
        });
    }

    fn link(&self, from: &Header, ino: u64, name: &[u8], reply: ReplyEntry) {
        self.serve(Operation::Link, ino, reply, |ops| {
            ops.link(ino, from.ino, name)
        });
    }

    fn read(&self, from: &Header, offset: u64, size: u32, reply: ReplyData) {
        self.ops.received(Operation::Read);
        reply.fill(size as usize, |room| {
            writing_back(&self.ops, "read", from.ino, || {
                self.ops.read(from.ino, offset, room)
            })
        });
    }

    fn write(&self, from: &Header, write: &Write<'_>, reply: ReplyWrite) {
        self.ops.received(Operation::Write);
        let (ino, offset, data) = (from.ino, write.offset, write.data);
        let killer = write.kill_suidgid.then(|| caller(from));
        let written = writing_back(&self.ops, "write", ino, || {
            if write.cached {
                self.ops.write_cached(ino, offset, data, killer)
            } else {
                self.ops.write(ino, offset, data, killer)
            }
        });
        match written {
            Ok(len) => reply.written(len as u32),
            Err(e) => reply.error(e),
        }
        if write.cached && written == Err(Errno::new(libc::EPERM)) {
            let ops = self.ops();
            self.waiting.run_elsewhere(move |_under_way| {
                ops.drop_cached(ino, offset);
            });
        }
    }

    fn fsync(&self, from: &Header, data_only: bool, reply: ReplyEmpty) {
        self.ops.received(Operation::Fsync);
        self.sync(from.ino, data_only, reply);
    }

    fn fsyncdir(&self, from: &Header, data_only: bool, reply: ReplyEmpty) {
        self.ops.received(Operation::Fsyncdir);
        self.sync(from.ino, data_only, reply);
    }

    fn readdir(&self, from: &Header, offset: u64, mut reply: ReplyDirectory) {
        self.ops.received(Operation::Readdir);
        let mut added = false;
        let outcome = guarded(&self.ops, "readdir", from.ino, || {
            self.ops.readdir(from.ino, offset, &mut |entry| {
                let mode = type_bits(entry.kind);
                let fits = reply.add(entry.ino, entry.cookie, mode, entry.name);
                added |= fits;
                fits
            })
        });
        match outcome {
            Err(e) if !added => reply.error(e),
            _ => reply.ok(),
        }
    }

    /// An error after the first entry is returned by the next call instead: the kernel must receive
    /// the entries already added because each of them took a lookup reference.
    fn readdirplus(&self, from: &Header, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.ops.received(Operation::Readdirplus);
        let mut added = false;
        let outcome = guarded(&self.ops, "readdir", from.ino, || {
            self.ops
                .readdir_plus(from.ino, offset, &mut |listed, found| {
                    let out = found.map_or_else(|| entry_alone(&listed), entry);
                    let fits = reply.add(listed.cookie, listed.name, &out);
                    added |= fits;
                    fits
                })
        });
        match outcome {
            Err(e) if !added => reply.error(e),
            _ => reply.ok(),
        }
    }

    fn statfs(&self, from: &Header, reply: ReplyStatfs) {
        self.ops.received(Operation::Statfs);
        match guarded(&self.ops, "statfs", from.ino, || Ok(self.ops.statfs())) {
            Ok(s) => reply.statfs(&StatfsOut {
                blocks: s.blocks,
                bfree: s.free,
                bavail: s.available,
                files: s.files,
                ffree: s.files_free,
                bsize: s.block_size,
                namelen: s.name_max,
                frsize: s.block_size,
                ..StatfsOut::default()
            }),
            Err(e) => reply.error(e),
        }
    }

    /// The kernel tells whether an access list clears set-group-id: the caller is neither in the
    /// file's group nor has the capability to keep the bit.
    fn setxattr(&self, from: &Header, set: &Setxattr<'_>, reply: ReplyEmpty) {
        let kill = if set.kill_sgid {
            KillPrivileges::ByGroup(from.gid)
        } else {
            KillPrivileges::No
        };
        let flags = set.flags.cast_signed();
        self.serve(Operation::Setxattr, from.ino, reply, |ops| {
            ops.setxattr(kill, from.ino, set.name, set.value, flags)
        });
    }

    fn getxattr(&self, from: &Header, name: &[u8], reply: ReplyXattr) {
        let ino = from.ino;
        if control::is_reserved(name) {
            let (ops, name, caller) = (self.ops(), name.to_vec(), caller(from));
            return self.waiting.run_elsewhere(move |_under_way| {
                reply.answer(guarded(&ops, "control", ino, || ops.answer(caller, &name)));
            });
        }
        self.serve(Operation::Getxattr, ino, reply, |ops| {
            ops.getxattr(ino, name)
        });
    }

    fn listxattr(&self, from: &Header, reply: ReplyXattr) {
        self.serve(Operation::Listxattr, from.ino, reply, |ops| {
            ops.listxattr(caller(from), from.ino)
        });
    }

    fn removexattr(&self, from: &Header, name: &[u8], reply: ReplyEmpty) {
        self.serve(Operation::Removexattr, from.ino, reply, |ops| {
            ops.removexattr(from.ino, name)
        });
    }

    fn fallocate(&self, from: &Header, range: &Fallocate, reply: ReplyEmpty) {
        self.ops.received(Operation::Fallocate);
        let (ops, caller, ino, range) = (self.ops(), caller(from), from.ino, *range);
        self.working.run_elsewhere(move |_under_way| {
            reply.answer(guarded(&ops, "fallocate", ino, || {
                ops.fallocate(caller, ino, range.offset, range.length, range.mode)
            }));
        });
    }

    /// Runs outside the event loops because it waits for writeback, which arrives at the event
    /// loops.
    fn lseek(&self, from: &Header, offset: u64, whence: u32, reply: ReplyLseek) {
        self.ops.received(Operation::Lseek);
        let (ops, ino) = (self.ops(), from.ino);
        let (offset, whence) = (offset.cast_signed(), whence.cast_signed());
        let one = match self.wait_for_kernel(reply.is_bounded()) {
            Ok(one) => one,
            Err(refused) => return reply.error(refused),
        };
        self.waiting.run_elsewhere(move |_under_way| {
            let _one = one;
            reply.answer(guarded(&ops, "lseek", ino, || {
                ops.seek(ino, offset, whence)
            }));
        });
    }

    /// Only ioctls for inode flags are supported. Setting flags waits for writeback, so it runs
    /// outside the event loops. Unsupported ioctls are answered at once because programs send
    /// TCGETS to every file (`isatty`).
    fn ioctl(&self, from: &Header, ioctl: &Ioctl<'_>, reply: ReplyIoctl) {
        self.ops.received(Operation::Ioctl);
        let ino = from.ino;
        match ioctls::parse(ioctl.cmd, ioctl.data) {
            Err(refused) => reply.error(refused.into()),
            Ok(ioctls::Ioctl::Get(form)) => {
                let flags = guarded(&self.ops, "ioctl", ino, || self.ops.flags(ino));
                reply.answer(flags.map(|flags| form.bytes(flags)));
            }
            Ok(ioctls::Ioctl::Set(flags)) => {
                let ops = self.ops();
                let one = match self.wait_for_kernel(reply.is_bounded()) {
                    Ok(one) => one,
                    Err(refused) => return reply.error(refused),
                };
                self.waiting.run_elsewhere(move |_under_way| {
                    let _one = one;
                    let set = guarded(&ops, "ioctl", ino, || ops.set_flags(ino, flags));
                    reply.answer(set.map(|()| Vec::new()));
                });
            }
        }
    }

    fn copy_file_range(&self, from: &Header, copy: &CopyFileRange, reply: ReplyCopied) {
        self.ops.received(Operation::CopyFileRange);
        let (source, length) = ((from.ino, copy.offset), copy.length);
        let target = (copy.to, copy.to_offset);
        let (ops, caller) = (self.ops(), caller(from));
        self.working.run_elsewhere(move |_under_way| {
            reply.answer(guarded(&ops, "copy_file_range", source.0, || {
                ops.copy_range(caller, source, target, length)
            }));
        });
    }
}
