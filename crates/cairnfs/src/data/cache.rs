//! A bounded cache of data blocks by device address: sharded, second chance.

use std::collections::HashMap;
use std::ops::Range;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::device::Page;
use crate::shard::IntHash;
use crate::sync::Mutex;

const SHARDS: usize = 16;
/// So many blocks side by side are in one shard.
const TOGETHER: u64 = 16;

struct Entry {
    block: u64,
    recent: bool,
    page: Page,
}

#[derive(Default)]
struct Shard {
    places: HashMap<u64, usize, IntHash>,
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

    /// Does something with each of adjacent blocks; a lock is taken once for several of them.
    fn each(&self, blocks: Range<u64>, mut work: impl FnMut(&mut Shard, u64)) {
        let mut at = blocks.start;
        while at < blocks.end {
            let end = (at / TOGETHER * TOGETHER + TOGETHER).min(blocks.end);
            let shard = self.shards.get((at / TOGETHER) as usize % SHARDS);
            if let Some(mut shard) = shard.map(|s| s.lock()) {
                (at..end).for_each(|block| work(&mut shard, block));
            }
            at = end;
        }
    }

    /// Those of adjacent blocks that are here.
    pub fn get(&self, blocks: Range<u64>) -> SmallVec<[Option<Page>; 4]> {
        let mut found = SmallVec::new();
        self.each(blocks, |shard, block| found.push(shard.get(block)));
        found
    }

    /// Keeps adjacent blocks, in place of cold ones if the cache is full.
    pub fn put(&self, first: u64, pages: Vec<Page>) {
        let blocks = first..first + pages.len() as u64;
        let mut pages = pages.into_iter();
        let mut left = Vec::new();
        self.each(blocks, |shard, block| {
            let page = pages.next();
            left.extend(page.and_then(|page| shard.put(block, page, self.limit)));
        });
        Page::let_go(left);
    }

    /// Forgets adjacent blocks.
    pub fn remove(&self, blocks: Range<u64>) {
        let mut left = Vec::new();
        self.each(blocks, |shard, block| left.extend(shard.remove(block)));
        Page::let_go(left);
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        let entries = self
            .shards
            .iter()
            .map(|s| std::mem::take(&mut *s.lock()).entries);
        Page::give_up(entries.flatten().map(|e| e.page).collect());
    }
}

impl Shard {
    fn get(&mut self, block: u64) -> Option<Page> {
        let place = *self.places.get(&block)?;
        let entry = self.entries.get_mut(place)?;
        entry.recent = true;
        Some(entry.page.clone())
    }

    /// Keeps a block; what leaves for it is dropped by the caller, who may let go of the lock first.
    fn put(&mut self, block: u64, page: Page, limit: usize) -> Option<Page> {
        if let Some(place) = self.places.get(&block).copied() {
            let entry = self.entries.get_mut(place)?;
            return Some(std::mem::replace(&mut entry.page, page));
        }
        let entry = Entry {
            block,
            recent: false,
            page,
        };
        if self.entries.len() < limit {
            self.places.insert(block, self.entries.len());
            self.entries.push(entry);
            return None;
        }
        let place = self.cold_place();
        let old = std::mem::replace(self.entries.get_mut(place)?, entry);
        self.places.remove(&old.block);
        self.places.insert(block, place);
        Some(old.page)
    }

    fn remove(&mut self, block: u64) -> Option<Page> {
        let place = self.places.remove(&block)?;
        let gone = self.entries.swap_remove(place);
        if let Some(moved) = self.entries.get(place).map(|e| e.block) {
            self.places.insert(moved, place);
        }
        Some(gone.page)
    }

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
        let page = |n: u64| Page::with(&[n as u8; 4096]);
        for n in 0..1000 {
            cache.put(n * 3, (n * 3..n * 3 + 3).map(page).collect());
            if n % 7 == 0 {
                cache.remove(n..n + 2);
            }
        }
        let found = cache.get(0..3000);
        assert_eq!(found.len(), 3000);
        let held = found
            .iter()
            .zip(0..)
            .filter_map(|(p, n)| Some((p.as_ref()?, n)));
        let held: Vec<_> = held.collect();
        assert!(!held.is_empty() && held.len() <= 64);
        assert!(held.iter().all(|(p, n)| p.bytes() == page(*n).bytes()));
        cache.put(2999, vec![page(7)]);
        let found = cache.get(2999..3000);
        assert_eq!(found[0].as_ref().unwrap().bytes(), page(7).bytes());
    }
}
