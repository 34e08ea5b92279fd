//! Notifies a service manager that the mount is live, as sd_notify(3) does: a datagram to the
//! socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Notifies the service manager, if there is one.
///
/// # Errors
/// The socket cannot be reached.
pub fn ready() -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(name) => send(&name, b"READY=1\n"),
        None => Ok(()),
    }
}

fn send(name: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_and_abstract_sockets_are_notified() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("@cairnfs-test-{}", std::process::id());
        let hidden = SocketAddr::from_abstract_name(name.trim_start_matches('@')).unwrap();
        for (name, socket) in [
            (path.as_os_str(), UnixDatagram::bind(&path).unwrap()),
            (OsStr::new(&name), UnixDatagram::bind_addr(&hidden).unwrap()),
        ] {
            send(name, b"READY=1\n").unwrap();
            let mut message = [0; 100];
            let len = socket.recv(&mut message).unwrap();
            assert_eq!(&message[..len], b"READY=1\n");
        }
        assert!(send(folder.path().join("none").as_os_str(), b"x").is_err());
    }
}
