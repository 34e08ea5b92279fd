//! Takes the replies to requests that arrive in one entry, from any thread.

use std::sync::Arc;

use parking_lot::Mutex;

use super::outbox::{Done, Outbox};
use super::region::{Body, Room};
use crate::reply::{Errno, Sink};

/// The outcome of a request.
type Outcome = Result<Body, Errno>;

/// The sink of one entry. It has the room for a reply while a request in the entry awaits one.
pub(super) struct EntrySink {
    slot: usize,
    state: Mutex<State>,
    outbox: Arc<Outbox>,
}

#[derive(Default)]
struct State {
    room: Option<Room>,
    /// Whether the ring's thread serves the request now: a reply is kept for it.
    attempt: bool,
    /// The reply that is kept, and its room, for another one.
    kept: Option<(Room, Outcome)>,
}

/// How the service of a request by the ring's thread ended.
pub(super) enum Ended {
    /// With this reply.
    Replied(Outcome),
    /// It is to be served again.
    Refused,
    /// Another thread replies.
    Elsewhere,
}

impl EntrySink {
    pub(super) fn new(slot: usize, outbox: Arc<Outbox>) -> Self {
        Self {
            slot,
            state: Mutex::default(),
            outbox,
        }
    }

    /// Sets the room for the reply to a request that is about to be served: if `attempt`, by the
    /// ring's thread, which calls [`Self::end_attempt`] after it.
    pub(super) fn expect(&self, room: Room, attempt: bool) {
        *self.state.lock() = State {
            room: Some(room),
            attempt,
            kept: None,
        };
    }

    /// Ends the attempt of the ring's thread. If that was `refused` a wait, an error is no reply.
    pub(super) fn end_attempt(&self, refused: bool) -> Ended {
        let mut state = self.state.lock();
        state.attempt = false;
        match state.kept.take() {
            None => Ended::Elsewhere,
            Some((room, Err(_))) if refused => {
                state.room = Some(room);
                Ended::Refused
            }
            Some((_, outcome)) => Ended::Replied(outcome),
        }
    }

    /// Passes the reply on; without a room nothing awaits one.
    fn reply(&self, write: impl FnOnce(&mut Room) -> Outcome) {
        let Some(mut room) = self.state.lock().room.take() else {
            return;
        };
        let outcome = write(&mut room);
        let mut state = self.state.lock();
        if state.attempt {
            state.kept = Some((room, outcome));
            return;
        }
        drop((state, room));
        self.outbox.push(Done {
            slot: self.slot,
            outcome,
        });
    }
}

/// The sink of an entry whose request another thread serves, which may wait.
pub(super) struct Patient(pub(super) Arc<EntrySink>);

impl Sink for Patient {
    fn send(&self, unique: u64, outcome: Result<&[&[u8]], Errno>) {
        self.0.send(unique, outcome);
    }

    fn may_wait(&self) -> bool {
        true
    }

    fn is_bounded(&self) -> bool {
        true
    }

    fn send_filled(
        &self,
        unique: u64,
        size: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) {
        self.0.send_filled(unique, size, fill);
    }
}

impl Sink for EntrySink {
    fn send(&self, _unique: u64, outcome: Result<&[&[u8]], Errno>) {
        self.reply(|room| outcome.and_then(|parts| room.take(parts).ok_or(Errno::EIO)));
    }

    /// The thread of a ring serves all requests of a processor.
    fn may_wait(&self) -> bool {
        false
    }

    fn is_bounded(&self) -> bool {
        true
    }

    fn send_filled(
        &self,
        _unique: u64,
        size: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) {
        self.reply(|room| {
            if let Some(payload) = room.direct() {
                let target = payload.get_mut(..size).ok_or(Errno::EIO)?;
                return Ok(Body::Direct(fill(target)?.min(size)));
            }
            let mut bytes = vec![0; size];
            let len = fill(&mut bytes)?.min(size);
            room.take(&[bytes.get(..len).unwrap_or_default()])
                .ok_or(Errno::EIO)
        });
    }
}
