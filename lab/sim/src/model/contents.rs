//! Contents of files: blocks are written one by one, in any order.
//!
//! A written block is an operation of its own. A file grows block by block, and a size never
//! survives without the block that holds its last byte. A truncation is one operation together with
//! all complete blocks that it removes. It changes attributes too, so it is ordered among the
//! operations that do.

use std::sync::Arc;

use super::Model;
use super::chain::{Operation, Part, Value, Version};
use crate::image::BLOCK;

const LEN: u64 = BLOCK as u64;

/// A block of contents, padded with zeros; `None` if all bytes are zero.
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

    fn put_block(&mut self, ino: u64, block: u64, bytes: &[u8; BLOCK], with: &Operation) {
        self.live.entry(ino).or_default().blocks.insert(block);
        let value = Value::Block(padded(bytes));
        self.add_apart(with.clone(), vec![(Part::Block(ino, block), value)]);
    }

    /// Follows a write at `offset`; the written bytes need the versions in `needs`.
    pub(super) fn write(&mut self, ino: u64, offset: u64, data: &[u8], mut needs: Vec<Version>) {
        needs.push(self.date_write(ino, data.len()));
        let with = Operation::needing(needs);
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
            self.put_block(ino, at / LEN, &bytes, &with);
            at += part.len() as u64;
            rest = later;
            if at > old && (at.is_multiple_of(LEN) || at == end) {
                let mut grows = with.clone();
                grows
                    .needs
                    .push(self.newest(Part::Block(ino, (at - 1) / LEN)));
                grows.needs.extend(tail);
                self.add_apart(grows, vec![(Part::Size(ino), Value::Size(at))]);
            }
        }
    }

    /// The version of the last block after an earlier truncation to its middle: a growth must not
    /// expose what the block held behind the new end.
    fn old_tail(&mut self, ino: u64, size: u64) -> Option<Version> {
        let block = size / LEN;
        let known = self.live.get(&ino)?.blocks.contains(&block);
        (known && !size.is_multiple_of(LEN)).then(|| self.newest(Part::Block(ino, block)))
    }

    /// One step of a call: sets the size. The value in `also` changes with it.
    pub(super) fn truncate(&mut self, ino: u64, size: u64, also: Option<(Part, Value)>) {
        let old = self.size(ino);
        if size == old {
            if let Some(also) = also {
                let mut makes = vec![also];
                makes.extend(self.times_now(ino));
                self.add(makes, Vec::new());
            }
            return;
        }
        let mut makes = vec![
            (Part::Size(ino), Value::Size(size)),
            Self::times_between(ino),
        ];
        makes.extend(also.or_else(|| self.unchanged(ino)));
        if size > old {
            let tail = self.old_tail(ino, old);
            self.add(makes, tail.into_iter().collect());
            return;
        }
        let known = self.live.get(&ino).map(|l| l.blocks.clone());
        let gone = known.unwrap_or_default().split_off(&size.div_ceil(LEN));
        makes.extend(
            gone.iter()
                .map(|b| (Part::Block(ino, *b), Value::Block(None))),
        );
        self.add(makes, Vec::new());
        self.zero(ino, (size, size.next_multiple_of(LEN)), Vec::new());
    }

    /// Zeroes a range, each block as an operation of its own.
    pub(super) fn zero(&mut self, ino: u64, (from, to): (u64, u64), needs: Vec<Version>) {
        let with = Operation::needing(needs);
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
                self.put_block(ino, block, &bytes, &with);
            }
        }
    }

    pub(super) fn grow(&mut self, ino: u64, size: u64) {
        if size > self.size(ino) {
            self.truncate(ino, size, None);
        }
    }
}
