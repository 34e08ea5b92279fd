//! Finding a volume whose front is lost: by copies of its superblock, or at least by its traces.
//!
//! A search is told by the caller what a device contains, in the ranges that it asks for: first the
//! end and the middle, where copies belong, then samples, then, of a small device and of one with
//! traces, everything. A structure is known by its magic number, its checksum and its own place, so
//! that an image in a file of a volume is not taken for the volume.

use zerocopy::FromBytes;

use crate::error::Error;
use crate::format::node::{NODE_MAGIC, NodeHeader};
use crate::format::record::{RECORD_MAGIC, RecordHeader};
use crate::format::superblock::{MAGIC, RawSuperblock, Superblock};
use crate::format::{BLOCK_SIZE, NODE_BLOCKS};

/// Bytes that are asked for at once.
pub const CHUNK: u64 = 1 << 20;
/// Bytes at the front, with the log, that are sampled.
const FRONT: u64 = 64 << 20;
/// Number of other samples of [`CHUNK`] bytes.
const SAMPLES: u64 = 64;
/// A device of at most this size is searched as a whole without a trace of a volume.
const SMALL: u64 = 1 << 30;

/// How much is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Only the places where new volumes have copies.
    Places,
    /// All that may tell whether there was a volume.
    All,
}

/// What was found on a device.
#[derive(Debug, Default)]
pub struct Search {
    /// Valid copies, each with its block.
    copies: Vec<(u64, Superblock)>,
    /// Whether there is an index node in its place, or a copy.
    nodes: bool,
    /// Whether there is a log record, which does not tell its place.
    records: bool,
    /// How many bytes after its place a superblock was found: the volume begins there.
    shifted: Option<i128>,
}

/// Passes `len` bytes from an offset to the function, unless they cannot be read.
pub type Read<'a> = dyn FnMut(u64, u64, &mut dyn FnMut(&[u8])) + 'a;

impl Search {
    /// Searches a device of `size` bytes.
    pub fn run(size: u64, effort: Effort, read: &mut Read<'_>) -> Self {
        let mut search = Self::default();
        let size = size - size % BLOCK_SIZE as u64;
        let window = |from: u64, len: u64| (from - from % BLOCK_SIZE as u64, len);
        let places = [
            window(size.saturating_sub(2 * CHUNK), 2 * CHUNK),
            window((size / 2).saturating_sub(CHUNK / 2), CHUNK),
        ];
        search.look_in(&places, size, read);
        if effort == Effort::Places || !search.copies.is_empty() {
            return search;
        }
        search.look_in(&[(0, FRONT)], size, read);
        let apart = size / SAMPLES;
        let samples: Vec<_> = (1..SAMPLES).map(|i| window(i * apart, CHUNK)).collect();
        if apart > CHUNK {
            search.look_in(&samples, size, read);
        }
        if search.copies.is_empty() && (search.nodes || search.records || size <= SMALL) {
            search.look_in(&[(0, size)], size, read);
        }
        search
    }

    fn look_in(&mut self, ranges: &[(u64, u64)], size: u64, read: &mut Read<'_>) {
        for (from, len) in ranges {
            let end = from.saturating_add(*len).min(size);
            let mut at = *from;
            while at < end {
                let len = (end - at).min(CHUNK);
                read(at, len, &mut |bytes| self.look(at, bytes));
                at += len;
            }
        }
    }

    fn look(&mut self, offset: u64, bytes: &[u8]) {
        let first = offset / BLOCK_SIZE as u64;
        for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            match bytes
                .first_chunk::<4>()
                .map(|magic| u32::from_le_bytes(*magic))
            {
                Some(NODE_MAGIC) => self.nodes |= is_node(block, bytes),
                Some(_) if bytes.starts_with(&MAGIC) => self.superblock(block, bytes),
                Some(_) => {
                    // A record begins with its checksum.
                    let magic = bytes.get(8..).and_then(|b| b.first_chunk::<4>());
                    let record = magic.is_some_and(|m| u32::from_le_bytes(*m) == RECORD_MAGIC);
                    self.records |= record && RecordHeader::decode(bytes).is_some();
                }
                None => {}
            }
        }
    }

    fn superblock(&mut self, block: u64, bytes: &[u8]) {
        if let Ok(found) = RawSuperblock::decode_copy(block, bytes) {
            self.nodes = true;
            if !self.copies.iter().any(|(at, _)| *at == block) {
                self.copies.push((block, found));
            }
            return;
        }
        let place = RawSuperblock::read_from_prefix(bytes).map(|(raw, _)| raw.place.get());
        let Ok(place) = place else { return };
        let valid = match place {
            0 => RawSuperblock::decode(0, bytes).map(|raw| raw.slot_block()),
            place => RawSuperblock::decode_copy(place, bytes).map(|_| place),
        };
        if let Ok(place) = valid
            && place != block
        {
            let shift = i128::from(block) - i128::from(place);
            self.shifted = self.shifted.or(Some(shift * BLOCK_SIZE as i128));
        }
    }

    /// The newest copy of the volume that was made last, with its block.
    pub fn newest(&self) -> Option<(u64, Superblock)> {
        let made = |s: &Superblock| (s.created.get(), s.generation.get());
        let (_, last) = self.copies.iter().max_by_key(|(_, s)| made(s))?;
        let same = self.copies.iter().filter(|(_, s)| s.uuid == last.uuid);
        same.max_by_key(|(_, s)| s.generation.get()).copied()
    }

    /// The error for a device on which no copy was found; none if nothing of a volume was.
    pub fn lost(&self) -> Option<Error> {
        let (found, next) = match self.shifted {
            Some(shift) if shift > 0 && !self.nodes => (
                format!("a CairnFS volume begins at byte {shift}, not at the first"),
                "give its own device or file, as of a partition (`losetup --offset`)",
            ),
            Some(shift) if !self.nodes => (
                format!(
                    "the first {} bytes of this CairnFS volume are missing",
                    -shift
                ),
                "put them back before the rest, or restore a backup",
            ),
            _ if self.nodes || self.records => (
                "the superblocks of this CairnFS volume are lost, and no copy of them was found"
                    .into(),
                "put its first 64 KiB back if they were saved, or restore a backup; keep what is left \
                 until then",
            ),
            _ => return None,
        };
        Some(Error::FrontLost {
            found,
            next: next.into(),
        })
    }
}

/// Whether a block begins an index node of its place.
fn is_node(block: u64, bytes: &[u8]) -> bool {
    let header = NodeHeader::read_from_prefix(bytes);
    header.is_ok_and(|(header, _)| header.block.get() == block && block.is_multiple_of(NODE_BLOCKS))
}
