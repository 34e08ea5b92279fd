//! Hashers for integers that no attacker chooses: block numbers, inode numbers, hashes of names.
//!
//! Uses nothing.

use std::hash::{BuildHasherDefault, Hasher};

/// A multiplicative hasher for integers.
#[derive(Default)]
pub struct IntHasher(u64);

impl Hasher for IntHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
}

/// Builds [`IntHasher`]s.
pub type IntHash = BuildHasherDefault<IntHasher>;

/// A hasher for inode numbers. Neighbouring numbers are used together, so a run of [`RUN`] numbers
/// gets neighbouring places, which share cache lines.
#[derive(Default)]
pub struct RunHasher(u64);

impl Hasher for RunHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(self.0 ^ u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        let mut run = IntHasher::default();
        run.write_u64(n >> RUN_BITS);
        // The map selects the place by the lowest bits, and compares the highest seven bits.
        let within = n % RUN;
        self.0 = (run.finish() & !(RUN - 1) | within) ^ within << 57;
    }
}

/// Inode numbers that are placed side by side.
const RUN: u64 = 1 << RUN_BITS;
/// Bits of a number within its run.
pub const RUN_BITS: u32 = 3;

/// Builds [`RunHasher`]s.
pub type RunHash = BuildHasherDefault<RunHasher>;
