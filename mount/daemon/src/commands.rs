//! Commands that a daemon performs for processes, on its open volume and with their streams, and does
//! not know itself.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use crate::handover::frames::NamedMount;
use crate::mounts::Mounts;

/// The streams of a process: standard input, output and error.
pub type Streams = [OwnedFd; 3];

/// Reads a command, and how the process that was called wants output; `None`: it is not known.
pub type Commands = fn(verb: Value, manner: Value) -> Option<Box<dyn Command>>;

/// A command that was understood.
pub trait Command {
    /// Performs it; tells its failures on the streams, and returns its exit code.
    fn perform(self: Box<Self>, place: Place<'_>, caller: Caller) -> u8;
}

/// Where a command is performed.
pub struct Place<'a> {
    /// The path of the volume, as the daemon knows it.
    pub volume: &'a Path,
    /// The open volume.
    pub fs: Arc<FileSystem>,
    /// Its mounts.
    pub mounts: &'a dyn Mounts,
    /// The mount that was named in place of the volume.
    pub mount: Option<NamedMount>,
}

/// The process that was called.
pub struct Caller {
    /// What it has sent.
    pub streams: Streams,
    /// Its connection, which it closes, in one direction or both, to interrupt the command.
    pub connection: UnixStream,
}

impl Caller {
    /// Whether it has interrupted the command, or is gone.
    pub fn has_left(&self) -> bool {
        has_left(&self.connection)
    }
}

/// Whether the process that was called has closed its connection.
pub fn has_left(caller: &UnixStream) -> bool {
    const AT_ONCE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut asked = [PollFd::new(caller, PollFlags::IN | PollFlags::RDHUP)];
    poll(&mut asked, Some(&AT_ONCE)).is_ok_and(|ready| ready > 0)
}
