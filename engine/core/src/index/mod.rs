//! The index: a copy-on-write B+tree of checksummed nodes, and the node cache.
//!
//! Uses the error type, the format and the device. A [`Tree`] is a plain value; this
//! module does not track which tree is current. Any tree can be read; [`Index::apply`] makes a new
//! tree from an old one and leaves the old one intact on the device.
//!
//! Invariants:
//! - Every node is checked against its parent's pointer (address, birth, checksum, level) when it
//!   is read, and a cached node is used only if its birth and checksum match the pointer. So a
//!   reader with an outdated tree, whose blocks are being reused, gets
//!   [`Error::Corrupt`](cairnfs_disk::Error::Corrupt) or the old content, never the content of another
//!   node. The caller then retries with a newer tree if there is one. Only with the current tree
//!   does such an error mean damage.
//! - No walk is deeper than [`MAX_HEIGHT`](cairnfs_disk::format::node::MAX_HEIGHT): a child's level is
//!   one less than its parent's.
//! - No walk visits a node twice: the keys of a node ascend, which is checked when it is read, and
//!   lie within the bounds given by its parents, which is checked on every descent (`bounds`).
//!   A cached parent records the children that passed this check.
//! - Blocks are allocated and freed through [`NodeSpace`] only.

mod apply;
mod bounds;
mod cache;
mod compact;
mod differences;
mod leaves;
mod nodes;
mod output;
mod pack;
mod parts;
mod read;
mod readable;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod walk;
mod writer;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::index::read::root_level;
use cairnfs_disk::device::Device;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::cell_size;
use cairnfs_disk::format::pointer::RawPtr;

pub use bounds::Bounds;
use cache::NodeCache;
pub use compact::Compacted;
pub use differences::{Difference, Differences, Limits, OldOnly, Progress};
pub use parts::TOGETHER;
pub use readable::{Found, Owned, Unread, hides};

/// A tree: the pointer to its root node, and its height.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tree {
    /// Pointer to the root node.
    pub ptr: RawPtr,
    /// 0 if the tree is empty, 1 if it is a single leaf.
    pub height: u32,
}

/// How the nodes of a new tree differ from those of the old one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeCounts {
    /// Nodes made for the new tree.
    pub made: u64,
    /// Nodes of the old tree, or made for the new one, that the new one does not have.
    pub replaced: u64,
    /// Replaced nodes that another tree has, too.
    pub inherited: u64,
    /// Inherited nodes that an edit changed and did not empty: each needs a node for its copy. A node
    /// that only became a part of its neighbour needs none.
    pub copied: u64,
}

impl NodeCounts {
    /// How many nodes the new tree has more than the old one.
    pub fn more(&self) -> i64 {
        self.made as i64 - self.replaced as i64
    }

    /// The counts of this tree and of the next one together.
    pub fn and(&self, next: &Self) -> Self {
        Self {
            made: self.made + next.made,
            replaced: self.replaced + next.replaced,
            inherited: self.inherited + next.inherited,
            copied: self.copied + next.copied,
        }
    }
}

/// The block allocator of [`Index::apply`].
pub trait NodeSpace {
    /// Allocates [`NODE_BLOCKS`](cairnfs_disk::format::NODE_BLOCKS) blocks, aligned to that number, and
    /// returns the first one. Ascending results allow large writes.
    ///
    /// # Errors
    /// [`Error::NoSpace`](cairnfs_disk::Error::NoSpace) and others; they abort the apply.
    fn alloc(&self) -> Result<u64>;

    /// Called when the new tree does not refer to the
    /// [`NODE_BLOCKS`](cairnfs_disk::format::NODE_BLOCKS) blocks from `block` (blocks of the old tree, or
    /// rarely a node that the same apply allocated). The blocks must not be reused while the old
    /// tree is in use.
    fn retire(&self, block: u64);

    /// Whether what was born in this context also belongs to another tree. It is then not retired
    /// when it is replaced, so rewriting it frees nothing.
    fn is_inherited(&self, _birth: u64) -> bool {
        false
    }

    /// Called in place of [`Self::retire`] if another tree has these blocks too.
    fn give_up(&self, _block: u64, _birth: u64) {}

    /// Called when a new tree is complete.
    fn note_nodes(&self, _nodes: &NodeCounts) {}

    /// Whether to make as few leaves as possible, at the cost of rewriting more of them.
    fn is_short(&self) -> bool {
        false
    }

    /// Whether there is enough space to rewrite unchanged nodes for that purpose.
    fn has_room(&self) -> bool {
        true
    }

    /// Whether damaged nodes that edits lead to are cut out, with all that they hold. Otherwise they
    /// stay, and of edits that put something into them [`Self::leaves_out`] decides.
    fn cuts_damaged(&self) -> bool {
        false
    }

    /// Called when the damaged node at `block` is cut out, with the first key that it may have held, and
    /// the end of these keys, exclusive.
    fn note_cut(&self, _block: u64, _keys: (Key, Option<Key>)) {}

    /// Called for an edit that would put something into a damaged node, which is not cut out. Returns
    /// whether that edit is left out; otherwise the apply fails.
    fn leaves_out(&self) -> bool {
        false
    }

    /// Whether a separate thread may write the nodes while more are built.
    fn writes_apart(&self) -> bool {
        false
    }
}

/// Changes to apply, in ascending order of their keys.
pub trait Edits {
    /// The next key to change. `None` if there is none, or to end this apply early: the result is
    /// then a correct tree with the edits taken so far.
    fn peek(&mut self) -> Result<Option<Key>>;

