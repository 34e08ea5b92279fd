//! Invalid index trees with valid checksums: children shared by several nodes, keys out of order or
//! outside their parent's bounds, pointers of a node to itself, deep chains, values that share
//! units; and directory trees with cycles or shared directories.
//!
//! New nodes are written to blocks of zeros; the bitmaps are not updated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::format::checksum::crc;
use cairnfs_disk::format::key::{Key, Kind, MAIN_ROOT};
use cairnfs_disk::format::node::{CellValue, Expected, MAX_HEIGHT, NODE_HEADER, Node, NodeBuilder};
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::root::RawRoot;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use crate::base::Base;
use crate::image::Image;
use crate::layout::{ItemAt, Layout, Link};
use crate::random::Random;
use crate::seal;

/// An invalid shape of an index tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// Behind some key, several levels of nodes whose pointers all lead to the same child.
    SharedChild,
    /// Two pointers of a node are exchanged.
    SwappedChildren,
    /// One pointer of a node replaces another.
    RepeatedChild,
    /// The lower bound of a child is raised above its first key.
    RaisedBound,
    /// Two adjacent cells of a node are exchanged.
    Unordered,
    /// A pointer of a node leads to the node itself.
    OwnChild,
    /// Nodes with one child each above the tree, up to the maximum height or beyond.
    Chain,
    /// A large value has the units of another.
    SharedUnits,
    /// An extent has the blocks of another.
    SharedBlocks,
}

/// All shapes.
pub const SHAPES: [Shape; 9] = [
    Shape::SharedChild,
    Shape::SwappedChildren,
    Shape::RepeatedChild,
    Shape::RaisedBound,
    Shape::Unordered,
    Shape::OwnChild,
    Shape::Chain,
    Shape::SharedUnits,
    Shape::SharedBlocks,
];

/// Gives a base the shape at a random place. Returns a description and the image; `None` if the
/// base has no such place.
pub fn shaped(base: &Base, shape: Shape, random: &mut Random) -> Option<(String, Image)> {
    let mut forger = Forger::new(base);
    let how = match shape {
        Shape::SharedChild => {
            let keys: Vec<Key> = forger.main_items().map(|item| item.key).collect();
            let key = match random.below(3) {
                0 => Key::orphan(16),
                _ => *random.pick(&keys),
            };
            let height = 3 + random.below(MAX_HEIGHT as usize - 2) as u32;
            forger.shared_child(key, height, 2 + random.below(400) as u64)?
        }
        Shape::SwappedChildren => forger.children(random, |cells, i, j| {
            let ptr = cells[i].1;
            cells[i].1 = cells[j].1;
            cells[j].1 = ptr;
        })?,
        Shape::RepeatedChild => forger.children(random, |cells, i, j| cells[i].1 = cells[j].1)?,
        Shape::RaisedBound => forger.children(random, |cells, i, _| {
            cells[i].0.offset = cells[i].0.offset.saturating_add(1);
        })?,
        Shape::Unordered => forger.unordered(random)?,
        Shape::OwnChild => forger.own_child(random)?,
        Shape::Chain => forger.chain(2 + random.below(MAX_HEIGHT as usize) as u32),
        Shape::SharedUnits => forger.shared_units(random)?,
        Shape::SharedBlocks => forger.shared_blocks(random)?,
    };
    Some((how, forger.image))
}

/// A base with a tower of shared nodes behind `key`: `height` levels of `fan` pointers to one
/// child. The leaf below holds one item, that of the key if the base has it, otherwise one of one
/// byte. Only one of the paths to the leaf has bounds that contain the item.
pub fn tower(base: &Base, key: Key, height: u32, fan: u64) -> Image {
    let mut forger = Forger::new(base);
    forger.shared_child(key, height, fan).unwrap();
    forger.image
}

