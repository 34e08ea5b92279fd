//! Log vectors: the formatted value of a changed item, as it is written to the log.
//!
//! One allocation holds key, state and bytes. While its context is open, a vector is overwritten in
//! place by the thread that holds its inode's lock. Once the context is closed no thread changes
//! the vector, so the push copies it without the inode's lock. The vector's own lock is therefore
//! held only briefly.

use std::sync::Arc;

use crate::values::Value;
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::overflow::UNIT_DATA;
use cairnfs_disk::format::record::{Entry, entry_size, put_entry};
use cairnfs_disk::format::xattr::{MAX_WITH_USES, is_apart};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicU8, Ordering};

/// A change of an item.
#[derive(Clone, Copy)]
pub enum Change<'a> {
    /// Sets this value.
    Put(&'a [u8]),
    /// Sets a value with a second part that is shared with other items.
    Join(&'a [u8], &'a Value),
    /// Deletes the item. The bytes are logged with the deletion (for a directory index entry: the
    /// name's hash).
    Delete(&'a [u8]),
}

impl<'a> Change<'a> {
    /// The bytes of the item itself, without the shared part.
    fn bytes(&self) -> &'a [u8] {
        match self {
            Change::Put(b) | Change::Delete(b) | Change::Join(b, _) => b,
        }
    }

    fn shared(&self) -> Option<&'a Value> {
        match self {
            Change::Join(_, value) => Some(value),
            Change::Put(_) | Change::Delete(_) => None,
        }
    }

    /// Bytes by which the index may grow with this change.
    pub fn growth(&self) -> i64 {
        match self {
            Change::Put(_) | Change::Join(..) => growth_of(self.bytes(), self.shared()),
            Change::Delete(_) => 0,
        }
    }
}

/// Approximate bytes of an item in a leaf besides its value.
pub const ITEM: u64 = 32;

fn growth_of(own: &[u8], shared: Option<&Value>) -> i64 {
    let item = ITEM as i64;
    let shared = shared.map_or(0, |value| growth_of_value(value.bytes().len()) + item);
    own.len() as i64 + item + shared
}

/// Bytes by which the growth for `len` bytes of values may exceed `len`: one of the values may be
/// stored apart, in a unit that is not full.
pub fn growth_apart(len: usize) -> i64 {
    if is_apart(len) {
        growth_of_value(MAX_WITH_USES + 1) - MAX_WITH_USES as i64
    } else {
        0
    }
}

/// Growth for a value that is stored once. A long one takes another item and units of its own, all
/// of them full except the last.
fn growth_of_value(len: usize) -> i64 {
    if !is_apart(len) {
        return len as i64;
    }
    // Callers reserve two and a half times the number of bytes returned here.
    let units = len.div_ceil(UNIT_DATA) * NODE_SIZE;
    (len.max(units.div_ceil(5) * 2) + 64) as i64
}

/// A value as a vector holds it.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    /// The bytes of the item itself.
    pub own: &'a [u8],
    /// The second part, which is shared with other items.
    pub shared: Option<&'a Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Put,
    Delete,
    /// Replaced by a larger vector of the same context, or died in its context: never logged.
    Dead,
}

/// Storage for the bytes of a vector.
pub trait Buffer: Send + Sync {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, for modification.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// The shared value that follows the used bytes.
    fn shared(&self) -> Option<&Value> {
        None
    }
    /// Sets the shared value. Returns whether the buffer can hold one (`None` always fits).
    fn share(&mut self, value: Option<&Value>) -> bool {
        value.is_none()
    }
}

/// A buffer followed by a value that is shared with other items.
struct Joined<B> {
    own: B,
    shared: Option<Value>,
}

impl<B> Joined<B> {
    fn new(own: B) -> Self {
        Self { own, shared: None }
    }
}

impl<B: Buffer> Buffer for Joined<B> {
    fn bytes(&self) -> &[u8] {
        self.own.bytes()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.own.bytes_mut()
    }
    fn shared(&self) -> Option<&Value> {
        self.shared.as_ref()
    }
    fn share(&mut self, value: Option<&Value>) -> bool {
        self.shared = value.cloned();
        true
    }
}

