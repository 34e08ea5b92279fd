//! The memory of one ring's entries, which the kernel and this process use in turn.
//!
//! An entry has a *head* (the kernel's header, the addresses that it is registered with, and a small
//! stage for replies) and a payload. The kernel owns an entry from its registration or commit until
//! the completion; then the server owns it until the next commit. While the server has it, it is
//! split: [`Incoming`] reads the request, [`Room`] takes the reply. The request's data may still be
//! borrowed when the reply is written, and both begin at the same address; so a [`Room`] writes into
//! the payload only if the request has none, and into the stage or memory of its own otherwise.
//! [`Region::conclude`] copies that, when the request is not borrowed any more.
//!
//! Pages are allocated on first use, never shared with a forked process, and unmapped when the last
//! ring, request and reply are gone.

#![allow(
    unsafe_code,
    reason = "memory that the kernel writes has no other representation; each use states the owner"
)]

use std::io;
use std::ptr;
use std::slice;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

use super::abi::{BUFFERS, COMMIT_ID, HEADER, IN_OUT, OP_IN, PAYLOAD_MIN, PAYLOAD_SIZE};

/// Size of a head, in bytes.
const HEAD: usize = 512;

/// Offset of the registered addresses in a head.
const ADDRESSES: usize = HEADER;

/// Offset of the stage in a head.
const STAGE: usize = ADDRESSES + size_of::<Addresses>();

/// Size of the stage, in bytes: the largest fixed reply to a request that has a payload, an entry
/// with an open file, has 144.
const STAGE_SIZE: usize = HEAD - STAGE;

const PAGE: usize = 4096;

/// `struct iovec` for header and payload.
type Addresses = [libc::iovec; BUFFERS];

/// The memory of a ring's entries.
pub(super) struct Region {
    map: MmapRaw,
    slots: usize,
    payload: usize,
}

/// A request in an entry.
#[derive(Clone, Copy)]
pub(super) struct Incoming<'a> {
    /// The `fuse_in_header`, followed by padding.
    pub(super) header: &'a [u8],
    /// The fixed structure of the operation, followed by padding.
    pub(super) op: &'a [u8],
    /// Everything after that structure.
    pub(super) payload: &'a [u8],
}

/// Where the reply to a request is written.
pub(super) struct Room {
    region: Arc<Region>,
    slot: usize,
    direct: bool,
}

/// Where the body of a finished reply is.
pub(super) enum Body {
    /// In the payload.
    Direct(usize),
    /// In the stage.
    Staged(usize),
    /// In memory of its own.
    Owned(Vec<u8>),
}

impl Body {
    /// Size in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Body::Direct(len) | Body::Staged(len) => *len,
            Body::Owned(bytes) => bytes.len(),
        }
    }
}

impl Region {
    /// Maps memory for `slots` entries with payloads of at least `payload` bytes.
    ///
    /// # Errors
    /// The system has no memory for it, or the sizes overflow (`OutOfMemory`).
    pub(super) fn new(slots: usize, payload: usize) -> io::Result<Arc<Self>> {
        let payload = payload.max(PAYLOAD_MIN).next_multiple_of(PAGE);
        let heads = slots.saturating_mul(HEAD).next_multiple_of(PAGE);
        let len = payload
            .checked_mul(slots)
            .and_then(|n| n.checked_add(heads));
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
        // A child could neither serve the entries nor is it meant to have requests' data.
        map.advise(Advice::DontFork)?;
        // A request of a few bytes would otherwise cost a huge page. Kernels without huge pages
        // refuse the advice.
        let _ = map.advise(Advice::NoHugePage);
        Ok(Arc::new(Self {
            map: map.into(),
            slots,
            payload,
        }))
    }

