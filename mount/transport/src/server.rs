//! What a file system implements, and the way of a message to it.
//!
//! A transport calls [`serve`] for each message, in the thread that received it; it returns when
//! the server has answered or handed the reply over to another thread. Messages of the connection
//! itself (INTERRUPT, DESTROY) and RELEASE are answered here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::abi::{InHeader, Opcode};
use crate::init::{Offer, Wanted};
use crate::reply::{
    Errno, Listing, Reply, ReplyAttr, ReplyCopied, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpenEntry, ReplyStatfs, ReplyStatx,
    ReplyWrite, ReplyXattr, Sink,
};
use crate::request::{
    CopyFileRange, Fallocate, Header, Ioctl, NewNode, Operation, Rename, Setattr, Setxattr, Statx,
    Write,
};

/// Work for another thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// What the service of a request left out because its thread must not wait.
#[derive(Default)]
pub struct Attempt {
    /// It was refused a wait. If it was answered with an error, it has changed nothing and is to be
    /// served again.
    pub refused: bool,
    /// A wait that precedes the reply: the caller is faster than the device.
    pub owed: Option<Box<dyn FnOnce() -> Result<(), Errno> + Send>>,
}

/// Methods for the requests with a reply: the arguments behind the header, and the type of the reply.
macro_rules! requests {
    ($($(#[$doc:meta])* $request:ident($($arg:ident: $kind:ty),*) -> $reply:ty;)*) => {
        $(
            $(#[$doc])*
            fn $request(&self, from: &Header, $($arg: $kind,)* reply: $reply) {
                reply.error(Errno::ENOSYS);
            }
        )*
    };
}

/// A file system. Requests arrive in several threads at once; each is answered through its reply,
/// now or later. What is not implemented is refused with `ENOSYS`, which makes the kernel not send
/// it again.
#[expect(
    unused_variables,
    reason = "the names of the arguments are documentation"
)]
pub trait Server: Send + Sync + 'static {
    /// What is wanted of a connection.
    ///
    /// # Errors
    /// The text names what the kernel lacks.
    fn negotiate(&self, offer: &Offer) -> Result<Wanted, String>;

    /// Runs `serve`, which serves one request, in a thread that must not wait for the device,
    /// because no other thread serves its queue.
    fn without_waiting(&self, serve: &mut dyn FnMut()) -> Attempt {
        serve();
        Attempt::default()
    }

    /// Runs `job` in another thread, which may wait for the device. `again` if it serves a request
    /// that was served without waiting before.
    fn hand_over(&self, again: bool, job: Job) {
        job();
    }

    /// From now on, `before` is to be called whenever the calling thread may be about to wait for
    /// the device: another thread then serves its queue.
    fn announce_waits(&self, before: Box<dyn Fn()>) {}

    /// An operation arrived that this interface does not have; it is refused with `ENOSYS`.
    fn unsupported(&self, from: &Header) {}

    /// Returns references to an inode. Has no reply.
    fn forget(&self, ino: u64, lookups: u64) {}

    requests! {
        /// Looks up a name in the header's directory; counts as one reference to the inode found.
        lookup(name: &[u8]) -> ReplyEntry;
        /// Attributes; `by_handle` if they are asked through an open file.
        getattr(by_handle: bool) -> ReplyAttr;
        /// Attributes with time of birth.
        statx(asked: &Statx) -> ReplyStatx;
        /// Changes attributes.
        setattr(set: &Setattr) -> ReplyAttr;
        /// Target of a symlink.
        readlink() -> ReplyData;
        /// Makes a symlink.
        symlink(name: &[u8], target: &[u8]) -> ReplyEntry;
        /// Makes a file that is no directory.
        mknod(new: &NewNode<'_>) -> ReplyEntry;
        /// Makes a directory.
        mkdir(new: &NewNode<'_>) -> ReplyEntry;
        /// Makes and opens a file without a name; the name in `new` is meaningless.
        tmpfile(new: &NewNode<'_>) -> ReplyOpenEntry;
        /// Removes a name that is no directory.
        unlink(name: &[u8]) -> ReplyEmpty;
        /// Removes a directory.
        rmdir(name: &[u8]) -> ReplyEmpty;
        /// Renames.
        rename(rename: &Rename<'_>) -> ReplyEmpty;
        /// Gives inode `ino` a further name in the header's directory.
        link(ino: u64, name: &[u8]) -> ReplyEntry;
        /// Reads.
        read(offset: u64, size: u32) -> ReplyData;
        /// Writes.
        write(write: &Write<'_>) -> ReplyWrite;
        /// Space of the file system.
        statfs() -> ReplyStatfs;
        /// Makes a file durable.
        fsync(data_only: bool) -> ReplyEmpty;
        /// Makes a directory durable.
        fsyncdir(data_only: bool) -> ReplyEmpty;
        /// Makes everything durable.
        syncfs() -> ReplyEmpty;
        /// Sets an extended attribute.
        setxattr(set: &Setxattr<'_>) -> ReplyEmpty;
        /// Value of an extended attribute.
        getxattr(name: &[u8]) -> ReplyXattr;
        /// Names of extended attributes, each with a NUL byte.
        listxattr() -> ReplyXattr;
        /// Removes an extended attribute.
        removexattr(name: &[u8]) -> ReplyEmpty;
        /// Entries of a directory, behind the one with this cookie.
        readdir(offset: u64) -> ReplyDirectory;
        /// Entries of a directory with attributes, behind the one with this cookie.
        readdirplus(offset: u64) -> ReplyDirectoryPlus;
        /// Allocates space or makes holes.
        fallocate(range: &Fallocate) -> ReplyEmpty;
        /// Finds data or a hole.
        lseek(offset: u64, whence: u32) -> ReplyLseek;
        /// Copies between files.
        copy_file_range(copy: &CopyFileRange) -> ReplyCopied;
        /// Executes an ioctl.
        ioctl(ioctl: &Ioctl<'_>) -> ReplyIoctl;
    }
}

/// Serves one message: `op` begins with the structure of its operation, `payload` is what follows
/// that. The reply goes to `sink`, from this thread or another one; messages that have no reply
/// send nothing. A panic of the server is logged and answered with `EIO`.
pub fn serve(
    server: &impl Server,
    header: &InHeader,
    op: &[u8],
    payload: &[u8],
    sink: &Arc<dyn Sink>,
) {
    let header = Header::from(header);
    let answer = || Reply::new(header.unique, Arc::clone(sink));
    match Operation::decode(header.opcode, op, payload) {
        Ok(operation) => {
            let passed = AssertUnwindSafe(|| dispatch(server, &header, operation, answer));
            if catch_unwind(passed).is_err() {
                tracing::error!("request {:?} panicked", header.opcode);
            }
        }
        Err(malformed) => {
            tracing::error!("malformed request {:?}: {}", header.opcode, malformed.0);
            if !header.opcode.is_unanswered() {
                answer().error(Errno::EIO);
            }
        }
    }
}

fn dispatch(
    server: &impl Server,
    from: &Header,
    operation: Operation<'_>,
    answer: impl Fn() -> Reply,
) {
    macro_rules! reply {
        ($kind:ident $(, $field:ident: $value:expr)*) => {
            $kind { reply: answer() $(, $field: $value)* }
        };
    }
    match operation {
        Operation::Lookup { name } => server.lookup(from, name, reply!(ReplyEntry)),
        Operation::Forget { lookups } => server.forget(from.ino, lookups),
        Operation::BatchForget(all) => all.iter().for_each(|(ino, n)| server.forget(ino, n)),
        Operation::Getattr { by_handle } => server.getattr(from, by_handle, reply!(ReplyAttr)),
        Operation::Statx(asked) => server.statx(from, &asked, reply!(ReplyStatx)),
        Operation::Setattr(set) => server.setattr(from, &set, reply!(ReplyAttr)),
        Operation::Readlink => server.readlink(from, reply!(ReplyData)),
        Operation::Symlink { name, target } => {
            server.symlink(from, name, target, reply!(ReplyEntry));
        }
        Operation::Mknod(new) => server.mknod(from, &new, reply!(ReplyEntry)),
        Operation::Mkdir(new) => server.mkdir(from, &new, reply!(ReplyEntry)),
        Operation::Tmpfile(new) => server.tmpfile(from, &new, reply!(ReplyOpenEntry)),
        Operation::Unlink { name } => server.unlink(from, name, reply!(ReplyEmpty)),
        Operation::Rmdir { name } => server.rmdir(from, name, reply!(ReplyEmpty)),
        Operation::Rename(rename) => server.rename(from, &rename, reply!(ReplyEmpty)),
        Operation::Link { ino, name } => server.link(from, ino, name, reply!(ReplyEntry)),
        Operation::Read { offset, size } => server.read(from, offset, size, reply!(ReplyData)),
        Operation::Write(write) => server.write(from, &write, reply!(ReplyWrite)),
        Operation::Statfs => server.statfs(from, reply!(ReplyStatfs)),
        Operation::Fsync { data_only } => server.fsync(from, data_only, reply!(ReplyEmpty)),
        Operation::Fsyncdir { data_only } => server.fsyncdir(from, data_only, reply!(ReplyEmpty)),
        Operation::Syncfs => server.syncfs(from, reply!(ReplyEmpty)),
        Operation::Setxattr(set) => server.setxattr(from, &set, reply!(ReplyEmpty)),
        Operation::Getxattr { name, size } => {
            server.getxattr(from, name, reply!(ReplyXattr, size: size));
        }
        Operation::Listxattr { size } => server.listxattr(from, reply!(ReplyXattr, size: size)),
        Operation::Removexattr { name } => server.removexattr(from, name, reply!(ReplyEmpty)),
        Operation::Readdir { offset, size } => {
            let listing = Listing::new(size);
            server.readdir(from, offset, reply!(ReplyDirectory, listing: listing));
        }
        Operation::Readdirplus { offset, size } => {
            let listing = Listing::new(size);
            server.readdirplus(from, offset, reply!(ReplyDirectoryPlus, listing: listing));
        }
        Operation::Fallocate(range) => server.fallocate(from, &range, reply!(ReplyEmpty)),
        Operation::Lseek { offset, whence } => {
            server.lseek(from, offset, whence, reply!(ReplyLseek));
        }
        Operation::CopyFileRange(copy) => {
            server.copy_file_range(from, &copy, reply!(ReplyCopied, wide: copy.wide));
        }
        Operation::Ioctl(ioctl) => server.ioctl(from, &ioctl, reply!(ReplyIoctl)),
        // No request waits for a program that may give up: all end by themselves. `ENOSYS` makes
        // the kernel send no further INTERRUPT.
        Operation::Interrupt { .. } => answer().error(Errno::ENOSYS),
        // Sent for a file that was opened by TMPFILE, until OPEN is refused. Open files have no state.
        Operation::Release | Operation::Destroy => answer().ok(&[]),
        // The session negotiates before it serves.
        Operation::Init(_) => answer().error(Errno::EIO),
        Operation::Unsupported(Opcode::NOTIFY_REPLY) => {}
        Operation::Unsupported(_) => {
            server.unsupported(from);
            answer().error(Errno::ENOSYS);
        }
    }
}
