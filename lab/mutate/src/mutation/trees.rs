//! Damage to index nodes, to the cells and values in them, and to large values.

use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::node::NODE_HEADER;

use super::{How, Mutator};
use crate::graph::{SHAPES, shaped};
use crate::seal;

/// Offset and width in bytes of the fields of a node header.
const NODE_FIELDS: [(usize, usize); 11] = [
    (0, 4),
    (4, 1),
    (5, 1),
    (6, 2),
    (8, 8),
    (16, 8),
    (24, 8),
    (32, 2),
    (34, 8),
    (42, 8),
    (51, 8),
];

impl Mutator<'_> {
    pub(super) fn some_node(&mut self) -> u64 {
        let nodes: Vec<u64> = self.base.layout.nodes.keys().copied().collect();
        *self.random.pick(&nodes)
    }

    /// Changes bytes of a node: in its header, in its offsets, or anywhere.
    pub(super) fn node(&mut self, sealed: bool) -> How {
        let node = self.some_node();
        let how = match self.random.below(3) {
            0 => {
                let (at, width) = *self.random.pick(&NODE_FIELDS);
                self.change_number(node, at, width)
            }
            1 => {
                let count = u16::from_le_bytes([self.byte(node, 6), self.byte(node, 7)]);
                let at = NODE_HEADER + 2 * self.random.below(usize::from(count));
                self.change_number(node, at, 2)
            }
            _ => self.flip_bits(node, 0..NODE_SIZE),
        };
        if sealed {
            seal::node(&mut self.image, &self.base.layout, node);
        }
        Some(how)
    }

    /// Changes the header or key of a cell, or a pointer in an interior node.
    pub(super) fn cell(&mut self) -> How {
        let node = self.some_node();
        let count = u16::from_le_bytes([self.byte(node, 6), self.byte(node, 7)]);
        let slot = NODE_HEADER + 2 * self.random.below(usize::from(count));
        let cell = u16::from_le_bytes([self.byte(node, slot), self.byte(node, slot + 1)]);
        let cell = usize::from(cell);
        let key_len = usize::from(self.byte(node, cell));
        let how = match self.random.below(4) {
            0 => self.change_number(node, cell, 1),
            1 => self.change_number(node, cell + 1, 2),
            2 if key_len > 0 => {
                let at = cell + 3 + self.random.below(key_len);
                self.change_number(node, at, 1)
            }
            _ => {
                let fields = [(0, 8), (8, 8), (16, 4)];
                let (at, width) = *self.random.pick(&fields);
                let at = (cell + 3 + key_len + at).min(NODE_SIZE - width);
                self.change_number(node, at, width)
            }
        };
        seal::node(&mut self.image, &self.base.layout, node);
        Some(how)
    }

    /// Changes bytes of an item's value, each kind equally often, on field boundaries.
    pub(super) fn item(&mut self) -> How {
        let layout = &self.base.layout;
        let kinds = [
            Kind::Inode,
            Kind::Inode,
            Kind::Inline,
            Kind::DirIndex,
            Kind::DirName,
            Kind::Xattr,
            Kind::SharedValue,
            Kind::Extent,
            Kind::Extent,
            Kind::Orphan,
            Kind::Root,
        ];
        let kind = *self.random.pick(&kinds);
        let items: Vec<_> = layout.items.iter().filter(|i| i.key.kind == kind).collect();
        if items.is_empty() {
            return None;
        }
        let item = **self.random.pick(&items);
        let mut how = format!("{:?}: ", item.key);
        for _ in 0..1 + self.random.below(2) {
            let width = *self.random.pick(&[1, 4, 8]);
            let places = (item.len / width).max(1);
            let at = match self.random.below(2) {
                0 if item.len >= 8 => self.random.below(item.len.min(112) / 4) * 4,
                _ => self.random.below(places) * width,
            };
            let width = width.min(item.len.saturating_sub(at)).max(1);
            how += &self.change_number(item.node, item.at + at, width);
        }
        seal::node(&mut self.image, layout, item.node);
        Some(how)
    }

    /// Gives the index an invalid shape.
    pub(super) fn graph(&mut self) -> How {
        let shape = *self.random.pick(&SHAPES);
        let (how, image) = shaped(self.base, shape, &mut self.random)?;
        self.image = image;
        Some(format!("{shape:?}: {how}"))
    }

    /// Changes a unit of a large value, or its pointer.
    pub(super) fn large(&mut self, sealed: bool) -> How {
        let layout = &self.base.layout;
        if layout.large.is_empty() {
            return None;
        }
        let value = self.random.pick(&layout.large).clone();
        let unit = *self.random.pick(&value.units);
        let how = match self.random.below(4) {
            0 => self.change_number(unit, 0, 8),
            1 => self.flip_bits(unit, 0..NODE_SIZE),
            2 => self.change_number(unit, 8 + self.random.clone().below(5), 4),
            _ => {
                let (at, width) = *self.random.pick(&[(0, 8), (8, 8), (16, 4)]);
                self.change_number(value.cell.node, value.cell.at + at, width)
            }
        };
        if sealed {
            seal::large(&mut self.image, layout, &value);
        }
        Some(how)
    }
}
