//! The history of every distinguishable part of a tree: one chain of versions for each.
//!
//! A chain is a name in a directory, the attributes of an inode, its times, the size of a file, or
//! a block of its contents. Its versions are ordered; a crash leaves one version of each chain. An
//! operation makes versions of several chains, which survive all together or not at all, and needs
//! versions of other chains, without which it must not survive.

use std::sync::Arc;

use crate::image::BLOCK;
use crate::tree::{Facts, Times};

/// The part of the tree that a chain describes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// A name in a directory.
    Name(u64, Vec<u8>),
    /// The attributes of an inode.
    Facts(u64),
    /// The times of an inode.
    Times(u64),
    /// The size of a file.
    Size(u64),
    /// A block of a file.
    Block(u64, u64),
}

/// A value of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The inode that a name refers to; `None` if there is no entry.
    Entry(Option<u64>),
    /// Attributes; `None` before the inode was made.
    Facts(Option<Arc<Facts>>),
    /// Times; `None` for times between the steps of a call, which no call returned.
    Times(Option<Times>),
    /// Size of a file in bytes.
    Size(u64),
    /// A block of contents; `None` for zeros.
    Block(Option<Arc<[u8; BLOCK]>>),
}

/// Placeholder for the number of an inode whose creation failed, so that no call returned it.
pub const UNTOLD: u64 = 0;

/// Number of a chain.
pub type ChainId = usize;
/// Number of an operation.
pub type OpId = usize;

/// A version of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// The chain.
    pub chain: ChainId,
    /// Its index in the chain; 0 is the value at the start of the history.
    pub nth: usize,
}

/// A chain of versions.
#[derive(Debug)]
pub struct Chain {
    /// The part that the chain describes.
    pub part: Part,
    /// The versions with the operations that made them; the first was made by none.
    pub versions: Vec<(Option<OpId>, Value)>,
}

impl Chain {
    /// The newest value.
    pub fn newest(&self) -> Option<&Value> {
        self.versions.last().map(|v| &v.1)
    }

    /// The number of versions if only operations below `ops` exist.
    pub fn versions_before(&self, ops: OpId) -> usize {
        let later = |(op, _): &(Option<OpId>, Value)| op.is_some_and(|op| op >= ops);
        let first = self.versions.iter().position(later);
        first.unwrap_or(self.versions.len())
    }

    /// Whether version `nth` grows the file and nothing of that growth is left in version `end`,
    /// because the file was truncated in between.
    pub fn is_cut(&self, nth: usize, end: usize) -> bool {
        let size = |(_, value): &(Option<OpId>, Value)| match value {
            Value::Size(size) => Some(*size),
            _ => None,
        };
        let before = nth.checked_sub(1).and_then(|n| self.versions.get(n));
        let later = self.versions.get(nth + 1..=end).unwrap_or_default();
        let least = later.iter().filter_map(size).min();
        let old = before.and_then(size);
        least.zip(old).is_some_and(|(least, old)| least <= old)
    }
}

/// A change that survives as a whole or not at all.
#[derive(Debug, Clone, Default)]
pub struct Operation {
    /// Index of the call that it belongs to.
    pub call: usize,
    /// Versions it makes.
    pub makes: Vec<Version>,
    /// Versions without which it must not survive.
    pub needs: Vec<Version>,
}

impl Operation {
    /// An operation that needs these versions.
    pub fn needing(needs: Vec<Version>) -> Self {
        Self {
            needs,
            ..Self::default()
        }
    }
}

/// Versions that must survive once a call has returned.
#[derive(Debug)]
pub struct Promise {
    /// Index of the call.
    pub call: usize,
    /// These versions, or newer ones of the same chains, must survive.
    pub keeps: Vec<Version>,
}
