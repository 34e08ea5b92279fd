//! A small pseudorandom number generator (SplitMix64) with the same sequence for a seed on every
//! platform.

/// Pseudorandom numbers from a seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound as u64) as usize
    }

    /// An element of a list, which must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// True once in `n` times on average.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.number() as u8;
        }
    }

    /// A replacement for the number `old` that is likely to cause errors; `width` is in bytes.
    pub fn awkward(&mut self, old: u64, width: usize) -> u64 {
        let bits = width as u32 * 8;
        match self.below(12) {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            3 => u64::MAX - self.number() % 8,
            4 => old.wrapping_add(1 + self.number() % 4),
            5 => old.wrapping_sub(1 + self.number() % 4),
            6 => 1 << (self.number() % u64::from(bits)),
            7 => (1 << (self.number() % u64::from(bits))) - 1,
            8 => old ^ (1 << (self.number() % u64::from(bits))),
            9 => self.number() % 5000,
            10 => old.wrapping_mul(2),
            _ => self.number(),
        }
    }
}
