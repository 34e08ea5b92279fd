//! Differences of contents as a patch, in the format of `git diff`, which patch(1) and `git apply`
//! read.
//!
//! Uses both trees, their paths, and the unified diff of text. Each file is read as a whole, up to
//! the limit for text; longer ones are only compared, part by part. Renames, executable files, symbolic links and empty files have lines of
//! their own before the diff. Paths with unusual characters are quoted as in C. A patch has no
//! directories: for a renamed one it has the files below it. A path that another file takes over is
//! a change in place, and the file that was there is copied from it to its new path. A renamed symbolic
//! link has its mode in the patch: without it readers take the link for a regular file.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::delta::Name;
use crate::diff::moves::{Change, Move, taken_over};
use crate::diff::paths::{Paths, name_at};
use crate::diff::report::{FileChange, FilePath, Report, Status};
use crate::diff::same::same_contents;
use crate::diff::text::{MOST_TEXT, unified};
use crate::diff::tree::{Blocks, FileTree};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::item::{RawInode, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use cairnfs_disk::types::FileKind;

/// Writes patches of the files of a report.
pub struct Patches<'a> {
    trees: (FileTree<'a>, FileTree<'a>),
    paths: (Paths<'a>, Paths<'a>),
    blocks: &'a dyn Blocks,
    /// The inodes of the report.
    reported: BTreeSet<u64>,
    /// The renamed directories of the report.
    moved: BTreeSet<u64>,
    /// Paths that another file takes over.
    taken_over: BTreeMap<Vec<u8>, Change>,
}

/// One side of a file: its path and its inode.
struct Version {
    path: Vec<u8>,
    ino: u64,
    inode: RawInode,
}

impl Version {
    /// The type of the file, as in its mode.
    fn kind(&self) -> u32 {
        self.inode.mode.get() & S_IFMT
    }

    /// The mode as git has it.
    fn mode(&self) -> &'static str {
        let mode = self.inode.mode.get();
        match (mode & S_IFMT, mode & 0o111) {
            (S_IFLNK, _) => "120000",
            (_, 0) => "100644",
            _ => "100755",
        }
    }
}

