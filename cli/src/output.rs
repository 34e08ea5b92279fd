//! Output for people and programs: tables, JSON, times and progress bars.
//!
//! Progress goes to standard error and only to a terminal; results go to standard output. From
//! the crate this uses only sizes and failures.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use cairnfs_daemon::failure::{AnyError, show_bytes};
pub use cairnfs_daemon::times::utc_time;
use cairnfs_disk::types::{FileKind, Time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::tz::TimeZone;
use serde::Serialize;

/// How often a second a progress bar is drawn at most.
pub const FRAMES: u8 = 20;

/// Writes rows of a name and a value, with the values aligned.
pub fn table(out: &mut dyn Write, rows: &[(impl AsRef<str>, String)]) -> io::Result<()> {
    let width = rows
        .iter()
        .map(|(name, _)| name.as_ref().len())
        .max()
        .unwrap_or(0);
    for (name, value) in rows {
        writeln!(out, "{:width$}  {value}", name.as_ref())?;
    }
    Ok(())
}

/// Writes one JSON document to standard output.
pub fn json(value: &impl Serialize) -> Result<(), AnyError> {
    json_to(&mut io::stdout().lock(), value)
}

/// Writes one JSON document.
pub fn json_to(out: &mut impl Write, value: &impl Serialize) -> Result<(), AnyError> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)?;
    Ok(())
}

/// A number with the word for what is counted, in the right form.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// How names are written; the variants correspond to options of ls(1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Byte for byte, for programs.
    Raw,
    /// For people at a terminal: control characters are escaped.
    Shown,
    /// `-q`: a question mark for each control character.
    Hidden,
    /// `-b`: escapes of C, which are unambiguous.
    Escaped,
}

impl Style {
    /// The default for a terminal or for other output.
    pub fn default_for(terminal: bool) -> Self {
        if terminal { Style::Shown } else { Style::Raw }
    }
}

/// Writes a name.
pub fn write_name(out: &mut dyn Write, name: &[u8], style: Style) -> io::Result<()> {
    match style {
        Style::Raw => out.write_all(name),
        Style::Shown => out.write_all(show_bytes(name).as_bytes()),
        Style::Hidden => out.write_all(hidden(name).as_bytes()),
        Style::Escaped => out.write_all(escaped(name).as_bytes()),
    }
}

fn hidden(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        let shown = chunk.valid().chars();
        text.extend(shown.map(|c| if c.is_control() { '?' } else { c }));
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    text
}

fn escaped(name: &[u8]) -> String {
    let mut text = String::new();
    let octal = |text: &mut String, byte: &u8| text.push_str(&format!("\\{byte:03o}"));
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                '\\' => text.push_str("\\\\"),
                ' ' => text.push_str("\\ "),
                c if c.is_control() => {
                    let mut bytes = [0; 4];
                    for byte in c.encode_utf8(&mut bytes).as_bytes() {
                        octal(&mut text, byte);
                    }
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            octal(&mut text, byte);
        }
    }
    text
}

/// A time in a time zone, to the minute.
pub fn local_time(time: Time, zone: &TimeZone) -> String {
    local(time, zone, "%Y-%m-%d %H:%M")
}

/// The same with seconds, where several of a minute are listed.
pub fn local_second(time: Time, zone: &TimeZone) -> String {
    local(time, zone, "%Y-%m-%d %H:%M:%S")
}

fn local(time: Time, zone: &TimeZone, format: &str) -> String {
    match jiff::Timestamp::new(time.secs, time.nanos.try_into().unwrap_or(0)) {
        Ok(stamp) => stamp.to_zoned(zone.clone()).strftime(format).to_string(),
        Err(_) => format!("@{}", time.secs),
    }
}

