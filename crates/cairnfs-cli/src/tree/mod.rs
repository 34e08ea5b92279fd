//! Copying whole trees between the host, volumes and tar archives.
//!
//! A [`Source`] is walked, a [`Sink`] is filled; [`copy`] joins them. Paths are relative to the
//! place where the sink begins, as bytes, without leading or trailing slashes; "" is that place.
//! Trees may be of any depth: nothing recurses. A name that could lead out of a tree never
//! reaches a sink.

pub mod count;
pub mod host;
pub mod host_sink;
pub mod pax;
pub mod tar_in;
mod tar_member;
pub mod tar_out;
pub mod volume_sink;
pub mod volume_source;

use std::collections::{HashMap, HashSet};

use cairnfs::types::{FileKind, Time};

use crate::failure::{Failure, show_bytes};
use crate::output::Progress;

/// Bytes moved at once.
pub const CHUNK: usize = 1 << 20;

/// An extended attribute: its name and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// What is known of a file before its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// What it is.
    pub kind: FileKind,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file.
    pub rdev: u64,
    /// Bytes of a regular file.
    pub size: u64,
    /// Names it has.
    pub nlink: u64,
    /// Device and inode number, the same for all its names.
    pub id: (u64, u64),
    /// Last access.
    pub atime: Time,
    /// Last change.
    pub mtime: Time,
    /// Extended attributes, filled in only where they are kept.
    pub xattrs: Vec<Xattr>,
}

/// A range of a file that holds data; what lies between ranges is holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
}

/// What of a file is kept beside its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// All permission bits, not only those that the umask leaves.
    pub mode: bool,
    /// Owner and group.
    pub owner: bool,
    /// Times.
    pub times: bool,
    /// Extended attributes.
    pub xattrs: bool,
    /// Hard links among the files of one copy.
    pub links: bool,
}

impl Keep {
    /// Nothing but contents and permissions, as cp(1) does.
    pub const PLAIN: Keep = Keep {
        mode: false,
        owner: false,
        times: false,
        xattrs: false,
        links: false,
    };
    /// Everything.
    pub const ALL: Keep = Keep {
        mode: true,
        owner: true,
        times: true,
        xattrs: true,
        links: true,
    };
}

/// A tree that can be read.
pub trait Source {
    /// Something found in it.
    type Node;

    /// Whether one entry leads to each directory. A host may show one at several places.
    const TREE: bool;

    /// Attributes, without extended ones.
    fn meta(&self, node: &Self::Node) -> Result<Meta, Failure>;
    /// Extended attributes.
    fn xattrs(&self, node: &Self::Node) -> Result<Vec<Xattr>, Failure>;
    /// Names in a directory, sorted.
    fn names(&self, node: &Self::Node) -> Result<Vec<Vec<u8>>, Failure>;
    /// An entry of a directory; symbolic links are not followed.
    fn child(&self, node: &Self::Node, name: &[u8]) -> Result<Self::Node, Failure>;
    /// Where a symbolic link points.
    fn target(&self, node: &Self::Node) -> Result<Vec<u8>, Failure>;
    /// The data of a file of `size` bytes, in order.
    fn segments(&self, node: &Self::Node, size: u64) -> Result<Vec<Segment>, Failure>;
    /// Fills `buf` from `offset` as far as the file goes.
    fn read(&self, node: &Self::Node, offset: u64, buf: &mut [u8]) -> Result<usize, Failure>;
}

/// A tree that can be written. Directories come before what is in them.
pub trait Sink {
    /// Makes a directory, or takes the one that is there.
    fn begin_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Nothing more comes into this directory.
    fn end_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Begins a regular file with data in `segments` and holes elsewhere.
    fn begin_file(&mut self, path: &[u8], meta: &Meta, data: &[Segment]) -> Result<(), Failure>;
    /// Data of the file begun last; offsets ascend.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure>;
    /// Ends the file begun last, also if some of its data could not be read.
    fn end_file(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Makes a symbolic link.
    fn symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Makes a FIFO, socket or device.
    fn special(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Gives the file at `original`, of this sink, another name.
    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<(), Failure>;
}

/// How a copy went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files already copied.
    pub hard_links: u64,
    /// FIFOs, sockets and devices.
    pub special: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Things that could not be read, and are missing or short in the copy.
    pub failed: u64,
}

impl Summary {
    /// In words.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} files, {} directories, {} symlinks, {}",
            self.files,
            self.directories,
            self.symlinks,
            crate::size::human(self.bytes)
        );
        if self.failed > 0 {
            text.push_str(&format!("; {} could not be copied", self.failed));
        }
        text
    }
}

/// A directory being walked.
struct Frame<N> {
    node: N,
    meta: Meta,
    path: Vec<u8>,
    names: std::vec::IntoIter<Vec<u8>>,
}

/// One copy: what it keeps, what it has seen.
pub struct Copier<'a> {
    keep: Keep,
    progress: &'a Progress,
    links: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
    /// So far.
    pub summary: Summary,
}

impl<'a> Copier<'a> {
    /// A copy that keeps `keep`.
    pub fn new(keep: Keep, progress: &'a Progress) -> Self {
        Self {
            keep,
            progress,
            links: HashMap::new(),
            buffer: vec![0; CHUNK],
            summary: Summary::default(),
        }
    }

