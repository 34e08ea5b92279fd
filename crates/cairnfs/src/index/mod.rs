//! The index: a copy-on-write B+tree of checked nodes, and their cache.
//!
//! Floor 2: uses the error type, the format and the device. A [`Tree`] is a plain value; nothing
//! here remembers which one is current. Reading takes any tree; [`Index::apply`] makes a new tree
//! of an old one and leaves the old one whole on the device.
//!
//! What always holds:
//! - Every node is checked against its parent's pointer (address, birth, checksum, level) when it
//!   is read, and a cached node is used only if its birth and checksum are the pointer's. So a
//!   reader whose tree is out of date, and whose blocks are being reused, gets
//!   [`Error::Corrupt`](crate::Error::Corrupt) or the old contents, never another node's: the
//!   caller then looks whether there is a newer tree, and tries again with that. Only with the
//!   current tree is such an error damage.
//! - No walk is deeper than [`MAX_HEIGHT`](crate::format::node::MAX_HEIGHT): a child's level is
//!   one less than its parent's.
//! - No walk visits a node twice: the keys of a node ascend, which is checked when it is read, and
//!   lie within the bounds that its parents give, which is checked on every way down (`bounds`).
//!   A cached parent remembers the children that passed.
//! - Blocks come and go by [`NodeSpace`] alone.

mod apply;
mod bounds;
mod cache;
mod compact;
mod output;
mod pack;
mod read;
#[cfg(test)]
mod tests;
mod writer;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::error::Result;
use crate::format::key::Key;
use crate::format::superblock::RawPtr;

use cache::NodeCache;
pub use compact::Compacted;

/// A tree: its root node, and how many levels it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tree {
    /// The root node.
    pub ptr: RawPtr,
    /// 0 if the tree is empty, 1 if it is a single leaf.
    pub height: u32,
}

/// Where [`Index::apply`] gets blocks and gives them back.
pub trait NodeSpace {
    /// The first of [`NODE_BLOCKS`](crate::format::NODE_BLOCKS) free blocks, aligned to that
    /// number. Ascending results make large writes.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace) and others; they end the apply.
    fn alloc(&self) -> Result<u64>;

    /// Notes that the new tree does not refer to the [`NODE_BLOCKS`](crate::format::NODE_BLOCKS)
    /// blocks from `block` (blocks of the old tree; rarely one that the same apply allocated).
    /// The old tree needs them as long as it is needed itself.
    fn retire(&self, block: u64);

    /// Whether leaves are to be as few as there can be, at the price of rewriting more of them.
    fn is_short(&self) -> bool {
        false
    }

    /// Whether nodes may be rewritten for that alone.
    fn has_room(&self) -> bool {
        true
    }

    /// Whether a thread of its own may write the nodes, beside those who make them.
    fn writes_apart(&self) -> bool {
        false
    }
}

/// Changes to apply, in ascending order of their keys.
pub trait Edits {
    /// The next key to change; `None` if there is none, or if this apply shall end here: then a
    /// correct tree is made of what was taken so far.
    fn peek(&mut self) -> Result<Option<Key>>;

    /// Takes the change of the key peeked at: gets the value in the tree, returns the one that
    /// shall be there (`None` for none). Called exactly once for each key that is applied.
    ///
    /// # Errors
    /// Any; they end the apply.
    fn take(&mut self, key: &Key, old: Option<&[u8]>) -> Result<Option<Cow<'_, [u8]>>>;
}

/// What the node cache has done and holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounters {
    /// Look-ups that found their node in the cache; those of the hottest interior nodes go by a
    /// shorter way and are not counted.
    pub hits: u64,
    /// Look-ups that read the device.
    pub misses: u64,
    /// Bytes of cached nodes.
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
    /// An index on `device`. `volume` is the first eight bytes of the volume's identity,
    /// little-endian; a pointer out of `data_blocks` is corruption; the cache holds at most
    /// `cache_bytes` bytes of nodes, and 1 MiB of hot interior nodes besides.
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

    /// Makes a tree that differs from `tree` by `edits`, and writes its new nodes, marked with
    /// `birth`. All writes have returned when this returns; the device is not flushed. Only nodes
    /// on the way to a changed value are rewritten; the memory used does not grow with the number
    /// of edits.
    ///
    /// # Errors
    /// Those of `edits`, `space` and the device; [`Error::Corrupt`](crate::Error::Corrupt) if the
    /// tree is damaged; [`Error::Invalid`](crate::Error::Invalid) for keys out of order or values
    /// longer than [`MAX_VALUE`](crate::format::MAX_VALUE). After an error `tree` is as good as
    /// before; the blocks allocated are the caller's concern.
    pub fn apply(
        &self,
        tree: &Tree,
        edits: &mut dyn Edits,
        birth: u64,
        space: &dyn NodeSpace,
    ) -> Result<Tree> {
        apply::run(self, tree, edits, birth, space)
    }

    /// Makes a tree of the same items in fewer nodes, from the leaf that holds `from` on, until `full`
    /// says that enough nodes were taken. Otherwise as [`Self::apply`].
    ///
    /// # Errors
    /// Those of `space` and the device; damage.
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

    /// Hits, misses and size of the node cache.
    pub fn counters(&self) -> CacheCounters {
        self.cache.counters()
    }
}
