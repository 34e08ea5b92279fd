//! What a device says it is: the newest superblock, the features of the volume, its size.
//!
//! Nothing is believed before the checksum of a superblock holds, and nothing is written, except by
//! [`Identity::mend`], which an opening for changes calls.
//!
//! A superblock is written to its slot at the front and to that of each copy at once, when all it
//! refers to is durable. So each place alone has what the front has, with the same meaning, and the
//! newest valid superblock of any place counts. What differs from it afterwards, as a power cut or
//! damage leaves it, is mended before anything else is written: no place ever keeps a superblock that
//! the volume did not go on from.

use cairnfs_disk::device::{AlignedBuf, Device};
use cairnfs_disk::error::{Corruption, Error, Result};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::foreign;
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::search::{CHUNK, Effort, Search};
use cairnfs_disk::format::superblock::{
    KNOWN_INCOMPATIBLE, MAGIC, RawSuperblock, Superblock, absent, copy_blocks_of,
};
use cairnfs_disk::types::LostFront;

/// The newest superblock, and what is known of the places of superblocks.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The newest valid superblock.
    pub superblock: Superblock,
    /// Whether a slot at the front holds no valid superblock.
    pub other_lost: bool,
    /// The superblock before the newest, if a place has it.
    before: Option<Superblock>,
    /// If no slot at the front holds a valid superblock.
    pub front: Option<LostFront>,
}

/// The result of reading a block that may have a superblock.
enum Slot {
    Valid(Box<Superblock>),
    /// It has the magic number of one.
    Damaged(Corruption),
    Other,
    Unread(Error),
}

impl Slot {
    fn read(device: &dyn Device, block: u64, is_copy: bool) -> Self {
        let offset = block.saturating_mul(BLOCK_SIZE as u64);
        if offset.saturating_add(BLOCK_SIZE as u64) > device.size() {
            return Slot::Other;
        }
        let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
        if let Err(error) = device.read(offset, &mut bytes) {
            return Slot::Unread(error);
        }
        let decoded = if is_copy {
            RawSuperblock::decode_copy(block, &bytes)
        } else {
            RawSuperblock::decode(block, &bytes)
        };
        match decoded {
            Ok(superblock) => Slot::Valid(Box::new(superblock)),
            Err(why) if bytes.starts_with(&MAGIC) => Slot::Damaged(why),
            Err(_) => Slot::Other,
        }
    }

    fn valid(&self) -> Option<Superblock> {
        match self {
            Slot::Valid(superblock) => Some(**superblock),
            _ => None,
        }
    }
}

/// Searches a device for copies of superblocks.
pub fn find_copies(device: &dyn Device, effort: Effort) -> Search {
    let mut buf = AlignedBuf::zeroed(CHUNK as usize);
    Search::run(device.size(), effort, &mut |offset, len, look| {
        let part = buf.get_mut(..len as usize).unwrap_or_default();
        // What cannot be read has no copy that could be used.
        if device.read(offset, part).is_ok() {
            look(part);
        }
    })
}

/// Reads the superblocks at the front and their copies. If the front has none, the device is
/// searched for copies.
///
/// # Errors
/// [`Error::NotAVolume`] if nothing of a volume is found; [`Error::FrontLost`] if there was one;
/// [`Error::Corrupt`] if a slot looks like a superblock, but none is valid and there is no copy;
/// [`Error::Incompatible`] for unknown incompatible features; the device's failure.
pub fn read_superblock(device: &dyn Device) -> Result<Identity> {
    let end = (SUPERBLOCK_SLOTS[1] + 1) * BLOCK_SIZE as u64;
    if device.size() < end {
        return Err(absent(device.size()));
    }
    let front = SUPERBLOCK_SLOTS.map(|block| Slot::read(device, block, false));
    let valid = front.iter().filter_map(Slot::valid);
    let lost = front.iter().any(|slot| slot.valid().is_none());
    let (known, front_lost) = match valid.max_by_key(|s| s.generation.get()) {
        Some(newest) => (newest, None),
        None => {
            let (copy, newest) = find_copy(device, &front)?;
            let front = LostFront {
                copy,
                foreign: what_is_at_front(device),
                mended: false,
            };
            (newest, Some(front))
        }
    };
    // The front comes first: of equals it counts.
    let mut all: Vec<Superblock> = front.iter().filter_map(Slot::valid).collect();
    let mut copies = 0;
    for unit in known.copy_units() {
        for block in copy_blocks_of(unit) {
            let found = Slot::read(device, block, true).valid();
            let ours = found.filter(|s| s.uuid == known.uuid);
            copies += usize::from(ours.is_some());
            all.extend(ours);
        }
    }
    if copies == 0
        && let Some(Slot::Unread(error)) = front.iter().find(|s| matches!(s, Slot::Unread(_)))
    {
        return Err(error.clone());
    }
    let mut superblock = known;
    for other in &all {
        if other.generation.get() > superblock.generation.get() {
            superblock = *other;
        }
    }
    check_features(&superblock)?;
    let previous = superblock.generation.get().checked_sub(1);
    let mut all = all.into_iter();
    Ok(Identity {
        superblock,
        other_lost: lost,
        before: all.find(|s| Some(s.generation.get()) == previous),
        front: front_lost,
    })
}

