//! Copies whole trees between the host, volumes and tar archives.
//!
//! A [`Copier`] walks a [`Source`] and fills a [`Sink`]. Paths are relative to the directory at
//! which the sink begins, as bytes, without leading or trailing slashes; "" is that directory.
//! Trees may have any depth: nothing recurses, and both ends go from a directory to the next one
//! by name instead of resolving whole paths. A name that could lead out of a tree never reaches a
//! sink. The failure of one entry is reported and counted, and the copy continues.

mod acl_text;
mod copier;
pub mod count;
pub mod descent;
pub mod host;
pub mod host_sink;
pub mod nowhere;
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
pub mod whole_file;

use cairnfs_daemon::failure::Failure;
use cairnfs_disk::acl::{self, Acl};
use cairnfs_disk::types::{FileKind, Time};

use crate::output::counted;

pub use copier::Copier;

/// Maximum number of bytes moved at once.
pub const CHUNK: usize = 1 << 20;

/// An extended attribute: its name and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// The metadata of a file, which is known before its contents are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// File type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file.
    pub rdev: u64,
    /// Bytes of a regular file.
    pub size: u64,
    /// Number of hard links.
    pub nlink: u64,
    /// Device and inode number, the same for all names of a file.
    pub id: (u64, u64),
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Extended attributes; empty where they are not kept.
    pub xattrs: Vec<Xattr>,
}

/// A range of a file that holds data; the gaps between ranges are holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset behind the last byte.
    pub end: u64,
}

/// The metadata that a copy keeps besides the contents.
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
    /// In ascending order.
    pub found: Vec<Segment>,
    /// The offset from which on nothing is known, and the reason.
    pub unknown: Option<(u64, Failure)>,
}

/// The names in a directory that could be read.
pub struct Listing {
    /// Sorted.
    pub names: Vec<Vec<u8>>,
    /// The reason that names may be missing.
    pub lost: Option<Failure>,
}

/// A readable tree: a cursor with a current directory and a current entry.
pub trait Source {
    /// Whether exactly one entry leads to each directory. A host may show one directory at
    /// several paths.
    const TREE: bool;

    /// Returns to the start of the walk, which becomes the current entry.
    fn start(&mut self) -> Result<Meta, Failure>;
    /// Looks up an entry of the current directory, which becomes the current entry; symbolic
    /// links are not followed. The result has no extended attributes.
    fn find(&mut self, name: &[u8]) -> Result<Meta, Failure>;
    /// Reads the extended attributes of the current entry.
    fn xattrs(&mut self) -> Result<Vec<Xattr>, Failure>;
    /// Reads the target of the current entry, a symbolic link.
    fn target(&mut self) -> Result<Vec<u8>, Failure>;
    /// Finds the data ranges of the current entry, a file of `size` bytes.
    fn segments(&mut self, size: u64) -> Result<Segments, Failure>;
    /// Reads from `offset` of the current entry into `buf`, up to the end of the file.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize, Failure>;
    /// Makes the current entry, a directory, the current directory.
    fn enter(&mut self) -> Result<Listing, Failure>;
    /// Returns to the parent directory.
    fn leave(&mut self);
    /// How the current entry is shown in messages.
    fn shown(&self) -> String;
}

/// A writable tree. A directory is begun before its entries. A failure concerns only its entry
/// unless it [is fatal](Failure::is_fatal). After a failure the entry is removed, or its contents
/// are complete and it is accessible to the caller only.
pub trait Sink {
    /// Makes a directory, or uses the existing one.
    fn begin_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Ends a directory: no more entries follow in it.
    fn end_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Sets a directory's attributes while more entries may follow in it; [`Sink::finish`] sets
    /// its times again.
    fn keep_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        self.end_directory(path, meta)
    }
    /// Begins a regular file with data in the ranges `data` and holes elsewhere.
    fn begin_file(&mut self, path: &[u8], meta: &Meta, data: &[Segment]) -> Result<(), Failure>;
    /// Writes data of the current file; offsets ascend.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure>;
    /// The file or link whose place the current file takes, as in messages; none if its name was free.
    fn replaced(&self) -> Option<String> {
        None
    }
    /// Ends the current file, even if some of its data could not be read.
    fn end_file(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Removes the current file.
    fn abandon_file(&mut self);
    /// Makes a symbolic link.
    fn symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Makes a FIFO, socket or device.
    fn special(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure>;
    /// Makes a hard link to the file at `original` in this sink.
    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<(), Failure>;
    /// Ends the copy.
    fn finish(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// An unreadable range of a file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Unreadable {
    /// The file's path in the source, as in messages.
    pub path: String,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// The cause.
    pub why: String,
}

/// The result of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Hard links to files already copied.
    pub hard_links: u64,
    /// FIFOs, sockets and devices.
    pub special: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Entries that are missing or incomplete in the copy.
    pub failed: u64,
    /// Unreadable ranges of files; the first 10,000. They are zeros in the copy, unless that would have
    /// replaced a file.
    pub unreadable: Vec<Unreadable>,
    /// Paths whose newest state is lost with a damaged log, as far as it names them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

impl Summary {
    /// Whether nothing was copied except the top directory.
    pub fn is_empty(&self) -> bool {
        let others = self.files + self.symlinks + self.hard_links + self.special;
        others == 0 && self.directories <= 1
    }

    /// The summary as text.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}, {}, {}, {}",
            counted(self.files, "file", "files"),
            counted(self.directories, "directory", "directories"),
            counted(self.symlinks, "symlink", "symlinks"),
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

/// The path of `name` in the directory `dir`.
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

/// Length of the longest common ancestor path of `a` and `b`.
pub fn shared(a: &[u8], b: &[u8]) -> usize {
    let same = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let ends = |path: &[u8]| path.get(same).is_none_or(|next| *next == b'/');
    if ends(a) && ends(b) {
        return same;
    }
    let common = a.get(..same).unwrap_or_default();
    common.iter().rposition(|c| *c == b'/').unwrap_or(0)
}

/// A random temporary name for an entry that is renamed when it is complete.
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

/// The mode of a copy without the extended attribute `name`, which the target refused. The group
/// bits of a file with an access list are the mask of the list: without the list, they are limited
/// to the rights of the owning group.
pub fn mode_without(name: &[u8], value: &[u8], mode: u32) -> u32 {
    if name != acl::ACCESS {
        return mode;
    }
    let list = Acl::parse(value);
    let entries = list.as_ref().map(Acl::entries).unwrap_or_default();
    let group = entries.iter().find(|entry| entry.tag == acl::GROUP_OBJ);
    mode & (!0o070 | group.map_or(0, |entry| u32::from(entry.perm) << 3))
}

/// The umask: permission bits that new files do not get.
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
