//! Replies: each request gets exactly one.
//!
//! A reply knows its request's number and the sink of the transport that received it, so it can be
//! sent from any thread, at any time. A reply that is dropped unsent answers `EIO`. The types state
//! which answers an operation has; they encode, and know no transport.

use std::cell::RefCell;
use std::sync::Arc;

use zerocopy::{Immutable, IntoBytes};

use crate::abi::{self, AttrOut, Dirent, EntryOut, StatfsOut, StatxOut};

/// Why a request is refused: an errno value that the protocol can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(i32);

impl Errno {
    /// Input/output error.
    pub const EIO: Errno = Errno(libc::EIO);
    /// The operation does not exist; the kernel does not send it again.
    pub const ENOSYS: Errno = Errno(libc::ENOSYS);
    /// No such attribute.
    pub const ENODATA: Errno = Errno(libc::ENODATA);
    /// No such entry.
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    /// Not an ioctl of this file.
    pub const ENOTTY: Errno = Errno(libc::ENOTTY);
    /// Not supported.
    pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    /// The kernel's protocol is not supported.
    pub const EPROTO: Errno = Errno(libc::EPROTO);
    /// The value does not fit.
    pub const ERANGE: Errno = Errno(libc::ERANGE);

    /// The kernel refuses replies with larger numbers.
    const LIMIT: i32 = 512;

    /// Converts a number of errno(3); one that the protocol cannot carry becomes `EIO`.
    pub fn new(number: i32) -> Self {
        match number {
            1..Self::LIMIT => Errno(number),
            _ => Errno::EIO,
        }
    }

    /// The number of errno(3).
    pub fn number(self) -> i32 {
        self.0
    }
}

/// Most parts of a reply's contents.
pub const PARTS: usize = 3;

/// Where a transport takes replies. Called from any thread, once for each request.
pub trait Sink: Send + Sync {
    /// Sends the reply of request `unique`: an error, or the bytes of all parts, at most [`PARTS`],
    /// one behind the other.
    fn send(&self, unique: u64, outcome: Result<&[&[u8]], Errno>);

    /// Whether the thread that serves a request of this sink may wait for the device: others take
    /// over its work meanwhile.
    fn may_wait(&self) -> bool;

    /// Whether the requests in service are bounded: further ones wait in the kernel, also those that
    /// one in service waits for.
    fn is_bounded(&self) -> bool;

    /// Sends data that `fill` writes into a buffer of `size` bytes; it returns their number.
    /// A transport whose replies lie in memory shared with the kernel passes that.
    fn send_filled(
        &self,
        unique: u64,
        size: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) {
        FILLED.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let room = buffer.get_mut(..size).unwrap_or_default();
            match fill(room) {
                Ok(len) => self.send(unique, Ok(&[room.get(..len).unwrap_or(room)])),
                Err(error) => self.send(unique, Err(error)),
            }
        });
    }
}

thread_local! {
    /// Buffer for the data of replies that this thread fills; it grows to the largest.
    static FILLED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The reply that one request awaits.
pub struct Reply {
    sink: Option<Arc<dyn Sink>>,
    unique: u64,
}

impl Reply {
    /// The reply of request `unique`.
    pub fn new(unique: u64, sink: Arc<dyn Sink>) -> Self {
        let sink = Some(sink);
        Self { sink, unique }
    }

    pub(crate) fn error(self, error: Errno) {
        self.send(Err(error));
    }

    pub(crate) fn ok(self, parts: &[&[u8]]) {
        self.send(Ok(parts));
    }

    fn value(self, value: &(impl IntoBytes + Immutable)) {
        self.ok(&[value.as_bytes()]);
    }

    fn send(mut self, outcome: Result<&[&[u8]], Errno>) {
        if let Some(sink) = self.sink.take() {
            sink.send(self.unique, outcome);
        }
    }

    fn fill(mut self, size: usize, mut fill: impl FnMut(&mut [u8]) -> Result<usize, Errno>) {
        if let Some(sink) = self.sink.take() {
            sink.send_filled(self.unique, size, &mut fill);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            sink.send(self.unique, Err(Errno::EIO));
        }
    }
}

macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* })*) => {
        $(
            $(#[$doc])*
            pub struct $name {
                pub(crate) reply: Reply,
                $(pub(crate) $field: $kind,)*
            }

            impl $name {
                /// Whether the requests in service are bounded, as by the entries of a ring.
                pub fn is_bounded(&self) -> bool {
                    self.reply.sink.as_ref().is_some_and(|sink| sink.is_bounded())
                }

                /// Whether the thread that serves this request may wait for the device; the thread
                /// of a ring may not.
                pub fn may_wait(&self) -> bool {
                    self.reply.sink.as_ref().is_some_and(|sink| sink.may_wait())
                }

                /// Refuses the request.
                pub fn error(self, error: Errno) {
                    self.reply.error(error);
                }
            }
        )*
    };
}

