//! A small generator of random numbers (SplitMix64): the same numbers for a seed, everywhere.

/// Random numbers that follow from a seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
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

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound as u64) as usize
    }

    /// One of a list that is not empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Whether an event happens that does once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.number() as u8;
        }
    }

    /// A number that readers may stumble over where `old` stood; `width` is its bytes.
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
