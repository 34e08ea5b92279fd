//! The node cache: checked nodes by block, sharded, bounded in bytes, with second-chance (CLOCK)
//! eviction.
//!
//! Uses the format only. An entry is used only for the exact pointer that it was loaded with; a
//! node of another birth or checksum at the same block replaces it. In front of the shards is a
//! small table of hot interior nodes that is read without locks or shared counters, because every
//! descent passes through the top of the tree.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use crossbeam_utils::CachePadded;

use crate::format::node::Node;
use crate::format::pointer::RawPtr;
use crate::format::{NODE_BLOCKS, NODE_SIZE};
use crate::hash::IntHash;
use crate::index::CacheCounters;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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

struct Slot {
    ptr: RawPtr,
    node: Arc<CachedNode>,
    referenced: bool,
}

fn spread(block: u64) -> u64 {
    let mixed = (block / NODE_BLOCKS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

#[derive(Default)]
struct Shard {
    /// From the block to the index in `slots`.
    places: HashMap<u64, usize, IntHash>,
    slots: Vec<Slot>,
    /// The clock hand: the slot at which eviction continues.
    hand: usize,
    hits: u64,
    misses: u64,
}

impl Shard {
    fn find(&mut self, ptr: &RawPtr) -> Option<Arc<CachedNode>> {
        let place = self.places.get(&ptr.block.get()).copied();
        let slot = place.and_then(|i| self.slots.get_mut(i));
        match slot {
            Some(slot) if slot.ptr == *ptr => {
                slot.referenced = true;
                self.hits += 1;
                Some(slot.node.clone())
            }
            _ => {
                self.misses += 1;
                None
            }
        }
    }

    fn insert(&mut self, node: Arc<CachedNode>, limit: usize) {
        let ptr = node.ptr;
        let block = ptr.block.get();
        if let Some(slot) = self.places.get(&block).and_then(|i| self.slots.get_mut(*i)) {
            *slot = Slot {
                ptr,
                node,
                referenced: true,
            };
            return;
        }
        self.shrink(limit.saturating_sub(1));
        if self.slots.len() < limit {
            self.places.insert(block, self.slots.len());
            self.slots.push(Slot {
                ptr,
                node,
                referenced: false,
            });
        }
    }

    /// Evicts nodes that were not used since the hand last passed, until at most `most` are left.
    fn shrink(&mut self, most: usize) {
        while self.slots.len() > most {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let Some(slot) = self.slots.get_mut(self.hand) else {
                return;
            };
            if slot.referenced {
                slot.referenced = false;
                self.hand += 1;
                continue;
            }
            let evicted = self.slots.swap_remove(self.hand);
            self.places.remove(&evicted.ptr.block.get());
            if let Some(moved) = self.slots.get(self.hand) {
                self.places.insert(moved.ptr.block.get(), self.hand);
            }
            self.hand += 1;
        }
    }
}

/// The cache.
pub(super) struct NodeCache {
    shards: Vec<CachePadded<Mutex<Shard>>>,
    hot: Vec<ArcSwapOption<CachedNode>>,
    attempts: AtomicU32,
    /// Maximum nodes per shard.
    limit: usize,
}

impl NodeCache {
    /// A cache of at most `bytes` bytes of nodes, not counting the hot table.
    pub fn new(bytes: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            hot: (0..HOT).map(|_| ArcSwapOption::empty()).collect(),
            attempts: AtomicU32::new(0),
            limit: nodes_per_shard(bytes),
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
        if let Some(shard) = self.shard(node.ptr.block.get()) {
            shard.lock().insert(node, self.limit);
        }
    }

    /// Makes the node at `block` a candidate for the next eviction.
    pub fn cool(&self, block: u64) {
        if let Some(shard) = self.shard(block) {
            let mut shard = shard.lock();
            let place = shard.places.get(&block).copied();
            if let Some(slot) = place.and_then(|i| shard.slots.get_mut(i)) {
                slot.referenced = false;
            }
        }
    }

    /// The sums over all shards.
    pub fn counters(&self) -> CacheCounters {
        let mut sum = CacheCounters::default();
        for shard in &self.shards {
            let shard = shard.lock();
            sum.hits += shard.hits;
            sum.misses += shard.misses;
            sum.bytes += (shard.slots.len() * NODE_SIZE) as u64;
        }
        sum
    }
}

fn nodes_per_shard(bytes: usize) -> usize {
    bytes / NODE_SIZE / SHARDS
}