impl<const N: usize> Buffer for [u8; N] {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Buffer for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// State and bytes of a vector.
pub struct Body<B: ?Sized> {
    state: State,
    len: u32,
    buffer: B,
}

/// A value of the item was logged ahead of the vector's context.
const KNOWN: u8 = 1;
/// This value was logged: the context does not log it again, and the vector is not changed.
const LOGGED: u8 = 2;

/// The formatted value of a changed item.
pub struct LogVector<B: ?Sized = dyn Buffer> {
    key: Key,
    seq: u64,
    root: u32,
    /// Changed only while no thread commits, or by the only owner.
    ahead: AtomicU8,
    body: Mutex<Body<B>>,
}

/// Cost of a vector.
pub struct Size {
    /// Log bytes, as [`LogVector::charge`].
    pub charge: i64,
    /// Bytes of memory, as [`LogVector::memory`].
    pub memory: usize,
}

impl LogVector {
    /// A vector that belongs to the context `seq`.
    pub fn new(root: u32, key: Key, seq: u64, change: &Change<'_>) -> Arc<LogVector> {
        Self::sized(root, key, seq, change).0
    }

    /// The same, with its cost.
    pub fn sized(root: u32, key: Key, seq: u64, change: &Change<'_>) -> (Arc<LogVector>, Size) {
        if change.shared().is_some() {
            return Self::joined(root, key, seq, change);
        }
        match change.bytes().len() {
            0..=24 => Self::with_buffer([0; 24], root, key, seq, change),
            25..=48 => Self::with_buffer([0; 48], root, key, seq, change),
            49..=80 => Self::with_buffer([0; 80], root, key, seq, change),
            81..=128 => Self::with_buffer([0; 128], root, key, seq, change),
            129..=320 => Self::with_buffer([0; 320], root, key, seq, change),
            321..=1056 => Self::with_buffer([0; 1056], root, key, seq, change),
            len => Self::with_buffer(vec![0; len], root, key, seq, change),
        }
    }

    fn joined(root: u32, key: Key, seq: u64, change: &Change<'_>) -> (Arc<LogVector>, Size) {
        match change.bytes().len() {
            0..=24 => Self::with_buffer(Joined::new([0; 24]), root, key, seq, change),
            25..=40 => Self::with_buffer(Joined::new([0; 40]), root, key, seq, change),
            len => Self::with_buffer(Joined::new(vec![0; len]), root, key, seq, change),
        }
    }

    fn with_buffer<B: Buffer + 'static>(
        mut buffer: B,
        root: u32,
        key: Key,
        seq: u64,
        change: &Change<'_>,
    ) -> (Arc<LogVector>, Size) {
        let (state, len) = fill(&mut buffer, change);
        let body = Body { state, len, buffer };
        let (charge, memory) = (body.charge(), body.memory());
        let vector = Arc::new(LogVector {
            key,
            seq,
            root,
            ahead: AtomicU8::new(0),
            body: Mutex::new(body),
        });
        (vector, Size { charge, memory })
    }

    /// The item's key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Sequence of the context it belongs to.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Whether its value was logged ahead of its context.
    pub fn is_logged(&self) -> bool {
        self.ahead.load(Ordering::Acquire) & LOGGED != 0
    }

    /// Whether this or an older value of its context was logged ahead of it.
    pub fn is_known(&self) -> bool {
        self.ahead.load(Ordering::Acquire) != 0
    }

    /// Marks its value as logged ahead of its context.
    pub fn set_logged(&self) {
        self.ahead.fetch_or(LOGGED | KNOWN, Ordering::AcqRel);
    }

    /// Marks that another value of its item was logged ahead of its context.
    pub fn set_known(&self) {
        self.ahead.fetch_or(KNOWN, Ordering::AcqRel);
    }

