//! Which event loops wait for messages, and how.
//!
//! A message wakes one of the threads that wait in the kernel, and waking costs more than serving.
//! So only as many event loops take part as the load needs: one for a lone client, which then
//! serves, looks for the next message, and sleeps, without any other thread being woken; more while
//! messages are found waiting. The others are parked here. They leave the kernel without being
//! interrupted: a loop that has served a message parks if enough others wait for the next one.
//!
//! A loop that is about to wait for the device calls a parked one, unless it serves a sync of the only
//! thread that has sent messages for a while, which sends none before it has the reply. In addition,
//! one parked loop watches the one that works: if it is busy with one message for a tick, the watcher
//! takes over, so no message waits behind a long computation, or behind such a sync, for more than two
//! ticks. While a loop follows a client, the watcher also writes replies that the loop handed over and
//! that are late. Nothing is timed while no messages arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::polling::Pace;
use crate::reply_thread::Handoff;

/// How long a message may take before another loop takes over waiting. Each tick wakes a thread
/// while messages arrive, which is a fraction of a percent of one processor.
const TICK: Duration = Duration::from_millis(2);

/// The same while a loop follows a client: a thread that wakes makes the kernel move it sometimes.
const TICK_BESIDE: Duration = Duration::from_millis(10);

/// One more loop takes part when the balance of messages that were found waiting (counted
/// [`WAITED`]) and others (counted -1) reaches this: when more than a third had to wait.
const PRESSURE: u32 = 8;
const WAITED: u32 = 2;

/// One loop fewer takes part after this many messages in succession during which another loop had
/// nothing to do.
const IDLE: u32 = 32;

/// Messages of one thread in succession after which it counts as the only one.
const ALONE: u32 = 64;

/// How to wait for the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The loop is the only one, and the next message will probably come soon: it looks for it for a
    /// while before it sleeps, or waits where the client runs.
    pub lone: bool,
    /// Find out whether a message is there already.
    pub look: bool,
    /// A parked loop watches this one.
    pub watched: bool,
}

impl Turn {
    /// Whether the loop may follow a client: no other client needs the loop, and another thread
    /// watches over its replies.
    pub fn follows(self) -> bool {
        self.lone && self.watched
    }
}

/// What is known of a message when it has arrived.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct From {
    /// Programs wait for the replies of this message and of the one that the loop served before it.
    pub awaited: bool,
    /// The thread that waits for the reply.
    pub client: Option<u32>,
    /// It makes something durable, for which its thread waits.
    pub syncs: bool,
    /// The loop is bound to a processor, to follow that thread.
    pub beside: bool,
    /// The loop finds out whether it can be bound.
    pub measures: bool,
    /// A reply that was handed over was not written soon.
    pub late: bool,
}

/// How a message arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It was waiting when the loop had finished the message before.
    AtOnce,
    /// A poll found it.
    Polled,
    /// The loop slept until then, for this time, after polling in vain if its turn was to poll.
    Slept(Duration),
}

/// The event loops of one connection.
#[derive(Debug)]
pub(crate) struct Readers {
    loops: usize,
    /// On one processor nothing is won.
    several: bool,
    /// [`TICK`]; tests that must not depend on time make it longer.
    tick: Duration,
    state: Mutex<State>,
    called: Condvar,
    polled: AtomicU64,
    followed: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Loops that shall take part, at least one.
    width: usize,
    /// Loops that take part: not parked.
    active: usize,
    /// Loops that wait for a message.
    reading: usize,
    /// Messages received.
    messages: u64,
    /// Parked loops that are called to take part and have not yet begun to.
    calls: usize,
    /// Whether a parked loop watches.
    watched: bool,
    pressure: u32,
    idle: u32,
    pace: Pace,
    /// The thread that waited for the reply of the last message.
    client: u32,
    /// Messages since another thread sent one.
    by_client: u32,
    /// Whether the last message makes something durable.
    syncs: bool,
    /// Whether the loop that received the last message follows a client.
    beside: bool,
    /// Where loops hand replies over.
    handoffs: Vec<Arc<Handoff>>,
    closed: bool,
}