impl<'a> Patches<'a> {
    /// Patches of `report`, which compares the `old` and the `new` tree. Memory grows with the number
    /// of files that have other paths.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn new(
        report: &Report,
        (old, new): (FileTree<'a>, FileTree<'a>),
        blocks: &'a dyn Blocks,
    ) -> Result<Self> {
        let moved = report.files.iter().filter(|file| is_moved_dir(file));
        let mut patches = Self {
            trees: (old, new),
            paths: (Paths::new(old), Paths::new(new)),
            blocks,
            reported: report.files.iter().map(|file| file.ino).collect(),
            moved: moved.map(|file| file.ino).collect(),
            taken_over: BTreeMap::new(),
        };
        let mut moves = Vec::new();
        for file in &report.files {
            moves.extend(patches.moves(file)?);
        }
        patches.taken_over = taken_over(moves);
        Ok(patches)
    }

    /// The patch of a file of the report; empty if its contents and names are the same, or if it
    /// is of a type that a patch cannot have. Of a file with several names that all stay, one is
    /// patched.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn of(&mut self, file: &FileChange) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for change in self.moves(file)? {
            self.write(&change, &mut out)?;
        }
        Ok(out)
    }

    /// The paths that a file of the report has before and after; of a renamed directory those of the
    /// files below it. None of a type that a patch cannot have.
    fn moves(&mut self, file: &FileChange) -> Result<Vec<Move>> {
        match file.kind {
            FileKind::Directory if is_moved_dir(file) => self.below(file.ino),
            FileKind::File | FileKind::Symlink => self.names(file),
            _ => Ok(Vec::new()),
        }
    }

    /// The paths of a file before and after, name by name.
    fn names(&mut self, file: &FileChange) -> Result<Vec<Move>> {
        let bytes = |list: &[FilePath]| list.iter().map(|p| Some(p.bytes.clone())).collect();
        let (mut lost, mut gained): (Vec<_>, Vec<_>) =
            (bytes(&file.old_paths), bytes(&file.new_paths));
        let mut pairs = Vec::new();
        if file.old_ino.is_some() {
            let path = Some(file.path.bytes.clone());
            pairs.push((path.clone(), path));
        } else if file.status == Status::Changed
            && let Some((old, new)) = self.kept(file)?
        {
            pairs.push((Some(old), Some(new)));
        }
        let most = lost.len().max(gained.len());
        lost.resize(most, None);
        gained.resize(most, None);
        pairs.extend(lost.into_iter().zip(gained));
        let inos = (file.old_ino.unwrap_or(file.ino), file.ino);
        let pairs = pairs.into_iter();
        Ok(pairs.map(|(old, new)| Move { inos, old, new }).collect())
    }

    /// A name that a file has in both trees, as paths. Directories above may have been renamed.
    fn kept(&mut self, file: &FileChange) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let ino = std::iter::once(file.ino);
        let name = match (file.old_paths.is_empty(), file.new_paths.is_empty()) {
            (true, true) => {
                let names: Vec<&[u8]> = file.path.bytes.split(|b| *b == b'/').collect();
                name_at(&self.trees.1, &names)?.map(|(name, _)| name)
            }
            // Of the side that has no other names, each name is in both trees.
            (false, true) => self.paths.1.names(ino)?.remove(&file.ino),
            (_, false) => self.paths.0.names(ino)?.remove(&file.ino),
        };
        let Some(name) = name else {
            return Ok(None);
        };
        Ok(Some((self.paths.0.of(&name)?, self.paths.1.of(&name)?)))
    }

    /// The renames of files below a renamed directory that did not change otherwise.
    fn below(&mut self, dir: u64) -> Result<Vec<Move>> {
        let (mut dirs, mut moves) = (vec![dir], Vec::new());
        while let Some(dir) = dirs.pop() {
            let mut files = Vec::new();
            self.trees.1.entries(dir, &mut |entry| {
                match entry.kind {
                    S_IFDIR if !self.moved.contains(&entry.ino) => dirs.push(entry.ino),
                    S_IFREG | S_IFLNK if !self.reported.contains(&entry.ino) => {
                        files.push((entry.ino, entry.name.to_vec()));
                    }
                    _ => {}
                }
                Ok(true)
            })?;
            for (ino, name) in files {
                let name = Name { dir, name };
                moves.push(Move {
                    inos: (ino, ino),
                    old: Some(self.paths.0.of(&name)?),
                    new: Some(self.paths.1.of(&name)?),
                });
            }
        }
        Ok(moves)
    }

    /// Writes what a patch has of a file at one of its paths.
    fn write(&self, change: &Move, out: &mut Vec<u8>) -> Result<()> {
        let old = self.version(&self.trees.0, change.inos.0, &change.old)?;
        let new = self.version(&self.trees.1, change.inos.1, &change.new)?;
        let taken = |path: &Option<Vec<u8>>| self.taken_over.get(path.as_ref()?).copied();
        match (taken(&change.old), taken(&change.new)) {
            _ if change.old == change.new => self.section(old, new, out),
            (None, None) => self.section(old, new, out),
            // That it leaves its path is told where the other file takes it.
            (Some(_), None) if new.is_none() => Ok(()),
            (Some((_, takes)), None) => {
                let there = self.version(&self.trees.1, takes, &change.old)?;
                let kind = there.map(|there| there.kind());
                // Of a file that makes room for one of another type there is nothing to copy.
                let source = old.filter(|old| kind == Some(old.kind()));
                self.section(source, new, out)
            }
            (left, Some((leaves, _))) => {
                if left.is_none() {
                    self.section(old, None, out)?;
                }
                let there = self.version(&self.trees.0, leaves, &change.new)?;
                let kinds = (
                    there.as_ref().map(Version::kind),
                    new.as_ref().map(Version::kind),
                );
                if kinds.0 == kinds.1 {
                    return self.section(there, new, out);
                }
                self.section(there, None, out)?;
                self.section(None, new, out)
            }
        }
    }

    /// The version of a file in a tree; `None` without a path.
    fn version(
        &self,
        tree: &FileTree<'_>,
        ino: u64,
        path: &Option<Vec<u8>>,
    ) -> Result<Option<Version>> {
        let (Some(path), Some(inode)) = (path.clone(), tree.inode(ino)?) else {
            return Ok(None);
        };
        Ok(Some(Version { path, ino, inode }))
    }

    fn section(&self, old: Option<Version>, new: Option<Version>, out: &mut Vec<u8>) -> Result<()> {
        let (Some(first), Some(last)) =
            (old.as_ref().or(new.as_ref()), new.as_ref().or(old.as_ref()))
        else {
            return Ok(());
        };
        let paths = (quoted(b"a/", &first.path), quoted(b"b/", &last.path));
        let mut head = [b"diff --git ", &paths.0[..], b" ", &paths.1, b"\n"].concat();
        let bare = head.len();
        let mut line = |what: &str, rest: &[u8]| {
            head.extend_from_slice(what.as_bytes());
            head.extend_from_slice(rest);
            head.push(b'\n');
        };
        match (&old, &new) {
            (None, Some(new)) => line("new file mode ", new.mode().as_bytes()),
            (Some(old), None) => line("deleted file mode ", old.mode().as_bytes()),
            (Some(old), Some(new)) => {
                // Readers take the file that is renamed for a regular one, unless it has a mode: patch(1)
                // refuses the link then, and git a file in a directory that takes the link's path.
                let moved_link = old.kind() == S_IFLNK && old.path != new.path;
                if old.mode() != new.mode() || moved_link {
                    line("old mode ", old.mode().as_bytes());
                    line("new mode ", new.mode().as_bytes());
                }
                if old.path != new.path {
                    let (from, to) = if self.taken_over.contains_key(&old.path) {
                        ("copy from ", "copy to ")
                    } else {
                        ("rename from ", "rename to ")
                    };
                    line(from, &quoted(b"", &old.path));
                    line(to, &quoted(b"", &new.path));
                }
            }
            (None, None) => {}
        }
        let name = |version: &Option<Version>, path: &[u8]| match version {
            Some(_) => path.to_vec(),
            None => b"/dev/null".to_vec(),
        };
        let names = (name(&old, &paths.0), name(&new, &paths.1));
        let body = self.body((&old, &new), names)?;
        if head.len() > bare || !body.is_empty() {
            out.extend_from_slice(&head);
            out.extend_from_slice(&body);
        }
        Ok(())
    }

    /// Whether both versions have the same bytes.
    fn are_equal(&self, versions: (&Option<Version>, &Option<Version>)) -> Result<bool> {
        let (Some(old), Some(new)) = versions else {
            return Ok(false);
        };
        let (old, new) = ((&self.trees.0, old.ino), (&self.trees.1, new.ino));
        same_contents(self.blocks, old, new)
    }

    /// The difference of contents, or the line that says that they differ and are not text.
    fn body(
        &self,
        versions: (&Option<Version>, &Option<Version>),
        names: (Vec<u8>, Vec<u8>),
    ) -> Result<Vec<u8>> {
        let contents = |tree: &FileTree<'_>, version: &Option<Version>| -> Result<_> {
            let (ino, size) = version
                .as_ref()
                .map_or((0, 0), |v| (v.ino, v.inode.size.get()));
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if size > MOST_TEXT {
                return Ok(None);
            }
            let mut bytes = vec![0; size];
            tree.read(self.blocks, ino, 0, &mut bytes)?;
            Ok(Some(bytes))
        };
        let old = contents(&self.trees.0, versions.0)?;
        let new = contents(&self.trees.1, versions.1)?;
        let text = match (&old, &new) {
            (Some(old), Some(new)) if old == new => return Ok(Vec::new()),
            (Some(old), Some(new)) => unified((&names.0, &names.1), old, new),
            // Two files that are too large to be read as a whole may be equal in other blocks.
            (None, None) if self.are_equal(versions)? => return Ok(Vec::new()),
            _ => None,
        };
        Ok(text.unwrap_or_else(|| {
            let (old, new) = (&names.0[..], &names.1[..]);
            [b"Binary files ", old, b" and ", new, b" differ\n"].concat()
        }))
    }
}

fn is_moved_dir(file: &FileChange) -> bool {
    file.kind == FileKind::Directory && file.status == Status::Renamed
}

/// A path with its prefix, in quotes with escapes of C if readers of patches need that.
fn quoted(prefix: &[u8], path: &[u8]) -> Vec<u8> {
    let plain = |b: &u8| !matches!(b, 0..=b' ' | b'"' | b'\\' | 0x7f);
    if path.iter().all(plain) {
        return [prefix, path].concat();
    }
    let mut out = [b"\"", prefix].concat();
    for byte in path {
        match byte {
            b' ' => out.push(b' '),
            b if plain(b) => out.push(*b),
            b => out.extend_from_slice(format!("\\{b:03o}").as_bytes()),
        }
    }
    out.push(b'"');
    out
}
