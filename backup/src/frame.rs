//! Frames: up to 64 blocks, compressed, and encrypted if the backup is.

use crate::error::{Error, Result};
use crate::format::layer::Frame;
use crate::format::{BLOCK, FRAME, Hash};
use crate::seal::Seal;

/// The level of compression.
const LEVEL: i32 = 3;

/// A frame as it is stored.
///
/// # Errors
/// None that is known.
pub fn encode(blocks: &[u8], seal: &Seal) -> Result<Vec<u8>> {
    let packed = zstd::bulk::compress(blocks, LEVEL).map_err(Error::host("compression"))?;
    seal.close(packed)
}

/// The blocks of a frame, of which there are `blocks`.
///
/// # Errors
/// The bytes are not those that were stored, or cannot be read without the identity.
pub fn decode(
    name: &str,
    stored: &[u8],
    frame: &Frame,
    blocks: u64,
    seal: &Seal,
) -> Result<Vec<u8>> {
    verify(name, stored, frame)?;
    let packed = seal.open(name, stored)?;
    let len = (blocks as usize).saturating_mul(BLOCK).min(FRAME);
    let unpacked = zstd::bulk::decompress(&packed, len);
    let unpacked = unpacked.map_err(|why| Error::damaged(name, why))?;
    if unpacked.len() == len {
        Ok(unpacked)
    } else {
        Err(Error::damaged(
            name,
            "a frame with another number of blocks",
        ))
    }
}

/// Compares a frame with its hash.
///
/// # Errors
/// It has another one.
pub fn verify(name: &str, stored: &[u8], frame: &Frame) -> Result<()> {
    if Hash::of(stored).short() == frame.hash {
        Ok(())
    } else {
        Err(Error::damaged(
            name,
            format!("the frame at byte {} has another hash", frame.offset),
        ))
    }
}
