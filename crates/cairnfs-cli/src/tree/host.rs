//! The host's file system as a source.
//!
//! Symbolic links are never followed below the starting point.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cairnfs::types::{FileKind, Time};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use super::{Meta, Segment, Source, Xattr};
use crate::failure::{Explain, Failure, shown};

/// The host as a source.
pub struct HostSource;

/// A file of the host; opened when its contents are first wanted.
pub struct HostNode {
    path: PathBuf,
    file: OnceLock<File>,
}

impl HostNode {
    /// The file at `path`.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: OnceLock::new(),
        }
    }

    fn file(&self) -> Result<&File, Failure> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.cast_signed())
            .open(&self.path)
            .explain(shown(&self.path))?;
        Ok(self.file.get_or_init(|| file))
    }
}

impl Source for HostSource {
    type Node = HostNode;

    const TREE: bool = false;

    fn meta(&self, node: &HostNode) -> Result<Meta, Failure> {
        let m = node.path.symlink_metadata().explain(shown(&node.path))?;
        let kind = FileKind::from_mode(m.mode())
            .ok_or_else(|| Failure::new(shown(&node.path), "unknown kind of file"))?;
        Ok(Meta {
            kind,
            mode: m.mode() & 0o7777,
            uid: m.uid(),
            gid: m.gid(),
            rdev: m.rdev(),
            size: if kind == FileKind::File { m.size() } else { 0 },
            nlink: m.nlink(),
            id: (m.dev(), m.ino()),
            atime: time(m.atime(), m.atime_nsec()),
            mtime: time(m.mtime(), m.mtime_nsec()),
            xattrs: Vec::new(),
        })
    }

    fn xattrs(&self, node: &HostNode) -> Result<Vec<Xattr>, Failure> {
        let path: &Path = &node.path;
        let what = || format!("{}: extended attributes", shown(path));
        let mut names = Vec::new();
        match rustix::fs::llistxattr_query(path) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Ok(len) => names.resize(len, 0),
            Err(e) => return Err(e).explain(what()),
        }
        let len = rustix::fs::llistxattr(path, &mut names).explain(what())?;
        names.truncate(len);
        let mut found = Vec::new();
        for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            let key = OsStr::from_bytes(name);
            let mut value = vec![0; 65_536];
            match rustix::fs::lgetxattr(path, key, &mut value) {
                Ok(len) => value.truncate(len),
                Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
                Err(e) => return Err(e).explain(what()),
            }
            found.push((name.to_vec(), value));
        }
        Ok(found)
    }

    fn names(&self, node: &HostNode) -> Result<Vec<Vec<u8>>, Failure> {
        let mut names = Vec::new();
        for entry in node.path.read_dir().explain(shown(&node.path))? {
            let entry = entry.explain(shown(&node.path))?;
            names.push(entry.file_name().into_vec());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn child(&self, node: &HostNode, name: &[u8]) -> Result<HostNode, Failure> {
        Ok(HostNode::new(node.path.join(OsStr::from_bytes(name))))
    }

    fn target(&self, node: &HostNode) -> Result<Vec<u8>, Failure> {
        let target = node.path.read_link().explain(shown(&node.path))?;
        Ok(target.into_os_string().into_vec())
    }

    fn segments(&self, node: &HostNode, size: u64) -> Result<Vec<Segment>, Failure> {
        let file = node.file()?;
        let mut found = Vec::new();
        let mut at = 0;
        while at < size {
            let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                // A file system without holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
                Err(e) => return Err(e).explain(shown(&node.path)),
            };
            let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size);
            let end = end.min(size);
            if end <= start {
                break;
            }
            found.push(Segment { start, end });
            at = end;
        }
        Ok(found)
    }

    fn read(&self, node: &HostNode, offset: u64, buf: &mut [u8]) -> Result<usize, Failure> {
        node.file()?.read_at(buf, offset).explain(shown(&node.path))
    }
}

fn time(secs: i64, nanos: i64) -> Time {
    Time {
        secs,
        nanos: nanos.try_into().unwrap_or(0),
    }
}
