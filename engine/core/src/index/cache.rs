//! The node cache: checked nodes by block, sharded, bounded in bytes; each shard is a second-chance
//! table.
//!
//! Uses the format only. An entry is used only for the exact pointer that it was loaded with; a
//! node of another birth or checksum at the same block replaces it. In front of the shards is a
//! small table of hot interior nodes that is read without locks or shared counters, because every
//! descent passes through the top of the tree.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use crossbeam_utils::CachePadded;

use crate::index::CacheCounters;
use cairnfs_disk::clock::Clock;
use cairnfs_disk::format::node::Node;
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::{NODE_BLOCKS, NODE_SIZE};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SHARDS: usize = 16;
/// Entries of the hot table.
const HOT: usize = 64;
/// One in this many attempts to replace a hot node succeeds: a tree with far more interior nodes
/// than entries must not spend its time replacing them.
const DISPLACE: u32 = 16;

/// Bits per word of [`CachedNode::within`].
const WORD: usize = u64::BITS as usize;

/// A checked node in memory.
pub(super) struct CachedNode {
    ptr: RawPtr,
    node: Node,
    /// One bit per child: whether its keys were found to be within the bounds that this node gives.
    /// A pointer contains the checksum of its node, and a merge rewrites a node whose range
    /// shrinks, so the result stays valid while this node is in a tree. Empty for a leaf.
    within: Box<[AtomicU64]>,
}

impl CachedNode {
    /// The node that `ptr` points to.
    pub fn new(ptr: &RawPtr, node: Node) -> Arc<Self> {
        let children = if node.level() > 0 { node.len() } else { 0 };
        Arc::new(Self {
            ptr: *ptr,
            node,
            within: (0..children.div_ceil(WORD))
                .map(|_| AtomicU64::new(0))
                .collect(),
        })
    }

    /// Whether child `i` is known to be within its bounds.
    pub fn is_within(&self, i: usize) -> bool {
        let word = self.within.get(i / WORD);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (i % WORD)) != 0)
    }

    /// Records that child `i` is within its bounds.
    pub fn set_within(&self, i: usize) {
        if let Some(word) = self.within.get(i / WORD) {
            word.fetch_or(1 << (i % WORD), Ordering::Relaxed);
        }
    }
}

impl Deref for CachedNode {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

fn spread(block: u64) -> u64 {
    let mixed = (block / NODE_BLOCKS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

struct Shard {
    nodes: Clock<Arc<CachedNode>>,
    hits: u64,
    misses: u64,
}

impl Shard {
    fn find(&mut self, ptr: &RawPtr) -> Option<Arc<CachedNode>> {
        match self.nodes.get_if(ptr.block.get(), |node| node.ptr == *ptr) {
            Some(node) => {
                self.hits += 1;
                Some(node.clone())
            }
            None => {
                self.misses += 1;
                None
            }
        }
    }
}

/// The cache.
pub(super) struct NodeCache {
    shards: Vec<CachePadded<Mutex<Shard>>>,
    hot: Vec<ArcSwapOption<CachedNode>>,
    attempts: AtomicU32,
}

impl NodeCache {
    /// A cache of at most `bytes` bytes of nodes, not counting the hot table.
    pub fn new(bytes: usize) -> Self {
        let shard = || Shard {
            nodes: Clock::new(bytes / NODE_SIZE / SHARDS),
            hits: 0,
            misses: 0,
        };
        Self {
            shards: (0..SHARDS)
                .map(|_| CachePadded::new(Mutex::new(shard())))
                .collect(),
            hot: (0..HOT).map(|_| ArcSwapOption::empty()).collect(),
            attempts: AtomicU32::new(0),
        }
    }

    fn shard(&self, block: u64) -> Option<&Mutex<Shard>> {
        // Bits that the hash maps within the shards do not use.
        let i = (spread(block) >> 40) as usize % SHARDS;
        self.shards.get(i).map(|s| &**s)
    }

    fn hot(&self, block: u64) -> Option<&ArcSwapOption<CachedNode>> {
        self.hot.get((spread(block) >> 48) as usize % HOT)
    }

    /// The node that `ptr` points to, if it is cached.
    pub fn get(&self, ptr: &RawPtr) -> Option<Arc<CachedNode>> {
        self.shard(ptr.block.get())?.lock().find(ptr)
    }

    /// The interior node that `ptr` points to, if it is in the hot table.
    pub fn get_hot(&self, ptr: &RawPtr) -> Option<Arc<CachedNode>> {
        let node = self.hot(ptr.block.get())?.load_full()?;
        (node.ptr == *ptr).then_some(node)
    }

    /// As [`Self::get_hot`], but calls `f` with the node and does not touch its reference count.
    pub fn with_hot<R>(&self, ptr: &RawPtr, f: impl FnOnce(&CachedNode) -> R) -> Option<R> {
        let entry = self.hot(ptr.block.get())?.load();
        match &*entry {
            Some(entry) if entry.ptr == *ptr => Some(f(entry)),
            _ => None,
        }
    }

    /// Puts an interior node into the hot table, if its entry is free or may be replaced
    /// ([`DISPLACE`]).
    pub fn warm(&self, node: &Arc<CachedNode>) {
        let Some(place) = self.hot(node.ptr.block.get()) else {
            return;
        };
        let free = place.load().is_none();
        let attempt = || self.attempts.fetch_add(1, Ordering::Relaxed);
        if free || attempt().is_multiple_of(DISPLACE) {
            place.store(Some(node.clone()));
        }
    }

    /// Inserts a node; replaces any other node at its block.
    pub fn insert(&self, node: Arc<CachedNode>) {
        let block = node.ptr.block.get();
        if let Some(shard) = self.shard(block) {
            // The replaced node is dropped when the lock is not held any more.
            let replaced = shard.lock().nodes.insert(block, node);
            drop(replaced);
        }
    }

    /// Makes the node at `block`, which no tree will contain, a candidate for the next eviction. Its
    /// entry of the hot table is free at once for the node that takes its place.
    pub fn cool(&self, block: u64) {
        let stale = |node: &Option<Arc<CachedNode>>| {
            node.as_ref().is_some_and(|n| n.ptr.block.get() == block)
        };
        // A replacement waits for the readers, so it is made only where it changes anything.
        if let Some(place) = self.hot(block).filter(|place| stale(&place.load())) {
            place.rcu(|node| if stale(node) { None } else { node.clone() });
        }
        if let Some(shard) = self.shard(block) {
            shard.lock().nodes.cool(block);
        }
    }

    /// The sums over all shards.
    pub fn counters(&self) -> CacheCounters {
        let mut sum = CacheCounters::default();
        for shard in &self.shards {
            let shard = shard.lock();
            sum.hits += shard.hits;
            sum.misses += shard.misses;
            sum.bytes += (shard.nodes.len() * NODE_SIZE) as u64;
        }
        sum
    }
}