impl Readers {
    /// `loops` event loops, which may poll if there is more than one processor.
    pub fn new(loops: usize, processors: usize) -> Self {
        Self {
            loops,
            several: processors > 1,
            tick: TICK,
            state: Mutex::new(State {
                width: 1,
                active: loops,
                reading: 0,
                messages: 0,
                calls: 0,
                watched: false,
                pressure: 0,
                idle: 0,
                pace: Pace::default(),
                client: 0,
                by_client: 0,
                syncs: false,
                beside: false,
                handoffs: Vec::new(),
                closed: false,
            }),
            called: Condvar::new(),
            polled: AtomicU64::new(0),
            followed: AtomicU64::new(0),
        }
    }

    /// Number of messages that were found by polling.
    pub fn polled(&self) -> u64 {
        self.polled.load(Ordering::Relaxed)
    }

    /// Number of messages that were served on the processor of the client.
    pub fn followed(&self) -> u64 {
        self.followed.load(Ordering::Relaxed)
    }

    /// Begins a turn of waiting for a message; parks the calling loop until it is needed, after a call
    /// of `parks`, which must not call this. `None` after [`Self::close`].
    pub fn enter(&self, parks: impl FnOnce()) -> Option<Turn> {
        let mut state = self.state.lock();
        if !state.closed && state.active > state.width && state.reading > 0 {
            parks();
            self.park(&mut state);
        } else if state.reading > 0 {
            state.note_idle();
        } else if state.active > 1 {
            state.idle = 0;
        }
        if state.closed {
            return None;
        }
        state.reading += 1;
        let alone = state.width == 1 && state.reading == 1;
        let watched = state.active < self.loops;
        if watched && state.beside && !state.watched {
            self.called.notify_one();
        }
        Some(Turn {
            lone: self.several && alone && state.pace.pays(),
            look: state.width < self.loops,
            watched,
        })
    }

    /// A loop hands its replies over there from now on.
    pub fn watch_over(&self, handoff: Arc<Handoff>) {
        self.state.lock().handoffs.push(handoff);
    }

    /// Ends a turn with a message.
    pub fn leave(&self, turn: Turn, arrival: Arrival, from: From) {
        let mut state = self.state.lock();
        state.reading -= 1;
        state.messages += 1;
        if arrival == Arrival::AtOnce && from.awaited {
            state.pressure += WAITED;
            if state.pressure >= PRESSURE {
                self.widen(&mut state);
            }
        } else {
            state.pressure = state.pressure.saturating_sub(1);
        }
        state.beside = from.beside;
        if from.beside {
            self.followed.fetch_add(1, Ordering::Relaxed);
        } else if turn.lone && !matches!(arrival, Arrival::Slept(_)) {
            self.polled.fetch_add(1, Ordering::Relaxed);
        }
        state.syncs = from.syncs;
        state.note_pace(turn, arrival, from);
        if !state.watched && state.active < self.loops {
            self.called.notify_one();
        }
    }

    /// The calling loop is about to wait for the device: if no other loop waits for messages, a
    /// parked one takes over at once, unless none is likely to come meanwhile.
    pub fn relieve(&self) {
        let mut state = self.state.lock();
        if state.syncs && state.by_client >= ALONE {
            return;
        }
        if state.reading == 0 && state.calls == 0 && state.active < self.loops {
            state.calls = 1;
            self.called.notify_one();
        }
    }

