//! Merging layers, so that a moment consists of few of them and superseded blocks go.
//!
//! Layers are merged where those on top have at least half as many blocks as the one below, so that a
//! block is rewritten a number of times that grows with the logarithm of the volume, and at most a third
//! of what is kept is superseded. Merged layers are new objects; nothing is changed in place. A [`Merge`] stores them beside a
//! writer that goes on. Uses the writer, images and layers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cache::Cache;
use crate::device::{Fetch, MomentDevice};
use crate::error::Result;
use crate::format::head::{Layer, Moment};
use crate::format::layer::Run;
use crate::format::{BLOCK, MAX_RUNS, new_layer};
use crate::image::{Extent, Image};
use crate::pack::Packer;
use crate::seal::Seal;
use crate::store::Store;
use crate::watch::Watch;
use crate::writer::Writer;

/// Layers of the newest moment from which on they are merged.
pub(crate) const MOST_LAYERS: usize = 24;
/// Layers that may be left then, besides those that are merged.
const LEFT: usize = 11;
/// Bytes of the temporary file for what is merged.
const CACHE: u64 = 1 << 30;

/// A merge that needs no writer while it stores, so that moments can be stored meanwhile.
#[derive(Clone)]
pub(crate) struct Merge {
    store: Arc<Store>,
    seal: Arc<Seal>,
    epoch: u64,
    layers: Vec<Layer>,
    is_bottom: bool,
}

impl Merge {
    /// That of the newest moment if it has too many layers. Without the key of an encrypted backup there
    /// is none, nor before the writer has begun.
    pub fn due(writer: &Writer) -> Option<Self> {
        let moment = writer.catalogue().moments().last()?;
        if moment.layers.len() <= MOST_LAYERS || !writer.seal().opens() {
            return None;
        }
        let layers: Vec<Layer> = writer.catalogue().layers_of(moment).cloned().collect();
        let cut = cut(&layers.iter().map(weight).collect::<Vec<_>>());
        let merged = layers.get(cut..).unwrap_or_default();
        Self::of(writer, merged.to_vec(), cut == 0)
    }

    fn of(writer: &Writer, layers: Vec<Layer>, is_bottom: bool) -> Option<Self> {
        Some(Self {
            store: Arc::clone(writer.store()),
            seal: Arc::clone(writer.seal()),
            epoch: writer.epoch()?,
            layers,
            is_bottom,
        })
    }

    /// The layers that go.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Stores the layers as one; as several if they have very many runs. They have no numbers yet.
    pub fn run(&self, watch: &dyn Watch) -> Result<Vec<Layer>> {
        let (store, seal) = (&self.store, &self.seal);
        let image = Image::of_layers(Arc::clone(store), Arc::clone(seal), self.layers.clone())?;
        let mut runs = runs(image.extents(), self.is_bottom);
        let device = MomentDevice::new(image, Cache::new(CACHE, None)?, Fetch::Object);
        let packer = Packer { store, seal, watch };
        let data = runs.iter().filter(|run| run.has_data);
        watch.expect(data.map(|run| run.count).sum::<u64>() * BLOCK as u64);
        let mut read = |block, buf: &mut [u8]| device.read_blocks(block, buf);
        let mut merged = Vec::new();
        loop {
            let rest = runs.split_off(runs.len().min(MAX_RUNS));
            let name = (0, new_layer(self.epoch)?);
            merged.push(packer.write(name, std::mem::replace(&mut runs, rest), &mut read)?);
            if runs.is_empty() {
                return Ok(merged);
            }
        }
    }
}

/// Has the newest moment consist of merged layers, if it still has those that they were made of.
///
/// # Errors
/// Another writer has begun, or the store fails.
pub(crate) fn adopt(writer: &mut Writer, old: &[Layer], merged: Vec<Layer>) -> Result<()> {
    let mut moments = writer.catalogue().moments().to_vec();
    let layers = writer.catalogue().layers();
    let stays = |layer: &Layer| layers.get(&layer.number) == Some(layer);
    let Some(last) = moments.last_mut().filter(|_| old.iter().all(stays)) else {
        return Ok(());
    };
    let new = number(writer, merged);
    let old: Vec<u64> = old.iter().map(|layer| layer.number).collect();
    if !replace(last, &old, &new) {
        return Ok(());
    }
    let is_old = last.number <= writer.catalogue().base_number();
    writer.catalogue_mut().set_moments(moments);
    writer.publish(is_old)
}

/// Gives layers their numbers, which are returned.
fn number(writer: &mut Writer, layers: Vec<Layer>) -> Vec<u64> {
    let mut numbers = Vec::new();
    for mut layer in layers {
        layer.number = writer.catalogue().last_layer() + 1;
        numbers.push(layer.number);
        writer.catalogue_mut().add_layer(layer);
    }
    numbers
}

