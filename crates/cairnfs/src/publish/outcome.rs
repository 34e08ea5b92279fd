//! Operations and conflicts: the result of planning.
//!
//! Plain values.

use std::ops::Range;

use crate::diff::Name;
use crate::format::item::RawInode;
use crate::types::Time;

/// One of the two trees that have changed since the base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The tree that receives the changes.
    Ours,
    /// The tree whose changes are published.
    Theirs,
}

impl Side {
    /// The other side.
    pub fn other(self) -> Self {
        match self {
            Side::Ours => Side::Theirs,
            Side::Theirs => Side::Ours,
        }
    }
}

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

/// What is in conflict.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConflictKind {
    /// Both sides changed the contents.
    Contents,
    /// Both sides set this attribute.
    Attribute(&'static str),
    /// Both sides set this extended attribute.
    Xattr(Vec<u8>),
    /// One side removed what the other one changed.
    Removed(Side),
    /// Both sides renamed it, to different names.
    Renamed {
        /// A path that it has on our side only.
        ours: Vec<u8>,
        /// A path that it has on their side only.
        theirs: Vec<u8>,
    },
    /// Each side removed a name that the other kept, and none is left.
    Nameless,
    /// Both sides put different files under the name.
    NameTaken,
    /// One side removed the directory in which the other one has the entry.
    DirectoryRemoved(Side),
    /// The moves of both sides make directories hold each other.
    Circle,
}

impl ConflictKind {
    /// What is in conflict, in words. `base` is what the base is called, and `show` writes paths and
    /// names of extended attributes.
    pub fn why(&self, base: &str, show: impl Fn(&[u8]) -> String) -> String {
        let side = |side: &Side| match side {
            Side::Ours => base.to_owned(),
            Side::Theirs => "the branch".to_owned(),
        };
        match self {
            ConflictKind::Contents => "both changed the contents".into(),
            ConflictKind::Attribute(name) => format!("both changed the {name}"),
            ConflictKind::Xattr(name) => {
                format!("both changed the extended attribute {}", show(name))
            }
            ConflictKind::Removed(by) => {
                format!("{} removed it, the other changed it", side(by))
            }
            ConflictKind::Renamed { ours, theirs } => format!(
                "both renamed it: {base} to {}, the branch to {}",
                show(ours),
                show(theirs)
            ),
            ConflictKind::Nameless => "each removed the name that the other kept".into(),
            ConflictKind::NameTaken => "both put a different file there".into(),
            ConflictKind::DirectoryRemoved(by) => {
                format!("{} removed the directory, the other uses it", side(by))
            }
            ConflictKind::Circle => "both moved directories, which would hold each other".into(),
        }
    }
}

/// Changes of both sides that exclude each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The path: that in the base if there is one.
    pub path: Vec<u8>,
    /// What is in conflict.
    pub kind: ConflictKind,
    /// The inodes concerned, in order.
    pub inodes: Vec<u64>,
}

/// The result of planning; operations or conflicts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to do to our tree.
    pub operations: Vec<Operation>,
    /// Why nothing can be done; sorted by path.
    pub conflicts: Vec<Conflict>,
}
