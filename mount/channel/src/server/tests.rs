use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::region::Region;
use crate::{Client, Deferred, Gone, channel};

/// Answers with the bytes in reverse order.
struct Reverse;

impl Handler for Reverse {
    fn handle(&mut self, _: &Asked<'_>, request: &[u8], reply: &mut Vec<u8>) -> Answered {
        reply.extend(request.iter().rev());
        Answered::Now
    }
}

struct Running {
    joiner: Joiner,
    thread: Option<thread::JoinHandle<io::Result<()>>>,
}

impl Running {
    fn new() -> Self {
        let mut server = Server::new().unwrap();
        let joiner = server.joiner();
        let thread = Some(thread::spawn(move || server.run(&mut Reverse)));
        Self { joiner, thread }
    }

    /// A client, and the daemon's end of its socket.
    fn client(&self) -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ends = channel().unwrap();
        self.joiner.join(ends.daemon);
        let client = Client::new(ends.memory, ends.doorbell, theirs.into()).unwrap();
        (client, ours)
    }

    fn end(&mut self) {
        self.joiner.end();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

fn ask(client: &Client, number: u64) {
    let request = [number.to_le_bytes(), (!number).to_le_bytes()].concat();
    let mut reply = [0; 32];
    let len = client.call(&[&request], &mut reply).unwrap();
    let expected: Vec<u8> = request.into_iter().rev().collect();
    assert_eq!(&reply[..len], expected);
}

#[test]
fn each_call_of_many_threads_of_many_programs_gets_its_own_reply() {
    let mut running = Running::new();
    let clients: Vec<_> = (0..5).map(|_| running.client()).collect();
    thread::scope(|scope| {
        for (n, (client, _)) in clients.iter().enumerate() {
            for thread in 0..3 {
                scope.spawn(move || {
                    (0..2000).for_each(|call| ask(client, (n as u64) << 32 | thread << 24 | call));
                });
            }
        }
    });
    running.end();
}

#[test]
fn a_call_after_a_pause_is_answered() {
    let mut running = Running::new();
    let (client, _socket) = running.client();
    let (other, _other) = running.client();
    for pause in 0..20 {
        thread::sleep(std::time::Duration::from_millis(pause % 4));
        ask(&client, pause);
        (0..100).for_each(|call| ask(&other, call));
    }
    running.end();
}

#[test]
fn requests_that_nobody_waits_for_are_carried_out_and_free_their_slots() {
    struct Counted(Arc<AtomicUsize>);
    impl Handler for Counted {
        fn handle(&mut self, _: &Asked<'_>, request: &[u8], _: &mut Vec<u8>) -> Answered {
            self.0.fetch_add(request.len(), Ordering::SeqCst);
            Answered::Now
        }
    }
    let counted = Arc::<AtomicUsize>::default();
    let (mut server, mut handler) = (Server::new().unwrap(), Counted(counted.clone()));
    let joiner = server.joiner();
    let thread = Some(thread::spawn(move || server.run(&mut handler)));
    let mut running = Running { joiner, thread };
    let (client, _socket) = running.client();
    for round in 1..=200 {
        assert!(client.post(&[&[1; 8]]));
        client.call(&[&[1; 16]], &mut [0; 8]).unwrap();
        if round % 50 == 0 {
            // The thread sleeps by then, and is woken by a request like any other.
            thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(counted.load(Ordering::SeqCst), round * 24);
        }
    }
    assert!(!client.post(&[&[0; PAYLOAD + 1]]));
    running.end();
}

/// Promises each reply that it can: the request, in another thread. Every tenth is dropped.
struct Promises(mpsc::Sender<(Promise, Vec<u8>)>);

impl Handler for Promises {
    fn handle(&mut self, from: &Asked<'_>, request: &[u8], reply: &mut Vec<u8>) -> Answered {
        match from.promise() {
            Some(promise) => {
                self.0.send((promise, request.to_vec())).unwrap();
                Answered::Later
            }
            None => {
                reply.push(0);
                Answered::Now
            }
        }
    }
}

#[test]
fn promised_replies_come_from_other_threads_while_the_server_goes_on() {
    let (sender, promised) = mpsc::channel();
    let (mut server, mut handler) = (Server::new().unwrap(), Promises(sender));
    let joiner = server.joiner();
    let thread = Some(thread::spawn(move || server.run(&mut handler)));
    let mut running = Running { joiner, thread };
    let (client, _socket) = running.client();
    let client = &client;
    thread::scope(|scope| {
        // The server has taken all requests before the first reply is given, in reverse order.
        let given = scope.spawn(move || {
            for _ in 0..20 {
                let mut all: Vec<_> = promised.iter().take(8).collect();
                while let Some((promise, request)) = all.pop() {
                    match request[0] % 10 {
                        7 => drop(promise),
                        _ => promise.keep(&request),
                    }
                }
            }
        });
        for thread in 0..8u8 {
            scope.spawn(move || {
                for call in 0..20u8 {
                    let mut reply = [0; 8];
                    let request = [call, thread, 0, 0, 0, 0, 0, 0];
                    let len = client.call_long(&[&request], &mut reply).unwrap();
                    let expected = if call % 10 == 7 { 0 } else { 8 };
                    assert_eq!(len, expected);
                    assert!(len == 0 || reply == request);
                }
            });
        }
        given.join().unwrap();
    });
    running.end();
}

/// A program that makes request after request in slots whose replies are promised gets no more promises
/// than it has slots.
#[test]
fn promises_of_a_program_are_bounded() {
    let (sender, promised) = mpsc::channel();
    let (mut server, mut handler) = (Server::new().unwrap(), Promises(sender));
    let joiner = server.joiner();
    let ends = channel().unwrap();
    let region = Region::map(&ends.memory).unwrap();
    joiner.join(ends.daemon);
    let thread = Some(thread::spawn(move || server.run(&mut handler)));
    let mut running = Running { joiner, thread };
    for _ in 0..4 {
        region.pending.store(u64::MAX, Ordering::SeqCst);
        while region.pending.load(Ordering::SeqCst) != 0 {
            let _ = rustix::io::write(&ends.doorbell, &1u64.to_ne_bytes());
            thread::yield_now();
        }
    }
    let (client, _socket) = running.client();
    // The server is behind all of them when it has promised this reply.
    let other = thread::spawn(move || client.call_long(&[&[3; 8]], &mut [0; 8]));
    let mut all = Vec::new();
    while all
        .last()
        .is_none_or(|(_, request): &(_, Vec<u8>)| request[..] != [3; 8])
    {
        all.push(promised.recv().unwrap());
    }
    assert_eq!(all.len(), SLOTS + 1);
    drop(all);
    assert_eq!(other.join().unwrap(), Ok(0));
    running.end();
}

#[test]
fn bytes_behind_words_go_where_they_are_wanted() {
    let mut running = Running::new();
    let (client, _socket) = running.client();
    let request: Vec<u8> = (0..40).rev().collect();
    let (mut words, mut bytes) = ([[0; 8]; 2], [0; 30]);
    let lens = client.call_for_bytes(&[&request], &mut words, &mut bytes);
    assert_eq!(lens, Ok((16, 24)));
    assert_eq!(words.as_flattened(), &(0..16).collect::<Vec<_>>()[..]);
    assert_eq!(bytes[..24], (16..40).collect::<Vec<_>>()[..]);
    let lens = client.call_for_bytes(&[&request[..8]], &mut words, &mut bytes);
    assert_eq!(lens, Ok((8, 0)));
    running.end();
}

/// A file of one program: words that were appended, and whether others know it.
#[derive(Default)]
struct Appended {
    words: Vec<u64>,
    known: bool,
}

struct Appends(Arc<Mutex<Appended>>);

impl Handler for Appends {
    fn handle(&mut self, _: &Asked<'_>, request: &[u8], reply: &mut Vec<u8>) -> Answered {
        let mut file = self.0.lock().unwrap();
        if !file.known {
            let word = request.try_into().unwrap();
            file.words.push(u64::from_le_bytes(word));
        }
        reply.push(u8::from(!file.known));
        Answered::Now
    }
}

/// What one program has deferred, in turn, is there when the lease has ended and for each call of another
/// one; and nothing is accepted that is not done before another one knows the file.
#[test]
fn deferred_calls_are_carried_out_before_anybody_can_see_that_they_are_not() {
    let file = Arc::<Mutex<Appended>>::default();
    let (mut server, mut handler) = (Server::new().unwrap(), Appends(file.clone()));
    let joiner = server.joiner();
    let thread = Some(thread::spawn(move || server.run(&mut handler)));
    let mut running = Running { joiner, thread };
    let mut accepted = 0;
    for round in 0..400u64 {
        *file.lock().unwrap() = Appended::default();
        let ends = channel().unwrap();
        let end = ends.daemon.clone();
        let number = running.joiner.join(ends.daemon);
        let (_socket, theirs) = UnixStream::pair().unwrap();
        let client = Client::new(ends.memory, ends.doorbell, theirs.into()).unwrap();
        let (epoch, returned) = (end.epoch(), AtomicUsize::new(0));
        let (running, file) = (&running, &file);
        thread::scope(|scope| {
            scope.spawn(|| {
                for word in 1..=100u64 {
                    let bytes = word.to_le_bytes();
                    let mut reply = [0; 8];
                    let done = match client.defer(epoch, &[&bytes], &mut reply) {
                        Ok(Deferred::Accepted) => true,
                        Ok(Deferred::Answered(_)) => reply[0] == 1,
                        Err(_) => {
                            client.call(&[&bytes], &mut reply).unwrap();
                            reply[0] == 1
                        }
                    };
                    if !done {
                        return;
                    }
                    returned.store(word as usize, Ordering::SeqCst);
                }
            });
            (0..round % 50).for_each(|_| thread::yield_now());
            let before = returned.load(Ordering::SeqCst);
            running.joiner.finish(number, &end);
            assert!(file.lock().unwrap().words.len() >= before);
            running.joiner.end_leases(number, &end);
            assert!(!end.is_leased(epoch) && end.is_leased(end.epoch()));
            file.lock().unwrap().known = true;
        });
        let words = &file.lock().unwrap().words;
        assert_eq!(words.len(), returned.load(Ordering::SeqCst));
        assert!(words.iter().zip(1..).all(|(word, turn)| *word == turn));
        accepted += words.len();
        running.joiner.leave(number);
    }
    assert!(accepted > 0);
    running.end();
}

#[test]
fn nobody_waits_for_what_no_thread_carries_out() {
    let mut running = Running::new();
    let ends = channel().unwrap();
    let end = ends.daemon.clone();
    let region = Region::map(&ends.memory).unwrap();
    let number = running.joiner.join(ends.daemon);
    // Nothing has told the thread.
    region.deferred.store(u64::MAX, Ordering::SeqCst);
    running.joiner.finish(number, &end);
    running.joiner.leave(number);
    region.deferred.store(1, Ordering::SeqCst);
    running.joiner.end_leases(number, &end);
    running.end();
    let late = channel().unwrap();
    Region::map(&late.memory)
        .unwrap()
        .deferred
        .store(1, Ordering::SeqCst);
    let end = late.daemon.clone();
    let number = running.joiner.join(late.daemon);
    running.joiner.finish(number, &end);
}

#[test]
fn without_a_daemon_a_call_fails() {
    let mut running = Running::new();
    let (client, socket) = running.client();
    ask(&client, 1);
    running.end();
    drop(socket);
    let asked = client.call(&[b"request"], &mut [0; 8]);
    assert_eq!(asked, Err(Gone::Unanswered));
    let long = client.call(&[&[0; PAYLOAD + 1]], &mut [0; 8]);
    assert_eq!(long, Err(Gone::NotAsked));
}

#[test]
fn a_channel_that_left_is_not_served_and_others_are() {
    let mut running = Running::new();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ends = channel().unwrap();
    let number = running.joiner.join(ends.daemon);
    let client = Client::new(ends.memory, ends.doorbell, theirs.into()).unwrap();
    ask(&client, 1);
    running.joiner.leave(number);
    let (other, _other) = running.client();
    ask(&other, 2);
    drop(ours);
    assert_eq!(
        client.call(&[b"request"], &mut [0; 8]),
        Err(Gone::Unanswered)
    );
    ask(&other, 3);
    running.end();
}

/// Whatever a program writes into its memory, the others are served.
#[test]
fn hostile_memory_harms_only_its_own_program() {
    let mut running = Running::new();
    let ends = channel().unwrap();
    let region = Region::map(&ends.memory).unwrap();
    running.joiner.join(ends.daemon);
    let (client, _socket) = running.client();
    let mut random = 1u64;
    for call in 0..3000 {
        for _ in 0..8 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let slot = &region.slots[(random >> 40) as usize % region.slots.len()];
            slot.state.store((random >> 33) as u32, Ordering::Relaxed);
            slot.put(&[&random.to_le_bytes()]);
            region.pending.store(random, Ordering::Relaxed);
            region.deferred.store(random >> 7, Ordering::Relaxed);
            region.epoch.store(random >> 3, Ordering::Relaxed);
            region
                .asleep
                .store((random >> 60) as u32, Ordering::Relaxed);
        }
        let _ = rustix::io::write(&ends.doorbell, &1u64.to_ne_bytes());
        ask(&client, call);
    }
    running.end();
}

/// Answers, and whenever it does, the first channel has new requests.
struct Flooded(Region);

impl Handler for Flooded {
    fn handle(&mut self, from: &Asked<'_>, request: &[u8], reply: &mut Vec<u8>) -> Answered {
        self.0.pending.store(u64::MAX, Ordering::Relaxed);
        self.0.deferred.store(u64::MAX, Ordering::Relaxed);
        Reverse.handle(from, request, reply)
    }
}

/// A program that always has requests keeps no other one from joining, and the thread not from ending.
#[test]
fn others_join_beside_a_flood_of_requests() {
    let mut server = Server::new().unwrap();
    let joiner = server.joiner();
    let ends = channel().unwrap();
    let region = Region::map(&ends.memory).unwrap();
    joiner.join(ends.daemon);
    region.pending.store(1, Ordering::SeqCst);
    let _ = rustix::io::write(&ends.doorbell, &1u64.to_ne_bytes());
    let thread = thread::spawn(move || server.run(&mut Flooded(region)));
    let mut running = Running {
        joiner,
        thread: Some(thread),
    };
    // The flood has begun by then.
    let (client, _socket) = running.client();
    ask(&client, 1);
    running.end();
}
