//! A directory of the host as a sink.
//!
//! The target may be in a directory of another user who swaps entries at any time. So each step
//! is relative to a held descriptor, and attributes are set on the descriptor of an inode that
//! was made here, never on a name. Existing regular files and symbolic links are replaced (or
//! kept, see [`HostSink::replacing`]), never written through; existing directories are filled;
//! any other existing entry is a failure of that entry. Attributes are set last, and permissions
//! last of all, so a file is private until it is complete.
//!
//! Where existing files are replaced, a directory of this user in which they may not make entries is
//! made writable until it is complete. If the copy ends before that, it gets its permissions back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cairnfs_daemon::failure::{Explain, Failure, shown};
use cairnfs_disk::types::FileKind;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::descent::{self, Descent, Id};
use super::pending::{InodeFd, Pending};
use super::{Keep, Meta, Segment, Sink, mode_without, split};

/// The sink for a directory of the host.
pub struct HostSink {
    descent: Descent,
    keep: Keep,
    umask: u32,
    root: bool,
    /// Whether this sink has made the directory itself.
    made_base: bool,
    /// Whether existing files and links are replaced.
    replaces: bool,
    /// Whether existing directories are made writable for the time of the copy.
    lends: bool,
    file: Option<(Pending, File)>,
    /// Existing directories that were made writable, by path, and their permissions before.
    lent: BTreeMap<Vec<u8>, (Id, u32)>,
    /// Directories made here that are not complete yet.
    made: HashSet<Id>,
    /// Directories of another user that have replaced those made here.
    foreign: HashSet<Id>,
    /// Files with several names, by path.
    linked: HashMap<Vec<u8>, Id>,
    lost_xattrs: u64,
}

impl HostSink {
    /// Fills the existing directory `base`, whose own attributes stay as they are.
    ///
    /// # Errors
    /// It does not exist or may not be entered.
    pub fn open(base: &Path, keep: Keep) -> Result<Self, Failure> {
        let fd = descent::open_named(base).explain(shown(base))?;
        Ok(Self::over(fd, base, keep, false))
    }

    /// Fills the directory `base`; makes it if it is missing.
    ///
    /// # Errors
    /// It cannot be made, or is not a directory.
    pub fn make(base: &Path, keep: Keep) -> Result<Self, Failure> {
        let (Some(above), Some(name)) = (base.parent(), base.file_name()) else {
            return Self::open(base, keep);
        };
        let above = descent::open_named(above).explain(shown(base))?;
        match rustix::fs::mkdirat(&above, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Self::open(base, keep),
            Err(e) => return Err(e).explain(shown(base)),
        }
        let (fd, stat) = descent::open_dir(above.as_fd(), name.as_bytes()).explain(shown(base))?;
        let made = stat.st_uid == rustix::process::geteuid().as_raw();
        Ok(Self::over(fd, base, keep, made))
    }

    fn over(fd: OwnedFd, base: &Path, keep: Keep, made_base: bool) -> Self {
        Self {
            descent: Descent::new(fd, base.to_owned()),
            keep,
            umask: super::umask(),
            root: rustix::process::geteuid().is_root(),
            made_base,
            replaces: true,
            lends: false,
            file: None,
            lent: BTreeMap::new(),
            made: HashSet::new(),
            foreign: HashSet::new(),
            linked: HashMap::new(),
            lost_xattrs: 0,
        }
    }

    /// Sets whether existing files and symbolic links are replaced, also in directories that their owner
    /// may not write, or are each a failure.
    #[must_use]
    pub fn replacing(mut self, replaces: bool) -> Self {
        self.replaces = replaces;
        self.lends = replaces && !self.root;
        self
    }

