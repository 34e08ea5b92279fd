//! How a command hands a mount over to the daemon that has the volume open already, and how it
//! learns that one has ended: over a Unix socket of the daemon's user.
//!
//! [`folder`] finds the directory of the socket and its name, [`frames`] has the messages and their
//! bytes; commands use both, too. [`control_socket`] is the daemon's end, [`end_notice`] what a daemon says at its
//! end. Each end checks who the other one is before it believes anything. Opens no volume, and neither
//! mounts nor unmounts.

pub(crate) mod control_socket;
pub(crate) mod end_notice;
pub mod folder;
pub mod frames;

use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Uid;

/// Whether the other end runs as this user, or as root.
pub fn is_of(stream: &UnixStream, user: Uid) -> bool {
    match socket_peercred(stream) {
        Ok(peer) => peer.uid.is_root() || peer.uid == user,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::geteuid;

    #[test]
    fn other_users_are_not_believed() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(is_of(&ours, geteuid()));
        assert_eq!(is_of(&ours, Uid::from_raw(4_000_000)), geteuid().is_root());
    }
}
