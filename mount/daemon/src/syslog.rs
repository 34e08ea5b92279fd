//! Sends messages of the daemon to the system log: datagrams to `/dev/log` in the format of
//! syslog(3), which syslog daemons and the journal read.
//!
//! A message that the log does not accept at once is dropped. The log may be written to a file on
//! this mount; waiting for it would be a deadlock.

use std::fmt::Write as _;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::{show_bytes, shown};

/// The socket that syslog(3) sends to.
const SOCKET: &str = "/dev/log";

/// The facility "daemon", at its position in the priority.
const DAEMON: u8 = 3 << 3;

/// Maximum length of a message in bytes that every syslog daemon accepts.
const MOST: usize = 2048;

/// The system's log, for messages about one volume.
#[derive(Clone)]
pub struct Syslog {
    socket: Arc<UnixDatagram>,
    about: Arc<str>,
}

impl Syslog {
    /// A log for messages about the volume at `volume`. A missing listener is not an error: a
    /// syslog daemon may start or restart later.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn about(volume: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: Arc::new(socket),
            about: shown(volume).into(),
        })
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = Message;

    fn make_writer(&'a self) -> Message {
        self.message(6)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Message {
        self.message(match *meta.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        })
    }
}

impl Syslog {
    fn message(&self, severity: u8) -> Message {
        Message {
            log: self.clone(),
            severity,
        }
    }
}

/// One message; the first write sends it and must hold all of it.
pub struct Message {
    log: Syslog,
    severity: u8,
}

impl io::Write for Message {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let line = line(self.severity, &self.log.about, text);
        let _dropped = self.log.socket.send_to(line.as_bytes(), SOCKET);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `<PRIORITY>Mmm dd hh:mm:ss cairnfs[PID]: VOLUME: TEXT`, in one line.
fn line(severity: u8, about: &str, text: &[u8]) -> String {
    let priority = DAEMON | severity;
    let time = jiff::Zoned::now().strftime("%b %e %H:%M:%S");
    let text = show_bytes(text.trim_ascii());
    let mut line = String::with_capacity(MOST);
    let pid = std::process::id();
    let _infallible = write!(line, "<{priority}>{time} cairnfs[{pid}]: {about}: {text}");
    line.truncate(line.floor_char_boundary(MOST));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_of_bounded_length() {
        let sent = line(3, "/v", b"the volume\nhas \xff stopped\n");
        assert!(sent.starts_with("<27>"), "{sent}");
        let rest = format!(
            " cairnfs[{}]: /v: the volume\\nhas \\xff stopped",
            std::process::id()
        );
        assert!(sent.ends_with(&rest), "{sent}");
        assert_eq!(sent.len() - rest.len(), "<27>Nov  2 17:00:00".len());
        let long = "é".repeat(MOST);
        assert!((MOST - 1..=MOST).contains(&line(6, "/v", long.as_bytes()).len()));
    }
}
