//! The image of a moment: which layer has each block, and reading frames of layers.
//!
//! Opening reads the index of each layer; tables of frames are read when one of their frames is. Memory:
//! 32 bytes for each extent, and a bounded number of tables. Uses the store, frames and the format.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::catalogue::Catalogue;
use crate::error::{Error, Result};
use crate::format::head::{Layer, Moment};
use crate::format::layer::{
    Frame, Index, MAGIC, Object, Run, decode_table, frame_blocks, frames, table_length,
};
use crate::format::{FRAME_BLOCKS, OBJECT_BLOCKS, object_name};
use crate::frame;
use crate::runs::Blocks;
use crate::seal::Seal;
use crate::store::Store;

/// Most extents of an image.
const MAX_EXTENTS: usize = 16 << 20;
/// Tables of frames that are kept.
const TABLES: usize = 4096;
/// Frames of a layer's object.
pub const OBJECT_FRAMES: u64 = OBJECT_BLOCKS / FRAME_BLOCKS;

/// Blocks one behind the other that one layer has, or that have no contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first block of the image.
    pub start: u64,
    /// How many.
    pub count: u64,
    /// The place of the layer in the moment's list; `None`: without contents.
    pub layer: Option<u32>,
    /// The number of the first block in that layer.
    pub ordinal: u64,
}

impl Extent {
    fn end(&self) -> u64 {
        self.start + self.count
    }

    /// The part from `at` on.
    fn from(self, at: u64) -> Self {
        let skipped = at.saturating_sub(self.start).min(self.count);
        Self {
            start: self.start + skipped,
            count: self.count - skipped,
            layer: self.layer,
            ordinal: self.ordinal + skipped,
        }
    }

    /// The part before `at`.
    fn before(self, at: u64) -> Self {
        Self {
            count: self.count.min(at.saturating_sub(self.start)),
            ..self
        }
    }
}

/// A layer whose index was read.
struct Loaded {
    layer: Layer,
    objects: Vec<Object>,
}

/// A frame of a layer of an image: the layer's place, and the frame's number in the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId {
    /// The place of the layer in the list.
    pub layer: u32,
    /// Counted from the first frame of the layer.
    pub frame: u64,
}

impl FrameId {
    /// The number of its object in the layer.
    pub fn object(&self) -> u64 {
        self.frame / OBJECT_FRAMES
    }
}

/// Tables by the place of their layer and the number of their object.
type Tables = HashMap<(u32, u64), Arc<Vec<Frame>>>;

/// A layer, the name of one of its objects and its table, bytes of it, and where they begin.
type Together<'a> = (&'a Loaded, String, Arc<Vec<Frame>>, Bytes, u64);

/// Several layers as one image.
pub struct Image {
    store: Arc<Store>,
    seal: Arc<Seal>,
    layers: Vec<Loaded>,
    extents: Vec<Extent>,
    /// Blocks of the image.
    blocks: u64,
    tables: Mutex<Tables>,
}

impl Image {
    /// Opens that of a moment.
    ///
    /// # Errors
    /// An index is missing or damaged, or does not fit the moment.
    pub fn open(
        store: Arc<Store>,
        seal: Arc<Seal>,
        catalogue: &Catalogue,
        moment: &Moment,
    ) -> Result<Self> {
        let layers: Vec<Layer> = catalogue.layers_of(moment).cloned().collect();
        let mut image = Self::of_layers(store, seal, layers)?;
        image.extents.retain(|extent| extent.layer.is_some());
        fits(&image.extents, moment)?;
        image.blocks = moment.blocks;
        Ok(image)
    }

    /// Puts layers on each other; blocks without contents stay known.
    pub fn of_layers(store: Arc<Store>, seal: Arc<Seal>, layers: Vec<Layer>) -> Result<Self> {
        let (mut extents, mut loaded) = (Vec::new(), Vec::new());
        for (place, layer) in layers.into_iter().enumerate() {
            let index = read_index(&store, &layer)?;
            extents = put_on(&extents, &index.runs, place as u32)?;
            loaded.push(Loaded {
                layer,
                objects: index.objects,
            });
        }
        let blocks = extents.last().map_or(0, Extent::end);
        Ok(Self {
            store,
            seal,
            layers: loaded,
            extents,
            blocks,
            tables: Mutex::default(),
        })
    }

