//! The host's file system as a source.
//!
//! The tree is walked by directory descriptors ([`super::descent`]); below the starting point no
//! symbolic link is followed. An entry is opened without following links and without blocking,
//! and only if its stat result is a regular file or directory; the descriptor must refer to the
//! inode seen before. So FIFOs and devices are never opened, even if another user swaps entries
//! at the same time.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cairnfs_daemon::failure::{Explain, Failure, shown};
use cairnfs_disk::types::{FileKind, Time};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;

use super::descent::{self, Descent};
use super::{Listing, Meta, Segment, Segments, Source, Xattr};

/// Size in bytes of the buffer for directory entries.
const ENTRIES: usize = 32 << 10;
/// Maximum size in bytes of an attribute list, or of one attribute's value, on Linux.
const MAX_XATTR: usize = 65_536;

/// A file or tree of the host as a source.
pub struct HostSource {
    descent: Descent,
    name: Vec<u8>,
    current: Option<HostEntry>,
}

/// Why a path is not resolved: it may lead to what has no path itself, such as the pipe that is
/// standard input.
fn nameless(path: &Path, error: io::Error) -> Result<PathBuf, Failure> {
    match path.metadata() {
        Ok(meta) if !meta.is_dir() && error.kind() == io::ErrorKind::NotFound => Err(Failure::new(
            shown(path),
            "has no name of its own: a pipe or socket",
        )
        .hint("copy a file, or an archive: ... | cairnfs import /dev/stdin VOLUME")),
        _ => Err(error).explain(shown(path)),
    }
}

/// The current entry; opened at the first use of its contents.
struct HostEntry {
    name: Vec<u8>,
    stat: Stat,
    file: Option<File>,
}

impl HostSource {
    /// Begins at `path`, which is resolved once, here. With `follow`, a symbolic link at the end
    /// of the path is also followed.
    ///
    /// # Errors
    /// It does not exist, or a directory on the path may not be entered.
    pub fn open(path: &Path, follow: bool) -> Result<Self, Failure> {
        let bytes = path.as_os_str().as_bytes();
        let leads_on =
            bytes.ends_with(b"/") || bytes.ends_with(b"/.") || path.file_name().is_none();
        let resolved = if follow || leads_on {
            path.canonicalize().or_else(|e| nameless(path, e))?
        } else {
            path.to_owned()
        };
        let (above, name) = match (resolved.parent(), resolved.file_name()) {
            (Some(above), Some(name)) => (above, name),
            _ => (resolved.as_path(), OsStr::new(".")),
        };
        let base = descent::open_named(above).explain(shown(path))?;
        let mut source = Self {
            name: name.as_bytes().to_vec(),
            descent: Descent::new(base, above.to_owned()),
            current: None,
        };
        source.start()?;
        Ok(source)
    }

    fn current(&self) -> Result<&HostEntry, Failure> {
        let none = || Failure::new(self.descent.shown(b""), "there is no current entry");
        self.current.as_ref().ok_or_else(none)
    }

    /// Opens the current entry with `flags`, if it is still the inode that was found.
    fn reopen(&self, flags: OFlags) -> Result<OwnedFd, Failure> {
        let entry = self.current()?;
        let name = OsStr::from_bytes(&entry.name);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.descent.dir()?, name, flags, Mode::empty())
            .explain(self.shown())?;
        let stat = rustix::fs::fstat(&fd).explain(self.shown())?;
        let same = |stat: &Stat| (descent::id(stat), FileKind::from_mode(stat.st_mode));
        if same(&stat) != same(&entry.stat) {
            return Err(
                Failure::new(self.shown(), "was replaced while it was being read")
                    .hint("copy again when nothing else changes the tree"),
            );
        }
        Ok(fd)
    }

    /// The current entry, a regular file or a directory, open for reading.
    fn file(&mut self) -> Result<&File, Failure> {
        if self.current()?.file.is_none() {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
            let file = File::from(self.reopen(flags)?);
            if let Some(entry) = &mut self.current {
                entry.file = Some(file);
            }
        }
        let none = || Failure::new(self.descent.shown(b""), "is not open");
        let file = self.current.as_ref().and_then(|entry| entry.file.as_ref());
        file.ok_or_else(none)
    }

    fn is_opened(&self) -> bool {
        let kind = self
            .current
            .as_ref()
            .and_then(|e| FileKind::from_mode(e.stat.st_mode));
        matches!(kind, Some(FileKind::File | FileKind::Directory))
    }
}

impl Source for HostSource {
    const TREE: bool = false;

    fn start(&mut self) -> Result<Meta, Failure> {
        self.descent.go(b"")?;
        let name = self.name.clone();
        self.find(&name)
    }

