//! An open volume, addressed by paths.
//!
//! The engine counts the references to each inode. Here each reference is a [`Node`], which is
//! released when it is dropped. Symbolic links stay inside the volume: an absolute target begins
//! at the volume's root, and ".." at the root is the root. Uses the engine, failures and specs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairnfs::Error;
use cairnfs::fs::{FileSystem, Options};
use cairnfs_daemon::damage::{left_out, unknown_space};
use cairnfs_daemon::failure::{Explain, Failure, shown};
use cairnfs_daemon::reference::open_in;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::root::MAIN_NAME;
use cairnfs_disk::types::{Attr, Creds, FileKind};

use crate::spec::{SLASH, VolumePath, place};
use crate::tree::{join, typed::dangling};

/// Maximum number of symbolic links in the resolution of one path.
const MAX_LINKS: u32 = 40;

/// How a volume is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only; other processes may read at the same time.
    Read,
    /// Read only the state of the last merge, without the log.
    Unrecovered,
    /// Read only; of a damaged log, what is before the damage.
    Salvage,
    /// Read and write; no other process may have the volume open.
    Write,
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    /// The link is followed.
    Follow,
    /// The result is the link itself.
    Keep,
}

/// An open volume.
#[derive(Clone)]
pub struct Volume {
    fs: Arc<FileSystem>,
    path: PathBuf,
    /// The branch or snapshot that was named.
    reference: Option<String>,
}

/// A referenced inode; the reference is released on drop.
pub struct Node {
    fs: Arc<FileSystem>,
    /// Attributes at the time of the lookup.
    pub attr: Attr,
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.attr.ino != ROOT_INO {
            self.fs.forget(self.attr.ino, 1);
        }
    }
}

impl Node {
    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.attr.ino
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }
}

