//! A device in memory, for tests and volumes that need not outlive the process.
//!
//! Sparse: only written chunks of 64 KiB take memory, all others read as zeros. Chunks are in
//! shards with one lock each. As on a disk, a call that spans chunks is not atomic.

use std::collections::HashMap;

use super::{Device, check_range};
use crate::error::Result;
use crate::sync::RwLock;

const CHUNK: u64 = 64 << 10;
const SHARDS: u64 = 16;

type Shard = RwLock<HashMap<u64, Box<[u8]>>>;

/// A sparse device in memory; its content is lost when it is dropped.
pub struct MemoryDevice {
    size: u64,
    shards: Vec<Shard>,
}

/// The part of a call that is in one chunk.
struct Piece {
    chunk: u64,
    within: usize,
    len: usize,
}

impl MemoryDevice {
    /// A device of `size` bytes, all zero.
    pub fn new(size: u64) -> Self {
        Self {
            size,
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    /// Memory allocated for written chunks, in bytes; a multiple of 64 KiB.
    pub fn allocated_bytes(&self) -> u64 {
        let chunks: usize = self.shards.iter().map(|s| s.read().len()).sum();
        chunks as u64 * CHUNK
    }

    fn shard(&self, chunk: u64) -> Option<&Shard> {
        self.shards.get((chunk % SHARDS) as usize)
    }
}

fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let within = at % CHUNK;
        let piece = Piece {
            chunk: at / CHUNK,
            within: within as usize,
            len: (CHUNK - within).min(end - at) as usize,
        };
        at += piece.len as u64;
        (piece.len > 0).then_some(piece)
    })
}

impl Device for MemoryDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range("read", offset, buf.len() as u64, self.size)?;
        let mut rest = buf;
        for piece in pieces(offset, rest.len() as u64) {
            let (to, tail) = rest.split_at_mut(piece.len);
            rest = tail;
            let shard = self.shard(piece.chunk).map(|s| s.read());
            let chunk = shard.as_ref().and_then(|s| s.get(&piece.chunk));
            match chunk.and_then(|c| c.get(piece.within..piece.within + piece.len)) {
                Some(from) => to.copy_from_slice(from),
                None => to.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        check_range("write", offset, buf.len() as u64, self.size)?;
        let mut rest = buf;
        for piece in pieces(offset, rest.len() as u64) {
            let (from, tail) = rest.split_at(piece.len);
            rest = tail;
            let Some(shard) = self.shard(piece.chunk) else {
                continue;
            };
            let mut shard = shard.write();
            let chunk = shard
                .entry(piece.chunk)
                .or_insert_with(|| vec![0; CHUNK as usize].into_boxed_slice());
            if let Some(to) = chunk.get_mut(piece.within..piece.within + piece.len) {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }

    fn write_all(&self, pieces: &[super::Piece]) -> Result<()> {
        pieces.iter().try_for_each(|piece| {
            let mut at = piece.offset;
            check_range("write", at, piece.len() as u64, self.size)?;
            piece.parts().try_for_each(|part| {
                let offset = at;
                at += part.len() as u64;
                self.write(offset, part)
            })
        })
    }

    fn writes_together(&self) -> bool {
        true
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range("discard", offset, len, self.size)?;
        for piece in pieces(offset, len) {
            let Some(shard) = self.shard(piece.chunk) else {
                continue;
            };
            let mut shard = shard.write();
            if piece.len as u64 == CHUNK {
                shard.remove(&piece.chunk);
            } else if let Some(chunk) = shard.get_mut(&piece.chunk)
                && let Some(discarded) = chunk.get_mut(piece.within..piece.within + piece.len)
            {
                discarded.fill(0);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 20;

    #[derive(Debug, Clone)]
    enum Op {
        Write(u64, u64, u8),
        Discard(u64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let range = (0..256u64).prop_flat_map(|at| (Just(at), 1..=(256 - at).min(40)));
        prop_oneof![
            (range.clone(), 1..=255u8).prop_map(|((at, len), fill)| Op::Write(at, len, fill)),
            range.prop_map(|(at, len)| Op::Discard(at, len)),
        ]
    }

    proptest! {
        #[test]
        fn reads_return_last_written_bytes(ops in prop::collection::vec(op(), 1..40)) {
            let device = MemoryDevice::new(SIZE);
            let mut model = vec![0u8; SIZE as usize];
            for op in ops {
                let (at, len, fill) = match op {
                    Op::Write(at, len, fill) => (at, len, fill),
                    Op::Discard(at, len) => (at, len, 0),
                };
                let (from, to) = ((at * 4096) as usize, ((at + len) * 4096) as usize);
                model[from..to].fill(fill);
                match op {
                    Op::Write(..) => device.write(at * 4096, &model[from..to]).unwrap(),
                    Op::Discard(..) => device.discard(at * 4096, len * 4096).unwrap(),
                }
            }
            let mut all = vec![1; SIZE as usize];
            device.read(0, &mut all).unwrap();
            prop_assert!(all == model);
        }
    }

    #[test]
    fn memory_is_allocated_for_written_chunks_only() {
        let device = MemoryDevice::new(1 << 44);
        device.write((1 << 44) - 4096, &[7; 4096]).unwrap();
        assert_eq!(device.allocated_bytes(), CHUNK);
        device.discard((1 << 44) - CHUNK, CHUNK).unwrap();
        assert_eq!(device.allocated_bytes(), 0);
    }

    #[test]
    fn ranges_are_checked() {
        let device = MemoryDevice::new(SIZE);
        let mut block = [0; 4096];
        for result in [
            device.read(SIZE, &mut block),
            device.read(512, &mut block),
            device.write(0, &block[..100]),
            device.write(u64::MAX - 4095, &block),
            device.discard(0, SIZE + 4096),
        ] {
            assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
        }
        device.read(SIZE - 4096, &mut block).unwrap();
    }
}