    /// Ends all turns: parked loops return.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        // They keep the device open.
        state.handoffs.clear();
        drop(state);
        self.called.notify_all();
    }

    fn widen(&self, state: &mut State) {
        state.pressure = 0;
        state.idle = 0;
        if state.width == self.loops {
            return;
        }
        state.width += 1;
        if state.active + state.calls < state.width {
            state.calls += 1;
            self.called.notify_one();
        }
    }

    fn park(&self, state: &mut MutexGuard<'_, State>) {
        state.active -= 1;
        while !state.closed {
            if state.calls > 0 {
                state.calls -= 1;
                break;
            }
            if state.watched {
                self.called.wait(state);
            } else if self.watch(state) {
                break;
            }
        }
        state.active += 1;
        if state.active == self.loops {
            // Nobody watches any more.
            self.each_handoff(state, |handoff| {
                handoff.write_instead();
            });
        }
    }

    /// Calls `look` for each place where replies are handed over.
    fn each_handoff(&self, state: &mut MutexGuard<'_, State>, look: impl Fn(&Handoff)) {
        let handoffs = state.handoffs.clone();
        if !handoffs.is_empty() {
            MutexGuard::unlocked(state, || handoffs.iter().for_each(|handoff| look(handoff)));
        }
    }

    /// Waits as the watcher; returns whether to take over.
    fn watch(&self, state: &mut MutexGuard<'_, State>) -> bool {
        let seen = state.messages;
        state.watched = true;
        let tick = if state.beside { TICK_BESIDE } else { self.tick };
        let passed = self.called.wait_for(state, tick).timed_out();
        state.watched = false;
        if !passed || state.closed || state.calls > 0 {
            return false;
        }
        let is_quiet = state.messages == seen;
        self.each_handoff(state, |handoff| handoff.attend(is_quiet));
        if state.messages != seen || state.closed || state.calls > 0 {
            return false;
        }
        if state.reading == 0 {
            return true;
        }
        if state.handoffs.iter().any(|handoff| handoff.is_awaited()) {
            return false;
        }
        // No message arrives; the next one ends this wait.
        self.called.wait(state);
        false
    }
}

impl State {
    fn note_pace(&mut self, turn: Turn, arrival: Arrival, from: From) {
        let client = from.client.unwrap_or(self.client);
        let is_same = std::mem::replace(&mut self.client, client) == client;
        self.by_client = if is_same {
            self.by_client.saturating_add(1)
        } else {
            0
        };
        if from.late {
            return self.pace.failed();
        }
        match (turn.lone, arrival) {
            (true, Arrival::Slept(waited)) if is_same && Pace::is_near(waited, from.beside) => {
                match (from.beside, from.measures) {
                    (true, _) => self.pace.caught(),
                    (false, true) => {}
                    (false, false) => self.pace.missed(),
                }
            }
            (true, Arrival::AtOnce | Arrival::Polled) if is_same => self.pace.caught(),
            (true, _) => self.pace.missed(),
            (false, Arrival::Slept(waited)) if is_same => self.pace.slept(waited),
            (false, Arrival::Slept(_)) => self.pace.slept(Duration::MAX),
            (false, _) => {}
        }
    }

    /// Another loop waits for messages while this one begins to.
    fn note_idle(&mut self) {
        self.idle += 1;
        if self.idle >= IDLE {
            self.idle = 0;
            self.width = (self.width - 1).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply_thread;
    use std::ops::Range;
    use std::sync::Arc;
    use std::thread;

    const SOON: Arrival = Arrival::Slept(Duration::from_micros(20));

    /// A message of this thread.
    fn by(client: u32, awaited: bool) -> From {
        From {
            awaited,
            client: Some(client),
            ..From::default()
        }
    }

    impl Readers {
        /// Readers whose watcher does not take over, however slowly the test runs. The loops of the
        /// test enter once and never leave, so one that took over would have the others parked.
        fn unwatched(loops: usize) -> Arc<Self> {
            Arc::new(Self {
                tick: Duration::from_secs(3600),
                ..Self::new(loops, 2)
            })
        }

        fn turn(&self, arrival: Arrival, awaited: bool) -> Turn {
            let turn = self.enter(|| ()).unwrap();
            self.leave(turn, arrival, by(1, awaited));
            turn
        }

        fn turns(&self, range: Range<u32>, arrival: Arrival, awaited: bool) {
            range.for_each(|_| {
                self.turn(arrival, awaited);
            });
        }

        fn width(&self) -> usize {
            self.state.lock().width
        }
    }

    #[test]
    fn one_loop_serves_lone_client() {
        let readers = Readers::new(4, 2);
        readers.turns(0..1000, SOON, true);
        assert_eq!(readers.width(), 1);
    }

    #[test]
    fn waiting_messages_call_one_loop_after_another() {
        let readers = Readers::unwatched(3);
        let turn = readers.enter(|| ()).unwrap();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let readers = Arc::clone(&readers);
                thread::spawn(move || readers.enter(|| ()).is_some())
            })
            .collect();
        while readers.state.lock().active > 1 {
            thread::yield_now();
        }
        readers.leave(turn, Arrival::AtOnce, by(1, true));
        readers.turns(1..2 * PRESSURE / WAITED, Arrival::AtOnce, true);
        assert_eq!(readers.width(), 3);
        assert!(others.into_iter().all(|thread| thread.join().unwrap()));
    }