    /// Blocks of the whole image.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Its extents, ascending.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The blocks that have contents.
    ///
    /// # Errors
    /// None that is known.
    pub fn live(&self) -> Result<Blocks> {
        let mut live = Blocks::default();
        let with = self.extents.iter().filter(|extent| extent.layer.is_some());
        for extent in with {
            live.push(extent.start, extent.count)?;
        }
        Ok(live)
    }

    /// Calls `found` with every extent, cut to `count` blocks from `start` on.
    pub fn for_each_in(
        &self,
        start: u64,
        count: u64,
        mut found: impl FnMut(Extent) -> Result<()>,
    ) -> Result<()> {
        let end = start.saturating_add(count);
        let first = self.extents.partition_point(|extent| extent.end() <= start);
        let rest = self.extents.get(first..).unwrap_or_default();
        rest.iter()
            .take_while(|extent| extent.start < end)
            .try_for_each(|extent| found(extent.from(start).before(end)))
    }

    fn loaded(&self, layer: u32) -> Result<&Loaded> {
        let layer = self.layers.get(layer as usize);
        layer.ok_or_else(|| Error::TooLarge("a layer that is not there".into()))
    }

    /// Blocks of a frame.
    ///
    /// # Errors
    /// There is no such layer.
    pub fn frame_blocks(&self, id: FrameId) -> Result<u64> {
        Ok(frame_blocks(self.loaded(id.layer)?.layer.blocks, id.frame))
    }

    /// The table of an object.
    fn table(&self, layer: u32, object: u64) -> Result<Arc<Vec<Frame>>> {
        if let Some(table) = self.tables.lock().get(&(layer, object)) {
            return Ok(Arc::clone(table));
        }
        let loaded = self.loaded(layer)?;
        let (name, place) = loaded.object(object)?;
        let length = table_length(frames(loaded.layer.blocks, object));
        let range = place.table_offset..place.table_offset + length;
        let bytes = self.store.get_range(&name, range)?;
        self.keep_table(layer, object, decode_table(&name, &bytes, place)?)
    }

    fn keep_table(&self, layer: u32, object: u64, table: Vec<Frame>) -> Result<Arc<Vec<Frame>>> {
        let table = Arc::new(table);
        let mut tables = self.tables.lock();
        if tables.len() >= TABLES {
            tables.clear();
        }
        tables.insert((layer, object), Arc::clone(&table));
        Ok(table)
    }

    /// The contents of one frame.
    ///
    /// # Errors
    /// It is missing or damaged, or cannot be decrypted.
    pub fn read_frame(&self, id: FrameId) -> Result<Vec<u8>> {
        let table = self.table(id.layer, id.object())?;
        let loaded = self.loaded(id.layer)?;
        let (name, _) = loaded.object(id.object())?;
        let frame = table.get((id.frame % OBJECT_FRAMES) as usize);
        let frame = frame.ok_or_else(|| Error::damaged(&name, "a frame that is not there"))?;
        let stored = self.store.get_range(&name, frame.offset..frame.end())?;
        let blocks = frame_blocks(loaded.layer.blocks, id.frame);
        frame::decode(&name, &stored, frame, blocks, &self.seal)
    }

    /// Passes the contents of frames of one object to `found`, by a single request for what lies between
    /// the first and the last one; for each that is missing or damaged, why.
    ///
    /// # Errors
    /// The store fails, and those of `found`.
    pub fn read_frames(
        &self,
        ids: &[FrameId],
        mut found: impl FnMut(FrameId, Result<Vec<u8>>) -> Result<()>,
    ) -> Result<()> {
        let together = match self.fetch_together(ids) {
            // Without its table nothing of an object can be told from something else.
            Err(why) if why.is_damage() => {
                let mut each = ids.iter();
                return each.try_for_each(|id| found(*id, Err(why.clone())));
            }
            together => together?,
        };
        let Some((loaded, name, table, bytes, from)) = together else {
            return Ok(());
        };
        for id in ids {
            let frame = table.get((id.frame % OBJECT_FRAMES) as usize);
            let frame = frame.ok_or_else(|| Error::damaged(&name, "a frame that is not there"));
            let blocks = frame.and_then(|frame| {
                let stored = slice(&bytes, frame.offset.wrapping_sub(from), frame.length);
                let stored = stored.ok_or_else(|| Error::damaged(&name, "shorter than it was"))?;
                let blocks = frame_blocks(loaded.layer.blocks, id.frame);
                frame::decode(&name, stored, frame, blocks, &self.seal)
            });
            match blocks {
                Err(why) if !why.is_damage() => return Err(why),
                blocks => found(*id, blocks)?,
            }
        }
        Ok(())
    }

