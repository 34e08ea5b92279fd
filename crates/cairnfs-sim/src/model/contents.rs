//! Contents of files: blocks are written one by one, in no order among each other.
//!
//! A block that is written is an operation of its own. A file grows block by block, and a size never
//! survives without the block that its last byte lies in. A truncation is one operation with all the
//! blocks it takes away whole.

use std::sync::Arc;

use super::Model;
use super::chain::{Part, Value, Version};
use crate::image::BLOCK;

const LEN: u64 = BLOCK as u64;

/// A block of contents, zeros behind what is given; `None` if all is zero.
pub fn padded(bytes: &[u8]) -> Option<Arc<[u8; BLOCK]>> {
    if bytes.iter().all(|b| *b == 0) {
        return None;
    }
    let mut block = [0; BLOCK];
    for (to, from) in block.iter_mut().zip(bytes) {
        *to = *from;
    }
    Some(Arc::new(block))
}

impl Model {
    fn block(&self, ino: u64, block: u64) -> [u8; BLOCK] {
        match self.value(&Part::Block(ino, block)) {
            Some(Value::Block(Some(bytes))) => **bytes,
            _ => [0; BLOCK],
        }
    }

    fn put_block(&mut self, ino: u64, block: u64, bytes: &[u8; BLOCK]) {
        self.live.entry(ino).or_default().blocks.insert(block);
        let value = Value::Block(padded(bytes));
        self.add(vec![(Part::Block(ino, block), value)], Vec::new());
    }

    pub(super) fn write(&mut self, ino: u64, offset: u64, data: &[u8]) {
        let old = self.size(ino);
        let end = offset + data.len() as u64;
        let tail = self.old_tail(ino, old);
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % LEN) as usize;
            let (part, later) = rest.split_at(rest.len().min(BLOCK - within));
            let mut bytes = self.block(ino, at / LEN);
            if let Some(to) = bytes.get_mut(within..within + part.len()) {
                to.copy_from_slice(part);
            }
            self.put_block(ino, at / LEN, &bytes);
            at += part.len() as u64;
            rest = later;
            if at > old && (at.is_multiple_of(LEN) || at == end) {
                let mut needs = vec![self.newest(Part::Block(ino, (at - 1) / LEN))];
                needs.extend(tail);
                self.add(vec![(Part::Size(ino), Value::Size(at))], needs);
            }
        }
    }

    /// What the last block of a file became when the file was cut there: no growth may show what it
    /// held behind the cut.
    fn old_tail(&mut self, ino: u64, size: u64) -> Option<Version> {
        let block = size / LEN;
        let known = self.live.get(&ino)?.blocks.contains(&block);
        (known && !size.is_multiple_of(LEN)).then(|| self.newest(Part::Block(ino, block)))
    }

    /// `also` changes with the size.
    pub(super) fn truncate(&mut self, ino: u64, size: u64, also: Option<(Part, Value)>) {
        let old = self.size(ino);
        if size >= old {
            let grows = (size > old).then_some((Part::Size(ino), Value::Size(size)));
            let tail = grows.as_ref().and_then(|_| self.old_tail(ino, old));
            let makes: Vec<_> = grows.into_iter().chain(also).collect();
            if !makes.is_empty() {
                self.add(makes, tail.into_iter().collect());
            }
            return;
        }
        let known = self.live.get(&ino).map(|l| l.blocks.clone());
        let gone = known.unwrap_or_default().split_off(&size.div_ceil(LEN));
        let mut makes = vec![(Part::Size(ino), Value::Size(size))];
        makes.extend(also);
        makes.extend(
            gone.iter()
                .map(|b| (Part::Block(ino, *b), Value::Block(None))),
        );
        self.add(makes, Vec::new());
        self.zero(ino, size, size.next_multiple_of(LEN));
    }

    /// Bytes become zeros, each block apart.
    pub(super) fn zero(&mut self, ino: u64, from: u64, to: u64) {
        let known = self.live.get(&ino).map(|l| l.blocks.clone());
        let first = from / LEN;
        for block in known.unwrap_or_default().split_off(&first) {
            let start = block * LEN;
            if start >= to {
                break;
            }
            let mut bytes = self.block(ino, block);
            let cut = from.saturating_sub(start) as usize..(to - start).min(LEN) as usize;
            let Some(hole) = bytes.get_mut(cut) else {
                continue;
            };
            if hole.iter().any(|b| *b != 0) {
                hole.fill(0);
                self.put_block(ino, block, &bytes);
            }
        }
    }

    pub(super) fn grow(&mut self, ino: u64, size: u64) {
        if size > self.size(ino) {
            self.truncate(ino, size, None);
        }
    }
}
