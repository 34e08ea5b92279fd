//! Calls of [`Volume`] on names: creating, linking, renaming, removing, listing.
//!
//! Each walks to the directory of the last component and makes one call of the engine, so each is
//! atomic, except [`Volume::create_dir_all`] and [`Volume::remove_dir_all`], which make many calls.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::Volume;
use super::file::File;
use super::handle::{Use, lookup};
use super::path::{Follow, Last, Unnamed, Walk, canonical};
use super::read_dir::{self, Listing, ReadDir};
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::{Attr, RenameMode};

/// Permissions of new directories.
const DEFAULT_DIR_MODE: u32 = 0o755;

impl Volume {
    /// Creates an empty directory.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotFound`] if the parent directory does not exist.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.mkdir(path, DEFAULT_DIR_MODE)
    }

    /// Creates an empty directory with these permissions, like `mkdir(2)` without a umask; type
    /// bits are ignored.
    ///
    /// # Errors
    /// As [`create_dir`](Self::create_dir).
    pub fn mkdir(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.make_at(path.as_ref(), true, |fs, dir, name| {
            fs.mkdir(dir, name, mode, self.owner())
        })
    }

    /// Creates a directory and all missing directories on the path.
    ///
    /// # Errors
    /// [`Error::NotDirectory`] or [`Error::Exists`] if a component is not a directory.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut missing = Vec::new();
        for dir in path.ancestors() {
            match self.create_dir(dir) {
                Ok(()) => break,
                Err(_) if dir.as_os_str().is_empty() || self.is_dir(dir) => break,
                Err(e) if matches!(e.cause(), Error::NotFound) => missing.push(dir),
                Err(e) => return Err(e.cause().clone().at(path)),
            }
        }
        while let Some(dir) = missing.pop() {
            match self.create_dir(dir) {
                // Another thread may have created it.
                Err(_) if self.is_dir(dir) => {}
                made => made?,
            }
        }
        Ok(())
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.metadata(path).is_ok_and(|m| m.is_dir())
    }

    /// Returns an iterator over the entries of a directory.
    ///
    /// ```
    /// # use cairnfs::Volume;
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = Volume::in_memory(64 << 20)?;
    /// volume.create_dir("letters")?;
    /// volume.write("letters/a", b"Dear A")?;
    /// for entry in volume.read_dir("letters")? {
    ///     let entry = entry?;
    ///     println!("{} {}", entry.path().display(), entry.metadata()?.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`].
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let (dir, attr) = self.find(path, Follow::Yes)?;
        if !attr.kind.is_dir() {
            return Err(Error::NotDirectory.at(path));
        }
        Ok(ReadDir::new(dir.keep(self.engine()), path))
    }

    /// Returns an iterator over everything below a directory, each directory before its contents.
    ///
    /// # Errors
    /// As [`read_dir`](Self::read_dir).
    pub fn walk(&self, path: impl AsRef<Path>) -> Result<read_dir::Walk> {
        self.read_dir(path).map(read_dir::Walk::new)
    }

    /// Removes a name of anything but a directory. An open file stays usable.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`].
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.at_name(
            path,
            |_| Error::IsDirectory,
            |fs, walk| {
                if walk.wants_dir() {
                    let (_, attr) = lookup(fs, walk.dir(), walk.name())?;
                    return Err(if attr.kind.is_dir() {
                        Error::IsDirectory
                    } else {
                        Error::NotDirectory
                    });
                }
                fs.unlink_in(walk.dir(), walk.name())
            },
        )
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`], also for a path that ends
    /// with `..`; [`Error::Invalid`] for a path that ends with `.`, [`Error::Busy`] for the root.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.at_name(path, not_removed, |fs, walk| {
            fs.rmdir(walk.dir().ino, walk.name())
        })
    }

    /// Removes a directory with everything in it, or a symbolic link; symbolic links are not
    /// followed. It takes many steps: after a crash or a failure, a part is left. A path that ends
    /// with `.` or `..` is refused before anything is removed; [`std::fs::remove_dir_all`] refuses
    /// it only afterwards.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] if other threads create files in it meanwhile, or as
    /// [`remove_dir`](Self::remove_dir).
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.at_name(path, not_removed, |fs, walk| {
            let (top, attr) = lookup(fs, walk.dir(), walk.name())?;
            if attr.kind.is_symlink() && !walk.wants_dir() {
                return fs.unlink_in(walk.dir(), walk.name());
            }
            if !attr.kind.is_dir() {
                return Err(Error::NotDirectory);
            }
            empty(fs, top)?;
            fs.rmdir(walk.dir().ino, walk.name())
        })
    }

    /// Renames a file or directory, and replaces an existing entry of the new name: a file by a
    /// file, an empty directory by a directory. After a crash the name leads to the old or the new
    /// inode.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::NotDirectory`],
    /// [`Error::NotEmpty`]; [`Error::Invalid`] to move a directory into itself; [`Error::Busy`] for
    /// the root, and for a path that ends with `.` or `..`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Renames without replacing ([`RenameMode::NoReplace`]), exchanges the two names
    /// ([`RenameMode::Exchange`]), or leaves a whiteout ([`RenameMode::Whiteout`]).
    ///
    /// # Errors
    /// [`Error::Exists`], or as [`rename`](Self::rename).
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let fs: &FileSystem = self.file_system();
        let source = walk_to_name(self, from, not_renamed).map_err(|e| e.at(from))?;
        let target = walk_to_name(self, to, not_renamed).map_err(|e| e.at(to))?;
        if source.wants_dir() || target.wants_dir() {
            needs_dir(fs, &source).map_err(|e| e.at(from))?;
        }
        if target.wants_dir() && mode == RenameMode::Exchange {
            needs_dir(fs, &target).map_err(|e| e.at(to))?;
        }
        fs.rename(
            source.dir().ino,
            source.name(),
            target.dir().ino,
            target.name(),
            mode,
        )
        .map_err(|e| match e {
            Error::NotFound if mode != RenameMode::Exchange => e.at(from),
            _ => e.at(to),
        })
    }

    /// Adds the name `link` to a file. A symbolic link at the end of `original` is not followed.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotPermitted`] for a directory; [`Error::NotFound`].
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (held, _) = self.find(original.as_ref(), Follow::No)?;
        self.make_at(link.as_ref(), false, |fs, dir, name| {
            fs.link(held.ino(), dir, name)
        })
    }

    /// Adds the name `link` to an open file, also to one of [`tempfile`](Self::tempfile), which
    /// then stays. After a crash the name leads to all bytes that were written before, or does not
    /// exist; so a new file appears whole:
    ///
    /// ```
    /// # use cairnfs::Volume;
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = Volume::in_memory(64 << 20)?;
    /// let file = volume.tempfile("/")?;
    /// file.write_all_at(b"complete", 0)?;
    /// volume.link_file(&file, "report")?;
    /// assert_eq!(volume.read("report")?, b"complete");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotPermitted`] for a directory; [`Error::NotFound`], also for a
    /// file whose last name was removed; [`Error::Invalid`] for a file of another volume or branch.
    pub fn link_file(&self, file: &File, link: impl AsRef<Path>) -> Result<()> {
        let ino = file.ino_in(self.file_system());
        let ino = ino.ok_or(Error::Invalid("a file of another volume or branch"))?;
        self.make_at(link.as_ref(), false, |fs, dir, name| {
            fs.link(ino, dir, name)
        })
    }

    /// Creates the symbolic link `link` with the target `original`, which need not exist.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`], [`Error::NameTooLong`].
    pub fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let target = original.as_ref().as_os_str().as_bytes();
        let link = link.as_ref();
        if target.is_empty() {
            return Err(Error::NotFound.at(link));
        }
        self.make_at(link, false, |fs, dir, name| {
            fs.symlink(dir, name, target, self.owner())
        })
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] if it is not a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let target = self.on(path.as_ref(), Follow::No, |fs, attr| {
            if !attr.kind.is_symlink() {
                return Err(Error::Invalid("not a symbolic link"));
            }
            fs.readlink(attr.ino)
        })?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    /// The absolute path of an existing file, without symbolic links, `.` and `..`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::SymlinkLoop`].
    pub fn canonicalize(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let names = canonical(self, path).map_err(|e| e.at(path))?;
        Ok(PathBuf::from(OsString::from_vec(names)))
    }

    /// Creates an empty file, FIFO, socket or device node. `mode` holds the type bits and the
    /// permissions, as for `mknod(2)`; `rdev` is the device number, as made by `makedev(3)`.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`], [`Error::Invalid`].
    pub fn mknod(&self, path: impl AsRef<Path>, mode: u32, rdev: u64) -> Result<()> {
        self.make_at(path.as_ref(), false, |fs, dir, name| {
            fs.mknod(dir, name, mode, rdev, self.owner())
        })
    }

    /// Creates an inode at a path, and releases the use of it that the engine took.
    fn make_at(
        &self,
        path: &Path,
        makes_dir: bool,
        make: impl FnOnce(&FileSystem, u64, &[u8]) -> Result<Attr>,
    ) -> Result<()> {
        self.at_name(
            path,
            |_| Error::Exists,
            |fs, walk| {
                if walk.wants_dir() && !makes_dir {
                    lookup(fs, walk.dir(), walk.name())?;
                    return Err(Error::Exists);
                }
                let made = make(fs, walk.dir().ino, walk.name())?;
                fs.forget(made.ino, 1);
                Ok(())
            },
        )
    }

    /// Calls `what` with the walk to the last name of a path; `unnamed` is the error for a path
    /// that does not end with a name. Errors get the path.
    fn at_name(
        &self,
        path: &Path,
        unnamed: fn(Unnamed) -> Error,
        what: impl FnOnce(&FileSystem, &Walk<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let fs: &FileSystem = self.file_system();
        walk_to_name(self, path, unnamed)
            .and_then(|walk| what(fs, &walk))
            .map_err(|e| e.at(path))
    }
}

