//! Staged data: data that is written together with the next log record, or with that of other files.
//!
//! Data is staged before the change that refers to it is committed. It is written under the log
//! head's lock: by the next thread that writes the log under it, together with its record, or, before
//! a push, ahead of it; or by a thread that writes back many files, when it has staged much. So no
//! record is submitted to the device before the data it refers to, and no flush acknowledges a record
//! before both writes have returned. Until then, reads are served from here.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::chunks::BLOCK;
use super::{AlignedBuf, Page};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A write with shared ownership of its bytes, which lives until the write is over.
#[derive(Clone)]
pub struct Piece {
    /// Position on the device, in bytes.
    pub offset: u64,
    content: Content,
}

#[derive(Clone)]
enum Content {
    Part(Arc<AlignedBuf>, Range<usize>),
    /// The pages of one write, or of several adjacent writes that were joined.
    Pages(SmallVec<[Arc<Pages>; 1]>),
}

/// Pages whose memory is returned to the pool in one call.
struct Pages(Vec<Page>);

impl Drop for Pages {
    fn drop(&mut self) {
        Page::let_go(std::mem::take(&mut self.0));
    }
}

impl Piece {
    /// A write of part of a buffer.
    pub fn new(offset: u64, buffer: Arc<AlignedBuf>, part: Range<usize>) -> Self {
        Self {
            offset,
            content: Content::Part(buffer, part),
        }
    }

    /// A write of a copy of some bytes.
    pub fn copied(offset: u64, bytes: &[u8]) -> Self {
        let mut buffer = AlignedBuf::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        Self::new(offset, Arc::new(buffer), 0..bytes.len())
    }

    /// The same write, copied out of its buffer if it is only a part of the buffer.
    pub(super) fn alone(self) -> Self {
        match &self.content {
            Content::Part(buffer, part) if part.len() < buffer.len() => {
                Self::copied(self.offset, &self.bytes())
            }
            _ => self,
        }
    }

    /// A write of consecutive pages.
    pub fn of_pages(offset: u64, pages: Vec<Page>) -> Self {
        Self {
            offset,
            content: Content::Pages(smallvec![Arc::new(Pages(pages))]),
        }
    }

    /// Joins adjacent writes of pages into writes of up to `most` bytes.
    pub fn join(mut pieces: Pieces, most: usize) -> Pieces {
        if pieces.len() < 2 {
            return pieces;
        }
        pieces.sort_by_key(|piece| piece.offset);
        let mut joined = Pieces::new();
        let mut len = 0;
        for piece in pieces {
            let more = piece.len();
            let last = joined.last_mut();
            let last = last.filter(|l| l.offset + len as u64 == piece.offset && len + more <= most);
            match (last.map(|l| &mut l.content), &piece.content) {
                (Some(Content::Pages(runs)), Content::Pages(next)) => {
                    runs.extend(next.iter().cloned());
                    len += more;
                }
                _ => {
                    joined.push(piece);
                    len = more;
                }
            }
        }
        joined
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.content {
            Content::Part(_, part) => part.len(),
            Content::Pages(runs) => runs.iter().map(|run| run.0.len() * BLOCK).sum(),
        }
    }

    /// Whether the write is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, as the separate buffers in memory.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let (part, runs) = match &self.content {
            Content::Part(buffer, part) => (buffer.get(part.clone()), &[][..]),
            Content::Pages(runs) => (None, &runs[..]),
        };
        let pages = runs.iter().flat_map(|run| &run.0);
        part.into_iter().chain(pages.map(Page::bytes))
    }

    /// The bytes as one slice; copied if they are pages.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match &self.content {
            Content::Part(buffer, part) => {
                Cow::Borrowed(buffer.get(part.clone()).unwrap_or_default())
            }
            Content::Pages(_) => Cow::Owned(self.parts().collect::<Vec<_>>().concat()),
        }
    }
}

/// Writes that are submitted together: for most fsyncs one of data and one of the record.
pub type Pieces = SmallVec<[Piece; 3]>;

/// The stamp of a data write, which may still be staged.
#[derive(Debug, Clone)]
pub struct DataStamp(Arc<AtomicU64>);

impl DataStamp {
    /// The value for a write that has not returned yet.
    pub const WAITING: u64 = u64::MAX;

    /// A known stamp, or [`Self::WAITING`].
    pub fn new(stamp: u64) -> Self {
        Self(Arc::new(AtomicU64::new(stamp)))
    }

    /// The stamp, or [`Self::WAITING`].
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The combined stamps of several writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamps {
    /// The largest stamp of the writes that have returned.
    pub made: u64,
    /// Whether some of the writes are still staged.
    pub waiting: bool,
}

impl Stamps {
    /// Adds a stamp, or [`DataStamp::WAITING`].
    pub fn add(&mut self, stamp: u64) {
        match stamp {
            DataStamp::WAITING => self.waiting = true,
            made => self.made = self.made.max(made),
        }
    }