    /// Takes the edit of the key returned by [`Self::peek`]: receives the old value, and returns
    /// the new one (`None` to delete the item). Called exactly once for each key that is applied.
    ///
    /// # Errors
    /// Any error; it aborts the apply.
    fn take(&mut self, key: &Key, old: Option<&[u8]>) -> Result<Option<Cow<'_, [u8]>>>;

    /// As [`Self::take`], if the old value, if there is one, is in a damaged node. Without a new
    /// value the item counts as removed.
    ///
    /// # Errors
    /// Any error; it aborts the apply.
    fn take_hidden(&mut self, key: &Key) -> Result<Option<Cow<'_, [u8]>>> {
        self.take(key, None)
    }
}

/// Edits of a range of objects, for [`Index::apply_parts`].
pub struct Part<E> {
    /// The range of the keys, whose ends lie between objects.
    pub range: Bounds,
    /// The edits.
    pub edits: E,
}

/// Counters of the node cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounters {
    /// Look-ups that found their node in the cache. Look-ups in the table of hot interior nodes are
    /// not counted.
    pub hits: u64,
    /// Look-ups that did not find their node in the cache.
    pub misses: u64,
    /// Size of the cached nodes in bytes.
    pub bytes: u64,
}

/// Reads and rewrites trees on one device.
pub struct Index {
    device: Arc<dyn Device>,
    volume: u64,
    data_blocks: Range<u64>,
    cache: NodeCache,
}

impl Index {
    /// An index on `device`. `volume` is the first eight bytes of the volume's UUID,
    /// little-endian. A pointer outside `data_blocks` is corruption. The cache holds at most
    /// `cache_bytes` bytes of nodes, plus 1 MiB of hot interior nodes.
    pub fn new(
        device: Arc<dyn Device>,
        volume: u64,
        data_blocks: Range<u64>,
        cache_bytes: usize,
    ) -> Self {
        Self {
            device,
            volume,
            data_blocks,
            cache: NodeCache::new(cache_bytes),
        }
    }

    /// Applies `edits` to `tree`: writes the new nodes, with `birth` in their headers, and returns
    /// the new tree. All writes have returned when this returns; the device is not flushed. Only
    /// nodes on the path to a changed value are rewritten (and neighbours that small nodes are
    /// joined with). The memory used does not depend on the number of edits.
    ///
    /// # Errors
    /// Those of `edits`, `space` and the device; [`Error::Corrupt`](cairnfs_disk::Error::Corrupt) if a value
    /// must be put into a damaged node, unless that is cut out; [`Error::Invalid`](cairnfs_disk::Error::Invalid) for keys out of order or values
    /// longer than [`MAX_VALUE`](cairnfs_disk::format::MAX_VALUE). After an error `tree` is still valid;
    /// the caller must free the allocated blocks.
    pub fn apply(
        &self,
        tree: &Tree,
        edits: &mut dyn Edits,
        birth: u64,
        space: &dyn NodeSpace,
    ) -> Result<Tree> {
        apply::run(self, tree, edits, birth, space)
    }

    /// As [`Self::apply`], with edits in parts that up to `threads` threads do side by side. The
    /// ranges of the parts follow each other without a gap, and have all keys together. A part has
    /// edits enough for many leaves: its last one is not filled with cells of the next part.
    ///
    /// # Errors
    /// As [`Self::apply`]; [`Error::Invalid`](cairnfs_disk::Error::Invalid) also for an edit outside its
    /// part.
    pub fn apply_parts<E: Edits + Send>(
        &self,
        tree: &Tree,
        parts: &mut [Part<E>],
        birth: u64,
        (space, threads): (&(dyn NodeSpace + Sync), usize),
    ) -> Result<Tree> {
        parts::run(self, tree, parts, birth, (space, threads))
    }

    /// Packs the leaves, beginning with the one that contains `from`, into fewer nodes until `full`
    /// returns true at a leaf. The items do not change. Otherwise as [`Self::apply`].
    ///
    /// # Errors
    /// Those of `space` and the device; [`Error::Corrupt`](cairnfs_disk::Error::Corrupt) if the tree is
    /// damaged.
    pub fn compact(
        &self,
        tree: &Tree,
        from: Option<Key>,
        birth: u64,
        space: &dyn NodeSpace,
        full: &dyn Fn() -> bool,
    ) -> Result<Compacted> {
        compact::run(self, tree, (from, full), birth, space)
    }

    /// At least as many nodes as a tree has, as its root shows.
    ///
    /// # Errors
    /// [`Error::Corrupt`](cairnfs_disk::Error::Corrupt) if the root is damaged; the device's failure.
    pub fn most_nodes(&self, tree: &Tree) -> Result<u64> {
        const MOST_CHILDREN: u64 = (NODE_SIZE / cell_size(0, 0, size_of::<RawPtr>())) as u64;
        let Some(level) = root_level(tree)? else {
            return Ok(0);
        };
        let mut below = match level {
            0 => return Ok(1),
            _ => self.load_hot(&tree.ptr, level)?.len() as u64,
        };
        let mut sum = 1 + below;
        for _ in 1..level {
            below = below.saturating_mul(MOST_CHILDREN);
            sum = below.saturating_add(sum);
        }
        Ok(sum)
    }

    /// The counters of the node cache.
    pub fn counters(&self) -> CacheCounters {
        self.cache.counters()
    }
}
