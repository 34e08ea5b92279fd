//! How a request is admitted, and what goes back to the kernel.
//!
//! Shared by all messages: the door of an ending mount, refusals and panics as errno values, and the
//! replies that several messages have in common. Nothing here knows a particular message.

use std::time::Duration;

use cairnfs::types::Attr;
use fuser::{
    Errno, Generation, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyXattr, Request,
};

use crate::convert::file_attr;
use crate::door::Purpose;
use crate::ops::{Caller, Ops, Outcome, caught};

/// How long the kernel may keep names (also missing ones) and attributes. All changes pass through
/// this kernel, so they never become wrong; the length only bounds nothing of importance.
pub(crate) const TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// Inode numbers are never reused, so there is one generation.
pub(crate) const GENERATION: Generation = Generation(0);

/// Runs one operation, with its refusal as the wire has it.
pub(super) fn guarded<T>(
    ops: &Ops,
    what: &str,
    ino: INodeNo,
    op: impl FnOnce() -> Outcome<T>,
) -> Result<T, Errno> {
    admitted(ops, Purpose::New, what, ino, op)
}

/// The same for one that brings what the kernel holds.
pub(super) fn writing_back<T>(
    ops: &Ops,
    what: &str,
    ino: INodeNo,
    op: impl FnOnce() -> Outcome<T>,
) -> Result<T, Errno> {
    admitted(ops, Purpose::WriteBack, what, ino, op)
}

fn admitted<T>(
    ops: &Ops,
    purpose: Purpose,
    what: &str,
    ino: INodeNo,
    op: impl FnOnce() -> Outcome<T>,
) -> Result<T, Errno> {
    let _inside = ops.door().enter(purpose).map_err(Errno::from)?;
    caught(what, ino.0, op).map_err(Errno::from)
}

pub(super) fn caller(req: &Request) -> Caller {
    Caller {
        uid: req.uid(),
        gid: req.gid(),
        pid: req.pid(),
    }
}

pub(super) fn reply_empty(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

/// How long the kernel may keep attributes that it gets now: while a mount is being ended it must ask
/// before it accepts data.
pub(super) fn ttl(ops: &Ops) -> Duration {
    match ops.door().is_open() {
        true => TTL,
        false => Duration::ZERO,
    }
}

pub(super) fn reply_attr(reply: ReplyAttr, ttl: Duration, outcome: Result<Attr, Errno>) {
    match outcome {
        Ok(attr) => reply.attr(&ttl, &file_attr(&attr)),
        Err(e) => reply.error(e),
    }
}

pub(super) fn reply_entry(reply: ReplyEntry, outcome: Result<Attr, Errno>) {
    match outcome {
        Ok(attr) => reply.entry(&TTL, &file_attr(&attr), GENERATION),
        Err(e) => reply.error(e),
    }
}

pub(super) fn reply_ioctl(reply: ReplyIoctl, outcome: Result<Vec<u8>, Errno>) {
    match outcome {
        Ok(bytes) => reply.ioctl(0, &bytes),
        Err(e) => reply.error(e),
    }
}

/// A caller that gives no room asks for the length.
pub(super) fn reply_xattr(reply: ReplyXattr, size: u32, outcome: Result<Vec<u8>, Errno>) {
    match outcome {
        Err(e) => reply.error(e),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
    }
}
