//! What is decided for a side, because a path was chosen: the parts of inodes that are in conflict.
//!
//! Plain values. Of a conflict of contents the side's contents and size are taken, with its mtime; of
//! an attribute, that one. Names of the inodes of one conflict are one part, because it is not known
//! which of several names replaced which: of a name that different files take, or of a directory that
//! is removed and used, that is all names of the inodes that have a name there in any state, and of the
//! directory. An inode that the side does not have is not in the result then.

use std::collections::BTreeMap;

use crate::publish::outcome::{ConflictKind, Side};

/// A part of an inode that is taken from one side. What else the other side did to the inode is
/// merged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// All of its names, and so whether it is there, if one side does not have it.
    Names,
    /// Contents, size and time of modification.
    Contents,
    /// The attribute of this name.
    Attribute(&'static str),
    /// The extended attribute of this name.
    Xattr(Vec<u8>),
}

impl Part {
    /// The part of its inodes that a conflict is about.
    pub fn of(kind: &ConflictKind) -> Self {
        match kind {
            ConflictKind::Contents => Part::Contents,
            ConflictKind::Attribute(name) => Part::Attribute(name),
            ConflictKind::Xattr(name) => Part::Xattr(name.clone()),
            ConflictKind::Removed(_)
            | ConflictKind::Renamed { .. }
            | ConflictKind::Nameless
            | ConflictKind::NameTaken
            | ConflictKind::DirectoryRemoved(_)
            | ConflictKind::Circle => Part::Names,
        }
    }
}

/// The parts of inodes that are decided, each for one side.
#[derive(Debug, Default)]
pub(super) struct Decided(BTreeMap<(u64, Part), Side>);

impl Decided {
    /// The side that a part is decided for.
    pub fn side(&self, ino: u64, part: &Part) -> Option<Side> {
        self.0.get(&(ino, part.clone())).copied()
    }

    /// Decides a part for a side, unless it is decided.
    pub fn add(&mut self, ino: u64, part: Part, side: Side) {
        self.0.entry((ino, part)).or_insert(side);
    }

    /// How many parts are decided.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The inodes of which a part is decided.
    pub fn inodes(&self) -> impl Iterator<Item = u64> {
        self.0.keys().map(|(ino, _)| *ino)
    }
}
