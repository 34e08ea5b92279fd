//! For tests of the index and of crates above it, behind the feature `testing`: a device in memory, a block allocator, edits from a map, and a test bench that
//! combines them with a model.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::index::{Bounds, Edits, Index, NodeCounts, NodeSpace, Part, Tree};
use cairnfs_disk::device::Device;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::node::CellValue;
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS, NODE_SIZE};

pub const FIRST: u64 = 64;

/// A device in memory that grows with its writes.
#[derive(Default)]
pub struct Memory {
    pub bytes: Mutex<Vec<u8>>,
    pub writes: AtomicUsize,
    pub writers: Mutex<HashSet<ThreadId>>,
    /// All writes from this number on fail.
    pub failing_from: Option<usize>,
}

impl Device for Memory {
    fn size(&self) -> u64 {
        1 << 40
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.lock();
        buf.fill(0);
        let from = bytes.get(offset as usize..).unwrap_or_default();
        let len = from.len().min(buf.len());
        buf[..len].copy_from_slice(&from[..len]);
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let before = self.writes.fetch_add(1, Ordering::Relaxed);
        if self.failing_from.is_some_and(|first| before >= first) {
            return Err(Error::NoSpace);
        }
        self.writers.lock().insert(std::thread::current().id());
        let mut bytes = self.bytes.lock();
        let end = offset as usize + buf.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(buf);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        panic!("the index does not flush");
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        panic!("the index does not discard");
    }
}

/// Allocates the lowest free blocks; retired blocks become free with [`Space::reuse`].
#[derive(Default)]
pub struct Space {
    state: Mutex<State>,
    /// Allow retiring blocks that were never allocated, for trees built by hand.
    pub lax: bool,
    /// Allow a helper thread for writes.
    pub apart: bool,
    /// The counts of all trees made.
    pub counts: Mutex<NodeCounts>,
}

#[derive(Default)]
struct State {
    live: BTreeSet<u64>,
    retired: Vec<u64>,
    free: BTreeSet<u64>,
    next: u64,
}

impl Space {
    pub fn live(&self) -> BTreeSet<u64> {
        self.state.lock().live.clone()
    }

    pub fn reuse(&self) {
        let mut state = self.state.lock();
        let retired = std::mem::take(&mut state.retired);
        state.free.extend(retired);
    }
}

impl NodeSpace for Space {
    fn alloc(&self) -> Result<u64> {
        let mut state = self.state.lock();
        let block = state.free.pop_first().unwrap_or_else(|| {
            state.next += NODE_BLOCKS;
            FIRST + state.next - NODE_BLOCKS
        });
        assert!(state.live.insert(block));
        Ok(block)
    }

    fn retire(&self, block: u64) {
        let mut state = self.state.lock();
        let known = state.live.remove(&block);
        assert!(known || self.lax, "block {block} retired but not live");
        state.retired.push(block);
    }

    fn note_nodes(&self, nodes: &NodeCounts) {
        let mut counts = self.counts.lock();
        *counts = counts.and(nodes);
    }

    fn writes_apart(&self) -> bool {
        self.apart
    }
}

pub type Items = BTreeMap<Key, Vec<u8>>;
pub type Changes = BTreeMap<Key, Option<Vec<u8>>>;

/// Edits from a map; checks the old values against the model, and updates the model.
pub struct FromMap<'a> {
    pub changes: std::iter::Peekable<std::collections::btree_map::IntoIter<Key, Option<Vec<u8>>>>,
    pub model: &'a Mutex<Items>,
    pub most: usize,
    value: Option<Vec<u8>>,
}

