//! Heads: the numbered objects that say which moments are kept, and which layers they consist of.
//!
//! A head is the hash of what follows, and compressed JSON. A whole head has all moments and layers; any
//! other has those that were added since the whole one that it names, so that two objects tell everything.
//! [`Head::check`] refuses what contradicts itself; everything after it may rely on that. What a reader
//! would refuse for its size is not written.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    FORMAT, Hash, MAX_BLOCKS, MAX_NUMBER, MAX_OBJECT, MAX_UNPACKED, OBJECT_BLOCKS, layer_of,
    object_name, packed, unpacked, unpacked_size,
};
use crate::error::{Error, Result};

/// Bytes of the hash that an object begins with.
const HASH: usize = 32;

/// A numbered head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The version of the format.
    pub format: u32,
    /// The backup that it belongs to.
    pub backup: String,
    /// The hash of the root object.
    pub root: Hash,
    /// Its number: one more than that of the head before it.
    pub number: u64,
    /// The hash of the head before it; `None` for the first one.
    pub previous: Option<Hash>,
    /// The number of the head before it, if a repair has left out heads that could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How often a writer has begun.
    pub epoch: u64,
    /// Who wrote it.
    pub writer: Writer,
    /// The whole head that this one adds to; `None`: this one is whole.
    pub base: Option<Base>,
    /// Layers, in ascending order of their numbers.
    pub layers: Vec<Layer>,
    /// Moments, in the order in which they were stored.
    pub moments: Vec<Moment>,
}

/// Who writes a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// Its name for people and for the next run: machine and path.
    pub name: String,
    /// A random name for one run.
    pub run: String,
}

/// A whole head, named by another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Its number.
    pub number: u64,
    /// The hash of its object.
    pub hash: Hash,
}

/// A state of the volume that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The number of the head that added it.
    pub number: u64,
    /// The engine's name for it.
    pub checkpoint: String,
    /// Seconds since 1970, by the clock of the machine that had the volume.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanoseconds: u32,
    /// Blocks of the whole image, with those that have no contents.
    pub blocks: u64,
    /// Blocks that have contents.
    pub live: u64,
    /// Numbers of its layers; what a later one says counts.
    pub layers: Vec<u64>,
    /// Whether a mount has stored it, and nobody asked for this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
}

/// A set of blocks with their contents, and of blocks that have none any longer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its number.
    pub number: u64,
    /// The name that its objects begin with.
    pub name: String,
    /// Blocks with contents.
    pub blocks: u64,
    /// Bytes of all its objects.
    pub bytes: u64,
    /// Where the index begins in the last object.
    pub index_offset: u64,
    /// The index' length.
    pub index_length: u64,
    /// The hash of the index, as it is stored.
    pub index_hash: Hash,
    /// The hash of the hashes of all its objects.
    pub hash: Hash,
}

impl Layer {
    /// How many objects it consists of.
    pub fn objects(&self) -> u64 {
        self.blocks.div_ceil(OBJECT_BLOCKS).max(1)
    }

    /// The names of its objects.
    pub fn object_names(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.objects()).map(|object| object_name(&self.name, object))
    }
}

impl Head {
    /// The number of the head that `previous` is the hash of.
    pub fn before(&self) -> u64 {
        self.after.unwrap_or(self.number.saturating_sub(1))
    }

    /// The object.
    ///
    /// # Errors
    /// It tells more than a reader takes: [`Error::Full`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let text = serde_json::to_vec(self).map_err(|e| Error::host("head")(e.into()))?;
        if text.len() > MAX_UNPACKED {
            return Err(Error::Full);
        }
        let body = packed(&text)?;
        if (HASH + body.len()) as u64 > MAX_OBJECT {
            return Err(Error::Full);
        }
        Ok([&Hash::of(&body).0, body.as_slice()].concat())
    }

    /// How much text an object has.
    pub fn size(bytes: &[u8]) -> usize {
        bytes.get(HASH..).map_or(0, unpacked_size)
    }

    /// Reads an object.
    ///
    /// # Errors
    /// It is no head, contradicts itself, or has a newer format.
    pub fn decode(object: &str, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let (expected, body) = bytes.split_first_chunk().ok_or_else(|| {
            let length = bytes.len();
            Error::damaged(object, format!("{length} bytes are no head"))
        })?;
        let (expected, found) = (Hash(*expected), Hash::of(body));
        if found != expected {
            return Err(Error::damaged(
                object,
                format!("its contents should have the hash {expected}, and have {found}"),
            ));
        }
        let text = unpacked(object, body)?;
        let wrong = |e| Error::damaged(object, e);
        let version: Version = serde_json::from_slice(&text).map_err(wrong)?;
        if version.format != FORMAT {
            return Err(Error::Format {
                object: object.into(),
                found: version.format,
                known: FORMAT,
            });
        }
        let head: Self = serde_json::from_slice(&text).map_err(wrong)?;
        head.check().map_err(|why| Error::damaged(object, why))?;
        Ok(head)
    }

    fn check(&self) -> Result<(), &'static str> {
        let is_before = |number: u64| (1..self.number).contains(&number);
        if !(1..=MAX_NUMBER).contains(&self.number) || self.epoch > MAX_NUMBER {
            return Err("its number or epoch cannot be");
        }
        if self.base.is_some_and(|base| !is_before(base.number)) {
            return Err("it adds to a later head");
        }
        if let Some(after) = self.after
            && (self.base.is_some() || !is_before(after))
        {
            return Err("it leaves out heads, and is not whole or not behind them");
        }
        if self.previous.is_none() != (self.number == 1) {
            return Err("the hash of the head before it is missing, or there is none before it");
        }
        let ascending = |a: u64, b: u64| a < b;
        if !self
            .layers
            .is_sorted_by(|a, b| ascending(a.number, b.number))
        {
            return Err("layers are not in order");
        }
        if !self
            .moments
            .is_sorted_by(|a, b| ascending(a.number, b.number))
        {
            return Err("moments are not in order");
        }
        self.layers.iter().try_for_each(Layer::check)?;
        self.moments.iter().try_for_each(|m| m.check(self.number))
    }
}

impl Layer {
    fn check(&self) -> Result<(), &'static str> {
        let name = object_name(&self.name, 0);
        let named = name.strip_prefix("layers/").and_then(layer_of);
        if named.is_none_or(|(layer, _)| layer != self.name) || self.name.contains(['/', '.']) {
            return Err("a layer with a wrong name");
        }
        let end = self.index_offset.checked_add(self.index_length);
        if self.blocks > MAX_BLOCKS || end.is_none_or(|end| end > MAX_OBJECT) {
            return Err("a layer that is larger than it can be");
        }
        Ok(())
    }
}

impl Moment {
    fn check(&self, head: u64) -> Result<(), &'static str> {
        let distinct: BTreeSet<_> = self.layers.iter().collect();
        if self.number > head || distinct.len() != self.layers.len() {
            return Err("a moment with a layer twice, or of a later head");
        }
        if self.blocks > MAX_BLOCKS || self.live > self.blocks || self.nanoseconds >= 1_000_000_000
        {
            return Err("a moment with a size or time that cannot be");
        }
        Ok(())
    }
}
