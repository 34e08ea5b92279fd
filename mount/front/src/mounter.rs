//! Mounts and unmounts: by system calls, or by `fusermount3` for ordinary users.
//!
//! Returns the descriptor of a mounted FUSE connection, and unmounts; it does not serve requests.
//! Only the path that the caller names is unmounted.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};

use crate::descriptors;
use crate::mountinfo::FS_TYPE;
use crate::options::MountOptions;

const FUSE_DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// Environment variable that tells the helper on which socket to pass the descriptor.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// Mounts a FUSE connection on `dir`; `volume` is shown as its source unless the options name
/// another.
///
/// # Errors
/// FUSE is missing, or the kernel or the helper refuses; the text tells which.
pub fn mount(volume: &Path, dir: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let source = match &options.source {
        Some(name) => name.as_os_str(),
        None => volume.as_os_str(),
    };
    if geteuid().is_root() {
        match mount_directly(source, dir, options) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
            other => return other,
        }
    }
    mount_by_helper(source, dir, options)
}

fn mount_directly(source: &OsStr, dir: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let device = open_device()?;
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions",
        device.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    rustix::mount::mount(source, dir, FS_TYPE, flags(options), data.as_c_str())?;
    Ok(device.into())
}

/// `noatime` is set because reads never change access times; the table of mounts then shows it.
fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags
}

/// Changes the flags of the mount at `dir` to those of `options`, without the daemon. Superuser
/// only.
///
/// # Errors
/// `ResourceBusy` for a change to read-only while files are open for writing; other refusals of the
/// kernel.
pub fn remount(dir: &Path, options: &MountOptions) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(dir, flags(options), c"")?)
}

fn open_device() -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(FUSE_DEVICE)
        .map_err(|e| {
            let hint = match e.kind() {
                io::ErrorKind::NotFound => ": is the kernel module fuse loaded?",
                _ => "",
            };
            io::Error::new(e.kind(), format!("{FUSE_DEVICE}: {e}{hint}"))
        })
}

/// Whether each event loop can open its own descriptor of the device.
pub fn can_clone_device() -> bool {
    open_device().is_ok()
}

fn mount_by_helper(source: &OsStr, dir: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(source, options))
        .arg("--")
        .arg(dir)
        .env(HELPER_SOCKET, theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    drop(theirs);
    // The helper sends the descriptor with a byte, or closes its end after an error.
    let received = descriptors::receive(&ours, &mut [0]);
    let output = child.wait_with_output()?;
    match received?.1.into_iter().next() {
        Some(fd) if output.status.success() => Ok(fd),
        _ => Err(helper_error(&output.stderr)),
    }
}

fn helper_options(source: &OsStr, options: &MountOptions) -> OsString {
    let mut list = b"default_permissions,subtype=cairnfs,noatime".to_vec();
    let mut word = |set: bool, word: &str| {
        if set {
            list.push(b',');
            list.extend_from_slice(word.as_bytes());
        }
    };
    word(options.read_only, "ro");
    word(options.allow_other, "allow_other");
    word(!options.exec, "noexec");
    word(options.sync, "sync");
    let privileged = geteuid().is_root();
    word(options.dev && privileged, "dev");
    word(options.suid && privileged, "suid");
    list.extend_from_slice(b",fsname=");
    for &byte in source.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            list.push(b'\\');
        }
        list.push(byte);
    }
    OsString::from_vec(list)
}

fn no_helper(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            error.kind(),
            format!("{HELPER} is not installed; ordinary users need it (package fuse3)"),
        ),
        _ => error,
    }
}

fn helper_error(stderr: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    let kind = match text {
        t if t.contains("busy") => io::ErrorKind::ResourceBusy,
        t if t.contains("user_allow_other") || t.contains("ermi") => {
            io::ErrorKind::PermissionDenied
        }
        _ => io::ErrorKind::Other,
    };
    let text = match text {
        "" => "fusermount3 failed without saying why",
        t => t,
    };
    io::Error::new(kind, text)
}

/// The kind of an unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Fails if the mount is in use.
    Plain,
    /// Detaches the mount even if it is in use; the connection ends when its last file is closed.
    Lazy,
    /// Aborts the connection to the daemon: requests in flight fail. Superuser only.
    Force,
}

/// Unmounts `dir`.
///
/// # Errors
/// `ResourceBusy` if it is in use; other refusals of the kernel or the helper.
pub fn unmount(dir: &Path, way: Way) -> io::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, way == Way::Lazy);
    flags.set(UnmountFlags::FORCE, way == Way::Force);
    match rustix::mount::unmount(dir, flags) {
        Err(Errno::PERM) if way != Way::Force => unmount_by_helper(dir, way == Way::Lazy),
        other => Ok(other?),
    }
}

fn unmount_by_helper(dir: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .map_err(no_helper)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(helper_error(&output.stderr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_escaped_for_fusermount() {
        let mut options = MountOptions::default();
        options.apply("ro,noexec,allow_other").unwrap();
        assert_eq!(
            helper_options(OsStr::new("/a,b\\c d"), &options),
            "default_permissions,subtype=cairnfs,noatime,ro,allow_other,noexec,fsname=/a\\,b\\\\c d"
        );
    }

    #[test]
    fn fusermount_messages_map_to_error_kinds() {
        let kind = |text: &str| helper_error(text.as_bytes()).kind();
        assert_eq!(
            kind("fusermount3: failed to unmount /m: Device or resource busy\n"),
            io::ErrorKind::ResourceBusy
        );
        assert_eq!(
            kind("fusermount3: option allow_other only allowed if 'user_allow_other' is set"),
            io::ErrorKind::PermissionDenied
        );
        assert_eq!(kind(""), io::ErrorKind::Other);
    }
}
