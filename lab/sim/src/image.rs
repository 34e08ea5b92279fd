//! The contents of a simulated disk, copied on write.
//!
//! An image is a tree of two levels: chunks of 64 blocks, each shared by all images that have not
//! changed it. A clone costs one pointer per chunk, so thousands of crash states of one run take
//! little more memory than the blocks in which they differ. Blocks of zeros take no memory.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Size of a block in bytes.
pub const BLOCK: usize = 4096;
/// Size of a sector in bytes: the unit that a disk writes atomically.
pub const SECTOR: usize = 512;
/// Sectors per block.
pub const SECTORS: usize = BLOCK / SECTOR;
/// Blocks per chunk.
const CHUNK: usize = 64;

type Block = Arc<[u8; BLOCK]>;
type Chunk = Arc<Vec<Option<Block>>>;

/// The contents of a disk.
#[derive(Clone)]
pub struct Image {
    size: u64,
    chunks: Vec<Option<Chunk>>,
    digest: u64,
}

impl Image {
    /// An image of `size` zero bytes, rounded down to whole blocks.
    pub fn new(size: u64) -> Self {
        let blocks = size as usize / BLOCK;
        Self {
            size: (blocks * BLOCK) as u64,
            chunks: vec![None; blocks.div_ceil(CHUNK)],
            digest: 0,
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A hash of the contents: equal for equal images, and almost certainly different for others.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether all these bytes are zero; `offset` and `len` are multiples of the block size.
    pub fn is_zero(&self, offset: u64, len: usize) -> bool {
        let first = offset as usize / BLOCK;
        (first..first + len.div_ceil(BLOCK)).all(|block| self.block(block).is_none())
    }

    fn block(&self, block: usize) -> Option<&Block> {
        self.chunks
            .get(block / CHUNK)?
            .as_ref()?
            .get(block % CHUNK)?
            .as_ref()
    }

    /// Fills `buf` from `offset`; both are whole blocks within the image.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        let first = offset as usize / BLOCK;
        for (i, to) in buf.chunks_mut(BLOCK).enumerate() {
            match self.block(first + i).and_then(|b| b.get(..to.len())) {
                Some(from) => to.copy_from_slice(from),
                None => to.fill(0),
            }
        }
    }

    /// Writes `data` at `offset`; both are whole blocks within the image.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let first = offset as usize / BLOCK;
        for (i, from) in data.chunks(BLOCK).enumerate() {
            if let Some(block) = from.first_chunk::<BLOCK>() {
                self.put(first + i, block);
            }
        }
    }

    /// Writes those sectors of `data` for which `kept` returns true; its argument is the index of
    /// the sector in `data`.
    pub fn write_sectors(&mut self, offset: u64, data: &[u8], kept: impl Fn(usize) -> bool) {
        let first = offset as usize / BLOCK;
        for (i, from) in data.chunks(BLOCK).enumerate() {
            let mut block = self.block(first + i).map_or([0; BLOCK], |b| **b);
            let sectors = block.chunks_mut(SECTOR).zip(from.chunks(SECTOR));
            for (s, (to, from)) in sectors.enumerate() {
                if kept(i * SECTORS + s) {
                    to.copy_from_slice(from);
                }
            }
            self.put(first + i, &block);
        }
    }

    /// Changes the bytes of a block.
    pub fn alter(&mut self, block: u64, change: impl FnOnce(&mut [u8; BLOCK])) {
        let mut bytes = self.block(block as usize).map_or([0; BLOCK], |b| **b);
        change(&mut bytes);
        self.put(block as usize, &bytes);
    }

    fn put(&mut self, block: usize, bytes: &[u8; BLOCK]) {
        let Some(slot) = self.chunks.get_mut(block / CHUNK) else {
            return;
        };
        let chunk = Arc::make_mut(slot.get_or_insert_with(|| Arc::new(vec![None; CHUNK])));
        let Some(place) = chunk.get_mut(block % CHUNK) else {
            return;
        };
        if let Some(old) = place {
            self.digest ^= block_digest(block, old);
        }
        *place = if bytes.iter().all(|b| *b == 0) {
            None
        } else {
            self.digest ^= block_digest(block, bytes);
            Some(Arc::new(*bytes))
        };
    }
}

fn block_digest(block: usize, bytes: &[u8; BLOCK]) -> u64 {
    xxh3_64_with_seed(bytes, block as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clone_does_not_see_later_writes() {
        let mut image = Image::new(1 << 20);
        image.write(8192, &[7; BLOCK]);
        let before = image.clone();
        image.write(8192, &[8; BLOCK]);
        let mut seen = [0; BLOCK];
        before.read(8192, &mut seen);
        assert_eq!(seen, [7; BLOCK]);
        image.read(8192, &mut seen);
        assert_eq!(seen, [8; BLOCK]);
    }

    #[test]
    fn digest_depends_only_on_bytes() {
        let mut image = Image::new(1 << 20);
        let zeros = image.digest();
        image.write(4096, &[1; BLOCK]);
        image.write(8192, &[2; BLOCK]);
        let both = image.digest();
        let mut other = Image::new(1 << 20);
        other.write(8192, &[2; BLOCK]);
        assert_ne!(other.digest(), both);
        other.write(4096, &[1; BLOCK]);
        assert_eq!(other.digest(), both);
        other.write(4096, &[0; BLOCK]);
        other.write(8192, &[0; BLOCK]);
        assert_eq!(other.digest(), zeros);
    }

    #[test]
    fn sectors_are_written_separately() {
        let mut image = Image::new(1 << 20);
        image.write_sectors(0, &[9; 2 * BLOCK], |s| s == 0 || s == 9);
        let mut seen = [1; 2 * BLOCK];
        image.read(0, &mut seen);
        for (s, sector) in seen.chunks(SECTOR).enumerate() {
            let expected = if s == 0 || s == 9 { 9 } else { 0 };
            assert!(sector.iter().all(|b| *b == expected), "sector {s}");
        }
    }
}