/// The caller's user and group: the owner of new files for which no other owner is given.
pub fn caller() -> Creds {
    Creds {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

impl Volume {
    /// Opens the tree that is named, of a volume.
    pub fn open(place: &VolumePath, access: Access) -> Result<Self, Failure> {
        let path = &place.volume;
        let volume = Self::try_open(path, access).map_err(|e| Failure::opening(path, &e))?;
        match &place.reference {
            None => Ok(volume),
            reference => {
                let opened = volume.at(reference.as_deref(), access);
                let lost = || volume.fs.lost_log().is_ok_and(|lost| lost.is_some());
                opened.map_err(|failure| {
                    if access == Access::Salvage && lost() {
                        failure.hint(
                        "the volume's log is damaged, and may have had it: cairnfs check VOLUME",
                    )
                    } else {
                        failure
                    }
                })
            }
        }
    }

    /// Another tree of this volume; `main` if there is no reference.
    ///
    /// # Errors
    /// There is no such branch or snapshot; it is a snapshot, and shall be written.
    pub fn at(&self, reference: Option<&str>, access: Access) -> Result<Self, Failure> {
        let name = reference.unwrap_or(MAIN_NAME);
        let open = |name| open_in(&self.fs, &self.path, name);
        let (fs, _) = open(name).map_err(|failure| {
            let shorter = name.rsplit_once(':').map(|(shorter, _)| shorter);
            if shorter.is_some_and(|name| open(name).is_ok()) {
                failure.hint(SLASH)
            } else {
                failure
            }
        })?;
        let tree = Self {
            fs,
            path: self.path.clone(),
            reference: reference.map(str::to_owned),
        };
        if access == Access::Write && tree.fs.is_read_only() {
            Err(
                Failure::new(tree.shown(b""), "is a snapshot, which is read-only")
                    .hint("make a branch of it, and write to that: cairnfs branch VOLUME NAME --from SNAPSHOT"),
            )
        } else {
            Ok(tree)
        }
    }

    /// Opens the volume at `path`, with the branch `main`.
    ///
    /// # Errors
    /// Those of the engine: no such file, not a volume, in use, damaged.
    pub fn try_open(path: &Path, access: Access) -> cairnfs::Result<Self> {
        let options = Options {
            read_only: access != Access::Write,
            recovery: access != Access::Unrecovered,
            damaged_log: access == Access::Salvage,
            kernel_clock: true,
            ..Options::default()
        };
        let fs = FileSystem::open(path, &options)?;
        let info = fs.info();
        if let Some(front) = info.front {
            say!("cairnfs: {}: {front}", shown(path));
        }
        if let Some(damage) = &info.space {
            say!("cairnfs: {}: {}", shown(path), unknown_space(damage));
        }
        if info.left_out > 0 {
            say!("cairnfs: {}: {}", shown(path), left_out(info.left_out));
        }
        Ok(Self {
            fs,
            path: path.to_owned(),
            reference: None,
        })
    }

    /// One that is open already, on the branch `main`; `path` is shown for it.
    pub fn opened(fs: Arc<FileSystem>, path: PathBuf) -> Self {
        Self {
            fs,
            path,
            reference: None,
        }
    }

    /// Opens the volume that a path names, and looks up the path inside.
    pub fn open_at(
        place: &VolumePath,
        access: Access,
        last: LastLink,
    ) -> Result<(Self, Node), Failure> {
        let volume = Self::open(place, access)?;
        let node = volume.find(&place.inside, last)?;
        Ok((volume, node))
    }

    /// Writes all changes and closes the volume.
    ///
    /// # Errors
    /// The changes could not be written.
    pub fn close(self) -> Result<(), Failure> {
        self.fs.close().explain(shown(&self.path))
    }

    /// The engine.
    pub fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// The tree that is named, if it is one of this volume.
    pub fn of(self, place: &VolumePath, access: Access) -> Result<Option<Self>, Failure> {
        match (self.path == place.volume, self.reference == place.reference) {
            (true, true) => Ok(Some(self)),
            (true, false) => self.at(place.reference.as_deref(), access).map(Some),
            (false, _) => Ok(None),
        }
    }

    /// A path inside the volume as shown in messages.
    pub fn shown(&self, inside: &[u8]) -> String {
        place(&self.path, self.reference.as_deref(), inside)
    }

    /// Takes over the reference of an inode that the engine has just returned.
    pub fn hold(&self, attr: Attr) -> Node {
        Node {
            fs: Arc::clone(&self.fs),
            attr,
        }
    }

    /// The root directory.
    pub fn root(&self) -> cairnfs::Result<Node> {
        self.fs.getattr(ROOT_INO).map(|attr| self.hold(attr))
    }

    /// Looks up an entry of a directory.
    ///
    /// # Errors
    /// No entry of that name, or damage.
    pub fn lookup(&self, dir: &Node, name: &[u8]) -> cairnfs::Result<Node> {
        self.fs.lookup(dir.ino(), name).map(|attr| self.hold(attr))
    }

    /// Looks up an entry of a directory; `None` if it does not exist.
    pub fn lookup_opt(&self, dir: &Node, name: &[u8]) -> cairnfs::Result<Option<Node>> {
        match self.lookup(dir, name) {
            Ok(node) => Ok(Some(node)),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Looks up the inode at a path.
    ///
    /// # Errors
    /// The path does not exist, or damage.
    pub fn find(&self, path: &[u8], last: LastLink) -> Result<Node, Failure> {
        self.walk(path, last).explain(self.shown(path))
    }

    /// Resolves symbolic links at the end of a destination path. The last component of the result
    /// is not a link: it is another file, or a free name.
    ///
    /// # Errors
    /// A dangling link, or damage.
    pub fn resolve(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut at = path.to_vec();
        for links in 0..=MAX_LINKS {
            let node = match self.walk(&at, LastLink::Keep) {
                Ok(node) => node,
                Err(Error::NotFound) if links > 0 => return Err(dangling(self.shown(path))),
                Err(Error::NotFound) => return Ok(at),
                Err(e) => return Err(e).explain(self.shown(path)),
            };
            if node.attr.kind != FileKind::Symlink {
                return Ok(at);
            }
            let target = self.fs.readlink(node.ino()).explain(self.shown(&at))?;
            at = match split_last(&at) {
                Some((above, _)) if !target.starts_with(b"/") => join(&above, &target),
                _ => target,
            };
        }
        Err(Error::SymlinkLoop).explain(self.shown(path))
    }

    /// The inode numbers of all directories on a path, from the root on, and of the path's own
    /// inode.
    /// # Errors
    /// As [`Volume::find`].
    pub fn lineage(&self, path: &[u8]) -> Result<Vec<u64>, Failure> {
        let nodes = self.walk_all(path, LastLink::Follow);
        let nodes = nodes.explain(self.shown(path))?;
        Ok(nodes.iter().map(Node::ino).collect())
    }

    fn walk(&self, path: &[u8], last: LastLink) -> cairnfs::Result<Node> {
        let mut nodes = self.walk_all(path, last)?;
        nodes.pop().ok_or(Error::NotFound)
    }

    fn walk_all(&self, path: &[u8], last: LastLink) -> cairnfs::Result<Vec<Node>> {
        let mut above: Vec<Node> = vec![self.root()?];
        let mut rest = components(path);
        rest.reverse();
        let trailing_slash = path.ends_with(b"/") || path.ends_with(b"/.");
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == b".." {
                if !above.last().is_some_and(Node::is_dir) {
                    return Err(Error::NotDirectory);
                }
                if above.len() > 1 {
                    above.pop();
                }
                continue;
            }
            let Some(dir) = above.last() else { break };
            let node = self.lookup(dir, &name)?;
            let follow = last == LastLink::Follow || !rest.is_empty() || trailing_slash;
            if node.attr.kind != FileKind::Symlink || !follow {
                above.push(node);
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Error::SymlinkLoop);
            }
            let target = self.fs.readlink(node.ino())?;
            if target.starts_with(b"/") {
                above.truncate(1);
            }
            rest.extend(components(&target).into_iter().rev());
        }
        if trailing_slash && !above.last().is_some_and(Node::is_dir) {
            return Err(Error::NotDirectory);
        }
        Ok(above)
    }

    /// The directory at a path; missing directories on the path are created.
    ///
    /// # Errors
    /// A component of the path is not a directory, or an error of the engine.
    pub fn make_dirs(&self, path: &[u8], mode: u32) -> Result<Node, Failure> {
        let mut at = self.root().explain(self.shown(b""))?;
        let mut done: Vec<u8> = Vec::new();
        for name in components(path) {
            done.push(b'/');
            done.extend_from_slice(&name);
            let found = self.walk(&done, LastLink::Follow);
            at = match found {
                Err(Error::NotFound) => self
                    .fs
                    .mkdir(at.ino(), &name, mode, caller())
                    .map(|attr| self.hold(attr)),
                Ok(node) if !node.is_dir() => Err(Error::NotDirectory),
                other => other,
            }
            .explain(self.shown(&done))?;
        }
        Ok(at)
    }

    /// All names of a directory that can be read, without "." and "..", sorted, and the reason why
    /// names may be missing.
    pub fn names_found(&self, dir: u64) -> (Vec<Vec<u8>>, Option<Error>) {
        let mut names = Vec::new();
        let mut impossible = false;
        let read = self.fs.readdir(dir, 0, &mut |entry| {
            if entry.name.is_empty() || entry.name.contains(&b'/') {
                impossible = true;
            } else if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        });
        let lost = match read {
            Err(e) => Some(e),
            Ok(_) if impossible => Some(Error::Invalid("the directory holds an impossible name")),
            Ok(_) => None,
        };
        names.sort_unstable();
        (names, lost)
    }
}

/// The components of a path, without empty ones and ".".
pub fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|b| *b == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

/// The path of the parent directory and the last component; `None` for the root and for "..".
pub fn split_last(path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut names = components(path);
    let last = names.pop().filter(|name| name != b"..")?;
    Some((names.join(&b'/'), last))
}

/// Whether the last component of a path is "." or "..", trailing slashes ignored.
pub fn ends_in_dots(path: &[u8]) -> bool {
    let last = path.rsplit(|b| *b == b'/').find(|name| !name.is_empty());
    matches!(last, Some(b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_into_names() {
        assert_eq!(components(b"/a//./b/"), vec![b"a".to_vec(), b"b".to_vec()]);
        assert!(components(b"/").is_empty());
        assert_eq!(split_last(b"/a/b"), Some((b"a".to_vec(), b"b".to_vec())));
        assert_eq!(split_last(b"b"), Some((b"".to_vec(), b"b".to_vec())));
        assert_eq!(split_last(b"/"), None);
        assert_eq!(split_last(b"a/.."), None);
    }
}
