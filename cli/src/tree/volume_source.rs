//! A volume as a source.

use std::fmt;
use std::rc::Rc;

use cairnfs::Error;
use cairnfs_daemon::failure::{Explain, Failure};
use cairnfs_disk::types::{FileKind, SeekTo};

use super::{Listing, Meta, Segment, Segments, Source, Xattr, push_name};
use crate::volume_by_path::{Node, Volume, components};

/// The source for a file or tree of an open volume.
pub struct VolumeSource {
    volume: Volume,
    id: u64,
    start: Rc<Node>,
    current: Rc<Node>,
    /// The current directory and its ancestors, each with the length of its path.
    directories: Vec<(Rc<Node>, usize)>,
    /// Path of the current entry from the root.
    path: Vec<u8>,
    start_path: Vec<u8>,
}

impl VolumeSource {
    /// Begins at `node` of `volume`, found at `path` from the root. `id` distinguishes its inodes
    /// from those of other sources of one copy.
    pub fn new(volume: Volume, id: u64, node: Node, path: Vec<u8>) -> Self {
        let start = Rc::new(node);
        let path = components(&path).join(&b'/');
        Self {
            volume,
            id,
            current: Rc::clone(&start),
            start,
            directories: Vec::new(),
            path: path.clone(),
            start_path: path,
        }
    }

    /// How the current entry is shown; formatted only when needed.
    fn what(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| f.write_str(&self.volume.shown(&self.path)))
    }

    fn ino(&self) -> u64 {
        self.current.ino()
    }

    fn seek(&self, from: u64, to: SeekTo) -> Result<Option<u64>, Failure> {
        match self.volume.fs().seek(self.ino(), from, to) {
            Ok(at) => Ok(Some(at)),
            Err(Error::NoSuchOffset) => Ok(None),
            Err(e) => Err(e).explain(self.what()),
        }
    }

    /// The next data range at or after `at`.
    fn next_data(&self, at: u64, size: u64) -> Result<Option<Segment>, Failure> {
        let Some(start) = self.seek(at, SeekTo::Data)? else {
            return Ok(None);
        };
        let end = self.seek(start, SeekTo::Hole)?.unwrap_or(size).min(size);
        Ok((start >= at && end > start).then_some(Segment { start, end }))
    }

    fn meta(&self) -> Meta {
        let a = &self.current.attr;
        Meta {
            kind: a.kind,
            mode: a.mode & 0o7777,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev,
            size: if a.kind == FileKind::File { a.size } else { 0 },
            nlink: a.nlink.into(),
            id: (self.id, a.ino),
            atime: a.atime,
            mtime: a.mtime,
            xattrs: Vec::new(),
        }
    }
}

impl Source for VolumeSource {
    const TREE: bool = true;

    fn start(&mut self) -> Result<Meta, Failure> {
        self.directories.clear();
        self.current = Rc::clone(&self.start);
        self.path.clone_from(&self.start_path);
        Ok(self.meta())
    }

    fn find(&mut self, name: &[u8]) -> Result<Meta, Failure> {
        let Some((directory, end)) = self.directories.last() else {
            return Err(Failure::new(self.shown(), "is not a directory"));
        };
        self.path.truncate(*end);
        push_name(&mut self.path, name);
        let found = self.volume.lookup(directory, name);
        self.current = Rc::new(found.explain(self.what())?);
        Ok(self.meta())
    }

    fn xattrs(&mut self) -> Result<Vec<Xattr>, Failure> {
        let fs = self.volume.fs();
        let ino = self.ino();
        let what = || fmt::from_fn(|f| write!(f, "{}: extended attributes", self.what()));
        let names = fs.listxattr(ino).explain(what())?;
        let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
        names
            .map(|name| {
                let value = fs.getxattr(ino, name).explain(what())?;
                Ok((name.to_vec(), value))
            })
            .collect()
    }

    fn target(&mut self) -> Result<Vec<u8>, Failure> {
        let target = self.volume.fs().readlink(self.ino());
        target.explain(self.what())
    }

    fn segments(&mut self, size: u64) -> Result<Segments, Failure> {
        let mut found = Vec::new();
        let mut at = 0;
        let mut unknown = None;
        while at < size {
            match self.next_data(at, size) {
                Ok(Some(segment)) => {
                    found.push(segment);
                    at = segment.end;
                }
                Ok(None) => break,
                Err(failure) => {
                    unknown = Some((at, failure));
                    break;
                }
            }
        }
        Ok(Segments { found, unknown })
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize, Failure> {
        let read = self.volume.fs().read(self.ino(), offset, buf);
        read.explain(self.what())
    }

    fn enter(&mut self) -> Result<Listing, Failure> {
        let (names, lost) = self.volume.names_found(self.ino());
        let lost = lost.and_then(|e| Err::<(), _>(e).explain(self.what()).err());
        self.directories
            .push((Rc::clone(&self.current), self.path.len()));
        Ok(Listing { names, lost })
    }

    fn leave(&mut self) {
        if let Some((directory, end)) = self.directories.pop() {
            self.current = directory;
            self.path.truncate(end);
        }
    }

    fn shown(&self) -> String {
        self.volume.shown(&self.path)
    }
}
