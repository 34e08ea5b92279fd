//! The ring beside `/dev/fuse`: the same messages get the same replies, byte for byte.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::fake::FakeKernel;
use super::late::Late;
use super::outbox::Outbox;
use super::queue::{Common, Ring};
use super::region::Region;
use crate::abi::{AttrOut, EntryOut, InHeader, Opcode, OutHeader, StatfsOut, StatxOut};
use crate::dev::{Channel, Message};
use crate::init::{Offer, Wanted};
use crate::reply::{
    Errno, ReplyAttr, ReplyCopied, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpenEntry, ReplyStatfs, ReplyStatx, ReplyWrite,
    ReplyXattr, Sink,
};
use crate::request::{
    CopyFileRange, Fallocate, Header, Ioctl, NewNode, Rename, Setattr, Setxattr, Statx, Write,
};
use crate::server::{Attempt, Job, Server, serve};

/// A server whose replies depend on all of the request, and come from another thread for some.
struct Mirror {
    elsewhere: Sender<Job>,
}

impl Mirror {
    /// A server, and nothing to wait for: its thread ends with it.
    fn new() -> Self {
        let (elsewhere, jobs) = channel::<Job>();
        thread::spawn(move || jobs.iter().for_each(|job| job()));
        Self { elsewhere }
    }

    /// Answers here or in another thread. A part of all requests is refused or gets no answer.
    fn answer<R: Send + 'static>(
        &self,
        from: &Header,
        request: &dyn Debug,
        reply: R,
        refuse: impl FnOnce(R, Errno) + Send + 'static,
        answer: impl FnOnce(R, u64) + Send + 'static,
    ) {
        let mut hasher = DefaultHasher::new();
        format!("{from:?} {request:?}").hash(&mut hasher);
        let seed = hasher.finish();
        let job = move || match seed % 8 {
            0 => refuse(reply, Errno::new((seed >> 8) as i32 & 0x3ff)),
            1 => drop(reply),
            _ => answer(reply, seed),
        };
        match seed >> 32 & 1 {
            0 => job(),
            _ => self.elsewhere.send(Box::new(job)).unwrap(),
        }
    }
}

/// Bytes that depend on a seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let word = |n: usize| (seed ^ n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len).map(|n| (word(n) >> 56) as u8).collect()
}

fn made<T: FromBytes>(seed: u64) -> T {
    T::read_from_bytes(&noise(seed, size_of::<T>())).unwrap()
}

/// A size up to `most`; few are large.
fn size(seed: u64, most: usize) -> usize {
    let bits = seed % 22;
    (seed >> 20) as usize % ((1 << bits) + 1) % (most + 1)
}

macro_rules! mirrored {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $reply:ident, $answer:expr;)*) => {
        $(
            fn $name(&self, from: &Header, $($arg: $kind,)* reply: $reply) {
                self.answer(from, &($(&$arg,)*), reply, $reply::error, $answer);
            }
        )*
    };
}

impl Server for Mirror {
    fn negotiate(&self, _offer: &Offer) -> Result<Wanted, String> {
        Err("these tests do not negotiate".into())
    }

