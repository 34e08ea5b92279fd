//! Bit rot: flipped bits, replaced blocks, truncated devices, damaged contents.

use cairnfs_disk::format::BLOCK_SIZE;

use super::{How, Mutator};

impl Mutator<'_> {
    pub(super) fn flip(&mut self) -> How {
        let block = self.some_block();
        Some(self.flip_bits(block, 0..BLOCK_SIZE))
    }

    pub(super) fn fill(&mut self) -> How {
        let (block, value) = (self.some_block(), self.random.below(4));
        let mut bytes = vec![0; BLOCK_SIZE];
        match value {
            0 => {}
            1 => bytes.fill(0xff),
            _ => self.random.fill(&mut bytes),
        }
        self.image.write(block, &bytes);
        Some(format!("block {block} filled, kind {value}"))
    }

    pub(super) fn swap(&mut self) -> How {
        let (a, b) = (self.some_block(), self.some_block());
        let (x, y) = (self.image.read(a, 1), self.image.read(b, 1));
        self.image.write(a, &y);
        if self.random.once_in(2) {
            self.image.write(b, &x);
        }
        Some(format!("block {b} in place of {a}"))
    }

    pub(super) fn stale(&mut self) -> How {
        let (block, bytes) = match self.base.older.len() {
            0 => return None,
            n => &self.base.older[self.random.below(n)],
        };
        self.image.write(*block, bytes);
        Some(format!("block {block} as it was before"))
    }

    pub(super) fn truncate(&mut self) -> How {
        let all = self.image.blocks();
        let blocks = match self.random.below(4) {
            0 => self.random.number() % 20,
            1 => all - 1 - self.random.number() % 20,
            _ => self.random.number() % all,
        };
        self.image.truncate(blocks);
        Some(format!("cut off behind {blocks} blocks"))
    }

    pub(super) fn front(&mut self) -> How {
        let blocks = *self.random.pick(&[1, 2, 9, 12, 16, 17, 40, 256]);
        let kind = *self
            .random
            .pick(&["zeros", "ones", "random bytes", "another file system"]);
        let mut bytes = vec![0; BLOCK_SIZE];
        for block in 0..blocks {
            match kind {
                "ones" => bytes.fill(0xff),
                "random bytes" => self.random.fill(&mut bytes),
                _ => {}
            }
            self.image.write(block, &bytes);
        }
        if kind == "another file system" {
            // The magic number of ext4.
            self.image.patch(0, 0x438, &[0x53, 0xef]);
        }
        Some(format!("{kind} over the first {blocks} blocks"))
    }

    pub(super) fn data(&mut self) -> How {
        let data = &self.base.layout.data;
        if data.is_empty() {
            return None;
        }
        let (first, len) = *self.random.pick(data);
        let block = first + self.random.number() % len;
        match self.random.below(3) {
            0 => {
                self.image.write(block, &[0xff; BLOCK_SIZE]);
                Some(format!("data block {block} all ones"))
            }
            1 => {
                self.image.write(block, &[0; BLOCK_SIZE]);
                Some(format!("data block {block} all zero"))
            }
            _ => Some(self.flip_bits(block, 0..BLOCK_SIZE)),
        }
    }
}
