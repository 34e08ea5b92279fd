//! Path resolution: the POSIX walk from a path to an inode, within one volume.
//!
//! Uses the engine's `lookup` and `readlink` through [`super::handle`]. Paths are bytes. They start
//! at the root with or without a leading slash. `..` goes back to the directory that the walk came
//! from (after a symbolic link, the parent of the link's target), and stays at the root. Symbolic
//! links are followed, at most [`MAX_LINKS`] in one walk, so every walk ends. The directories on
//! the path are held in memory without a use: one that is removed meanwhile has no names.

use std::borrow::Cow;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::Volume;
use super::handle::{Trail, Use, lookup};
use cairnfs_core::Inode;
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::{S_IFDIR, S_IFLNK};
use cairnfs_disk::types::{Attr, FileKind};

/// What a component in the middle of a path names.
enum Step {
    Into(Arc<Inode>),
    /// A symbolic link with this target.
    Link(Vec<u8>),
}

/// Symbolic links that one walk may follow.
const MAX_LINKS: u32 = 40;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follow {
    Yes,
    /// Does not apply to a path with a trailing slash, which asks for a directory.
    No,
}

/// The end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// A name in the current directory: [`Walk::name`].
    Name,
    /// The current directory itself.
    Itself(Unnamed),
}

/// The end of a path without a last name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unnamed {
    /// Only slashes.
    Root,
    /// `.`
    Dot,
    /// `..`
    DotDot,
}

/// A walk along a path.
pub(super) struct Walk<'f, 'p> {
    volume: &'f Volume,
    fs: &'f FileSystem,
    /// The current directory.
    here: Arc<Inode>,
    /// The directories above, from the root; unknown after a short cut.
    trail: Trail,
    short_cut: bool,
    /// Length of the path without its last component, and the count of directory changes when the
    /// walk began, if the directory is to be cached.
    to_remember: Option<(usize, u64)>,
    path: Cow<'p, [u8]>,
    /// The position in `path` where the walk continues.
    at: usize,
    /// The last component, once the walk has reached it.
    name: Range<usize>,
    links: u32,
    /// The names walked so far, if the caller needs them.
    names: Option<Vec<u8>>,
}

/// The start of a walk.
struct Start<'p> {
    path: &'p [u8],
    /// Length of the path without its last component, see [`prefix`].
    prefix: usize,
    /// The count of directory changes when this was created.
    shape: u64,
    /// The directory of the prefix, if it is cached.
    known: Option<Arc<Inode>>,
}

impl<'p> Start<'p> {
    fn new(volume: &Volume, path: &'p Path) -> Result<Self> {
        let path = path.as_os_str().as_bytes();
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        if path.contains(&0) {
            return Err(Error::Invalid("a path holds a zero byte"));
        }
        let (prefix, shape) = (prefix(path), volume.file_system().shape());
        let known = match prefix {
            0 => None,
            _ => (volume.prefixes()).find(path.get(..prefix).unwrap_or_default(), shape),
        };
        Ok(Self {
            path,
            prefix,
            shape,
            known,
        })
    }

    /// The directory of the last component, its name, and whether slashes follow it; `None` if the
    /// directory is not cached.
    fn last(&self) -> Option<(&Arc<Inode>, &'p [u8], bool)> {
        let dir = self.known.as_ref()?;
        let named = without_slashes(self.path);
        let mut name = named.get(self.prefix..)?;
        while let Some((b'/', rest)) = name.split_first() {
            name = rest;
        }
        Some((dir, name, named.len() < self.path.len()))
    }
}

impl<'f, 'p> Walk<'f, 'p> {
    pub(super) fn new(volume: &'f Volume, path: &'p Path) -> Result<Self> {
        Self::from(volume, Start::new(volume, path)?)
    }

    fn from(volume: &'f Volume, start: Start<'p>) -> Result<Self> {
        let fs: &FileSystem = volume.file_system();
        let Start {
            path,
            prefix,
            shape,
            known,
        } = start;
        let short_cut = known.is_some();
        Ok(Self {
            volume,
            fs,
            here: known.map_or_else(|| fs.inode(ROOT_INO), Ok)?,
            trail: Trail::new(),
            short_cut,
            to_remember: (!short_cut && prefix > 0).then_some((prefix, shape)),
            path: Cow::Borrowed(path),
            at: if short_cut { prefix } else { 0 },
            name: 0..0,
            links: 0,
            names: None,
        })
    }

