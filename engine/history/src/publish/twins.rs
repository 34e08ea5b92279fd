//! What both sides made anew in one place: directories that become one, and equal files.
//!
//! Uses the changes of both sides, and the trees to compare contents. Inodes have different numbers
//! if both sides made them. Here the changes of their side are rewritten to our numbers, so that the
//! planner finds one inode where both made the same: a directory with the attributes and names of
//! both, or a file that both changed to the same.
//!
//! Invariants:
//! - An inode has at most one twin, neither was in the base, and both have the same type.
//! - Twin directories have the same name in the same directory, or in twins.
//! - Twin files have all their names in common, and everything else but times. So a file with
//!   several names is the same only if the other one has just these.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::{InodeDelta, Name, TreeDelta};
use crate::publish::outcome::Attribute;
use crate::publish::trees::Trees;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::item::{RawInode, S_IFDIR, S_IFMT};

/// The inodes that both sides made, by our numbers.
#[derive(Default)]
pub(super) struct Twins {
    dirs: BTreeSet<u64>,
    files: BTreeSet<u64>,
}

impl Twins {
    /// Finds twins, and rewrites their changes to our numbers. Files are taken as they are on our
    /// side.
    ///
    /// # Errors
    /// Those of `trees`.
    pub fn unite(ours: &TreeDelta, theirs: &mut TreeDelta, trees: &mut dyn Trees) -> Result<Self> {
        let mut found = Found::default();
        found.pair(ours, theirs);
        found.compare(ours, theirs, trees)?;
        if !found.dirs.is_empty() || !found.files.is_empty() {
            found.rewrite(ours, theirs);
        }
        Ok(Self {
            dirs: found.dirs.into_values().collect(),
            files: found.files.into_values().collect(),
        })
    }

    /// Whether both sides made this directory.
    pub fn is_directory(&self, ino: u64) -> bool {
        self.dirs.contains(&ino)
    }

    /// Whether both sides made this file, with the same contents.
    pub fn is_file(&self, ino: u64) -> bool {
        self.files.contains(&ino)
    }
}

/// Twins by their number on their side, with ours.
#[derive(Default)]
struct Found {
    dirs: BTreeMap<u64, u64>,
    files: BTreeMap<u64, u64>,
}

/// The item of an inode that a side made.
fn made(delta: &TreeDelta, ino: u64) -> Option<RawInode> {
    let inode = delta.inodes.get(&ino).filter(|inode| inode.is_added());
    inode.and_then(|inode| inode.item).and_then(|item| item.new)
}

fn kind(inode: &RawInode) -> u32 {
    inode.mode.get() & S_IFMT
}

/// Whether two files are equal, but for times, names and contents.
fn are_alike(ours: &RawInode, theirs: &RawInode) -> bool {
    let timeless = |inode: &RawInode| {
        let all = Attribute::all(inode).into_iter();
        let all = all.filter(|a| !matches!(a, Attribute::Mtime(_)));
        (
            kind(inode),
            inode.rdev,
            inode.size,
            inode.nlink,
            all.collect::<Vec<_>>(),
        )
    };
    timeless(ours) == timeless(theirs)
}

impl Found {
    /// Goes down from the directories that both trees have. Files are only candidates here.
    fn pair(&mut self, ours: &TreeDelta, theirs: &TreeDelta) {
        let names = |delta| -> BTreeMap<u64, BTreeMap<&[u8], u64>> {
            let mut dirs: BTreeMap<u64, BTreeMap<&[u8], u64>> = BTreeMap::new();
            let all = inodes_made(delta);
            for (name, ino) in all.flat_map(|(ino, i)| i.gained.iter().map(move |n| (n, ino))) {
                let entries = dirs.entry(name.dir).or_default();
                entries.insert(&name.name, ino);
            }
            dirs
        };
        let (our_names, their_names) = (names(ours), names(theirs));
        let mut todo: Vec<(u64, u64)> = their_names.keys().map(|dir| (*dir, *dir)).collect();
        while let Some((our_dir, their_dir)) = todo.pop() {
            let both = our_names.get(&our_dir).zip(their_names.get(&their_dir));
            let Some((our_names, their_names)) = both else {
                continue;
            };
            for (name, their) in their_names {
                let Some(our) = our_names.get(name) else {
                    continue;
                };
                // A number that the other side has, too, is the same inode there.
                if ours.inodes.contains_key(their) || theirs.inodes.contains_key(our) {
                    continue;
                }
                let items = made(ours, *our).zip(made(theirs, *their));
                match items.map(|(a, b)| (kind(&a), kind(&b))) {
                    Some((S_IFDIR, S_IFDIR)) => {
                        self.dirs.insert(*their, *our);
                        todo.push((*our, *their));
                    }
                    Some((a, b)) if a == b => drop(self.files.insert(*their, *our)),
                    _ => {}
                }
            }
        }
    }

    /// Leaves the files that are equal.
    fn compare(
        &mut self,
        ours: &TreeDelta,
        theirs: &TreeDelta,
        trees: &mut dyn Trees,
    ) -> Result<()> {
        let mut files = std::mem::take(&mut self.files);
        files.retain(|their, our| self.have_same_item(ours, theirs, (*our, *their)));
        for (their, our) in files {
            if trees.same_contents(our, their)? {
                self.files.insert(their, our);
            }
        }
        Ok(())
    }

    fn have_same_item(
        &self,
        ours: &TreeDelta,
        theirs: &TreeDelta,
        (our, their): (u64, u64),
    ) -> bool {
        let (Some(a), Some(b)) = (made(ours, our), made(theirs, their)) else {
            return false;
        };
        let (Some(ours), Some(theirs)) = (ours.inodes.get(&our), theirs.inodes.get(&their)) else {
            return false;
        };
        are_alike(&a, &b)
            && a.nlink.get() as usize == ours.gained.len()
            && ours.xattrs == theirs.xattrs
            && ours.gained == self.renamed(theirs.gained.clone())
    }

    /// Names of their side in our numbers, in order.
    fn renamed(&self, mut names: Vec<Name>) -> Vec<Name> {
        for name in &mut names {
            name.dir = self.dirs.get(&name.dir).copied().unwrap_or(name.dir);
        }
        names.sort_unstable();
        names
    }

    fn rewrite(&self, ours: &TreeDelta, theirs: &mut TreeDelta) {
        for (ino, mut inode) in std::mem::take(&mut theirs.inodes) {
            let file = self.files.get(&ino);
            if let Some((our, same)) = file.and_then(|our| ours.inodes.get_key_value(our)) {
                theirs.inodes.insert(*our, same.clone());
                continue;
            }
            inode.gained = self.renamed(inode.gained);
            let ino = self.dirs.get(&ino).copied().unwrap_or(ino);
            theirs.inodes.insert(ino, inode);
        }
    }
}

fn inodes_made(delta: &TreeDelta) -> impl Iterator<Item = (u64, &InodeDelta)> {
    let all = delta.inodes.iter().map(|(ino, inode)| (*ino, inode));
    all.filter(|(_, inode)| inode.is_added())
}
