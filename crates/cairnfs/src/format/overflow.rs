//! Values too large for a leaf: a chain of units of 16 KiB.
//!
//! A unit is the number of the next unit's first block (0 in the last one), then data; behind the
//! last byte of the value come zeros. The value's length tells the number of units, so a chain is
//! read in bounded steps whatever its bytes say, and one checksum covers all units whole.

use crate::error::Corruption;
use crate::format::node::{MAX_CELL_VALUE, RawOverflow};
use crate::format::{MAX_VALUE, NODE_SIZE, checksum};

/// Bytes of a unit; units are as large as nodes, and aligned alike.
pub const UNIT_SIZE: usize = NODE_SIZE;
/// Bytes of a value that one unit holds.
pub const UNIT_DATA: usize = UNIT_SIZE - 8;

/// Number of units of a value of `len` bytes.
pub const fn units_for(len: usize) -> usize {
    len.div_ceil(UNIT_DATA)
}

/// Fills `unit`, which must be zeros, with the next unit's block and the data.
pub fn encode_unit(unit: &mut [u8; UNIT_SIZE], next: u64, data: &[u8]) {
    let (head, body) = unit.split_at_mut(8);
    head.copy_from_slice(&next.to_le_bytes());
    for (to, from) in body.iter_mut().zip(data) {
        *to = *from;
    }
}

/// Reads a chain: the caller fetches the unit at [`Chain::next`], and gives its bytes to
/// [`Chain::push`], until no unit is left. It is for the caller to check that a block lies where
/// units may lie.
#[derive(Debug)]
pub struct Chain {
    address: RawOverflow,
    next: u64,
    left: usize,
    crc: u32,
    value: Vec<u8>,
}

impl Chain {
    /// Begins to read the value at `address`; `leaf` is the block that holds the address.
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

    /// First block of the unit to read next; `None` once all are read.
    pub fn next(&self) -> Option<u64> {
        (self.left > 0).then_some(self.next)
    }

    /// Takes the bytes of the unit that [`Chain::next`] named.
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

    /// The value, if its checksum is right; call it when no unit is left.
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
    fn a_chain_returns_its_value() {
        for len in [MAX_CELL_VALUE + 1, UNIT_DATA, UNIT_DATA + 1, MAX_VALUE] {
            let (units, address, value) = units(len);
            assert_eq!(read(&units, &address), Ok(value), "length {len}");
        }
    }

    #[test]
    fn damage_is_an_error() {
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
