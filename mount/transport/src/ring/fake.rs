//! A kernel for tests: delivers messages into the entries of a ring, and takes replies from there.
//!
//! It reads and writes entries only through the addresses that were registered, and only while it
//! has the entry, as the kernel does. When all messages are answered it ends the connection.

#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, and a kernel knows memory by its address"
)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;

use rustix::event::{PollFd, PollFlags, poll};

use super::abi::{COMMIT_ID, HEADER, IN_OUT, OP_IN, PAYLOAD_SIZE};
use super::instance::{Command, Completion, Instance, Wait};
use crate::abi::{InHeader, OutHeader};
use crate::dev::Message;

/// What is put behind the structure of an operation, where the decoder must not look.
const NOISE: u8 = 0xa5;

#[derive(Debug, Clone, Copy)]
struct Entry {
    header: *mut u8,
    payload: *mut u8,
    room: usize,
    queue: u16,
    /// Commit id of the request that the server has.
    sent: Option<u64>,
}

/// The kernel's side of one ring.
pub(super) struct FakeKernel<'a> {
    doorbell: BorrowedFd<'a>,
    entries: Vec<Entry>,
    free: Vec<usize>,
    pushed: Vec<Command>,
    messages: VecDeque<Vec<u8>>,
    completions: VecDeque<Completion>,
    /// The registration that is refused.
    pub refuses: Option<usize>,
    /// Number of waits with a limit during which nothing happens.
    pub pauses: usize,
    /// Number of the call that fails.
    pub breaks_after: u64,
    /// Replies, as they would be written to `/dev/fuse`.
    pub replies: Vec<Vec<u8>>,
    listens: bool,
    ended: bool,
    ids: u64,
}

impl<'a> FakeKernel<'a> {
    /// A connection over which these messages come, as read from `/dev/fuse`.
    pub fn new(doorbell: BorrowedFd<'a>, messages: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self {
            doorbell,
            entries: Vec::new(),
            free: Vec::new(),
            pushed: Vec::new(),
            messages: messages.into_iter().collect(),
            completions: VecDeque::new(),
            refuses: None,
            pauses: 0,
            breaks_after: u64::MAX,
            replies: Vec::new(),
            listens: false,
            ended: false,
            ids: 77,
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Listen => self.listens = true,
            Command::Register { slot, .. } if self.refuses == Some(slot) => {
                self.entries.push(Entry {
                    header: ptr::null_mut(),
                    payload: ptr::null_mut(),
                    room: 0,
                    queue: 0,
                    sent: None,
                });
                self.complete_entry(slot, -libc::EINVAL);
            }
            Command::Register {
                slot,
                queue,
                addresses,
            } => {
                assert_eq!(slot, self.entries.len(), "entries are registered in order");
                // SAFETY: a registration passes two addresses.
                let [header, payload] = unsafe { addresses.cast::<[libc::iovec; 2]>().read() };
                assert!(header.iov_len >= HEADER);
                self.entries.push(Entry {
                    header: header.iov_base.cast(),
                    payload: payload.iov_base.cast(),
                    room: payload.iov_len,
                    queue,
                    sent: None,
                });
                self.free.push(slot);
            }
            Command::Commit {
                slot,
                queue,
                commit_id,
            } => {
                let entry = &mut self.entries[slot];
                assert_eq!((entry.queue, entry.sent.take()), (queue, Some(commit_id)));
                let entry = *entry;
                self.replies.push(read_reply(&entry));
                self.free.push(slot);
            }
        }
    }

    fn complete_entry(&mut self, slot: usize, result: i32) {
        self.completions.push_back(Completion {
            slot: Some(slot),
            result,
            more: false,
        });
    }

    fn deliver(&mut self) {
        while let (Some(slot), false) = (self.free.last().copied(), self.messages.is_empty()) {
            let Some(message) = self.messages.pop_front() else {
                return;
            };
            self.free.pop();
            self.ids += 1;
            write_request(&self.entries[slot], &message, self.ids);
            self.entries[slot].sent = Some(self.ids);
            self.complete_entry(slot, 0);
        }
        let served = self.entries.iter().all(|entry| entry.sent.is_none());
        if self.messages.is_empty() && served && !self.ended && self.pauses == 0 {
            self.ended = true;
            let free = std::mem::take(&mut self.free);
            free.iter()
                .for_each(|slot| self.complete_entry(*slot, -libc::ENOTCONN));
        }
    }

    /// Waits for the doorbell.
    fn hear(&mut self) {
        assert!(self.listens, "nothing would wake this ring");
        let mut asked = [PollFd::new(&self.doorbell, PollFlags::IN)];
        poll(&mut asked, None).unwrap();
        rustix::io::read(self.doorbell, &mut [0; 8]).unwrap();
        // A listening command may end at any time.
        self.listens = self.ids.is_multiple_of(2);
        self.completions.push_back(Completion {
            slot: None,
            result: 1,
            more: self.listens,
        });
    }
}

