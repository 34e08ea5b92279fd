//! A directory of a volume as a sink.
//!
//! Paths are walked from that directory and never through symbolic links, so nothing is written
//! outside of it. Missing directories on the way are made. Existing files and links are replaced;
//! existing directories are filled.

use std::collections::HashSet;

use cairnfs::Error;
use cairnfs::types::{FileKind, KillPrivileges, SetAttr, SetTime, XattrMode};

use super::{Keep, Meta, Segment, Sink, join, split};
use crate::failure::{Explain, Failure};
use crate::volume::{Node, Volume, caller, components};

/// A directory of a volume that is filled.
pub struct VolumeSink {
    volume: Volume,
    base: Node,
    base_path: Vec<u8>,
    keep: Keep,
    umask: u32,
    /// The directories from the base to the last parent used.
    parents: Vec<(Vec<u8>, Node)>,
    made: HashSet<Vec<u8>>,
    file: Option<Node>,
    lost_xattrs: u64,
}

impl VolumeSink {
    /// The directory `base` of `volume`, found at `base_path`.
    pub fn new(volume: Volume, base: Node, base_path: Vec<u8>, keep: Keep) -> Self {
        Self {
            volume,
            base,
            base_path,
            keep,
            umask: super::umask(),
            parents: Vec::new(),
            made: HashSet::new(),
            file: None,
            lost_xattrs: 0,
        }
    }

    /// Extended attributes that the volume would not take.
    pub fn lost_xattrs(&self) -> u64 {
        self.lost_xattrs
    }

    fn shown(&self, path: &[u8]) -> String {
        self.volume.shown(&join(&self.base_path, path))
    }

    /// The directory at `path`, made if it is missing.
    fn directory(&mut self, path: &[u8]) -> Result<u64, Failure> {
        let names = components(path);
        let shared = self
            .parents
            .iter()
            .zip(&names)
            .take_while(|((have, _), want)| have == *want)
            .count();
        self.parents.truncate(shared);
        for name in names.into_iter().skip(shared) {
            let dir = self.parents.last().map_or(&self.base, |(_, node)| node);
            let found = self
                .volume
                .lookup_opt(dir, &name)
                .and_then(|found| match found {
                    Some(node) if node.is_dir() => Ok(node),
                    Some(_) => Err(Error::NotDirectory),
                    None => self
                        .volume
                        .fs()
                        .mkdir(dir.ino(), &name, 0o777 & !self.umask, caller())
                        .map(|attr| self.volume.hold(attr)),
                });
            match found {
                Ok(node) => self.parents.push((name, node)),
                Err(e) => return Err(e).explain(self.shown(path)),
            }
        }
        Ok(self
            .parents
            .last()
            .map_or(self.base.ino(), |(_, node)| node.ino()))
    }

