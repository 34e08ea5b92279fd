//! Packing a stream of cells into nodes: how full they become, where they are cut.
//!
//! Pure: uses the format only. A [`PackedCells`] is a sequence of cells in key order, of any size. A
//! [`Packer`] gets the cells of one level, and a cut wherever a node of the old tree ended; it
//! gives back the runs to make nodes of, each of which fits into one, in key order. It never holds
//! more than about three nodes.

use std::ops::Range;
use std::sync::Arc;

use crate::format::NODE_SIZE;
use crate::format::key::{KEY_LEN, Key};
use crate::format::node::{
    NODE_HEADER, NewCell, NodePlace, RawCell, cell_size, common_prefix, strip_zeros, write_node,
};
use crate::format::superblock::RawPtr;

/// A run of cells larger than this gives a full node away at once. What is left then, and what is
/// split in two at a cut, makes nodes of at least about half the size.
const OVERFULL: usize = NODE_SIZE + NODE_SIZE / 2;
/// A node smaller than this is joined with a neighbour if it can be.
const SMALL: usize = NODE_SIZE / 4;
/// Neighbours that are both rewritten are joined if they fill no more than this.
const COMFORTABLE: usize = NODE_SIZE / 4 * 3;

/// A node of at least this size is as good as full.
pub(super) const FULL: usize = NODE_SIZE / 8 * 7;

/// Cells of a node of inode items, about.
const USUAL_CELLS: usize = 256;

/// Where a cell comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It stands in the old tree as it is.
    Kept,
    /// Its value or child is new, at a place among other cells.
    Changed,
    /// It is new and stands behind all others, so more are likely to follow it.
    Appended,
}

#[derive(Debug)]
struct Cell {
    key: [u8; KEY_LEN],
    stripped: usize,
    value: Range<usize>,
    overflow: bool,
    origin: Origin,
}

impl Cell {
    fn size(&self, prefix: usize) -> usize {
        cell_size(self.stripped, prefix, self.value.len())
    }
}

/// Cells in key order.
#[derive(Debug, Default)]
pub(super) struct PackedCells {
    cells: Vec<Cell>,
    values: Vec<u8>,
    prefix: usize,
    used: usize,
}

impl PackedCells {
    /// Whether there is no cell.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Bytes of a node with these cells.
    pub fn size(&self) -> usize {
        NODE_HEADER + self.used
    }

    /// Key of the first cell.
    pub fn first_key(&self) -> Option<Key> {
        Key::decode(&self.cells.first()?.key)
    }

    /// Key of the last cell.
    fn last_key(&self) -> Option<Key> {
        Key::decode(&self.cells.last()?.key)
    }

    /// The last cell's value and origin.
    pub fn last(&self) -> Option<(&[u8], Origin)> {
        let cell = self.cells.last()?;
        Some((self.values.get(cell.value.clone())?, cell.origin))
    }

    /// Takes the last cell away.
    pub fn pop(&mut self) {
        if let Some(cell) = self.cells.pop() {
            self.used -= cell.size(self.prefix);
            self.values.truncate(cell.value.start);
        }
    }

    /// Makes room for as much as there usually is, at once.
    fn reserve(&mut self) {
        self.cells.reserve(USUAL_CELLS);
        self.values.reserve(OVERFULL);
    }

    /// Adds a cell behind all others.
    pub fn push(&mut self, cell: &RawCell<'_>, origin: Origin) {
        let prefix = self
            .cells
            .first()
            .map_or(KEY_LEN, |f| common_prefix(&f.key, &cell.key));
        // The keys ascend, so what the first and the last have in common, all have.
        if prefix != self.prefix {
            self.prefix = prefix;
            self.used = self.cells.iter().map(|c| c.size(prefix)).sum();
        }
        if self.cells.is_empty() {
            self.reserve();
        }
        let start = self.values.len();
        self.values.extend_from_slice(cell.value);
        let cell = Cell {
            key: cell.key,
            stripped: strip_zeros(&cell.key).len(),
            value: start..self.values.len(),
            overflow: cell.overflow,
            origin,
        };
        self.used += cell.size(prefix);
        self.cells.push(cell);
    }

    /// Adds the cells of `other`, which all stand behind these.
    pub fn append(&mut self, other: &PackedCells) {
        for (cell, origin) in other.cells(0..other.cells.len()) {
            self.push(&cell, origin);
        }
    }

    fn cells(&self, range: Range<usize>) -> impl Iterator<Item = (RawCell<'_>, Origin)> {
        let cells = self.cells.get(range).unwrap_or_default();
        cells.iter().map(|c| {
            let raw = RawCell {
                key: c.key,
                value: self.values.get(c.value.clone()).unwrap_or_default(),
                overflow: c.overflow,
            };
            (raw, c.origin)
        })
    }

    /// Bytes of a node with these cells and those of `other`, which all stand behind these.
    pub fn size_with(&self, other: &PackedCells) -> usize {
        let prefix = match (self.cells.first(), other.cells.last()) {
            (Some(a), Some(b)) => common_prefix(&a.key, &b.key),
            _ => return self.size().max(other.size()),
        };
        let cells = self.cells.iter().chain(&other.cells);
        NODE_HEADER + cells.map(|c| c.size(prefix)).sum::<usize>()
    }

