//! The volume under check: its device, the current superblock, and block reads.
//!
//! A crash during a superblock write leaves an invalid slot, so an invalid slot alone is not a
//! finding. The log shows whether the newest superblock was lost.

use cairnfs::device::{AlignedBuf, Device};
use cairnfs::error::{Error, Result};
use cairnfs::format::geometry::{Geometry, SUPERBLOCK_SLOTS};
use cairnfs::format::superblock::{
    CHECKPOINTS, KNOWN_INCOMPATIBLE, KNOWN_RO_COMPATIBLE, MAGIC, RawCheckpoint, Superblock, absent,
};
use cairnfs::format::{BLOCK_SIZE, NODE_BLOCKS};

use crate::codes;
use crate::report::{Finding, Ledger};

pub(crate) struct Volume<'d> {
    device: &'d dyn Device,
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    /// Whether the other slot holds a valid superblock too.
    pub(crate) both_slots: bool,
}

impl<'d> Volume<'d> {
    /// Chooses the superblock; `None` if the device is too small to continue.
    pub(crate) fn open(device: &'d dyn Device, ledger: &mut Ledger<'_>) -> Result<Option<Self>> {
        ledger.progress("superblock", 0, 2);
        let (superblock, both_slots) = choose(device, ledger)?;
        refuse_unknown_features(&superblock)?;
        check_checkpoints(&superblock, ledger);
        ledger.progress("superblock", 2, 2);
        let geometry = superblock.geometry();
        let (size, blocks) = (device.size(), geometry.total_blocks);
        if size / (BLOCK_SIZE as u64) < blocks {
            let message = format!("volume of {blocks} blocks on a device of {size} bytes");
            ledger.add(Finding::new(codes::DEVICE_TOO_SMALL, message));
            ledger.unchecked("everything behind the superblock");
            return Ok(None);
        }
        Ok(Some(Self {
            device,
            superblock,
            geometry,
            both_slots,
        }))
    }

    /// Reads `count` blocks from `block`; the caller has checked that the range exists.
    pub(crate) fn read(&self, block: u64, count: u64) -> Result<AlignedBuf> {
        let mut buf = AlignedBuf::zeroed(count as usize * BLOCK_SIZE);
        self.read_into(block, &mut buf)?;
        Ok(buf)
    }

    /// As [`Self::read`], into a buffer of whole blocks.
    pub(crate) fn read_into(&self, block: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(block * BLOCK_SIZE as u64, buf)
    }

    /// Whether an index node or a unit of a large value can be at `block`.
    pub(crate) fn can_hold_node(&self, block: u64) -> bool {
        block.is_multiple_of(NODE_BLOCKS) && self.geometry.in_data(block, NODE_BLOCKS)
    }

    /// The first eight bytes of the volume's UUID, as nodes contain it.
    pub(crate) fn short_id(&self) -> u64 {
        let id = self.superblock.uuid;
        id.first_chunk().map_or(0, |c| u64::from_le_bytes(*c))
    }
}

/// Returns the newest valid superblock, and whether the other slot is valid too.
fn choose(device: &dyn Device, ledger: &mut Ledger<'_>) -> Result<(Superblock, bool)> {
    let mut valid: Vec<Superblock> = Vec::new();
    let mut damage = None;
    for block in SUPERBLOCK_SLOTS {
        let offset = block * BLOCK_SIZE as u64;
        if device.size() < offset + BLOCK_SIZE as u64 {
            continue;
        }
        let mut buf = AlignedBuf::zeroed(BLOCK_SIZE);
        device.read(offset, &mut buf)?;
        match Superblock::decode(block, &buf) {
            Ok(superblock) => {
                if superblock.slot_block() != block {
                    let message = format!("generation {} in the other slot", superblock.generation);
                    ledger.add(Finding::new(codes::SUPERBLOCK_SLOT, message).at(block));
                }
                valid.push(superblock);
            }
            Err(c) if buf.get(..MAGIC.len()) == Some(&MAGIC) => damage = Some(c),
            Err(_) => {}
        }
    }
    ledger.stats().superblocks = valid.len() as u64;
    let both = valid.len() == 2;
    if let [a, b] = valid.as_slice()
        && a.uuid != b.uuid
    {
        let message = "the two superblock slots belong to different volumes";
        ledger.add(Finding::new(codes::SUPERBLOCK_MISMATCH, message));
    }
    valid
        .into_iter()
        .max_by_key(|s| s.generation.get())
        .map(|s| (s, both))
        .ok_or_else(|| match damage {
            Some(c) => Error::NotAVolume(format!("neither superblock is valid: {c}")),
            None => absent(device.size()),
        })
}

/// Checks that the checkpoints of a superblock are states that the volume can have had.
fn check_checkpoints(superblock: &Superblock, ledger: &mut Ledger<'_>) {
    let (newest, before) = (superblock.checkpoint, superblock.checkpoint_before);
    let merged = superblock.merged_seq.get();
    let none = RawCheckpoint::default();
    let mut report = |message: String| ledger.add(Finding::new(codes::CHECKPOINT, message));
    if newest.seq.get() > merged {
        report(format!(
            "one of sequence {}, merged is {merged}",
            newest.seq
        ));
    }
    if before != none && before.seq > newest.seq {
        report(format!(
            "one of sequence {} was compared with one of {}",
            newest.seq, before.seq
        ));
    }
    let marked = superblock.ro_compatible.get() & CHECKPOINTS != 0;
    if newest != none && !marked {
        report("one on a volume without the feature of checkpoints".into());
    }
}

fn refuse_unknown_features(superblock: &Superblock) -> Result<()> {
    let incompatible = superblock.incompatible.get() & !KNOWN_INCOMPATIBLE;
    let read_only = superblock.ro_compatible.get() & !KNOWN_RO_COMPATIBLE;
    if incompatible | read_only == 0 {
        return Ok(());
    }
    Err(Error::Incompatible(format!(
        "unknown features {incompatible:x} (incompatible), {read_only:x} (read-only compatible)"
    )))
}
