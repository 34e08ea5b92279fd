//! The shared memory of a channel: its layout, how it is made and mapped, and how bytes get in and out.
//!
//! Everything in it is an atomic, because the other side may write at any moment. Bytes are moved as
//! words, each with one relaxed access, so that copying them is defined whatever the other side does.

#[cfg(shuttle)]
mod heap;
#[cfg(not(shuttle))]
mod mapped;

use std::mem::offset_of;
use std::ops::Deref;

#[cfg(shuttle)]
pub use self::heap::{Memory, Region, make};
#[cfg(not(shuttle))]
pub use self::mapped::{Region, make};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Hint, Word};

/// What the program's end of the memory is passed as.
#[cfg(not(shuttle))]
pub type Memory = std::os::fd::OwnedFd;

/// A size: `usual`, or so small that a search of thread schedules comes to its bounds in a few calls.
pub const fn sized(usual: usize, scheduled: usize) -> usize {
    if cfg!(shuttle) { scheduled } else { usual }
}

/// Slots of a channel: calls that its program can have under way.
pub const SLOTS: usize = sized(64, 3);
/// Most calls of a program that are deferred at one time.
pub const DEFERRED: usize = sized(24, 2);
/// Largest number of bytes of a request or a reply.
pub const PAYLOAD: usize = sized(64 << 10, 128);

/// The first epoch of leases.
pub const FIRST_EPOCH: u64 = 1;

const WORD: usize = 8;
/// Changes with the layout, and with the meaning of requests.
const MAGIC: u64 = u64::from_le_bytes(*b"CFSchan4");

/// The states of a slot, see the life of a slot in the crate's documentation.
pub mod state {
    /// It has no request.
    pub const FREE: u32 = 0;
    /// The payload is a request.
    pub const ASKED: u32 = 1;
    /// The same, and the caller sleeps.
    pub const AWAITED: u32 = 2;
    /// The payload is the reply.
    pub const ANSWERED: u32 = 3;
}

/// A value that shares its cache line with no other.
#[repr(C, align(64))]
pub struct Line<T>(T);

impl<T> Deref for Line<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A slot.
#[repr(C, align(64))]
pub struct Slot {
    /// Its state; callers sleep on it.
    pub state: Word,
    /// Bytes of the payload.
    len: AtomicU32,
    /// The place of a deferred call among those of its program.
    pub turn: AtomicU64,
    payload: [AtomicU64; PAYLOAD / WORD],
}

impl Slot {
    /// Writes the parts one behind the other; each begins at a multiple of eight bytes. Returns false,
    /// with the slot spoiled, if they are too long.
    pub fn put(&self, parts: &[&[u8]]) -> bool {
        let mut places = &self.payload[..];
        let mut len = 0;
        for part in parts {
            let (words, rest) = part.as_chunks::<WORD>();
            let Some((to, behind)) = places.split_at_checked(part.len().div_ceil(WORD)) else {
                return false;
            };
            for (to, word) in to.iter().zip(words) {
                to.store(u64::from_le_bytes(*word), Ordering::Relaxed);
            }
            if let Some(to) = to.get(words.len()) {
                let mut last = [0; WORD];
                last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
                to.store(u64::from_le_bytes(last), Ordering::Relaxed);
            }
            places = behind;
            len += part.len().next_multiple_of(WORD);
        }
        self.len.store(len as u32, Ordering::Relaxed);
        true
    }

    /// Copies the payload into `to`, as much as fits, and returns how much that is.
    pub fn take(&self, to: &mut [u8]) -> usize {
        self.take_behind(0, to)
    }

