//! Calls of [`Volume`] on the contents of files: opening, reading and writing whole files,
//! copying.
//!
//! Opening follows the rules of `open(2)`: a symbolic link at the end of the path is followed, also
//! if its target is still to be created, unless `create_new` is set.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Volume;
use super::file::{File, Mode};
use super::handle::{Use, lookup};
use super::options::OpenOptions;
use super::path::{Follow, Last, Walk};
use cairnfs_core::fs::FileSystem;
use cairnfs_core::fs::may_open;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::{Attr, FileKind, KillPrivileges, SeekTo, SetAttr};

/// Retries of an open that races with threads that create and remove the same name.
const RACES: u32 = 64;

/// Most bytes copied by one call of the engine.
const COPY_STEP: u64 = 64 << 20;

/// An opened or created inode.
struct Opened<'f> {
    held: Use<'f>,
    attr: Attr,
    made: bool,
}

impl Volume {
    /// Opens a file for reading. A directory can be opened to be synced, but not read.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::SymlinkLoop`].
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    /// Opens a file for writing; creates it, or truncates an existing file.
    ///
    /// # Errors
    /// [`Error::IsDirectory`], or as [`open_file`](Self::open_file).
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        self.open_with(path, &options)
    }

    /// Creates a file that does not exist yet, and opens it for reading and writing, like
    /// [`std::fs::File::create_new`].
    ///
    /// # Errors
    /// [`Error::Exists`], also for a symbolic link with that name; otherwise as
    /// [`create_file`](Self::create_file).
    pub fn create_new_file(&self, path: impl AsRef<Path>) -> Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        self.open_with(path, &options)
    }

    /// Opens a file with `options`, like `options.open(path)` of `std::fs`.
    ///
    /// # Errors
    /// [`Error::Exists`] with `create_new`; [`Error::Invalid`] for an invalid combination of
    /// options; otherwise as [`create_file`](Self::create_file).
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref();
        self.open_path(options, path).map_err(|e| e.at(path))
    }

    /// Creates a file without a name for reading and writing. It inherits flags from `dir` as a new
    /// entry would; it is removed with the last [`File`].
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file).
    pub fn tempfile(&self, dir: impl AsRef<Path>) -> Result<File> {
        let inode = self.on(dir.as_ref(), Follow::Yes, |fs, dir| {
            let attr = fs.tmpfile(dir.ino, 0o600, self.owner())?;
            fs.inode(attr.ino)
        })?;
        let options = OpenOptions {
            read: true,
            write: true,
            ..OpenOptions::default()
        };
        Ok(self.file(Use::of(self.file_system(), inode), &options))
    }

    fn file(&self, held: Use<'_>, options: &OpenOptions) -> File {
        let mode = Mode {
            read: options.read,
            write: options.write,
            append: options.append,
            sync: options.sync,
            kill_privileges: Mode::kill_privileges_of(self.owner()),
        };
        File::new(held.keep(self.engine()), mode)
    }

    fn open_path(&self, options: &OpenOptions, path: &Path) -> Result<File> {
        options.check()?;
        let opened = self.find_or_make(options, path)?;
        let writes = options.write || options.append;
        match opened.attr.kind {
            FileKind::File => {}
            FileKind::Directory if writes => return Err(Error::IsDirectory),
            FileKind::Directory => {}
            _ => return Err(Error::Unsupported("a special file has no contents here")),
        }
        // Each write checks this again; open reports the error early, like open(2).
        if writes {
            self.file_system().check_running()?;
            if self.is_read_only() {
                return Err(Error::ReadOnly);
            }
            may_open(opened.attr.flags, options.append)?;
        }
        if options.truncate && !opened.made {
            let empty = SetAttr {
                size: Some(0),
                kill_privileges: Mode::kill_privileges_of(self.owner()),
                ..SetAttr::default()
            };
            self.file_system().setattr(opened.attr.ino, &empty)?;
        }
        Ok(self.file(opened.held, options))
    }

    fn find_or_make(&self, options: &OpenOptions, path: &Path) -> Result<Opened<'_>> {
        let fs: &FileSystem = self.file_system();
        let mut walk = Walk::new(self, path)?;
        let mut races = 0;
        'links: loop {
            if walk.go_to_last()? != Last::Name {
                if options.create_new {
                    return Err(Error::Exists);
                }
                let (held, attr) = walk.into_dir()?;
                return Ok(Opened {
                    held,
                    attr,
                    made: false,
                });
            }
            if walk.wants_dir() && (options.create || options.create_new) {
                return Err(Error::IsDirectory);
            }
            loop {
                // With `create_new` there is no lookup: the creation fails if the name exists.
                let found = if options.create_new {
                    Err(Error::NotFound)
                } else {
                    lookup(fs, walk.dir(), walk.name())
                };
                match found {
                    Ok((link, attr)) if attr.kind.is_symlink() => {
                        walk.follow(fs.readlink(link.ino())?)?;
                        continue 'links;
                    }
                    Ok((_, attr)) if walk.wants_dir() && !attr.kind.is_dir() => {
                        return Err(Error::NotDirectory);
                    }
                    Ok((held, attr)) => {
                        return Ok(Opened {
                            held,
                            attr,
                            made: false,
                        });
                    }
                    Err(Error::NotFound) if options.create || options.create_new => {}
                    Err(e) => return Err(e),
                }
                match self.make_file(&walk, options) {
                    Err(Error::Exists) if !options.create_new && races < RACES => races += 1,
                    made => return made,
                }
            }
        }
    }

    fn make_file(&self, walk: &Walk<'_, '_>, options: &OpenOptions) -> Result<Opened<'_>> {
        let fs = self.file_system();
        let mode = FileKind::File.mode_bits() | (options.mode & 0o7777);
        let (inode, attr) = fs.mknod_in(walk.dir(), walk.name(), mode, 0, self.owner())?;
        let held = Use::of(fs, inode);
        Ok(Opened {
            held,
            attr,
            made: true,
        })
    }

    /// Reads all bytes of a file.
    ///
    /// # Errors
    /// [`Error::IsDirectory`], or as [`open_file`](Self::open_file).
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.on(path.as_ref(), Follow::Yes, |fs, attr| match attr.kind {
            FileKind::File => read_all(fs, attr),
            FileKind::Directory => Err(Error::IsDirectory),
            _ => Err(Error::Unsupported("a special file has no contents here")),
        })
    }

    /// Reads a whole file as UTF-8 text.
    ///
    /// # Errors
    /// [`Error::NotUtf8`], or as [`read`](Self::read).
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        String::from_utf8(self.read(path)?).map_err(|_| Error::NotUtf8.at(path))
    }

    /// Creates a file with these bytes, or replaces the contents of an existing file. The latter
    /// takes two steps: for the old or the new contents after a crash, write another file and
    /// [`rename`](Self::rename) it.
    ///
    /// # Errors
    /// As [`create_file`](Self::create_file).
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let file = self.create_file(path)?;
        file.write_all_at(contents.as_ref(), 0)
            .map_err(|e| e.at(path))
    }

    /// Copies contents and permissions of a file within the volume; returns its size in bytes.
    /// Holes stay holes. `to` is created, or overwritten in several steps like
    /// [`write`](Self::write).
    ///
    /// # Errors
    /// [`Error::Invalid`] if both paths lead to the same file, or as
    /// [`create_file`](Self::create_file).
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (source_use, source) = self.find(from, Follow::Yes)?;
        if !source.kind.is_file() {
            return Err(Error::Invalid("only a regular file can be copied").at(from));
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(source.mode);
        let target = self.open_with(to, &options)?;
        let copied = || {
            let ino = target.metadata()?.ino();
            if ino == source_use.ino() {
                return Err(Error::Invalid("a file cannot be copied to itself"));
            }
            target.set_len(0)?;
            let fs = self.file_system();
            let kill = Mode::kill_privileges_of(self.owner());
            copy_data(fs, source_use.ino(), ino, kill)?;
            let size = fs.getattr(source_use.ino())?.size;
            target.set_len(size)?;
            target.set_permissions(Permissions::from_mode(source.mode))?;
            Ok(size)
        };
        copied().map_err(|e: Error| e.at(to))
    }
}

