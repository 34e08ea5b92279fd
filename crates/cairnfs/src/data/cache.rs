//! A bounded cache of data blocks by device address: sharded, second chance.

use std::collections::HashMap;

use crossbeam_utils::CachePadded;

use crate::format::BLOCK_SIZE;
use crate::sync::Mutex;

const SHARDS: usize = 16;

struct Entry {
    block: u64,
    recent: bool,
    bytes: Box<[u8; BLOCK_SIZE]>,
}

#[derive(Default)]
struct Shard {
    places: HashMap<u64, usize>,
    entries: Vec<Entry>,
    hand: usize,
}

/// Data blocks in memory.
pub struct BlockCache {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    limit: usize,
}

impl BlockCache {
    /// A cache of up to `blocks` blocks.
    pub fn new(blocks: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            limit: (blocks / SHARDS).max(1),
        }
    }

    fn shard(&self, block: u64) -> Option<&Mutex<Shard>> {
        self.shards
            .get((block >> 4) as usize % SHARDS)
            .map(|s| &**s)
    }

    /// Copies the block out, if it is here.
    pub fn get(&self, block: u64, out: &mut [u8; BLOCK_SIZE]) -> bool {
        let Some(mut shard) = self.shard(block).map(|s| s.lock()) else {
            return false;
        };
        let Some(place) = shard.places.get(&block).copied() else {
            return false;
        };
        let Some(entry) = shard.entries.get_mut(place) else {
            return false;
        };
        entry.recent = true;
        out.copy_from_slice(entry.bytes.as_slice());
        true
    }

    /// Keeps a block, in place of a cold one if the cache is full.
    pub fn put(&self, block: u64, bytes: Box<[u8; BLOCK_SIZE]>) {
        let Some(mut shard) = self.shard(block).map(|s| s.lock()) else {
            return;
        };
        if let Some(place) = shard.places.get(&block).copied() {
            if let Some(entry) = shard.entries.get_mut(place) {
                entry.bytes = bytes;
            }
            return;
        }
        let place = if shard.entries.len() < self.limit {
            shard.entries.push(Entry {
                block,
                recent: false,
                bytes,
            });
            shard.entries.len() - 1
        } else {
            let place = shard.cold_place();
            if let Some(entry) = shard.entries.get_mut(place) {
                let old = std::mem::replace(&mut entry.block, block);
                entry.recent = false;
                entry.bytes = bytes;
                shard.places.remove(&old);
            }
            place
        };
        shard.places.insert(block, place);
    }

    /// Forgets a block.
    pub fn remove(&self, block: u64) {
        let Some(mut shard) = self.shard(block).map(|s| s.lock()) else {
            return;
        };
        let Some(place) = shard.places.remove(&block) else {
            return;
        };
        shard.entries.swap_remove(place);
        if let Some(moved) = shard.entries.get(place).map(|e| e.block) {
            shard.places.insert(moved, place);
        }
    }
}

impl Shard {
    fn cold_place(&mut self) -> usize {
        loop {
            self.hand = if self.hand + 1 < self.entries.len() {
                self.hand + 1
            } else {
                0
            };
            match self.entries.get_mut(self.hand) {
                Some(entry) if entry.recent => entry.recent = false,
                _ => return self.hand,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_and_never_returns_another_block() {
        let cache = BlockCache::new(64);
        let page = |n: u64| [n as u8; BLOCK_SIZE];
        for n in 0..1000 {
            cache.put(n, Box::new(page(n)));
            if n % 7 == 0 {
                cache.remove(n / 2);
            }
        }
        let mut out = [0; BLOCK_SIZE];
        let held = (0..1000)
            .filter(|n| {
                let hit = cache.get(*n, &mut out);
                assert!(!hit || out == page(*n));
                hit
            })
            .count();
        assert!(held > 0 && held <= 64);
        cache.put(999, Box::new([7; BLOCK_SIZE]));
        assert!(cache.get(999, &mut out));
        assert_eq!(out, [7; BLOCK_SIZE]);
    }
}
