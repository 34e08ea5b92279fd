//! Closes the descriptors that a process got from its caller.
//!
//! A process that outlives its caller must not keep the caller's locks, pipes and sockets. Every
//! descriptor that this program opens is closed on exec, and one that was inherited is not: it
//! would not be here. So the flag tells the two apart, at any time.

use std::fs;
use std::io;
use std::os::fd::RawFd;

/// The standard descriptors end here.
const FIRST: RawFd = 3;

/// Closes all inherited descriptors but the standard ones.
///
/// # Errors
/// `/proc/self` cannot be read.
pub fn close() -> io::Result<()> {
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<RawFd>().ok());
        open.extend(number.filter(|fd| *fd >= FIRST));
    }
    for fd in open {
        // The descriptor of the listing itself is closed by now.
        match fs::read_to_string(format!("/proc/self/fdinfo/{fd}")) {
            Ok(info) if survives_exec(&info) => nix::unistd::close(fd)?,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Whether the flags in an `fdinfo` file (octal) are without close-on-exec.
fn survives_exec(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
    flags.is_some_and(|flags| flags & rustix::fs::OFlags::CLOEXEC.bits() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_on_exec_flag_is_found() {
        assert!(survives_exec("pos:\t0\nflags:\t0100002\nmnt_id:\t9\n"));
        assert!(!survives_exec("pos:\t0\nflags:\t02100002\nmnt_id:\t9\n"));
        assert!(!survives_exec(""));
    }
}
