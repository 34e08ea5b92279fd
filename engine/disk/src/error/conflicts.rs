//! Conflicts of a publish: what two trees have changed since they parted, and cannot be merged.
//!
//! Plain values. The planner of merges finds them.

use std::fmt;

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

/// The first of several conflicts, and their number, for a message.
pub(super) struct First<'a>(pub &'a [Conflict]);

impl fmt::Display for First<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else {
            return write!(f, "0");
        };
        let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).escape_debug().to_string();
        let path = match &first.path[..] {
            [] => "/".to_owned(),
            path => show(path),
        };
        let why = first.kind.why("the base", show);
        write!(f, "{}; the first at {path}: {why}", self.0.len())
    }
}
