//! Thread schedules of a channel: the serving thread, threads of programs, and others of the daemon. No
//! sleep ends by its time, so a wake-up that is missed is a deadlock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use cairnfs_disk::sync::explore::{Cost, explore};
use shuttle::thread::{self, JoinHandle};

use super::*;
use crate::region::DEFERRED;
use crate::sync::Connection;
use crate::{Client, Deferred, channel};

/// What the daemon has done, as the words of requests, each with its channel. A look at it is one step.
#[derive(Default)]
struct Seen {
    words: Mutex<Vec<(u64, u64)>>,
    /// Whether others know the file: then nothing is done to it any more.
    known: Mutex<bool>,
}

impl Seen {
    fn words(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.words.lock().unwrap()
    }

    /// The words of one channel.
    fn of(&self, channel: u64) -> Vec<u64> {
        let words = self.words();
        let its = words.iter().filter(|(from, _)| *from == channel);
        its.map(|(_, word)| *word).collect()
    }
}

/// Notes the word of a request, and replies with it and whether it was done.
struct Notes(Arc<Seen>);

impl Handler for Notes {
    fn handle(&mut self, from: &Asked<'_>, request: &[u8], reply: &mut Vec<u8>) -> Answered {
        let word = u64::from_le_bytes(request.try_into().unwrap());
        let done = !*self.0.known.lock().unwrap();
        if done {
            self.0.words().push((from.channel, word));
        }
        reply.extend(word.to_le_bytes());
        reply.extend(u64::from(done).to_le_bytes());
        Answered::Now
    }
}

struct Running {
    joiner: Joiner,
    thread: JoinHandle<io::Result<()>>,
    seen: Arc<Seen>,
}

/// A program, and the daemon's end of its channel.
#[derive(Clone)]
struct Program {
    client: Arc<Client>,
    end: Arc<DaemonEnd>,
    number: u64,
}

impl Running {
    fn new() -> Self {
        let mut server = Server::new().unwrap();
        let (joiner, seen) = (server.joiner(), Arc::<Seen>::default());
        let mut notes = Notes(Arc::clone(&seen));
        let thread = thread::spawn(move || server.run(&mut notes));
        Self {
            joiner,
            thread,
            seen,
        }
    }

    fn program(&self) -> Program {
        let (client, end) = ends();
        let number = self.joiner.join(Arc::clone(&end));
        Program {
            client,
            end,
            number,
        }
    }

    /// What two threads have posted is done, once, and in the order of each.
    fn check_posts(&self, program: &Program, mut posted: Vec<u64>) {
        self.joiner.finish(program.number, &program.end);
        let mut seen = self.seen.of(program.number);
        assert!(seen.iter().filter(|word| **word < 20).is_sorted());
        assert!(seen.iter().filter(|word| **word >= 20).is_sorted());
        seen.sort_unstable();
        posted.sort_unstable();
        assert_eq!(seen, posted);
    }

    fn end(self) {
        self.joiner.end();
        self.thread.join().unwrap().unwrap();
    }
}

fn ends() -> (Arc<Client>, Arc<DaemonEnd>) {
    let ends = channel().unwrap();
    let client = Client::new(ends.memory, ends.doorbell, Connection).unwrap();
    (Arc::new(client), ends.daemon)
}

fn join<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

/// What a reply tells of a word: whether it was done.
fn told(reply: [u8; 16], word: u64) -> bool {
    let (its, done) = reply.split_at(8);
    assert_eq!(its, word.to_le_bytes());
    done[0] == 1
}

impl Program {
    /// Calls, and waits. Returns whether it was done.
    fn call(&self, word: u64) -> bool {
        let mut reply = [0; 16];
        let len = self.client.call(&[&word.to_le_bytes()], &mut reply);
        assert_eq!(len, Ok(16));
        told(reply, word)
    }

    /// Has it done without waiting. Returns whether it will be.
    fn post(&self, word: u64) -> bool {
        self.client.post(&[&word.to_le_bytes()])
    }

    /// Has two threads post words, and returns those that they have posted.
    fn post_by_two(&self, each: u64) -> Vec<u64> {
        let threads = [10, 20].map(|first| {
            let program = self.clone();
            let words = first..first + each;
            thread::spawn(move || words.filter(|word| program.post(*word)).collect::<Vec<_>>())
        });
        join(threads).concat()
    }

    /// Defers if possible, or calls. Returns whether it was done, or will be.
    fn defer(&self, epoch: u64, word: u64) -> bool {
        let mut reply = [0; 16];
        match self.client.defer(epoch, &[&word.to_le_bytes()], &mut reply) {
            Ok(Deferred::Accepted) => true,
            Ok(Deferred::Answered(len)) => {
                assert_eq!(len, 16);
                told(reply, word)
            }
            Err(_) => self.call(word),
        }
    }
}

#[test]
fn each_call_of_two_threads_is_answered() {
    explore("channel: threads of a program", Cost::Medium, || {
        let running = Running::new();
        let program = running.program();
        let threads = [10, 20].map(|first| {
            let program = program.clone();
            thread::spawn(move || (first..first + 2).for_each(|word| assert!(program.call(word))))
        });
        join(threads);
        let mut seen = running.seen.of(program.number);
        seen.sort_unstable();
        assert_eq!(seen, [10, 11, 20, 21]);
        running.end();
    });
}

#[test]
fn each_call_of_two_programs_is_answered() {
    explore("channel: programs", Cost::Medium, || {
        let running = Running::new();
        let threads = [(); 2].map(|()| {
            let program = running.program();
            thread::spawn(move || (1..=2).for_each(|word| assert!(program.call(word))))
        });
        join(threads);
        running.end();
    });
}