    #[test]
    fn messages_that_nobody_awaits_call_no_loop() {
        let readers = Readers::new(4, 2);
        readers.turns(0..1000, Arrival::AtOnce, false);
        assert_eq!(readers.width(), 1);
        // A quarter of the messages had to wait.
        for _ in 0..1000 {
            readers.turn(Arrival::AtOnce, true);
            readers.turns(0..3, SOON, true);
        }
        assert_eq!(readers.width(), 1);
    }

    #[test]
    fn loops_without_work_leave() {
        let readers = Readers::new(2, 2);
        readers.turns(0..PRESSURE, Arrival::AtOnce, true);
        assert_eq!(readers.width(), 2);
        let waiting = readers.enter(|| ()).unwrap();
        for _ in 1..IDLE {
            readers.turn(SOON, true);
        }
        assert_eq!(readers.width(), 2);
        readers.turn(SOON, true);
        assert_eq!(readers.width(), 1);
        readers.leave(waiting, SOON, by(1, true));
    }

    #[test]
    fn only_lone_loop_polls_or_follows_and_only_if_there_is_another_processor() {
        for (processors, polls) in [(1, false), (2, true)] {
            let readers = Readers::new(2, processors);
            readers.turns(0..9, SOON, true);
            assert_eq!(readers.turn(Arrival::Polled, true).lone, polls);
            assert_eq!(readers.polled(), u64::from(polls));
            readers.turns(0..PRESSURE, Arrival::AtOnce, true);
            assert!(!readers.enter(|| ()).unwrap().lone, "several take part");
        }
    }

    #[test]
    fn clients_that_take_turns_are_not_followed() {
        let readers = Readers::new(2, 2);
        for _ in 0..100 {
            for client in [1, 2] {
                let turn = readers.enter(|| ()).unwrap();
                assert!(!turn.lone);
                readers.leave(turn, SOON, by(client, true));
            }
        }
        readers.turns(0..9, SOON, true);
        let lone = readers.enter(|| ()).unwrap();
        assert!(lone.lone);
        readers.leave(lone, SOON, by(1, true));
        let seen = |client| {
            let turn = readers.enter(|| ()).unwrap();
            readers.leave(turn, Arrival::AtOnce, by(client, false));
            turn.lone
        };
        assert!((2..100).any(|client| !seen(client)));
    }

    #[test]
    fn messages_without_a_client_change_nothing_about_it() {
        let readers = Readers::new(2, 2);
        for _ in 0..4 {
            readers.turn(SOON, true);
            let turn = readers.enter(|| ()).unwrap();
            readers.leave(turn, SOON, From::default());
        }
        readers.turn(SOON, true);
        assert!(readers.enter(|| ()).unwrap().lone);
    }

    #[test]
    fn parked_loops_return_at_close() {
        let readers = Arc::new(Readers::new(2, 2));
        let _turn = readers.enter(|| ()).unwrap();
        let parked = thread::spawn({
            let readers = Arc::clone(&readers);
            move || readers.enter(|| ())
        });
        while readers.state.lock().active > 1 {
            thread::yield_now();
        }
        readers.close();
        assert_eq!(parked.join().unwrap(), None);
        assert_eq!(readers.enter(|| ()), None);
    }

