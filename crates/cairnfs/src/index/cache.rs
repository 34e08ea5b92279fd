//! The node cache: checked nodes by block, in shards, bounded by bytes, second chance.
//!
//! Uses the format only. An entry is used only for the very pointer it was made for; a node of
//! another birth or checksum at the same block replaces it. In front of the shards stands a small
//! table of interior nodes that is read without locks or shared counters, for the top of the tree
//! is on every way.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use crossbeam_utils::CachePadded;

use crate::format::node::Node;
use crate::format::superblock::RawPtr;
use crate::format::{NODE_BLOCKS, NODE_SIZE};
use crate::index::CacheCounters;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};

const SHARDS: usize = 16;
const HOT: usize = 64;
/// Of so many attempts to displace a hot node one succeeds: a tree with far more interior nodes
/// than places must not spend its time exchanging them.
const DISPLACE: u32 = 16;

struct Entry {
    ptr: RawPtr,
    node: Node,
}

struct Slot {
    entry: Entry,
    referenced: bool,
}

/// Block numbers are spread by one multiplication; nobody chooses them to collide.
#[derive(Default)]
struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    fn write_u64(&mut self, block: u64) {
        self.0 = spread(block);
    }
}

fn spread(block: u64) -> u64 {
    let mixed = (block / NODE_BLOCKS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

#[derive(Default)]
struct Shard {
    places: HashMap<u64, usize, BuildHasherDefault<BlockHasher>>,
    slots: Vec<Slot>,
    hand: usize,
    hits: u64,
    misses: u64,
}

impl Shard {
    fn find(&mut self, ptr: &RawPtr) -> Option<Node> {
        let place = self.places.get(&ptr.block.get()).copied();
        let slot = place.and_then(|i| self.slots.get_mut(i));
        match slot {
            Some(slot) if slot.entry.ptr == *ptr => {
                slot.referenced = true;
                self.hits += 1;
                Some(slot.entry.node.clone())
            }
            _ => {
                self.misses += 1;
                None
            }
        }
    }

    fn insert(&mut self, entry: Entry, limit: usize) {
        let block = entry.ptr.block.get();
        if let Some(slot) = self.places.get(&block).and_then(|i| self.slots.get_mut(*i)) {
            slot.entry = entry;
            slot.referenced = true;
            return;
        }
        self.shrink(limit.saturating_sub(1));
        if self.slots.len() < limit {
            self.places.insert(block, self.slots.len());
            self.slots.push(Slot {
                entry,
                referenced: false,
            });
        }
    }

    /// Evicts until at most `most` nodes are left: those not used since the hand last passed.
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
            let gone = self.slots.swap_remove(self.hand);
            self.places.remove(&gone.entry.ptr.block.get());
            if let Some(moved) = self.slots.get(self.hand) {
                self.places.insert(moved.entry.ptr.block.get(), self.hand);
            }
            self.hand += 1;
        }
    }
}

/// The cache.
pub(super) struct NodeCache {
    shards: Vec<CachePadded<Mutex<Shard>>>,
    hot: Vec<ArcSwapOption<Entry>>,
    attempts: AtomicU32,
    /// Most nodes of a shard.
    limit: usize,
}

impl NodeCache {
    /// A cache of at most `bytes` bytes of nodes, hot ones aside.
    pub fn new(bytes: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            hot: (0..HOT).map(|_| ArcSwapOption::empty()).collect(),
            attempts: AtomicU32::new(0),
            limit: nodes_per_shard(bytes),
        }
    }

    fn shard(&self, block: u64) -> Option<&Mutex<Shard>> {
        // Other bits than the hash maps use within the shards.
        let i = (spread(block) >> 40) as usize % SHARDS;
        self.shards.get(i).map(|s| &**s)
    }

    fn hot(&self, block: u64) -> Option<&ArcSwapOption<Entry>> {
        self.hot.get((spread(block) >> 48) as usize % HOT)
    }

    /// The node that `ptr` points to, if it is here.
    pub fn get(&self, ptr: &RawPtr) -> Option<Node> {
        self.shard(ptr.block.get())?.lock().find(ptr)
    }

    /// Gives the interior node that `ptr` points to, if it is among the hot ones, to `f`.
    pub fn with_hot<R>(&self, ptr: &RawPtr, f: impl FnOnce(&Node) -> R) -> Option<R> {
        let entry = self.hot(ptr.block.get())?.load();
        match &*entry {
            Some(entry) if entry.ptr == *ptr => Some(f(&entry.node)),
            _ => None,
        }
    }

    /// Puts an interior node among the hot ones, if there is a place or it is its turn.
    pub fn warm(&self, ptr: &RawPtr, node: &Node) {
        let Some(place) = self.hot(ptr.block.get()) else {
            return;
        };
        let free = place.load().is_none();
        let attempt = || self.attempts.fetch_add(1, Ordering::Relaxed);
        if free || attempt().is_multiple_of(DISPLACE) {
            place.store(Some(Arc::new(Entry {
                ptr: *ptr,
                node: node.clone(),
            })));
        }
    }

    /// Puts a node in, in the place of any other at its block.
    pub fn insert(&self, ptr: &RawPtr, node: Node) {
        if let Some(shard) = self.shard(ptr.block.get()) {
            shard.lock().insert(Entry { ptr: *ptr, node }, self.limit);
        }
    }

    /// Lets the node at `block` be among the next to go.
    pub fn cool(&self, block: u64) {
        if let Some(shard) = self.shard(block) {
            let mut shard = shard.lock();
            let place = shard.places.get(&block).copied();
            if let Some(slot) = place.and_then(|i| shard.slots.get_mut(i)) {
                slot.referenced = false;
            }
        }
    }

    /// What happened so far.
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
