//! Reading trees: point look-ups, ascending scans, also from the last key up to a given one, and
//! loading nodes.
//!
//! Uses the device, the format and the cache. Takes no locks except a cache shard's, briefly. On
//! each descent the keys of every node are checked against the bounds given by its parents, or are
//! known to be within them.

use std::sync::Arc;

use crate::index::bounds::Bounds;
use crate::index::cache::CachedNode;
use crate::index::{Index, Tree};
use cairnfs_disk::device::AlignedBuf;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::{CellValue, Expected, MAX_HEIGHT, Node, RawOverflow};
use cairnfs_disk::format::overflow::{Chain, UNIT_SIZE};
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS, NODE_SIZE};

/// A node on the path from the root to a cell.
pub(super) struct Step {
    pub node: Arc<CachedNode>,
    /// The range of its keys.
    pub bounds: Bounds,
    /// The cell of the node that is on the path.
    pub at: usize,
}

/// The path from the root to a cell of a leaf.
type Path = Vec<Step>;

impl Index {
    /// Calls `f` with the value of `key`, if there is one. Values stored in leaves are not copied.
    ///
    /// # Errors
    /// [`Error::Corrupt`] (damage, or an outdated tree: see the module), or a device error.
    pub fn get_with<R>(
        &self,
        tree: &Tree,
        key: &Key,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        self.find(tree, key, |found| f(found.map(|(value, _)| value)))
    }

    /// The value of `key`, and the block of the leaf that contains it.
    ///
    /// # Errors
    /// As [`Index::get_with`].
    pub fn get_at(&self, tree: &Tree, key: &Key) -> Result<Option<(Vec<u8>, u64)>> {
        self.find(tree, key, |found| {
            found.map(|(value, at)| (value.to_vec(), at))
        })
    }

    fn find<R>(
        &self,
        tree: &Tree,
        key: &Key,
        f: impl FnOnce(Option<(&[u8], u64)>) -> R,
    ) -> Result<R> {
        let Some((leaf, block)) = self.leaf_of(tree, key)? else {
            return Ok(f(None));
        };
        match leaf.search(key).ok().and_then(|i| leaf.value(i)) {
            None => Ok(f(None)),
            Some(CellValue::Inline(value)) => Ok(f(Some((value, block)))),
            Some(CellValue::Overflow(address)) => {
                let value = self.large_value(block, &address, &mut |_| ())?;
                Ok(f(Some((&value, block))))
            }
        }
    }

