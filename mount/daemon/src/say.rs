//! What a command, or a daemon that still has a terminal, says to people on standard error.
//!
//! Nobody may read it: the pipe may be closed, or the disk of a log full. That is no reason to fail,
//! and less so to leave a volume unmounted, so what cannot be written is lost. Each call is one write,
//! so lines of several processes do not mix.

use std::fmt;
use std::io::{self, Write};

/// Writes a line to standard error, as `eprintln!` does, but never panics.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::say::text(&format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes text to standard error.
pub fn text(text: &dyn fmt::Display) {
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}