    /// The bytes in which frames of one object are, the place of the first byte, and the table.
    fn fetch_together(&self, ids: &[FrameId]) -> Result<Option<Together<'_>>> {
        let (Some(first), Some(last)) = (ids.first(), ids.last()) else {
            return Ok(None);
        };
        let loaded = self.loaded(first.layer)?;
        let (name, place) = loaded.object(first.object())?;
        let all = frames(loaded.layer.blocks, first.object());
        let (bytes, from, table) = if ids.len() as u64 * 2 > all {
            let end = place.table_offset + table_length(all);
            let bytes = self.store.get_range(&name, 0..end)?;
            let table = bytes.get(place.table_offset as usize..).unwrap_or_default();
            let table = decode_table(&name, table, place)?;
            (
                bytes,
                0,
                self.keep_table(first.layer, first.object(), table)?,
            )
        } else {
            let table = self.table(first.layer, first.object())?;
            let at = |id: &FrameId| table.get((id.frame % OBJECT_FRAMES) as usize);
            let from = at(first).map_or(0, |frame| frame.offset);
            let end = at(last).map_or(0, Frame::end).max(from);
            (self.store.get_range(&name, from..end)?, from, table)
        };
        Ok(Some((loaded, name, table, bytes, from)))
    }
}

impl Loaded {
    fn object(&self, object: u64) -> Result<(String, &Object)> {
        let name = object_name(&self.layer.name, object);
        match self.objects.get(object as usize) {
            Some(found) => Ok((name, found)),
            None => Err(Error::damaged(
                name,
                "an object that the layer does not have",
            )),
        }
    }
}

fn slice(bytes: &[u8], from: u64, length: u64) -> Option<&[u8]> {
    let end = from.checked_add(length)?;
    bytes.get(usize::try_from(from).ok()?..usize::try_from(end).ok()?)
}

/// The index of a layer.
///
/// # Errors
/// It is missing or damaged.
pub fn read_index(store: &Store, layer: &Layer) -> Result<Index> {
    let name = object_name(&layer.name, layer.objects() - 1);
    let range = layer.index_offset..layer.index_offset + layer.index_length;
    let bytes = store.get_range(&name, range)?;
    Index::decode(&name, &bytes, layer)
}

/// What an object of a layer says of itself, checked against the layer's index: for a check that has all
/// its bytes. Returns the frames that are damaged, by their numbers in the layer, and why the first one is.
///
/// # Errors
/// Nothing of the object can be read.
pub fn verify_object(
    (layer, index): (&Layer, &Index),
    number: u64,
    bytes: &Bytes,
    seal: &Seal,
) -> Result<(Vec<u64>, Option<Error>)> {
    let name = object_name(&layer.name, number);
    if !bytes.starts_with(MAGIC) {
        return Err(Error::damaged(name, "it is no object of a layer"));
    }
    let missing = || Error::damaged(&name, "shorter than it was");
    let place = index.objects.get(number as usize).ok_or_else(missing)?;
    let length = table_length(frames(layer.blocks, number));
    let table = slice(bytes, place.table_offset, length).ok_or_else(missing)?;
    let (mut bad, mut first) = (Vec::new(), None);
    for (i, frame) in (0..).zip(decode_table(&name, table, place)?) {
        let of_layer = number * OBJECT_FRAMES + i;
        let blocks = frame_blocks(layer.blocks, of_layer);
        let stored = slice(bytes, frame.offset, frame.length).ok_or_else(missing);
        let sound = stored.and_then(|stored| {
            if seal.opens() {
                frame::decode(&name, stored, &frame, blocks, seal).map(drop)
            } else {
                frame::verify(&name, stored, &frame)
            }
        });
        match sound {
            Ok(()) => {}
            Err(why) if why.is_damage() => {
                bad.push(of_layer);
                first.get_or_insert(why);
            }
            Err(why) => return Err(why),
        }
    }
    Ok((bad, first))
}

