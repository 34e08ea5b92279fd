//! Values of extended attributes in memory: one copy of each value, found by its hash.
//!
//! Uses the format's hashes only. A thread that sets a value gets the copy that another
//! thread interned earlier, so dirty sets share values. The merge looks up here where the index
//! stores a value, and a reader gets a value without an index search. Only time and memory depend
//! on the contents.
//!
//! An entry is two words: the value, half of its hash, and two bytes for its place in the index and
//! the second chance. A shard is a table of rows of eight entries, two cache lines each, under a
//! small lock of its own, which no thread holds while it creates a value. A shard holds no more
//! bytes than its share of the limit. It is not a [`cairnfs_disk::clock`] table, which has a map beside
//! its entries: here an entry's place follows from its hash, a look-up reads two cache lines, and
//! the limit is one of bytes.
//!
//! A place is one in the tree of one root, and a value has one place here: that in the tree which
//! used it last. It is remembered only while the tree has the value there: the merge, the only
//! writer of trees, removes it here before another value can be stored in that place.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use triomphe::ThinArc;

use cairnfs_disk::format::xattr::{SharedRef, ValueHash};
use cairnfs_disk::prefetch::prefetch;
use cairnfs_disk::shard::AtomicUnsummed;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Entries of a row.
const WAYS: usize = 8;
/// Bytes of values per table entry, for sizing.
const BYTES_PER_ENTRY: usize = 256;
/// Least bytes of a shard, so that the largest value fits.
const MIN_SHARD_BYTES: usize = 128 << 10;
const MOST_SHARDS: usize = if cfg!(shuttle) { 2 } else { 16 };
/// Approximate memory of a value in addition to its bytes.
const OVERHEAD: i64 = 64;
/// The place in the index is unknown.
const NOWHERE: u8 = u8::MAX;

/// Most bytes added or removed in a shard before they are added to the common sum.
const STEP: usize = 64 << 10;

/// Bytes of a shard's values that are referenced anywhere. Nearly each call changes this, and each
/// commit reads the sum, so the sum is updated in steps.
struct Memory {
    unsummed: CachePadded<AtomicUnsummed>,
    step: i64,
    sum: Arc<CachePadded<AtomicI64>>,
}

impl Memory {
    fn add(&self, bytes: i64) {
        let due = self.unsummed.add(bytes, self.step);
        if due != 0 {
            self.sum.fetch_add(due, Ordering::Relaxed);
        }
    }
}

/// A shared value, in one allocation.
#[derive(Clone)]
pub struct Value(ThinArc<Head, u8>);

/// The header of a value.
struct Head {
    hash: u64,
    cost: usize,
    memory: Arc<Memory>,
}

impl Value {
    /// Its hash.
    pub fn hash(&self) -> u64 {
        self.head().hash
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0.slice
    }

    fn head(&self) -> &Head {
        &self.0.header.header
    }

    fn cost(&self) -> usize {
        self.head().cost
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        self.memory.add(-(self.cost as i64));
    }
}

/// The number of a tree whose places are remembered, unique among the trees in use.
pub type TreeNumber = u16;

#[derive(Default)]
struct ValueSlot {
    value: Option<Value>,
    /// See [`tag`].
    tag: u32,
    /// The tree that has the value at the place `slot`.
    tree: TreeNumber,
    /// The place of the value in the tree, or [`NOWHERE`].
    slot: u8,
    /// It was used since the hand last passed it.
    recent: bool,
}

impl ValueSlot {
    fn holds(&self, hash: u64) -> Option<&Value> {
        let value = self.value.as_ref().filter(|_| self.tag == tag(hash))?;
        Some(value).filter(|v| v.hash() == hash)
    }

    /// Whether it is known to be at this place.
    fn is_at(&self, tree: TreeNumber, slot: u8) -> bool {
        (self.tree, self.slot) == (tree, slot)
    }
}

/// The entries that a hash may be stored in.
#[derive(Default)]
struct Row([ValueSlot; WAYS]);

