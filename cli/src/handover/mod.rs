//! How commands call the daemon that has a volume open, over a Unix socket of its user.
//!
//! [`caller`] is the end of commands; [`attempts`] says what they do while a daemon begins or ends. The
//! daemon's end, and the messages, are in [`cairnfs_daemon::handover`].

pub mod attempts;
pub mod caller;
