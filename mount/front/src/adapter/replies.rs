//! Admission of requests, and the replies that several messages share.
//!
//! Used by all messages: the admission check of a mount that is being ended, conversion of errors
//! and panics to errno values, and common replies. Nothing here knows a particular message.

use std::time::Duration;

use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::types::{Attr, EntryRef};
use cairnfs_transport::abi::{AttrOut, EntryOut, StatxOut};
use cairnfs_transport::reply::{
    ReplyAttr, ReplyCopied, ReplyData, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpenEntry, ReplyXattr,
};
use cairnfs_transport::{Errno, Header, abi};

use crate::admission::Purpose;
use crate::convert::{absent_attr, file_attr, file_statx, type_bits};
use crate::ops::{Caller, Found, Ops, Outcome, caught};

/// How long the kernel may cache names (also missing ones) and attributes. All changes pass through
/// this kernel, or it is told what they concern, so cached values never become stale, and the length
/// does not matter for correctness.
pub const TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// Tells an inode from an earlier one that had its number: after a crash, numbers of inodes that
/// were not durable are assigned again. The time of birth differs then and never changes. The
/// kernel keeps 32 bits, and takes the root to have generation 0.
fn generation(attr: &Attr) -> u64 {
    if attr.ino == ROOT_INO {
        return 0;
    }
    let seconds = attr.btime.secs as u32;
    u64::from(seconds.rotate_left(16) ^ attr.btime.nanos)
}

/// An entry that the kernel may cache for [`TTL`], as may its attributes.
pub fn entry_reply(attr: abi::Attr, generation: u64) -> EntryOut {
    EntryOut {
        nodeid: attr.ino,
        generation,
        entry_valid: TTL.as_secs(),
        attr_valid: TTL.as_secs(),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr,
    }
}

/// Attributes that the kernel may cache for this time.
pub fn attr_reply(attr: abi::Attr, ttl: Duration) -> AttrOut {
    AttrOut {
        attr_valid: ttl.as_secs(),
        attr_valid_nsec: ttl.subsec_nanos(),
        dummy: 0,
        attr,
    }
}

/// Attributes with the time of birth.
pub(super) fn statx_reply(node: u64, attr: &Attr, ttl: Duration) -> StatxOut {
    StatxOut {
        attr_valid: ttl.as_secs(),
        attr_valid_nsec: ttl.subsec_nanos(),
        stat: file_statx(node, attr),
        ..StatxOut::default()
    }
}

/// The entry of an inode.
pub(super) fn entry(found: &Found) -> EntryOut {
    EntryOut {
        nodeid: found.node,
        ..entry_reply(file_attr(found.node, &found.attr), generation(&found.attr))
    }
}

/// The entry of an inode that the kernel has found in the door: it keeps no name of it there.
pub(super) fn entry_of_door(found: &Found) -> EntryOut {
    EntryOut {
        entry_valid: 0,
        ..entry(found)
    }
}

/// An entry whose attributes cannot be read: node 0 tells the kernel that it gets the name alone.
pub(super) fn entry_alone(listed: &EntryRef<'_>) -> EntryOut {
    let attr = abi::Attr {
        ino: listed.ino,
        mode: type_bits(listed.kind),
        ..absent_attr()
    };
    EntryOut {
        nodeid: 0,
        ..entry_reply(attr, 0)
    }
}

/// A name that does not exist.
pub(super) fn absent() -> EntryOut {
    entry_reply(absent_attr(), 0)
}

/// Runs one operation if new requests are admitted; converts its refusal to an errno value.
pub(super) fn guarded<T>(
    ops: &Ops,
    what: &str,
    ino: u64,
    op: impl FnOnce() -> Outcome<T>,
) -> Result<T, Errno> {
    admitted(ops, Purpose::New, what, ino, op)
}

/// Like [`guarded`], for an operation that writes back data or times from the kernel's cache: it is
/// also admitted while the mount is being ended.
pub(super) fn writing_back<T>(
    ops: &Ops,
    what: &str,
    ino: u64,
    op: impl FnOnce() -> Outcome<T>,
) -> Result<T, Errno> {
    admitted(ops, Purpose::WriteBack, what, ino, op)
}

fn admitted<T>(
    ops: &Ops,
    purpose: Purpose,
    what: &str,
    ino: u64,
    op: impl FnOnce() -> Outcome<T>,
) -> Result<T, Errno> {
    let _inside = ops.admission().enter(purpose).map_err(Errno::from)?;
    caught(what, ino, op).map_err(Errno::from)
}

pub(super) fn caller(from: &Header) -> Caller {
    Caller {
        uid: from.uid,
        gid: from.gid,
        pid: from.pid,
    }
}

/// A reply with the result of an operation.
pub(super) trait Answer<T> {
    fn answer(self, outcome: Result<T, Errno>);
}

macro_rules! answers {
    ($($reply:ident($result:ident: $type:ty) => |$to:ident| $answer:expr;)*) => {
        $(impl Answer<$type> for $reply {
            fn answer(self, outcome: Result<$type, Errno>) {
                let $to = self;
                match outcome {
                    Ok($result) => $answer,
                    Err(e) => $to.error(e),
                }
            }
        })*
    };
}

answers! {
    ReplyCopied(length: u32) => |reply| reply.copied(length);
    ReplyData(target: Vec<u8>) => |reply| reply.data(&target);
    ReplyEmpty(_done: ()) => |reply| reply.ok();
    ReplyEntry(found: Found) => |reply| reply.entry(&entry(&found));
    ReplyIoctl(bytes: Vec<u8>) => |reply| reply.data(&bytes);
    ReplyLseek(found: i64) => |reply| reply.offset(found.cast_unsigned());
    ReplyOpenEntry(made: Found) => |reply| reply.entry(&entry(&made));
    ReplyXattr(value: Vec<u8>) => |reply| reply.value(&value);
}

/// How long the kernel may cache attributes of a reply to SETATTR. While the mount is being ended
/// they expire at once, so that the kernel must ask before it accepts more data.
pub(super) fn ttl(ops: &Ops) -> Duration {
    if ops.admission().is_open() {
        TTL
    } else {
        Duration::ZERO
    }
}

pub(super) fn reply_attr(
    reply: ReplyAttr,
    (node, ttl): (u64, Duration),
    outcome: Result<Attr, Errno>,
) {
    match outcome {
        Ok(attr) => reply.attr(&attr_reply(file_attr(node, &attr), ttl)),
        Err(e) => reply.error(e),
    }
}
