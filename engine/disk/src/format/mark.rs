//! The durable mark: one sector that says up to which LSN the log was durable. It is before the log,
//! and in each unit with copies of the superblock ([`RawSuperblock::mark_blocks`]).
//!
//! A record says what was durable before it; so the last records before a kill say nothing about
//! themselves. The mark does, some seconds later. It is overwritten in place, and lies in one
//! sector, so a power cut leaves the old one or the new one; both are true. So of several places the
//! greatest counts.
//!
//! [`RawSuperblock::mark_blocks`]: crate::format::superblock::RawSuperblock::mark_blocks

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::device::AlignedBuf;
use crate::error::Result;
use crate::format::superblock::Superblock;
use crate::format::{BLOCK_SIZE, MAX_COUNTER, checksum};

/// Magic number of a mark.
pub const MARK_MAGIC: [u8; 8] = *b"CDurMark";

/// The LSN up to which the log of a volume was durable by its marks, 0 if there is none. `read`
/// reads a block.
///
/// # Errors
/// That of `read`, if no place has a mark and one cannot be read.
pub fn greatest(
    superblock: &Superblock,
    read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<u64> {
    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
    let (mut greatest, mut failed) = (None, Ok(()));
    for (at, place) in superblock.mark_blocks() {
        match read(at, &mut block) {
            Ok(()) => greatest = greatest.max(RawMark::decode(&block, &superblock.uuid, place)),
            Err(e) => failed = Err(e),
        }
    }
    match greatest {
        Some(lsn) => Ok(lsn),
        None => failed.map(|()| 0),
    }
}

/// The on-disk mark. The rest of its block is zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawMark {
    /// [`MARK_MAGIC`].
    pub magic: [u8; 8],
    /// XXH3-64 of the mark behind this field.
    pub checksum: U64,
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// The log was durable up to this LSN.
    pub durable_lsn: U64,
    /// In a copy, the block in which it is; 0 at the front.
    pub place: U64,
    /// Zero.
    pub reserved: [u8; 16],
}

impl RawMark {
    /// The mark at `place` of a volume whose log is durable up to `durable_lsn`.
    pub fn new(uuid: [u8; 16], place: u64, durable_lsn: u64) -> Self {
        let mut mark = Self {
            magic: MARK_MAGIC,
            uuid,
            durable_lsn: U64::new(durable_lsn),
            place: U64::new(place),
            ..Self::default()
        };
        mark.checksum = U64::new(mark.compute());
        mark
    }

    fn compute(&self) -> u64 {
        checksum::hash64(self.as_bytes().get(16..).unwrap_or_default())
    }

    /// The block that holds it.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = self.as_bytes().to_vec();
        block.resize(BLOCK_SIZE, 0);
        block
    }

    /// The LSN in the mark at the beginning of `bytes`; `None` if there is no valid one of this
    /// volume and this place.
    pub fn decode(bytes: &[u8], uuid: &[u8; 16], place: u64) -> Option<u64> {
        let (mark, _) = RawMark::read_from_prefix(bytes).ok()?;
        let lsn = mark.durable_lsn.get();
        (mark.magic == MARK_MAGIC
            && mark.checksum.get() == mark.compute()
            && mark.uuid == *uuid
            && mark.place.get() == place
            && lsn < MAX_COUNTER)
            .then_some(lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flipped_bit_in_mark_is_detected() {
        for place in [0, 1234] {
            let bytes = RawMark::new([7; 16], place, 99).encode();
            let decode = |bytes: &[u8]| RawMark::decode(bytes, &[7; 16], place);
            assert_eq!(decode(&bytes), Some(99));
            assert_eq!(RawMark::decode(&bytes, &[8; 16], place), None, "a volume");
            assert_eq!(RawMark::decode(&bytes, &[7; 16], 8), None, "a place");
            for bit in 0..size_of::<RawMark>() * 8 {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&bytes), None, "bit {bit}");
            }
        }
        let beyond = RawMark::new([7; 16], 0, MAX_COUNTER).encode();
        assert_eq!(RawMark::decode(&beyond, &[7; 16], 0), None);
    }
}
