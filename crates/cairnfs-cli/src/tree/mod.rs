//! Copying whole trees between the host, volumes and tar archives.
//!
//! A [`Source`] is walked, a [`Sink`] is filled; [`Copier`] joins them. Paths are relative to the
//! place where the sink begins, as bytes, without leading or trailing slashes; "" is that place.
//! Trees may be of any depth: nothing recurses, and both ends go from a directory to the next one
//! by name instead of resolving whole paths. A name that could lead out of a tree never reaches a
//! sink. One entry that fails is told and counted, and the copy goes on.

mod copier;
pub mod count;
pub mod descent;
pub mod host;
pub mod host_sink;
pub mod packed;
pub mod pax;
pub mod pending;
pub mod stream_sink;
pub mod tar_in;
mod tar_member;
pub mod tar_out;
pub mod typed;
pub mod volume_sink;
pub mod volume_source;

use cairnfs::types::{FileKind, Time};

use crate::failure::Failure;

pub use copier::Copier;

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

/// The ranges of a file that hold data, as far as they could be found.
pub struct Segments {
    /// In order.
    pub found: Vec<Segment>,
    /// From where on nothing is known, and why.
    pub unknown: Option<(u64, Failure)>,
}

/// The names in a directory, as far as they could be read.
pub struct Listing {
    /// Sorted.
    pub names: Vec<Vec<u8>>,
    /// Why names may be missing.
    pub lost: Option<Failure>,
}

/// A tree that can be read: a cursor with a current directory and a current entry.
pub trait Source {
    /// Whether one entry leads to each directory. A host may show one at several places.
    const TREE: bool;

    /// Goes back to where the walk begins, which becomes the current entry.
    fn start(&mut self) -> Result<Meta, Failure>;
    /// An entry of the current directory, which becomes the current entry; symbolic links are not
    /// followed. Attributes, without extended ones.
    fn find(&mut self, name: &[u8]) -> Result<Meta, Failure>;
    /// Extended attributes of the current entry.
    fn xattrs(&mut self) -> Result<Vec<Xattr>, Failure>;
    /// Where the current entry points, a symbolic link.
    fn target(&mut self) -> Result<Vec<u8>, Failure>;
    /// The data of the current entry, a file of `size` bytes.
    fn segments(&mut self, size: u64) -> Result<Segments, Failure>;
    /// Fills `buf` from `offset` as far as the current entry goes.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize, Failure>;
    /// Makes the current entry, a directory, the current directory.
    fn enter(&mut self) -> Result<Listing, Failure>;
    /// Goes back to the directory above.
    fn leave(&mut self);
    /// How the current entry is shown in messages.
    fn shown(&self) -> String;
}

/// A tree that can be written. Directories come before what is in them. A failure concerns the
/// entry alone unless it [is fatal](Failure::is_fatal). Nothing is left of an entry that failed, or
/// its contents are whole and it is private to the caller.
pub trait Sink {
    /// Makes a directory, or takes the one that is there.
    fn begin_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Nothing more comes into this directory.
    fn end_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Sets a directory's attributes while more may come into it; [`Sink::finish`] sets its times
    /// again.
    fn keep_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        self.end_directory(path, meta)
    }
    /// Begins a regular file with data in `segments` and holes elsewhere.
    fn begin_file(&mut self, path: &[u8], meta: &Meta, data: &[Segment]) -> Result<(), Failure>;
    /// Data of the file begun last; offsets ascend.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure>;
    /// Ends the file begun last, also if some of its data could not be read.
    fn end_file(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Removes the file begun last.
    fn abandon_file(&mut self);
    /// Makes a symbolic link.
    fn symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Makes a FIFO, socket or device.
    fn special(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Gives the file at `original`, of this sink, another name.
    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<(), Failure>;
    /// Nothing more comes.
    fn finish(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// A range of a file that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Unreadable {
    /// The file in the source, as in messages.
    pub path: String,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The cause.
    pub why: String,
}

/// How a copy went.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
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
    /// Entries that are missing or not whole in the copy.
    pub failed: u64,
    /// Ranges of files that could not be read and are zeros in the copy; the first 10,000.
    pub unreadable: Vec<Unreadable>,
}

impl Summary {
    /// Whether nothing was copied, the top directory aside.
    pub fn is_empty(&self) -> bool {
        let others = self.files + self.symlinks + self.hard_links + self.special;
        others == 0 && self.directories <= 1
    }

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
            text.push_str(&format!(
                "; {} could not be copied, or not wholly",
                self.failed
            ));
        }
        text
    }
}

/// `name` in the directory `dir`.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    push_name(&mut path, name);
    path
}

/// Appends a name to a path.
pub fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// Length of the longest path that leads to both `a` and `b`.
pub fn shared(a: &[u8], b: &[u8]) -> usize {
    let same = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let ends = |path: &[u8]| path.get(same).is_none_or(|next| *next == b'/');
    if ends(a) && ends(b) {
        return same;
    }
    let common = a.get(..same).unwrap_or_default();
    common.iter().rposition(|c| *c == b'/').unwrap_or(0)
}

/// A name for an entry that is renamed when it is whole.
pub fn temporary_name() -> Vec<u8> {
    use std::hash::{BuildHasher, RandomState};
    format!(".cairnfs-{:016x}", RandomState::new().hash_one(0)).into_bytes()
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

/// Permissions that new files do not get.
pub fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_paths_end_at_names() {
        let of = |a: &str, b: &str| shared(a.as_bytes(), b.as_bytes());
        assert_eq!(of("", "a"), 0);
        assert_eq!(of("a", "a"), 1);
        assert_eq!(of("a/b", "a/b/c"), 3);
        assert_eq!(of("a/bc", "a/bd"), 1);
        assert_eq!(of("a/b", "a/bc"), 1);
        assert_eq!(of("ab", "ac"), 0);
        assert_eq!(of("a/b/c", "a/b"), 3);
    }
}
