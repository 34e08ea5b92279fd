//! Walks a tree in key order and checks nodes and large values.
//!
//! Unreadable keys become a hole. No block is read twice as a node or unit, and the level decreases
//! with each step, so a walk terminates whatever the device holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairnfs_disk::error::Result;
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::{CellValue, Expected, Node, RawOverflow};
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::root::RawRoot;
use cairnfs_disk::format::{MAX_VALUE, NODE_BLOCKS, NODE_SIZE, checksum};

use crate::blocks::BlockSet;
use crate::checked_volume::Volume;
use crate::codes;
use crate::holes::KeyRange;
use crate::parent::Parent;
use crate::report::{Finding, Ledger};
use crate::visit::{Inherited, Item, Visitor};

/// Data bytes in a unit of a large value; the block number of the next unit precedes them.
const UNIT_DATA: usize = NODE_SIZE - 8;

/// Walks trees. All trees of a volume use the same walker, parents before children, so that it
/// finds blocks used twice. A tree may contain a node of another one only if it inherits the node,
/// and it must then be the same node.
pub(crate) struct Walker<'a, 'd> {
    volume: &'a Volume<'d>,
    /// Greatest allowed birth of nodes and units.
    youngest: u64,
    /// Blocks of nodes and units so far.
    pub(crate) used: BlockSet,
    /// What the tree that is being walked inherits.
    inherited: Inherited,
    /// The tree that it inherits that from.
    parent: Option<Parent<'a, 'd>>,
    /// Whether the walk is below an inherited node.
    within_inherited: bool,
    /// Blocks of nodes and units of the trees walked before.
    before: BlockSet,
    /// Blocks of nodes and units of this tree.
    own: BlockSet,
    /// First blocks of the large values so far, with their births.
    births: BTreeMap<u64, u64>,
    /// Number of nodes of this tree.
    pub(crate) nodes: u64,
}

impl<'a, 'd> Walker<'a, 'd> {
    /// `youngest` is the greatest birth that the index can have. A crash between the steps of a merge
    /// leaves nodes younger than the superblock's sequence, but none younger than the log's.
    pub(crate) fn new(volume: &'a Volume<'d>, youngest: u64) -> Self {
        Self {
            volume,
            youngest,
            used: BlockSet::new(&volume.geometry),
            inherited: Inherited::default(),
            parent: None,
            within_inherited: false,
            before: BlockSet::new(&volume.geometry),
            own: BlockSet::new(&volume.geometry),
            births: BTreeMap::new(),
            nodes: 0,
        }
    }

    /// Begins the tree of another root, which inherits from its parent, a root with this tree; `youngest`
    /// is the greatest birth that it can have.
    pub(crate) fn begin_root(
        &mut self,
        inherited: Inherited,
        parent: Option<RawRoot>,
        youngest: u64,
    ) {
        self.parent = parent.map(|tree| Parent::new(self.volume, tree));
        self.within_inherited = false;
        let own = std::mem::replace(&mut self.own, BlockSet::new(&self.volume.geometry));
        self.before.add(&own);
        (self.inherited, self.youngest) = (inherited, youngest);
        self.nodes = 0;
    }

    /// Ends the tree of a root.
    ///
    /// # Errors
    /// The device failed when something was looked up in the parent.
    pub(crate) fn end_root(&mut self) -> Result<()> {
        self.parent.take().map_or(Ok(()), Parent::finish)
    }