fn not_renamed(_: Unnamed) -> Error {
    Error::Busy("the root, `.` and `..` cannot be renamed")
}

fn not_removed(path: Unnamed) -> Error {
    match path {
        Unnamed::Root => Error::Busy("the root cannot be removed"),
        Unnamed::Dot => Error::Invalid("a directory cannot be removed as `.`"),
        Unnamed::DotDot => Error::NotEmpty,
    }
}

fn walk_to_name<'f, 'p>(
    volume: &'f Volume,
    path: &'p Path,
    unnamed: fn(Unnamed) -> Error,
) -> Result<Walk<'f, 'p>> {
    let mut walk = Walk::new(volume, path)?;
    match walk.go_to_last()? {
        Last::Name => Ok(walk),
        Last::Itself(path) => Err(unnamed(path)),
    }
}

fn needs_dir(fs: &FileSystem, walk: &Walk<'_, '_>) -> Result<()> {
    let (_, attr) = lookup(fs, walk.dir(), walk.name())?;
    if attr.kind.is_dir() {
        Ok(())
    } else {
        Err(Error::NotDirectory)
    }
}

/// A directory in the process of being emptied.
struct Level<'f> {
    dir: Use<'f>,
    /// Its name in the level above.
    name: Vec<u8>,
    listing: Listing,
}