/// The newest superblock at the front of a device, if there is a valid one.
pub fn newest_at_front(device: &dyn Device) -> Option<Superblock> {
    let slots = SUPERBLOCK_SLOTS.map(|block| Slot::read(device, block, false));
    let valid = slots.iter().filter_map(Slot::valid);
    valid.max_by_key(|s| s.generation.get())
}

/// The newest copy on a device without a superblock at its front.
fn find_copy(device: &dyn Device, front: &[Slot]) -> Result<(u64, Superblock)> {
    let found = find_copies(device, Effort::All);
    if let Some(newest) = found.newest() {
        return Ok(newest);
    }
    let mut damage = None;
    for slot in front {
        match slot {
            Slot::Unread(error) => return Err(error.clone()),
            Slot::Damaged(why) => damage = Some(why.clone()),
            _ => {}
        }
    }
    Err(match (damage, found.lost()) {
        (Some(why), _) => why.into(),
        (None, Some(lost)) => lost,
        (None, None) => absent(device.size()),
    })
}

fn what_is_at_front(device: &dyn Device) -> Option<&'static str> {
    let mut bytes = AlignedBuf::zeroed(foreign::FRONT as usize);
    device.read(0, &mut bytes).ok()?;
    foreign::known(&bytes)
}

impl Identity {
    /// The state before, if a place has its superblock.
    pub(super) fn before(&self) -> Option<Self> {
        let before = self.before.filter(|s| s.uuid == self.superblock.uuid)?;
        Some(Self {
            superblock: before,
            before: None,
            ..*self
        })
    }

    /// Refuses changes to a volume over whose front something else was made that may be in use.
    ///
    /// # Errors
    /// [`Error::FrontLost`].
    pub(super) fn refuse_foreign(&self) -> Result<()> {
        match self.front.and_then(|front| front.foreign) {
            None => Ok(()),
            Some(what) => Err(Error::FrontLost {
                found: format!(
                    "the front of this CairnFS volume was overwritten: it is that of {what}"
                ),
                next: "if that is in use, copy the volume's files elsewhere: `cairnfs export` and \
                       `cairnfs mount -o ro` read them; to keep the volume instead, erase what was \
                       made over it with `wipefs --all`, then open it again"
                    .into(),
            }),
        }
    }

    /// Writes the superblocks to all places that should have them and do not; does not flush. Returns
    /// whether there were any: then they must be durable before anything else is written.
    pub(super) fn mend(&mut self, device: &dyn Device) -> Result<bool> {
        let mut any = false;
        for superblock in self.before.into_iter().chain([self.superblock]) {
            if superblock.uuid == self.superblock.uuid {
                any |= write_where_missing(device, &superblock, &self.superblock)?;
            }
        }
        if let Some(front) = &mut self.front {
            front.mended = true;
        }
        Ok(any)
    }
}

/// Writes a superblock to the places of its slot that do not have it. `newest` names the copies:
/// its predecessor may not know them yet, and is not copied then. Returns whether a place was written.
fn write_where_missing(
    device: &dyn Device,
    superblock: &Superblock,
    newest: &Superblock,
) -> Result<bool> {
    let mut any = false;
    let slot = superblock.slot();
    let known = newest.copy_blocks(slot);
    let copies = known.filter(|block| superblock.copy_blocks(slot).any(|own| own == *block));
    let copies = copies.map(|block| (block, block));
    for (block, place) in [(superblock.slot_block(), 0)].into_iter().chain(copies) {
        let wanted = superblock.encode_copy(place);
        let mut found = AlignedBuf::zeroed(BLOCK_SIZE);
        let read = device.read(block * BLOCK_SIZE as u64, &mut found);
        if read.is_err() || found.get(..) != Some(wanted.as_slice()) {
            let mut aligned = AlignedBuf::zeroed(BLOCK_SIZE);
            aligned.copy_from_slice(&wanted);
            device.write(block * BLOCK_SIZE as u64, &aligned)?;
            any = true;
        }
    }
    Ok(any)
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

#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "../tests/places.rs"]
mod tests;