    /// The same of what is behind so many words of the payload.
    pub fn take_behind(&self, words: usize, to: &mut [u8]) -> usize {
        let payload = self.payload.get(words..).unwrap_or_default();
        let len = (self.len.load(Ordering::Relaxed) as usize).min(PAYLOAD);
        let len = len.saturating_sub(words * WORD).min(to.len());
        let (places, rest) = to
            .get_mut(..len)
            .unwrap_or_default()
            .as_chunks_mut::<WORD>();
        for (place, word) in places.iter_mut().zip(payload) {
            *place = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if let Some(word) = payload.get(places.len()) {
            let last = word.load(Ordering::Relaxed).to_le_bytes();
            rest.iter_mut().zip(last).for_each(|(to, from)| *to = from);
        }
        len
    }
}

/// The memory of a channel.
#[repr(C)]
pub struct Shared {
    magic: AtomicU64,
    /// Whether a caller that looks for its reply yields its processor meanwhile. Written by the daemon.
    pub crowded: Line<Hint>,
    /// Whether the daemon must be woken by the doorbell.
    pub asleep: Line<AtomicU32>,
    /// A bit for each slot with a request that the daemon has not taken.
    pub pending: Line<AtomicU64>,
    /// The same for deferred calls.
    pub deferred: Line<AtomicU64>,
    /// The epoch of the program's leases. Written by the daemon.
    pub epoch: Line<AtomicU64>,
    /// The slots.
    pub slots: [Slot; SLOTS],
}

impl Shared {
    /// As it is before the first call.
    fn begin(&self) {
        self.asleep.store(1, Ordering::Relaxed);
        self.epoch.store(FIRST_EPOCH, Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Whether the daemon that made it has this version's layout.
    pub fn is_known(&self) -> bool {
        self.magic.load(Ordering::Acquire) == MAGIC
    }
}

/// Where the parts of the memory are, in bytes: for tests that write into them what they like.
#[derive(Debug)]
pub struct Layout;

impl Layout {
    /// All of the memory.
    pub const SIZE: usize = size_of::<Shared>();
    /// Whether callers yield.
    pub const CROWDED: usize = offset_of!(Shared, crowded);
    /// Whether the daemon sleeps.
    pub const ASLEEP: usize = offset_of!(Shared, asleep);
    /// A bit for each slot with a call.
    pub const PENDING: usize = offset_of!(Shared, pending);
    /// A bit for each slot with a deferred call.
    pub const DEFERRED: usize = offset_of!(Shared, deferred);
    /// The epoch of leases.
    pub const EPOCH: usize = offset_of!(Shared, epoch);
    /// In a slot: its state.
    pub const STATE: usize = offset_of!(Slot, state);
    /// In a slot: the length of the payload.
    pub const LEN: usize = offset_of!(Slot, len);
    /// In a slot: its turn.
    pub const TURN: usize = offset_of!(Slot, turn);
    /// In a slot: the payload.
    pub const PAYLOAD: usize = offset_of!(Slot, payload);

    /// A slot.
    pub const fn slot(number: usize) -> usize {
        offset_of!(Shared, slots) + number % SLOTS * size_of::<Slot>()
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn payload_comes_out_as_it_was_put_in() {
        let region = Region::map(make().unwrap()).unwrap();
        let slot = &region.slots[3];
        assert!(slot.put(&[b"12345678", b"abc", b"", b"0123456789"]));
        let mut bytes = [0xff; 64];
        assert_eq!(slot.take(&mut bytes), 8 + 8 + 16);
        assert_eq!(&bytes[..11], b"12345678abc");
        assert_eq!(&bytes[16..26], b"0123456789");
        assert_eq!(slot.take(&mut bytes[..5]), 5);
        assert_eq!(slot.take_behind(2, &mut bytes), 16);
        assert_eq!(&bytes[..10], b"0123456789");
        assert_eq!(slot.take_behind(5, &mut bytes), 0);
        assert_eq!(slot.take_behind(PAYLOAD, &mut bytes), 0);
        assert!(slot.put(&[&[7; PAYLOAD]]));
        assert!(!slot.put(&[b"x", &[7; PAYLOAD]]));
    }

    #[test]
    fn no_length_reaches_beyond_the_payload() {
        let region = Region::map(make().unwrap()).unwrap();
        let slot = &region.slots[SLOTS - 1];
        slot.len.store(u32::MAX, Ordering::Relaxed);
        let mut bytes = vec![0; 2 * PAYLOAD];
        assert_eq!(slot.take(&mut bytes), PAYLOAD);
    }

    #[test]
    fn another_size_is_refused() {
        let memory = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, 4096).unwrap();
        assert!(Region::map(memory).is_err());
        assert!(Region::map(make().unwrap()).unwrap().is_known());
    }

    #[test]
    fn the_size_cannot_change() {
        let memory = make().unwrap();
        assert!(ftruncate(&memory, 0).is_err());
        assert!(ftruncate(&memory, 64 << 20).is_err());
    }
}
