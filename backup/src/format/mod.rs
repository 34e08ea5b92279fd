//! What objects of a backup look like: names, hashes, heads, layers. `docs/backup-format.md` has the
//! same in words, and is changed in the same commit.
//!
//! All of it is decoded from bytes that may be hostile: memory is bounded by the constants here, and
//! every number is checked before it is used. Uses only the error type.

pub mod bytes;
pub mod head;
pub mod layer;
pub mod root;

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The version of the format.
pub const FORMAT: u32 = 1;
/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Blocks of a frame, the unit of compression and of reading; the last one of a layer can have fewer.
pub const FRAME_BLOCKS: u64 = 64;
/// Bytes of a frame.
pub const FRAME: usize = FRAME_BLOCKS as usize * BLOCK;
/// Blocks of an object; the last one of a layer can have fewer.
pub const OBJECT_BLOCKS: u64 = 4096;
/// Blocks of the largest image: 16 TiB.
pub const MAX_BLOCKS: u64 = 1 << 32;
/// Most bytes of a stored frame.
pub const MAX_FRAME: u64 = 320 << 10;
/// Most bytes of a stored object.
pub const MAX_OBJECT: u64 = 64 << 20;
/// Most bytes of a head, a root object or an index, unpacked.
pub const MAX_UNPACKED: usize = 64 << 20;
/// What the last heads before a prune may need besides all that is told already.
pub const HEAD_ROOM: usize = 4 << 20;
/// Most runs of a layer; what has more is stored as several layers.
pub const MAX_RUNS: usize = 1 << 20;
/// Heads that share one mark when they are deleted; the first one of them is whole.
pub const HEADS_TOGETHER: u64 = 256;

/// The greatest number of a head; a greater one is refused, so that numbers can be added to.
pub const MAX_NUMBER: u64 = 1 << 60;
/// Most heads, or copies of heads, that a store may list.
pub const MAX_HEADS: usize = 1 << 16;

/// A SHA-256, in JSON as hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// That of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// That of several hashes one behind the other.
    pub fn of_all<'a>(hashes: impl IntoIterator<Item = &'a Hash>) -> Self {
        let mut all = Sha256::new();
        for hash in hashes {
            all.update(hash.0);
        }
        Self(all.finalize().into())
    }

    /// Its first half, as frame tables have it.
    pub fn short(&self) -> [u8; 16] {
        let mut short = [0; 16];
        short
            .iter_mut()
            .zip(self.0)
            .for_each(|(to, from)| *to = from);
        short
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for Hash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.len() != 64 || !text.is_ascii() {
            return Err("not 64 hexadecimal digits");
        }
        let mut hash = [0; 32];
        for (i, byte) in hash.iter_mut().enumerate() {
            let digits = text.get(2 * i..2 * i + 2).unwrap_or_default();
            *byte = u8::from_str_radix(digits, 16).map_err(|_| "not hexadecimal digits")?;
        }
        Ok(Self(hash))
    }
}

/// Compresses what has no frames.
pub fn packed(bytes: &[u8]) -> Result<Vec<u8>> {
    zstd::bulk::compress(bytes, 3).map_err(Error::host("compression"))
}

/// Its reverse, into [`MAX_UNPACKED`] bytes at most.
pub fn unpacked(object: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let told = unpacked_size(bytes);
    if told > MAX_UNPACKED {
        return Err(Error::damaged(object, "larger than it can be"));
    }
    zstd::bulk::decompress(bytes, told).map_err(|why| Error::damaged(object, why))
}

/// How many bytes [`unpacked`] makes of it.
pub fn unpacked_size(bytes: &[u8]) -> usize {
    zstd::bulk::Decompressor::upper_bound(bytes).unwrap_or(0)
}

/// The name of a head.
pub fn head_name(number: u64) -> String {
    format!("heads/{number:020}")
}

/// The name of the second object with the bytes of a head.
pub fn copy_name(number: u64) -> String {
    format!("copies/{number:020}")
}

/// The number of a head, from its name, or that of its copy, without folders.
pub fn head_number(name: &str) -> Option<u64> {
    let is_one = name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit());
    let number = is_one.then(|| name.parse().ok()).flatten();
    number.filter(|number| (1..=MAX_NUMBER).contains(number))
}

/// The name of the mark that heads with this number, and those beside it, may have been deleted.
pub fn gone_name(number: u64) -> String {
    format!("gone/{:020}", number / HEADS_TOGETHER)
}

/// The name of an object of a layer.
pub fn object_name(layer: &str, object: u64) -> String {
    format!("layers/{layer}-{object:08}")
}

/// The name of a layer from that of one of its objects, and the epoch of its writer.
pub fn layer_of(name: &str) -> Option<(&str, u64)> {
    let (layer, object) = name.rsplit_once('-')?;
    let (epoch, _) = layer.split_once('-')?;
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let is_one = epoch.len() == 20 && object.len() == 8 && digits(epoch) && digits(object);
    is_one
        .then(|| epoch.parse().ok())
        .flatten()
        .map(|e| (layer, e))
}

/// A name that no other layer has, and that tells the epoch of its writer.
pub fn new_layer(epoch: u64) -> Result<String> {
    Ok(format!("{epoch:020}-{}", random_name()?))
}

/// 32 random hexadecimal digits.
pub fn random_name() -> Result<String> {
    let mut bytes = [0; 16];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|why| Error::host("random numbers")(std::io::Error::other(why)))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
