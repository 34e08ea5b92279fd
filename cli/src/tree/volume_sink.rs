//! A directory of a volume as a sink.
//!
//! Paths are walked from that directory and never through symbolic links, so nothing is written
//! outside of it. Missing directories on the way are made. Existing files and links are replaced
//! when the new entry is complete; existing directories are filled. Members of an archive replace what is
//! of another kind, too, as GNU tar does: an empty directory, and whatever a directory has the name of.

use std::collections::{HashMap, HashSet};
use std::fmt;

use cairnfs::Error;
use cairnfs_daemon::failure::{Explain, Failure};
use cairnfs_disk::types::{FileKind, RenameMode, SetAttr, SetTime, Time, XattrMode};

use super::{
    Keep, Meta, Segment, Sink, join, mode_without, push_name, shared, split, temporary_name,
};
use crate::volume_by_path::{Node, Volume, caller};

/// The sink for a directory of a volume.
pub struct VolumeSink {
    volume: Volume,
    base: Node,
    base_path: Vec<u8>,
    keep: Keep,
    umask: u32,
    /// Whether directories replace other entries, and other entries empty directories.
    replaces_kinds: bool,
    /// The last parent directory used, and the directories from the base to it, each with the
    /// length of its path.
    parent: Vec<u8>,
    parents: Vec<(usize, Node)>,
    made: HashSet<u64>,
    /// Times of directories in which more entries may follow, by inode number.
    times: HashMap<u64, (Time, Time)>,
    file: Option<Pending>,
    lost_xattrs: u64,
}

/// The directory and the names of an entry that is being made.
struct NewEntry {
    /// Inode number of its directory.
    dir: u64,
    name: Vec<u8>,
    /// The name until the entry is complete, if it replaces another one.
    temporary: Option<Vec<u8>>,
    /// The inode number of the directory that it replaces.
    over: Option<u64>,
}

impl NewEntry {
    fn made_as(&self) -> &[u8] {
        self.temporary.as_ref().unwrap_or(&self.name)
    }
}

/// An entry that is being made.
struct Pending {
    entry: NewEntry,
    node: Node,
}

impl VolumeSink {
    /// Fills the directory `base` of `volume`, found at `base_path`.
    pub fn new(volume: Volume, base: Node, base_path: Vec<u8>, keep: Keep) -> Self {
        Self {
            volume,
            base,
            base_path,
            keep,
            umask: super::umask(),
            replaces_kinds: false,
            parent: Vec::new(),
            parents: Vec::new(),
            made: HashSet::new(),
            times: HashMap::new(),
            file: None,
            lost_xattrs: 0,
        }
    }

    /// Sets that a later entry replaces an earlier one of another kind.
    #[must_use]
    pub fn replacing_kinds(mut self) -> Self {
        self.replaces_kinds = true;
        self
    }

    /// Number of extended attributes that the volume refused.
    pub fn lost_xattrs(&self) -> u64 {
        self.lost_xattrs
    }