/// The part of a hash stored in an entry: it selects the row, and avoids most comparisons of
/// values. The lower bits select the shard.
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// Counters of lookups and evictions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ValueCounters {
    /// Values found in memory.
    pub hits: u64,
    /// Values not found.
    pub misses: u64,
    /// Bytes not allocated because an equal value existed.
    pub shared: u64,
    /// Evicted values.
    pub evictions: u64,
}

#[derive(Default)]
struct Shard {
    /// The length is a power of two, or 0 before the first value.
    rows: Vec<Row>,
    /// Values inserted since the table last grew, those kept then included.
    inserted: usize,
    bytes: usize,
    hand: usize,
    counters: ValueCounters,
}

impl Shard {
    fn row(&mut self, tag: u32) -> &mut [ValueSlot] {
        let row = tag as usize % self.rows.len().max(1);
        let row = self.rows.get_mut(row);
        row.map(|row| &mut row.0[..]).unwrap_or_default()
    }

    /// Prefetches the row of a hash.
    fn prefetch(&mut self, hash: u64) {
        prefetch(self.row(tag(hash)));
    }

    /// Doubles the table if it may be half full and is smaller than `limit` bytes of values need.
    /// Thus a few values use little memory.
    fn grow(&mut self, limit: usize) {
        let entries = self.rows.len() * WAYS;
        if 2 * self.inserted < entries || entries * BYTES_PER_ENTRY > limit / 2 && entries > 0 {
            return;
        }
        let mut rows = Vec::new();
        rows.resize_with((2 * self.rows.len()).max(1), Row::default);
        let old = std::mem::replace(&mut self.rows, rows);
        self.inserted = 0;
        for entry in old.into_iter().flat_map(|row| row.0) {
            // The entries of one row are spread over two rows, so each finds a free slot.
            if entry.value.is_some()
                && let Some(free) = (self.row(entry.tag).iter_mut()).find(|e| e.value.is_none())
            {
                *free = entry;
                self.inserted += 1;
            }
        }
    }

    fn find(&mut self, hash: u64) -> Option<&mut ValueSlot> {
        let mut row = self.row(tag(hash)).iter_mut();
        let entry = row.find(|e| e.holds(hash).is_some())?;
        entry.recent = true;
        Some(entry)
    }

    fn count(&mut self, found: bool) {
        if found {
            self.counters.hits += 1
        } else {
            self.counters.misses += 1
        }
    }

    /// Inserts a value into its row; the hash must not have an entry yet.
    fn insert(&mut self, value: &Value, (tree, slot): (TreeNumber, u8), limit: usize) {
        if value.cost() > limit {
            return;
        }
        self.grow(limit);
        self.inserted += 1;
        while self.bytes + value.cost() > limit {
            self.pass_hand();
        }
        let row = self.row(tag(value.hash()));
        let free = row.iter().position(|e| e.value.is_none());
        let cold = || row.iter().position(|e| !e.recent);
        let way = free.or_else(cold).unwrap_or(0);
        if free.is_none() {
            row.iter_mut().for_each(|e| e.recent = false);
        }
        let entry = ValueSlot {
            value: Some(value.clone()),
            tag: tag(value.hash()),
            tree,
            slot,
            recent: false,
        };
        let out = row
            .get_mut(way)
            .and_then(|at| std::mem::replace(at, entry).value);
        self.bytes += value.cost();
        self.count_eviction(out);
    }

    /// Advances the hand by one entry, and evicts it if it was not used since the last pass.
    fn pass_hand(&mut self) {
        self.hand = (self.hand + 1) % (self.rows.len() * WAYS).max(1);
        let row = self.rows.get_mut(self.hand / WAYS);
        let Some(entry) = row.and_then(|row| row.0.get_mut(self.hand % WAYS)) else {
            return;
        };
        if !std::mem::take(&mut entry.recent) {
            let out = entry.value.take();
            self.count_eviction(out);
        }
    }

    fn count_eviction(&mut self, out: Option<Value>) {
        if let Some(out) = out {
            self.bytes -= out.cost();
            self.counters.evictions += 1;
        }
    }
}

/// A pending lookup of the value with these bytes.
#[must_use]
pub struct Sought<'v, 'b> {
    values: &'v Values,
    bytes: &'b [u8],
    hash: u64,
}