impl Edits for FromMap<'_> {
    fn peek(&mut self) -> Result<Option<Key>> {
        Ok((self.most > 0)
            .then(|| self.changes.peek().map(|(k, _)| *k))
            .flatten())
    }

    fn take(&mut self, key: &Key, old: Option<&[u8]>) -> Result<Option<Cow<'_, [u8]>>> {
        assert!(self.most > 0);
        self.most -= 1;
        let (next, value) = self.changes.next().unwrap();
        assert_eq!(*key, next);
        let mut model = self.model.lock();
        assert_eq!(old, model.get(key).map(|v| &**v), "old value");
        match &value {
            Some(v) => model.insert(*key, v.clone()),
            None => model.remove(key),
        };
        drop(model);
        self.value = value;
        Ok(self.value.as_deref().map(Cow::Borrowed))
    }

    fn take_hidden(&mut self, key: &Key) -> Result<Option<Cow<'_, [u8]>>> {
        self.model.lock().remove(key);
        self.take(key, None)
    }
}

/// An index with its device and allocator, and the model of its items.
pub struct Bench {
    pub device: Arc<Memory>,
    pub space: Space,
    pub index: Index,
    pub tree: Tree,
    pub model: Items,
    pub birth: u64,
}

impl Bench {
    pub fn new(cache_bytes: usize) -> Self {
        Self::on(Memory::default(), cache_bytes)
    }

    pub fn on(device: Memory, cache_bytes: usize) -> Self {
        let device = Arc::new(device);
        Self {
            index: Index::new(device.clone(), 7, FIRST..1 << 20, cache_bytes),
            device,
            space: Space::default(),
            tree: Tree::default(),
            model: Items::new(),
            birth: 0,
        }
    }

    /// Another index on the same device, with an empty cache.
    pub fn fresh(&self) -> Index {
        Index::new(self.device.clone(), 7, FIRST..1 << 20, 1 << 20)
    }

    /// Applies at most `most` of `changes`; returns the rest.
    pub fn step(&mut self, changes: Changes, most: usize) -> Result<Changes> {
        self.birth += 1;
        let model = Mutex::new(std::mem::take(&mut self.model));
        let mut edits = FromMap {
            changes: changes.into_iter().peekable(),
            model: &model,
            most,
            value: None,
        };
        let applied = self
            .index
            .apply(&self.tree, &mut edits, self.birth, &self.space);
        let rest = edits.changes.collect();
        self.model = model.into_inner();
        self.tree = applied?;
        Ok(rest)
    }

    /// Applies `changes` in parts that begin at these objects, and one before them.
    pub fn apply_parts(
        &mut self,
        mut changes: Changes,
        from: &BTreeSet<u64>,
        threads: usize,
    ) -> Result<()> {
        self.birth += 1;
        let model = Mutex::new(std::mem::take(&mut self.model));
        let mut parts = Vec::new();
        let mut end = None;
        for first in from.iter().rev().map(|first| Some(*first)).chain([None]) {
            let edits = match first {
                Some(first) => changes.split_off(&Key::first_of(first)),
                None => std::mem::take(&mut changes),
            };
            let edits = FromMap {
                changes: edits.into_iter().peekable(),
                model: &model,
                most: usize::MAX,
                value: None,
            };
            let range = Bounds::of_objects(first, end);
            parts.push(Part { range, edits });
            end = first;
        }
        parts.reverse();
        let applied =
            self.index
                .apply_parts(&self.tree, &mut parts, self.birth, (&self.space, threads));
        self.model = model.into_inner();
        self.tree = applied?;
        Ok(())
    }

    pub fn apply(&mut self, changes: Changes) {
        let rest = self.step(changes, usize::MAX).unwrap();
        assert!(rest.is_empty());
    }

    pub fn put(&mut self, items: impl IntoIterator<Item = (Key, Vec<u8>)>) {
        self.apply(items.into_iter().map(|(k, v)| (k, Some(v))).collect());
    }

    pub fn delete(&mut self, keys: impl IntoIterator<Item = Key>) {
        self.apply(keys.into_iter().map(|k| (k, None)).collect());
    }