    fn head(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.slots, "entry {slot} of {}", self.slots);
        self.map.as_mut_ptr().wrapping_add(slot * HEAD)
    }

    fn payload(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.slots, "entry {slot} of {}", self.slots);
        let heads = (self.slots * HEAD).next_multiple_of(PAGE);
        let at = heads + slot * self.payload;
        self.map.as_mut_ptr().wrapping_add(at)
    }

    /// Writes down the addresses of an entry and returns where, for its registration. They are
    /// valid as long as the region.
    ///
    /// # Safety
    /// The entry was never registered.
    pub(super) unsafe fn addresses(&self, slot: usize) -> *const libc::iovec {
        let addresses: Addresses = [
            libc::iovec {
                iov_base: self.head(slot).cast(),
                iov_len: HEADER,
            },
            libc::iovec {
                iov_base: self.payload(slot).cast(),
                iov_len: self.payload,
            },
        ];
        let at = self.head(slot).wrapping_add(ADDRESSES).cast::<Addresses>();
        // SAFETY: `at` is inside this entry's head, and aligned because heads are at multiples of
        // 512 of a page; an entry that is not registered has no other user.
        unsafe { at.write(addresses) };
        at.cast()
    }

    /// Splits an entry into the request and the room for its reply. `None` if the size of its
    /// payload is impossible.
    ///
    /// # Safety
    /// The kernel completed the entry, and it was neither split nor committed since.
    pub(super) unsafe fn split(self: &Arc<Self>, slot: usize) -> Option<(Incoming<'_>, Room)> {
        let head = self.head(slot);
        // SAFETY: the header is inside the head, and the kernel does not write it until the commit.
        // Nothing else does before `conclude`, which the caller calls after the borrow of the
        // region for this request.
        let header = unsafe { slice::from_raw_parts(head, HEADER) };
        let size = header.get(PAYLOAD_SIZE..PAYLOAD_SIZE + 4)?;
        let size = u32::from_ne_bytes(size.try_into().ok()?) as usize;
        if size > self.payload {
            return None;
        }
        let payload = match size {
            0 => &[][..],
            // SAFETY: as for the header. A `Room` writes there only if the size is 0.
            _ => unsafe { slice::from_raw_parts(self.payload(slot), size) },
        };
        let incoming = Incoming {
            header: header.get(..IN_OUT)?,
            op: header.get(IN_OUT..IN_OUT + OP_IN)?,
            payload,
        };
        let room = Room {
            region: Arc::clone(self),
            slot,
            direct: size == 0,
        };
        Some((incoming, room))
    }

    /// Gives the memory of an entry's payload back to the system.
    ///
    /// # Safety
    /// The kernel has the entry, no request was copied into it, and none is until this returns.
    pub(super) unsafe fn release(&self, slot: usize) {
        let at = self.payload(slot).addr() - self.map.as_mut_ptr().addr();
        let (advice, len) = (UncheckedAdvice::DontNeed, self.payload);
        // SAFETY: the payload consists of whole pages of this private mapping, and nobody has a
        // reference to it or expects its bytes.
        let released = unsafe { self.map.unchecked_advise_range(advice, at, len) };
        if let Err(e) = released {
            tracing::debug!("memory of a ring is not released: {e}");
        }
    }

    /// The id by which the kernel knows the request in an entry.
    ///
    /// # Safety
    /// The server owns the entry.
    pub(super) unsafe fn commit_id(&self, slot: usize) -> u64 {
        let at = self.head(slot).wrapping_add(COMMIT_ID).cast::<u64>();
        // SAFETY: inside the head, aligned to 8, and only written by the kernel, which does not own
        // the entry now.
        unsafe { at.read() }
    }

    /// Completes the reply in an entry: its header, and its body where the kernel reads it.
    ///
    /// # Safety
    /// The server owns the entry, its request is not borrowed any more, and its room is gone.
    pub(super) unsafe fn conclude(&self, slot: usize, header: &[u8], body: &Body) {
        let (head, payload) = (self.head(slot), self.payload(slot));
        let copy = |from: *const u8, to: *mut u8, len: usize| {
            // SAFETY: the callers below give ranges inside one entry, or memory of our own as the
            // source; source and target are different fields.
            unsafe { ptr::copy_nonoverlapping(from, to, len) };
        };
        match body {
            Body::Direct(_) => {}
            Body::Staged(len) => copy(head.wrapping_add(STAGE), payload, *len.min(&STAGE_SIZE)),
            Body::Owned(bytes) => copy(bytes.as_ptr(), payload, bytes.len().min(self.payload)),
        }
        let size = (body.len() as u32).to_ne_bytes();
        copy(header.as_ptr(), head, header.len().min(IN_OUT));
        copy(size.as_ptr(), head.wrapping_add(PAYLOAD_SIZE), size.len());
    }
}

impl Room {
    /// The payload of the entry, if the request does not use it.
    pub(super) fn direct(&mut self) -> Option<&mut [u8]> {
        if !self.direct {
            return None;
        }
        let payload = self.region.payload(self.slot);
        // SAFETY: the server owns the entry as long as this room exists, the request does not
        // borrow the payload, and no other room of the entry exists.
        Some(unsafe { slice::from_raw_parts_mut(payload, self.region.payload) })
    }

    /// A few bytes beside the payload, which no request uses.
    fn stage(&mut self) -> &mut [u8] {
        let stage = self.region.head(self.slot).wrapping_add(STAGE);
        // SAFETY: the stage is inside the head and behind what the request borrows; no other room
        // of the entry exists.
        unsafe { slice::from_raw_parts_mut(stage, STAGE_SIZE) }
    }

    /// Takes the parts of a body. `None` if they are larger than the payload.
    pub(super) fn take(&mut self, parts: &[&[u8]]) -> Option<Body> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > self.region.payload {
            return None;
        }
        if let Some(room) = self.direct() {
            gather(parts, room);
            return Some(Body::Direct(len));
        }
        if len <= STAGE_SIZE {
            gather(parts, self.stage());
            return Some(Body::Staged(len));
        }
        Some(Body::Owned(parts.concat()))
    }
}

/// Copies the parts to the beginning of `room`, which has space for them.
fn gather(parts: &[&[u8]], room: &mut [u8]) {
    let mut rest = room;
    for part in parts {
        let Some((here, behind)) = rest.split_at_mut_checked(part.len()) else {
            return;
        };
        here.copy_from_slice(part);
        rest = behind;
    }
}

#[cfg(test)]
impl Region {
    /// Bytes of payloads that are in memory.
    pub(super) fn resident(&self) -> usize {
        let from = self.payload(0);
        let pages = self.slots * self.payload / PAGE;
        let mut seen = vec![0u8; pages];
        // SAFETY: the range is mapped, and there is a byte for each of its pages.
        let found = unsafe { libc::mincore(from.cast(), pages * PAGE, seen.as_mut_ptr()) };
        assert_eq!(found, 0);
        seen.iter().filter(|page| **page & 1 == 1).count() * PAGE
    }
}