fn weight(layer: &Layer) -> u64 {
    layer.blocks + 1
}

/// From which layer on a stack is merged: where the one below has more than twice as much as all above.
fn cut(weights: &[u64]) -> usize {
    let mut above = 0;
    let mut found = 0;
    for at in (1..weights.len()).rev() {
        above += weights.get(at).copied().unwrap_or(0);
        let below = weights.get(at - 1).copied().unwrap_or(0);
        if at <= LEFT && below > 2 * above {
            found = at;
            break;
        }
    }
    found
}

/// Ranges of layers that are always used together, to be merged each.
pub(crate) fn ranges(weights: &[u64]) -> Vec<std::ops::Range<usize>> {
    let mut ranges = Vec::new();
    let (mut end, mut sum) = (weights.len(), 0);
    for (at, weight) in weights.iter().enumerate().rev() {
        if sum > 0 && *weight > 2 * sum {
            ranges.push(at + 1..end);
            (end, sum) = (at + 1, 0);
        }
        sum += weight;
    }
    ranges.push(0..end);
    ranges.retain(|range| range.len() > 1);
    ranges.reverse();
    ranges
}

/// Merges the layers of moments where all kept moments use them together; returns how many were merged.
///
/// # Errors
/// Another writer has begun, or the store fails.
pub(crate) fn merge_groups(writer: &mut Writer, watch: &dyn Watch) -> Result<u64> {
    let mut merged = 0;
    for (numbers, is_bottom) in groups(writer) {
        let layers = writer.catalogue().layers();
        let layers: Vec<Layer> = numbers
            .iter()
            .filter_map(|n| layers.get(n))
            .cloned()
            .collect();
        writer.begin()?;
        let Some(merge) = Merge::of(writer, layers, is_bottom) else {
            continue;
        };
        let new = merge.run(watch)?;
        let new = number(writer, new);
        let mut moments = writer.catalogue().moments().to_vec();
        for moment in &mut moments {
            replace(moment, &numbers, &new);
        }
        writer.catalogue_mut().set_moments(moments);
        merged += numbers.len() as u64;
    }
    Ok(merged)
}

/// Which layers to merge, and whether nothing is below them.
fn groups(writer: &Writer) -> BTreeSet<(Vec<u64>, bool)> {
    let catalogue = writer.catalogue();
    let mut users: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for moment in catalogue.moments() {
        for number in &moment.layers {
            users.entry(*number).or_default().push(moment.number);
        }
    }
    let mut groups = BTreeSet::new();
    for moment in catalogue.moments() {
        let mut from = 0;
        for group in moment.layers.chunk_by(|a, b| users.get(a) == users.get(b)) {
            let layers = group.iter().map(|number| catalogue.layers().get(number));
            let weights: Vec<u64> = layers.map(|layer| layer.map_or(0, weight)).collect();
            for range in ranges(&weights) {
                let is_bottom = from + range.start == 0;
                groups.extend(group.get(range).map(|group| (group.to_vec(), is_bottom)));
            }
            from += group.len();
        }
    }
    groups
}

/// Replaces layers that a moment has one behind the other; returns whether it has them.
fn replace(moment: &mut Moment, old: &[u64], new: &[u64]) -> bool {
    let at = moment
        .layers
        .windows(old.len())
        .position(|some| some == old);
    if let Some(at) = at {
        moment
            .layers
            .splice(at..at + old.len(), new.iter().copied());
    }
    at.is_some()
}

/// Extents as runs of a layer.
fn runs(extents: &[Extent], is_bottom: bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for extent in extents {
        let has_data = extent.layer.is_some();
        match runs.last_mut() {
            _ if is_bottom && !has_data => {}
            Some(run) if run.end() == extent.start && run.has_data == has_data => {
                run.count += extent.count;
            }
            _ => runs.push(Run {
                start: extent.start,
                count: extent.count,
                has_data,
            }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_layers_are_merged_and_large_ones_below_stay() {
        let mut stack = vec![1_000_000];
        stack.extend([1; 30]);
        assert_eq!(cut(&stack), 1);
        assert_eq!(ranges(&stack).first(), Some(&(1..31)));
        assert_eq!(ranges(&stack).len(), 1);
        stack.push(100);
        assert_eq!(cut(&stack), 1);
        // Half of what is below has changed.
        stack.push(600_000);
        assert_eq!(cut(&stack), 0);
        assert_eq!(ranges(&[100, 10, 1]), []);
        assert_eq!(ranges(&[100, 10, 9, 1, 1]), [1..3, 3..5]);
    }
}