/// A base in which each entry called `b` refers to the directory of the entry `a` beside it, or to
/// the root if `circular` is set.
pub fn crossed(base: &Base, circular: bool) -> Image {
    let mut forger = Forger::new(base);
    let entries = forger.main_items().filter(|i| i.key.kind == Kind::DirIndex);
    let entries: Vec<ItemAt> = entries.copied().collect();
    let called = |name: u8| {
        let value = |item: &ItemAt| forger.value(*item);
        let named = entries.iter().filter(|item| value(item)[9..] == [name]);
        let by_dir = named.map(|item| (item.key.object, (*item, value(item))));
        by_dir.collect::<BTreeMap<_, _>>()
    };
    let (good, bad) = (called(b'a'), called(b'b'));
    for (dir, (item, _)) in bad {
        let child = if circular {
            1u64.to_le_bytes()
        } else {
            *good[&dir].1.first_chunk().unwrap()
        };
        forger.image.patch(item.node, item.at, &child);
        seal::node(&mut forger.image, &base.layout, item.node);
    }
    forger.image
}

struct Forger<'a> {
    layout: &'a Layout,
    image: Image,
    /// Units that are all zeros.
    free: Vec<u64>,
}

impl<'a> Forger<'a> {
    fn new(base: &'a Base) -> Self {
        let data = base
            .layout
            .geometry
            .data_start()
            .next_multiple_of(NODE_BLOCKS);
        let units = (data..base.image.blocks() - NODE_BLOCKS).step_by(NODE_BLOCKS as usize);
        let empty =
            |unit: &u64| !(*unit..unit + NODE_BLOCKS).any(|b| base.image.holds_something(b));
        Self {
            layout: &base.layout,
            image: base.image.clone(),
            free: units.filter(empty).collect(),
        }
    }

    fn volume(&self) -> u64 {
        let id = self.layout.superblock.uuid;
        u64::from_le_bytes(*id.first_chunk().unwrap())
    }

    /// The items of the files' tree.
    fn main_items(&self) -> impl Iterator<Item = &ItemAt> {
        let nodes = self.main_nodes();
        let items = self.layout.items.iter();
        items.filter(move |item| nodes.contains(&item.node))
    }

    /// The nodes of the files' tree. Other roots have nodes of their own, with the same keys.
    fn main_nodes(&self) -> BTreeSet<u64> {
        let (item, root) = self.root_item();
        let mut nodes = BTreeSet::new();
        if root.height.get() > 0 {
            nodes.insert(root.ptr.block.get());
        }
        loop {
            let known = nodes.len();
            let below = self.layout.nodes.iter().filter(|(_, links)| {
                let within = |link: &Link| match link {
                    Link::Node { node, .. } => *node != item.node && nodes.contains(node),
                    Link::Superblock => false,
                };
                links.iter().any(within)
            });
            let below: Vec<u64> = below.map(|(block, _)| *block).collect();
            nodes.extend(below);
            if nodes.len() == known {
                return nodes;
            }
        }
    }

    /// The root item of the files' tree.
    fn root_item(&self) -> (ItemAt, RawRoot) {
        let mut items = self.layout.items.iter();
        let main = Key::new(u64::from(MAIN_ROOT), Kind::Root, 0);
        let item = *items.find(|item| item.key == main).unwrap();
        (
            item,
            RawRoot::read_from_prefix(&self.value(item)).unwrap().0,
        )
    }

    /// The bytes in an item's cell.
    fn value(&self, item: ItemAt) -> Vec<u8> {
        let bytes = self.image.read(item.node, NODE_BLOCKS);
        bytes[item.at..item.at + item.len].to_vec()
    }

    /// Makes the tree at `ptr` the files' tree.
    fn plant(&mut self, ptr: RawPtr, height: u32) {
        let (item, mut root) = self.root_item();
        root.ptr = ptr;
        root.height = U32::new(height);
        self.image.patch(item.node, item.at, root.as_bytes());
        seal::node(&mut self.image, self.layout, item.node);
    }

