//! A bounded cache of data blocks by device address: sharded, second chance (clock).
//!
//! Blocks that were written and not read since are limited to a small part of it, in FIFO order: a
//! sequential writer then reuses memory that is still in the processor's cache.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::device::Page;
use crate::hash::IntHash;
use crate::sync::Mutex;

const SHARDS: usize = 16;
/// Adjacent blocks in one shard.
const TOGETHER: u64 = 16;

/// The unread part is 1/`UNREAD` of the blocks of a shard, but at least `UNREAD_LEAST`.
const UNREAD: usize = 8;
const UNREAD_LEAST: usize = 128;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Written with this sequence number of its shard, and not read since.
    Unread(u64),
    /// Not read since the hand last passed it.
    Cold,
    Recent,
}

impl Use {
    fn is_unread(self) -> bool {
        matches!(self, Self::Unread(_))
    }
}

struct CachedBlock {
    block: u64,
    used: Use,
    page: Page,
}

#[derive(Default)]
struct Shard {
    places: HashMap<u64, usize, IntHash>,
    entries: Vec<CachedBlock>,
    hand: usize,
    /// Written blocks in the order of their sequence numbers; some may be read or removed since.
    written: VecDeque<(u64, u64)>,
    /// Sequence number of the last write.
    count: u64,
    /// Number of entries that are [`Use::Unread`].
    unread: usize,
}

/// A cache of data blocks.
pub struct BlockCache {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    limit: usize,
    limit_unread: usize,
}

impl BlockCache {
    /// A cache of at most `blocks` blocks.
    pub fn new(blocks: usize) -> Self {
        let limit = (blocks / SHARDS).max(1);
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            limit,
            limit_unread: (limit / UNREAD).max(UNREAD_LEAST),
        }
    }

    /// Calls `work` for each of adjacent blocks; takes a shard's lock once for several blocks.
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

    /// Returns the cached pages of adjacent blocks.
    pub fn get(&self, blocks: Range<u64>) -> SmallVec<[Option<Page>; 4]> {
        let mut found = SmallVec::new();
        self.each(blocks, |shard, block| found.push(shard.get(block)));
        found
    }

    /// Caches adjacent blocks that were read; if the cache is full, they replace cold ones.
    pub fn put(&self, first: u64, pages: Vec<Page>) {
        self.each_page(first, pages, |shard, block, page| {
            shard.put(block, Use::Cold, page, self)
        });
    }

    /// Caches adjacent blocks that were written; they replace other unread blocks.
    pub fn put_written(&self, first: u64, pages: Vec<Page>) {
        self.each_page(first, pages, |shard, block, page| {
            let number = shard.wrote(block);
            shard.put(block, Use::Unread(number), page, self)
        });
    }

    fn each_page(
        &self,
        first: u64,
        pages: Vec<Page>,
        put: impl Fn(&mut Shard, u64, Page) -> Option<Page>,
    ) {
        let blocks = first..first + pages.len() as u64;
        let mut pages = pages.into_iter();
        let mut left = Vec::new();
        self.each(blocks, |shard, block| {
            let page = pages.next();
            left.extend(page.and_then(|page| put(shard, block, page)));
        });
        Page::let_go(left);
    }

    /// Drops adjacent blocks.
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
        let was = std::mem::replace(&mut entry.used, Use::Recent);
        self.unread -= usize::from(was.is_unread());
        Some(entry.page.clone())
    }

    /// Caches a block. Returns the evicted page, so that the caller can drop it without the lock.
    fn put(&mut self, block: u64, used: Use, page: Page, cache: &BlockCache) -> Option<Page> {
        let place = match self.places.get(&block) {
            Some(place) => Some(*place),
            None => self.place_for(used, cache),
        };
        self.unread += usize::from(used.is_unread());
        let entry = CachedBlock { block, used, page };
        let Some(place) = place else {
            self.places.insert(block, self.entries.len());
            self.entries.push(entry);
            return None;
        };
        let old = std::mem::replace(self.entries.get_mut(place)?, entry);
        self.unread -= usize::from(old.used.is_unread());
        if old.block != block {
            self.places.remove(&old.block);
            self.places.insert(block, place);
        }
        Some(old.page)
    }

    /// Returns the sequence number of a write of this block.
    fn wrote(&mut self, block: u64) -> u64 {
        if self.written.len() > 2 * self.unread + UNREAD_LEAST {
            let mut written = std::mem::take(&mut self.written);
            written.retain(|(number, block)| self.unread_place(*number, *block).is_some());
            self.written = written;
        }
        self.count += 1;
        self.written.push_back((self.count, block));
        self.count
    }

    /// The place of a block that was written with this sequence number, and not read since.
    fn unread_place(&self, number: u64, block: u64) -> Option<usize> {
        let place = *self.places.get(&block)?;
        let entry = self.entries.get(place)?;
        (entry.used == Use::Unread(number)).then_some(place)
    }

    /// The place of an entry to evict for a new one, if a limit is reached.
    fn place_for(&mut self, used: Use, cache: &BlockCache) -> Option<usize> {
        while used.is_unread() && self.unread >= cache.limit_unread {
            let (number, block) = self.written.pop_front()?;
            if let Some(place) = self.unread_place(number, block) {
                return Some(place);
            }
        }
        (self.entries.len() >= cache.limit).then(|| self.cold_place())
    }

    fn remove(&mut self, block: u64) -> Option<Page> {
        let place = self.places.remove(&block)?;
        let removed = self.entries.swap_remove(place);
        self.unread -= usize::from(removed.used.is_unread());
        if let Some(moved) = self.entries.get(place).map(|e| e.block) {
            self.places.insert(moved, place);
        }
        Some(removed.page)
    }

    fn cold_place(&mut self) -> usize {
        loop {
            self.hand = if self.hand + 1 < self.entries.len() {
                self.hand + 1
            } else {
                0
            };
            match self.entries.get_mut(self.hand) {
                Some(entry) if entry.used == Use::Recent => entry.used = Use::Cold,
                _ => return self.hand,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_cache_is_bounded_and_returns_right_blocks() {
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

    #[test]
    fn written_blocks_are_evicted_in_order_before_read_ones() {
        let blocks = 16 * UNREAD * 2 * UNREAD_LEAST;
        let unread = blocks / UNREAD;
        let cache = BlockCache::new(blocks);
        let page = || Page::with(&[1]);
        let held = |blocks: Range<u64>| {
            let (mut held, mut last) = (0, 0);
            for shard in &cache.shards {
                let shard = shard.lock();
                let within = blocks.clone().filter(|b| shard.places.contains_key(b));
                held += within.count();
                last = last.max(shard.written.len());
            }
            (held, last)
        };
        let read = 0..unread as u64 / 2;
        read.clone()
            .for_each(|n| cache.put_written(n, vec![page()]));
        cache.get(read.clone());
        let written = read.end..read.end + 10 * unread as u64;
        written
            .clone()
            .for_each(|n| cache.put_written(n, vec![page()]));
        assert_eq!(held(read.clone()).0, unread / 2);
        assert_eq!(held(written.clone()).0, unread);
        assert_eq!(held(written.end - unread as u64..written.end).0, unread);
        // Rewriting and removing a block repeatedly must not grow the queue.
        for _ in 0..4 * unread {
            cache.remove(7..8);
            cache.put_written(7, vec![page()]);
        }
        assert!(held(7..8).1 <= 2 * unread / SHARDS + UNREAD_LEAST + 1);
    }
}
