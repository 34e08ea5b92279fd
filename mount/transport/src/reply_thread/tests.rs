//! Replies that are handed over, over a pair of sockets in place of the device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, recv};
use zerocopy::{FromBytes, FromZeros};

use super::*;
use crate::abi::OutHeader;

/// The number, error and contents of the next reply.
fn reply(kernel: &OwnedFd) -> (u64, i32, Vec<u8>) {
    let mut bytes = vec![0; 2 * LARGEST];
    let (len, _) = recv(kernel, &mut bytes[..], RecvFlags::empty()).unwrap();
    let (header, contents) = OutHeader::read_from_prefix(&bytes[..len]).unwrap();
    (header.unique, header.error, contents.to_vec())
}

/// Whether no reply is there.
pub(crate) fn is_silent(kernel: &OwnedFd) -> bool {
    recv(
        kernel,
        &mut [0; 1][..],
        RecvFlags::DONTWAIT | RecvFlags::PEEK,
    )
    .is_err()
}

/// A handoff whose reply thread does not run, and a sink of it.
fn without_thread(channel: &Arc<Channel>) -> (Arc<Handoff>, HandoffSink) {
    let handoff = Arc::new(Handoff::new(channel));
    let sink = HandoffSink {
        handoff: Arc::clone(&handoff),
        thread: thread::current(),
    };
    (handoff, sink)
}

/// A reply that no reply thread writes, the socket on which it is to arrive, and its handoff.
pub(crate) fn stuck() -> (OwnedFd, Arc<Handoff>) {
    let (kernel, channel) = Channel::pair();
    let (handoff, sink) = without_thread(&channel);
    serving(1, 1, || sink.send(1, Ok(&[])));
    (kernel, handoff)
}

/// The header of a request of thread 1.
fn request(unique: u64, opcode: Opcode) -> InHeader {
    let mut header = InHeader::new_zeroed();
    (header.unique, header.opcode, header.pid) = (unique, opcode.0, 1);
    header
}

/// As the loop that serves this request.
fn serving(unique: u64, client: u32, serve: impl FnOnce()) {
    SERVED.set(Served { unique, client });
    serve();
    SERVED.set(Served::default());
}

#[test]
fn reply_thread_writes_the_reply_that_is_awaited() {
    let (kernel, channel) = Channel::pair();
    let thread = ReplyThread::start(&channel).unwrap();
    let sink = thread.sink();
    for round in 1..1000u64 {
        thread.serving(&request(2 * round, Opcode::GETATTR), || {
            // One that the loop answers for another.
            sink.send(2 * round + 1, Ok(&[b"direct"]));
            assert_eq!(reply(&kernel), (2 * round + 1, 0, b"direct".to_vec()));
            match round % 3 {
                0 => sink.send(2 * round, Err(Errno::ENOENT)),
                1 => sink.send(2 * round, Ok(&[b"head", &[7; 100]])),
                _ => sink.send_filled(2 * round, 50, &mut |room| {
                    room.fill(9);
                    Ok(20)
                }),
            }
        });
        let (unique, error, contents) = reply(&kernel);
        assert_eq!(unique, 2 * round);
        match round % 3 {
            0 => assert_eq!(error, -Errno::ENOENT.number()),
            1 => assert_eq!(contents, [&b"head"[..], &[7; 100]].concat()),
            _ => assert_eq!(contents, [9; 20]),
        }
    }
}

#[test]
fn reply_that_is_too_large_or_before_which_one_waits_is_written_at_once() {
    let (kernel, channel) = Channel::pair();
    let (handoff, sink) = without_thread(&channel);
    let send = |unique, bytes: &[u8]| serving(unique, 1, || sink.send(unique, Ok(&[bytes])));
    send(1, &[0; LARGEST + 1]);
    assert_eq!(reply(&kernel).0, 1);
    send(2, b"waits");
    assert!(is_silent(&kernel) && handoff.is_awaited());
    send(3, b"behind");
    assert_eq!(reply(&kernel), (3, 0, b"behind".to_vec()));
    handoff.write_instead();
    assert!(!handoff.is_awaited());
    assert_eq!(reply(&kernel), (2, 0, b"waits".to_vec()));
    assert!(!handoff.write_instead() && is_silent(&kernel));
}

#[test]
fn reply_of_another_thread_or_a_later_one_is_written_at_once() {
    let (kernel, channel) = Channel::pair();
    let (handoff, sink) = without_thread(&channel);
    serving(5, 1, || {
        thread::scope(|scope| scope.spawn(|| sink.send(5, Ok(&[]))).join()).unwrap();
    });
    assert_eq!(reply(&kernel).0, 5);
    serving(6, 1, || ());
    sink.send(6, Ok(&[]));
    assert_eq!(reply(&kernel).0, 6);
    assert!(!handoff.is_awaited());
}

