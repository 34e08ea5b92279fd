//! The volume under check: its device, the current superblock, and block reads.
//!
//! A crash during a superblock write leaves an invalid slot, so an invalid slot alone is not a
//! finding but a note (`places`), neither at the front nor in a copy. The log shows whether the newest superblock was lost.

use cairnfs_disk::device::{AlignedBuf, Device};
use cairnfs_disk::error::{Corruption, Error, Result};
use cairnfs_disk::format::geometry::{Geometry, SUPERBLOCK_SLOTS};
use cairnfs_disk::format::search::{CHUNK, Effort, Search};
use cairnfs_disk::format::superblock::{
    CHECKPOINTS, KNOWN_INCOMPATIBLE, KNOWN_RO_COMPATIBLE, MAGIC, RawCheckpoint, Superblock, absent,
    copy_blocks_of,
};
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS};

use crate::codes;
use crate::places::{self, read_block};
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
            let end = blocks.saturating_mul(BLOCK_SIZE as u64);
            let message = format!(
                "volume of {end} bytes on a device of {size}: the bytes from {size} to {end} are \
                 beyond its end"
            );
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

/// A unit with copies of the superblock, as it was found.
struct Copies {
    unit: u64,
    slots: [Option<Superblock>; 2],
}

impl Copies {
    /// Reads the copies that a superblock names.
    fn of(superblock: &Superblock, device: &dyn Device) -> Vec<Self> {
        let read = |block| {
            // One that cannot be read is none.
            let bytes = read_block(device, block).ok().flatten()?;
            let found = Superblock::decode_copy(block, &bytes).ok();
            found.filter(|found| found.uuid == superblock.uuid)
        };
        let units = superblock.copy_units();
        let copies = units.map(|unit| Self {
            unit,
            slots: copy_blocks_of(unit).map(read),
        });
        copies.collect()
    }

    /// Whether the unit is as writing superblocks leaves it, at most cut off by a power cut. The
    /// newest superblock is written after the one before is durable in all places that it names.
    fn is_regular(&self, newest: &Superblock, before: Option<&Superblock>) -> bool {
        let before_knows = before.is_none_or(|s| s.copy_units().any(|unit| unit == self.unit));
        if !before_knows {
            return true;
        }
        let generation = newest.generation.get();
        let slot = newest.slot();
        let (new, old) = match self.slots {
            [even, odd] if slot == 0 => (even, odd),
            [even, odd] => (odd, even),
        };
        let is_before = |s: Superblock| s.generation.get() + 1 == generation;
        match (new, old) {
            (Some(new), old) if new.generation.get() == generation => {
                new.encode() == newest.encode() && old.is_none_or(is_before)
            }
            (Some(new), Some(old)) => new.generation.get() + 2 == generation && is_before(old),
            (None, Some(old)) => is_before(old),
            _ => false,
        }
    }

    /// The finding for a unit that is not regular.
    fn finding(&self, newest: &Superblock) -> Finding {
        let found: Vec<String> = self
            .slots
            .iter()
            .map(|slot| slot.map_or("none".into(), |s| s.generation.to_string()))
            .collect();
        let message = format!(
            "copies of the superblocks {} were found, the newest is {}",
            found.join(" and "),
            newest.generation
        );
        Finding::new(codes::SUPERBLOCK_COPY, message).at(self.unit)
    }
}

/// The newest copy of a superblock on a device that has none at its front, and its block.
fn find_copy(
    device: &dyn Device,
    damage: Option<Corruption>,
    unread: Option<&Error>,
) -> Result<(u64, Superblock)> {
    let mut buf = AlignedBuf::zeroed(CHUNK as usize);
    let found = Search::run(device.size(), Effort::All, &mut |offset, len, look| {
        let part = buf.get_mut(..len as usize).unwrap_or_default();
        if device.read(offset, part).is_ok() {
            look(part);
        }
    });
    found
        .newest()
        .ok_or_else(|| match (unread, damage, found.lost()) {
            (Some(e), ..) => e.clone(),
            (_, Some(c), _) => Error::NotAVolume(format!("neither superblock is valid: {c}")),
            (_, None, Some(lost)) => lost,
            (_, None, None) => absent(device.size()),
        })
}

/// Returns the newest valid superblock, and whether both slots at the front are valid.
fn choose(device: &dyn Device, ledger: &mut Ledger<'_>) -> Result<(Superblock, bool)> {
    let mut valid: Vec<Superblock> = Vec::new();
    let (mut damage, mut unread) = (None, None);
    for block in SUPERBLOCK_SLOTS {
        let buf = match read_block(device, block) {
            Ok(Some(buf)) => buf,
            Ok(None) => return Err(absent(device.size())),
            Err(error) => {
                unread = Some(error);
                continue;
            }
        };
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
    let front = valid.iter().max_by_key(|s| s.generation.get()).copied();
    let (known, found) = match front {
        Some(known) => (known, None),
        None => {
            find_copy(device, damage, unread.as_ref()).map(|(block, known)| (known, Some(block)))?
        }
    };
    let copies = Copies::of(&known, device);
    let copied = copies.iter().any(|c| c.slots.iter().any(Option::is_some));
    if let Some(error) = unread.filter(|_| !copied) {
        return Err(error);
    }
    let newest = check_copies(device, &known, (&valid, &copies), ledger);
    match (front, found) {
        (_, Some(block)) => {
            let message = "no superblock at the front of the volume: a copy is used";
            ledger.add(Finding::new(codes::SUPERBLOCK_FRONT, message).at(block));
        }
        // One more is what a power cut leaves.
        (Some(front), _) if front.generation.get() + 1 < newest.generation.get() => {
            let message = format!(
                "the newest superblock at the front is {}, a copy of {} is used",
                front.generation, newest.generation
            );
            ledger.add(Finding::new(codes::SUPERBLOCK_FRONT, message));
        }
        _ => {}
    }
    Ok((newest, both))
}

/// The newest of the superblocks at the front and in the copies; reports copies that cannot be. Of
/// equal ones, that at the front counts.
fn check_copies(
    device: &dyn Device,
    known: &Superblock,
    (front, copies): (&[Superblock], &[Copies]),
    ledger: &mut Ledger<'_>,
) -> Superblock {
    let copied = copies.iter().flat_map(|copies| copies.slots);
    let all: Vec<Superblock> = front.iter().copied().chain(copied.flatten()).collect();
    let newer = all.iter().fold(*known, |newest, other| {
        if other.generation.get() > newest.generation.get() {
            *other
        } else {
            newest
        }
    });
    let generation = newer.generation.get();
    let before = all.iter().find(|s| s.generation.get() + 1 == generation);
    places::note(device, (&newer, before), ledger);
    for unit in copies {
        if !unit.is_regular(&newer, before) {
            ledger.add(unit.finding(&newer));
        }
    }
    newer
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
