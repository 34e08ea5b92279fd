//! How a mount fails: with an exit code of mount(8), and a message in one line.

use crate::failure;

/// mount(8): invalid arguments.
pub const EXIT_USAGE: u8 = 1;
/// mount(8): the system lacks a resource, for example memory for a process.
pub const EXIT_SYSTEM: u8 = 2;
/// mount(8): the mount failed.
pub const EXIT_MOUNT: u8 = 32;

/// An exit code and a message; the message is empty if the daemon has printed it already.
#[derive(Debug)]
pub struct Failure(
    /// The exit code.
    pub u8,
    /// The message.
    pub String,
);

/// The mount failed.
pub fn failed(text: impl ToString) -> Failure {
    Failure(EXIT_MOUNT, text.to_string())
}

/// A failure and the next step, in one line.
pub fn in_line(failure: &failure::Failure) -> String {
    match failure.next_step() {
        Some(step) => format!("{failure}; {step}"),
        None => failure.to_string(),
    }
}