    /// How many cells from the first on fit into a node.
    fn fitting(&self) -> usize {
        let Some(first) = self.cells.first() else {
            return 0;
        };
        let (mut prefix, mut used) = (KEY_LEN, 0);
        for (i, cell) in self.cells.iter().enumerate() {
            let shared = common_prefix(&first.key, &cell.key);
            if shared != prefix {
                prefix = shared;
                let before = self.cells.get(..i).unwrap_or_default();
                used = before.iter().map(|c| c.size(prefix)).sum();
            }
            used += cell.size(prefix);
            if NODE_HEADER + used > NODE_SIZE {
                return i;
            }
        }
        self.cells.len()
    }

    /// How many cells from the first on fill half of what all fill.
    fn half(&self) -> usize {
        let mut sum = 0;
        let before = |cell: &&Cell| {
            sum += cell.size(self.prefix);
            sum <= self.used / 2
        };
        self.cells.iter().take_while(before).count()
    }

    /// Takes the first `n` cells away, at least one.
    fn take_front(&mut self, n: usize) -> PackedCells {
        let n = n.clamp(1, self.cells.len().max(1)).min(self.cells.len());
        let start = self
            .cells
            .get(n)
            .map_or(self.values.len(), |c| c.value.start);
        let values = self.values.get(start..).unwrap_or_default();
        let moved = self.cells.drain(n..).map(|cell| Cell {
            value: cell.value.start - start..cell.value.end - start,
            ..cell
        });
        let mut rest = PackedCells::default();
        rest.reserve();
        rest.cells.extend(moved);
        rest.values.extend_from_slice(values);
        self.values.truncate(start);
        rest.measure();
        std::mem::swap(self, &mut rest);
        rest.measure();
        rest
    }

    /// Computes the prefix and the size anew.
    fn measure(&mut self) {
        let ends = (self.cells.first(), self.cells.last());
        self.prefix = match ends {
            (Some(first), Some(last)) => common_prefix(&first.key, &last.key),
            _ => 0,
        };
        self.used = self.cells.iter().map(|c| c.size(self.prefix)).sum();
    }

    /// A node with these cells, and its address; `None` if they do not fit into one.
    pub fn build(&self, place: &NodePlace) -> Option<(Arc<[u8]>, RawPtr)> {
        let cells = self.cells.iter().map(|cell| NewCell {
            key: &cell.key,
            stripped: cell.stripped,
            value: self.values.get(cell.value.clone()).unwrap_or_default(),
            overflow: cell.overflow,
        });
        let prefix = common_prefix(&self.cells.first()?.key, &self.cells.last()?.key);
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, NODE_SIZE).collect();
        let ptr = write_node(Arc::get_mut(&mut bytes)?, place, prefix, cells)?;
        Some((bytes, ptr))
    }
}

fn is_something(run: &PackedCells) -> bool {
    !run.is_empty()
}

/// Cuts the cells of one level into nodes.
#[derive(Debug, Default)]
pub(super) struct Packer {
    /// A node of good size that waits for a small one behind it.
    ready: PackedCells,
    /// What came since; after a cut nothing, or a small rest that the next cells join.
    open: PackedCells,
    /// Nodes are filled wherever those of the old tree ended.
    dense: bool,
}

