//! What a session and its rings share: whether the rings are in service, what they found, and the
//! alarm of a ring that broke.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno as SystemError;

use crate::dev::Channel;

/// What the rings do.
#[derive(Debug, Default)]
pub(crate) struct ByRings {
    /// Whether they carry the requests.
    in_service: AtomicBool,
    /// Number of requests that were found by polling.
    pub polled: AtomicU64,
    /// Becomes readable when a ring has broken.
    alarm: Option<OwnedFd>,
}

impl ByRings {
    /// For a connection with rings.
    pub fn new() -> io::Result<Self> {
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            alarm: Some(alarm),
            ..Self::default()
        })
    }

    /// Whether they carry the requests.
    pub fn in_service(&self) -> bool {
        self.in_service.load(Ordering::Relaxed)
    }

    /// They carry the requests from now on.
    pub fn begin_service(&self) {
        self.in_service.store(true, Ordering::Relaxed);
    }

    /// A ring has broken: its requests will not be answered, so the connection must end.
    pub fn broken(&self) {
        if let Some(alarm) = &self.alarm {
            // Fails only when the count overflows.
            let _ = rustix::io::write(alarm, &1u64.to_ne_bytes());
        }
    }

    /// Waits until the device has a message.
    ///
    /// # Errors
    /// A ring has broken.
    pub fn wait_for(&self, channel: &Channel) -> io::Result<()> {
        let Some(alarm) = &self.alarm else {
            return Ok(());
        };
        loop {
            let mut asked = [
                PollFd::new(alarm, PollFlags::IN),
                PollFd::new(channel, PollFlags::IN),
            ];
            match poll(&mut asked, None) {
                Err(SystemError::INTR) => continue,
                other => other?,
            };
            let [alarm, device] = asked.map(|fd| !fd.revents().is_empty());
            match (alarm, device) {
                (true, _) => return Err(io::Error::other("a ring broke")),
                (_, true) => return Ok(()),
                _ => {}
            }
        }
    }
}