    mirrored! {
        lookup(name: &[u8]) -> ReplyEntry, |r, seed| r.entry(&made::<EntryOut>(seed));
        getattr(by_handle: bool) -> ReplyAttr, |r, seed| r.attr(&made::<AttrOut>(seed));
        statx(asked: &Statx) -> ReplyStatx, |r, seed| r.statx(&made::<StatxOut>(seed));
        setattr(set: &Setattr) -> ReplyAttr, |r, seed| r.attr(&made::<AttrOut>(seed));
        readlink() -> ReplyData, |r, seed| r.data(&noise(seed, size(seed, 4096)));
        symlink(name: &[u8], target: &[u8]) -> ReplyEntry,
            |r, seed| r.entry(&made::<EntryOut>(seed));
        mknod(new: &NewNode<'_>) -> ReplyEntry, |r, seed| r.entry(&made::<EntryOut>(seed));
        mkdir(new: &NewNode<'_>) -> ReplyEntry, |r, seed| r.entry(&made::<EntryOut>(seed));
        tmpfile(new: &NewNode<'_>) -> ReplyOpenEntry, |r, seed| r.entry(&made::<EntryOut>(seed));
        unlink(name: &[u8]) -> ReplyEmpty, |r, _| r.ok();
        rmdir(name: &[u8]) -> ReplyEmpty, |r, _| r.ok();
        rename(rename: &Rename<'_>) -> ReplyEmpty, |r, _| r.ok();
        link(ino: u64, name: &[u8]) -> ReplyEntry, |r, seed| r.entry(&made::<EntryOut>(seed));
        write(write: &Write<'_>) -> ReplyWrite, |r, seed| r.written(seed as u32);
        statfs() -> ReplyStatfs, |r, seed| r.statfs(&made::<StatfsOut>(seed));
        fsync(data_only: bool) -> ReplyEmpty, |r, _| r.ok();
        fsyncdir(data_only: bool) -> ReplyEmpty, |r, _| r.ok();
        syncfs() -> ReplyEmpty, |r, _| r.ok();
        setxattr(set: &Setxattr<'_>) -> ReplyEmpty, |r, _| r.ok();
        getxattr(name: &[u8]) -> ReplyXattr, |r, seed| r.value(&noise(seed, size(seed, 20000)));
        listxattr() -> ReplyXattr, |r, seed| r.value(&noise(seed, size(seed, 20000)));
        removexattr(name: &[u8]) -> ReplyEmpty, |r, _| r.ok();
        fallocate(range: &Fallocate) -> ReplyEmpty, |r, _| r.ok();
        lseek(offset: u64, whence: u32) -> ReplyLseek, |r, seed| r.offset(seed);
        copy_file_range(copy: &CopyFileRange) -> ReplyCopied, |r, seed| r.copied(seed as u32);
        ioctl(ioctl: &Ioctl<'_>) -> ReplyIoctl, |r, seed| r.data(&noise(seed, size(seed, 16000)));
        readdir(offset: u64) -> ReplyDirectory, |mut r, seed| {
            (0..seed % 100).all(|n| r.add(seed, n, n as u32, &noise(seed ^ n, n as usize + 1)));
            r.ok();
        };
        readdirplus(offset: u64) -> ReplyDirectoryPlus, |mut r, seed| {
            let entry = made(seed);
            (0..seed % 100).all(|n| r.add(n, &noise(seed ^ n, n as usize + 1), &entry));
            r.ok();
        };
    }

    fn read(&self, from: &Header, offset: u64, size: u32, reply: ReplyData) {
        self.answer(
            from,
            &(offset, size),
            reply,
            ReplyData::error,
            move |reply, seed| {
                reply.fill(size as usize, |room| {
                    let bytes = noise(seed, seed as usize % (room.len() + 1));
                    room[..bytes.len()].copy_from_slice(&bytes);
                    match seed % 11 {
                        0 => Err(Errno::EIO),
                        _ => Ok(bytes.len()),
                    }
                });
            },
        );
    }
}

/// Largest payload in these tests, in bytes.
const PAYLOAD: usize = 32 << 10;

/// All operations that the kernel sends through a ring, and an unknown one.
fn operations() -> Vec<Opcode> {
    let unknown = 4095;
    (1..=60)
        .chain([unknown])
        .map(Opcode)
        .filter(|op| !op.is_unanswered() && *op != Opcode::INIT)
        .collect()
}

/// A message as `/dev/fuse` has it. `tail` is what follows the structure of the operation; sizes in
/// the structure that count bytes of it are made to fit unless `broken`.
fn message(opcode: Opcode, unique: u64, fixed: &[u8], tail: &[u8], broken: bool) -> Vec<u8> {
    let mut fixed = fixed[..opcode.fixed_size()].to_vec();
    let mut tail = tail.to_vec();
    // The kernel asks for no more than fits.
    match opcode {
        Opcode::READ | Opcode::READDIR | Opcode::READDIRPLUS => bound(&mut fixed, 16),
        Opcode::GETXATTR | Opcode::LISTXATTR => bound(&mut fixed, 0),
        _ => {}
    }
    if !broken {
        fit(opcode, &mut fixed, &mut tail);
    }
    let header = InHeader {
        len: (size_of::<InHeader>() + fixed.len() + tail.len()) as u32,
        opcode: opcode.0,
        unique,
        nodeid: unique % 7 + 1,
        ..InHeader::new_zeroed()
    };
    [header.as_bytes(), &fixed, &tail].concat()
}

/// Reduces the size at an offset to what a payload holds.
fn bound(fixed: &mut [u8], at: usize) {
    let size = u32::from_ne_bytes(fixed[at..at + 4].try_into().unwrap());
    fixed[at..at + 4].copy_from_slice(&(size % PAYLOAD as u32).to_ne_bytes());
}

/// Makes sizes and names plausible.
fn fit(opcode: Opcode, fixed: &mut [u8], tail: &mut Vec<u8>) {
    let mut set = |at: usize, value: u32| fixed[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    match opcode {
        Opcode::READ | Opcode::READDIR | Opcode::READDIRPLUS => {
            set(16, tail.len() as u32);
            tail.clear();
        }
        Opcode::WRITE => set(16, tail.len() as u32),
        Opcode::IOCTL => set(24, tail.len() as u32),
        Opcode::SETXATTR => {
            set(0, tail.len() as u32);
            tail.splice(..0, *b"user.name\0");
        }
        Opcode::LISTXATTR | Opcode::GETXATTR => {
            set(0, (tail.len() % 65537) as u32);
            tail.truncate(200);
            tail.splice(..0, *b"user.");
            tail.push(0);
        }
        Opcode::STATFS | Opcode::READLINK | Opcode::GETATTR | Opcode::STATX | Opcode::SETATTR => {
            tail.clear();
        }
        _ => {
            tail.truncate(255);
            tail.splice(..0, *b"name\0other");
            tail.push(0);
        }
    }
}

/// Replies over `/dev/fuse`: what is written to the descriptor, in order of the requests' numbers.
fn replies_of_device(messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&theirs, 4 * PAYLOAD).unwrap();
    let sink: Arc<dyn Sink> = Arc::new(Channel::new(theirs));
    let server = Mirror::new();
    let mut replies = Vec::new();
    for bytes in messages {
        let Message {
            header,
            op,
            payload,
        } = Message::split(bytes).unwrap();
        serve(&server, &header, op, payload, &sink);
        let mut reply = vec![0; 2 * PAYLOAD];
        let len = rustix::io::read(&ours, &mut reply).unwrap();
        reply.truncate(len);
        replies.push(reply);
    }
    in_order(replies)
}

fn in_order(mut replies: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    replies.sort_by_key(|r| OutHeader::read_from_prefix(r).unwrap().0.unique);
    replies
}

/// Replies over a ring of this depth.
fn replies_of_ring(messages: &[Vec<u8>], depth: usize) -> Vec<Vec<u8>> {
    let queues = [3, 5];
    let outbox = Arc::new(Outbox::new().unwrap());
    let region = Region::new(queues.len() * depth, PAYLOAD).unwrap();
    let mut kernel = FakeKernel::new(outbox.doorbell(), messages.iter().cloned());
    let mut ring = Ring::new(
        &mut kernel,
        region,
        Arc::clone(&outbox),
        (&queues, depth),
        alone(Arc::default()),
    );
    assert!(ring.register().unwrap().is_none());
    ring.run(&Arc::new(Mirror::new()), &AtomicU64::new(0))
        .unwrap();
    drop(ring);
    in_order(kernel.replies)
}

#[track_caller]
fn assert_same(messages: &[Vec<u8>], depth: usize) {
    let (device, ring) = (
        replies_of_device(messages),
        replies_of_ring(messages, depth),
    );
    assert_eq!(device.len(), messages.len());
    assert_eq!(ring.len(), messages.len());
    for (n, message) in messages.iter().enumerate() {
        assert!(device[n] == ring[n], "replies to {message:?} differ");
    }
}

/// For the only ring of a connection.
fn alone(late: Arc<Late>) -> Common {
    Common {
        late,
        quiet: Arc::default(),
    }
}

#[test]
fn every_operation_gets_the_replies_of_the_device() {
    let all = operations();
    let variants = all
        .iter()
        .flat_map(|opcode| (0..24u64).map(move |n| (*opcode, n)));
    let messages: Vec<_> = variants
        .enumerate()
        .map(|(unique, (opcode, n))| {
            let seed = (unique as u64).wrapping_mul(0x1234_5678_9abc_def1);
            let tail = noise(seed, size(seed >> 3, PAYLOAD - 16));
            message(
                opcode,
                unique as u64 * 2 + 2,
                &noise(n, 128),
                &tail,
                n % 4 == 3,
            )
        })
        .collect();
    assert_same(&messages, 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_messages_get_the_replies_of_the_device(
        bodies in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<[u8; 32]>(), prop::collection::vec(any::<u8>(), 0..400), any::<bool>()),
            1..60,
        ),
        depth in 1usize..6,
    ) {
        let all = operations();
        let messages: Vec<_> = bodies.iter().enumerate().map(|(n, (op, fixed, tail, broken))| {
            message(*op.get(&all), n as u64 * 2 + 2, &fixed.repeat(4), tail, *broken)
        }).collect();
        assert_same(&messages, depth);
    }
}

#[test]
fn refused_registration_is_reported_and_the_others_serve() {
    let outbox = Arc::new(Outbox::new().unwrap());
    let region = Region::new(4, PAYLOAD).unwrap();
    let messages = [message(Opcode::STATFS, 2, &[0; 128], &[], false)];
    let mut kernel = FakeKernel::new(outbox.doorbell(), messages);
    kernel.refuses = Some(1);
    let mut ring = Ring::new(
        &mut kernel,
        region,
        Arc::clone(&outbox),
        (&[0, 1], 2),
        alone(Arc::default()),
    );
    let refusal = ring.register().unwrap().unwrap();
    assert_eq!(refusal.raw_os_error(), Some(libc::EINVAL));
    ring.run(&Arc::new(Mirror::new()), &AtomicU64::new(0))
        .unwrap();
    drop(ring);
    assert_eq!(kernel.replies.len(), 1);
}

/// A registered ring of two entries, and its memory.
fn registered<'a, 'b>(
    kernel: &'a mut FakeKernel<'b>,
    outbox: &Arc<Outbox>,
) -> (Ring<&'a mut FakeKernel<'b>>, Weak<Region>) {
    let region = Region::new(2, PAYLOAD).unwrap();
    let memory = Arc::downgrade(&region);
    let mut ring = Ring::new(
        kernel,
        region,
        Arc::clone(outbox),
        (&[0], 2),
        alone(Arc::default()),
    );
    ring.register().unwrap();
    (ring, memory)
}

#[test]
fn memory_is_unmapped_when_all_entries_are_back() {
    let outbox = Arc::new(Outbox::new().unwrap());
    let mut kernel = FakeKernel::new(outbox.doorbell(), []);
    let (mut ring, seen) = registered(&mut kernel, &outbox);
    ring.run(&Arc::new(Mirror::new()), &AtomicU64::new(0))
        .unwrap();
    drop(ring);
    assert!(seen.upgrade().is_none());
}

#[test]
fn memory_of_a_broken_ring_stays_mapped() {
    let outbox = Arc::new(Outbox::new().unwrap());
    let mut kernel = FakeKernel::new(outbox.doorbell(), []);
    let (ring, seen) = registered(&mut kernel, &outbox);
    drop(ring);
    assert!(seen.upgrade().is_some(), "the kernel has its entries");
}

#[test]
fn memory_of_a_burst_is_given_back() {
    let payload = 64 << 10;
    let outbox = Arc::new(Outbox::new().unwrap());
    let region = Region::new(32, payload).unwrap();
    let data = |n| noise(n, payload - 4096);
    let messages = (1..=32).map(|n| message(Opcode::WRITE, 2 * n, &[0; 128], &data(n), false));
    let mut kernel = FakeKernel::new(outbox.doorbell(), messages);
    kernel.pauses = 1;
    let mut ring = Ring::new(
        &mut kernel,
        Arc::clone(&region),
        Arc::clone(&outbox),
        (&[0], 32),
        alone(Arc::default()),
    );
    ring.sweep_after = Duration::ZERO;
    ring.register().unwrap();
    ring.run(&Arc::new(Mirror::new()), &AtomicU64::new(0))
        .unwrap();
    drop(ring);
    assert_eq!(kernel.replies.len(), 32);
    let kept = region.resident();
    assert!(kept <= 4 * payload, "{kept} bytes are in memory");
    assert!(kept > 0, "a few entries keep theirs");
}

#[test]
fn ring_that_breaks_in_the_middle_keeps_its_memory() {
    for breaks_after in 2..18 {
        let outbox = Arc::new(Outbox::new().unwrap());
        let messages = (1..=40).map(|n| message(Opcode::GETXATTR, 2 * n, &[0; 128], b"x", false));
        let mut kernel = FakeKernel::new(outbox.doorbell(), messages);
        kernel.breaks_after = breaks_after;
        let server = Arc::new(Mirror::new());
        let (mut ring, seen) = registered(&mut kernel, &outbox);
        let broken = ring.run(&server, &AtomicU64::new(0)).unwrap_err();
        assert_eq!(broken.raw_os_error(), Some(libc::EBADF));
        drop(ring);
        // Replies of other threads may still come, and find no ring.
        let (done, all) = channel();
        let last = Box::new(move || done.send(()).unwrap());
        server.elsewhere.send(last).unwrap();
        all.recv().unwrap();
        assert!(seen.upgrade().is_some(), "the kernel has its entries");
        assert!(kernel.replies.len() < 40);
    }
}

/// A server that is refused a wait for every request whose number is a multiple of 3, and owes one
/// for those that are multiples of 5.
struct Slow {
    inner: Mirror,
    refuse: Mutex<HashSet<u64>>,
    again: AtomicU64,
    settled: Arc<AtomicU64>,
    late: Arc<Late>,
    /// What the ring's own thread serves. A request served again by another thread leaves it alone.
    attempted: Mutex<u64>,
}

impl Server for Slow {
    fn negotiate(&self, _offer: &Offer) -> Result<Wanted, String> {
        Err("these tests do not negotiate".into())
    }

    fn without_waiting(&self, serve: &mut dyn FnMut()) -> Attempt {
        serve();
        let unique = *self.attempted.lock();
        let settled = Arc::clone(&self.settled);
        Attempt {
            refused: self.refuse.lock().remove(&unique),
            owed: unique.is_multiple_of(5).then(|| {
                let settle = move || {
                    settled.fetch_add(1, Ordering::Relaxed);
                    if unique.is_multiple_of(2) {
                        Ok(())
                    } else {
                        Err(Errno::EIO)
                    }
                };
                Box::new(settle) as _
            }),
        }
    }

    fn hand_over(&self, again: bool, job: Job) {
        assert!(self.late.is_owed());
        self.again.fetch_add(u64::from(again), Ordering::Relaxed);
        self.inner.elsewhere.send(job).unwrap();
    }

    fn write(&self, from: &Header, write: &Write<'_>, reply: ReplyWrite) {
        if !reply.may_wait() {
            *self.attempted.lock() = from.unique;
            if from.unique.is_multiple_of(3) {
                self.refuse.lock().insert(from.unique);
                return reply.error(Errno::new(libc::EAGAIN));
            }
        }
        reply.written(write.data.iter().map(|byte| u32::from(*byte)).sum());
    }
}

#[test]
fn request_that_must_wait_is_served_again_and_answered_once() {
    let queues = [0];
    let data = |n: u64| noise(n, 1000 + n as usize);
    let of = |n| message(Opcode::WRITE, n, &[0; 128], &data(n), false);
    let outbox = Arc::new(Outbox::new().unwrap());
    let region = Region::new(3, PAYLOAD).unwrap();
    let mut kernel = FakeKernel::new(outbox.doorbell(), (1..=60).map(of));
    let server = Arc::new(Slow {
        inner: Mirror::new(),
        refuse: Mutex::default(),
        again: AtomicU64::new(0),
        settled: Arc::default(),
        late: Arc::default(),
        attempted: Mutex::default(),
    });
    let mut ring = Ring::new(
        &mut kernel,
        region,
        Arc::clone(&outbox),
        (&queues, 3),
        alone(Arc::clone(&server.late)),
    );
    ring.register().unwrap();
    ring.run(&server, &AtomicU64::new(0)).unwrap();
    drop(ring);
    let replies = in_order(kernel.replies);
    assert_eq!(replies.len(), 60);
    for (n, reply) in (1..).zip(&replies) {
        let (header, body) = OutHeader::read_from_prefix(reply).unwrap();
        let sum: u32 = data(n).iter().map(|byte| u32::from(*byte)).sum();
        assert_eq!(header.unique, n);
        match header.error {
            0 => assert_eq!(body[..4], sum.to_ne_bytes()),
            error => {
                assert_eq!(error, -libc::EIO);
                assert!(n.is_multiple_of(5) && !n.is_multiple_of(2), "request {n}");
            }
        }
    }
    assert!(!server.late.is_owed(), "all replies came");
    assert!(server.refuse.lock().is_empty(), "each was refused once");
    assert!(server.settled.load(Ordering::Relaxed) > 0);
    assert!(server.again.load(Ordering::Relaxed) > 0);
}
