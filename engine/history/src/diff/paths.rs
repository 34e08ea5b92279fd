//! Paths of inodes in one tree, found when they are needed.
//!
//! Uses the tree. Entries lead from directories to children only; the way up is the parent in the
//! inode item, exact for directories and a hint for other inodes, and a search of that directory
//! for the entry. Few inodes are looked for in a large directory as if their numbers ascended with
//! the indexes of the entries, which they do where files were created in it; what that does not
//! find is found by reading all entries. The names of directories are cached, in a bounded table.
//!
//! Invariant: a path has at most [`MOST_LEVELS`] components; a damaged tree in which directories
//! hold each other gives an error.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::delta::Name;
use crate::diff::tree::FileTree;
use cairnfs_disk::clock::Clock;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::ROOT_INO;

/// Directories whose names are cached.
const CACHED: usize = 4096;

/// Number of entries that are read in the time in which one is looked for by its inode number.
const READ_INSTEAD: u64 = 512;

/// Most components of a path. No path in use is as long: the kernel takes 4095 bytes at a time.
const MOST_LEVELS: usize = 1 << 20;

/// Finds paths in a tree.
pub struct Paths<'a> {
    tree: FileTree<'a>,
    dirs: Clock<Name>,
}

impl<'a> Paths<'a> {
    /// The paths of a tree.
    pub fn new(tree: FileTree<'a>) -> Self {
        Self {
            tree,
            dirs: Clock::new(CACHED),
        }
    }

    /// Records the name of a directory, so that it is not searched.
    pub fn know(&mut self, dir: u64, name: &Name) {
        self.dirs.insert(dir, name.clone());
    }

    /// The path of a name, without a leading slash.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn of(&mut self, name: &Name) -> Result<Vec<u8>> {
        let mut parts = vec![name.name.clone()];
        let mut dir = name.dir;
        while dir != ROOT_INO {
            if parts.len() == MOST_LEVELS {
                return Err(lost(dir, "in the tree", "a circle of directories"));
            }
            let Name { dir: above, name } = self.name_of(dir)?;
            parts.push(name);
            dir = above;
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    /// The name of a directory other than the root.
    fn name_of(&mut self, dir: u64) -> Result<Name> {
        if let Some(name) = self.dirs.get(dir) {
            return Ok(name.clone());
        }
        let inode = self.tree.inode(dir)?;
        let parent = inode.ok_or_else(|| lost(dir, "an inode", "none"))?.parent;
        let found = self.search(parent.get(), BTreeSet::from([dir]))?;
        let name = found.into_values().next();
        let name = name.ok_or_else(|| lost(dir, "an entry in its parent", "none"))?;
        self.know(dir, &name);
        Ok(name)
    }

    /// One name of each of `inodes`, which are in the tree. Each directory is searched once for all
    /// of them; an inode that is not in the directory that its item names is searched in the whole
    /// tree.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn names(&mut self, inodes: impl Iterator<Item = u64>) -> Result<BTreeMap<u64, Name>> {
        let mut by_parent: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let mut missing = BTreeSet::new();
        for ino in inodes.filter(|ino| *ino != ROOT_INO) {
            let inode = self.tree.inode(ino)?;
            let parent = inode.ok_or_else(|| lost(ino, "an inode", "none"))?.parent;
            by_parent.entry(parent.get()).or_default().insert(ino);
            missing.insert(ino);
        }
        let mut names = BTreeMap::new();
        for (parent, wanted) in by_parent {
            let found = self.search(parent, wanted)?;
            missing.retain(|ino| !found.contains_key(ino));
            names.extend(found);
        }
        if !missing.is_empty() {
            self.tree.all_entries(&mut |dir, entry| {
                if missing.remove(&entry.ino) {
                    let name = entry.name.to_vec();
                    names.insert(entry.ino, Name { dir, name });
                }
                Ok(!missing.is_empty())
            })?;
        }
        match missing.first() {
            Some(ino) => Err(lost(*ino, "an entry", "none")),
            None => Ok(names),
        }
    }

