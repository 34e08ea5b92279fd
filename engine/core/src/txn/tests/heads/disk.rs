//! A disk that remembers its writes and flushes, and yields what a power cut may leave.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cairnfs_disk::device::Device;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::BLOCK_SIZE;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Blocks by number; those that are missing are zero.
pub type Image = BTreeMap<u64, Arc<[u8]>>;

enum Op {
    /// A write of these blocks.
    Write(Vec<(u64, Arc<[u8]>)>),
    Flush,
}

#[derive(Default)]
struct State {
    image: Image,
    ops: Vec<Op>,
}

/// A disk, with the image that it began with.
pub struct Disk {
    base: Image,
    state: Mutex<State>,
}

impl Disk {
    pub fn new(base: Image) -> Self {
        let state = State {
            image: base.clone(),
            ops: Vec::new(),
        };
        let state = Mutex::new(state);
        Self { base, state }
    }

    /// Everything written so far.
    pub fn written(&self) -> Image {
        self.state.lock().unwrap().image.clone()
    }

    /// Number of writes and flushes so far.
    pub fn ops(&self) -> usize {
        self.state.lock().unwrap().ops.len()
    }

    /// What a power cut after the first `cut` operations may leave: all of them, only those before
    /// the last flush, or of the others only the last one.
    pub fn images(&self, cut: usize) -> Vec<Image> {
        let state = self.state.lock().unwrap();
        let ops = &state.ops[..cut];
        let flushed = ops.iter().rposition(|op| matches!(op, Op::Flush));
        let durable = flushed.map_or(0, |at| at + 1);
        let left = |keeps: &dyn Fn(usize) -> bool| {
            let mut image = self.base.clone();
            for (n, op) in ops.iter().enumerate() {
                if let Op::Write(blocks) = op
                    && (n < durable || keeps(n))
                {
                    image.extend(blocks.iter().cloned());
                }
            }
            image
        };
        let mut images = vec![left(&|_| true)];
        if cut > durable {
            images.push(left(&|_| false));
        }
        if cut > durable + 1 {
            images.push(left(&|n| n + 1 == cut));
        }
        images
    }
}

impl Device for Disk {
    fn size(&self) -> u64 {
        super::SIZE
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let state = self.state.lock().unwrap();
        for (block, to) in (offset / BLOCK..).zip(buf.chunks_mut(BLOCK_SIZE)) {
            match state.image.get(&block) {
                Some(bytes) => to.copy_from_slice(&bytes[..to.len()]),
                None => to.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let blocks = (offset / BLOCK..).zip(buf.chunks(BLOCK_SIZE));
        let blocks: Vec<_> = blocks.map(|(at, bytes)| (at, bytes.into())).collect();
        let mut state = self.state.lock().unwrap();
        state.image.extend(blocks.iter().cloned());
        state.ops.push(Op::Write(blocks));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.state.lock().unwrap().ops.push(Op::Flush);
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}
