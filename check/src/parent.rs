//! Looks up in the parent of the root that is walked what the root inherits from it.
//!
//! A root has what it inherits at the places where its parent has it: a drop of the parent keeps what
//! it finds there, and frees the rest. Only the tops of inherited subtrees, and the values of leaves that
//! are the root's own, are looked up; what is below an inherited node is in the parent with the node.
//! Memory: the nodes of one path. Look-ups come in the order of keys, so most of them read nothing.
//!
//! Damage is found when the parent itself is walked; what lies behind it is taken as it is.

use std::sync::Arc;

use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::format::item::decode_extent_at;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::node::{CellValue, Expected, Node, RawOverflow};
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::root::RawRoot;

use crate::checked_volume::Volume;
use crate::given_up::Mapped;

/// The tree of a parent.
pub(crate) struct Parent<'a, 'd> {
    volume: &'a Volume<'d>,
    tree: RawRoot,
    /// The nodes that were read last, the root first, each with the pointer to it.
    path: Vec<(RawPtr, Node)>,
    /// The first failure of the device.
    failure: Option<Error>,
}

/// Where a descent ends.
enum Leaf {
    /// At this depth of the path.
    At(usize),
    /// The tree is empty.
    Nothing,
    /// A node cannot be read.
    Damaged,
}

impl<'a, 'd> Parent<'a, 'd> {
    pub(crate) fn new(volume: &'a Volume<'d>, tree: RawRoot) -> Self {
        Self {
            volume,
            tree,
            path: Vec::new(),
            failure: None,
        }
    }

    /// Ends the look-ups.
    ///
    /// # Errors
    /// The device failed during one.
    pub(crate) fn finish(self) -> Result<()> {
        self.failure.map_or(Ok(()), Err)
    }

    /// Whether the tree has the node at `ptr`, of this level, whose first key is `first`.
    pub(crate) fn has_node(&mut self, ptr: &RawPtr, level: u8, first: &Key) -> bool {
        let Some(top) = self.top() else {
            return false;
        };
        let Some(depth) = top.checked_sub(level) else {
            return false;
        };
        let mut at = self.tree.ptr;
        for above in 0..usize::from(depth) {
            let Some(node) = self.node(&at, (above, top)) else {
                return true;
            };
            match node.child(node.child_for(first)) {
                Some(child) => at = child,
                None => return true,
            }
        }
        at == *ptr
    }

    /// Whether the tree has this large value under this key.
    pub(crate) fn has_value(&mut self, key: &Key, value: &RawOverflow) -> bool {
        let depth = match self.leaf_of(key) {
            Leaf::At(depth) => depth,
            Leaf::Nothing => return false,
            Leaf::Damaged => return true,
        };
        let Some((_, leaf)) = self.path.get(depth) else {
            return true;
        };
        let found = leaf.search(key).ok().and_then(|i| leaf.value(i));
        found == Some(CellValue::Overflow(*value))
    }

    /// Whether each block of an extent is in the same place of the same file.
    pub(crate) fn has_extent(&mut self, extent: &Mapped) -> bool {
        let mut at = extent.at;
        let end = extent.at.saturating_add(extent.len);
        while at < end {
            let key = Key::new(extent.ino, Kind::Extent, at);
            let depth = match self.leaf_of(&key) {
                Leaf::At(depth) => depth,
                Leaf::Nothing => return false,
                Leaf::Damaged => return true,
            };
            let Some(found) = self.last_up_to(depth, &key) else {
                return true;
            };
            let same = |found: &Mapped| found.has(extent, at - extent.at);
            match found.filter(same) {
                Some(found) => at = found.at.saturating_add(found.len),
                None => return false,
            }
        }
        true
    }

