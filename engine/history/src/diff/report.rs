//! The report of a comparison by files: what users and programs see of it.
//!
//! Uses the collected changes and the paths of both trees. Plain values with `serde`; sorted by
//! path. Left out is what follows from other changes: of directories the counts, and the mtime if
//! entries changed; of all inodes ctime, atime, counts of blocks and links; of contents what holds the
//! same bytes in both trees.
//!
//! Invariant: a path that has another inode of the same type in both trees is one change, unless
//! it is a directory, or one of the two has further names or is in the other tree, too.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;

use crate::diff::changes::Changes;
use crate::diff::delta::{InodeDelta, Item, Name, TreeDelta};
use crate::diff::paths::Paths;
use crate::diff::replaced;
use crate::diff::tree::{Blocks, FileTree};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::item::{RawInode, RawTime};
use cairnfs_disk::types::FileKind;

/// Inodes whose names are searched together.
const BATCH: usize = 1024;

/// A path without a leading slash; the root directory's is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FilePath {
    /// The path; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The bytes of a path that is not UTF-8, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// The bytes of the path.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

impl From<Vec<u8>> for FilePath {
    fn from(bytes: Vec<u8>) -> Self {
        let hex = || bytes.iter().map(|b| format!("{b:02x}")).collect();
        Self {
            path: String::from_utf8_lossy(&bytes).into_owned(),
            path_hex: std::str::from_utf8(&bytes).is_err().then(hex),
            bytes,
        }
    }
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is in the new tree only.
    Added,
    /// It is in the old tree only.
    Removed,
    /// It has another name, and perhaps other changes.
    Renamed,
    /// It changed under the same name, got or lost further names, or was replaced by another file
    /// of its type.
    Changed,
}

/// An attribute with a number as its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttributeChange {
    /// `mode` (permission bits), `uid`, `gid`, `flags`, `rdev`, `size` (bytes), or `mtime`
    /// (nanoseconds since 1970).
    pub name: &'static str,
    /// In the old tree.
    pub old: i128,
    /// In the new tree.
    pub new: i128,
}

/// A change of an extended attribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct XattrChange {
    /// Name with its namespace.
    pub name: String,
    /// What happened to it.
    pub status: Status,
}

/// A change of one file, of whatever type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    /// Inode number; of a removed file in the old tree, else in the new one.
    pub ino: u64,
    /// Inode number in the old tree, if another file has replaced the one of this path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_ino: Option<u64>,
    /// What happened.
    pub status: Status,
    /// Type of the file.
    #[serde(serialize_with = "kind_name")]
    pub kind: FileKind,
    /// Its path in the new tree, or in the old one if it is not in the new one.
    #[serde(flatten)]
    pub path: FilePath,
    /// Paths that only the old tree has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub old_paths: Vec<FilePath>,
    /// Paths that only the new tree has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub new_paths: Vec<FilePath>,
    /// Attributes that changed; none of an added or removed file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<AttributeChange>,
    /// Extended attributes that changed, or that an added file has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<XattrChange>,
    /// Bytes that changed, or that an added file has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<Range<u64>>,
    /// Bytes of the file, or of a symbolic link's target; of a removed file in the old tree.
    pub size: u64,
    /// Bytes of `contents` that the new file has written: no holes, nothing that was cut off.
    pub written: u64,
}

fn kind_name<S: serde::Serializer>(kind: &FileKind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::CharDevice => "char",
        FileKind::BlockDevice => "block",
        FileKind::Socket => "socket",
    })
}

/// Sums of a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Files in the new tree only.
    pub added: u64,
    /// Files in the old tree only.
    pub removed: u64,
    /// Files with another name.
    pub renamed: u64,
    /// Other files that changed.
    pub changed: u64,
    /// Bytes of contents that were written, without holes.
    pub bytes: u64,
}

/// The difference of two trees by files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The files that differ, sorted by path.
    pub files: Vec<FileChange>,
}

impl Report {
    /// Compares two trees of one volume. Data blocks are read only of files that were replaced.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn new(old: FileTree<'_>, new: FileTree<'_>, blocks: &dyn Blocks) -> Result<Self> {
        let mut delta = TreeDelta::collect(Changes::new(old, new)?)?;
        for (ino, inode) in &mut delta.inodes {
            replaced::keep_differing(*ino, inode, (old, new), blocks)?;
        }
        Writer::new(old, new, &delta).report(blocks)
    }

    /// The sums.
    pub fn summary(&self) -> Summary {
        let mut sum = Summary::default();
        for file in &self.files {
            *match file.status {
                Status::Added => &mut sum.added,
                Status::Removed => &mut sum.removed,
                Status::Renamed => &mut sum.renamed,
                Status::Changed => &mut sum.changed,
            } += 1;
            sum.bytes = sum.bytes.saturating_add(file.written);
        }
        sum
    }
}