    /// All names of `inodes`, which are not directories, each with its inode. The names of an inode that has several, or
    /// is not in the directory that its item names, are looked for in the directories among `known`.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn all_names(&self, inodes: BTreeSet<u64>, known: &[u64]) -> Result<Vec<(u64, Name)>> {
        let mut by_parent: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let mut several: BTreeMap<u64, u32> = BTreeMap::new();
        for ino in inodes {
            let inode = self.tree.inode(ino)?;
            let inode = inode.ok_or_else(|| lost(ino, "an inode", "none"))?;
            match inode.nlink.get() {
                0 => {}
                1 => {
                    let parent = inode.parent.get();
                    by_parent.entry(parent).or_default().insert(ino);
                }
                links => drop(several.insert(ino, links)),
            }
        }
        let mut names = Vec::new();
        for (parent, wanted) in by_parent {
            let found = self.search(parent, wanted.clone())?;
            let missing = wanted.iter().filter(|ino| !found.contains_key(ino));
            several.extend(missing.map(|ino| (*ino, 1)));
            names.extend(found);
        }
        let mut known = known.iter();
        while let (false, Some(dir)) = (several.is_empty(), known.next()) {
            self.tree.entries(*dir, &mut |entry| {
                if let Some(left) = several.get_mut(&entry.ino) {
                    *left -= 1;
                    let name = entry.name.to_vec();
                    names.push((entry.ino, Name { dir: *dir, name }));
                    if *left == 0 {
                        several.remove(&entry.ino);
                    }
                }
                Ok(!several.is_empty())
            })?;
        }
        Ok(names)
    }

    /// The wanted inodes that have a name in a directory.
    fn search(&self, dir: u64, mut wanted: BTreeSet<u64>) -> Result<BTreeMap<u64, Name>> {
        let mut found = self.in_order(dir, &wanted)?;
        wanted.retain(|ino| !found.contains_key(ino));
        if wanted.is_empty() {
            return Ok(found);
        }
        self.tree.entries(dir, &mut |entry| {
            if wanted.remove(&entry.ino) {
                let name = entry.name.to_vec();
                found.insert(entry.ino, Name { dir, name });
            }
            Ok(!wanted.is_empty())
        })?;
        Ok(found)
    }
}

impl Paths<'_> {
    /// The wanted inodes that a search in order finds, if that is faster than reading all entries.
    fn in_order(&self, dir: u64, wanted: &BTreeSet<u64>) -> Result<BTreeMap<u64, Name>> {
        let mut found = BTreeMap::new();
        let end = self.tree.inode(dir)?.map_or(0, |i| i.next_index.get());
        if READ_INSTEAD.saturating_mul(wanted.len() as u64) < end {
            for ino in wanted {
                let name = self.halve(dir, *ino, end)?;
                found.extend(name.map(|name| (*ino, Name { dir, name })));
            }
        }
        Ok(found)
    }

    /// The name of an inode among the entries below the index `end`, by halving them: it is found if
    /// the entries met have smaller inode numbers before it and greater ones behind it.
    pub(super) fn halve(&self, dir: u64, ino: u64, end: u64) -> Result<Option<Vec<u8>>> {
        let (mut low, mut high) = (0, end);
        while low < high {
            let middle = low + (high - low) / 2;
            let (mut found, mut next) = (None, high);
            self.tree.entries_from(dir, middle, &mut |index, entry| {
                if entry.ino == ino {
                    found = Some(entry.name.to_vec());
                } else if entry.ino < ino {
                    next = index;
                }
                Ok(false)
            })?;
            if found.is_some() {
                return Ok(found);
            }
            if next < high {
                low = next + 1
            } else {
                high = middle
            }
        }
        Ok(None)
    }
}

/// The last of `names`, from the root directory on, with the inode that has it; `None` for the root
/// directory, and where the tree has none.
///
/// # Errors
/// A damaged volume, the device's failure.
pub fn name_at(tree: &FileTree<'_>, names: &[&[u8]]) -> Result<Option<(Name, u64)>> {
    let Some((name, above)) = names.split_last() else {
        return Ok(None);
    };
    let (Some(dir), Some(ino)) = (tree.find(above)?, tree.find(names)?) else {
        return Ok(None);
    };
    let name = name.to_vec();
    Ok(Some((Name { dir, name }, ino)))
}

fn lost(ino: u64, expected: &str, found: &str) -> Error {
    let expected = format!("{expected} of inode {ino}");
    Error::corrupt(0, "path of an inode", expected, found)
}
