//! A bounded cache of data blocks by device address; each shard is a second-chance table.
//!
//! Blocks that were written and not read since are limited to a small part of it, in FIFO order: a
//! sequential writer then reuses memory that is still in the processor's cache. Of memory that is
//! lent to the cache beyond its own they may take half.

use std::collections::VecDeque;
use std::ops::Range;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use cairnfs_disk::clock::Clock;
use cairnfs_disk::device::Page;
use cairnfs_disk::sync::Mutex;

const SHARDS: usize = 16;
/// Adjacent blocks in one shard.
const TOGETHER: u64 = 16;

/// The unread part is 1/`UNREAD` of the own blocks of a shard, but at least `UNREAD_LEAST`, and
/// 1/`UNREAD_LENT` of those lent to it.
const UNREAD: usize = 8;
const UNREAD_LEAST: usize = 128;
const UNREAD_LENT: usize = 2;

struct CachedBlock {
    /// Sequence number, within its shard, of the write since which it was not read; 0 if it was
    /// read.
    unread: u64,
    page: Page,
}

struct Shard {
    blocks: Clock<CachedBlock>,
    /// Written blocks in the order of their sequence numbers; some may be read or removed since.
    written: VecDeque<(u64, u64)>,
    /// Sequence number of the last write.
    count: u64,
    /// Number of unread blocks.
    unread: usize,
    limit_unread: usize,
    /// Number of blocks that it may always have.
    own: usize,
}

/// A cache of data blocks.
pub struct BlockCache {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
}

impl BlockCache {
    /// A cache of at most `blocks` blocks, until more are lent to it.
    pub fn new(blocks: usize) -> Self {
        let own = (blocks / SHARDS).max(1);
        let shard = || CachePadded::new(Mutex::new(Shard::new(own)));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    /// Lets the cache have `blocks` more than its own, and no longer what it was lent before.
    pub fn lend(&self, blocks: usize) {
        for shard in &self.shards {
            let left = shard.lock().lend(blocks / SHARDS);
            Page::let_go(left);
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
            shard.put(block, CachedBlock { unread: 0, page })
        });
    }

    /// Caches adjacent blocks that were written; they replace other unread blocks.
    pub fn put_written(&self, first: u64, pages: Vec<Page>) {
        self.each_page(first, pages, |shard, block, page| {
            let unread = shard.wrote(block);
            shard.put(block, CachedBlock { unread, page })
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
        let blocks = self.shards.iter().flat_map(|s| s.lock().blocks.take());
        Page::give_up(blocks.map(|b| b.page).collect());
    }
}

impl CachedBlock {
    fn is_unread(&self) -> bool {
        self.unread != 0
    }
}

impl Shard {
    fn new(own: usize) -> Self {
        Self {
            blocks: Clock::new(own),
            written: VecDeque::new(),
            count: 0,
            unread: 0,
            limit_unread: (own / UNREAD).max(UNREAD_LEAST),
            own,
        }
    }

    /// Sets the number of blocks beyond its own. Returns the pages that have to leave.
    fn lend(&mut self, blocks: usize) -> Vec<Page> {
        self.limit_unread = (self.own / UNREAD).max(UNREAD_LEAST) + blocks / UNREAD_LENT;
        let mut left: Vec<Page> = self.surplus_unread();
        let evicted = self.blocks.set_limit(self.own + blocks);
        left.extend(evicted.into_iter().filter_map(|old| self.left(Some(old))));
        left
    }

    /// Removes the oldest unread blocks beyond their limit.
    fn surplus_unread(&mut self) -> Vec<Page> {
        let surplus = self.unread.saturating_sub(self.limit_unread);
        let oldest = (0..surplus).filter_map(|_| {
            let block = self.next_unread()?;
            self.remove(block)
        });
        oldest.collect()
    }

    fn get(&mut self, block: u64) -> Option<Page> {
        let cached = self.blocks.get(block)?;
        self.unread -= usize::from(cached.is_unread());
        cached.unread = 0;
        Some(cached.page.clone())
    }

    /// Caches a block. Returns the replaced page, so that the caller can drop it without the lock.
    fn put(&mut self, block: u64, new: CachedBlock) -> Option<Page> {
        let oldest = if new.is_unread() && self.unread >= self.limit_unread {
            self.oldest_unread(block)
        } else {
            None
        };
        self.unread += usize::from(new.is_unread());
        let old = match oldest {
            Some(oldest) => self.blocks.replace(oldest, block, new),
            None => self.blocks.insert(block, new),
        };
        self.left(old)
    }

    fn remove(&mut self, block: u64) -> Option<Page> {
        let removed = self.blocks.remove(block);
        self.left(removed)
    }

    fn left(&mut self, old: Option<CachedBlock>) -> Option<Page> {
        let old = old?;
        self.unread -= usize::from(old.is_unread());
        Some(old.page)
    }

    /// Returns the sequence number of a write of this block.
    fn wrote(&mut self, block: u64) -> u64 {
        if self.written.len() > 2 * self.unread + UNREAD_LEAST {
            let blocks = &self.blocks;
            self.written.retain(|entry| is_unread(blocks, *entry));
        }
        self.count += 1;
        self.written.push_back((self.count, block));
        self.count
    }

    /// Takes the unread block that was written first from the order, to be replaced by `block`;
    /// none if `block` is cached.
    fn oldest_unread(&mut self, block: u64) -> Option<u64> {
        match self.blocks.peek(block) {
            Some(_) => None,
            None => self.next_unread(),
        }
    }

    /// Takes the unread block that was written first from the order.
    fn next_unread(&mut self) -> Option<u64> {
        loop {
            let entry = self.written.pop_front()?;
            if is_unread(&self.blocks, entry) {
                return Some(entry.1);
            }
        }
    }
}

/// Whether a block that was written with this sequence number was not read since.
fn is_unread(blocks: &Clock<CachedBlock>, (number, block): (u64, u64)) -> bool {
    blocks.peek(block).is_some_and(|b| b.unread == number)
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
    fn lent_memory_keeps_more_blocks_and_is_given_back() {
        let own = 16 * UNREAD * 2 * UNREAD_LEAST;
        let lent = own / 2;
        let own_unread = own / UNREAD;
        let cache = BlockCache::new(own);
        let held = |blocks: Range<u64>| cache.get(blocks).iter().flatten().count();
        let page = || Page::with(&[1]);
        let write = |blocks: Range<u64>| blocks.for_each(|n| cache.put_written(n, vec![page()]));
        cache.lend(lent);
        let unread = (own_unread + lent / UNREAD_LENT) as u64;
        write(0..2 * unread);
        let shards = cache.shards.iter();
        let written: usize = shards.map(|s| s.lock().unread).sum();
        assert_eq!(written as u64, unread);
        cache.lend(0);
        assert_eq!(
            held(0..2 * unread - own_unread as u64),
            0,
            "the oldest left"
        );
        assert_eq!(held(2 * unread - own_unread as u64..2 * unread), own_unread);

        cache.lend(lent);
        let all = (own + lent) as u64;
        (0..all).for_each(|n| cache.put(n, vec![page()]));
        assert_eq!(held(0..all), own + lent);
        cache.lend(0);
        assert_eq!(held(0..all), own);
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
                let within = blocks.clone().filter(|b| shard.blocks.peek(*b).is_some());
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
