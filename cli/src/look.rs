//! How output looks on a terminal: its width, and colours.
//!
//! Colours only if standard output is a terminal that has them, and `NO_COLOR` is not set. From the
//! crate this uses nothing.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use anstyle::{AnsiColor, Style};
use serde::{Deserialize, Serialize};

/// Columns where the width is not known, as git(1) takes.
const COLUMNS: usize = 80;

/// What is removed, and names of branches and the like, have colours as in git(1).
pub const ADDED: Style = AnsiColor::Green.on_default();
/// Removed files and lines.
pub const REMOVED: Style = AnsiColor::Red.on_default();
/// Renamed files, and the places of changes in patches.
pub const MOVED: Style = AnsiColor::Cyan.on_default();
/// Changed files, and snapshots.
pub const CHANGED: Style = AnsiColor::Yellow.on_default();
/// Headings.
pub const STRONG: Style = Style::new().bold();
/// What matters less.
pub const FAINT: Style = Style::new().dimmed();

/// How standard output looks.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Look {
    /// Whether it is a terminal: then columns are aligned for people.
    pub terminal: bool,
    /// Whether it has colours.
    colours: bool,
    /// Columns; 80 if it is not a terminal and `COLUMNS` is not set.
    pub columns: usize,
}

impl Look {
    /// That of standard output.
    pub fn of_stdout() -> Self {
        Self::of(&io::stdout())
    }

    /// That of a stream.
    pub fn of(stream: &(impl IsTerminal + AsFd)) -> Self {
        let terminal = stream.is_terminal();
        let is_set = |value: Option<OsString>| value.is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            terminal,
            colours: terminal && !dumb && !is_set(std::env::var_os("NO_COLOR")),
            columns: columns(stream),
        }
    }

    /// The text in a style.
    pub fn paint(&self, style: Style, text: &str) -> String {
        if self.colours && !text.is_empty() {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }

    /// Whether there are colours.
    pub fn has_colours(&self) -> bool {
        self.colours
    }
}

fn columns(stream: &impl AsFd) -> usize {
    let told = std::env::var("COLUMNS").ok();
    let told = told.and_then(|told| told.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(stream).ok();
    let found = told.or_else(|| asked().map(|size| usize::from(size.ws_col)));
    found.filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}
