//! What a device says it is: the newest superblock, the features of the volume, its size.
//!
//! Nothing is believed before the checksum of a superblock holds, and nothing is written.

use crate::device::{AlignedBuf, Device};
use crate::error::{Corruption, Error, Result};
use crate::format::BLOCK_SIZE;
use crate::format::geometry::SUPERBLOCK_SLOTS;
use crate::format::superblock::{KNOWN_INCOMPATIBLE, MAGIC, RawSuperblock, Superblock, absent};

/// The newest superblock, and whether the other slot is invalid.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The newest valid superblock.
    pub superblock: Superblock,
    /// Whether the other slot holds no valid superblock.
    pub other_lost: bool,
}

/// Reads the superblocks.
///
/// # Errors
/// [`Error::NotAVolume`] if neither slot looks like a superblock; [`Error::Corrupt`] if one does
/// but none is valid; [`Error::Incompatible`] for unknown incompatible features; the device's
/// failure.
pub fn read_superblock(device: &dyn Device) -> Result<Identity> {
    let mut newest: Option<Superblock> = None;
    let mut damage: Option<Corruption> = None;
    let mut lost = false;
    for block in SUPERBLOCK_SLOTS {
        let offset = block * BLOCK_SIZE as u64;
        let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
        if offset + BLOCK_SIZE as u64 > device.size() {
            return Err(absent(device.size()));
        }
        device.read(offset, &mut bytes)?;
        match RawSuperblock::decode(block, &bytes) {
            Ok(s) => {
                if newest.is_none_or(|n| n.generation.get() < s.generation.get()) {
                    newest = Some(s);
                }
            }
            Err(c) => {
                lost = true;
                if bytes.get(..MAGIC.len()) == Some(&MAGIC) {
                    damage = Some(c);
                }
            }
        }
    }
    let superblock = match (newest, damage) {
        (Some(s), _) => s,
        (None, Some(c)) => return Err(c.into()),
        (None, None) => {
            return Err(absent(device.size()));
        }
    };
    check_features(&superblock)?;
    Ok(Identity {
        superblock,
        other_lost: lost,
    })
}

/// The error for a device that is shorter than its volume, if it is; `next` is the advice to give.
pub(super) fn cut_off(
    superblock: &Superblock,
    device: &dyn Device,
    next: &'static str,
) -> Option<Error> {
    let size = superblock.total_blocks.get() * BLOCK_SIZE as u64;
    let left = device.size();
    (left < size).then_some(Error::CutOff { size, left, next })
}

/// Advice for a volume that was cut off and whose log and roots are readable.
pub(super) const READ_THE_REST: &str =
    "`cairnfs export` and `cairnfs mount -o ro` read what is left";
/// Advice for one whose log or roots are not.
pub(super) const NOTHING_LEFT: &str = "what is left is too little to find any file";

fn check_features(superblock: &Superblock) -> Result<()> {
    let unknown = superblock.incompatible.get() & !KNOWN_INCOMPATIBLE;
    if unknown != 0 {
        return Err(Error::Incompatible(format!(
            "incompatible features {unknown:#x}; update CairnFS to open it"
        )));
    }
    Ok(())
}