    /// Number of extended attributes that the host refused.
    pub fn lost_xattrs(&self) -> u64 {
        self.lost_xattrs
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

    /// Begins a new entry at `path`, and moves the descent to its directory.
    fn pending(&mut self, path: &[u8]) -> Result<Pending, Failure> {
        let (above, name) = split(path);
        self.descent.go(above)?;
        self.lend(above)?;
        let pending = Pending::new(self.descent.dir()?, name, self.descent.shown(name))?;
        if pending.replaces() && !self.replaces {
            Err(
                Failure::new(pending.shown(), "exists, and was left as it is")
                    .hint("use --force to replace what exists"),
            )
        } else {
            Ok(pending)
        }
    }

    /// Sets the attributes of an inode that was made here.
    fn attribute(&mut self, held: &InodeFd, meta: &Meta, shown: &str) -> Result<(), Failure> {
        if self.keep.owner && self.root {
            held.set_owner(meta).explain(shown)?;
        }
        let mut mode = self.mode(meta);
        if self.keep.xattrs {
            for (name, value) in &meta.xattrs {
                if held.set_xattr(name, value).is_err() {
                    self.lost_xattrs += 1;
                    mode = mode_without(name, value, mode);
                }
            }
        }
        if self.keep.times {
            held.set_times(meta).explain(shown)?;
        }
        if meta.kind != FileKind::Symlink {
            held.set_mode(mode).explain(shown)?;
        }
        Ok(())
    }

    /// Completes an entry without contents: sets the attributes of the inode that `pending` made,
    /// and gives it its final name.
    fn complete(&mut self, pending: &Pending, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let held = pending.held(self.descent.dir()?, meta.kind, meta.rdev);
        let attributed = held.and_then(|held| self.attribute(&held, meta, pending.shown()));
        self.known(pending, path, meta)?;
        attributed.and(pending.publish(self.descent.dir()?))
    }

    /// Records the inode at a path, if it may have further names.
    fn known(&mut self, pending: &Pending, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        if self.keep.links && meta.nlink > 1 {
            let id = pending.id(self.descent.dir()?)?;
            self.linked.insert(path.to_vec(), id);
        }
        Ok(())
    }

    /// Lets this user make entries in the current directory, whose path is `path`, if it is theirs.
    fn lend(&mut self, path: &[u8]) -> Result<(), Failure> {
        const WANTED: u32 = 0o300;
        if !self.lends || self.lent.contains_key(path) {
            return Ok(());
        }
        let dir = self.descent.dir()?;
        let stat = rustix::fs::fstat(dir).explain(self.descent.shown(b""))?;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
        let mode = stat.st_mode & 0o7777;
        if !is_own || mode & WANTED == WANTED {
            return Ok(());
        }
        let held = held(dir).explain(self.descent.shown(b""))?;
        // What cannot be changed is told by what is made in it.
        if held.set_mode(mode | WANTED).is_ok() {
            self.lent.insert(path.to_vec(), (descent::id(&stat), mode));
        }
        Ok(())
    }

    /// Gives the directory at `path` its permissions back.
    fn give_back(&mut self, path: &[u8]) -> Result<(), Failure> {
        let Some((id, mode)) = self.lent.remove(path) else {
            return Ok(());
        };
        self.descent.go(path)?;
        let shown = self.descent.shown(b"");
        let dir = self.descent.dir()?;
        let stat = rustix::fs::fstat(dir).explain(&shown)?;
        if descent::id(&stat) == id {
            held(dir)
                .and_then(|held| held.set_mode(mode))
                .explain(&shown)
        } else {
            // It was moved, and another one has its name.
            Ok(())
        }
    }

    /// Makes the directory `name`. Returns whether it did not exist.
    fn make_directory(&self, name: &[u8]) -> Result<bool, Failure> {
        let made = rustix::fs::mkdirat(self.descent.dir()?, OsStr::from_bytes(name), Mode::RWXU);
        match made {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(e) => Err(e).explain(self.descent.shown(name)),
        }
    }

    fn enter_directory(&mut self, name: &[u8], made: bool) -> Result<(), Failure> {
        let shown = self.descent.shown(name);
        let (fd, stat) = match descent::open_dir(self.descent.dir()?, name) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(
                    Failure::new(shown, "is in the way of a directory of that name")
                        .hint("remove it first, or copy to another place"),
                );
            }
            other => other.explain(shown)?,
        };
        let id = descent::id(&stat);
        if made && stat.st_uid == rustix::process::geteuid().as_raw() {
            self.made.insert(id);
        } else if made {
            self.foreign.insert(id);
        }
        self.descent.enter(name, fd, id);
        Ok(())
    }

    fn make_special(&self, pending: &Pending, meta: &Meta) -> Result<(), Failure> {
        let kind = FileType::from_raw_mode(meta.kind.mode_bits());
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(
            self.descent.dir()?,
            pending.made_as(),
            kind,
            mode,
            meta.rdev,
        )
        .explain(pending.shown())
        .map_err(|failure| match meta.kind {
            FileKind::CharDevice | FileKind::BlockDevice if !self.root => failure
                .hint("only root can make device nodes; exporting to a tar file needs no root"),
            _ => failure,
        })
    }
}