    /// Adds the stamps of other writes.
    pub fn join(&mut self, other: Stamps) {
        self.add(other.made);
        self.waiting |= other.waiting;
    }
}

struct Staged {
    piece: Piece,
    stamp: DataStamp,
}

#[derive(Default)]
struct Lists {
    /// Staged, not submitted.
    waiting: Vec<Staged>,
    /// Being written.
    flying: Vec<Staged>,
}

/// The staged writes.
#[derive(Default)]
pub(super) struct Stage {
    lists: Mutex<Lists>,
    /// Number of writes in both lists.
    count: AtomicUsize,
    /// Bytes of the writes in both lists.
    bytes: AtomicUsize,
    /// Stamp of the newest staged write that has returned.
    written: AtomicU64,
}

/// Maximum number of staged writes: they take memory, and a thread that writes the log waits for
/// them.
const MAX_STAGED: usize = 64;

/// Bytes of staged writes from which a thread that writes back many files writes them: enough for
/// several long writes in flight, and little for an fsync that comes between.
const MUCH: usize = 1 << 20;

impl Stage {
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub fn has_room(&self) -> bool {
        self.count.load(Ordering::Acquire) < MAX_STAGED
    }

    pub fn has_much(&self) -> bool {
        !self.has_room() || self.bytes.load(Ordering::Acquire) >= MUCH
    }

    pub fn add(&self, piece: Piece) -> DataStamp {
        let stamp = DataStamp::new(DataStamp::WAITING);
        self.bytes.fetch_add(piece.len(), Ordering::AcqRel);
        let mut lists = self.lists.lock();
        lists.waiting.push(Staged {
            piece,
            stamp: stamp.clone(),
        });
        self.count.fetch_add(1, Ordering::AcqRel);
        stamp
    }

    /// Returns all staged writes, to be written by the caller. At most one thread at a time may do
    /// this (the holder of the log head's lock).
    pub fn take(&self) -> Pieces {
        if self.is_empty() {
            return Pieces::new();
        }
        let Lists { waiting, flying } = &mut *self.lists.lock();
        flying.append(waiting);
        flying.iter().map(|s| s.piece.clone()).collect()
    }

    /// Records that the writes returned by [`Self::take`] have been written.
    pub fn written(&self, stamp: u64) {
        let mut lists = self.lists.lock();
        self.count.fetch_sub(lists.flying.len(), Ordering::AcqRel);
        let bytes = lists.flying.iter().map(|s| s.piece.len()).sum();
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        for staged in lists.flying.drain(..) {
            staged.stamp.0.store(stamp, Ordering::Release);
        }
        self.written.fetch_max(stamp, Ordering::AcqRel);
    }

    pub fn newest(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Writes that overlap a range.
    pub fn over(&self, offset: u64, len: usize) -> Vec<Piece> {
        if self.is_empty() {
            return Vec::new();
        }
        let end = offset + len as u64;
        let lists = self.lists.lock();
        let pieces = lists.flying.iter().chain(&lists.waiting).map(|s| &s.piece);
        let overlaps = |p: &&Piece| p.offset < end && offset < p.offset + p.len() as u64;
        pieces.filter(overlaps).cloned().collect()
    }
}

/// Copies the overlapping bytes of `pieces` over the bytes that were read at `offset`.
pub(super) fn lay_over(pieces: &[Piece], offset: u64, read: &mut [u8]) {
    for piece in pieces {
        let mut start = piece.offset;
        for part in piece.parts() {
            let skip = offset.saturating_sub(start) as usize;
            let at = start.saturating_sub(offset) as usize;
            let from = part.get(skip..).unwrap_or_default();
            let to = read.get_mut(at..).unwrap_or_default();
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            start += part.len() as u64;
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn adjacent_page_writes_are_joined_up_to_limit() {
        let block = |n: u64| Piece::of_pages(n * 4096, vec![Page::with(&[n as u8; 4096])]);
        let part = |n: u64| Piece::new(n * 4096, Arc::new(AlignedBuf::zeroed(4096)), 0..4096);
        let pieces = [7, 3, 1, 2, 4, 9].map(block).into_iter().chain([part(8)]);
        let joined = Piece::join(pieces.collect(), 3 * 4096);
        let places: Vec<_> = joined.iter().map(|p| (p.offset / 4096, p.len())).collect();
        assert_eq!(
            places,
            [(1, 3), (4, 1), (7, 1), (8, 1), (9, 1)].map(|(at, blocks)| (at, blocks * 4096))
        );
        let bytes: Vec<u8> = joined[0].bytes().chunks(4096).map(|b| b[4095]).collect();
        assert_eq!(bytes, [1, 2, 3]);
        assert!(Piece::join(Pieces::new(), 4096).is_empty());
    }
}