impl Packer {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.open.is_empty()
    }

    /// From here on nodes are filled, and what is left at a cut goes into the next one.
    pub fn make_dense(&mut self) {
        self.dense = true;
    }

    /// Whether dense cells wait that do not fill a node.
    pub fn has_loose_rest(&self) -> bool {
        self.dense && !self.open.is_empty() && self.open.size() < FULL
    }

    /// Number of cells that wait.
    pub fn len(&self) -> usize {
        self.ready.len() + self.open.len()
    }

    /// The last cell's value and origin.
    pub fn last(&self) -> Option<(&[u8], Origin)> {
        self.open.last().or_else(|| self.ready.last())
    }

    /// The same with its key, if it came since the last cut: only then can it be taken away.
    pub fn newest(&self) -> Option<(Option<Key>, &[u8], Origin)> {
        let (value, origin) = self.open.last()?;
        Some((self.open.last_key(), value, origin))
    }

    /// Adds a cell; then [`Packer::overfull`] is to be called until there is nothing to write.
    pub fn push(&mut self, cell: &RawCell<'_>, origin: Origin) {
        self.open.push(cell, origin);
    }

    /// Takes the newest cell away.
    pub fn pop(&mut self) {
        self.open.pop();
    }

    /// What must be written before more cells come.
    pub fn overfull(&mut self) -> Option<PackedCells> {
        if self.open.size() <= OVERFULL {
            None
        } else if !self.ready.is_empty() {
            Some(std::mem::take(&mut self.ready))
        } else {
            Some(self.open.take_front(self.open.fitting()))
        }
    }

    /// A node of the old tree ends here: gives what is to be written, at most two runs.
    pub fn cut(&mut self) -> impl Iterator<Item = PackedCells> + use<> {
        let mut out = [None, None];
        if self.open.size() > NODE_SIZE {
            let last = self.open.last();
            let appended = self.dense || matches!(last, Some((_, Origin::Appended)));
            let front = if appended {
                self.open.fitting()
            } else {
                self.open.half()
            };
            out = [
                Some(std::mem::take(&mut self.ready)),
                Some(self.open.take_front(front)),
            ];
        }
        if self.dense {
            return out.into_iter().flatten().filter(is_something);
        }
        let small = self.open.size() < SMALL;
        let room = if small { NODE_SIZE } else { COMFORTABLE };
        if !self.ready.is_empty() && self.ready.size_with(&self.open) <= room {
            self.ready.append(&std::mem::take(&mut self.open));
        } else if !small {
            let ready = std::mem::replace(&mut self.ready, std::mem::take(&mut self.open));
            if !ready.is_empty() {
                out = [Some(ready), None];
            }
        }
        out.into_iter().flatten().filter(is_something)
    }

    /// The small rest that would be glad of a neighbour; to be asked after a cut.
    pub fn small(&self) -> Option<&PackedCells> {
        (!self.open.is_empty()).then_some(&self.open)
    }

    /// Whether a node waits before the small rest.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Joins a neighbour's cells, which all stand behind, with the small rest.
    pub fn join_right(&mut self, neighbour: &PackedCells) {
        self.open.append(neighbour);
    }

    /// Joins a neighbour's cells, which all stand before, with the small rest.
    pub fn join_left(&mut self, mut neighbour: PackedCells) {
        neighbour.append(&self.open);
        self.open = neighbour;
    }

    /// All that waits, to be written now; to be called after a cut.
    pub fn drain(&mut self) -> impl Iterator<Item = PackedCells> + use<> {
        let all = [
            std::mem::take(&mut self.ready),
            std::mem::take(&mut self.open),
        ];
        all.into_iter().filter(|run| !run.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push(packer: &mut Packer, i: u64, len: usize, origin: Origin, out: &mut Vec<PackedCells>) {
        let cell = RawCell {
            key: Key::inode(i).encode(),
            value: &vec![7; len],
            overflow: false,
        };
        packer.push(&cell, origin);
        out.extend(std::iter::from_fn(|| packer.overfull()));
    }

    fn finish(mut packer: Packer, mut out: Vec<PackedCells>) -> Vec<usize> {
        out.extend(packer.cut());
        out.extend(packer.drain());
        out.iter().map(PackedCells::size).collect()
    }

    #[test]
    fn appended_cells_fill_nodes_and_others_split_evenly() {
        for (origin, least) in [(Origin::Appended, 16_000), (Origin::Changed, 9_000)] {
            let (mut packer, mut out) = (Packer::default(), Vec::new());
            for i in 0..200 {
                push(&mut packer, i, 90, origin, &mut out);
            }
            let sizes = finish(packer, out);
            assert_eq!(sizes.len(), 2);
            assert!(
                sizes[0] >= least && (sizes[0] < 11_000 || least > 11_000),
                "{sizes:?}"
            );
        }
    }

    #[test]
    fn a_small_node_joins_the_one_before() {
        let (mut packer, mut out) = (Packer::default(), Vec::new());
        for i in 0..100 {
            push(&mut packer, i, 90, Origin::Kept, &mut out);
        }
        out.extend(packer.cut());
        for i in 100..130 {
            push(&mut packer, i, 90, Origin::Kept, &mut out);
        }
        assert_eq!(finish(packer, out).len(), 1);
    }

    proptest! {
        #[test]
        fn every_cell_comes_out_once_in_order_in_nodes_that_fit(
            cells in proptest::collection::vec(
                (0usize..4097, 1u64..1 << 40, 0u8..40, any::<bool>()), 1..300)
        ) {
            let (mut packer, mut out) = (Packer::default(), Vec::new());
            let (mut key, mut want) = (0, Vec::new());
            for (len, step, cut, appended) in cells {
                key += step;
                let len = if cut % 2 == 0 { len } else { len % 64 };
                let origin = if appended { Origin::Appended } else { Origin::Kept };
                push(&mut packer, key, len, origin, &mut out);
                want.push((Key::inode(key).encode(), len));
                prop_assert!(packer.ready.size() + packer.open.size() <= 3 * NODE_SIZE);
                if cut == 0 {
                    out.extend(packer.cut());
                }
            }
            out.extend(packer.cut());
            out.extend(packer.drain());
            let mut got = Vec::new();
            for run in &out {
                let built = run.build(&NodePlace { level: 0, block: 4, birth: 1, volume: 1 });
                prop_assert!(built.is_some(), "a run of {} bytes", run.size());
                got.extend(run.cells(0..run.len()).map(|(c, _)| (c.key, c.value.len())));
            }
            prop_assert_eq!(got, want);
        }
    }
}