    fn find(&mut self, name: &[u8]) -> Result<Meta, Failure> {
        self.current = None;
        let what = || self.descent.shown(name);
        let dir = self.descent.dir()?;
        let stat = rustix::fs::statat(dir, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)
            .explain(what())?;
        let meta = meta(&stat).ok_or_else(|| Failure::new(what(), "unknown kind of file"))?;
        self.current = Some(HostEntry {
            name: name.to_vec(),
            stat,
            file: None,
        });
        Ok(meta)
    }

    fn xattrs(&mut self) -> Result<Vec<Xattr>, Failure> {
        let what = format!("{}: extended attributes", self.shown());
        if self.is_opened() {
            // A file that cannot be opened is reported when its contents are read.
            return match self.file() {
                Ok(file) => xattrs(
                    |list| rustix::fs::flistxattr(file, list),
                    |name, value| rustix::fs::fgetxattr(file, name, value),
                )
                .explain(what),
                Err(_) => Ok(Vec::new()),
            };
        }
        // The entry cannot be opened for its contents. The link in /proc leads to the inode that
        // is held, even if another inode has the name by then, and the target is not followed
        // further.
        let held = self.reopen(OFlags::PATH)?;
        let path = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
        xattrs(
            |list| rustix::fs::listxattr(path.as_str(), list),
            |name, value| rustix::fs::getxattr(path.as_str(), name, value),
        )
        .explain(what)
    }

    fn target(&mut self) -> Result<Vec<u8>, Failure> {
        let name = OsStr::from_bytes(&self.current()?.name);
        let target = rustix::fs::readlinkat(self.descent.dir()?, name, Vec::new());
        Ok(target.explain(self.shown())?.into_bytes())
    }

    fn segments(&mut self, size: u64) -> Result<Segments, Failure> {
        let what = self.shown();
        let file = self.file()?;
        let mut found = Vec::new();
        let mut at = 0;
        let mut unknown = None;
        while at < size {
            let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                // The file system has no holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
                Err(e) => {
                    unknown = Err::<(), _>(e).explain(what).err().map(|f| (at, f));
                    break;
                }
            };
            let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size);
            let end = end.min(size);
            if end <= start {
                break;
            }
            found.push(Segment { start, end });
            at = end;
        }
        Ok(Segments { found, unknown })
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize, Failure> {
        let read = self.file()?.read_at(buf, offset);
        read.explain(self.shown())
    }

    fn enter(&mut self) -> Result<Listing, Failure> {
        let what = self.shown();
        let file = self.file()?;
        let mut buffer = [MaybeUninit::uninit(); ENTRIES];
        let mut entries = RawDir::new(file, &mut buffer);
        let mut names = Vec::new();
        let mut lost = None;
        while let Some(entry) = entries.next() {
            match entry {
                Ok(entry) => match entry.file_name().to_bytes() {
                    b"." | b".." => {}
                    name => names.push(name.to_vec()),
                },
                Err(e) => {
                    lost = Err::<(), _>(e).explain(what).err();
                    break;
                }
            }
        }
        names.sort_unstable();
        if let Some(entry) = self.current.take()
            && let Some(file) = entry.file
        {
            self.descent
                .enter(&entry.name, file.into(), descent::id(&entry.stat));
        }
        Ok(Listing { names, lost })
    }

    fn leave(&mut self) {
        self.current = None;
        self.descent.leave();
    }

    fn shown(&self) -> String {
        let name = self.current.as_ref().map(|entry| entry.name.as_slice());
        self.descent.shown(name.unwrap_or_default())
    }
}

fn meta(stat: &Stat) -> Option<Meta> {
    let kind = FileKind::from_mode(stat.st_mode)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Some(Meta {
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev,
        size: if kind == FileKind::File { size } else { 0 },
        nlink: stat.st_nlink,
        id: descent::id(stat),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        xattrs: Vec::new(),
    })
}

fn time(secs: i64, nanos: u64) -> Time {
    Time {
        secs,
        nanos: nanos.try_into().unwrap_or(0),
    }
}

/// All attributes. `list` fills a buffer with the names, `value` with the value of one.
fn xattrs(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    value: impl Fn(&OsStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<Xattr>> {
    let mut names = vec![0; MAX_XATTR];
    match list(&mut names) {
        Ok(len) => names.truncate(len),
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    }
    let mut found = Vec::new();
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut bytes = vec![0; MAX_XATTR];
        match value(OsStr::from_bytes(name), &mut bytes) {
            Ok(len) => bytes.truncate(len),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
            Err(e) => return Err(e),
        }
        bytes.shrink_to_fit();
        found.push((name.to_vec(), bytes));
    }
    Ok(found)
}
