//! How a command hands a mount over to the daemon that has the volume open already, and how it
//! learns that one has ended: over a Unix socket of the daemon's user.
//!
//! [`folder`] finds the directory of the socket and its name, [`frames`] has the messages and their
//! bytes, [`desk`] is the daemon's end and [`caller`] that of commands. Each end checks who the other
//! one is before it believes anything. Opens no volume, and neither mounts nor unmounts.

pub mod caller;
pub mod desk;
pub mod folder;
pub mod frames;