    /// The blocks of the tree's nodes and large values.
    pub fn blocks(&self) -> BTreeSet<u64> {
        let mut out = BTreeSet::new();
        if let Some(level) = self.tree.height.checked_sub(1) {
            blocks_below(&self.fresh(), &self.tree.ptr, level as u8, &mut out);
        }
        out
    }

    /// The blocks of the tree's nodes.
    pub fn node_blocks(&self) -> BTreeSet<u64> {
        let mut out = BTreeSet::new();
        if let Some(level) = self.tree.height.checked_sub(1) {
            nodes_below(&self.index, &self.tree.ptr, level as u8, &mut out);
        }
        out
    }

    /// Compares all look-ups and scans with the model, and checks that no block is leaked or used
    /// twice.
    pub fn check(&self) {
        assert_eq!(self.blocks(), self.space.live(), "live blocks");
        for index in [&self.index, &self.fresh()] {
            assert_eq!(scan(index, &self.tree, &Key::first_of(0)), self.model);
        }
        for (key, value) in &self.model {
            let got = self.index.get(&self.tree, key).unwrap();
            assert_eq!(got.as_ref(), Some(value));
        }
    }
}

pub fn scan(index: &Index, tree: &Tree, from: &Key) -> Items {
    let mut out = Items::new();
    index
        .scan(tree, from, &mut |key, value| {
            assert!(out.last_key_value().is_none_or(|(k, _)| k < key));
            out.insert(*key, value.to_vec());
            Ok(true)
        })
        .unwrap();
    out
}

fn blocks_below(index: &Index, ptr: &RawPtr, level: u8, out: &mut BTreeSet<u64>) {
    assert!(out.insert(ptr.block.get()), "a node used twice");
    let node = index.load(ptr, level).unwrap();
    for i in 0..node.len() {
        if level > 0 {
            blocks_below(index, &node.child(i).unwrap(), level - 1, out);
        } else if let Some(CellValue::Overflow(address)) = node.value(i) {
            let mut units = Vec::new();
            index
                .large_value(0, &address, &mut |b| units.push(b))
                .unwrap();
            units.into_iter().for_each(|b| assert!(out.insert(b)));
        }
    }
}

fn nodes_below(index: &Index, ptr: &RawPtr, level: u8, out: &mut BTreeSet<u64>) {
    out.insert(ptr.block.get());
    if level > 0 {
        let node = index.load(ptr, level).unwrap();
        let children = (0..node.len()).map(|i| node.child(i).unwrap());
        children.for_each(|child| nodes_below(index, &child, level - 1, out));
    }
}

pub fn offset(block: u64) -> usize {
    block as usize * BLOCK_SIZE
}

/// The fill grade: bytes of values and keys divided by the bytes of the nodes.
pub fn fill(bench: &Bench) -> f64 {
    let bytes: usize = bench.model.values().map(|v| v.len() + 8).sum();
    bytes as f64 / (bench.blocks().len() * NODE_SIZE) as f64
}

pub fn key(i: u64) -> Key {
    Key::new(i / 64, Kind::DirIndex, i % 64)
}

/// Items whose values differ in length.
pub fn numbered(range: Range<u64>) -> impl Iterator<Item = (Key, Vec<u8>)> {
    range.map(|i| (key(i), vec![i as u8; 40 + (i % 50) as usize]))
}

/// Deletes nearly all of many items by `apply`, few of each leaf at a time: little of the tree is
/// left.
pub fn check_joins(apply: impl Fn(&mut Bench, Changes)) {
    let mut bench = Bench::new(16 << 20);
    bench.put(numbered(0..20_000));
    let full = bench.blocks().len();
    for start in 0..20 {
        let deleted = (0..1000).map(|i| i * 20 + start).filter(|i| i % 20 != 7);
        apply(&mut bench, deleted.map(|i| (key(i), None)).collect());
        bench.check();
        bench.space.reuse();
    }
    assert_eq!(bench.model.len(), 1000);
    let left = bench.blocks().len();
    assert!(left <= full / 6, "{left} of {full} nodes are left");
}
