//! A directory of the host as a sink.
//!
//! Existing regular files and symbolic links are replaced, never written through; existing
//! directories are filled; anything else in the way is a failure. Attributes are set last, so a
//! file is private until it is whole.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cairnfs::types::{FileKind, Time};
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, XattrFlags};

use super::{Keep, Meta, Segment, Sink};
use crate::failure::{Explain, Failure, shown};

/// A directory of the host that is filled.
pub struct HostSink {
    base: PathBuf,
    keep: Keep,
    umask: u32,
    root: bool,
    file: Option<(PathBuf, File)>,
    made: HashSet<Vec<u8>>,
    lost_xattrs: u64,
}

impl HostSink {
    /// The existing directory `base`.
    pub fn new(base: PathBuf, keep: Keep) -> Self {
        Self {
            base,
            keep,
            umask: super::umask(),
            root: rustix::process::geteuid().is_root(),
            file: None,
            made: HashSet::new(),
            lost_xattrs: 0,
        }
    }

    /// Extended attributes that the host would not take.
    pub fn lost_xattrs(&self) -> u64 {
        self.lost_xattrs
    }

    fn at(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() {
            self.base.clone()
        } else {
            self.base.join(OsStr::from_bytes(path))
        }
    }

    /// Makes room for a new file.
    fn clear(&self, path: &Path) -> Result<(), Failure> {
        let there = match path.symlink_metadata() {
            Ok(there) => there,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e).explain(shown(path)),
        };
        if there.is_dir() {
            return Err(Failure::new(
                shown(path),
                "is a directory; a file cannot replace it",
            ));
        }
        if !there.is_file() && !there.is_symlink() {
            return Err(Failure::new(
                shown(path),
                "is a device, FIFO or socket; it is not replaced",
            )
            .hint("to write a file's contents to it: cairnfs cat VOLUME:PATH > FILE"));
        }
        fs::remove_file(path).explain(shown(path))
    }

    fn mode(&self, meta: &Meta) -> u32 {
        if !self.keep.mode {
            return meta.mode & 0o777 & !self.umask;
        }
        // A set-user-id bit must not pass to an owner who did not set it.
        let foreign = !self.root && meta.uid != rustix::process::geteuid().as_raw();
        if foreign || !self.keep.owner {
            meta.mode & 0o1777
        } else {
            meta.mode
        }
    }

    fn finish(&mut self, path: &Path, meta: &Meta, set_mode: bool) -> Result<(), Failure> {
        if self.keep.owner && self.root {
            std::os::unix::fs::lchown(path, Some(meta.uid), Some(meta.gid)).explain(shown(path))?;
        }
        if self.keep.xattrs {
            self.set_xattrs(path, meta);
        }
        if set_mode && meta.kind != FileKind::Symlink {
            fs::set_permissions(path, Permissions::from_mode(self.mode(meta)))
                .explain(shown(path))?;
        }
        if self.keep.times {
            let times = Timestamps {
                last_access: timespec(meta.atime),
                last_modification: timespec(meta.mtime),
            };
            rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
                .explain(shown(path))?;
        }
        Ok(())
    }

    fn set_xattrs(&mut self, path: &Path, meta: &Meta) {
        for (name, value) in &meta.xattrs {
            let name = OsStr::from_bytes(name);
            if rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).is_err() {
                self.lost_xattrs += 1;
            }
        }
    }
}

impl Sink for HostSink {
    fn begin_directory(&mut self, path: &[u8], _meta: &Meta) -> Result<(), Failure> {
        let host = self.at(path);
        match host.symlink_metadata() {
            Ok(there) if there.is_dir() || path.is_empty() => Ok(()),
            Ok(_) => Err(Failure::new(
                shown(&host),
                "is in the way of a directory of that name",
            )),
            Err(_) => {
                fs::DirBuilder::new()
                    .mode(0o700)
                    .create(&host)
                    .explain(shown(&host))?;
                self.made.insert(path.to_vec());
                Ok(())
            }
        }
    }

    fn end_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let made = self.made.remove(path);
        let host = self.at(path);
        if made || self.keep.mode {
            self.finish(&host, meta, true)?;
        }
        Ok(())
    }

    fn begin_file(&mut self, path: &[u8], meta: &Meta, _data: &[Segment]) -> Result<(), Failure> {
        let host = self.at(path);
        self.clear(&host)?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&host)
            .explain(shown(&host))?;
        file.set_len(meta.size).explain(shown(&host))?;
        self.file = Some((host, file));
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        match &self.file {
            Some((path, file)) => file.write_all_at(bytes, offset).explain(shown(path)),
            None => Ok(()),
        }
    }

    fn end_file(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        self.file = None;
        self.finish(&self.at(path), meta, true)
    }

    fn symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Result<(), Failure> {
        let host = self.at(path);
        self.clear(&host)?;
        std::os::unix::fs::symlink(OsStr::from_bytes(target), &host).explain(shown(&host))?;
        self.finish(&host, meta, false)
    }

    fn special(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let host = self.at(path);
        self.clear(&host)?;
        let kind = rustix::fs::FileType::from_raw_mode(meta.kind.mode_bits());
        let mode = Mode::from_bits_truncate(0o600);
        rustix::fs::mknodat(CWD, &host, kind, mode, meta.rdev)
            .explain(shown(&host))
            .map_err(|failure| match meta.kind {
                FileKind::CharDevice | FileKind::BlockDevice if !self.root => failure
                    .hint("only root can make device nodes; exporting to a tar file needs no root"),
                _ => failure,
            })?;
        self.finish(&host, meta, true)
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<(), Failure> {
        let host = self.at(path);
        self.clear(&host)?;
        fs::hard_link(self.at(original), &host).explain(shown(&host))
    }
}

fn timespec(time: Time) -> Timespec {
    Timespec {
        tv_sec: time.secs,
        tv_nsec: time.nanos.into(),
    }
}
