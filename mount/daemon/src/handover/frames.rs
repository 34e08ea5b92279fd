//! The messages between a command and a daemon, and their bytes.
//!
//! A frame is a head of 8 bytes (a mark, the version of the messages, the length) and a message as
//! JSON of at most [`MOST`] bytes. Descriptors come with the first byte of their frame. Nothing of a
//! frame is believed before it was checked, and a frame that does not arrive in time is an error.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cairnfs_fuse::descriptors;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the messages. Both ends are the same program, unless a daemon has outlived an
/// update.
const VERSION: u8 = 1;

const MARK: [u8; 3] = *b"crn";

/// Maximum length of a message, in bytes. A command may have many paths.
pub const MOST: usize = 1 << 20;

/// Bytes of a message for which memory is taken before they have arrived.
const PIECE: usize = 16 << 10;

const HEAD: usize = 8;

/// What a command sends.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// It wants to mount: may it, and how? The answer is [`Answer::Mountable`].
    Mount(Wanted),
    /// It has mounted what was last asked for; the connection comes with this. The answer is
    /// [`Answer::Serving`].
    Serve {
        /// The device number of the mount.
        device: String,
        /// The directory, for messages and for the end of the mount.
        #[serde(with = "crate::raw_path")]
        dir: PathBuf,
    },
    /// It wants to know when the mount with this device number has ended: [`Answer::Watching`], and
    /// [`Answer::Ended`] or [`Answer::EndedLast`] later.
    Watch {
        /// The device number.
        device: String,
    },
    /// It wants to know whether there is a mount with this device number: [`Answer::Serving`], or
    /// [`Answer::Unknown`].
    Serves {
        /// The device number.
        device: String,
    },
    /// It needs the mount with this device number only while this connection is open: after that the
    /// mount ends as soon as nothing uses it, and its directory is removed if it is empty. The answer
    /// is [`Answer::Leased`].
    Lease {
        /// The device number.
        device: String,
    },
    /// It wants a command on snapshots and branches to be performed; its standard streams come with
    /// this. The answers are [`Answer::Begun`], and [`Answer::Done`] any time later. If it closes its
    /// side of the connection, the command is interrupted.
    Run(Run),
    /// A program, not a command, wants a channel to the mount with this device number, as long as this
    /// connection is open. The answer is [`Answer::Channel`]; its memory and its doorbell come with it.
    Channel {
        /// The device number.
        device: String,
        /// The version of what is asked by channels.
        version: u64,
    },
}

/// A command that the daemon shall perform.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    /// The command with its arguments.
    pub verb: Value,
    /// How it wants output, as commands understand it.
    pub manner: Value,
    /// The mount that was named in place of the volume.
    pub mount: Option<NamedMount>,
}

/// A mount that a command names.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NamedMount {
    /// Its device number.
    pub device: String,
    /// The name of its branch or snapshot, as the table of mounts has it.
    pub name: Option<String>,
}

/// The options of a mount, as the command line has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The lists of `-o`.
    pub lists: Vec<String>,
    /// Whether mount(8) has called.
    pub by_mount8: bool,
    /// Whether unknown words are ignored.
    pub sloppy: bool,
}

/// What a daemon answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The command may mount.
    Mountable {
        /// The source to show in the table of mounts; `None`: the volume.
        source: Option<OsString>,
        /// Whether the mount must be read-only.
        read_only: bool,
    },
    /// The mount is live.
    Serving,
    /// The end of the mount will be told.
    Watching,
    /// The mount has ended, and others are left; its data is durable, or why not.
    Ended(Result<(), String>),
    /// The mount has ended, and the volume is being closed. [`Answer::Warning`] may follow, and then the
    /// end of the connection.
    EndedLast,
    /// What did not go well after the end of the last mount.
    Warning(String),
    /// The mount ends after the connection.
    Leased,
    /// The command is being performed.
    Begun,
    /// The channel, with the name of the directory in the root that leads from it to the kernel.
    Channel {
        /// The name.
        door: String,
    },
    /// It was performed, with this exit code.
    Done(u8),
    /// The request is refused, with the reason and the next step.
    Refused(String),
    /// The daemon has no such mount.
    Unknown,
    /// The volume is being closed; the connection ends with the process.
    Closing,
}

/// The bytes of a message.
///
/// # Errors
/// It is too long.
pub fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MOST {
        return Err(wrong("is too long"));
    }
    let mut frame = Vec::with_capacity(HEAD + body.len());
    frame.extend_from_slice(&MARK);
    frame.push(VERSION);
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Sends a message, and descriptors with it.
///
/// # Errors
/// The other end is gone or does not read; the message is too long.
pub fn send(
    mut to: &UnixStream,
    message: &impl Serialize,
    with: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let frame = frame(message)?;
    let sent = match with {
        [] => 0,
        with => descriptors::send(to, &frame, with)?,
    };
    to.write_all(frame.get(sent..).unwrap_or_default())
}