impl Drop for HostSink {
    /// The copy may have ended before its directories were complete.
    fn drop(&mut self) {
        // Those below come first: a directory may be reached through another one that is lent.
        while let Some(path) = self.lent.keys().next_back().cloned() {
            // Nothing is left to be done about one that is gone.
            let _ = self.give_back(&path);
        }
    }
}

/// A directory whose attributes are set.
fn held(dir: BorrowedFd<'_>) -> rustix::io::Result<InodeFd> {
    let is_located = rustix::fs::fcntl_getfl(dir)?.contains(OFlags::PATH);
    let dir = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
    Ok(if is_located {
        InodeFd::Located(dir)
    } else {
        InodeFd::Open(dir)
    })
}

impl Sink for HostSink {
    fn begin_directory(&mut self, path: &[u8], _meta: &Meta) -> Result<(), Failure> {
        if path.is_empty() {
            return self.descent.go(b"");
        }
        let (above, name) = split(path);
        self.descent.go(above)?;
        self.lend(above)?;
        let made = self.make_directory(name)?;
        self.enter_directory(name, made)
    }

    fn end_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        self.descent.go(path)?;
        let shown = self.descent.shown(b"");
        let made = match self.descent.id() {
            None if !self.made_base => return self.give_back(path),
            None => true,
            Some(id) if self.foreign.remove(&id) => {
                return Err(Failure::new(
                    shown,
                    "belongs to another user as soon as it was made; its owner and mode were left alone",
                )
                .hint("copy again when no other user changes the destination"));
            }
            Some(id) => self.made.remove(&id),
        };
        if !made && !self.keep.mode {
            return Ok(());
        }
        let held = held(self.descent.dir()?).explain(&shown)?;
        self.attribute(&held, meta, &shown)?;
        // It has its final permissions.
        self.lent.remove(path);
        Ok(())
    }

    fn begin_file(&mut self, path: &[u8], meta: &Meta, _data: &[Segment]) -> Result<(), Failure> {
        let pending = self.pending(path)?;
        let dir = self.descent.dir()?;
        let file = pending.file(dir, 0o600)?;
        if let Err(failure) = file.set_len(meta.size).explain(pending.shown()) {
            pending.remove(dir);
            return Err(failure);
        }
        self.file = Some((pending, file));
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        match &self.file {
            Some((pending, file)) => file.write_all_at(bytes, offset).explain(pending.shown()),
            None => Ok(()),
        }
    }

    fn replaced(&self) -> Option<String> {
        let (pending, _) = self.file.as_ref()?;
        pending.replaces().then(|| pending.shown().to_owned())
    }

    fn end_file(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let Some((pending, file)) = self.file.take() else {
            return Ok(());
        };
        self.descent.go(split(path).0)?;
        let held = InodeFd::Open(file.into());
        let attributed = self.attribute(&held, meta, pending.shown());
        self.known(&pending, path, meta)?;
        pending.publish(self.descent.dir()?).and(attributed)
    }

    fn abandon_file(&mut self) {
        if let Some((pending, _)) = self.file.take()
            && let Ok(dir) = self.descent.dir()
        {
            pending.remove(dir);
        }
    }

    fn symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Result<(), Failure> {
        let pending = self.pending(path)?;
        let target = OsStr::from_bytes(target);
        rustix::fs::symlinkat(target, self.descent.dir()?, pending.made_as())
            .explain(pending.shown())?;
        self.complete(&pending, path, meta)
    }

    fn special(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let pending = self.pending(path)?;
        self.make_special(&pending, meta)?;
        self.complete(&pending, path, meta)
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<(), Failure> {
        let (above, name) = split(original);
        self.descent.go(above)?;
        let from = self.descent.dir()?.try_clone_to_owned();
        let from = from.explain(self.descent.shown(name))?;
        let pending = self.pending(path)?;
        let dir = self.descent.dir()?;
        let name = OsStr::from_bytes(name);
        rustix::fs::linkat(from, name, dir, pending.made_as(), AtFlags::empty())
            .explain(pending.shown())?;
        let expected = self.linked.get(original);
        if expected.is_some_and(|id| pending.id(dir).ok() != Some(*id)) {
            pending.remove(dir);
            return Err(Failure::new(
                pending.shown(),
                "the file that it is another name of was replaced during the copy",
            )
            .hint("copy again when no other user changes the destination"));
        }
        pending.publish(dir)
    }
}

#[cfg(test)]
#[path = "tests/host.rs"]
mod tests;