/// What a program has deferred is done in the order of its calls, and before its next call.
#[test]
fn deferred_calls_are_carried_out_in_turn() {
    explore("channel: deferred calls in turn", Cost::Medium, || {
        let running = Running::new();
        let program = running.program();
        let epoch = program.end.epoch();
        assert!((1..=4).all(|word| program.defer(epoch, word)));
        assert!(program.call(5) && program.defer(epoch, 6) && program.call(7));
        let done = running.seen.of(program.number);
        assert_eq!(done, [1, 2, 3, 4, 5, 6, 7]);
        running.end();
    });
}

/// What one program has deferred is done before a call of another program that is made after it has returned.
/// A further call of that program makes the daemon look at its channel at any time.
#[test]
fn deferred_calls_are_carried_out_before_later_calls_of_others() {
    explore("channel: calls behind deferred ones", Cost::Medium, || {
        let running = Running::new();
        let (one, other) = (running.program(), running.program());
        let numbers = [one.number, other.number];
        let in_turn = thread::spawn({
            let other = other.clone();
            move || {
                let epoch = one.end.epoch();
                let both = |word| one.defer(epoch, word) && other.call(word);
                assert!((1..=2).all(both));
            }
        });
        assert!((20..22).all(|word| other.call(word)));
        join([in_turn]);
        let mut words = running.seen.words().clone();
        words.retain(|(_, word)| *word < 20);
        let [one, other] = numbers;
        assert_eq!(words, [(one, 1), (other, 1), (one, 2), (other, 2)]);
        running.end();
    });
}

/// All that a program has deferred by its lease is done when the lease has ended, or the program is told
/// that it was not.
#[test]
fn nothing_is_accepted_that_is_not_done_when_the_lease_has_ended() {
    explore("channel: the end of a lease", Cost::Medium, || {
        let running = Running::new();
        let program = running.program();
        let (number, end, seen) = (
            program.number,
            Arc::clone(&program.end),
            running.seen.clone(),
        );
        let epoch = end.epoch();
        let returned = Arc::<AtomicU64>::default();
        let count = Arc::clone(&returned);
        let deferring = thread::spawn(move || {
            for word in (1..=3).take_while(|word| program.defer(epoch, *word)) {
                count.store(word, Ordering::SeqCst);
            }
        });
        let joiner = running.joiner.clone();
        let ending = thread::spawn({
            let returned = Arc::clone(&returned);
            move || {
                let before = returned.load(Ordering::SeqCst);
                joiner.finish(number, &end);
                assert!(seen.words().len() as u64 >= before);
                joiner.end_leases(number, &end);
                assert!(!end.is_leased(epoch) && end.is_leased(end.epoch()));
                *seen.known.lock().unwrap() = true;
            }
        });
        join([deferring, ending]);
        let done: Vec<u64> = (1..=returned.load(Ordering::SeqCst)).collect();
        assert_eq!(running.seen.of(number), done);
        running.end();
    });
}

/// A post is made or not: what was made is done once, and then its slot can be used again.
#[test]
fn posts_are_carried_out_once_or_not_made() {
    explore("channel: posts into few slots", Cost::Medium, || {
        let running = Running::new();
        let program = running.program();
        let posted = program.post_by_two(SLOTS as u64);
        assert!(!posted.is_empty());
        running.check_posts(&program, posted);
        assert!((1..=SLOTS as u64).all(|word| program.post(word)));
        running.end();
    });
}

/// The slot of a post that was answered is freed by one of the threads that find it, and is not freed again
/// when the other one has posted in it.
#[test]
fn the_slot_of_a_post_is_freed_once() {
    explore("channel: slots of posts", Cost::Medium, || {
        let (client, end) = ends();
        let number = 0;
        let mut program = Program {
            client,
            end,
            number,
        };
        assert!(program.post(1));
        program.end.pass(|bits| {
            assert_eq!(bits, 1);
            let state = &program.end.region.slots[0].state;
            state.store(state::ANSWERED, Ordering::SeqCst);
        });
        let posted = program.post_by_two(1);
        assert_eq!(posted.len(), 2);
        let running = Running::new();
        program.number = running.joiner.join(Arc::clone(&program.end));
        running.check_posts(&program, posted);
        running.end();
    });
}

/// Space is set aside for [`DEFERRED`] calls, so no further one is accepted, however many threads there are.
#[test]
fn no_more_calls_are_deferred_than_there_is_space_for() {
    explore("channel: most deferred calls", Cost::Small, || {
        let (client, end) = ends();
        let epoch = end.epoch();
        let threads = [(); 2].map(|()| {
            let client = Arc::clone(&client);
            let defer =
                move |word: &u64| client.defer(epoch, &[&word.to_le_bytes()], &mut []).is_ok();
            thread::spawn(move || (0..DEFERRED as u64).filter(defer).count())
        });
        let accepted: usize = join(threads).into_iter().sum();
        assert!((1..=DEFERRED).contains(&accepted), "{accepted}");
    });
}

/// Who waits until deferred calls are carried out goes on when nobody does that any more.
#[test]
fn nobody_waits_for_a_channel_that_is_left() {
    explore("channel: leaving", Cost::Medium, || {
        let running = Running::new();
        let program = running.program();
        assert!(program.post(1));
        let threads = [(); 2].map(|()| {
            let (joiner, program) = (running.joiner.clone(), program.clone());
            thread::spawn(move || joiner.finish(program.number, &program.end))
        });
        running.joiner.leave(program.number);
        running.joiner.end();
        join(threads);
        running.thread.join().unwrap().unwrap();
    });
}