    /// Writes a node to a free unit.
    fn write(&mut self, level: u8, builder: &mut NodeBuilder) -> RawPtr {
        let block = self.free.pop().unwrap();
        let birth = self.root_item().1.ptr.birth.get();
        let (bytes, ptr) = builder.finish(level, block, birth, self.volume());
        self.image.write(block, &bytes);
        ptr
    }

    fn interior(&mut self, level: u8, cells: &[(Key, RawPtr)]) -> RawPtr {
        let mut builder = NodeBuilder::new();
        let fit = |(key, ptr): &(Key, RawPtr)| builder.push_child(key, ptr);
        assert!(cells.iter().all(fit));
        self.write(level, &mut builder)
    }

    /// The node of the tree at `block`, decoded.
    fn node(&self, block: u64) -> Node {
        let bytes: Arc<[u8]> = self.image.read(block, NODE_BLOCKS).into();
        let expected = Expected {
            ptr: RawPtr {
                block: block.into(),
                birth: u64::from_le_bytes(*bytes[16..].first_chunk().unwrap()).into(),
                crc: crc(&bytes).into(),
            },
            level: bytes[4],
            volume: self.volume(),
        };
        Node::decode(bytes, &expected).unwrap()
    }

    /// Puts nodes of one child each above the files' tree, up to `height` levels.
    fn chained(&mut self, height: u32) -> (Key, RawPtr) {
        let (_, root) = self.root_item();
        let key = self.node(root.ptr.block.get()).key(0).unwrap();
        let levels = root.height.get()..height;
        let ptr = levels.fold(root.ptr, |ptr, level| {
            self.interior(level as u8, &[(key, ptr)])
        });
        (key, ptr)
    }

    /// A tree of `height` levels with as many of the items before `key` as fit into a leaf, so that
    /// a scan from there continues to what is behind.
    fn before(&mut self, key: &Key, height: u8) -> Option<(Key, RawPtr)> {
        let nodes = self.main_nodes().into_iter().map(|block| self.node(block));
        let mut leaves: Vec<Node> = nodes.filter(|node| node.level() == 0).collect();
        leaves.sort_by_key(|leaf| leaf.key(0));
        let mut builder = NodeBuilder::new();
        for leaf in &leaves {
            let keys = (0..leaf.len()).map(|i| (i, leaf.key(i).unwrap()));
            for (i, k) in keys.take_while(|(_, k)| k < key) {
                builder.push(&k, leaf.value(i).unwrap());
            }
        }
        let first = builder.first_key()?;
        let leaf = self.write(0, &mut builder);
        let chain = (1..height).fold(leaf, |ptr, level| self.interior(level, &[(first, ptr)]));
        Some((first, chain))
    }

    fn shared_child(&mut self, key: Key, height: u32, fan: u64) -> Option<String> {
        let (first, left) = self.before(&key, height as u8 - 1)?;
        let mut builder = NodeBuilder::new();
        let known = self.main_items().find(|item| item.key == key);
        let value = known.map_or(vec![1], |item| self.value(*item));
        assert!(builder.push(&key, CellValue::Inline(&value)));
        let mut child = self.write(0, &mut builder);
        let bounds = |i| Key::new(key.object, key.kind, key.offset.saturating_add(i));
        let mut keys: Vec<Key> = (0..fan).map(bounds).collect();
        keys.dedup();
        for level in 1..height - 1 {
            let cells: Vec<_> = keys.iter().map(|key| (*key, child)).collect();
            child = self.interior(level as u8, &cells);
        }
        let mut cells = vec![(first, left)];
        cells.extend(keys.iter().filter(|k| **k > first).map(|k| (*k, child)));
        let root = self.interior(height as u8 - 1, &cells);
        self.plant(root, height);
        Some(format!(
            "{height} levels of {fan} pointers to one child, from {key:?} on"
        ))
    }

