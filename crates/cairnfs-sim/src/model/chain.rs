//! The history of everything that can be told apart in a tree: one chain of versions for each.
//!
//! A chain is a name in a directory, the attributes of an inode, its times, the size of a file, or a
//! block of its contents. Versions of a chain follow each other; what a crash leaves is one version of each.
//! An operation makes versions of several chains, all or none of which survive, and needs versions
//! of others, without which it must not survive.

use std::sync::Arc;

use crate::image::BLOCK;
use crate::tree::{Facts, Times};

/// What a chain tells the history of.
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

/// A value that a chain had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// What a name leads to.
    Entry(Option<u64>),
    /// Attributes; `None` before the inode was made.
    Facts(Option<Arc<Facts>>),
    /// Times; `None` where a call of several steps has times that nobody was shown.
    Times(Option<Times>),
    /// Bytes of a file.
    Size(u64),
    /// A block of contents; `None` for zeros.
    Block(Option<Arc<[u8; BLOCK]>>),
}

/// Stands for the number of an inode whose making failed, so that nobody was told it.
pub const UNTOLD: u64 = 0;

/// Number of a chain.
pub type ChainId = usize;
/// Number of an operation.
pub type OpId = usize;

/// A version of a chain: which, and how many versions precede it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// The chain.
    pub chain: ChainId,
    /// Its place in the chain; 0 is what the history began with.
    pub nth: usize,
}

/// A chain: who made each version, and what it was.
#[derive(Debug)]
pub struct Chain {
    /// What it is about.
    pub part: Part,
    /// The versions; the first was made by nobody.
    pub versions: Vec<(Option<OpId>, Value)>,
}

impl Chain {
    /// The newest value.
    pub fn newest(&self) -> Option<&Value> {
        self.versions.last().map(|v| &v.1)
    }

    /// How many versions exist if only operations below `ops` do.
    pub fn versions_before(&self, ops: OpId) -> usize {
        let later = |(op, _): &(Option<OpId>, Value)| op.is_some_and(|op| op >= ops);
        let first = self.versions.iter().position(later);
        first.unwrap_or(self.versions.len())
    }

    /// Whether version `nth` is a growth of which nothing is left in version `end`, because the file
    /// was cut in between.
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

/// Something that happens wholly or not at all.
#[derive(Debug, Clone, Default)]
pub struct Operation {
    /// Which call it belongs to.
    pub call: usize,
    /// Versions it makes.
    pub makes: Vec<Version>,
    /// Versions it cannot be without.
    pub needs: Vec<Version>,
}

impl Operation {
    /// One that cannot be without these.
    pub fn needing(needs: Vec<Version>) -> Self {
        Self {
            needs,
            ..Self::default()
        }
    }
}

/// From when on which versions must survive.
#[derive(Debug)]
pub struct Promise {
    /// The call that gave it.
    pub call: usize,
    /// These, or newer ones.
    pub keeps: Vec<Version>,
}