impl Sought<'_, '_> {
    /// Like [`Values::intern`], with the row prefetched by [`Values::seek`].
    pub fn intern(&self) -> Value {
        self.values.intern_as(self.hash, self.bytes)
    }
}

/// The values of a volume.
pub struct Values {
    hash: ValueHash,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Largest number of bytes of a shard.
    limit: usize,
    /// Bytes of all referenced values, except what the shards have not added yet.
    sum: Arc<CachePadded<AtomicI64>>,
    /// Memory of the last shard, and of all others in order.
    last: Arc<Memory>,
    others: Box<[Arc<Memory>]>,
    /// Whether equal values are stored once.
    once: bool,
    /// Whether trees may have lost values whose places are recorded.
    lost: AtomicBool,
}

impl Values {
    /// An empty set; at most `limit` bytes of otherwise unreferenced values are kept.
    pub fn new(seed: u64, limit: usize) -> Self {
        let shards = (limit / MIN_SHARD_BYTES).clamp(1, MOST_SHARDS);
        let sum: Arc<CachePadded<AtomicI64>> = Arc::default();
        let memory = || {
            Arc::new(Memory {
                unsummed: CachePadded::default(),
                step: (limit / shards / 8).min(STEP) as i64,
                sum: sum.clone(),
            })
        };
        Self {
            hash: ValueHash::new(seed),
            shards: (0..shards).map(|_| CachePadded::default()).collect(),
            limit: limit / shards,
            others: (1..shards).map(|_| memory()).collect(),
            last: memory(),
            sum,
            once: true,
            lost: AtomicBool::new(false),
        }
    }

    /// The same set, in which equal values are stored once or not.
    pub fn once(mut self, once: bool) -> Self {
        self.once = once;
        self
    }

    /// Whether equal values are stored once, in memory and in the index.
    pub fn are_once(&self) -> bool {
        self.once
    }

    /// Records that a tree may have lost values whose places are recorded, because a damaged node was
    /// cut out of it.
    pub fn note_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Whether [`Values::note_lost`] was called.
    pub fn have_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn with<R>(&self, hash: u64, f: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        let shard = self.shards.get(hash as usize % self.shards.len().max(1))?;
        Some(f(&mut shard.lock()))
    }

    fn make(&self, hash: u64, bytes: &[u8]) -> Value {
        let shard = hash as usize % self.shards.len().max(1);
        let memory = self.others.get(shard).unwrap_or(&self.last);
        let cost = bytes.len() + OVERHEAD as usize;
        memory.add(cost as i64);
        let head = Head {
            hash,
            cost,
            memory: memory.clone(),
        };
        Value(ThinArc::from_header_and_slice(head, bytes))
    }

