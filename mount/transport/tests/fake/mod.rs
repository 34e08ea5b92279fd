//! A fake of the kernel's side: the other end of a socket that keeps message boundaries, in the
//! place of `/dev/fuse`.
//!
//! Requests and expected replies are composed field by field, without the crate's structures.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use cairnfs_transport::session::Traffic;
use cairnfs_transport::{Config, Notifier, Server, Session, Transport};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Bytes composed of fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn u16(self, value: u16) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    pub fn u32(self, value: u32) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    pub fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A name with its NUL byte.
    pub fn name(self, name: &[u8]) -> Self {
        self.raw(name).raw(&[0])
    }
}

/// The caller in the headers of all requests: user, group, thread.
pub const CALLER: (u32, u32, u32) = (1000, 100, 4321);

/// The features that a kernel of today offers, as the two words of INIT.
pub const FEATURES: (u32, u32) = (0x7fff_ffff, 0x0000_07ff);

/// A request's bytes.
pub fn request(opcode: u32, unique: u64, ino: u64, body: &Bytes) -> Vec<u8> {
    let len = 40 + body.0.len() as u32;
    let header = Bytes::new().u32(len).u32(opcode).u64(unique).u64(ino);
    let (uid, gid, pid) = CALLER;
    header.u32(uid).u32(gid).u32(pid).u32(0).raw(&body.0).0
}

/// A reply's bytes.
pub fn reply(unique: u64, error: i32, body: &Bytes) -> Vec<u8> {
    let header = Bytes::new().u32(16 + body.0.len() as u32);
    header.raw(&error.to_ne_bytes()).u64(unique).raw(&body.0).0
}

/// The body of INIT.
pub fn init(major: u32, minor: u32, features: (u32, u32)) -> Bytes {
    let body = Bytes::new().u32(major).u32(minor).u32(128 << 10);
    body.u32(features.0).u32(features.1).zeros(44)
}

/// The kernel's end.
pub struct Kernel {
    socket: OwnedFd,
}

impl Kernel {
    /// Both ends.
    pub fn pair() -> (Self, OwnedFd) {
        let (ours, device) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        (Self { socket: ours }, device)
    }

    /// Sends a message.
    pub fn send(&self, bytes: &[u8]) {
        let sent = send(&self.socket, bytes, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// Receives a message; an empty one is the end.
    pub fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; 256 << 10];
        let (_, len) = recv(&self.socket, &mut buffer[..], RecvFlags::empty()).unwrap();
        buffer.truncate(len);
        buffer
    }

    /// Sends a request and receives the reply.
    pub fn ask(&self, opcode: u32, unique: u64, ino: u64, body: &Bytes) -> Vec<u8> {
        self.send(&request(opcode, unique, ino, body));
        self.receive()
    }
}

/// A session that runs in threads of the test.
pub struct Running {
    pub kernel: Kernel,
    pub notifier: Notifier,
    pub traffic: Traffic,
    session: JoinHandle<io::Result<()>>,
}

impl Running {
    /// Negotiates and begins to serve.
    pub fn start(server: impl Server, loops: usize) -> Self {
        let (kernel, device) = Kernel::pair();
        kernel.send(&request(26, 2, 0, &init(7, 45, FEATURES)));
        let config = Config {
            loops,
            clone_device: false,
            transport: Transport::Dev,
        };
        let session = Session::new(server, device, config).unwrap();
        assert_eq!(kernel.receive().len(), 16 + 64);
        let (notifier, traffic) = (session.notifier(), session.traffic());
        Self {
            kernel,
            notifier,
            traffic,
            session: thread::spawn(|| session.run()),
        }
    }

    /// Closes the kernel's end, and waits for the end of the session.
    pub fn end(self) -> io::Result<()> {
        drop(self.kernel);
        drop(self.notifier);
        self.session.join().unwrap()
    }
}