    /// The current directory.
    pub(super) fn dir(&self) -> &Arc<Inode> {
        &self.here
    }

    /// The last component, after [`Walk::go_to_last`] returned [`Last::Name`].
    pub(super) fn name(&self) -> &[u8] {
        self.path.get(self.name.clone()).unwrap_or_default()
    }

    /// Whether slashes follow the last component, so that it must be a directory.
    pub(super) fn wants_dir(&self) -> bool {
        self.path.len() > self.name.end
    }

    /// Walks to the directory of the last component, following all links on the path.
    pub(super) fn go_to_last(&mut self) -> Result<Last> {
        let last = self.walk_to_last()?;
        if let Some((prefix, shape)) = self.to_remember.take()
            && self.links == 0
        {
            let path = self.path.get(..prefix).unwrap_or_default();
            self.volume.prefixes().remember(path, shape, &self.here);
        }
        Ok(last)
    }

    fn walk_to_last(&mut self) -> Result<Last> {
        let mut unnamed = Unnamed::Root;
        loop {
            let Some(name) = self.next_component() else {
                return Ok(Last::Itself(unnamed));
            };
            let last = self.is_at_end();
            match self.path.get(name.clone()).unwrap_or_default() {
                b"." => unnamed = Unnamed::Dot,
                b".." => {
                    unnamed = Unnamed::DotDot;
                    self.up();
                }
                _ if last => {
                    self.name = name;
                    return Ok(Last::Name);
                }
                bytes => match self.step(bytes)? {
                    Step::Into(child) => self.down(child, name),
                    Step::Link(target) => self.follow(target)?,
                },
            }
        }
    }

    /// Looks up a component in the middle of the path. A link is read within the lookup, which is
    /// repeated if a rename replaces the link meanwhile.
    fn step(&self, name: &[u8]) -> Result<Step> {
        self.fs
            .with_child(&self.here, name, |child, kind| match kind {
                S_IFDIR => Ok(Step::Into(child)),
                S_IFLNK => self.fs.link_target(&child).map(Step::Link),
                _ => Err(Error::NotDirectory),
            })
    }

    /// Continues at `path`, the target of a link that was found in the current directory; the rest
    /// of the path follows.
    pub(super) fn follow(&mut self, mut path: Vec<u8>) -> Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Error::SymlinkLoop);
        }
        self.retrace()?;
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        if path.first() == Some(&b'/') {
            self.here = self.fs.inode(ROOT_INO)?;
            self.trail.clear();
            if let Some(names) = &mut self.names {
                names.clear();
            }
        }
        path.extend_from_slice(self.path.get(self.at..).unwrap_or_default());
        self.path = Cow::Owned(path);
        self.at = 0;
        Ok(())
    }

    /// Walks the whole path to the end of a short cut, because a link target may contain `..`.
    fn retrace(&mut self) -> Result<()> {
        if !self.go_back()? {
            return Ok(());
        }
        match self.walk_to_last()? {
            Last::Name => Ok(()),
            Last::Itself(_) => Err(Error::NotFound),
        }
    }

    /// Goes back to the root if the walk took a short cut; returns whether it did.
    fn go_back(&mut self) -> Result<bool> {
        let short_cut = std::mem::take(&mut self.short_cut);
        if short_cut {
            (self.here, self.at) = (self.fs.inode(ROOT_INO)?, 0);
        }
        Ok(short_cut)
    }

    /// The first remaining component; the remaining path then begins with the slash after it.
    fn next_component(&mut self) -> Option<Range<usize>> {
        let rest = self.path.get(self.at..)?;
        let start = self.at + rest.iter().position(|b| *b != b'/')?;
        let name = self.path.get(start..)?;
        let end = start + name.iter().position(|b| *b == b'/').unwrap_or(name.len());
        self.at = end;
        Some(start..end)
    }

    fn is_at_end(&self) -> bool {
        let rest = self.path.get(self.at..).unwrap_or_default();
        rest.iter().all(|b| *b == b'/')
    }

    fn down(&mut self, child: Arc<Inode>, name: Range<usize>) {
        self.trail.push(std::mem::replace(&mut self.here, child));
        if let Some(names) = &mut self.names {
            names.push(b'/');
            names.extend_from_slice(self.path.get(name).unwrap_or_default());
        }
    }

    fn up(&mut self) {
        if let Some(above) = self.trail.pop() {
            self.here = above;
        }
        if let Some(names) = &mut self.names {
            let parent = names.iter().rposition(|b| *b == b'/').unwrap_or(0);
            names.truncate(parent);
        }
    }

    /// The current directory, with a use.
    pub(super) fn into_dir(self) -> Result<(Use<'f>, Attr)> {
        lookup(self.fs, &self.here, b".")
    }

    /// Walks to the end of the path; `None` if that is the current directory.
    fn find(&mut self, follow: Follow) -> Result<Option<(Use<'f>, Attr)>> {
        loop {
            if self.go_to_last()? != Last::Name {
                return Ok(None);
            }
            let (found, attr) = lookup(self.fs, self.dir(), self.name())?;
            let wants_dir = self.wants_dir();
            match attr.kind {
                FileKind::Symlink if wants_dir || follow == Follow::Yes => {
                    self.follow(self.fs.readlink(found.ino())?)?
                }
                FileKind::Directory => return Ok(Some((found, attr))),
                _ if wants_dir => return Err(Error::NotDirectory),
                _ => return Ok(Some((found, attr))),
            }
        }
    }
}

