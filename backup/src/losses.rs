//! The parts of layers that cannot be read, and the blocks of an image that are lost with them.
//!
//! Uses extents of images and sets of blocks.

use std::collections::BTreeMap;

use crate::format::{FRAME_BLOCKS, OBJECT_BLOCKS};
use crate::image::Extent;
use crate::runs::Blocks;

/// The parts of a backup's layers that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    /// Blocks by their numbers in each layer.
    blocks: BTreeMap<u64, Blocks>,
    /// Layers of which it is not known which blocks they have.
    indexes: Vec<u64>,
}

impl Losses {
    /// Whether everything can be read.
    pub fn is_none(&self) -> bool {
        self.blocks.is_empty() && self.indexes.is_empty()
    }

    /// The index of a layer cannot be read.
    pub(crate) fn lose_index(&mut self, layer: u64) {
        if !self.indexes.contains(&layer) {
            self.indexes.push(layer);
        }
    }

    /// An object of a layer cannot be read.
    pub(crate) fn lose_object(&mut self, layer: u64, object: u64) {
        self.lose(layer, [(object * OBJECT_BLOCKS, OBJECT_BLOCKS)]);
    }

    /// Frames of a layer cannot be read.
    pub(crate) fn lose_frames(&mut self, layer: u64, frames: &[u64]) {
        self.lose(
            layer,
            frames.iter().map(|f| (f * FRAME_BLOCKS, FRAME_BLOCKS)),
        );
    }

    fn lose(&mut self, layer: u64, runs: impl IntoIterator<Item = (u64, u64)>) {
        let runs: Vec<_> = runs.into_iter().collect();
        if !runs.is_empty() {
            let lost = self.blocks.entry(layer).or_default();
            *lost = lost.with(&Blocks::of(runs));
        }
    }

    /// The blocks of an image that cannot be read, by the layers that have them. `layers` are those of the
    /// image, in their order.
    pub(crate) fn in_image(&self, layers: &[u64], extents: &[Extent]) -> BTreeMap<u64, Blocks> {
        let mut found: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for extent in extents {
            let layer = extent.layer.and_then(|place| layers.get(place as usize));
            let Some((layer, lost)) = layer.and_then(|layer| self.blocks.get_key_value(layer))
            else {
                continue;
            };
            let runs = lost.within(extent.ordinal, extent.count);
            let runs: Vec<_> = runs
                .map(|(at, count)| (extent.start + (at - extent.ordinal), count))
                .collect();
            if !runs.is_empty() {
                found.entry(*layer).or_default().extend(runs);
            }
        }
        let found = found.into_iter();
        found
            .map(|(layer, runs)| (layer, Blocks::of(runs)))
            .collect()
    }
}

/// A moment of which not everything can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedMoment {
    /// Its number.
    pub number: u64,
    /// How many of its blocks cannot be read; `None`: none can, for it is not known what the moment has.
    pub blocks: Option<u64>,
}

/// The parts of an image that could not be read.
#[derive(Debug, Clone, Default)]
pub struct Unreadable {
    /// The blocks.
    pub blocks: Blocks,
    /// Why, for each object once; not more than [`Unreadable::WHYS`].
    pub whys: Vec<String>,
}

impl Unreadable {
    /// How many reasons are kept.
    pub const WHYS: usize = 100;

    /// Whether everything was read.
    pub fn is_none(&self) -> bool {
        self.blocks.is_empty()
    }
}
