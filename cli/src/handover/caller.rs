//! The end of commands: finds the daemon of a volume, and asks it.
//!
//! Nothing is sent to a process of another user than the expected one, so a squatter gets no mount.

use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

use cairnfs_daemon::failure::{Failure, shown};
use cairnfs_daemon::handover::folder::{Folder, SocketName};
use cairnfs_daemon::handover::frames::{Answer, Request, Run, frame, receive, send};
use cairnfs_daemon::handover::is_of;
use cairnfs_fuse::descriptors;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::Uid;

use crate::interrupt;

/// Whether a socket of another user was told.
static SQUATTED: Once = Once::new();

/// A connection to the daemon that serves a volume.
pub struct Call {
    stream: UnixStream,
    /// Time that the daemon has for an answer.
    patience: Duration,
    /// The user and the socket that were called.
    called: (u32, SocketName),
}

/// Bytes that a socket which can be written takes at once.
const PIECE: usize = 16 << 10;

/// How long after a signal a daemon has not answered when it is asked whether it does at all; and its
/// time for that.
const GRACE: Duration = Duration::from_secs(1);

/// How long after a signal the answer of a daemon that is working is waited for.
const LEAVING: Duration = Duration::from_secs(20);

/// What a command learns about the end of a mount.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It has ended, and the volume stays open for other mounts; its data is durable, or why not.
    Apart(Result<(), String>),
    /// It was the last one, or the daemon is gone: the volume is closed soon. With it what did not go
    /// well meanwhile.
    Last(Option<String>),
}

impl Call {
    /// Calls the daemon of `user` that serves a volume; `None` if there is none. A socket that another
    /// user has is told, once.
    pub fn begin(name: &SocketName, user: u32, patience: Duration) -> Option<Self> {
        let folders = Folder::all_of(user).into_iter();
        let mut streams = folders.filter_map(|folder| {
            let stream = connect(&folder.reach(name), patience).ok()?;
            let is_believed = is_of(&stream, Uid::from_raw(user));
            if !is_believed {
                SQUATTED.call_once(|| squatted(&folder.shown(name)));
            }
            is_believed.then_some(stream)
        });
        let stream = streams.next()?;
        Some(Self {
            stream,
            patience,
            called: (user, name.clone()),
        })
    }

    /// The socket of the daemon of `user` that serves the mount with this device number, if it answers in time.
    pub fn socket_of_mount(device: &str, user: u32, patience: Duration) -> Option<PathBuf> {
        let request = Request::Serves {
            device: device.to_owned(),
        };
        let serves = |name: &SocketName| {
            let call = Self::begin(name, user, patience);
            let answer = call.map(|call| call.ask(&request, &[]));
            matches!(answer, Some(Ok(Answer::Serving)))
        };
        Folder::all_of(user).iter().find_map(|folder| {
            let name = folder.names().into_iter().find(serves)?;
            Some(folder.shown(&name))
        })
    }

    /// Sends a request; returns the answer. A daemon that has just ended answers
    /// [`Answer::Closing`]; after that, [`Self::ending`] waits for the end of one.
    ///
    /// # Errors
    /// There is no answer in time (`TimedOut`) or after a signal that was deferred (`Interrupted`), or
    /// one that is not understood.
    pub fn ask(&self, request: &Request, with: &[BorrowedFd<'_>]) -> io::Result<Answer> {
        let until = Instant::now() + self.patience;
        let sent = self.say(request, with, until);
        match sent.and_then(|()| self.hear(Some(until))) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Ok(Answer::Closing),
            Err(e) if is_gone(&e) => Ok(Answer::Closing),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => Err(io::Error::new(
                e.kind(),
                format!(
                    "the daemon does not answer within {} seconds",
                    self.patience.as_secs_f64()
                ),
            )),
            Err(e) => Err(e),
        }
    }

    /// Whether an error of a call means that the daemon did not answer.
    pub fn is_unanswered(error: &io::Error) -> bool {
        use io::ErrorKind::{Interrupted, TimedOut};
        matches!(error.kind(), TimedOut | Interrupted)
    }