struct Writer<'a> {
    delta: &'a TreeDelta,
    old: Paths<'a>,
    new: Paths<'a>,
    trees: (FileTree<'a>, FileTree<'a>),
}

impl<'a> Writer<'a> {
    fn new(old: FileTree<'a>, new: FileTree<'a>, delta: &'a TreeDelta) -> Self {
        Self {
            delta,
            old: Paths::new(old),
            new: Paths::new(new),
            trees: (old, new),
        }
    }

    fn report(mut self, blocks: &dyn Blocks) -> Result<Report> {
        let mut files = Vec::new();
        let delta = self.delta;
        for (ino, inode) in delta.inodes.iter().filter(|(_, i)| is_directory(i)) {
            for (names, paths) in [(&inode.lost, &mut self.old), (&inode.gained, &mut self.new)] {
                if let [name] = names.as_slice() {
                    paths.know(*ino, name);
                }
            }
        }
        let all: Vec<(&u64, &InodeDelta)> = delta.inodes.iter().collect();
        for batch in all.chunks(BATCH) {
            let nameless = |(ino, inode): &(&u64, &InodeDelta)| {
                let needed = !inode.is_removed() && inode.gained.is_empty() && is_told(inode);
                needed.then_some(**ino)
            };
            let names = self.new.names(batch.iter().filter_map(nameless))?;
            for (ino, inode) in batch {
                files.extend(self.file(**ino, inode, &names)?);
            }
        }
        self.join_replaced(&mut files, blocks)?;
        // A patch can add a file only where the one before it is gone.
        let place = |file: &FileChange| (file.status != Status::Removed, file.ino);
        files.sort_unstable_by(|a: &FileChange, b| {
            let by_path = a.path.bytes.cmp(&b.path.bytes);
            by_path.then_with(|| place(a).cmp(&place(b)))
        });
        Ok(Report { files })
    }

    /// Makes one change of the removal and the addition of a path.
    fn join_replaced(&self, files: &mut Vec<FileChange>, blocks: &dyn Blocks) -> Result<()> {
        let mut gone = BTreeSet::new();
        for (old, new) in replacements(files) {
            let Some(old) = files.get(old).map(|file| file.ino) else {
                continue;
            };
            let Some(file) = files.get_mut(new) else {
                continue;
            };
            let sides = ((self.trees.0, old), (self.trees.1, file.ino));
            let inode = replaced::delta(sides.0, sides.1, blocks)?;
            file.old_ino = Some(old);
            file.status = Status::Changed;
            file.new_paths.clear();
            file.attributes = attributes(&inode);
            file.xattrs = xattrs(&inode);
            file.written = self.written(file.ino, &inode)?;
            file.contents = inode.contents;
            gone.insert(old);
        }
        files.retain(|file| !gone.contains(&file.ino));
        Ok(())
    }

    fn written(&self, ino: u64, inode: &InodeDelta) -> Result<u64> {
        if inode.contents.is_empty() {
            return Ok(0);
        }
        let size = match inode.item {
            Some(item) => item.new,
            None => self.trees.1.inode(ino)?,
        };
        let size = size.map_or(0, |i| i.size.get());
        replaced::written(self.trees.1, ino, size, &inode.contents)
    }

    fn file(
        &mut self,
        ino: u64,
        inode: &InodeDelta,
        names: &BTreeMap<u64, Name>,
    ) -> Result<Option<FileChange>> {
        if !is_told(inode) {
            return Ok(None);
        }
        let old_paths = paths(&mut self.old, &inode.lost)?;
        let new_paths = paths(&mut self.new, &inode.gained)?;
        let path = match (names.get(&ino), inode.is_removed()) {
            (Some(name), _) => self.new.of(name)?.into(),
            (None, true) => first(&old_paths),
            (None, false) => first(&new_paths),
        };
        let status = match inode {
            _ if inode.is_added() => Status::Added,
            _ if inode.is_removed() => Status::Removed,
            _ if !old_paths.is_empty() && !new_paths.is_empty() => Status::Renamed,
            _ => Status::Changed,
        };
        let item = match inode.item {
            Some(Item { new: Some(i), .. } | Item { old: Some(i), .. }) => Some(i),
            _ => self.trees.1.inode(ino)?,
        };
        let mode = item.map_or(0, |i| i.mode.get());
        let Some(kind) = FileKind::from_mode(mode) else {
            return Ok(None);
        };
        Ok(Some(FileChange {
            ino,
            old_ino: None,
            status,
            kind,
            path,
            old_paths,
            new_paths,
            attributes: attributes(inode),
            xattrs: xattrs(inode),
            contents: inode.contents.clone(),
            size: item
                .filter(|_| kind != FileKind::Directory)
                .map_or(0, |i| i.size.get()),
            written: self.written(ino, inode)?,
        }))
    }
}