    /// Changes two different cells of an interior node; `change` gets their indexes.
    fn children(
        &mut self,
        random: &mut Random,
        change: impl FnOnce(&mut Vec<(Key, RawPtr)>, usize, usize),
    ) -> Option<String> {
        let nodes = self.layout.nodes.keys().copied();
        let wide = nodes.filter(|b| {
            let node = self.node(*b);
            node.level() > 0 && node.len() > 1
        });
        let block = *random.pick(&some(wide.collect())?);
        let node = self.node(block);
        let cell = |i| (node.key(i).unwrap(), node.child(i).unwrap());
        let mut cells: Vec<_> = (0..node.len()).map(cell).collect();
        let i = random.below(cells.len());
        let j = (i + 1 + random.below(cells.len() - 1)) % cells.len();
        change(&mut cells, i, j);
        if !cells.is_sorted_by(|a, b| a.0 < b.0) {
            return None;
        }
        let mut builder = NodeBuilder::new();
        assert!(cells.iter().all(|(key, ptr)| builder.push_child(key, ptr)));
        let birth = node.header().birth.get();
        let (bytes, _) = builder.finish(node.level(), block, birth, self.volume());
        self.image.write(block, &bytes);
        seal::node(&mut self.image, self.layout, block);
        Some(format!(
            "node {block}: cells {i} and {j} of {}",
            cells.len()
        ))
    }

    fn unordered(&mut self, random: &mut Random) -> Option<String> {
        let nodes = self.layout.nodes.keys().copied();
        let wide = nodes.filter(|b| self.node(*b).len() > 1);
        let block = *random.pick(&some(wide.collect())?);
        let i = random.below(self.node(block).len() - 1);
        let at = NODE_HEADER + 2 * i;
        let bytes = self.image.read(block, NODE_BLOCKS);
        let exchanged = [&bytes[at + 2..at + 4], &bytes[at..at + 2]].concat();
        self.image.patch(block, at, &exchanged);
        seal::node(&mut self.image, self.layout, block);
        Some(format!("node {block}: cells {i} and {} exchanged", i + 1))
    }

    /// No node can contain its own checksum, but readers may check levels first, or use a cache.
    fn own_child(&mut self, random: &mut Random) -> Option<String> {
        let (_, root) = self.root_item();
        let key = self.node(root.ptr.block.get()).key(0)?;
        let height = root.height.get() + 1;
        let block = *self.free.last()?;
        let own = RawPtr {
            block: block.into(),
            ..root.ptr
        };
        let behind = Key::orphan(random.number() >> 8);
        let level = height as u8 - 1;
        let ptr = self.interior(level, &[(key, root.ptr), (behind, own)]);
        self.plant(ptr, height);
        Some(format!("node {block}: its own child from {behind:?} on"))
    }

    fn chain(&mut self, height: u32) -> String {
        let height = height.max(self.root_item().1.height.get() + 1);
        let (_, ptr) = self.chained(height);
        self.plant(ptr, height);
        format!("a tree of {height} levels, one child each")
    }

    fn shared_units(&mut self, random: &mut Random) -> Option<String> {
        let large = some(self.layout.large.clone())?;
        let (from, to) = (random.pick(&large), random.pick(&large));
        Some(self.copy_value(from.cell, to.cell))
    }

    fn shared_blocks(&mut self, random: &mut Random) -> Option<String> {
        let extents = self.main_items().filter(|i| i.key.kind == Kind::Extent);
        let extents = some(extents.copied().collect())?;
        let from = *random.pick(&extents);
        let alike: Vec<_> = extents.iter().filter(|i| i.len == from.len).collect();
        let to = **random.pick(&alike);
        Some(self.copy_value(from, to))
    }

    /// Gives an item the value of another one of the same length.
    fn copy_value(&mut self, from: ItemAt, to: ItemAt) -> String {
        self.image.patch(to.node, to.at, &self.value(from));
        seal::node(&mut self.image, self.layout, to.node);
        format!("{:?} has the value of {:?}", to.key, from.key)
    }
}

/// The list, unless it is empty.
fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