    /// Takes the four blocks of a node or unit; the error says why the tree cannot have it.
    fn take(&mut self, block: u64, birth: u64) -> std::result::Result<(), &'static str> {
        self.used.insert(block, NODE_BLOCKS);
        if self.own.insert(block, NODE_BLOCKS).is_some() {
            return Err("used twice by the index");
        }
        match (self.inherited.has(birth), self.before.has(block)) {
            (true, false) => Err("inherited from a root that does not have it"),
            (false, true) => Err("used by another root, which it was not inherited from"),
            _ => Ok(()),
        }
    }

    /// Walks the tree at `ptr`; a tree of height 0 is empty.
    pub(crate) fn walk(
        &mut self,
        ptr: &RawPtr,
        height: u32,
        visitor: &mut dyn Visitor,
        ledger: &mut Ledger<'_>,
    ) -> Result<()> {
        match u8::try_from(height).ok().and_then(|h| h.checked_sub(1)) {
            Some(level) => self.node(ptr, level, KeyRange::ALL, visitor, ledger),
            None => Ok(()),
        }
    }

    fn node(
        &mut self,
        ptr: &RawPtr,
        level: u8,
        range: KeyRange,
        visitor: &mut dyn Visitor,
        ledger: &mut Ledger<'_>,
    ) -> Result<()> {
        let node = self.load(ptr, level, ledger)?;
        let Some(node) = node.filter(|node| in_order(node, &range, ledger)) else {
            return visitor.hole(range, ledger);
        };
        let outside = !self.within_inherited;
        if outside && self.inherited.has(ptr.birth.get()) {
            self.check_place(ptr, level, &node, ledger);
            self.within_inherited = true;
        }
        let visited = self.below(&node, level, range, visitor, ledger);
        self.within_inherited &= !outside;
        visited
    }

    /// Checks that an inherited node is in the parent's tree.
    fn check_place(&mut self, ptr: &RawPtr, level: u8, node: &Node, ledger: &mut Ledger<'_>) {
        if let (Some(parent), Some(first)) = (&mut self.parent, node.key(0))
            && !parent.has_node(ptr, level, &first)
        {
            let message = "inherited from a parent that does not have it";
            ledger.add(Finding::new(codes::BLOCK_SHARED, message).at(ptr.block.get()));
        }
    }

    fn below(
        &mut self,
        node: &Node,
        level: u8,
        range: KeyRange,
        visitor: &mut dyn Visitor,
        ledger: &mut Ledger<'_>,
    ) -> Result<()> {
        ledger.stats().index_nodes += 1;
        self.nodes += 1;
        let nodes = ledger.stats().index_nodes;
        ledger.progress("index", nodes, 0);
        if level == 0 {
            return self.leaf(node, visitor, ledger);
        }
        for i in 0..node.len() {
            let child = KeyRange {
                low: node.key(i).unwrap_or(range.low),
                high: node.key(i + 1).or(range.high),
            };
            if let Some(ptr) = node.child(i) {
                self.node(&ptr, level - 1, child, visitor, ledger)?;
            }
        }
        Ok(())
    }

    /// Reads and checks a node; `None` if it is unusable.
    fn load(&mut self, ptr: &RawPtr, level: u8, ledger: &mut Ledger<'_>) -> Result<Option<Node>> {
        let block = ptr.block.get();
        if !self.volume.can_hold_node(block) {
            let message = format!("no index node can lie at block {block}");
            ledger.add(Finding::new(codes::NODE_POINTER, message).at(block));
            return Ok(None);
        }
        if let Err(message) = self.take(block, ptr.birth.get()) {
            ledger.add(Finding::new(codes::BLOCK_SHARED, message).at(block));
            return Ok(None);
        }
        let bytes: Arc<[u8]> = Arc::from(&*self.volume.read(block, NODE_BLOCKS)?);
        let expected = Expected {
            ptr: *ptr,
            level,
            volume: self.volume.short_id(),
        };
        match Node::decode(bytes, &expected) {
            Ok(node) => {
                self.check_birth(ptr.birth.get(), block, ledger);
                Ok(Some(node))
            }
            Err(c) => {
                let code = match c.what {
                    "index node checksum" => codes::NODE_CHECKSUM,
                    "index node identity" => codes::NODE_IDENTITY,
                    _ => codes::NODE_LAYOUT,
                };
                ledger.add(Finding::corruption(code, &c));
                Ok(None)
            }
        }
    }

    fn check_birth(&self, birth: u64, block: u64, ledger: &mut Ledger<'_>) {
        let youngest = self.youngest;
        if birth > youngest {
            let message = format!("born in context {birth}, none can be behind {youngest}");
            ledger.add(Finding::new(codes::NODE_BIRTH, message).at(block));
        }
    }

    fn leaf(
        &mut self,
        node: &Node,
        visitor: &mut dyn Visitor,
        ledger: &mut Ledger<'_>,
    ) -> Result<()> {
        for i in 0..node.len() {
            let (Some(key), Some(value)) = (node.key(i), node.value(i)) else {
                continue;
            };
            let large;
            let value = match value {
                CellValue::Inline(value) => value,
                CellValue::Overflow(at) => match self.overflow(&key, &at, ledger)? {
                    Some(value) => {
                        large = value;
                        &large
                    }
                    None => {
                        visitor.hole(KeyRange::one(key), ledger)?;
                        continue;
                    }
                },
            };
            let item = Item {
                key,
                value,
                block: Some(node.header().block.get()),
                birth: Some(node.header().birth.get()),
                logged: false,
            };
            visitor.item(&item, ledger)?;
        }
        Ok(())
    }

    /// Reads a large value; `None` if it is unusable.
    fn overflow(
        &mut self,
        key: &Key,
        at: &RawOverflow,
        ledger: &mut Ledger<'_>,
    ) -> Result<Option<Vec<u8>>> {
        let first = at.block.get();
        let len = (at.len.get() as usize).min(MAX_VALUE);
        let mut value = Vec::with_capacity(len.next_multiple_of(UNIT_DATA));
        let (mut next, mut crc) = (first, 0);
        for _ in 0..len.div_ceil(UNIT_DATA) {
            let taken = if self.volume.can_hold_node(next) {
                self.take(next, at.birth.get())
            } else {
                Err("outside the data area or not aligned")
            };
            if let Err(why) = taken {
                let message = format!(
                    "no unit of the value of {key:?} can lie at block {next}, which is {why}"
                );
                ledger.add(Finding::new(codes::OVERFLOW_CHAIN, message).at(first));
                return Ok(None);
            }
            ledger.stats().overflow_units += 1;
            let unit = self.volume.read(next, NODE_BLOCKS)?;
            crc = checksum::crc_append(crc, &unit);
            let Some((link, data)) = unit.split_first_chunk::<8>() else {
                return Ok(None);
            };
            next = u64::from_le_bytes(*link);
            value.extend_from_slice(data);
        }
        if next != 0 {
            let message = format!("the value of {key:?} goes on at block {next} behind its end");
            ledger.add(Finding::new(codes::OVERFLOW_CHAIN, message).at(first));
            return Ok(None);
        }
        if crc != at.crc.get() {
            let message = format!(
                "value of {key:?}: expected {:08x}, found {crc:08x}",
                at.crc.get()
            );
            ledger.add(Finding::new(codes::OVERFLOW_CHECKSUM, message).at(first));
            return Ok(None);
        }
        self.check_birth(at.birth.get(), first, ledger);
        if !self.within_inherited
            && self.inherited.has(at.birth.get())
            && let Some(parent) = &mut self.parent
            && !parent.has_value(key, at)
        {
            let message = format!("the value of {key:?} is inherited, and not in the parent");
            ledger.add(Finding::new(codes::BLOCK_SHARED, message).at(first));
        }
        let birth = *self.births.entry(first).or_insert(at.birth.get());
        if birth != at.birth.get() {
            let message = format!(
                "the value of {key:?} is born in context {}, in another root in {birth}",
                at.birth
            );
            ledger.add(Finding::new(codes::NODE_BIRTH, message).at(first));
        }
        value.truncate(len);
        Ok(Some(value))
    }
}

/// Whether the keys of a node, which ascend, are within the range that its parent gives.
fn in_order(node: &Node, range: &KeyRange, ledger: &mut Ledger<'_>) -> bool {
    let ends = [0, node.len().saturating_sub(1)].into_iter();
    let mut keys = ends.filter_map(|i| node.key(i));
    let Some(key) = keys.find(|key| !range.contains(key)) else {
        return true;
    };
    let message = format!("{key:?} lies outside the bounds of its node, {range:?}");
    let block = node.header().block.get();
    ledger.add(Finding::new(codes::NODE_ORDER, message).at(block));
    false
}