    /// Copies `node` and everything in it to `path`. What cannot be read is told and counted, and
    /// the rest goes on.
    ///
    /// # Errors
    /// The sink's failure, which ends the copy.
    pub fn copy<S: Source>(
        &mut self,
        source: &S,
        node: S::Node,
        sink: &mut dyn Sink,
        path: Vec<u8>,
    ) -> Result<(), Failure> {
        let mut stack: Vec<Frame<S::Node>> = Vec::new();
        stack.extend(self.one(source, node, sink, path)?);
        let mut met: HashSet<_> = stack.iter().map(|top| top.meta.id).collect();
        while let Some(frame) = stack.last_mut() {
            let Some(name) = frame.names.next() else {
                sink.end_directory(&frame.path, &frame.meta)?;
                stack.pop();
                continue;
            };
            let path = join(&frame.path, &name);
            let child = checked_name(&name).and_then(|()| source.child(&frame.node, &name));
            let Some(child) = self.read_or_tell(child) else {
                continue;
            };
            if let Some(below) = self.one(source, child, sink, path)? {
                if stack.iter().any(|above| above.meta.id == below.meta.id) {
                    self.tell(&Failure::new(
                        show_bytes(&below.path),
                        "directory contains itself; skipped",
                    ));
                } else if S::TREE && !met.insert(below.meta.id) {
                    self.tell(&Failure::new(
                        show_bytes(&below.path),
                        "another entry leads to the same directory; skipped",
                    ));
                } else {
                    stack.push(below);
                }
            }
        }
        Ok(())
    }

    /// The same, with its size added to what the progress expects.
    ///
    /// # Errors
    /// As [`Copier::copy`].
    pub fn copy_counted<S: Source>(
        &mut self,
        source: &S,
        node: S::Node,
        sink: &mut dyn Sink,
        path: Vec<u8>,
    ) -> Result<(), Failure> {
        if self.progress.is_shown() {
            self.progress.expect_more(count::bytes(source, &node));
        }
        self.copy(source, node, sink, path)
    }

    /// Copies one file, or begins a directory.
    fn one<S: Source>(
        &mut self,
        source: &S,
        node: S::Node,
        sink: &mut dyn Sink,
        path: Vec<u8>,
    ) -> Result<Option<Frame<S::Node>>, Failure> {
        let Some(mut meta) = self.read_or_tell(source.meta(&node)) else {
            return Ok(None);
        };
        if self.known_link(&meta, sink, &path)? {
            return Ok(None);
        }
        if self.keep.xattrs {
            meta.xattrs = self.read_or_tell(source.xattrs(&node)).unwrap_or_default();
        }
        match meta.kind {
            FileKind::Directory => {
                let Some(names) = self.read_or_tell(source.names(&node)) else {
                    return Ok(None);
                };
                sink.begin_directory(&path, &meta)?;
                self.summary.directories += 1;
                return Ok(Some(Frame {
                    node,
                    meta,
                    path,
                    names: names.into_iter(),
                }));
            }
            FileKind::File => self.file(source, &node, sink, &path, &meta)?,
            FileKind::Symlink => {
                if let Some(target) = self.read_or_tell(source.target(&node)) {
                    sink.symlink(&path, &target, &meta)?;
                    self.summary.symlinks += 1;
                }
            }
            _ => {
                sink.special(&path, &meta)?;
                self.summary.special += 1;
            }
        }
        if self.keep.links && meta.nlink > 1 {
            self.links.insert(meta.id, path);
        }
        Ok(None)
    }

    fn known_link(
        &mut self,
        meta: &Meta,
        sink: &mut dyn Sink,
        path: &[u8],
    ) -> Result<bool, Failure> {
        if !self.keep.links || meta.nlink < 2 || meta.kind == FileKind::Directory {
            return Ok(false);
        }
        let Some(original) = self.links.get(&meta.id) else {
            return Ok(false);
        };
        sink.hard_link(path, original)?;
        self.summary.hard_links += 1;
        Ok(true)
    }

    fn file<S: Source>(
        &mut self,
        source: &S,
        node: &S::Node,
        sink: &mut dyn Sink,
        path: &[u8],
        meta: &Meta,
    ) -> Result<(), Failure> {
        let Some(segments) = self.read_or_tell(source.segments(node, meta.size)) else {
            return Ok(());
        };
        sink.begin_file(path, meta, &segments)?;
        for segment in segments {
            let mut at = segment.start;
            while at < segment.end {
                let want = (segment.end - at).min(CHUNK as u64) as usize;
                let buffer = self.buffer.get_mut(..want).unwrap_or_default();
                let got = source.read(node, at, buffer).and_then(|n| match n {
                    0 => Err(Failure::new(
                        show_bytes(path),
                        "file became shorter while it was read",
                    )),
                    n => Ok(n),
                });
                let got = match got {
                    Ok(n) => n,
                    Err(failure) => {
                        self.tell(&failure);
                        return sink.end_file(path, meta);
                    }
                };
                sink.write(at, self.buffer.get(..got).unwrap_or_default())?;
                self.progress.add(got as u64);
                self.summary.bytes += got as u64;
                at += got as u64;
            }
        }
        self.summary.files += 1;
        sink.end_file(path, meta)
    }

    fn read_or_tell<T>(&mut self, read: Result<T, Failure>) -> Option<T> {
        read.map_err(|failure| self.tell(&failure)).ok()
    }

    fn tell(&mut self, failure: &Failure) {
        self.summary.failed += 1;
        self.progress.note(&failure.to_string());
    }
}

/// `name` in the directory `dir`.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        return name.to_vec();
    }
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    path.push(b'/');
    path.extend_from_slice(name);
    path
}

/// The directory and the name of a relative path.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (
            path.get(..at).unwrap_or_default(),
            path.get(at + 1..).unwrap_or_default(),
        ),
        None => (b"", path),
    }
}

fn checked_name(name: &[u8]) -> Result<(), Failure> {
    let bad = name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|b| *b == b'/' || *b == 0);
    if bad {
        return Err(Failure::new(
            show_bytes(name),
            "a directory holds this impossible name; skipped",
        ));
    }
    Ok(())
}

/// Permissions that new files do not get.
pub fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}
