//! The places that have a superblock or the durable mark several times over, and one of which has neither.
//!
//! These are notes, not findings. A power cut while a superblock is written leaves an invalid block, and the
//! bytes do not tell that from damage. The mark lies in one sector, which a power cut leaves old or new; but a
//! program need not write a mark, so in a unit with copies of the superblock there may be what was there
//! before. Neither harms a volume, because other places have the same: an opening for changes writes the
//! superblocks, and the first sync that makes more of the log durable the mark. Where nothing else has it
//! (`checked_volume`), it is a finding.

use cairnfs_disk::device::{AlignedBuf, Device};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::mark::RawMark;
use cairnfs_disk::format::superblock::{Superblock, copy_blocks_of};

use crate::codes;
use crate::report::{Finding, Ledger};

/// What a place has.
#[derive(PartialEq, Eq)]
enum Content {
    /// What belongs there.
    Valid,
    /// Only zeros.
    Nothing,
    /// Anything else, or it cannot be read.
    Other,
}

impl Content {
    fn of(device: &dyn Device, block: u64, is_valid: impl FnOnce(&[u8]) -> bool) -> Self {
        match read_block(device, block) {
            Ok(Some(bytes)) if is_valid(&bytes) => Self::Valid,
            Ok(Some(bytes)) if bytes.iter().all(|byte| *byte == 0) => Self::Nothing,
            _ => Self::Other,
        }
    }
}

/// Notes the places of superblocks and of the mark that have neither. `newest` is the newest superblock,
/// `before` the one before it, if a place has it.
pub(crate) fn note(
    device: &dyn Device,
    (newest, before): (&Superblock, Option<&Superblock>),
    ledger: &mut Ledger<'_>,
) {
    let is_first = newest.generation.get() <= 1;
    // If both are lost, or the copies are newer, that is a finding.
    let mut front = Vec::new();
    for block in SUPERBLOCK_SLOTS {
        let is_valid = |bytes: &[u8]| Superblock::decode(block, bytes).is_ok();
        let content = Content::of(device, block, is_valid);
        // A new volume has one superblock.
        let is_unwritten = content == Content::Nothing && is_first;
        front.extend((content != Content::Valid && !is_unwritten).then_some(block));
    }
    note_slot(&front, ledger);
    // The first superblock that names a unit is written before the unit has any.
    let is_known = |unit: &u64| before.is_none_or(|s| s.copy_units().any(|known| known == *unit));
    for unit in newest.copy_units().filter(is_known) {
        let is_lost = |block: &u64| {
            let is_valid = |bytes: &[u8]| {
                let found = Superblock::decode_copy(*block, bytes);
                found.is_ok_and(|found| found.uuid == newest.uuid)
            };
            Content::of(device, *block, is_valid) != Content::Valid
        };
        let lost: Vec<u64> = copy_blocks_of(unit).into_iter().filter(is_lost).collect();
        note_slot(&lost, ledger);
    }
    for (block, place) in newest.mark_blocks() {
        let is_valid = |bytes: &[u8]| RawMark::decode(bytes, &newest.uuid, place).is_some();
        if Content::of(device, block, is_valid) == Content::Other {
            let message = "no durable mark where one was, or may have been, and others count: the next \
                           sync of changes writes it anew";
            ledger.note(Finding::new(codes::MARK_PLACE, message).at(block));
        }
    }
}

/// Notes the place of one slot that is lost. If both of a place are, it has a finding.
fn note_slot(lost: &[u64], ledger: &mut Ledger<'_>) {
    if let [block] = lost {
        let message = "no superblock in one of its places: a power cut while it was written, or damage; \
                       the next opening for changes writes it anew";
        ledger.note(Finding::new(codes::SUPERBLOCK_PLACE, message).at(*block));
    }
}

/// Reads a block, if the device has it.
pub(crate) fn read_block(device: &dyn Device, block: u64) -> Result<Option<AlignedBuf>> {
    let offset = block.saturating_mul(BLOCK_SIZE as u64);
    if device.size() < offset.saturating_add(BLOCK_SIZE as u64) {
        return Ok(None);
    }
    let mut buf = AlignedBuf::zeroed(BLOCK_SIZE);
    device.read(offset, &mut buf)?;
    Ok(Some(buf))
}
