//! Takes the replies to requests that arrive in one entry, from any thread.

use std::sync::Arc;

use parking_lot::Mutex;

use super::outbox::{Done, Outbox};
use super::region::{Body, Room};
use crate::reply::{Errno, Sink};

/// The sink of one entry. It has the room for a reply while a request in the entry awaits one.
pub(super) struct EntrySink {
    slot: usize,
    room: Mutex<Option<Room>>,
    outbox: Arc<Outbox>,
}

impl EntrySink {
    pub(super) fn new(slot: usize, outbox: Arc<Outbox>) -> Self {
        let room = Mutex::default();
        Self { slot, room, outbox }
    }

    /// Sets the room for the reply to a request that is about to be served.
    pub(super) fn expect(&self, room: Room) {
        *self.room.lock() = Some(room);
    }

    /// Passes the reply on; without a room nothing awaits one.
    fn reply(&self, write: impl FnOnce(&mut Room) -> Result<Body, Errno>) {
        let Some(mut room) = self.room.lock().take() else {
            return;
        };
        let outcome = write(&mut room);
        drop(room);
        self.outbox.push(Done {
            slot: self.slot,
            outcome,
        });
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
