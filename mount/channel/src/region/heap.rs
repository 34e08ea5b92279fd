//! The memory of a channel for searches of thread schedules: both ends have it in the same process.

use std::array::from_fn;
use std::borrow::Borrow;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::{Line, Shared, Slot};
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::{Hint, Word};

/// The memory.
pub struct Memory(Arc<Shared>);

/// One end's view of it.
pub struct Region(Arc<Shared>);

/// Makes the memory of a channel.
pub fn make() -> io::Result<Memory> {
    let shared = Shared {
        magic: AtomicU64::new(0),
        crowded: Line(Hint::new(0)),
        asleep: Line(AtomicU32::new(0)),
        pending: Line(AtomicU64::new(0)),
        deferred: Line(AtomicU64::new(0)),
        epoch: Line(AtomicU64::new(0)),
        slots: from_fn(|_| Slot {
            state: Word::default(),
            len: AtomicU32::new(0),
            turn: AtomicU64::new(0),
            payload: from_fn(|_| AtomicU64::new(0)),
        }),
    };
    shared.begin();
    Ok(Memory(Arc::new(shared)))
}

impl Region {
    /// The view of one end.
    pub fn map(memory: impl Borrow<Memory>) -> io::Result<Self> {
        Ok(Self(Arc::clone(&memory.borrow().0)))
    }
}

impl Deref for Region {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