/// Receives a message, and the descriptors that came with it. `None` if the other end has closed the
/// connection before it sent anything.
///
/// # Errors
/// `TimedOut` if the message was not there in time; `InvalidData` if it is none, or one of another
/// version; the connection broke.
pub fn receive<T: DeserializeOwned>(
    from: &UnixStream,
    until: Option<Instant>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut head = [0; HEAD];
    let mut descriptors = Vec::new();
    if !fill(from, &mut head, until, &mut descriptors)? {
        return Ok(None);
    }
    let [m0, m1, m2, version, length @ ..] = head;
    if [m0, m1, m2] != MARK {
        return Err(wrong("has no mark"));
    }
    if version != VERSION {
        return Err(wrong("is of another version of this program"));
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST {
        return Err(wrong("is too long"));
    }
    let mut body = Vec::new();
    while body.len() < length {
        let begin = body.len();
        body.resize(length.min(begin + PIECE), 0);
        let piece = body.get_mut(begin..).unwrap_or_default();
        if !fill(from, piece, until, &mut descriptors)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let message = serde_json::from_slice(&body).map_err(|_| wrong("is not understood"))?;
    Ok(Some((message, descriptors)))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the message {what}"))
}

/// Fills a buffer. Returns false if the other end was closed before the first byte.
fn fill(
    from: &UnixStream,
    buffer: &mut [u8],
    until: Option<Instant>,
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<bool> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        from.set_read_timeout(left.map(|left| left.max(Duration::from_millis(1))))?;
        match descriptors::receive(from, rest) {
            Ok((0, _)) if filled == 0 => return Ok(false),
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((len, found)) => {
                filled += len;
                descriptors.extend(found);
                if descriptors.len() > descriptors::MOST {
                    return Err(wrong("has too many descriptors"));
                }
            }
            // The time has passed; the next round says so.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const NO_TIME: Duration = Duration::from_millis(20);

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    #[test]
    fn messages_and_descriptors_arrive() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let refused = Answer::Refused("why not: \"é\"".into());
        let long = Answer::Refused("x".repeat(3 * PIECE));
        send(&ours, &refused, &[]).unwrap();
        send(&ours, &Answer::Serving, &[file.as_fd(); 3]).unwrap();
        send(&ours, &long, &[]).unwrap();
        drop(ours);
        let (message, fds) = receive::<Answer>(&theirs, soon()).unwrap().unwrap();
        assert!(message == refused && fds.is_empty());
        let (message, fds) = receive::<Answer>(&theirs, soon()).unwrap().unwrap();
        assert!(message == Answer::Serving && fds.len() == 3);
        let (message, _) = receive::<Answer>(&theirs, soon()).unwrap().unwrap();
        assert!(message == long);
        assert!(receive::<Answer>(&theirs, soon()).unwrap().is_none());
    }

    #[test]
    fn bytes_that_are_no_frame_are_errors() {
        let frame = |version: u8, length: u32, body: &[u8]| {
            [b"crn", &[version][..], &length.to_le_bytes(), body].concat()
        };
        for (bytes, why) in [
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "no mark"),
            (frame(2, 2, b"{}"), "another version"),
            (frame(1, u32::MAX, b""), "too long"),
            (frame(1, 2, b"{}"), "not understood"),
            (frame(1, 9, b"\"Serving\""), ""),
            (frame(1, 10, b"\"Serving\""), "unexpected end"),
            (frame(1, 9, b"\"serving\""), "not understood"),
            (frame(1, 4, b"\xff\xfe\0\0"), "not understood"),
            (frame(1, 0, b""), "not understood"),
            (b"crn".to_vec(), "unexpected end"),
        ] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(&bytes).unwrap();
            drop(ours);
            match receive::<Answer>(&theirs, soon()) {
                Ok(Some((Answer::Serving, fds))) => assert!(why.is_empty() && fds.is_empty()),
                Ok(other) => panic!("{bytes:?}: {other:?}"),
                Err(e) => assert!(!why.is_empty() && e.to_string().contains(why), "{e}"),
            }
        }
    }

    #[test]
    fn deadline_is_for_the_whole_message() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"crn\x01\x00\xff\x00\x00").unwrap();
        let slow = std::thread::spawn(move || {
            // Each byte comes in time, all of them do not.
            while ours.write_all(b" ").is_ok() {
                std::thread::sleep(NO_TIME / 20);
            }
        });
        let error = receive::<Answer>(&theirs, Some(Instant::now() + NO_TIME)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
        slow.join().unwrap();
    }

    #[test]
    fn silence_is_timed_out() {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let error = receive::<Answer>(&theirs, Some(Instant::now() + NO_TIME)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn long_messages_are_not_sent() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let long = Answer::Refused("x".repeat(MOST));
        let error = send(&ours, &long, &[]).unwrap_err();
        assert!(error.to_string().contains("too long"));
    }

    #[test]
    fn descriptors_beyond_those_of_a_message_are_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let some = [file.as_fd(); 2];
        // Two parts of one frame, each with descriptors.
        assert_eq!(descriptors::send(&ours, b"crn\x01", &some).unwrap(), 4);
        assert_eq!(descriptors::send(&ours, b"\x02\0\0\0{}", &some).unwrap(), 6);
        let error = receive::<Answer>(&theirs, soon()).unwrap_err();
        assert!(error.to_string().contains("too many"), "{error}");
    }
}