/// Removes everything in a directory. It walks by inode, so a directory that is moved away
/// meanwhile does not lead elsewhere, and without recursion, so the depth of the tree is not
/// limited.
fn empty<'f>(fs: &'f FileSystem, top: Use<'f>) -> Result<()> {
    let level = |dir, name| Level {
        dir,
        name,
        listing: Listing::default(),
    };
    let mut above = HashSet::from([top.ino()]);
    let mut levels = vec![level(top, Vec::new())];
    while let Some(current) = levels.last_mut() {
        let dir = current.dir.inode();
        if let Some(entry) = current.listing.next(fs, dir.ino)? {
            if !entry.kind.is_dir() {
                ignore_not_found(fs.unlink_in(dir, &entry.name))?;
                continue;
            }
            match lookup(fs, dir, &entry.name) {
                Ok((child, attr)) if attr.kind.is_dir() => {
                    if !above.insert(child.ino()) {
                        let ino = child.ino();
                        let found = format!("directory {ino}, which contains it");
                        return Err(Error::corrupt(0, "directory entry", "a tree", found));
                    }
                    levels.push(level(child, entry.name));
                }
                Ok(_) | Err(Error::NotFound) => {}
                Err(e) => return Err(e),
            }
            continue;
        }
        let done = levels.pop();
        done.iter().for_each(|done| {
            above.remove(&done.dir.ino());
        });
        if let (Some(done), Some(above)) = (done, levels.last()) {
            ignore_not_found(fs.rmdir(above.dir.ino(), &done.name))?;
        }
    }
    Ok(())
}

/// Ignores that another thread removed the entry first.
fn ignore_not_found(removed: Result<()>) -> Result<()> {
    match removed {
        Err(Error::NotFound) => Ok(()),
        other => other,
    }
}
