//! Data that waits to be written together with the log record that tells of it.
//!
//! It is staged before the change that refers to it is committed, and written by whoever writes the
//! log next, under the log head's lock: with his record, or, before a push, ahead of it. So no
//! record comes to the device before a write of the data it names was begun, and no flush that
//! acknowledges a record before both have returned. Until then readers find it here.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::chunks::BLOCK;
use super::{AlignedBuf, Page};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A write whose bytes are shared until it is over.
#[derive(Clone)]
pub struct Piece {
    /// Where it goes.
    pub offset: u64,
    content: Content,
}

#[derive(Clone)]
enum Content {
    Part(Arc<AlignedBuf>, Range<usize>),
    /// Of one write, or of several to places side by side.
    Pages(SmallVec<[Arc<Pages>; 1]>),
}

/// Pages whose memory is given back at once.
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

    /// The same write, from a buffer that holds nothing else.
    pub(super) fn alone(self) -> Self {
        match &self.content {
            Content::Part(buffer, part) if part.len() < buffer.len() => {
                Self::copied(self.offset, &self.bytes())
            }
            _ => self,
        }
    }

    /// A write of pages, one behind the other.
    pub fn of_pages(offset: u64, pages: Vec<Page>) -> Self {
        Self {
            offset,
            content: Content::Pages(smallvec![Arc::new(Pages(pages))]),
        }
    }

    /// Makes one write of such as go to places side by side, up to `most` bytes.
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

    /// How many bytes are written.
    pub fn len(&self) -> usize {
        match &self.content {
            Content::Part(_, part) => part.len(),
            Content::Pages(runs) => runs.iter().map(|run| run.0.len() * BLOCK).sum(),
        }
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is written, as it lies in memory.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let (part, runs) = match &self.content {
            Content::Part(buffer, part) => (buffer.get(part.clone()), &[][..]),
            Content::Pages(runs) => (None, &runs[..]),
        };
        let pages = runs.iter().flat_map(|run| &run.0);
        part.into_iter().chain(pages.map(Page::bytes))
    }

    /// What is written, as one.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match &self.content {
            Content::Part(buffer, part) => {
                Cow::Borrowed(buffer.get(part.clone()).unwrap_or_default())
            }
            Content::Pages(_) => Cow::Owned(self.parts().collect::<Vec<_>>().concat()),
        }
    }
}

/// Writes that go to the device together: of most fsyncs one of data, and a record.
pub type Pieces = SmallVec<[Piece; 3]>;

/// The stamp of a write of data, which may not have been made yet.
#[derive(Debug, Clone)]
pub struct DataStamp(Arc<AtomicU64>);

impl DataStamp {
    /// That of a write not made yet.
    pub const WAITING: u64 = u64::MAX;

    /// A stamp.
    pub fn new(stamp: u64) -> Self {
        Self(Arc::new(AtomicU64::new(stamp)))
    }

    /// The stamp, or [`Self::WAITING`].
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// What is known of the stamps of several writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamps {
    /// The greatest of those that were made.
    pub made: u64,
    /// Whether some were not made yet, and were staged.
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

    /// Adds those of other writes.
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
    waiting: Vec<Staged>,
    flying: Vec<Staged>,
}

/// Writes that wait for a record.
#[derive(Default)]
pub(super) struct Stage {
    lists: Mutex<Lists>,
    /// How many there are.
    count: AtomicUsize,
    /// Stamp of the newest of those made.
    written: AtomicU64,
}

/// Writes that wait at a time: the memory they take, and those who write the log wait for them.
const MOST: usize = 64;

impl Stage {
    pub fn has_room(&self) -> bool {
        self.count.load(Ordering::Acquire) < MOST
    }

    pub fn add(&self, piece: Piece) -> DataStamp {
        let stamp = DataStamp::new(DataStamp::WAITING);
        let mut lists = self.lists.lock();
        lists.waiting.push(Staged {
            piece,
            stamp: stamp.clone(),
        });
        self.count.fetch_add(1, Ordering::AcqRel);
        stamp
    }

    /// Takes all that waits, to be written now by the only one who does.
    pub fn take(&self) -> Pieces {
        if self.count.load(Ordering::Acquire) == 0 {
            return Pieces::new();
        }
        let Lists { waiting, flying } = &mut *self.lists.lock();
        flying.append(waiting);
        flying.iter().map(|s| s.piece.clone()).collect()
    }

    /// What was taken has been written.
    pub fn written(&self, stamp: u64) {
        let mut lists = self.lists.lock();
        self.count.fetch_sub(lists.flying.len(), Ordering::AcqRel);
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
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let end = offset + len as u64;
        let lists = self.lists.lock();
        let pieces = lists.flying.iter().chain(&lists.waiting).map(|s| &s.piece);
        let overlaps = |p: &&Piece| p.offset < end && offset < p.offset + p.len() as u64;
        pieces.filter(overlaps).cloned().collect()
    }
}

/// Lays writes over what was read at `offset`.
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
    fn writes_side_by_side_become_one_as_long_as_that_is_short() {
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