    /// The leaf to which a key belongs, and its block; `None` if the tree is empty. Follows only
    /// pointers whose children are known to be within their bounds; at any other pointer it starts
    /// again with [`Self::descend`], which tracks the bounds.
    fn leaf_of(&self, tree: &Tree, key: &Key) -> Result<Option<(Arc<CachedNode>, u64)>> {
        let Some(mut level) = root_level(tree)? else {
            return Ok(None);
        };
        let mut ptr = tree.ptr;
        while level > 0 {
            let known = |node: &CachedNode| {
                check_level(node, level)?;
                let i = node.child_for(key);
                node.is_within(i).then(|| child(node, i)).transpose()
            };
            let below = match self.cache.with_hot(&ptr, known) {
                Some(found) => found?,
                None => {
                    let node = self.load(&ptr, level)?;
                    self.cache.warm(&node);
                    known(&node)?
                }
            };
            let Some(below) = below else {
                let path = self.descend(tree, key)?;
                let leaf = path.and_then(|mut path| path.pop());
                return Ok(leaf.map(|leaf| (leaf.node.clone(), leaf.node.header().block.get())));
            };
            ptr = below;
            level -= 1;
        }
        Ok(Some((self.load(&ptr, 0)?, ptr.block.get())))
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// As [`Index::get_with`].
    pub fn get(&self, tree: &Tree, key: &Key) -> Result<Option<Vec<u8>>> {
        self.get_with(tree, key, |value| value.map(<[u8]>::to_vec))
    }

    /// Calls `each` with the items from `from` on, in ascending order, until it returns `false`.
    ///
    /// # Errors
    /// As [`Index::get_with`], and the errors of `each`.
    pub fn scan(
        &self,
        tree: &Tree,
        from: &Key,
        each: &mut dyn FnMut(&Key, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        match self.descend(tree, from)? {
            Some(path) => self.scan_path(path, each),
            None => Ok(()),
        }
    }

    /// As [`Index::scan`], but begins at the last item up to `key`, if that is found in the leaf to
    /// which `key` belongs, and at `least` otherwise.
    ///
    /// # Errors
    /// As [`Index::scan`].
    pub fn scan_from_last(
        &self,
        tree: &Tree,
        (least, key): (&Key, &Key),
        each: &mut dyn FnMut(&Key, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let Some(mut path) = self.descend(tree, key)? else {
            return Ok(());
        };
        if let Some(leaf) = path.last_mut()
            && leaf.node.key(leaf.at).is_none_or(|at| at != *key)
        {
            match leaf.at.checked_sub(1) {
                Some(before) => leaf.at = before,
                None => return self.scan(tree, least, each),
            }
        }
        self.scan_path(path, each)
    }

    fn scan_path(
        &self,
        mut path: Path,
        each: &mut dyn FnMut(&Key, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        loop {
            let Some(Step { node, at, .. }) = path.last() else {
                return Ok(());
            };
            for i in *at..node.len() {
                if !self.with_cell(node, i, |key, value| each(key, value))?? {
                    return Ok(());
                }
            }
            if !self.next_leaf(&mut path)? {
                return Ok(());
            }
        }
    }

    /// Number of nodes of a tree. Reads its interior nodes. Of what is below a damaged node none
    /// counts.
    ///
    /// # Errors
    /// As [`Index::get_with`].
    pub fn count_nodes(&self, tree: &Tree) -> Result<u64> {
        match root_level(tree)? {
            Some(level) => self.count_below(&tree.ptr, level, &Bounds::default()),
            None => Ok(0),
        }
    }

    fn count_below(&self, ptr: &RawPtr, level: u8, bounds: &Bounds) -> Result<u64> {
        let Some(below) = level.checked_sub(1) else {
            return Ok(1);
        };
        let Ok(node) = sound(self.load(ptr, level), bounds)? else {
            return Ok(1);
        };
        if below == 0 {
            return Ok(1 + node.len() as u64);
        }
        let counts = (0..node.len()).map(|i| {
            let child = child(&node, i)?;
            self.count_below(&child, below, &bounds.of_child(&node, i))
        });
        counts.sum::<Result<u64>>().map(|below| below + 1)
    }

    /// Number of nodes of a tree that are younger than the birth `older`. Reads interior ones of them only:
    /// what is below an older node is older, too. Of what is below a damaged node none counts.
    ///
    /// # Errors
    /// As [`Index::get_with`].
    pub fn count_younger(&self, tree: &Tree, older: u64) -> Result<u64> {
        match root_level(tree)? {
            Some(level) => self.younger_below(&tree.ptr, level, &Bounds::default(), older),
            None => Ok(0),
        }
    }

    fn younger_below(&self, ptr: &RawPtr, level: u8, bounds: &Bounds, older: u64) -> Result<u64> {
        if ptr.birth.get() <= older {
            return Ok(0);
        }
        let Some(below) = level.checked_sub(1) else {
            return Ok(1);
        };
        let Ok(node) = sound(self.load(ptr, level), bounds)? else {
            return Ok(1);
        };
        let counts = (0..node.len()).map(|i| {
            let child = child(&node, i)?;
            self.younger_below(&child, below, &bounds.of_child(&node, i), older)
        });
        counts.sum::<Result<u64>>().map(|below| below + 1)
    }

    /// The path to the cell of `key`, or to where it would be inserted.
    fn descend(&self, tree: &Tree, key: &Key) -> Result<Option<Path>> {
        let Some(mut level) = root_level(tree)? else {
            return Ok(None);
        };
        let mut path = Path::with_capacity(tree.height as usize);
        let mut node = self.load_hot(&tree.ptr, level)?;
        let mut bounds = Bounds::default();
        loop {
            let at = match level {
                0 => node.search(key).unwrap_or_else(|i| i),
                _ => node.child_for(key),
            };
            let step = Step { node, bounds, at };
            let Some(below) = level.checked_sub(1) else {
                path.push(step);
                return Ok(Some(path));
            };
            level = below;
            let next = self.load_hot(&child(&step.node, at)?, level)?;
            bounds = step.bounds_of(&next)?;
            node = next;
            path.push(step);
        }
    }

    /// Moves the path to the first cell of the next leaf; `false` if there is none.
    fn next_leaf(&self, path: &mut Path) -> Result<bool> {
        path.pop();
        while let Some(mut step) = path.pop() {
            step.at += 1;
            if step.at == step.node.len() {
                continue;
            }
            let mut level = step.node.level();
            path.push(step);
            while let (Some(step), Some(below)) = (path.last(), level.checked_sub(1)) {
                let node = self.load(&child(&step.node, step.at)?, below)?;
                let bounds = step.bounds_of(&node)?;
                path.push(Step {
                    node,
                    bounds,
                    at: 0,
                });
                level = below;
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Calls `f` with the key and value of a leaf's cell.
    pub(super) fn with_cell<R>(
        &self,
        leaf: &Node,
        i: usize,
        f: impl FnOnce(&Key, &[u8]) -> R,
    ) -> Result<R> {
        let block = leaf.header().block.get();
        match (leaf.key(i), leaf.value(i)) {
            (Some(key), Some(CellValue::Inline(value))) => Ok(f(&key, value)),
            (Some(key), Some(CellValue::Overflow(address))) => {
                let value = self.large_value(block, &address, &mut |_| ())?;
                Ok(f(&key, &value))
            }
            _ => Err(no_cell(leaf, i)),
        }
    }

    /// The node at `ptr`, from the cache or from the device. The caller must check its keys against
    /// its bounds.
    pub(super) fn load(&self, ptr: &RawPtr, level: u8) -> Result<Arc<CachedNode>> {
        if let Some(node) = self.cache.get(ptr) {
            check_level(&node, level)?;
            return Ok(node);
        }
        let offset = self.offset_of(ptr.block.get(), "index pointer")?;
        let mut bytes = AlignedBuf::zeroed(NODE_SIZE);
        self.device.read_cached(offset, &mut bytes)?;
        let expected = Expected {
            ptr: *ptr,
            level,
            volume: self.volume,
        };
        let node = match Node::decode(Arc::from(&*bytes), &expected) {
            Ok(node) => node,
            // If it was read wrongly once, a cache of the host has it so.
            Err(_) => {
                self.device.read(offset, &mut bytes)?;
                Node::decode(Arc::from(&*bytes), &expected)?
            }
        };
        let node = CachedNode::new(ptr, node);
        self.cache.insert(node.clone());
        Ok(node)
    }

    /// As [`Self::load`], but prefers the instance in the hot table, because look-ups use the
    /// checked bits ([`CachedNode::set_within`]) of that instance.
    pub(super) fn load_hot(&self, ptr: &RawPtr, level: u8) -> Result<Arc<CachedNode>> {
        if level > 0
            && let Some(node) = self.cache.get_hot(ptr)
        {
            check_level(&node, level)?;
            return Ok(node);
        }
        self.load(ptr, level)
    }

    /// Reads the value at `address`, which is stored in the leaf at block `leaf`; calls `unit` with
    /// the first block of each overflow unit.
    pub(super) fn large_value(
        &self,
        leaf: u64,
        address: &RawOverflow,
        unit: &mut dyn FnMut(u64),
    ) -> Result<Vec<u8>> {
        let mut chain = Chain::new(leaf, address)?;
        while let Some(block) = chain.next() {
            let offset = self.offset_of(block, "large value pointer")?;
            let mut bytes = AlignedBuf::zeroed(NODE_SIZE);
            self.device.read(offset, &mut bytes)?;
            let whole = bytes
                .first_chunk::<UNIT_SIZE>()
                .ok_or_else(|| Error::corrupt(block, "large value", UNIT_SIZE, bytes.len()))?;
            chain.push(whole)?;
            unit(block);
        }
        Ok(chain.finish()?)
    }

    /// The offset of the node or unit at `block`, to which `what` leads.
    fn offset_of(&self, block: u64, what: &'static str) -> Result<u64> {
        let data = &self.data_blocks;
        let inside = block >= data.start && data.end.saturating_sub(NODE_BLOCKS) >= block;
        if !inside || !block.is_multiple_of(NODE_BLOCKS) {
            let expected = format!("a multiple of {NODE_BLOCKS} within {data:?}");
            return Err(Error::corrupt(block, what, expected, block));
        }
        Ok(block * BLOCK_SIZE as u64)
    }
}

impl Step {
    /// The bounds of `node`, the child on the path, after checking its keys against them.
    pub(super) fn bounds_of(&self, node: &Node) -> Result<Bounds> {
        let bounds = self.bounds.of_child(&self.node, self.at);
        if !self.node.is_within(self.at) {
            bounds.check(node)?;
            self.node.set_within(self.at);
        }
        Ok(bounds)
    }
}

fn check_level(node: &Node, level: u8) -> Result<()> {
    if node.level() == level {
        return Ok(());
    }
    let block = node.header().block.get();
    Err(Error::corrupt(
        block,
        "index node level",
        level,
        node.level(),
    ))
}

/// A node that was loaded, after checking its keys against its bounds, or how it is damaged.
pub(super) fn sound(
    loaded: Result<Arc<CachedNode>>,
    bounds: &Bounds,
) -> Result<Result<Arc<CachedNode>>> {
    match loaded.and_then(|node| bounds.check(&node).map(|()| node)) {
        Err(error) if !matches!(error, Error::Corrupt(_)) => Err(error),
        found => Ok(found),
    }
}

/// The level of a tree's root; `None` if the tree is empty.
pub(super) fn root_level(tree: &Tree) -> Result<Option<u8>> {
    if tree.height > MAX_HEIGHT {
        let block = tree.ptr.block.get();
        let expected = format!("at most {MAX_HEIGHT}");
        return Err(Error::corrupt(block, "index height", expected, tree.height));
    }
    Ok((tree.height as u8).checked_sub(1))
}

/// The pointer in cell `i` of an interior node.
pub(super) fn child(node: &Node, i: usize) -> Result<RawPtr> {
    node.child(i).ok_or_else(|| no_cell(node, i))
}

/// The error for a cell that does not exist.
pub(super) fn no_cell(node: &Node, i: usize) -> Error {
    let block = node.header().block.get();
    Error::corrupt(block, "index node", format!("cell {i}"), node.len())
}
