//! The part of a tree that is at and below some names.
//!
//! Uses the tree, and the names of its inodes. Whether a directory is in it is found by going up, so
//! little of a large tree is read. Memory grows with the number of directories asked about.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::{FileTree, Name, Paths};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::{RawInode, S_IFDIR, S_IFMT};

/// A part of a tree.
pub(super) struct Region<'a> {
    pub files: FileTree<'a>,
    /// The names at which it begins, and the inodes that have them.
    pub tops: BTreeMap<Name, u64>,
    /// The directories among these inodes.
    top_dirs: BTreeSet<u64>,
    /// Directories that were asked about.
    known: BTreeMap<u64, bool>,
}

pub(super) fn is_dir(inode: &RawInode) -> bool {
    inode.mode.get() & S_IFMT == S_IFDIR
}

impl<'a> Region<'a> {
    /// What is at and below the names `tops`, which lead to these inodes.
    pub fn new(files: FileTree<'a>, tops: BTreeMap<Name, u64>) -> Result<Self> {
        let mut region = Self {
            files,
            tops,
            top_dirs: BTreeSet::new(),
            known: BTreeMap::new(),
        };
        for ino in region.tops.values() {
            if region.inode(*ino)?.is_some_and(|inode| is_dir(&inode)) {
                region.top_dirs.insert(*ino);
            }
        }
        Ok(region)
    }

    /// The item of an inode of the tree that has a name.
    pub fn inode(&self, ino: u64) -> Result<Option<RawInode>> {
        let inode = self.files.inode(ino)?;
        Ok(inode.filter(|inode| inode.nlink.get() > 0))
    }

    /// Whether there is a directory in the region.
    pub fn has_dirs(&self) -> bool {
        !self.top_dirs.is_empty()
    }

    /// Whether a directory is in the region.
    pub fn has_dir(&mut self, dir: u64) -> Result<bool> {
        let (mut at, mut way) = (dir, Vec::new());
        let found = loop {
            if self.top_dirs.contains(&at) {
                break true;
            }
            if at == ROOT_INO {
                break false;
            }
            if let Some(known) = self.known.get(&at) {
                break *known;
            }
            // Directories that hold each other, in a damaged tree, are found here again.
            self.known.insert(at, false);
            way.push(at);
            match self.inode(at)? {
                Some(inode) if is_dir(&inode) => at = inode.parent.get(),
                _ => break false,
            }
        };
        self.known.extend(way.into_iter().map(|dir| (dir, found)));
        Ok(found)
    }

    /// Whether a name of the tree is in the region.
    pub fn has(&mut self, name: &Name) -> Result<bool> {
        Ok(self.tops.contains_key(name) || self.has_dir(name.dir)?)
    }

    /// The names in the region of files of the tree. All its directories are read if one of the
    /// files has several names.
    pub fn names(&mut self, files: &BTreeSet<u64>) -> Result<BTreeSet<(u64, Name)>> {
        let mut found: BTreeSet<(u64, Name)> = BTreeSet::new();
        for (name, ino) in &self.tops {
            if files.contains(ino) {
                found.insert((*ino, name.clone()));
            }
        }
        if !self.has_dirs() || files.is_empty() {
            return Ok(found);
        }
        let paths = Paths::new(self.files);
        let one = paths.all_names(files.clone(), &[])?;
        let mut rest = files.clone();
        for (ino, _) in &one {
            rest.remove(ino);
        }
        let several = if rest.is_empty() {
            Vec::new()
        } else {
            paths.all_names(rest, &self.dirs()?)?
        };
        for (ino, name) in one.into_iter().chain(several) {
            if self.has(&name)? {
                found.insert((ino, name));
            }
        }
        Ok(found)
    }

    /// All directories in the region.
    fn dirs(&self) -> Result<Vec<u64>> {
        let mut dirs: Vec<u64> = self.top_dirs.iter().copied().collect();
        let mut at = 0;
        while let Some(dir) = dirs.get(at).copied() {
            self.files.entries(dir, &mut |entry| {
                if entry.kind == S_IFDIR {
                    dirs.push(entry.ino);
                }
                Ok(true)
            })?;
            at += 1;
        }
        Ok(dirs)
    }
}