    /// How a path is shown; formatted only when needed.
    fn shown<'a>(&'a self, path: &'a [u8]) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| f.write_str(&self.volume.shown(&join(&self.base_path, path))))
    }

    /// The directory at `path`; made if it is missing.
    fn directory(&mut self, path: &[u8]) -> Result<u64, Failure> {
        self.walk(path, true)
    }

    /// The directory at `path`; made if it is missing and `makes`.
    fn walk(&mut self, path: &[u8], makes: bool) -> Result<u64, Failure> {
        let kept = shared(&self.parent, path);
        while self.parents.last().is_some_and(|(end, _)| *end > kept) {
            self.parents.pop();
        }
        let kept = self.parents.last().map_or(0, |(end, _)| *end);
        self.parent.truncate(kept);
        let rest = path.get(kept..).unwrap_or_default();
        for name in rest.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            let dir = self.parents.last().map_or(&self.base, |(_, node)| node);
            let found = self
                .volume
                .lookup_opt(dir, name)
                .and_then(|found| match found {
                    Some(node) if node.is_dir() => Ok(node),
                    Some(_) => Err(Error::NotDirectory),
                    None if !makes => Err(Error::NotFound),
                    None => self
                        .volume
                        .fs()
                        .mkdir(dir.ino(), name, 0o777 & !self.umask, caller())
                        .map(|attr| self.volume.hold(attr)),
                });
            match found {
                Ok(node) => self.entered(name, node),
                Err(e) => return Err(e).explain(self.shown(path)),
            }
        }
        Ok(self
            .parents
            .last()
            .map_or(self.base.ino(), |(_, node)| node.ino()))
    }

    fn entered(&mut self, name: &[u8], node: Node) {
        push_name(&mut self.parent, name);
        self.parents.push((self.parent.len(), node));
    }

    /// Chooses the names for a new entry at `path`.
    fn new_entry(&mut self, path: &[u8]) -> Result<NewEntry, Failure> {
        let (above, name) = split(path);
        let dir = self.directory(above)?;
        let there = self.volume.fs().lookup(dir, name);
        let there = there.map(|attr| self.volume.hold(attr));
        let (temporary, over) = match there {
            Err(Error::NotFound) => (None, None),
            Err(e) => return Err(e).explain(self.shown(path)),
            Ok(node) if node.is_dir() && self.replaces_kinds => {
                (Some(temporary_name()), Some(node.ino()))
            }
            Ok(node) if node.is_dir() => {
                let why = "is a directory; a file cannot replace it";
                return Err(self.in_the_way(path, why));
            }
            Ok(_) => (Some(temporary_name()), None),
        };
        Ok(NewEntry {
            dir,
            name: name.to_vec(),
            temporary,
            over,
        })
    }

    fn in_the_way(&self, path: &[u8], why: &str) -> Failure {
        Failure::new(self.shown(path), why)
            .hint("remove it first (cairnfs rm -r), or copy to another place")
    }

    /// Removes the empty directory that an entry replaces.
    fn make_room(&mut self, entry: &NewEntry, path: &[u8]) -> Result<(), Failure> {
        let Some(ino) = entry.over else {
            return Ok(());
        };
        match self.volume.fs().rmdir(entry.dir, &entry.name) {
            Ok(()) => {
                // Its number may become that of another inode.
                self.times.remove(&ino);
                Ok(())
            }
            Err(Error::NotEmpty) => {
                let why = "is a directory with entries; a file cannot replace it";
                Err(self.in_the_way(path, why))
            }
            Err(e) => Err(e).explain(self.shown(path)),
        }
    }

    fn make(&mut self, path: &[u8], meta: &Meta) -> Result<Pending, Failure> {
        let entry = self.new_entry(path)?;
        let mode = meta.kind.mode_bits() | 0o600;
        let made = self
            .volume
            .fs()
            .mknod(entry.dir, entry.made_as(), mode, meta.rdev, caller());
        let node = made.map(|attr| self.volume.hold(attr));
        let node = node.explain(self.shown(path))?;
        Ok(Pending { entry, node })
    }

    /// Sets the attributes of a new entry and renames it to its final name; removes it on
    /// failure.
    fn complete(&mut self, pending: Pending, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let attributed = self.attribute(pending.node.ino(), path, meta);
        if attributed.is_err() {
            self.remove(&pending.entry);
            return attributed;
        }
        self.publish(&pending.entry, path)
    }

    /// Renames a new entry to its final name; removes it on failure.
    fn publish(&mut self, entry: &NewEntry, path: &[u8]) -> Result<(), Failure> {
        let Some(temporary) = &entry.temporary else {
            return Ok(());
        };
        let renamed = self.make_room(entry, path).and_then(|()| {
            let (dir, fs) = (entry.dir, self.volume.fs());
            let renamed = fs.rename(dir, temporary, dir, &entry.name, RenameMode::Replace);
            renamed.explain(self.shown(path))
        });
        if renamed.is_err() {
            self.remove(entry);
        }
        renamed
    }

    /// Removes an incomplete entry. An error is ignored: it means that the volume has failed.
    fn remove(&self, entry: &NewEntry) {
        let _ = self.volume.fs().unlink(entry.dir, entry.made_as());
    }

    fn attribute(&mut self, ino: u64, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        // A set-user-id bit must not pass to an owner who did not set it.
        let foreign = !self.keep.owner && meta.uid != caller().uid;
        let mode = if self.keep.mode && foreign {
            meta.mode & 0o1777
        } else if self.keep.mode {
            meta.mode & 0o7777
        } else {
            meta.mode & 0o777 & !self.umask
        };
        let mode = if self.keep.xattrs {
            self.set_xattrs(ino, path, meta, mode)?
        } else {
            mode
        };
        let set = SetAttr {
            mode: (meta.kind != FileKind::Symlink).then_some(mode),
            uid: self.keep.owner.then_some(meta.uid),
            gid: self.keep.owner.then_some(meta.gid),
            size: (meta.kind == FileKind::File).then_some(meta.size),
            atime: self.keep.times.then_some(SetTime::At(meta.atime)),
            mtime: self.keep.times.then_some(SetTime::At(meta.mtime)),
            ..SetAttr::default()
        };
        self.volume
            .fs()
            .setattr(ino, &set)
            .map(drop)
            .explain(self.shown(path))
    }

    /// Sets extended attributes. Returns the part of `mode` to set with those that are kept.
    fn set_xattrs(
        &mut self,
        ino: u64,
        path: &[u8],
        meta: &Meta,
        mut mode: u32,
    ) -> Result<u32, Failure> {
        for (name, value) in &meta.xattrs {
            match self.volume.fs().setxattr(ino, name, value, XattrMode::Set) {
                Ok(()) => {}
                Err(Error::Unsupported(_) | Error::NotPermitted(_) | Error::Invalid(_)) => {
                    self.lost_xattrs += 1;
                    mode = mode_without(name, value, mode);
                }
                Err(e) => return Err(e).explain(self.shown(path)),
            }
        }
        Ok(mode)
    }
}

