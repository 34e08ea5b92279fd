//! Notifications to the kernel, written by another process than the one that serves the connection.
//!
//! The process has the connection, so the kernel does not end that by itself when the serving one is
//! killed. A second thread waits for the other end of its socket to close, and aborts the connection
//! while a notification is being written. Each thread that notifies has a process of its own, which
//! ends with it: a notification may wait for another one.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cairnfs_transport::Notification;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as SystemError;
use rustix::stdio;

use super::NOTIFY;
use crate::connections::Connection;
use crate::mounted::Mounted;
use crate::mounter::{self, Way};
use crate::mountinfo;

/// Maximum length of a notification: the longest name, and less than a hundred bytes before it.
const MESSAGE_MAX: usize = 1024;

/// Time between two attempts to abort the connection: what is being written began in between.
const PAUSE: Duration = Duration::from_millis(20);

thread_local! {
    static PROCESS: RefCell<Option<Process>> = const { RefCell::new(None) };
}

/// A process that writes notifications to one connection.
struct Process {
    /// Device number of the mount.
    device: String,
    child: Child,
    /// Taken when the process shall end.
    socket: Option<UnixStream>,
}

impl Process {
    /// Starts one, if another process shall write.
    fn start(mounted: &Mounted, connection: BorrowedFd<'_>, device: &str) -> Option<Self> {
        let command = mounted.apart().command(NOTIFY, mounted.dir(), device)?;
        let started = Self::spawn(command, connection, device);
        started
            .inspect_err(|error| tracing::warn!("no process for notifications: {error}"))
            .ok()
    }

    fn spawn(mut command: Command, connection: BorrowedFd<'_>, device: &str) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let connection = connection.try_clone_to_owned()?;
        command.stdin(OwnedFd::from(theirs)).stdout(connection);
        Ok(Self {
            device: device.to_owned(),
            child: command.stderr(Stdio::null()).spawn()?,
            socket: Some(socket),
        })
    }

    /// Has a notification written; returns what the kernel said.
    ///
    /// # Errors
    /// The process has ended, and it is not known whether it was written.
    fn write(&self, notification: &Notification) -> io::Result<Result<usize, SystemError>> {
        let mut socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let bytes = notification.bytes();
        socket.write_all(&(bytes.len() as u32).to_ne_bytes())?;
        socket.write_all(bytes)?;
        let mut errno = [0; 4];
        socket.read_exact(&mut errno)?;
        Ok(match i32::from_ne_bytes(errno) {
            0 => Ok(bytes.len()),
            errno => Err(SystemError::from_raw_os_error(errno)),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.socket.take());
        // It ends, as it has nothing to do.
        let _ = self.child.wait();
    }
}

/// Writes a notification to the connection of a mount by another process; `None` if this one has to do
/// it.
pub(crate) fn write(
    mounted: &Mounted,
    connection: BorrowedFd<'_>,
    notification: &Notification,
) -> Option<io::Result<()>> {
    let device = mounted.device()?;
    PROCESS.with_borrow_mut(|process| {
        if process
            .as_ref()
            .is_none_or(|process| process.device != device)
        {
            *process = Process::start(mounted, connection, device);
        }
        match process.as_ref()?.write(notification) {
            Ok(written) => Some(Notification::outcome(written)),
            Err(error) => {
                // The system is being shut down, perhaps.
                tracing::debug!("the process for notifications has ended: {error}");
                *process = None;
                None
            }
        }
    })
}

/// Writes the notifications that come from standard input to the connection that is standard output,
/// until the other end is closed.
///
/// # Errors
/// Standard input fails.
pub(super) fn serve(dir: &Path, device: &str) -> io::Result<()> {
    let mut socket = UnixStream::from(stdio::stdin().try_clone_to_owned()?);
    let watched = socket.try_clone()?;
    let writes = Arc::new(AtomicBool::new(false));
    let (theirs, dir, device) = (Arc::clone(&writes), dir.to_path_buf(), device.to_owned());
    let abort = move || abort(&dir, &device);
    thread::Builder::new().spawn(move || abort_when_left(&watched, &theirs, &abort))?;
    // The process ends with this thread.
    write_each(&mut socket, &writes)
}

fn write_each(socket: &mut UnixStream, writes: &AtomicBool) -> io::Result<()> {
    let mut message = [0; MESSAGE_MAX];
    loop {
        let mut len = [0; 4];
        socket.read_exact(&mut len)?;
        let room = message.get_mut(..u32::from_ne_bytes(len) as usize);
        let room = room.ok_or(io::ErrorKind::InvalidData)?;
        socket.read_exact(room)?;
        writes.store(true, Ordering::SeqCst);
        let written = loop {
            match rustix::io::write(stdio::stdout(), room) {
                Err(SystemError::INTR) => {}
                written => break written,
            }
        };
        writes.store(false, Ordering::SeqCst);
        let errno = written.err().map_or(0, SystemError::raw_os_error);
        socket.write_all(&errno.to_ne_bytes())?;
    }
}

/// Waits until the process that serves the connection is gone, and then aborts the connection as long as
/// a notification is being written: nobody answers what that waits for. The process ends otherwise.
fn abort_when_left(socket: &UnixStream, writes: &AtomicBool, abort: &dyn Fn()) {
    let left = PollFlags::HUP | PollFlags::RDHUP;
    let mut asked = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP)];
    while !asked.iter().any(|fd| fd.revents().intersects(left)) {
        if poll(&mut asked, None).is_err_and(|error| error != SystemError::INTR) {
            return;
        }
    }
    loop {
        if writes.load(Ordering::SeqCst) {
            abort();
        }
        thread::sleep(PAUSE);
    }
}

/// Aborts a connection whose mount with this device number is on `dir`. Where the kernel does not show
/// connections to this process, the mount is taken away by force, which is the superuser's right.
fn abort(dir: &Path, device: &str) {
    let aborted = Connection::of(device).abort();
    let is_there = || mountinfo::at(dir).is_ok_and(|m| m.is_some_and(|m| m.device == device));
    if aborted.is_err() && is_there() {
        // Nobody is left to be told.
        let _ = mounter::unmount(dir, Way::Force);
    }
}