    /// Overwrites the value in place if the new one fits. Allowed only while its context is open.
    /// Returns the charge of the old value, and that of the new one if it fits.
    pub fn overwrite(&self, change: &Change<'_>) -> (i64, Option<i64>) {
        let faults = [
            InjectedFault::FsyncRecordOverwritten,
            InjectedFault::RelogInPlace,
        ];
        assert!(
            !self.is_logged() || faults.into_iter().any(is_injected),
            "fsync invariant 4: what is gathered is not changed any more"
        );
        let mut body = self.body.lock();
        let old = body.charge();
        (old, body.refill(change).then(|| body.charge()))
    }

    /// Reuses the vector for the context `seq` with another value, if there is no other reference
    /// to it and the value fits: then the push has already copied the old value. Returns the charge
    /// of the new value.
    pub fn renew(this: &mut Arc<LogVector>, seq: u64, change: &Change<'_>) -> Option<i64> {
        let vector = Arc::get_mut(this)?;
        let body = vector.body.get_mut();
        if !body.refill(change) {
            return None;
        }
        vector.seq = seq;
        *vector.ahead.get_mut() = 0;
        Some(body.charge())
    }

    /// Marks it as dead, so it is not logged: its item died in this context, or a larger vector
    /// replaces it.
    pub fn kill(&self) {
        self.body.lock().state = State::Dead;
    }

    /// Whether its context must still log it.
    pub fn is_live(&self) -> bool {
        !self.is_logged() && self.body.lock().state != State::Dead
    }

    /// Calls `f` with the value, or `None` if the item is deleted.
    pub fn with<R>(&self, f: impl FnOnce(Option<&[u8]>) -> R) -> R {
        let body = self.body.lock();
        match body.state {
            State::Put => match body.buffer.shared() {
                None => f(Some(body.used())),
                Some(value) => f(Some(&[body.used(), value.bytes()].concat())),
            },
            State::Delete | State::Dead => f(None),
        }
    }

    /// Calls `f` with the parts of the value and returns its result; `None` if the item is deleted.
    /// The value is not copied and the vector's lock is held, so `f` must not take a lock.
    pub fn with_parts<R>(&self, f: impl FnOnce(Parts<'_>) -> R) -> Option<R> {
        let body = self.body.lock();
        (body.state == State::Put).then(|| {
            f(Parts {
                own: body.used(),
                shared: body.buffer.shared(),
            })
        })
    }

    /// Both parts of the value, if it has a shared part.
    pub fn parts(&self) -> Option<(Vec<u8>, Value)> {
        let body = self.body.lock();
        let shared = body.buffer.shared().filter(|_| body.state == State::Put)?;
        Some((body.used().to_vec(), shared.clone()))
    }

    /// Bytes by which the index may grow with its value.
    pub fn growth(&self) -> i64 {
        let body = self.body.lock();
        match body.state {
            State::Put => growth_of(body.used(), body.buffer.shared()),
            _ => 0,
        }
    }

    /// Whether it is a deletion.
    pub fn is_deletion(&self) -> bool {
        self.body.lock().state == State::Delete
    }

    /// The bytes logged with it, if it is a deletion.
    pub fn deletion(&self) -> Option<Vec<u8>> {
        let body = self.body.lock();
        (body.state == State::Delete).then(|| body.used().to_vec())
    }

    /// Log bytes needed for it, its share of record headers and rounding included.
    pub fn charge(&self) -> i64 {
        self.body.lock().charge()
    }

    /// Approximate memory in bytes, without the shared value, which is counted elsewhere.
    pub fn memory(&self) -> usize {
        self.body.lock().memory()
    }

    /// Writes it to the beginning of `room`, the free space of a record, if it must be logged.
    pub fn log_to(&self, room: &mut [u8]) -> Logged {
        let body = self.body.lock();
        if body.state == State::Dead {
            return Logged::Nothing;
        }
        let entry = Entry {
            root: self.root,
            key: self.key,
            delete: body.state == State::Delete,
            value: body.used(),
        };
        let shared = body.buffer.shared().map_or(&[][..], |v| v.bytes());
        put_entry(room, &entry, shared).map_or(Logged::Full, Logged::Added)
    }
}

impl<B: Buffer + ?Sized> Body<B> {
    /// Replaces the value, if the new one fits.
    fn refill(&mut self, change: &Change<'_>) -> bool {
        if change.bytes().len() > self.buffer.bytes().len() || !self.buffer.share(change.shared()) {
            return false;
        }
        (self.state, self.len) = fill(&mut self.buffer, change);
        true
    }

