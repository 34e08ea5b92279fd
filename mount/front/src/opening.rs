//! Opens files by paths that an untrusted user may control.
//!
//! Opening a FIFO waits for its other end, and opening a device can have any effect. So a path is
//! first resolved without opening its target (`O_PATH`), then the type is checked, and only then
//! the same inode is opened, without waiting.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

/// Opens the volume that the owner of a mount names: a regular file or a block device, not through
/// a symbolic link in the last component.
///
/// # Errors
/// The path leads to another type (`InvalidInput`), or cannot be opened.
pub fn volume(path: &Path) -> io::Result<File> {
    let kinds = [FileType::RegularFile, FileType::BlockDevice];
    let wrong = "neither a regular file nor a block device";
    open(path, OFlags::NOFOLLOW, kinds, wrong)
}

/// Opens a file or directory of a mount to send its daemon a question.
///
/// # Errors
/// The path leads to another type (`InvalidInput`), or cannot be opened.
pub fn inside(path: &Path) -> io::Result<File> {
    let kinds = [FileType::RegularFile, FileType::Directory];
    let wrong = "neither a regular file nor a directory";
    open(path, OFlags::empty(), kinds, wrong)
}

fn open(path: &Path, links: OFlags, kinds: [FileType; 2], wrong: &str) -> io::Result<File> {
    let found = openat(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC | links,
        Mode::empty(),
    )?;
    let kind = FileType::from_raw_mode(fstat(&found)?.st_mode);
    if kinds.contains(&kind) {
        reopen(&found)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, wrong))
    }
}

fn reopen(found: &OwnedFd) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mknodat;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_expected_file_types_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), b"contents").unwrap();
        symlink(at("file"), at("link")).unwrap();
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let mut text = String::new();
        volume(&at("file"))
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "contents");
        assert!(inside(&at("link")).is_ok() && inside(folder.path()).is_ok());
        for refused in [
            volume(&at("link")),
            volume(&at("fifo")),
            volume(folder.path()),
            volume(Path::new("/dev/null")),
            inside(&at("fifo")),
            inside(Path::new("/dev/null")),
        ] {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let missing = inside(&at("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