/// The extents with contents of a moment with these layers.
///
/// # Errors
/// It is not what it should be.
pub fn check_layers<'a>(
    indexes: impl IntoIterator<Item = &'a Index>,
    moment: &Moment,
) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    for (place, index) in indexes.into_iter().enumerate() {
        extents = put_on(&extents, &index.runs, place as u32)?;
    }
    extents.retain(|extent| extent.layer.is_some());
    fits(&extents, moment)?;
    Ok(extents)
}

fn fits(extents: &[Extent], moment: &Moment) -> Result<()> {
    let live: u64 = extents.iter().map(|extent| extent.count).sum();
    let end = extents.last().map_or(0, Extent::end);
    if live == moment.live && end <= moment.blocks {
        Ok(())
    } else {
        Err(Error::damaged(
            format!("moment {}", moment.number),
            "its layers have other blocks than it should have",
        ))
    }
}

/// The extents below with the runs of a layer on top.
fn put_on(below: &[Extent], runs: &[Run], layer: u32) -> Result<Vec<Extent>> {
    let mut all = Vec::with_capacity(below.len() + runs.len());
    let mut below = below.iter().copied().peekable();
    let mut rest: Option<Extent> = None;
    let mut ordinal = 0;
    for run in runs {
        while let Some(extent) = rest
            .take()
            .or_else(|| below.next_if(|e| e.start < run.end()))
        {
            all.extend(Some(extent.before(run.start)).filter(|part| part.count > 0));
            let behind = extent.from(run.end());
            if behind.count > 0 && behind.start < extent.end() {
                rest = Some(behind);
            }
            if rest.is_some_and(|rest| rest.start >= run.end()) {
                break;
            }
        }
        all.push(Extent {
            start: run.start,
            count: run.count,
            layer: run.has_data.then_some(layer),
            ordinal,
        });
        ordinal += if run.has_data { run.count } else { 0 };
    }
    all.extend(rest);
    all.extend(below);
    if all.len() > MAX_EXTENTS {
        Err(Error::TooLarge(format!(
            "the image has more than {MAX_EXTENTS} extents, the most that can be read"
        )))
    } else {
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Blocks = BTreeMap<u64, Option<(u32, u64)>>;

    /// Layers as sets of blocks, and whether each has contents.
    fn layers() -> impl Strategy<Value = Vec<BTreeMap<u64, bool>>> {
        let layer = proptest::collection::btree_map(0_u64..40, any::<bool>(), 0..30);
        proptest::collection::vec(layer, 1..6)
    }

    fn runs(layer: &BTreeMap<u64, bool>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (&start, &has_data) in layer {
            match runs.last_mut() {
                Some(run) if run.end() == start && run.has_data == has_data => run.count += 1,
                _ => runs.push(Run {
                    start,
                    count: 1,
                    has_data,
                }),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn what_a_later_layer_says_counts(layers in layers()) {
            let (mut extents, mut model) = (Vec::new(), Blocks::new());
            for (place, layer) in layers.iter().enumerate() {
                extents = put_on(&extents, &runs(layer), place as u32).unwrap();
                let mut ordinal = 0;
                for (&block, &has_data) in layer {
                    model.insert(block, has_data.then_some((place as u32, ordinal)));
                    ordinal += u64::from(has_data);
                }
            }
            prop_assert!(extents.is_sorted_by(|a, b| a.end() <= b.start));
            let mut found = Blocks::new();
            for extent in &extents {
                prop_assert!(extent.count > 0);
                for i in 0..extent.count {
                    let place = extent.layer.map(|layer| (layer, extent.ordinal + i));
                    found.insert(extent.start + i, place);
                }
            }
            prop_assert_eq!(found, model);
        }
    }
}
