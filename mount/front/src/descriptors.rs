//! Sends and receives descriptors over a Unix socket (`SCM_RIGHTS`).
//!
//! Every received descriptor is closed on exec. What a sender adds beyond [`MOST`] is closed at once.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors that are sent or received with one call.
pub const MOST: usize = 3;

/// Sends bytes, and descriptors with the first of them; returns how many bytes were sent.
///
/// # Errors
/// More than [`MOST`] descriptors (`InvalidInput`); the other end is gone, or the socket's deadline has
/// passed.
pub fn send(socket: &impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The space is rounded up, so it may hold more.
    let sent = fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds));
    if fds.len() > MOST || !sent {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Receives bytes; returns how many, and the descriptors that came with them. No bytes: the other end
/// is gone.
///
/// # Errors
/// The socket's deadline has passed, or another failure of the socket.
pub fn receive(socket: &impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => break other?.bytes,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    Ok((received, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_arrive_with_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"contents").unwrap();
        file.rewind().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let all = [file.as_fd(), null.as_fd(), ours.as_fd()];
        assert_eq!(send(&ours, b"ab", &all).unwrap(), 2);
        let mut bytes = [0; 8];
        let (len, fds) = receive(&theirs, &mut bytes).unwrap();
        assert_eq!((&bytes[..len], fds.len()), (&b"ab"[..], 3));
        for fd in &fds {
            let flags = rustix::io::fcntl_getfd(fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let mut text = String::new();
        let first = fds.into_iter().next().unwrap();
        std::fs::File::from(first)
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "contents");
        let more = [file.as_fd(); MOST + 1];
        assert!(send(&ours, b"ab", &more).is_err());
        drop((ours, null));
        let (len, fds) = receive(&theirs, &mut bytes).unwrap();
        assert!(len == 0 && fds.is_empty());
    }

    #[test]
    fn bytes_without_descriptor_are_received() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"x").unwrap();
        let (len, fds) = receive(&theirs, &mut [0; 8]).unwrap();
        assert!(len == 1 && fds.is_empty());
    }
}