/// The mode column of `ls -l`.
pub fn mode_string(kind: FileKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Socket => 's',
    });
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (class, (bit, with_x, without_x)) in special.into_iter().enumerate() {
        let bits = mode >> (6 - 3 * class);
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & bit != 0, bits & 1 != 0) {
            (true, true) => with_x,
            (true, false) => without_x,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// The progress of a long operation; silent if standard error is not a terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Progress in bytes; a total of 0 means that it is not known.
    pub fn bytes(what: &'static str, total: u64, quiet: bool) -> Self {
        Self::bytes_on(own_terminal(quiet), what, total)
    }

    /// Progress in bytes, drawn on `target`; a total of 0 means that it is not known.
    pub fn bytes_on(target: ProgressDrawTarget, what: &'static str, total: u64) -> Self {
        let known = "{msg:12} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let unknown = "{msg:12} {spinner} {bytes} {bytes_per_sec}";
        Self::new(target, what, total, if total > 0 { known } else { unknown })
    }

    /// Progress in steps of any kind.
    pub fn steps(what: &'static str, quiet: bool) -> Self {
        Self::steps_on(own_terminal(quiet), what)
    }

    /// Progress in steps of any kind, drawn on `target`.
    pub fn steps_on(target: ProgressDrawTarget, what: &'static str) -> Self {
        Self::new(target, what, 1, "{msg:20} [{bar:30}] {percent:>3}% {eta}")
    }

    fn new(target: ProgressDrawTarget, what: &'static str, total: u64, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what);
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self { bar }
    }

    /// Whether the bar is visible.
    pub fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Adds `n` completed steps.
    pub fn add(&self, n: u64) {
        self.bar.inc(n);
    }

    /// Sets the progress to `done` of `total`.
    pub fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Increases the total by `n`.
    pub fn expect_more(&self, n: u64) {
        self.bar.inc_length(n);
    }

    /// Sets the name of the current phase.
    pub fn phase(&self, what: &'static str) {
        self.bar.set_message(what);
    }

    /// Prints a message on standard error, above the bar.
    pub fn note(&self, text: &str) {
        self.bar.suspend(|| say!("cairnfs: {text}"));
    }

    /// Prints a hint below a message.
    pub fn hint(&self, text: &str) {
        self.bar.suspend(|| say!("  {text}"));
    }
}

/// Standard error if it is a terminal.
fn own_terminal(quiet: bool) -> ProgressDrawTarget {
    if !quiet && io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(FRAMES)
    } else {
        ProgressDrawTarget::hidden()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_like_ls() {
        assert_eq!(mode_string(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(mode_string(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_string(FileKind::File, 0o4755), "-rwsr-xr-x");
        assert_eq!(mode_string(FileKind::File, 0o6644), "-rwSr-Sr--");
        assert_eq!(mode_string(FileKind::Directory, 0o1000), "d--------T");
    }

    #[test]
    fn names_look_like_ls() {
        let name = b"a b\\\x1b[2J\n\xff\xc2\x9b\xc3\xa9";
        let written = |style| {
            let mut out = Vec::new();
            write_name(&mut out, name, style).unwrap();
            String::from_utf8_lossy(&out).into_owned()
        };
        assert_eq!(written(Style::Hidden), "a b\\?[2J???é");
        assert_eq!(
            written(Style::Escaped),
            "a\\ b\\\\\\033[2J\\n\\377\\302\\233é"
        );
        assert_eq!(written(Style::Shown), "a b\\\\u{1b}[2J\\n\\xff\\u{9b}é");
    }

    #[test]
    fn counted_things_have_the_right_form() {
        assert_eq!(counted(1, "entry", "entries"), "1 entry");
        assert_eq!(counted(0, "entry", "entries"), "0 entries");
    }

    #[test]
    fn tables_align() {
        let mut out = Vec::new();
        table(&mut out, &[("A", "1".into()), ("Long", "2".into())]).unwrap();
        assert_eq!(out, b"A     1\nLong  2\n");
    }

    #[test]
    fn times_and_uuids_have_their_usual_forms() {
        let time = Time { secs: 0, nanos: 5 };
        assert_eq!(utc_time(time), "1970-01-01T00:00:00.000000005Z");
        let before = Time {
            secs: -1,
            nanos: 500_000_000,
        };
        assert_eq!(utc_time(before), "1969-12-31T23:59:59.500000000Z");
        let far = Time {
            secs: i64::MAX,
            nanos: 0,
        };
        assert!(utc_time(far).starts_with('@'));
        assert!(local_time(far, &TimeZone::UTC).starts_with('@'));
    }
}