    /// Begins a lookup of the value with these bytes: prefetches its row.
    pub fn seek<'b>(&self, bytes: &'b [u8]) -> Sought<'_, 'b> {
        let hash = self.hash.of(bytes);
        self.with(hash, |shard| shard.prefetch(hash));
        Sought {
            values: self,
            bytes,
            hash,
        }
    }

    /// The value with these bytes: the existing copy if there is one, otherwise a new one.
    pub fn intern(&self, bytes: &[u8]) -> Value {
        let hash = self.hash.of(bytes);
        self.intern_as(hash, bytes)
    }

    fn intern_as(&self, hash: u64, bytes: &[u8]) -> Value {
        if !self.once {
            return self.make(hash, bytes);
        }
        let equal = |entry: &mut ValueSlot| entry.value.clone().filter(|v| v.bytes() == bytes);
        let found = self.with(hash, |shard| {
            let found = shard.find(hash).and_then(equal);
            shard.count(found.is_some());
            shard.counters.shared += found.as_ref().map_or(0, |v| v.bytes().len() as u64);
            found
        });
        if let Some(value) = found.flatten() {
            return value;
        }
        let value = self.make(hash, bytes);
        // Another thread may have inserted it meanwhile.
        let other = self.with(hash, |shard| {
            let Some(there) = shard.find(hash) else {
                shard.insert(&value, (0, NOWHERE), self.limit);
                return None;
            };
            equal(there)
        });
        other.flatten().unwrap_or(value)
    }

    /// The value at this place in a tree, if it is cached.
    pub fn at(&self, tree: TreeNumber, place: SharedRef) -> Option<Value> {
        self.with(place.hash, |shard| {
            let entry = shard.find(place.hash);
            let entry = entry.filter(|e| e.is_at(tree, place.slot));
            let value = entry.and_then(|e| e.value.clone());
            shard.count(value.is_some());
            value
        })?
    }

    /// The place of a value in a tree, if it is known.
    pub fn place(&self, tree: TreeNumber, value: &Value) -> Option<SharedRef> {
        let hash = value.hash();
        self.with(hash, |shard| {
            let entry = shard.find(hash);
            let equal =
                |e: &&mut ValueSlot| e.holds(hash).is_some_and(|v| v.bytes() == value.bytes());
            let slot = entry
                .filter(equal)
                .filter(|e| e.tree == tree && e.slot != NOWHERE)
                .map(|e| e.slot);
            shard.count(slot.is_some());
            slot.map(|slot| SharedRef { hash, slot })
        })?
    }

    /// Records that a tree has a value at this place, until [`Values::forget`] is called for it, or
    /// another tree's place is recorded.
    pub fn remember(&self, tree: TreeNumber, value: &Value, slot: u8) {
        self.with(value.hash(), |shard| match shard.find(value.hash()) {
            Some(entry) => {
                if entry
                    .holds(value.hash())
                    .is_some_and(|v| v.bytes() == value.bytes())
                {
                    (entry.tree, entry.slot) = (tree, slot);
                }
            }
            None => shard.insert(value, (tree, slot), self.limit),
        });
    }

    /// Forgets that a tree has a value at this place.
    pub fn forget(&self, tree: TreeNumber, place: SharedRef) {
        self.with(place.hash, |shard| {
            if let Some(entry) = shard.find(place.hash)
                && entry.is_at(tree, place.slot)
            {
                entry.slot = NOWHERE;
            }
        });
    }

    /// Forgets all places in all trees: an aborted merge may have recorded wrong ones, and a tree
    /// may get the number of another.
    pub fn forget_places(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let entries = shard.rows.iter_mut().flat_map(|row| row.0.iter_mut());
            entries.for_each(|entry| entry.slot = NOWHERE);
        }
    }

    /// Bytes of all referenced values, including those kept here.
    pub fn memory(&self) -> i64 {
        let all = self.others.iter().chain([&self.last]);
        let unsummed: i64 = all.map(|m| m.unsummed.get()).sum();
        self.sum.load(Ordering::Relaxed) + unsummed
    }

    /// Approximate bytes of values beyond the limit of this cache; dirty sets hold them.
    pub fn beyond(&self) -> i64 {
        let kept = self.limit as i64 + self.last.step;
        let kept = kept * self.shards.len() as i64;
        (self.sum.load(Ordering::Relaxed) - kept).max(0)
    }

    /// The counters so far.
    pub fn counters(&self) -> ValueCounters {
        let mut sum = ValueCounters::default();
        for shard in &self.shards {
            let counters = shard.lock().counters;
            sum.hits += counters.hits;
            sum.misses += counters.misses;
            sum.shared += counters.shared;
            sum.evictions += counters.evictions;
        }
        sum
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    /// Values of 240 bytes that all have the same hash: if the first word of a step of the hash is
    /// this constant, the second word does not affect the hash.
    fn equal_hashes(seed: u64, number: u64) -> Vec<u8> {
        let first = 0xbe4b_a423_396c_feb8_u64.wrapping_add(seed);
        let mut bytes = [first.to_le_bytes(), number.to_le_bytes()].concat();
        bytes.resize(240, 5);
        bytes
    }

    #[test]
    fn value_slot_is_two_words() {
        assert_eq!(size_of::<ValueSlot>(), 2 * size_of::<usize>());
        assert_eq!(size_of::<Row>(), 128);
    }

    #[test]
    fn equal_values_share_memory() {
        let values = Values::new(9, 1 << 20);
        let same = |a: &Value, b: &Value| std::ptr::eq(a.bytes(), b.bytes());
        let a = values.intern(&[1; 400]);
        let b = values.intern(&[1; 400]);
        assert!(same(&a, &b));
        assert!(!same(&a, &values.intern(&[2; 400])));
        let counters = values.counters();
        assert_eq!((counters.hits, counters.misses), (1, 2));
        assert_eq!(counters.shared, 400);
        assert_eq!(values.memory(), 2 * 464);
    }

    #[test]
    fn values_with_equal_hashes_are_distinguished() {
        let values = Values::new(9, 1 << 20);
        let [a, b] = [1, 2].map(|n| values.intern(&equal_hashes(9, n)));
        assert_eq!(a.hash(), b.hash(), "the test's values must collide");
        assert_ne!(a.bytes(), b.bytes());
        values.remember(1, &a, 3);
        values.remember(1, &b, 4);
        let at = |slot| {
            let hash = a.hash();
            values
                .at(1, SharedRef { hash, slot })
                .map(|v| v.bytes().to_vec())
        };
        assert_eq!(at(3).as_deref(), Some(a.bytes()));
        assert_eq!(at(4), None, "one of a hash is kept");
        assert_eq!(values.place(1, &b), None);
        assert_eq!(values.place(1, &a).map(|p| p.slot), Some(3));
        let place = SharedRef {
            hash: a.hash(),
            slot: 3,
        };
        values.forget(1, place);
        assert_eq!((values.place(1, &a), at(3)), (None, None));
    }

    #[test]
    fn places_of_one_tree_do_not_hold_for_another() {
        let values = Values::new(9, 1 << 20);
        let value = values.intern(&[1; 400]);
        values.remember(1, &value, 3);
        let place = SharedRef {
            hash: value.hash(),
            slot: 3,
        };
        assert!(values.place(2, &value).is_none() && values.at(2, place).is_none());
        values.forget(2, place);
        assert_eq!(values.place(1, &value).map(|p| p.slot), Some(3));
        values.remember(2, &value, 0);
        assert_eq!(values.place(2, &value).map(|p| p.slot), Some(0));
        assert!(values.place(1, &value).is_none());
    }

    #[test]
    fn value_memory_is_bounded_and_used_values_stay() {
        let limit = 256 << 10;
        let values = Values::new(1, limit);
        let hot = [7; 200];
        for number in 0..20_000_u32 {
            let mut bytes = vec![3; 100 + number as usize % 900];
            bytes.extend_from_slice(&number.to_le_bytes());
            drop(values.intern(&bytes));
            drop(values.intern(&hot));
            assert!(values.memory() <= limit as i64, "{}", values.memory());
        }
        let counters = values.counters();
        assert!(counters.evictions > 10_000);
        assert!(counters.hits > 19_900, "{counters:?}");
        assert_eq!(values.beyond(), 0);
        let held: Vec<_> = (0..8).map(|n| values.intern(&[n; 60_000])).collect();
        assert!(values.beyond() > 100_000, "what others hold counts");
        drop(held);
        assert_eq!(values.beyond(), 0);
    }
}

#[cfg(test)]
#[cfg(shuttle)]
mod schedules {
    use super::*;
    use cairnfs_disk::sync::explore::{Cost, explore};
    use cairnfs_disk::sync::thread;

    #[test]
    fn concurrently_interned_value_is_shared() {
        explore("values: one brought by three", Cost::Small, || {
            let values = Arc::new(Values::new(9, 1 << 20));
            let threads = [0; 3].map(|_| {
                let values = values.clone();
                thread::spawn(move || values.seek(&[1; 100]).intern())
            });
            let [a, b, c] = threads.map(|thread| thread.join().unwrap());
            let same = |a: &Value, b: &Value| std::ptr::eq(a.bytes(), b.bytes());
            assert!(same(&a, &b) && same(&b, &c));
            let counters = values.counters();
            assert_eq!(counters.hits + counters.misses, 3);
            assert_eq!(counters.shared, 100 * counters.hits);
            drop((a, b, c));
            assert_eq!(values.memory(), 164, "the table has one");
        });
    }
}
