//! A session: negotiation, replies from other threads, event loops, the end.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use cairnfs_transport::reply::{ReplyData, ReplyEmpty, ReplyStatfs};
use cairnfs_transport::{
    Config, Errno, Features, Header, Offer, Server, Session, Transport, Wanted,
};
use parking_lot::Mutex;

use crate::fake::{Bytes, FEATURES, Kernel, Running, init, reply, request};

const WANTED: Wanted = Wanted {
    features: Features::POSIX_ACL.union(Features::ALLOW_IDMAP),
    max_request: 1 << 20,
    max_background: 400,
    time_granularity: 1,
};

/// Hands its replies over to the test, which answers from its own thread.
struct Handing {
    replies: Sender<ReplyEmpty>,
}

impl Server for Handing {
    fn negotiate(&self, _offer: &Offer) -> Result<Wanted, String> {
        Ok(WANTED)
    }

    fn fsync(&self, _from: &Header, _data_only: bool, reply: ReplyEmpty) {
        self.replies.send(reply).unwrap();
    }

    fn readlink(&self, _from: &Header, _reply: ReplyData) {
        // Unwinds like a panic, but prints nothing.
        std::panic::resume_unwind(Box::new("on purpose"));
    }

    fn statfs(&self, _from: &Header, reply: ReplyStatfs) {
        reply.error(Errno::new(i32::MAX));
    }
}

fn fsync() -> Bytes {
    Bytes::new().u64(0).u32(0).u32(0)
}

fn handing(loops: usize) -> (Running, Receiver<ReplyEmpty>) {
    let (replies, handed) = channel();
    (Running::start(Handing { replies }, loops), handed)
}

#[test]
fn replies_come_from_other_threads_in_any_order() {
    let (running, handed) = handing(1);
    for unique in [10, 12, 14] {
        running.kernel.send(&request(20, unique, 9, &fsync()));
    }
    let mut replies: Vec<_> = (0..3).map(|_| handed.recv().unwrap()).collect();
    for unique in [14, 12, 10] {
        let last = replies.pop().unwrap();
        thread::spawn(move || last.ok()).join().unwrap();
        assert_eq!(running.kernel.receive(), reply(unique, 0, &Bytes::new()));
    }
    running.end().unwrap();
}

#[test]
fn dropped_reply_is_answered_with_eio() {
    let (running, handed) = handing(1);
    running.kernel.send(&request(20, 10, 9, &fsync()));
    drop(handed.recv().unwrap());
    let refused = reply(10, -libc::EIO, &Bytes::new());
    assert_eq!(running.kernel.receive(), refused);
    running.end().unwrap();
}

#[test]
fn panic_is_answered_with_eio() {
    let (running, handed) = handing(1);
    for unique in [10, 12] {
        let got = running.kernel.ask(5, unique, 9, &Bytes::new());
        assert_eq!(got, reply(unique, -libc::EIO, &Bytes::new()));
    }
    running.kernel.send(&request(20, 14, 9, &fsync()));
    handed.recv().unwrap().ok();
    assert_eq!(running.kernel.receive(), reply(14, 0, &Bytes::new()));
    running.end().unwrap();
}

#[test]
fn error_that_the_protocol_lacks_becomes_eio() {
    let (running, _handed) = handing(1);
    let got = running.kernel.ask(17, 10, 9, &Bytes::new());
    assert_eq!(got, reply(10, -libc::EIO, &Bytes::new()));
    running.end().unwrap();
}

#[test]
fn reply_after_the_end_is_dropped() {
    let (running, handed) = handing(2);
    running.kernel.send(&request(20, 10, 9, &fsync()));
    let late = handed.recv().unwrap();
    running.end().unwrap();
    late.ok();
}

#[test]
fn session_ends_with_its_connection() {
    for loops in [1, 2, 8] {
        let (running, _handed) = handing(loops);
        running.kernel.ask(17, 10, 9, &Bytes::new());
        running.end().unwrap();
    }
}

/// Negotiates over `device`.
fn connect(device: OwnedFd) -> io::Result<Session<Handing>> {
    let config = Config {
        loops: 1,
        clone_device: false,
        transport: Transport::Dev,
    };
    let (replies, _) = channel();
    Session::new(Handing { replies }, device, config)
}

/// Negotiates with a kernel that sends this INIT; returns its reply as well.
fn negotiate(body: &Bytes) -> (io::Result<Session<Handing>>, Vec<u8>) {
    let (kernel, device) = Kernel::pair();
    kernel.send(&request(26, 2, 0, body));
    (connect(device), kernel.receive())
}