    /// The directory and the name for a new file at `path`, with nothing of that name in it.
    fn cleared<'p>(&mut self, path: &'p [u8]) -> Result<(u64, &'p [u8]), Failure> {
        let (above, name) = split(path);
        let dir = self.directory(above)?;
        let there = self
            .volume
            .fs()
            .lookup(dir, name)
            .map(|a| self.volume.hold(a));
        match there {
            Err(Error::NotFound) => {}
            Err(e) => return Err(e).explain(self.shown(path)),
            Ok(node) if node.is_dir() => {
                return Err(Failure::new(
                    self.shown(path),
                    "is a directory; a file cannot replace it",
                ));
            }
            Ok(_) => self
                .volume
                .fs()
                .unlink(dir, name)
                .explain(self.shown(path))?,
        }
        Ok((dir, name))
    }

    fn make(&mut self, path: &[u8], meta: &Meta) -> Result<Node, Failure> {
        let (dir, name) = self.cleared(path)?;
        let mode = meta.kind.mode_bits() | 0o600;
        self.volume
            .fs()
            .mknod(dir, name, mode, meta.rdev, caller())
            .map(|attr| self.volume.hold(attr))
            .explain(self.shown(path))
    }

    fn finish(&mut self, ino: u64, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        if self.keep.xattrs {
            self.set_xattrs(ino, path, meta)?;
        }
        // A set-user-id bit must not pass to an owner who did not set it.
        let foreign = !self.keep.owner && meta.uid != caller().uid;
        let mode = if self.keep.mode && foreign {
            meta.mode & 0o1777
        } else if self.keep.mode {
            meta.mode & 0o7777
        } else {
            meta.mode & 0o777 & !self.umask
        };
        let set = SetAttr {
            mode: (meta.kind != FileKind::Symlink).then_some(mode),
            uid: self.keep.owner.then_some(meta.uid),
            gid: self.keep.owner.then_some(meta.gid),
            size: (meta.kind == FileKind::File).then_some(meta.size),
            atime: self.keep.times.then_some(SetTime::At(meta.atime)),
            mtime: self.keep.times.then_some(SetTime::At(meta.mtime)),
            ctime: None,
            kill_privileges: KillPrivileges::No,
        };
        self.volume
            .fs()
            .setattr(ino, &set)
            .map(drop)
            .explain(self.shown(path))
    }

    fn set_xattrs(&mut self, ino: u64, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        for (name, value) in &meta.xattrs {
            match self.volume.fs().setxattr(ino, name, value, XattrMode::Set) {
                Ok(()) => {}
                Err(Error::Unsupported(_) | Error::NotPermitted(_) | Error::Invalid(_)) => {
                    self.lost_xattrs += 1;
                }
                Err(e) => return Err(e).explain(self.shown(path)),
            }
        }
        Ok(())
    }
}

impl Sink for VolumeSink {
    fn begin_directory(&mut self, path: &[u8], _meta: &Meta) -> Result<(), Failure> {
        if path.is_empty() {
            return Ok(());
        }
        let (above, name) = split(path);
        let dir = self.directory(above)?;
        match self.volume.fs().mkdir(dir, name, 0o700, caller()) {
            Ok(attr) => {
                self.made.insert(path.to_vec());
                let node = self.volume.hold(attr);
                self.parents.push((name.to_vec(), node));
                Ok(())
            }
            // The walk tells whether what is there is a directory.
            Err(Error::Exists) => self.directory(path).map(drop),
            Err(e) => Err(e).explain(self.shown(path)),
        }
    }

    fn end_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let made = self.made.remove(path);
        if !made && !self.keep.mode {
            return Ok(());
        }
        let ino = self.directory(path)?;
        self.finish(ino, path, meta)
    }

    fn begin_file(&mut self, path: &[u8], meta: &Meta, _data: &[Segment]) -> Result<(), Failure> {
        self.file = Some(self.make(path, meta)?);
        Ok(())
    }

    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Failure> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        while !bytes.is_empty() {
            let done = self
                .volume
                .fs()
                .write(file.ino(), offset, bytes, false)
                .and_then(|n| match n {
                    0 => Err(Error::NoSpace),
                    n => Ok(n),
                })
                .explain(self.volume.shown(b""))?;
            offset += done as u64;
            bytes = bytes.get(done..).unwrap_or_default();
        }
        Ok(())
    }

    fn end_file(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        match self.file.take() {
            Some(node) => self.finish(node.ino(), path, meta),
            None => Ok(()),
        }
    }

    fn symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Result<(), Failure> {
        let (dir, name) = self.cleared(path)?;
        let node = self
            .volume
            .fs()
            .symlink(dir, name, target, caller())
            .map(|attr| self.volume.hold(attr))
            .explain(self.shown(path))?;
        self.finish(node.ino(), path, meta)
    }

    fn special(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let node = self.make(path, meta)?;
        self.finish(node.ino(), path, meta)
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<(), Failure> {
        if components(path) == components(original) {
            return Ok(());
        }
        let (above, name) = split(original);
        let dir = self.directory(above)?;
        let file = self
            .volume
            .fs()
            .lookup(dir, name)
            .map(|attr| self.volume.hold(attr))
            .explain(self.shown(original))?;
        let (dir, name) = self.cleared(path)?;
        self.volume
            .fs()
            .link(file.ino(), dir, name)
            .map(|attr| drop(self.volume.hold(attr)))
            .explain(self.shown(path))
    }
}
