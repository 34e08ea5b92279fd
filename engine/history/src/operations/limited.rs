//! What a restore of some paths changes in a branch: the differences from the branch to the state
//! that is restored, without those outside of the paths.
//!
//! Uses the differences and both regions. Pure: it changes nothing. The result is as the changes of a
//! branch that is published, so the planner of merges makes operations of it.
//!
//! Invariants:
//! - *Kept* are the inodes that are in both regions. They have their numbers in the result, and are
//!   changed where they differ.
//! - A file that differs and has a name outside of the region of the branch is not kept: what is
//!   outside stays as it is.
//! - All other inodes of the restored state are copied: under their own numbers if both trees are of
//!   one origin and the branch does not have these, else under new ones.
//! - Cost and memory grow with the differences, and with what only one of the regions has.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::{InodeDelta, Item, Name, TreeDelta};
use crate::operations::region::{Region, is_dir};
use crate::publish::Attribute;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::{RawInode, S_IFDIR, S_IFLNK, S_IFMT};
use cairnfs_disk::types::Time;

/// What to restore.
pub(super) struct Asked<'a> {
    /// The differences from the branch to the state, of all inodes that both regions may have.
    pub all: &'a TreeDelta,
    /// Whether a number is the same file in both trees.
    pub related: bool,
    /// What is restored, in the branch.
    pub old: Region<'a>,
    /// What is restored, in the state.
    pub new: Region<'a>,
    /// The directories above the paths, by their numbers in the state: those in the result.
    pub above: BTreeMap<u64, u64>,
    /// Those that the branch does not have, by their numbers in the state, with names of the result.
    pub missing: BTreeMap<u64, Name>,
}

/// The differences of a branch to the state in which some of its paths are restored.
#[derive(Default)]
pub(super) struct Limited {
    pub delta: TreeDelta,
    /// The inodes that are copied: by their numbers in the result, those in the restored state.
    pub copies: BTreeMap<u64, u64>,
}

/// Names of one tree, each with its inode.
type Names = BTreeSet<(u64, Name)>;

struct Limiter<'a, 'n> {
    asked: Asked<'a>,
    new_ino: &'n mut dyn FnMut() -> u64,
    /// Names of the region of the branch that may not stay.
    lost: Names,
    /// Names of the region of the state that may be new, with its numbers.
    gained: Names,
    /// Inodes of the state that have another number in the result.
    numbers: BTreeMap<u64, u64>,
    copies: BTreeMap<u64, u64>,
    /// Files that are kept and differ.
    changed: BTreeSet<u64>,
}

/// Finds what changes. Directories in which paths are made or removed get the time `now`.
pub(super) fn limit(
    asked: Asked<'_>,
    new_ino: &mut dyn FnMut() -> u64,
    now: Time,
) -> Result<Limited> {
    let numbers = asked.above.clone();
    let copies = asked.missing.keys();
    let copies = copies.filter_map(|from| Some((*numbers.get(from)?, *from)));
    let mut limiter = Limiter {
        copies: copies.collect(),
        asked,
        new_ino,
        lost: BTreeSet::new(),
        gained: BTreeSet::new(),
        numbers,
        changed: BTreeSet::new(),
    };
    limiter.collect()?;
    limiter.place_dirs()?;
    limiter.place_files()?;
    limiter.finish(now)
}

/// Whether an inode that both trees have is not the same in both, apart from its names.
fn differs(inode: &InodeDelta) -> bool {
    let item = inode.item.is_some_and(|item| match (item.old, item.new) {
        (Some(old), Some(new)) => Attribute::all(&old) != Attribute::all(&new),
        _ => false,
    });
    item || !inode.xattrs.is_empty() || !inode.contents.is_empty()
}

/// Whether an inode can be made another version of itself: type, target and device do not change.
fn is_same_kind(inode: &InodeDelta) -> bool {
    let kind = |item: &RawInode| item.mode.get() & S_IFMT;
    match inode.item {
        Some(Item {
            old: Some(old),
            new: Some(new),
        }) => {
            let target = kind(&new) == S_IFLNK && !inode.contents.is_empty();
            kind(&old) == kind(&new) && old.rdev == new.rdev && !target
        }
        _ => true,
    }
}

