//! Values too large for a leaf: a chain of overflow units of 16 KiB.
//!
//! A unit consists of the first block of the next unit (0 in the last one) and data, padded with
//! zeros. The value's length determines the number of units, so reading a chain takes a bounded
//! number of steps even if it is damaged. One checksum covers all bytes of all units.

use crate::error::Corruption;
use crate::format::node::{MAX_CELL_VALUE, RawOverflow};
use crate::format::{MAX_VALUE, NODE_SIZE, checksum};

/// Size of a unit in bytes; units have the size and alignment of nodes.
pub const UNIT_SIZE: usize = NODE_SIZE;
/// Bytes of a value per unit.
pub const UNIT_DATA: usize = UNIT_SIZE - 8;

/// Number of units of a value of `len` bytes.
pub const fn units_for(len: usize) -> usize {
    len.div_ceil(UNIT_DATA)
}

/// Writes the next unit's first block and the data into `unit`, which must be all zeros.
pub fn encode_unit(unit: &mut [u8; UNIT_SIZE], next: u64, data: &[u8]) {
    let (head, body) = unit.split_at_mut(8);
    head.copy_from_slice(&next.to_le_bytes());
    for (to, from) in body.iter_mut().zip(data) {
        *to = *from;
    }
}

/// Decodes a chain: the caller reads the unit at [`Chain::next`] and passes its bytes to
/// [`Chain::push`], until no unit is left. The caller must check that the block of a unit is in the
/// data area.
#[derive(Debug)]
pub struct Chain {
    address: RawOverflow,
    next: u64,
    left: usize,
    crc: u32,
    value: Vec<u8>,
}

impl Chain {
    /// Begins to decode the value at `address`; `leaf` is the block of the leaf that contains the
    /// address, for errors.
    ///
    /// # Errors
    /// The length in the address is out of range.
    pub fn new(leaf: u64, address: &RawOverflow) -> Result<Self, Corruption> {
        let len = address.len.get() as usize;
        if len <= MAX_CELL_VALUE || len > MAX_VALUE {
            return Err(Corruption::new(
                leaf,
                "large value length",
                format_args!("{} to {MAX_VALUE} bytes", MAX_CELL_VALUE + 1),
                len,
            ));
        }
        Ok(Self {
            address: *address,
            next: address.block.get(),
            left: units_for(len),
            crc: 0,
            value: Vec::with_capacity(len),
        })
    }

    /// First block of the next unit to read; `None` when all are read.
    pub fn next(&self) -> Option<u64> {
        (self.left > 0).then_some(self.next)
    }

    /// Decodes the unit at [`Chain::next`].
    ///
    /// # Errors
    /// The chain is shorter or longer than the value's length requires.
    pub fn push(&mut self, unit: &[u8; UNIT_SIZE]) -> Result<(), Corruption> {
        let (head, body) = unit.split_at(8);
        let mut next = [0; 8];
        next.copy_from_slice(head);
        let next = u64::from_le_bytes(next);
        self.left = self.left.saturating_sub(1);
        if (next == 0) != (self.left == 0) {
            let expected = format!("{} more units", self.left);
            let found = format!("next unit at block {next}");
            return Err(Corruption::new(
                self.next,
                "large value chain",
                expected,
                found,
            ));
        }
        self.next = next;
        self.crc = checksum::crc_append(self.crc, unit);
        let wanted = self.address.len.get() as usize - self.value.len();
        let data = body.get(..wanted.min(UNIT_DATA)).unwrap_or_default();
        self.value.extend_from_slice(data);
        Ok(())
    }

    /// Returns the value. Call it when no unit is left.
    ///
    /// # Errors
    /// The checksum is wrong, or a unit is missing.
    pub fn finish(self) -> Result<Vec<u8>, Corruption> {
        let expected = self.address.crc.get();
        if self.left > 0 || self.crc != expected {
            return Err(Corruption::new(
                self.address.block.get(),
                "large value checksum",
                format_args!("{expected:08x}"),
                format_args!("{:08x}", self.crc),
            ));
        }
        Ok(self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::little_endian::{U32, U64};

    /// The units of a value of `len` bytes, at blocks 4, 8, 12 ..., and its address.
    fn units(len: usize) -> (Vec<[u8; UNIT_SIZE]>, RawOverflow, Vec<u8>) {
        let value: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let count = units_for(len);
        let mut crc = 0;
        let units = value.chunks(UNIT_DATA).enumerate().map(|(i, data)| {
            let mut unit = [0; UNIT_SIZE];
            let next = if i + 1 < count { 4 * (i as u64 + 2) } else { 0 };
            encode_unit(&mut unit, next, data);
            crc = checksum::crc_append(crc, &unit);
            unit
        });
        let units = units.collect();
        let address = RawOverflow {
            block: U64::new(4),
            birth: U64::new(1),
            len: U32::new(len as u32),
            crc: U32::new(crc),
        };
        (units, address, value)
    }

    fn read(units: &[[u8; UNIT_SIZE]], address: &RawOverflow) -> Result<Vec<u8>, Corruption> {
        let mut chain = Chain::new(99, address)?;
        while let Some(block) = chain.next() {
            chain.push(&units[block as usize / 4 - 1])?;
        }
        chain.finish()
    }

    #[test]
    fn chain_round_trips_value() {
        for len in [MAX_CELL_VALUE + 1, UNIT_DATA, UNIT_DATA + 1, MAX_VALUE] {
            let (units, address, value) = units(len);
            assert_eq!(read(&units, &address), Ok(value), "length {len}");
        }
    }

    #[test]
    fn damaged_chain_is_an_error() {
        let (units, address, _) = units(3 * UNIT_DATA);
        let mut flipped = units.clone();
        flipped[1][5000] ^= 1;
        assert_eq!(read(&flipped, &address).unwrap_err().block, 4);
        let mut looped = units.clone();
        looped[2][..8].copy_from_slice(&4u64.to_le_bytes());
        assert_eq!(read(&looped, &address).unwrap_err().block, 12);
        let mut short = units.clone();
        short[0][..8].fill(0);
        assert_eq!(read(&short, &address).unwrap_err().block, 4);
        let mut long = address;
        long.len = U32::new(MAX_VALUE as u32 + 1);
        assert_eq!(read(&units, &long).unwrap_err().block, 99);
    }
}