replies! {
    /// Reply without contents.
    ReplyEmpty {}
    /// Reply with an entry.
    ReplyEntry {}
    /// Reply with an entry that is open.
    ReplyOpenEntry {}
    /// Reply with attributes.
    ReplyAttr {}
    /// Reply with the attributes of statx(2).
    ReplyStatx {}
    /// Reply with data.
    ReplyData {}
    /// Reply with the number of bytes written.
    ReplyWrite {}
    /// Reply with the number of bytes copied.
    ReplyCopied { wide: bool }
    /// Reply with the space of a file system.
    ReplyStatfs {}
    /// Reply with the value of an attribute or a list of names.
    ReplyXattr { size: u32 }
    /// Reply with a position in a file.
    ReplyLseek {}
    /// Reply to an ioctl.
    ReplyIoctl {}
    /// Reply with entries of a directory.
    ReplyDirectory { listing: Listing }
    /// Reply with entries of a directory and their attributes; each that has an inode number counts
    /// as a lookup, except "." and "..".
    ReplyDirectoryPlus { listing: Listing }
}

impl ReplyEmpty {
    /// The operation succeeded.
    pub fn ok(self) {
        self.reply.ok(&[]);
    }
}

impl ReplyEntry {
    /// The entry; inode number 0 says that the name does not exist, which the kernel then caches.
    pub fn entry(self, entry: &EntryOut) {
        self.reply.value(entry);
    }
}

impl ReplyOpenEntry {
    /// The entry, open without a handle.
    pub fn entry(self, entry: &EntryOut) {
        let open = abi::OpenOut::default();
        self.reply.ok(&[entry.as_bytes(), open.as_bytes()]);
    }
}

impl ReplyAttr {
    /// The attributes.
    pub fn attr(self, attr: &AttrOut) {
        self.reply.value(attr);
    }
}

impl ReplyStatx {
    /// The attributes.
    pub fn statx(self, attr: &StatxOut) {
        self.reply.value(attr);
    }
}

impl ReplyData {
    /// The data.
    pub fn data(self, data: &[u8]) {
        self.reply.ok(&[data]);
    }

    /// Data that `fill` writes into a buffer of `size` bytes; it returns their number.
    pub fn fill(self, size: usize, fill: impl FnMut(&mut [u8]) -> Result<usize, Errno>) {
        self.reply.fill(size, fill);
    }
}

impl ReplyWrite {
    /// So many bytes were written.
    pub fn written(self, size: u32) {
        self.reply.value(&abi::WriteOut { size, padding: 0 });
    }
}

impl ReplyCopied {
    /// So many bytes were copied.
    pub fn copied(self, size: u32) {
        if self.wide {
            self.reply.value(&abi::CopyFileRangeOut {
                bytes_copied: size.into(),
            })
        } else {
            self.reply.value(&abi::WriteOut { size, padding: 0 })
        }
    }
}

impl ReplyStatfs {
    /// The space.
    pub fn statfs(self, space: &StatfsOut) {
        self.reply.value(space);
    }
}

impl ReplyXattr {
    /// The value; a request with size 0 is answered with its length only.
    pub fn value(self, value: &[u8]) {
        let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
        match self.size {
            0 => self.reply.value(&abi::GetxattrOut {
                size: len,
                padding: 0,
            }),
            room if len > room => self.reply.error(Errno::ERANGE),
            _ => self.reply.ok(&[value]),
        }
    }
}

impl ReplyLseek {
    /// The position.
    pub fn offset(self, offset: u64) {
        self.reply.value(&abi::LseekOut { offset });
    }
}

impl ReplyIoctl {
    /// Success, and the bytes for the program.
    pub fn data(self, data: &[u8]) {
        let head = abi::IoctlOut::default();
        self.reply.ok(&[head.as_bytes(), data]);
    }
}

/// Entries of a directory, as many as the kernel has room for.
pub(crate) struct Listing {
    bytes: Vec<u8>,
    room: usize,
}

/// Names are padded to a multiple of this.
const ALIGN: usize = 8;

impl Listing {
    pub(crate) fn new(size: u32) -> Self {
        Self {
            bytes: Vec::new(),
            room: size as usize,
        }
    }

    /// Adds a record of two structures and a name; returns false if it has no room.
    fn add(&mut self, head: &[u8], dirent: &Dirent, name: &[u8]) -> bool {
        let len = head.len() + size_of::<Dirent>() + name.len();
        let padded = len.next_multiple_of(ALIGN);
        if self.bytes.len() + padded > self.room {
            return false;
        }
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len() + padded - len, 0);
        true
    }
}

fn dirent(ino: u64, cookie: u64, mode: u32, name: &[u8]) -> Dirent {
    Dirent {
        ino,
        off: cookie,
        namelen: name.len() as u32,
        kind: (mode & libc::S_IFMT) >> 12,
    }
}

impl ReplyDirectory {
    /// Adds an entry; `cookie` is where a listing continues behind it, `mode` has its file type.
    /// Returns false if there is no room for it.
    pub fn add(&mut self, ino: u64, cookie: u64, mode: u32, name: &[u8]) -> bool {
        let dirent = dirent(ino, cookie, mode, name);
        self.listing.add(&[], &dirent, name)
    }

    /// Sends the entries; none marks the end of the directory.
    pub fn ok(self) {
        self.reply.ok(&[&self.listing.bytes]);
    }
}

impl ReplyDirectoryPlus {
    /// Adds an entry; `cookie` is where a listing continues behind it. Returns false if there is no
    /// room for it.
    pub fn add(&mut self, cookie: u64, name: &[u8], entry: &EntryOut) -> bool {
        let dirent = dirent(entry.attr.ino, cookie, entry.attr.mode, name);
        self.listing.add(entry.as_bytes(), &dirent, name)
    }

    /// Sends the entries; none marks the end of the directory.
    pub fn ok(self) {
        self.reply.ok(&[&self.listing.bytes]);
    }
}
