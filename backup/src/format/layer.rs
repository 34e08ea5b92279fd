//! Layers: which blocks they have, and where these are in their objects.
//!
//! The blocks of a layer in ascending order are numbered from 0; block n is in object n / 4096 and in
//! frame n / 64. An object is a magic number, its frames, and a table of their lengths and hashes; the
//! last one also has the [`Index`] behind that. The index has the hashes of the tables, and the head has
//! that of the index. Decoding checks all of this.

use super::bytes::{Input, put};
use super::{FRAME_BLOCKS, Hash, MAX_FRAME, MAX_OBJECT, MAX_RUNS, OBJECT_BLOCKS, packed, unpacked};
use crate::error::{Error, Result};
use crate::format::head::Layer;

/// What every object of a layer begins with.
pub const MAGIC: &[u8; 8] = b"CAIRNLY1";

/// Bytes of a frame's entry in a table.
const ENTRY: usize = 20;

/// Blocks one behind the other, with contents or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first block.
    pub start: u64,
    /// How many.
    pub count: u64,
    /// Whether they have contents in this layer; otherwise they have none from here on.
    pub has_data: bool,
}

impl Run {
    /// The block behind it.
    pub fn end(&self) -> u64 {
        self.start + self.count
    }
}

/// An object of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Where its table begins.
    pub table_offset: u64,
    /// The hash of the table.
    pub table_hash: Hash,
}

/// The index of a layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Its runs, ascending.
    pub runs: Vec<Run>,
    /// Its objects.
    pub objects: Vec<Object>,
}

/// Frames of an object of a layer with so many blocks.
pub fn frames(blocks: u64, object: u64) -> u64 {
    let before = object.saturating_mul(OBJECT_BLOCKS);
    let own = blocks.saturating_sub(before).min(OBJECT_BLOCKS);
    own.div_ceil(FRAME_BLOCKS)
}

/// Blocks of a frame of a layer with so many blocks; `frame` counts from the layer's first one.
pub fn frame_blocks(blocks: u64, frame: u64) -> u64 {
    blocks
        .saturating_sub(frame.saturating_mul(FRAME_BLOCKS))
        .min(FRAME_BLOCKS)
}

impl Index {
    /// The bytes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(4 * self.runs.len() + 40 * self.objects.len());
        put(&mut out, self.objects.len() as u64);
        for object in &self.objects {
            put(&mut out, object.table_offset);
            out.extend_from_slice(&object.table_hash.0);
        }
        put(&mut out, self.runs.len() as u64);
        let mut end = 0;
        for run in &self.runs {
            put(&mut out, run.start - end);
            put(&mut out, run.count << 1 | u64::from(run.has_data));
            end = run.end();
        }
        packed(&out)
    }

    /// Reads the index of `layer` from an object of the name `object`.
    ///
    /// # Errors
    /// It is none, or does not fit the layer.
    pub fn decode(object: &str, bytes: &[u8], layer: &Layer) -> Result<Self> {
        if Hash::of(bytes) != layer.index_hash {
            return Err(Error::damaged(object, "the index has another hash"));
        }
        let bytes = unpacked(object, bytes)?;
        let mut input = Input::new(object, &bytes);
        let mut index = Self::default();
        if input.number()? != layer.objects() {
            return Err(Error::damaged(
                object,
                "the index has another number of objects",
            ));
        }
        for number in 0..layer.objects() {
            index.objects.push(read_object(&mut input, number, layer)?);
        }
        let runs = input.up_to(MAX_RUNS as u64, "the number of runs")?;
        let (mut end, mut blocks) = (0_u64, 0_u64);
        for _ in 0..runs {
            let start = end + input.up_to(super::MAX_BLOCKS - end, "the start of a run")?;
            let word = input.up_to(super::MAX_BLOCKS << 1 | 1, "the length of a run")?;
            let run = Run {
                start,
                count: word >> 1,
                has_data: word & 1 == 1,
            };
            if run.count == 0 || run.end() > super::MAX_BLOCKS {
                return Err(Error::damaged(
                    object,
                    "an empty run, or one behind the end",
                ));
            }
            end = run.end();
            blocks += if run.has_data { run.count } else { 0 };
            index.runs.push(run);
        }
        input.end()?;
        if blocks != layer.blocks {
            return Err(Error::damaged(
                object,
                "the index has another number of blocks",
            ));
        }
        Ok(index)
    }
}

fn read_object(input: &mut Input<'_>, number: u64, layer: &Layer) -> Result<Object> {
    let table_offset = input.up_to(MAX_OBJECT, "the place of a table")?;
    let table_hash = Hash(input.array()?);
    let frames = frames(layer.blocks, number);
    let least = MAGIC.len() as u64 + frames;
    if table_offset < least || table_offset > MAGIC.len() as u64 + frames * MAX_FRAME {
        let name = super::object_name(&layer.name, number);
        return Err(Error::damaged(name, "a table where none can be"));
    }
    Ok(Object {
        table_offset,
        table_hash,
    })
}

/// A frame in its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// The first half of its hash.
    pub hash: [u8; 16],
}

impl Frame {
    /// The byte behind it.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// The bytes of a table.
pub fn encode_table(frames: &[Frame]) -> Vec<u8> {
    let mut out = Vec::with_capacity(frames.len() * ENTRY);
    for frame in frames {
        out.extend_from_slice(&(frame.length as u32).to_le_bytes());
        out.extend_from_slice(&frame.hash);
    }
    out
}

/// The length of a table of so many frames.
pub fn table_length(frames: u64) -> u64 {
    frames * ENTRY as u64
}

/// Reads the table of an object.
///
/// # Errors
/// It is none, or does not fit the index.
pub fn decode_table(name: &str, bytes: &[u8], object: &Object) -> Result<Vec<Frame>> {
    if Hash::of(bytes) != object.table_hash {
        return Err(Error::damaged(name, "the table has another hash"));
    }
    let mut input = Input::new(name, bytes);
    let mut frames = Vec::new();
    let mut offset = MAGIC.len() as u64;
    for _ in 0..bytes.len() / ENTRY {
        let frame = Frame {
            offset,
            length: u64::from(u32::from_le_bytes(input.array()?)),
            hash: input.array()?,
        };
        if frame.length == 0 || frame.length > MAX_FRAME {
            return Err(Error::damaged(name, "a frame with a length that cannot be"));
        }
        offset = frame.end();
        frames.push(frame);
    }
    input.end()?;
    if offset != object.table_offset {
        return Err(Error::damaged(name, "frames that do not end at the table"));
    }
    Ok(frames)
}
