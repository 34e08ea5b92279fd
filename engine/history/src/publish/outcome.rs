//! The result of planning: operations, or conflicts, which are a part of the error type.
//!
//! Plain values.

use std::ops::Range;

use crate::diff::Name;
pub use cairnfs_disk::error::{Conflict, ConflictKind, Side};
use cairnfs_disk::format::item::RawInode;
use cairnfs_disk::types::Time;

/// An attribute that is merged by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attribute {
    /// Permission bits.
    Mode(u32),
    /// User id of the owner.
    Uid(u32),
    /// Group id.
    Gid(u32),
    /// Inode flags.
    Flags(u32),
    /// Time of the last change of the contents.
    Mtime(Time),
}

impl Attribute {
    /// The attributes of an inode, always in the same order.
    pub(crate) fn all(inode: &RawInode) -> [Attribute; 5] {
        [
            Attribute::Mode(inode.mode.get() & 0o7777),
            Attribute::Uid(inode.uid.get()),
            Attribute::Gid(inode.gid.get()),
            Attribute::Flags(inode.flags.get()),
            Attribute::Mtime(Time {
                secs: inode.mtime.secs.get(),
                nanos: inode.mtime.nanos.get(),
            }),
        ]
    }

    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Attribute::Mode(_) => "mode",
            Attribute::Uid(_) => "uid",
            Attribute::Gid(_) => "gid",
            Attribute::Flags(_) => "flags",
            Attribute::Mtime(_) => "mtime",
        }
    }
}

/// A change of our tree. Operations are in an order in which no name is taken twice: new inodes,
/// names removed, names added, contents and attributes, inodes removed. Between them an inode may
/// have no name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Copies an inode of their tree, without its names: attributes, extended attributes, contents.
    Create {
        /// Its number in their tree.
        ino: u64,
    },
    /// Removes a name of an inode.
    Unlink {
        /// The name.
        name: Name,
        /// The inode.
        ino: u64,
    },
    /// Gives an inode a name.
    Link {
        /// The name.
        name: Name,
        /// The inode.
        ino: u64,
    },
    /// Copies ranges of contents from their tree, then sets the size to theirs.
    Contents {
        /// The inode.
        ino: u64,
        /// The bytes; those behind the size of their file need no copy.
        ranges: Vec<Range<u64>>,
        /// The new size in bytes.
        size: u64,
    },
    /// Sets an extended attribute, or removes it.
    Xattr {
        /// The inode.
        ino: u64,
        /// Name with its namespace.
        name: Vec<u8>,
        /// The new value; `None` to remove the attribute.
        value: Option<Vec<u8>>,
    },
    /// Sets an attribute. These follow all other operations of the inode, which change times and
    /// may be forbidden by flags.
    Attribute {
        /// The inode.
        ino: u64,
        /// The attribute with its new value.
        attribute: Attribute,
    },
    /// Removes an inode without names.
    Remove {
        /// The inode.
        ino: u64,
    },
}

/// The result of planning; operations or conflicts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to do to our tree.
    pub operations: Vec<Operation>,
    /// Why nothing can be done; sorted by path.
    pub conflicts: Vec<Conflict>,
}