    fn charge(&self) -> i64 {
        match self.state {
            State::Dead => 0,
            State::Put | State::Delete => charge_for(self.whole()),
        }
    }

    fn memory(&self) -> usize {
        96 + self.buffer.bytes().len()
    }

    /// Bytes of the value, shared part included.
    fn whole(&self) -> usize {
        self.len as usize + self.buffer.shared().map_or(0, |v| v.bytes().len())
    }

    fn used(&self) -> &[u8] {
        self.buffer
            .bytes()
            .get(..self.len as usize)
            .unwrap_or_default()
    }
}

/// Result of [`LogVector::log_to`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logged {
    /// An entry of this many bytes was added.
    Added(usize),
    /// The item died in its context.
    Nothing,
    /// The record has no space for it.
    Full,
}

/// Log bytes charged for an entry with a value of `len` bytes. The share of 1/64 pays for headers
/// and rounding of full records; the last record of a context is paid by
/// [`CONTEXT_BASE`](super::ring::CONTEXT_BASE).
pub fn charge_for(len: usize) -> i64 {
    let size = entry_size(len);
    (size + size / 64 + 1) as i64
}

fn fill<B: Buffer + ?Sized>(buffer: &mut B, change: &Change<'_>) -> (State, u32) {
    let bytes = change.bytes();
    buffer.share(change.shared());
    if let Some(to) = buffer.bytes_mut().get_mut(..bytes.len()) {
        to.copy_from_slice(bytes);
    }
    let state = match change {
        Change::Put(_) | Change::Join(..) => State::Put,
        Change::Delete(_) => State::Delete,
    };
    (state, bytes.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairnfs_disk::format::record::entries;

    #[test]
    fn unshared_vector_is_reused_by_later_context() {
        let key = Key::inode(20);
        let mut v = LogVector::new(1, key, 5, &Change::Put(&[1; 100]));
        v.set_logged();
        let held = v.clone();
        assert_eq!(LogVector::renew(&mut v, 6, &Change::Put(&[2; 110])), None);
        drop(held);
        assert_eq!(LogVector::renew(&mut v, 6, &Change::Put(&[2; 200])), None);
        assert_eq!((v.seq(), v.is_known()), (5, true));
        let renewed = LogVector::renew(&mut v, 6, &Change::Put(&[2; 110]));
        assert_eq!(renewed, Some(charge_for(110)));
        assert_eq!((v.seq(), v.is_known()), (6, false));
        v.with(|b| assert_eq!(b, Some(&[2u8; 110][..])));
    }

    #[test]
    fn fitting_value_is_overwritten_in_place() {
        let key = Key::inode(20);
        let v = LogVector::new(1, key, 5, &Change::Put(&[1; 100]));
        let charges = (charge_for(100), Some(charge_for(120)));
        assert_eq!(v.overwrite(&Change::Put(&[2; 120])), charges);
        let charges = (charge_for(120), None);
        assert_eq!(v.overwrite(&Change::Put(&[3; 200])), charges);
        v.with(|b| assert_eq!(b, Some(&[2u8; 120][..])));
        let mut payload = vec![0; entry_size(120)];
        assert_eq!(v.log_to(&mut payload[1..]), Logged::Full);
        assert_eq!(v.log_to(&mut payload), Logged::Added(entry_size(120)));
        let got: Vec<_> = entries(0, &payload).map(|e| e.unwrap()).collect();
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].value, &[2u8; 120][..]);
        v.kill();
        assert_eq!(v.log_to(&mut payload), Logged::Nothing);
        assert_eq!(v.charge(), 0);
    }
}