    #[test]
    fn loop_that_is_about_to_wait_calls_a_parked_one() {
        let readers = Readers::unwatched(3);
        let turn = readers.enter(|| ()).unwrap();
        let park = || {
            let readers = Arc::clone(&readers);
            thread::spawn(move || readers.enter(|| ()).is_some())
        };
        let parked = [park(), park()];
        while readers.state.lock().active > 1 {
            thread::yield_now();
        }
        readers.relieve();
        assert_eq!(
            readers.state.lock().calls,
            0,
            "this loop waits for messages"
        );
        readers.leave(turn, SOON, by(1, true));
        readers.relieve();
        readers.relieve();
        while readers.state.lock().reading == 0 {
            thread::yield_now();
        }
        readers.relieve();
        assert_eq!(readers.state.lock().active, 2, "one is called");
        readers.close();
        assert_eq!(
            parked
                .map(|one| one.join().unwrap())
                .iter()
                .filter(|on| **on)
                .count(),
            1
        );
    }

    /// The other one of two loops, which has parked. It returns whether it was called.
    fn park_the_other(readers: &Arc<Readers>) -> thread::JoinHandle<bool> {
        let readers_of_it = Arc::clone(readers);
        let parked = thread::spawn(move || readers_of_it.enter(|| ()).is_some());
        while readers.state.lock().active > 1 {
            thread::yield_now();
        }
        parked
    }

    /// Whether a loop calls a parked one, that is about to wait for what this message asks for after
    /// many others of thread 1.
    fn calls_another(from: From) -> bool {
        let readers = Readers::unwatched(2);
        readers.turns(0..2 * ALONE, SOON, true);
        let turn = readers.enter(|| ()).unwrap();
        let parked = park_the_other(&readers);
        readers.leave(turn, SOON, from);
        readers.relieve();
        let called = {
            let state = readers.state.lock();
            state.calls > 0 || state.active > 1
        };
        readers.close();
        parked.join().unwrap();
        called
    }

    #[test]
    fn no_loop_is_called_for_a_sync_of_the_only_thread() {
        let sync = |client| From {
            syncs: true,
            ..by(client, true)
        };
        assert!(!calls_another(sync(1)));
        assert!(calls_another(sync(2)), "others send messages");
        assert!(calls_another(by(1, true)), "it may read ahead");
    }

    /// Waits until a reply that no reply thread writes is written while a loop sleeps, with a call of
    /// `meanwhile` again and again.
    fn wait_for_reply(meanwhile: impl Fn(&Readers)) {
        let (kernel, handoff) = reply_thread::tests::stuck();
        let readers = Arc::new(Readers::new(2, 2));
        readers.watch_over(handoff);
        let turn = readers.enter(|| ()).unwrap();
        let parked = park_the_other(&readers);
        let beside = From {
            beside: true,
            ..by(1, true)
        };
        readers.leave(turn, SOON, beside);
        readers.enter(|| ()).unwrap();
        while reply_thread::tests::is_silent(&kernel) {
            meanwhile(&readers);
            thread::sleep(Duration::from_millis(1));
        }
        readers.close();
        parked.join().unwrap();
    }

    #[test]
    fn watcher_writes_a_reply_that_the_reply_thread_does_not() {
        wait_for_reply(|_| ());
        // Messages of others do not keep it from that.
        wait_for_reply(|readers| readers.state.lock().messages += 1);
    }

    #[test]
    fn watcher_takes_over_from_loop_that_is_busy() {
        let readers = Arc::new(Readers::new(2, 2));
        let turn = readers.enter(|| ()).unwrap();
        let parked = thread::spawn({
            let readers = Arc::clone(&readers);
            move || readers.enter(|| ())
        });
        while readers.state.lock().active > 1 {
            thread::yield_now();
        }
        readers.leave(turn, SOON, by(1, true));
        assert!(parked.join().unwrap().is_some());
    }
}