/// The reply to INIT with these features.
fn agreed(features: (u32, u32)) -> Vec<u8> {
    let sizes = Bytes::new().u32(7).u32(45).u32(128 << 10).u32(features.0);
    let queue = sizes.u16(400).u16(300).u32(1 << 20).u32(1).u16(256).u16(0);
    reply(2, 0, &queue.u32(features.1).zeros(28))
}

#[test]
fn features_are_those_both_sides_have() {
    let acl_and_layout = 1 << 20 | 1 << 22 | 1 << 29;
    for (minor, size, features, granted) in [
        (45, 64, FEATURES, (acl_and_layout | 1 << 30, 1 << 8)),
        (99, 64, FEATURES, (acl_and_layout | 1 << 30, 1 << 8)),
        // Without INIT_EXT the upper features are not there, whatever follows.
        (
            35,
            64,
            (FEATURES.0 & !(1 << 30), FEATURES.1),
            (acl_and_layout, 0),
        ),
        (33, 16, (FEATURES.0 & !(1 << 30), 0), (acl_and_layout, 0)),
        (33, 16, (1 << 22 | 1 << 29, 0), (1 << 22 | 1 << 29, 0)),
    ] {
        let mut body = init(7, minor, features);
        body.0.truncate(size);
        let (session, got) = negotiate(&body);
        assert_eq!(got, agreed(granted), "7.{minor}");
        let session = session.unwrap();
        assert_eq!(session.granted().minor, minor.min(45));
        let all = u64::from(granted.1) << 32 | u64::from(granted.0);
        assert_eq!(session.granted().features, Features(all));
    }
}

#[test]
fn kernels_that_lack_the_layout_are_refused() {
    let without = |bit: u32| (FEATURES.0 & !(1 << bit), FEATURES.1);
    for body in [
        init(6, 45, FEATURES),
        init(7, 32, FEATURES),
        init(7, 45, without(29)),
        init(7, 45, without(22)),
    ] {
        let (session, got) = negotiate(&body);
        assert_eq!(got, reply(2, -libc::EPROTO, &Bytes::new()));
        let error = session.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("too old"), "{error}");
    }
}

#[test]
fn newer_major_version_negotiates_again() {
    let (kernel, device) = Kernel::pair();
    kernel.send(&request(26, 2, 0, &init(8, 1, FEATURES)));
    kernel.send(&request(26, 4, 0, &init(7, 45, FEATURES)));
    let session = connect(device);
    let version = Bytes::new().u32(7).u32(45).zeros(56);
    assert_eq!(kernel.receive(), reply(2, 0, &version));
    assert_eq!(kernel.receive().len(), 16 + 64);
    assert_eq!(session.unwrap().granted().minor, 45);
}

#[test]
fn other_message_or_end_before_negotiation_is_an_error() {
    let start = |message: Option<Vec<u8>>| {
        let (kernel, device) = Kernel::pair();
        message.iter().for_each(|bytes| kernel.send(bytes));
        drop(kernel);
        connect(device).err().unwrap().kind()
    };
    assert_eq!(start(None), io::ErrorKind::NotConnected);
    let other = request(17, 2, 0, &Bytes::new());
    assert_eq!(start(Some(other)), io::ErrorKind::InvalidData);
    let short = request(26, 2, 0, &Bytes::new().u32(7));
    assert_eq!(start(Some(short)), io::ErrorKind::InvalidData);
    assert_eq!(start(Some(vec![0; 3])), io::ErrorKind::InvalidData);
}

/// A server whose FSYNC blocks its event loop until STATFS is served.
struct Blocking {
    go_on: Sender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl Server for Blocking {
    fn negotiate(&self, _offer: &Offer) -> Result<Wanted, String> {
        Ok(WANTED)
    }

    fn fsync(&self, _from: &Header, _data_only: bool, reply: ReplyEmpty) {
        self.goes_on.lock().recv().unwrap();
        reply.ok();
    }

    fn statfs(&self, _from: &Header, reply: ReplyStatfs) {
        self.go_on.send(()).unwrap();
        reply.error(Errno::ENODATA);
    }
}

#[test]
fn other_event_loop_takes_over_from_one_that_blocks() {
    let (go_on, goes_on) = channel();
    let goes_on = Mutex::new(goes_on);
    let running = Running::start(Blocking { go_on, goes_on }, 2);
    for unique in (10..50).step_by(4) {
        running.kernel.send(&request(20, unique, 9, &fsync()));
        let other = request(17, unique + 2, 9, &Bytes::new());
        running.kernel.send(&other);
        let mut got = [running.kernel.receive(), running.kernel.receive()];
        got.sort();
        let mut expected = [
            reply(unique, 0, &Bytes::new()),
            reply(unique + 2, -libc::ENODATA, &Bytes::new()),
        ];
        expected.sort();
        assert_eq!(got, expected);
    }
    running.end().unwrap();
}