impl Limiter<'_, '_> {
    /// Collects the names that differ, and all those in directories that only one region has.
    fn collect(&mut self) -> Result<()> {
        let Asked { all, old, new, .. } = &mut self.asked;
        for (ino, inode) in &all.inodes {
            for name in &inode.lost {
                if old.has(name)? {
                    self.lost.insert((*ino, name.clone()));
                }
            }
            for name in &inode.gained {
                if new.has(name)? {
                    self.gained.insert((*ino, name.clone()));
                }
            }
        }
        let tops = |region: &Region<'_>| -> Vec<(u64, Name)> {
            let tops = region.tops.iter();
            tops.map(|(name, ino)| (*ino, name.clone())).collect()
        };
        self.lost.extend(tops(old));
        self.gained.extend(tops(new));
        let related = self.asked.related;
        let (old, new) = (&mut self.asked.old, &mut self.asked.new);
        spread((old, new), related, &mut self.lost)?;
        spread((new, old), related, &mut self.gained)
    }

    /// Finds the directories of the state that are copied.
    fn place_dirs(&mut self) -> Result<()> {
        for ino in owners(&self.gained) {
            let new = self.asked.new.inode(ino)?;
            if !new.is_some_and(|inode| is_dir(&inode)) {
                continue;
            }
            if !(self.asked.related && self.asked.old.has_dir(ino)?) {
                self.copy(ino)?;
            }
        }
        Ok(())
    }

    /// Finds the files of the state that are copied, and those that stay and change.
    fn place_files(&mut self) -> Result<()> {
        let mut files = BTreeSet::new();
        for ino in owners(&self.gained) {
            let new = self.asked.new.inode(ino)?;
            if new.is_some_and(|inode| !is_dir(&inode)) {
                files.insert(ino);
            }
        }
        for (ino, inode) in &self.asked.all.inodes {
            let both = inode.item.and_then(|item| item.old.zip(item.new));
            if both.is_none_or(|(old, _)| !is_dir(&old)) && differs(inode) {
                files.insert(*ino);
            }
        }
        let lost = by_owner(&self.lost);
        let (mut there, mut unknown) = (BTreeMap::new(), BTreeSet::new());
        for ino in files.iter().copied() {
            if let Some(inode) = self.asked.old.inode(ino)?.filter(|inode| !is_dir(inode)) {
                there.insert(ino, u64::from(inode.nlink.get()));
                let known = lost.get(&ino).map_or(0, BTreeSet::len) as u64;
                if known < u64::from(inode.nlink.get()) {
                    unknown.insert(ino);
                }
            }
        }
        let mut names = by_owner(&self.asked.old.names(&unknown)?);
        for ino in files {
            let mut here = names.remove(&ino).unwrap_or_default();
            here.extend(lost.get(&ino).cloned().unwrap_or_default());
            let links = there.get(&ino).copied();
            self.place(ino, here, links)?;
        }
        Ok(())
    }

    /// Decides about a file that has the names `here` in the region of the branch, of `links` in all.
    fn place(&mut self, ino: u64, here: BTreeSet<Name>, links: Option<u64>) -> Result<()> {
        let stays = |name: &&Name| !self.lost.contains(&(ino, (*name).clone()));
        let stays: Vec<Name> = here.iter().filter(stays).cloned().collect();
        let first = Name {
            dir: 0,
            name: Vec::new(),
        };
        let next = self.gained.range((ino, first)..).next();
        let gains = next.is_some_and(|(owner, _)| *owner == ino);
        if !gains && stays.is_empty() {
            return Ok(());
        }
        let links = links.filter(|_| self.asked.related && !here.is_empty());
        let Some(links) = links else {
            return self.copy(ino);
        };
        let inode = self.asked.all.inodes.get(&ino);
        let outside = (here.len() as u64) < links;
        if inode.is_none_or(|inode| is_same_kind(inode) && !(outside && differs(inode))) {
            self.changed.insert(ino);
            return Ok(());
        }
        for name in stays {
            self.lost.insert((ino, name.clone()));
            self.gained.insert((ino, name));
        }
        self.copy(ino)
    }

    /// Has an inode of the state copied, under its own number if the branch does not use that.
    fn copy(&mut self, ino: u64) -> Result<()> {
        // A file that is open and has no name has its number, too.
        let is_free = self.asked.related && self.asked.old.files.inode(ino)?.is_none();
        let to = if is_free { ino } else { (self.new_ino)() };
        self.numbers.insert(ino, to);
        self.copies.insert(to, ino);
        Ok(())
    }

    /// The number in the result of an inode of the state.
    fn number(&self, ino: u64) -> u64 {
        self.numbers.get(&ino).copied().unwrap_or(ino)
    }

    fn finish(mut self, now: Time) -> Result<Limited> {
        let mut delta = TreeDelta::default();
        self.names(&mut delta);
        self.kept(&mut delta)?;
        for (to, from) in &self.copies {
            let new = self.asked.new.inode(*from)?.ok_or(Error::NotFound)?;
            let item = Item {
                old: None,
                new: Some(new),
            };
            delta.inodes.entry(*to).or_default().item = Some(item);
        }
        self.removed(&mut delta)?;
        self.touch(&mut delta, now)?;
        let copies = self.copies.into_iter();
        Ok(Limited {
            delta,
            copies: copies.filter(|(to, from)| to != from).collect(),
        })
    }

    /// Adds the names that differ in the result.
    fn names(&self, delta: &mut TreeDelta) {
        let renumbered = self.gained.iter().map(|(ino, name)| {
            let dir = self.number(name.dir);
            let name = name.name.clone();
            (self.number(*ino), Name { dir, name })
        });
        let mut gained: Names = renumbered.collect();
        let missing = self.asked.missing.iter();
        gained.extend(missing.map(|(ino, name)| (self.number(*ino), name.clone())));
        for (ino, name) in self.lost.difference(&gained) {
            let inode = delta.inodes.entry(*ino).or_default();
            inode.lost.push(name.clone());
        }
        for (ino, name) in gained.difference(&self.lost) {
            let inode = delta.inodes.entry(*ino).or_default();
            inode.gained.push(name.clone());
        }
    }

    /// Adds how kept inodes differ.
    fn kept(&mut self, delta: &mut TreeDelta) -> Result<()> {
        let related = self.asked.related;
        let Asked { all, old, new, .. } = &mut self.asked;
        for (ino, inode) in &all.inodes {
            let both = inode.item.and_then(|item| item.old.zip(item.new));
            let kept = match both {
                Some((old_item, _)) if is_dir(&old_item) => {
                    related && old.has_dir(*ino)? && new.has_dir(*ino)?
                }
                _ => self.changed.contains(ino),
            };
            if kept {
                let to = delta.inodes.entry(*ino).or_default();
                to.item = inode.item;
                to.xattrs = inode.xattrs.clone();
                to.contents = inode.contents.clone();
            }
        }
        Ok(())
    }

    /// Adds the inodes of the branch that are left without a name.
    fn removed(&self, delta: &mut TreeDelta) -> Result<()> {
        for (ino, inode) in &mut delta.inodes {
            if inode.lost.is_empty() || !inode.gained.is_empty() {
                continue;
            }
            let old = self.asked.old.inode(*ino)?.ok_or(Error::NotFound)?;
            if is_dir(&old) || inode.lost.len() as u64 >= u64::from(old.nlink.get()) {
                let gone = Item {
                    old: Some(old),
                    new: None,
                };
                inode.item = Some(gone);
            }
        }
        Ok(())
    }

    /// Gives the directories above the paths in which something changes the time of that.
    fn touch(&self, delta: &mut TreeDelta, now: Time) -> Result<()> {
        let names = delta.inodes.values();
        let names = names.flat_map(|inode| inode.lost.iter().chain(&inode.gained));
        let dirs: BTreeSet<u64> = names.map(|name| name.dir).collect();
        for dir in self.asked.above.values().filter(|dir| dirs.contains(dir)) {
            let Some(old) = self.asked.old.inode(*dir)? else {
                continue;
            };
            let new = RawInode {
                mtime: now.into(),
                ..old
            };
            let inode = delta.inodes.entry(*dir).or_default();
            inode.item = Some(Item {
                old: Some(old),
                new: Some(new),
            });
        }
        Ok(())
    }
}

/// Adds all names in the directories among the owners of `names`, and below, that are not in the
/// other region.
fn spread(
    (region, other): (&mut Region<'_>, &mut Region<'_>),
    related: bool,
    names: &mut Names,
) -> Result<()> {
    let mut todo = Vec::new();
    for ino in owners(names) {
        if region.inode(ino)?.is_some_and(|inode| is_dir(&inode)) {
            todo.push(ino);
        }
    }
    while let Some(dir) = todo.pop() {
        if related && other.has_dir(dir)? {
            continue;
        }
        region.files.entries(dir, &mut |entry| {
            let name = entry.name.to_vec();
            names.insert((entry.ino, Name { dir, name }));
            if entry.kind == S_IFDIR {
                todo.push(entry.ino);
            }
            Ok(true)
        })?;
    }
    Ok(())
}

fn owners(names: &Names) -> BTreeSet<u64> {
    names.iter().map(|(ino, _)| *ino).collect()
}

fn by_owner(names: &Names) -> BTreeMap<u64, BTreeSet<Name>> {
    let mut found: BTreeMap<u64, BTreeSet<Name>> = BTreeMap::new();
    for (ino, name) in names {
        found.entry(*ino).or_default().insert(name.clone());
    }
    found
}