#[test]
fn reply_thread_that_is_late_is_not_waited_for() {
    let (kernel, channel) = Channel::pair();
    let (handoff, sink) = without_thread(&channel);
    let carry = |unique, bytes: &[u8]| serving(unique, 1, || sink.send(unique, Ok(&[bytes])));
    carry(5, b"late");
    // It has lost its processor with the reply in its hands.
    let taken = handoff.next.lock().take().unwrap();
    thread::sleep(SOON);
    assert!(handoff.write_if_late());
    assert_eq!(reply(&kernel), (5, 0, b"late".to_vec()));
    taken.send(&channel);
    // The kernel refuses the second one.
    assert_eq!(reply(&kernel).0, 5);
    carry(6, b"next");
    handoff.next.lock().take().unwrap().send(&channel);
    assert!(
        !handoff.is_awaited() && !handoff.write_instead(),
        "it was sent"
    );
}

#[test]
fn message_of_another_client_writes_what_the_reply_thread_has_not() {
    let (kernel, channel) = Channel::pair();
    let (handoff, sink) = without_thread(&channel);
    let carry = |client, unique| {
        serving(unique, client, || sink.send(unique, Ok(&[])));
        handoff.next.lock().take().unwrap()
    };
    let _kept = carry(7, 1);
    assert!(is_silent(&kernel));
    handoff.arrived(Some(8));
    assert_eq!(reply(&kernel).0, 1);
    handoff.arrived(Some(8));
    assert!(is_silent(&kernel), "it is written once");
    // A client that goes on has its reply, though the reply thread could not note that.
    let _kept = carry(7, 2);
    assert!(!handoff.arrived(Some(7)) && !handoff.arrived(Some(8)));
    assert!(is_silent(&kernel));
    // Nothing is known of messages whose thread has no number, or that may be sent ahead.
    let _kept = carry(0, 3);
    handoff.arrived(Some(0));
    assert_eq!(reply(&kernel).0, 3);
}

#[test]
fn what_was_handed_over_is_written_at_the_end() {
    for _ in 0..200 {
        let (kernel, channel) = Channel::pair();
        let thread = ReplyThread::start(&channel).unwrap();
        let sink = thread.sink();
        thread.serving(&request(1, Opcode::READ), || sink.send(1, Ok(&[])));
        drop(thread);
        assert_eq!(reply(&kernel), (1, 0, vec![]));
    }
}

/// Runs `act` with a reply thread that is bound to the first processor that this thread may use, and
/// returns where the thread may run before and after.
fn bound(act: impl FnOnce(&mut ReplyThread) + Send + 'static) -> (CpuSet, CpuSet) {
    let (_kernel, channel) = Channel::pair();
    let bound = thread::spawn(move || {
        let before = sched_getaffinity(None).unwrap();
        let mut thread = ReplyThread::start(&channel).unwrap();
        let first = thread.handoff.places()[0];
        assert!(thread.handoff.bind(first) && thread.is_bound());
        let only = sched_getaffinity(None).unwrap();
        assert!(only.count() == 1 && only.is_set(first));
        assert!(thread.handoff.places().len() == before.count() as usize);
        act(&mut thread);
        thread.handoff.release();
        assert!(!thread.is_bound());
        (before, sched_getaffinity(None).unwrap())
    });
    bound.join().unwrap()
}

#[test]
fn loop_that_was_bound_runs_everywhere_again() {
    let (before, after) = bound(|_| ());
    assert_eq!(before, after);
    // The watcher releases it.
    let (before, after) = bound(|thread| {
        let handoff = Arc::clone(&thread.handoff);
        thread::spawn(move || handoff.release()).join().unwrap();
        assert!(!thread.is_bound());
    });
    assert_eq!(before, after);
}

#[test]
fn processors_that_somebody_else_gave_a_bound_loop_are_kept() {
    let all = sched_getaffinity(None).unwrap();
    let mut places = (0..CpuSet::MAX_CPU).filter(|n| all.is_set(*n));
    let (Some(first), Some(second)) = (places.next(), places.next()) else {
        println!("skipped: there is one processor");
        return;
    };
    let mut given = CpuSet::new();
    given.set(second);
    let (_, after) = bound(move |_| sched_setaffinity(None, &given).unwrap());
    assert_eq!(after, given);
    let (_, after) = bound(move |thread| {
        sched_setaffinity(None, &given).unwrap();
        assert!(!thread.handoff.bind(first) && !thread.is_bound());
    });
    assert_eq!(after, given);
}

#[test]
fn client_is_not_followed_for_a_while_after_a_late_reply() {
    let (_kernel, channel) = Channel::pair();
    let mut thread = ReplyThread::start(&channel).unwrap();
    let now = Instant::now();
    let mut last = Duration::ZERO;
    for _ in 0..12 {
        thread.failed(now);
        let rests = thread.rests.unwrap() - now;
        assert!(rests >= last && rests <= REST_MAX);
        thread.follow(1, now + rests / 2, Duration::ZERO);
        assert!(thread.calm == 0 && !thread.measures());
        last = rests;
    }
    assert_eq!(last, REST_MAX);
    for _ in 0..CALM {
        thread.follow(1, now + REST_MAX, Duration::ZERO);
    }
    thread.failed(now);
    assert_eq!(thread.rests.unwrap() - now, REST);
}

#[test]
fn message_that_nobody_waits_for_writes_a_late_reply() {
    let (kernel, channel) = Channel::pair();
    let (handoff, sink) = without_thread(&channel);
    serving(1, 7, || sink.send(1, Ok(&[])));
    thread::sleep(SOON);
    assert!(handoff.arrived(None));
    assert_eq!(reply(&kernel).0, 1);
}