impl Sink for VolumeSink {
    fn begin_directory(&mut self, path: &[u8], _meta: &Meta) -> Result<(), Failure> {
        if path.is_empty() {
            return Ok(());
        }
        let (above, name) = split(path);
        let dir = self.directory(above)?;
        let make = || self.volume.fs().mkdir(dir, name, 0o700, caller());
        let made = match make() {
            Err(Error::Exists) if self.replaces_kinds => match self.volume.fs().unlink(dir, name) {
                Ok(()) => make(),
                Err(Error::IsDirectory) => Err(Error::Exists),
                Err(e) => Err(e),
            },
            made => made,
        };
        match made {
            Ok(attr) => {
                self.made.insert(attr.ino);
                let node = self.volume.hold(attr);
                self.entered(name, node);
                Ok(())
            }
            // The walk checks that the existing entry is a directory.
            Err(Error::Exists) => self.directory(path).map(drop),
            Err(e) => Err(e).explain(self.shown(path)),
        }
    }

    fn end_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let ino = self.directory(path)?;
        if self.made.remove(&ino) || self.keep.mode {
            self.attribute(ino, path, meta)?;
        }
        Ok(())
    }

    fn keep_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        self.end_directory(path, meta)?;
        if self.keep.times {
            let ino = self.directory(path)?;
            self.times.insert(ino, (meta.atime, meta.mtime));
        }
        Ok(())
    }

    fn begin_file(&mut self, path: &[u8], meta: &Meta, _data: &[Segment]) -> Result<(), Failure> {
        self.file = Some(self.make(path, meta)?);
        Ok(())
    }

    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Failure> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let path = || join(&self.parent, &file.entry.name);
        while !bytes.is_empty() {
            let done = self
                .volume
                .fs()
                .write(file.node.ino(), offset, bytes, false)
                .and_then(|n| match n {
                    0 => Err(Error::NoSpace),
                    n => Ok(n),
                })
                .explain(self.shown(&path()))?;
            offset += done as u64;
            bytes = bytes.get(done..).unwrap_or_default();
        }
        Ok(())
    }

    fn replaced(&self) -> Option<String> {
        let entry = &self.file.as_ref()?.entry;
        // An empty directory has nothing that could be lost.
        let is_file = entry.temporary.is_some() && entry.over.is_none();
        is_file.then(|| self.shown(&join(&self.parent, &entry.name)).to_string())
    }

    fn end_file(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        match self.file.take() {
            Some(pending) => self.complete(pending, path, meta),
            None => Ok(()),
        }
    }

    fn abandon_file(&mut self) {
        if let Some(pending) = self.file.take() {
            self.remove(&pending.entry);
        }
    }

    fn symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Result<(), Failure> {
        let entry = self.new_entry(path)?;
        let fs = self.volume.fs();
        let made = fs.symlink(entry.dir, entry.made_as(), target, caller());
        let node = made.map(|attr| self.volume.hold(attr));
        let node = node.explain(self.shown(path))?;
        self.complete(Pending { entry, node }, path, meta)
    }

    fn special(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let pending = self.make(path, meta)?;
        self.complete(pending, path, meta)
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<(), Failure> {
        let (above, name) = split(original);
        let dir = self.walk(above, false)?;
        let file = self
            .volume
            .fs()
            .lookup(dir, name)
            .map(|attr| self.volume.hold(attr))
            .explain(self.shown(original))?;
        let entry = self.new_entry(path)?;
        let fs = self.volume.fs();
        let there = fs.lookup(entry.dir, &entry.name);
        let there = there.map(|attr| self.volume.hold(attr));
        // A rename between two names of one inode would leave both.
        if there.is_ok_and(|node| node.ino() == file.ino()) {
            return Ok(());
        }
        fs.link(file.ino(), entry.dir, entry.made_as())
            .map(|attr| drop(self.volume.hold(attr)))
            .explain(self.shown(path))?;
        self.publish(&entry, path)
    }

    fn finish(&mut self) -> Result<(), Failure> {
        for (ino, (atime, mtime)) in std::mem::take(&mut self.times) {
            let set = SetAttr {
                atime: Some(SetTime::At(atime)),
                mtime: Some(SetTime::At(mtime)),
                ..SetAttr::default()
            };
            let done = self.volume.fs().setattr(ino, &set).map(drop);
            done.explain(self.volume.shown(&self.base_path))?;
        }
        Ok(())
    }
}
