//! Replies that are handed over, over a pair of sockets in place of the device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, recv};
use zerocopy::FromBytes;

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
fn is_silent(kernel: &OwnedFd) -> bool {
    recv(
        kernel,
        &mut [0; 1][..],
        RecvFlags::DONTWAIT | RecvFlags::PEEK,
    )
    .is_err()
}

#[test]
fn courier_writes_the_reply_that_is_awaited() {
    let (kernel, channel) = Channel::pair();
    let courier = Courier::start(&channel).unwrap();
    let sink = courier.sink();
    for round in 1..1000u64 {
        courier.expect(2 * round, Opcode::GETATTR);
        // One that the loop answers for another.
        sink.send(2 * round + 1, Ok(&[b"direct"]));
        assert_eq!(reply(&kernel), (2 * round + 1, 0, b"direct".to_vec()));
        assert!(
            courier
                .post
                .newest
                .lock()
                .as_ref()
                .is_none_or(|p| p.unique < 2 * round)
        );
        match round % 3 {
            0 => sink.send(2 * round, Err(Errno::ENOENT)),
            1 => sink.send(2 * round, Ok(&[b"head", &[7; 100]])),
            _ => sink.send_filled(2 * round, 50, &mut |room| {
                room.fill(9);
                Ok(20)
            }),
        }
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
    // No courier runs.
    let post = Arc::new(Post::new(&channel));
    let sink = Carried {
        post: Arc::clone(&post),
        courier: thread::current(),
    };
    let send = |unique, bytes: &[u8]| {
        post.request.store(unique, Ordering::Relaxed);
        sink.send(unique, Ok(&[bytes]));
    };
    send(1, &[0; LARGEST + 1]);
    assert_eq!(reply(&kernel).0, 1);
    send(2, b"waits");
    assert!(is_silent(&kernel));
    send(3, b"behind");
    assert_eq!(reply(&kernel), (3, 0, b"behind".to_vec()));
    assert!(post.rescue());
    assert_eq!(reply(&kernel), (2, 0, b"waits".to_vec()));
    assert!(!post.rescue() && is_silent(&kernel));
}

#[test]
fn courier_that_is_late_is_not_waited_for() {
    let (kernel, channel) = Channel::pair();
    let post = Arc::new(Post::new(&channel));
    assert!(post.carry(5, Ok(&[b"late"])));
    // It has lost its processor with the reply in its hands.
    let taken = post.next.lock().take().unwrap();
    assert!(post.rescue());
    assert_eq!(reply(&kernel), (5, 0, b"late".to_vec()));
    taken.send(&channel);
    // The kernel refuses the second one.
    assert_eq!(reply(&kernel).0, 5);
    assert!(post.carry(6, Ok(&[b"next"])));
    post.next.lock().take().unwrap().send(&channel);
    assert!(!post.rescue(), "it was sent");
}

#[test]
fn message_of_another_client_writes_what_the_courier_has_not() {
    let (kernel, channel) = Channel::pair();
    let post = Arc::new(Post::new(&channel));
    let carry = |client, unique| {
        post.client.store(client, Ordering::Relaxed);
        assert!(post.carry(unique, Ok(&[])));
        post.next.lock().take().unwrap()
    };
    let _kept = carry(7, 1);
    assert!(!post.arrived(None) && is_silent(&kernel));
    assert!(post.arrived(Some(8)));
    assert_eq!(reply(&kernel).0, 1);
    assert!(!post.arrived(Some(8)), "it is written once");
    // A client that goes on has its reply, though the courier could not note that.
    let _kept = carry(7, 2);
    assert!(!post.arrived(Some(7)) && !post.arrived(Some(8)));
    assert!(is_silent(&kernel));
}

#[test]
fn what_was_handed_over_is_written_at_the_end() {
    for _ in 0..200 {
        let (kernel, channel) = Channel::pair();
        let courier = Courier::start(&channel).unwrap();
        courier.expect(1, Opcode::READ);
        courier.sink().send(1, Ok(&[]));
        drop(courier);
        assert_eq!(reply(&kernel), (1, 0, vec![]));
    }
}

#[test]
fn loop_runs_where_its_client_runs_and_everywhere_again() {
    let (_kernel, channel) = Channel::pair();
    let follows = thread::spawn(move || {
        let before = sched_getaffinity(None).unwrap();
        let mut courier = Courier::start(&channel).unwrap();
        // A client that is this thread runs where it is bound to.
        let client = gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(courier.follow(client, Duration::ZERO) && courier.is_beside());
        let bound = sched_getaffinity(None).unwrap();
        assert_eq!(bound.count(), 1);
        assert!(bound.is_set(rustix::thread::sched_getcpu()));
        assert!(
            !courier.follow(u32::MAX, Duration::ZERO),
            "it is looked for later"
        );
        assert!(
            (0..OFTEN).any(|_| !courier.follow(u32::MAX, Duration::ZERO) && !courier.is_beside())
        );
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        assert!((0..OFTEN).any(|_| courier.follow(client, Duration::ZERO)));
        drop(courier);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    });
    follows.join().unwrap();
}

#[test]
fn processor_of_a_thread_is_told_by_the_kernel() {
    let own = gettid().as_raw_nonzero().get().cast_unsigned();
    assert!(processor_of(own).is_some());
    assert_eq!(processor_of(u32::MAX), None);
}
