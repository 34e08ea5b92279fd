//! Damage described by arbitrary bytes, for fuzzers: each function makes an image from any input.
//!
//! Everything that the input does not change is as in the base. Functions called `sealed_*` make
//! the checksums above the change valid, because a fuzzer cannot guess them.

use cairnfs_disk::format::record::{HEADER_SIZE, entries};
use cairnfs_disk::format::{BLOCK_SIZE, NODE_SIZE};

use crate::base::Base;
use crate::image::Image;
use crate::seal;

/// Reads numbers and bytes from an input; behind its end it reads zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()]))
    }

    fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn pick<'b, T>(&mut self, from: &'b [T]) -> &'b T {
        &from[self.number() % from.len()]
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Selects the base by the first byte of an input.
pub fn choose<'a>(bases: &'a [Base], input: &[u8]) -> &'a Base {
    &bases[usize::from(input.first().copied().unwrap_or(0)) % bases.len()]
}

/// Patches blocks in use: block (2 bytes), offset (2), length (1), bytes.
pub fn patched_image(base: &Base, input: &[u8]) -> Image {
    let mut image = base.image.clone();
    let mut input = Input(input.get(1..).unwrap_or_default());
    while !input.is_empty() {
        let block = *input.pick(&base.used);
        let at = input.number() % BLOCK_SIZE;
        let most = usize::from(input.byte()).min(BLOCK_SIZE - at);
        let bytes = input.take(most);
        image.patch(block, at, bytes);
    }
    image
}

/// Replaces the payload of a record (2 bytes) of the log and makes the checksums valid.
pub fn sealed_log(base: &Base, input: &[u8]) -> Image {
    let mut image = base.image.clone();
    let records = &base.layout.records;
    let mut input = Input(input.get(1..).unwrap_or_default());
    if records.is_empty() {
        return image;
    }
    let i = input.number() % records.len();
    let record = records[i];
    let mut bytes = base.layout.record(&image, &record);
    // As many blocks as before, so that the next record stays in its place.
    let most = bytes.len() - HEADER_SIZE;
    let least = most.saturating_sub(BLOCK_SIZE - 1).min(most);
    let payload = input.take(most);
    bytes[HEADER_SIZE..].fill(0);
    bytes[HEADER_SIZE..HEADER_SIZE + payload.len()].copy_from_slice(payload);
    let len = payload.len().max(if most < BLOCK_SIZE { 0 } else { least });
    let count = entries(0, &bytes[HEADER_SIZE..HEADER_SIZE + len]).count();
    bytes[84..88].copy_from_slice(&(count as u32).to_le_bytes());
    bytes[88..92].copy_from_slice(&(len as u32).to_le_bytes());
    base.layout.write_record(&mut image, record.lsn, &bytes);
    seal::log(&mut image, &base.layout, i, true);
    image
}

/// Patches index nodes and makes the checksums valid: node (2 bytes), offset (2), length (1),
/// bytes. If the length byte is odd, it patches the value of an item (2 bytes in the place of the
/// node).
pub fn sealed_nodes(base: &Base, input: &[u8]) -> Image {
    let mut image = base.image.clone();
    let layout = &base.layout;
    let nodes: Vec<u64> = layout.nodes.keys().copied().collect();
    let mut input = Input(input.get(1..).unwrap_or_default());
    let mut changed = Vec::new();
    while !input.is_empty() {
        let (which, at) = (input.number(), input.number());
        let len = usize::from(input.byte());
        let (node, at, most) = if len % 2 == 1 {
            let item = layout.items[which % layout.items.len()];
            let within = at % item.len.max(1);
            (item.node, item.at + within, item.len - within.min(item.len))
        } else {
            let at = at % NODE_SIZE;
            (nodes[which % nodes.len()], at, NODE_SIZE - at)
        };
        let bytes = input.take((len / 2).min(most));
        image.patch(node, at, bytes);
        changed.push(node);
    }
    for node in changed {
        seal::node(&mut image, layout, node);
    }
    image
}