fn read_all(fs: &FileSystem, attr: &Attr) -> Result<Vec<u8>> {
    /// The size is only a hint: a sparse file may be larger than memory.
    const STEP: usize = 1 << 20;
    let mut bytes = Vec::new();
    // One byte more than the size, so that a single short read reaches the end.
    let mut step = attr.size.saturating_add(1).min(STEP as u64) as usize;
    loop {
        let start = bytes.len();
        bytes.resize(start + step, 0);
        let n = fs.read(
            attr.ino,
            start as u64,
            bytes.get_mut(start..).unwrap_or_default(),
        )?;
        bytes.truncate(start + n);
        if n == 0 || (n < step && bytes.len() as u64 >= attr.size) {
            return Ok(bytes);
        }
        step = STEP;
    }
}

/// Copies all ranges with data.
fn copy_data(fs: &FileSystem, from: u64, to: u64, kill: KillPrivileges) -> Result<()> {
    let mut at = 0;
    loop {
        let data = match fs.seek(from, at, SeekTo::Data) {
            Ok(data) => data,
            Err(Error::NoSuchOffset) => return Ok(()),
            Err(e) => return Err(e),
        };
        let hole = match fs.seek(from, data, SeekTo::Hole) {
            Ok(hole) => hole,
            // The file was truncated meanwhile.
            Err(Error::NoSuchOffset) => return Ok(()),
            Err(e) => return Err(e),
        };
        at = data;
        while at < hole {
            let copied = fs.copy_range(from, at, to, at, (hole - at).min(COPY_STEP), kill)?;
            if copied == 0 {
                return Ok(());
            }
            at += copied;
        }
    }
}
