//! What the kernel has: sleep on a word, doorbells, and a connection that tells of the daemon's end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::thread::futex;

/// A word that a thread can sleep on.
pub type Word = AtomicU32;
/// What wakes the daemon.
pub type Doorbell = OwnedFd;
/// A socket that hangs up when the daemon ends.
pub type Connection = OwnedFd;

/// Sleeps while `word` is `value`, and at most for `limit`.
pub fn sleep(word: &Word, value: u32, limit: Duration) {
    let limit = rustix::time::Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    // Whatever ends the sleep, the caller looks at the word again.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&limit));
}

/// Wakes the thread that sleeps on `word`.
pub fn wake(word: &Word) {
    // Nobody there is no failure.
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// A doorbell.
///
/// # Errors
/// The kernel's, if no descriptor is left.
pub fn doorbell() -> io::Result<Doorbell> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// The same doorbell for the other end.
///
/// # Errors
/// The kernel's, if no descriptor is left.
pub fn same(bell: &Doorbell) -> io::Result<Doorbell> {
    bell.try_clone()
}

/// Rings. It fails only if nobody has heard 2^64 rings.
pub fn ring(bell: &Doorbell) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Ends the ringing. It may have ended, because another program may have read it.
pub fn empty(bell: &Doorbell) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}

/// Whether the daemon has closed its end of the socket.
pub fn has_ended(daemon: &Connection) -> bool {
    let mut fds = [PollFd::new(daemon, PollFlags::RDHUP)];
    let now = rustix::time::Timespec::default();
    // A program may have closed what it does not know, so the socket may be gone, too.
    let gone = PollFlags::ERR | PollFlags::NVAL;
    let ended = PollFlags::HUP | PollFlags::RDHUP | gone;
    poll(&mut fds, Some(&now)).is_ok() && fds.iter().any(|fd| fd.revents().intersects(ended))
}

/// Doorbells that one thread hears, each with a number.
pub struct Bells(OwnedFd);

impl Bells {
    /// None yet.
    ///
    /// # Errors
    /// The kernel's, if no descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&self, bell: &Doorbell, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.0, bell, data, epoll::EventFlags::IN)?)
    }

    /// Removes one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, bell: &Doorbell, _number: u64) -> io::Result<()> {
        Ok(epoll::delete(&self.0, bell)?)
    }

    /// The numbers of those that ring; with `waits`, once one rings or a signal has come.
    ///
    /// # Errors
    /// The kernel's.
    pub fn hear(&self, waits: bool) -> io::Result<impl Iterator<Item = u64> + use<>> {
        let mut events = Vec::with_capacity(64);
        let now = rustix::time::Timespec::default();
        let limit = (!waits).then_some(&now);
        match epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), limit) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events
            .into_iter()
            .map(|event: epoll::Event| event.data.u64()))
    }
}
