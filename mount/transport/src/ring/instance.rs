//! One io_uring instance, as the loop of a ring uses it: the seam at which tests put a kernel of
//! their own.
//!
//! [`Uring`] is the kernel's. It is used by the thread that created it only, which lets the kernel
//! defer its part of the work (copying a request into an entry) until that thread waits or looks for
//! completions: nothing interrupts a request in service.

#![allow(
    unsafe_code,
    reason = "the kernel gets addresses; the caller of `push` keeps what they refer to"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode};

use super::abi;

/// A command to the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Command {
    /// Makes an entry known to a queue.
    Register {
        slot: usize,
        queue: u16,
        addresses: *const libc::iovec,
    },
    /// Delivers the reply in an entry, and offers the entry again.
    Commit {
        slot: usize,
        queue: u16,
        commit_id: u64,
    },
    /// Completes whenever the ring's doorbell is written, until a completion without `more`.
    Listen,
}

/// How long to wait; a signal may end each wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    /// Until there is a completion.
    Completion,
    /// Until there is a completion, or this time has passed.
    AtMost(Duration),
}

/// A completion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    /// The entry; `None` for the doorbell.
    pub(super) slot: Option<usize>,
    /// 0 or a negative errno.
    pub(super) result: i32,
    /// Whether the command remains in force.
    pub(super) more: bool,
}

/// Submission and completion queue of a ring.
pub(super) trait Instance {
    /// Adds a command to the submission queue.
    ///
    /// # Errors
    /// The queue was full and could not be submitted.
    ///
    /// # Safety
    /// The memory of the entry remains mapped until its last completion, and the caller leaves it
    /// alone until the next one.
    unsafe fn push(&mut self, command: Command) -> io::Result<()>;

    /// Submits what was added, and waits.
    ///
    /// # Errors
    /// The kernel cannot take what was added, now or at all.
    fn enter(&mut self, wait: Wait) -> io::Result<()>;

    /// Takes the next completion. No system call.
    fn complete(&mut self) -> Option<Completion>;

    /// Whether completions are there, or would be after [`Instance::enter`]. No system call.
    fn is_ready(&mut self) -> bool;
}

/// Token of the doorbell's completions.
const DOORBELL: u64 = u64::MAX;

/// The most commands that are added before they are submitted.
const SUBMISSIONS: u32 = 32;

/// Index of the FUSE device among the files of the instance.
const DEVICE: Fixed = Fixed(0);

/// An instance of the kernel.
pub(super) struct Uring<'a> {
    uring: IoUring<Entry128, cqueue::Entry>,
    doorbell: BorrowedFd<'a>,
}

impl<'a> Uring<'a> {
    /// Creates an instance for `slots` entries. The calling thread must be the only one that uses
    /// it.
    ///
    /// # Errors
    /// The system forbids io_uring, lacks memory or descriptors, or cannot pass commands to files.
    pub(super) fn new(slots: usize, doorbell: BorrowedFd<'a>) -> io::Result<Self> {
        // Each entry has one completion at a time, and so has the doorbell.
        let completions = u32::try_from(slots + 1).unwrap_or(u32::MAX);
        let uring: IoUring<Entry128, cqueue::Entry> = IoUring::builder()
            .dontfork()
            .setup_cqsize(completions.next_power_of_two().max(SUBMISSIONS * 2))
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .build(SUBMISSIONS)?;
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::UringCmd80::CODE, opcode::PollAdd::CODE];
        if needed.into_iter().all(|code| probe.is_supported(code)) {
            Ok(Self { uring, doorbell })
        } else {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Sets the FUSE device to which commands go.
    ///
    /// # Errors
    /// The kernel lacks memory.
    pub(super) fn connect(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        self.uring.submitter().register_files(&[device.as_raw_fd()])
    }

    fn entry(&self, command: Command) -> Entry128 {
        let (token, entry) = match command {
            Command::Register {
                slot,
                queue,
                addresses,
            } => {
                let entry = opcode::UringCmd80::new(DEVICE, abi::REGISTER)
                    .cmd(abi::command(0, queue))
                    .addr(Some(addresses.expose_provenance() as u64))
                    .build();
                (slot as u64, with_length(entry, abi::BUFFERS as u32))
            }
            Command::Commit {
                slot,
                queue,
                commit_id,
            } => {
                let entry = opcode::UringCmd80::new(DEVICE, abi::COMMIT_AND_FETCH)
                    .cmd(abi::command(commit_id, queue))
                    .build();
                (slot as u64, entry)
            }
            Command::Listen => {
                let entry = opcode::PollAdd::new(Fd(self.doorbell.as_raw_fd()), POLLIN).multi(true);
                (DOORBELL, entry.build().into())
            }
        };
        entry.user_data(token)
    }
}

const POLLIN: u32 = libc::POLLIN as u32;

/// Sets the length field, for which `UringCmd80` has no method.
fn with_length(mut entry: Entry128, len: u32) -> Entry128 {
    /// Offset of `len` in `struct io_uring_sqe`.
    const LEN: usize = 24;
    const { assert!(size_of::<Entry128>() == 128 && align_of::<Entry128>() >= 4) };
    let at = ptr::from_mut(&mut entry).cast::<u8>().wrapping_add(LEN);
    // SAFETY: `Entry128` is `repr(C)` and begins with the kernel's `struct io_uring_sqe`, in which
    // `len` is an u32 at this offset; every value of it is valid.
    unsafe { at.cast::<u32>().write(len) };
    entry
}

impl Instance for Uring<'_> {
    unsafe fn push(&mut self, command: Command) -> io::Result<()> {
        let entry = self.entry(command);
        for _ in 0..2 {
            // SAFETY: the caller keeps the memory of the entry; the doorbell and the device outlive
            // the instance, which borrows the one and holds the other.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.enter(Wait::No)?;
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let entered = match wait {
            Wait::No => self.uring.submit_and_wait(0),
            Wait::Completion => self.uring.submit_and_wait(1),
            Wait::AtMost(time) => {
                let time = Timespec::from(time);
                let args = SubmitArgs::new().timespec(&time);
                self.uring.submitter().submit_with_args(1, &args)
            }
        };
        match entered {
            Ok(_) => Ok(()),
            // The end of the time, a signal, a full completion queue, or no memory for a moment: the caller takes
            // completions and tries again.
            Err(e) if is_transient(&e) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn complete(&mut self) -> Option<Completion> {
        let entry = self.uring.completion().next()?;
        let token = entry.user_data();
        Some(Completion {
            slot: (token != DOORBELL).then_some(token as usize),
            result: entry.result(),
            more: cqueue::more(entry.flags()),
        })
    }

    fn is_ready(&mut self) -> bool {
        !self.uring.completion().is_empty() || self.uring.submission().taskrun()
    }
}

fn is_transient(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(
        errno,
        Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_set_where_the_kernel_reads_it() {
        let plain = opcode::UringCmd80::new(DEVICE, abi::REGISTER).build();
        let bytes = |entry: &Entry128| -> [u8; 128] {
            // SAFETY: 128 initialized bytes.
            unsafe { ptr::from_ref(entry).cast::<[u8; 128]>().read() }
        };
        let before = bytes(&plain);
        let mut expected = before;
        expected[24..28].copy_from_slice(&2u32.to_ne_bytes());
        assert_eq!(bytes(&with_length(plain, 2)), expected);
    }
}