    /// Sends a request. A daemon that does not read takes only the first part of a long one.
    fn say(&self, request: &Request, with: &[BorrowedFd<'_>], until: Instant) -> io::Result<()> {
        let frame = frame(request)?;
        let mut sent = 0;
        while let Some(rest) = frame.get(sent..).filter(|rest| !rest.is_empty()) {
            match interrupt::wait_to_write(&self.stream, Some(until)) {
                Ok(true) => {}
                Ok(false) => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => {
                    let why = "interrupted before the daemon was asked";
                    return Err(io::Error::new(io::ErrorKind::Interrupted, why));
                }
            }
            let piece = rest.get(..PIECE).unwrap_or(rest);
            let with = if sent == 0 { with } else { &[] };
            sent += descriptors::send(&self.stream, piece, with)?;
        }
        Ok(())
    }

    /// Receives an answer. After a signal that was deferred the daemon is told that no more is wanted,
    /// and has some time to end what it was asked for.
    fn hear(&self, until: Option<Instant>) -> io::Result<Option<Answer>> {
        if interrupt::wait_until(&self.stream, until).is_err() {
            self.stream.shutdown(Shutdown::Write)?;
            self.hear_out()?;
        }
        let heard = receive(&self.stream, until)?;
        Ok(heard.map(|(answer, _)| answer))
    }

    /// Waits for what a daemon says to an interrupted request.
    fn hear_out(&self) -> io::Result<()> {
        let end = Instant::now() + LEAVING;
        while !interrupt::wait_through(&self.stream, Instant::now() + GRACE)? {
            let why = match self.is_answered() {
                false => {
                    "interrupted, and the daemon does not answer; `cairnfs log` shows later whether it \
                          was done"
                }
                true if Instant::now() < end => continue,
                true => "interrupted; the daemon still has to end what it has begun",
            };
            return Err(io::Error::new(io::ErrorKind::Interrupted, why));
        }
        Ok(())
    }

    /// Whether the daemon answers another call.
    fn is_answered(&self) -> bool {
        let (user, name) = &self.called;
        let request = Request::Watch {
            device: String::new(),
        };
        Self::begin(name, *user, GRACE).is_some_and(|call| {
            let until = Instant::now() + GRACE;
            send(&call.stream, &request, &[]).is_ok()
                && receive::<Answer>(&call.stream, Some(until)).is_ok()
        })
    }

    /// The end of a daemon that is closing the volume.
    pub fn ending(self) -> Ending {
        Ending::of(self.stream)
    }

    /// Has a command performed, whose streams are `with`; returns the answer. A signal that was
    /// deferred interrupts the command, and the answer of a daemon that works is waited for.
    ///
    /// # Errors
    /// As [`Self::ask`]; the request is too long, or the daemon ended after it has begun.
    pub fn run(&self, run: Run, with: &[BorrowedFd<'_>]) -> io::Result<Answer> {
        let begun = self.ask(&Request::Run(run), with)?;
        if begun != Answer::Begun {
            return Ok(begun);
        }
        match self.hear(None) {
            Ok(Some(answer)) => Ok(answer),
            Err(e) if !is_gone(&e) => Err(e),
            Ok(None) | Err(_) => Err(io::Error::other(
                "the daemon ended before the command did: `cairnfs log` shows whether it was done",
            )),
        }
    }

    /// Leaves the mount with this device number to the daemon from the moment on in which the lease is
    /// gone; `None` if the daemon cannot do that.
    pub fn lease(self, device: &str) -> Option<Lease> {
        let request = Request::Lease {
            device: device.to_owned(),
        };
        let leased = self.ask(&request, &[]);
        matches!(leased, Ok(Answer::Leased)).then_some(Lease { _call: self })
    }

    /// Asks to be told the end of the mount with this device number; `None` if the daemon does not
    /// serve it.
    pub fn watch(self, device: &str) -> Option<Watch> {
        let request = Request::Watch {
            device: device.to_owned(),
        };
        let ended = match self.ask(&request, &[]) {
            Ok(Answer::Watching | Answer::EndedLast) => None,
            Ok(Answer::Ended(durable)) => Some(End::Apart(durable)),
            Ok(Answer::Closing) => Some(End::Last(None)),
            _ => return None,
        };
        Some(Watch { call: self, ended })
    }
}

/// The end of the process at the other end of a connection.
pub struct Ending(UnixStream);

impl Ending {
    /// Of the process that has the other end, and keeps it.
    pub(super) fn of(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Waits for it, for `time` at most, and until a signal that was deferred arrives.
    pub fn wait(self, time: Duration) {
        // What cannot be waited for has ended as far as anybody can tell.
        let _ = interrupt::wait_until(&self.0, Some(Instant::now() + time));
    }
}

/// A mount that is needed while this lives. The kernel ends it with the process, however that ends.
pub struct Lease {
    /// The daemon sees its end.
    _call: Call,
}

/// Waits for the end of a mount.
pub struct Watch {
    call: Call,
    /// The end, if it came at once.
    ended: Option<End>,
}

impl Watch {
    /// Waits until the mount has ended, and if it was the last one, the daemon; without a limit of time.
    pub fn wait(self) -> End {
        if let Some(ended) = self.ended {
            return ended;
        }
        let mut warning = None;
        loop {
            match receive(&self.call.stream, None) {
                Ok(Some((Answer::Ended(durable), _))) => return End::Apart(durable),
                Ok(Some((Answer::Warning(text), _))) => warning = Some(text),
                // The end of a mount may be told before the watch for it.
                Ok(Some((Answer::EndedLast | Answer::Watching, _))) => {}
                // The lock of the volume tells the rest.
                _ => return End::Last(warning),
            }
        }
    }
}

/// Tells of a socket that is not the daemon's.
fn squatted(path: &Path) {
    Failure::new(
        shown(path),
        "belongs to a process of another user, and is not asked",
    )
    .hint("end that process, or remove the socket")
    .tell();
}

/// Connects to a socket. One whose owner accepts nobody is given up after a time.
fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(stream: UnixStream) -> Call {
        Call {
            stream,
            patience: Duration::from_secs(60),
            called: (0, SocketName::of_file(0, 0)),
        }
    }

    #[test]
    fn socket_that_accepts_nobody_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let patience = Duration::from_millis(50);
        // Some wait to be accepted; there is no room for more.
        let waiting: Vec<_> = (0..8).map(|_| connect(&path, patience)).collect();
        assert!(waiting.iter().any(Result::is_ok));
        let refused = waiting.last().unwrap().as_ref().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn daemon_that_ends_is_closing() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let call = call(ours);
        let request = Request::Watch {
            device: "0:7".into(),
        };
        assert_eq!(call.ask(&request, &[]).unwrap(), Answer::Closing);
        assert_eq!(Watch { call, ended: None }.wait(), End::Last(None));
    }

    #[test]
    fn what_a_daemon_says_before_it_ends_is_heard() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let said = [
            Answer::EndedLast,
            Answer::Watching,
            Answer::Warning("not stored".into()),
        ];
        for answer in said {
            send(&theirs, &answer, &[]).unwrap();
        }
        let call = call(ours);
        let watch = call.watch("0:7").unwrap();
        drop(theirs);
        assert_eq!(watch.wait(), End::Last(Some("not stored".into())));
    }
}