/// Calls `what` with the inode of a path, without taking a use of it. The inode may be removed
/// meanwhile; `what` then returns [`Error::NotFound`].
pub(super) fn on_inode<R>(
    volume: &Volume,
    path: &Path,
    what: impl Fn(&FileSystem, &Arc<Inode>) -> Result<R>,
) -> Result<R> {
    let fs: &FileSystem = volume.file_system();
    let on_child = |dir: &Inode, name: &[u8], wants_dir: bool| {
        fs.with_child(dir, name, |inode, kind| match kind {
            S_IFLNK => Ok(None),
            S_IFDIR => what(fs, &inode).map(Some),
            _ if wants_dir => Err(Error::NotDirectory),
            _ => what(fs, &inode).map(Some),
        })
    };
    let start = Start::new(volume, path)?;
    let done = match start.last() {
        Some((dir, name, wants_dir)) => on_child(dir, name, wants_dir)?,
        None => {
            let mut walk = Walk::from(volume, start)?;
            if walk.go_to_last()? != Last::Name {
                return what(fs, walk.dir());
            }
            on_child(walk.dir(), walk.name(), walk.wants_dir())?
        }
    };
    match done {
        Some(done) => Ok(done),
        None => {
            let (held, _) = resolve(volume, path, Follow::Yes)?;
            what(held.fs(), held.inode())
        }
    }
}

/// Length of a path without its last component and the slashes before that; 0 if this is the root,
/// or if the last component is `.` or `..`.
fn prefix(path: &[u8]) -> usize {
    let named = without_slashes(path);
    let start = named.iter().rposition(|b| *b == b'/').map_or(0, |p| p + 1);
    match named.get(start..) {
        None | Some(b"." | b"..") => 0,
        Some(_) => without_slashes(named.get(..start).unwrap_or_default()).len(),
    }
}

/// A path without trailing slashes.
fn without_slashes(mut path: &[u8]) -> &[u8] {
    while let Some((b'/', rest)) = path.split_last() {
        path = rest;
    }
    path
}

/// The inode of a path, with a use.
pub(super) fn resolve<'f>(
    volume: &'f Volume,
    path: &Path,
    follow: Follow,
) -> Result<(Use<'f>, Attr)> {
    let mut walk = Walk::new(volume, path)?;
    match walk.find(follow)? {
        Some(found) => Ok(found),
        None => walk.into_dir(),
    }
}

/// The absolute path of the inode at `path`, without links, `.` or `..`.
pub(super) fn canonical(volume: &Volume, path: &Path) -> Result<Vec<u8>> {
    let mut walk = Walk::new(volume, path)?;
    walk.go_back()?;
    walk.names = Some(Vec::new());
    let named = walk.find(Follow::Yes)?.is_some();
    let mut names = walk.names.take().unwrap_or_default();
    if named {
        names.push(b'/');
        names.extend_from_slice(walk.name());
    }
    if names.is_empty() {
        names.push(b'/');
    }
    Ok(names)
}
