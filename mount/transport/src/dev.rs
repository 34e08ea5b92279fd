//! The transport over `/dev/fuse`: a channel is one descriptor of a connection.
//!
//! A read returns one message, a write sends one. The kernel accepts a reply only on the descriptor
//! that the request was read from, so the channel of a request is the sink of its reply. Several
//! channels of one connection share its queue of requests.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
#[cfg(test)]
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as SystemError;
use rustix::ioctl::{Opcode as IoctlNumber, Setter, opcode};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, Opcode, OutHeader};
use crate::reply::{Errno, PARTS, Sink};

/// Path of the device.
pub const PATH: &str = "/dev/fuse";

/// `FUSE_DEV_IOC_CLONE`.
const CLONE: IoctlNumber = opcode::read::<u32>(229, 0);

/// Bytes that precede the data in the largest request, rounded up.
const HEAD: usize = 4096;

/// What a read from the device returned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A message of this length.
    Message(usize),
    /// The file system is unmounted.
    End,
}

/// A descriptor of a connection.
#[derive(Debug)]
pub(crate) struct Channel {
    device: OwnedFd,
}

impl Channel {
    pub fn new(device: OwnedFd) -> Self {
        Self { device }
    }

    /// A socket in place of the kernel, and the channel to it.
    #[cfg(test)]
    #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    pub fn pair() -> (OwnedFd, Arc<Self>) {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (kernel, device) = pair.unwrap();
        (kernel, Arc::new(Self::new(device)))
    }

    /// Opens a further channel of the same connection.
    pub fn duplicate(&self) -> io::Result<Self> {
        let further = OpenOptions::new().read(true).write(true).open(PATH)?;
        let source = self.device.as_raw_fd().cast_unsigned();
        // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the number of a descriptor, through the pointer
        // that `Setter` passes, and the kernel checks that number. It changes no memory of this
        // process.
        #[expect(unsafe_code, reason = "rustix has no wrapper of this ioctl")]
        unsafe {
            rustix::ioctl::ioctl(&further, Setter::<CLONE, u32>::new(source))?;
        }
        Ok(Self::new(further.into()))
    }

    /// A buffer that holds any message of a connection with requests of this size.
    pub fn buffer(max_request: u32) -> Vec<u8> {
        vec![0; max_request as usize + HEAD]
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// The connection broke.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            match rustix::io::read(&self.device, &mut *buffer) {
                Ok(0) | Err(SystemError::NODEV) => return Ok(Received::End),
                Ok(len) => return Ok(Received::Message(len)),
                // ENOENT: the request was aborted before it was read.
                Err(SystemError::INTR | SystemError::AGAIN | SystemError::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Whether a read would return at once.
    pub fn is_ready(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut asked = [PollFd::new(&self.device, PollFlags::IN)];
        poll(&mut asked, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Writes one message: a reply, or a notification (`unique` 0, its code in place of the error).
    pub fn write(&self, unique: u64, error: i32, parts: &[&[u8]]) -> Result<(), SystemError> {
        debug_assert!(parts.len() <= PARTS, "a reply has few parts");
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let header = OutHeader {
            len: (size_of::<OutHeader>() + body) as u32,
            error,
            unique,
        };
        let mut slices = [IoSlice::new(&[]); 1 + PARTS];
        let all = std::iter::once(header.as_bytes()).chain(parts.iter().copied());
        let count = slices
            .iter_mut()
            .zip(all)
            .map(|(slice, part)| *slice = IoSlice::new(part))
            .count();
        let slices = slices.get(..count).unwrap_or_default();
        loop {
            match rustix::io::writev(self.device.as_fd(), slices) {
                Err(SystemError::INTR) => {}
                other => return other.map(drop),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Channel {
    /// Sends a reply; returns whether the kernel took it, or an error in its place.
    pub fn answer(&self, unique: u64, outcome: Result<&[&[u8]], Errno>) -> bool {
        let sent = match outcome {
            Ok(parts) => self.write(unique, 0, parts),
            Err(error) => self.write(unique, -error.number(), &[]),
        };
        match sent {
            Ok(()) => true,
            // ENOENT: the request was aborted, or is answered. ENODEV: the file system is unmounted.
            Err(SystemError::NOENT | SystemError::NODEV) => false,
            Err(e) => {
                tracing::warn!("reply to request {unique} failed: {e}");
                // A request without a reply would hang its caller. If the kernel has ended the
                // request with the failed reply, this one finds none.
                let _ = self.write(unique, -Errno::EIO.number(), &[]);
                true
            }
        }
    }
}

impl Sink for Channel {
    fn send(&self, unique: u64, outcome: Result<&[&[u8]], Errno>) {
        self.answer(unique, outcome);
    }

    fn may_wait(&self) -> bool {
        true
    }

    fn is_bounded(&self) -> bool {
        false
    }
}

/// A message of the device in its parts.
pub(crate) struct Message<'a> {
    pub header: InHeader,
    pub op: &'a [u8],
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// Splits a message; `None` if it is shorter than its header. A body that is shorter than the
    /// structure of its operation has no payload.
    pub fn split(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        let fixed = Opcode(header.opcode).fixed_size().min(body.len());
        let (op, payload) = body.split_at_checked(fixed)?;
        Some(Self {
            header,
            op,
            payload,
        })
    }
}