    /// The last extent up to a key, which belongs to the leaf at this depth of the path; `None` if it
    /// is not known.
    fn last_up_to(&mut self, depth: usize, key: &Key) -> Option<Option<Mapped>> {
        let (_, leaf) = self.path.get(depth)?;
        let before = match leaf.search(key) {
            Ok(i) => Some(i),
            Err(behind) => behind.checked_sub(1),
        };
        if let Some(i) = before {
            return self.extent(leaf, i, key);
        }
        // It is the last item of the leaf before.
        let Some(bound) = self.before_leaf(depth, key) else {
            return Some(None);
        };
        let Leaf::At(depth) = self.leaf_of(&bound) else {
            return None;
        };
        let leaf = self.path.get(depth).map(|(_, leaf)| leaf);
        let last = leaf.and_then(|leaf| Some((leaf, leaf.len().checked_sub(1)?)));
        last.and_then(|(leaf, i)| self.extent(leaf, i, key))
    }

    /// The greatest key before the leaf at this depth, to which `key` belongs; `None` if no extent of
    /// the same file is before that leaf.
    fn before_leaf(&self, depth: usize, key: &Key) -> Option<Key> {
        let mut above = self.path.get(..depth)?.iter().rev();
        let least = above.find_map(|(_, node)| match node.child_for(key) {
            0 => None,
            i => node.key(i),
        })?;
        let offset = least.offset.checked_sub(1)?;
        let same = (least.object, least.kind) == (key.object, key.kind);
        same.then_some(Key { offset, ..least })
    }

    fn extent(&self, leaf: &Node, i: usize, key: &Key) -> Option<Option<Mapped>> {
        let found = leaf.key(i)?;
        if (found.object, found.kind) != (key.object, key.kind) {
            return Some(None);
        }
        let CellValue::Inline(value) = leaf.value(i)? else {
            return None;
        };
        let (raw, _) = decode_extent_at(found.offset, value, &self.volume.geometry).ok()?;
        Some(Some(Mapped::new(found.object, found.offset, &raw)))
    }

    /// The level of the tree's root; `None` if the tree is empty.
    fn top(&self) -> Option<u8> {
        u8::try_from(self.tree.height.get()).ok()?.checked_sub(1)
    }

    /// Goes to the leaf to which a key belongs.
    fn leaf_of(&mut self, key: &Key) -> Leaf {
        let Some(top) = self.top() else {
            return Leaf::Nothing;
        };
        let mut at = self.tree.ptr;
        for depth in 0..usize::from(top) {
            let child = match self.node(&at, (depth, top)) {
                Some(node) => node.child(node.child_for(key)),
                None => None,
            };
            match child {
                Some(child) => at = child,
                None => return Leaf::Damaged,
            }
        }
        match self.node(&at, (usize::from(top), top)) {
            Some(_) => Leaf::At(usize::from(top)),
            None => Leaf::Damaged,
        }
    }

    /// The node at `ptr`, which is at this depth of a tree whose root has the level `top`; `None` if it
    /// cannot be read.
    fn node(&mut self, ptr: &RawPtr, (depth, top): (usize, u8)) -> Option<&Node> {
        if self.path.get(depth).is_none_or(|(known, _)| known != ptr) {
            self.path.truncate(depth);
            let read = self.read(ptr, top.saturating_sub(depth as u8));
            let node = read.unwrap_or_else(|error| {
                self.failure.get_or_insert(error);
                None
            })?;
            self.path.push((*ptr, node));
        }
        self.path.get(depth).map(|(_, node)| node)
    }

    fn read(&self, ptr: &RawPtr, level: u8) -> Result<Option<Node>> {
        let block = ptr.block.get();
        if !self.volume.can_hold_node(block) {
            return Ok(None);
        }
        let bytes: Arc<[u8]> = Arc::from(&*self.volume.read(block, NODE_BLOCKS)?);
        let expected = Expected {
            ptr: *ptr,
            level,
            volume: self.volume.short_id(),
        };
        Ok(Node::decode(bytes, &expected).ok())
    }
}