/// Writes a message into an entry, as its parts.
fn write_request(entry: &Entry, message: &[u8], commit_id: u64) {
    let parts = Message::split(message).unwrap();
    let mut header = [NOISE; HEADER];
    header[..size_of::<InHeader>()].copy_from_slice(&message[..size_of::<InHeader>()]);
    header[IN_OUT..IN_OUT + parts.op.len()].copy_from_slice(parts.op);
    header[IN_OUT + OP_IN..].fill(0);
    header[COMMIT_ID..COMMIT_ID + 8].copy_from_slice(&commit_id.to_ne_bytes());
    let size = parts.payload.len();
    assert!(size <= entry.room);
    header[PAYLOAD_SIZE..PAYLOAD_SIZE + 4].copy_from_slice(&(size as u32).to_ne_bytes());
    // SAFETY: the registered addresses have room for both; this kernel has the entry.
    unsafe {
        ptr::copy_nonoverlapping(header.as_ptr(), entry.header, HEADER);
        ptr::copy_nonoverlapping(parts.payload.as_ptr(), entry.payload, size);
    }
}

/// Reads the reply from an entry; its bytes are those that `/dev/fuse` would get.
fn read_reply(entry: &Entry) -> Vec<u8> {
    let mut header = [0; HEADER];
    // SAFETY: the registered address has as many bytes; this kernel has the entry.
    unsafe { ptr::copy_nonoverlapping(entry.header, header.as_mut_ptr(), HEADER) };
    let size = header[PAYLOAD_SIZE..PAYLOAD_SIZE + 4].try_into().unwrap();
    let size = u32::from_ne_bytes(size) as usize;
    assert!(size <= entry.room);
    let mut reply = header[..size_of::<OutHeader>()].to_vec();
    let mut body = vec![0; size];
    // SAFETY: as above.
    unsafe { ptr::copy_nonoverlapping(entry.payload, body.as_mut_ptr(), size) };
    reply.extend(body);
    reply
}

impl Instance for &mut FakeKernel<'_> {
    unsafe fn push(&mut self, command: Command) -> io::Result<()> {
        self.pushed.push(command);
        Ok(())
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.breaks_after -= 1;
        if self.breaks_after == 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let pushed = std::mem::take(&mut self.pushed);
        pushed.into_iter().for_each(|command| self.execute(command));
        self.deliver();
        match wait {
            Wait::Completion if self.completions.is_empty() => self.hear(),
            Wait::AtMost(_) if self.completions.is_empty() && self.pauses > 0 => {
                self.pauses -= 1;
            }
            Wait::AtMost(_) if self.completions.is_empty() => self.hear(),
            _ => {}
        }
        Ok(())
    }

    fn complete(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn is_ready(&mut self) -> bool {
        !self.completions.is_empty()
    }
}