/// The positions in a report of the removed and the added inode of each path that has one file of
/// the same type in both trees. Files with further names are left out: their names are told one by
/// one. So are directories: what is below them has other entries, and is told by its own paths.
fn replacements(files: &[FileChange]) -> Vec<(usize, usize)> {
    let mut removed = BTreeMap::new();
    let single = |at: usize, file: &FileChange, status: Status| -> Option<usize> {
        let names = file.old_paths.len() + file.new_paths.len();
        let wanted = file.status == status && file.kind != FileKind::Directory;
        (wanted && names == 1).then_some(at)
    };
    for (at, file) in files.iter().enumerate() {
        if let Some(at) = single(at, file, Status::Removed) {
            removed.insert(&file.path, (at, file.kind));
        }
    }
    let partner = |(at, file): (usize, &FileChange)| {
        let at = single(at, file, Status::Added)?;
        let (old, kind) = *removed.get(&file.path)?;
        (kind == file.kind).then_some((old, at))
    };
    files.iter().enumerate().filter_map(partner).collect()
}

/// Whether it is known to be a directory. A renamed one has another ctime.
fn is_directory(inode: &InodeDelta) -> bool {
    let Some(Item { old, new }) = inode.item else {
        return false;
    };
    let mode = new.or(old).map_or(0, |i| i.mode.get());
    FileKind::from_mode(mode) == Some(FileKind::Directory)
}

fn first(paths: &[FilePath]) -> FilePath {
    paths.first().cloned().unwrap_or_else(|| Vec::new().into())
}

fn paths(of: &mut Paths<'_>, names: &[Name]) -> Result<Vec<FilePath>> {
    names
        .iter()
        .map(|name| of.of(name).map(FilePath::from))
        .collect()
}

/// Whether a change is not only the effect of others.
fn is_told(inode: &InodeDelta) -> bool {
    let whole = inode.is_added() || inode.is_removed();
    let names = !inode.lost.is_empty() || !inode.gained.is_empty();
    let inside = !inode.xattrs.is_empty() || !inode.contents.is_empty();
    whole || names || inside || !attributes(inode).is_empty()
}

fn xattrs(inode: &InodeDelta) -> Vec<XattrChange> {
    let change = |(name, values): (&Vec<u8>, &crate::diff::delta::Values)| XattrChange {
        name: String::from_utf8_lossy(name).into_owned(),
        status: match (&values.old, &values.new) {
            (None, _) => Status::Added,
            (_, None) => Status::Removed,
            _ => Status::Changed,
        },
    };
    inode.xattrs.iter().map(change).collect()
}

fn attributes(inode: &InodeDelta) -> Vec<AttributeChange> {
    let Some(Item {
        old: Some(old),
        new: Some(new),
    }) = inode.item
    else {
        return Vec::new();
    };
    let dir = FileKind::from_mode(new.mode.get()) == Some(FileKind::Directory);
    let wanted = |name: &str| match name {
        "size" => !dir,
        "mtime" => !(dir && inode.entries),
        _ => true,
    };
    let pairs = values(&old).into_iter().zip(values(&new));
    pairs
        .filter(|((name, old), (_, new))| old != new && wanted(name))
        .map(|((name, old), (_, new))| AttributeChange { name, old, new })
        .collect()
}

fn values(inode: &RawInode) -> [(&'static str, i128); 7] {
    [
        ("mode", (inode.mode.get() & 0o7777).into()),
        ("uid", inode.uid.get().into()),
        ("gid", inode.gid.get().into()),
        ("flags", inode.flags.get().into()),
        ("rdev", inode.rdev.get().into()),
        ("size", inode.size.get().into()),
        ("mtime", nanos(&inode.mtime)),
    ]
}

fn nanos(time: &RawTime) -> i128 {
    i128::from(time.secs.get()) * 1_000_000_000 + i128::from(time.nanos.get())
}
