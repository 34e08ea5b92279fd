//! Packing a stream of cells into nodes: how full nodes become, and where they are split.
//!
//! Pure: uses the format only. A [`PackedCells`] is a sequence of cells in key order, of any size.
//! A [`Packer`] receives the cells of one level, and a cut wherever a node of the old tree ended.
//! It returns runs of cells in key order, each of which fits into one node. It never holds more
//! than about three nodes.

use std::ops::Range;
use std::sync::Arc;

use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::format::key::{KEY_LEN, Key, common_prefix, strip_zeros};
use cairnfs_disk::format::node::{NODE_HEADER, NewCell, NodePlace, RawCell, cell_size, write_node};
use cairnfs_disk::format::pointer::RawPtr;

/// Bytes of waiting cells beyond which a full node is emitted at once. The rest, and the halves of
/// a run that is split at a cut, then make nodes of at least about half the size.
const OVERFULL: usize = NODE_SIZE + NODE_SIZE / 2;
/// A node smaller than this many bytes is joined with a neighbour if possible.
const SMALL: usize = NODE_SIZE / 4;
/// Neighbours that are both rewritten are joined if they fill at most this many bytes.
const COMFORTABLE: usize = NODE_SIZE / 4 * 3;

/// A node of at least this many bytes counts as full.
pub(super) const FULL: usize = NODE_SIZE / 8 * 7;

/// Typical number of cells of a node with inode items.
const USUAL_CELLS: usize = 256;

/// The origin of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Copied unchanged from the old tree.
    Kept,
    /// Its value or child is new, and other cells may follow it.
    Changed,
    /// New and behind all others of its node, so more appends are likely to follow.
    Appended,
}

impl Origin {
    /// Of a cell that is new or changed.
    pub fn of_new(appended: bool) -> Self {
        if appended {
            Origin::Appended
        } else {
            Origin::Changed
        }
    }
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
    /// Whether there are no cells.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Used bytes of a node with these cells.
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

    /// Removes the last cell.
    pub fn pop(&mut self) {
        if let Some(cell) = self.cells.pop() {
            self.used -= cell.size(self.prefix);
            self.values.truncate(cell.value.start);
        }
    }

    /// Allocates memory for a typical run in one step.
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
        // The keys ascend, so the common prefix of the first and the last key is that of all.
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

    /// Adds the cells of `other`, which are all behind these.
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

    /// Used bytes of a node with these cells and those of `other`, which are all behind these.
    pub fn size_with(&self, other: &PackedCells) -> usize {
        let prefix = match (self.cells.first(), other.cells.last()) {
            (Some(a), Some(b)) => common_prefix(&a.key, &b.key),
            _ => return self.size().max(other.size()),
        };
        let cells = self.cells.iter().chain(&other.cells);
        NODE_HEADER + cells.map(|c| c.size(prefix)).sum::<usize>()
    }

    /// How many of the first cells fit into a node.
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

    /// How many of the first cells fill half of the used bytes.
    fn half(&self) -> usize {
        let mut sum = 0;
        let before = |cell: &&Cell| {
            sum += cell.size(self.prefix);
            sum <= self.used / 2
        };
        self.cells.iter().take_while(before).count()
    }

    /// Removes and returns the first `n` cells, at least one.
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

    /// Recomputes the prefix and the size.
    fn measure(&mut self) {
        let ends = (self.cells.first(), self.cells.last());
        self.prefix = match ends {
            (Some(first), Some(last)) => common_prefix(&first.key, &last.key),
            _ => 0,
        };
        self.used = self.cells.iter().map(|c| c.size(self.prefix)).sum();
    }

    /// Builds a node with these cells; returns its bytes and its pointer, or `None` if the cells do
    /// not fit.
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

/// Splits the cells of one level into nodes.
#[derive(Debug, Default)]
pub(super) struct Packer {
    /// A node of sufficient size that waits because a small one behind it may join it.
    ready: PackedCells,
    /// The cells added since. Directly after a cut: empty, or a small rest that the next cells
    /// join.
    open: PackedCells,
    /// Whether nodes are filled regardless of where the old nodes ended.
    dense: bool,
}

impl Packer {
    /// Whether no cells wait.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.open.is_empty()
    }

    /// Makes this packer dense: nodes are filled, and the rest at a cut goes into the next node.
    pub fn make_dense(&mut self) {
        self.dense = true;
    }

    /// Whether the packer is dense and cells wait that do not fill a node.
    pub fn has_loose_rest(&self) -> bool {
        self.dense && !self.open.is_empty() && self.open.size() < FULL
    }

    /// Number of waiting cells.
    pub fn len(&self) -> usize {
        self.ready.len() + self.open.len()
    }

    /// The last cell's value and origin.
    pub fn last(&self) -> Option<(&[u8], Origin)> {
        self.open.last().or_else(|| self.ready.last())
    }

    /// The last cell's key, value and origin, if it can be removed by [`Self::pop`]: only if it was
    /// added since the last cut.
    pub fn newest(&self) -> Option<(Option<Key>, &[u8], Origin)> {
        let (value, origin) = self.open.last()?;
        Some((self.open.last_key(), value, origin))
    }

    /// Adds a cell. The caller then calls [`Packer::overfull`] until it returns `None`.
    pub fn push(&mut self, cell: &RawCell<'_>, origin: Origin) {
        self.open.push(cell, origin);
    }

    /// Removes the newest cell.
    pub fn pop(&mut self) {
        self.open.pop();
    }

    /// A run that must be written before more cells are added.
    pub fn overfull(&mut self) -> Option<PackedCells> {
        if self.open.size() <= OVERFULL {
            None
        } else if !self.ready.is_empty() {
            Some(std::mem::take(&mut self.ready))
        } else {
            Some(self.open.take_front(self.open.fitting()))
        }
    }

    /// Called where a node of the old tree ends; returns the runs to write, at most two.
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

    /// The small rest that should be joined with a neighbour. Call it after a cut.
    pub fn small(&self) -> Option<&PackedCells> {
        (!self.open.is_empty()).then_some(&self.open)
    }

    /// Whether a node waits before the small rest.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Appends the cells of the right neighbour to the small rest.
    pub fn join_right(&mut self, neighbour: &PackedCells) {
        self.open.append(neighbour);
    }

    /// Prepends the cells of the left neighbour to the small rest.
    pub fn join_left(&mut self, mut neighbour: PackedCells) {
        neighbour.append(&self.open);
        self.open = neighbour;
    }

    /// All waiting cells, as runs to write. Call it after a cut.
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
    fn small_node_joins_its_left_neighbour() {
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
        fn packer_emits_every_cell_once_in_order_and_fitting(
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
