//! Sends and receives a descriptor over a Unix socket (`SCM_RIGHTS`).
//!
//! Every received descriptor is closed on exec. What a sender adds beyond the one that is asked for
//! is closed at once.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends bytes, and a descriptor with the first of them; returns how many bytes were sent.
///
/// # Errors
/// The other end is gone, or the socket's deadline has passed.
pub fn send(socket: &impl AsFd, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
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

/// Receives bytes; returns how many, and the first descriptor that came with them. No bytes: the
/// other end is gone.
///
/// # Errors
/// The socket's deadline has passed, or another failure of the socket.
pub fn receive(socket: &impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => break other?.bytes,
        }
    };
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((received, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptor_arrives_with_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"contents").unwrap();
        file.rewind().unwrap();
        assert_eq!(send(&ours, b"ab", file.as_fd()).unwrap(), 2);
        let mut bytes = [0; 8];
        let (len, fd) = receive(&theirs, &mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"ab");
        let flags = rustix::io::fcntl_getfd(fd.as_ref().unwrap()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let mut text = String::new();
        std::fs::File::from(fd.unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "contents");
        drop(ours);
        let (len, fd) = receive(&theirs, &mut bytes).unwrap();
        assert!(len == 0 && fd.is_none());
    }

    #[test]
    fn bytes_without_descriptor_are_received() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"x").unwrap();
        let (len, fd) = receive(&theirs, &mut [0; 8]).unwrap();
        assert!(len == 1 && fd.is_none());
    }
}
