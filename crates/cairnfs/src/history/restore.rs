//! Restoring a branch, or some of its paths, to an earlier state.
//!
//! Uses staged heads and grafts. The state before stays as a snapshot. Restored files are copies
//! with new inode numbers, because the old ones may still be in use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::ROOT_INO;
use crate::format::stream::RawStreamInode;
use crate::fs::FileSystem;
use crate::history::apply::Source;
use crate::history::frozen::Frozen;
use crate::history::graft::{Graft, record_of};
use crate::history::stage::{Staged, until_unchanged};
use crate::history::{find, names_of};
use crate::refs;
use crate::types::FileKind;

/// Restores the branch `branch` to the state of a reference; with `paths`, only what is at and below
/// them. Returns the name of the snapshot of the state before.
///
/// # Errors
/// [`Error::NoRoot`]; [`Error::NotFound`] for a path that the reference does not have;
/// with paths [`Error::Unsettled`] if the branch does not stop changing; no space; the device's
/// failure.
pub fn restore(
    fs: &Arc<FileSystem>,
    reference: &str,
    branch: &str,
    paths: &[PathBuf],
) -> Result<String> {
    let (root, base) = (find(fs, reference)?, find(fs, branch)?);
    let name = base.name.clone().unwrap_or_default();
    let kept = refs::undo_name(&name, &fs.roots(), fs.core().now());
    if !base.writable {
        return Err(Error::Invalid(
            "a snapshot cannot be changed: restore a branch",
        ));
    }
    if paths.is_empty() {
        let staged = Staged::fork(fs, root.id)?;
        staged.publish(base.id, &kept, None)?;
        return Ok(kept);
    }
    let from = Frozen::of(fs, root)?;
    until_unchanged(fs, (&[base.id], &name), || {
        let staged = Staged::fork(fs, base.id)?;
        let since = fs.roots().into_iter().find(|root| root.id == staged.id);
        let since = since.and_then(|root| root.parent);
        let source = Source {
            files: from.files(fs),
            blocks: fs.core().data(),
        };
        let mut restorer = Restorer {
            graft: Graft::new(staged.open()?)?,
            fs,
            source,
            numbers: (0, 0),
            links: BTreeMap::new(),
        };
        for path in paths {
            restorer.restore(path).map_err(|e| e.at(path))?;
        }
        restorer.graft.finish()?;
        staged.publish(base.id, &kept, since)
    })?;
    Ok(kept)
}

struct Restorer<'a> {
    fs: &'a FileSystem,
    graft: Graft,
    source: Source<'a>,
    /// Numbers for new inodes.
    numbers: (u64, u64),
    /// New numbers of files with several names.
    links: BTreeMap<u64, u64>,
}

impl Restorer<'_> {
    fn restore(&mut self, path: &Path) -> Result<()> {
        let names = names_of(path);
        if names.contains(&&b".."[..]) {
            return Err(Error::Invalid("a path to restore has no `..`"));
        }
        let Some((last, above)) = names.split_last() else {
            return Err(Error::Invalid(
                "to restore everything, name no path: the whole branch is restored",
            ));
        };
        // Checked before anything is made.
        let (mut from, mut dirs) = (ROOT_INO, Vec::new());
        for name in above {
            from = self.child(from, name)?;
            dirs.push((from, *name));
        }
        let ino = self.child(from, last)?;
        let mut dir = ROOT_INO;
        for (from, name) in dirs {
            dir = match self.graft.holder(dir, name)? {
                Some(there) => there,
                None => {
                    self.touch(dir)?;
                    let made = self.copy(from)?;
                    self.graft.link(dir, name, made)?;
                    made
                }
            };
        }
        self.touch(dir)?;
        if let Some(old) = self.graft.holder(dir, last)? {
            self.remove(dir, last, old)?;
        }
        self.copy_tree(dir, last, ino)
    }

    /// The inode of a name in the state that is restored.
    fn child(&self, dir: u64, name: &[u8]) -> Result<u64> {
        let found = self.source.files.child(dir, name)?;
        found.ok_or(Error::NotFound)
    }

    /// Gives a directory the times of a change now, whatever else is done to it, and keeps its
    /// flags.
    fn touch(&mut self, dir: u64) -> Result<()> {
        let attr = self.graft.attr(dir)?.ok_or(Error::NotFound)?;
        if attr.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        let now = self.fs.core().now().into();
        self.graft.settle(&RawStreamInode {
            mtime: now,
            ctime: now,
            ..record_of(&attr)
        })
    }

    /// Removes a name with everything below it.
    fn remove(&mut self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
        let mut todo = vec![(dir, name.to_vec(), ino, false)];
        while let Some((dir, name, ino, emptied)) = todo.pop() {
            self.graft.loosen(ino)?;
            let attr = self.graft.attr(ino)?.ok_or(Error::NotFound)?;
            if attr.kind != FileKind::Directory {
                self.graft.fs().unlink(dir, &name)?;
            } else if emptied {
                self.graft.fs().rmdir(dir, &name)?;
            } else {
                todo.push((dir, name, ino, true));
                self.graft.fs().readdir(ino, 0, &mut |entry| {
                    if !entry.is_dots() {
                        todo.push((ino, entry.name.to_vec(), entry.ino, false));
                    }
                    true
                })?;
            }
        }
        Ok(())
    }

    /// Copies an inode, without names or entries. Returns its new number.
    fn copy(&mut self, ino: u64) -> Result<u64> {
        let to = self.fs.core().superblocks().new_ino(&mut self.numbers);
        self.source.copy(&mut self.graft, ino, to)?;
        Ok(to)
    }

    /// Copies an inode with everything below it, and gives it a name.
    fn copy_tree(&mut self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
        let mut todo = vec![(dir, name.to_vec(), ino)];
        while let Some((dir, name, ino)) = todo.pop() {
            let raw = self.source.files.inode(ino)?.ok_or(Error::NotFound)?;
            let is_dir = FileKind::from_mode(raw.mode.get()) == Some(FileKind::Directory);
            let to = match self.links.get(&ino) {
                Some(to) => *to,
                None => self.copy(ino)?,
            };
            if !is_dir && raw.nlink.get() > 1 {
                self.links.insert(ino, to);
            }
            self.graft.link(dir, &name, to)?;
            if is_dir {
                self.source.files.entries(ino, &mut |entry| {
                    todo.push((to, entry.name.to_vec(), entry.ino));
                    Ok(true)
                })?;
            }
        }
        Ok(())
    }
}
