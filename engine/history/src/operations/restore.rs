//! Restoring a branch, or some of its paths, to an earlier state.
//!
//! Uses staged heads, the planner of merges and grafts. The state before stays as a snapshot. To
//! restore paths, the changes that this makes are planned as those of a branch that is published:
//! what both states have keeps its inode number, and only differences are copied.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::diff::{Changes, FileTree, InodeDelta, Name, TreeDelta};
use crate::operations::apply::{Source, apply};
use crate::operations::frozen::Frozen;
use crate::operations::graft::Graft;
use crate::operations::limited::{Asked, limit};
use crate::operations::lineage::{parent_of, parted};
use crate::operations::named::with_turns;
use crate::operations::received::{joined, received_of};
use crate::operations::region::{Region, is_dir};
use crate::operations::stage::{Staged, until_unchanged};
use crate::operations::{name_of, names_of};
use crate::publish::{FrozenTrees, Plan, plan};
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::ROOT_INO;

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
    with_turns(fs, [branch, reference], 1, |[base, root]| {
        if !base.writable {
            return Err(Error::Invalid(
                "a snapshot cannot be changed: restore a branch",
            ));
        }
        if paths.is_empty() {
            return Staged::fork(fs, root.id)?.publish(base.id, None);
        }
        let paths = separate(paths)?;
        let from = Frozen::of(fs, root.clone())?;
        until_unchanged(fs, (&[base.id], name_of(base)), || {
            restore_paths(fs, &from, &paths, base.id)
        })
    })
}

/// A path as it was asked for, and its names.
pub(super) type Asking<'p> = (&'p Path, Vec<&'p [u8]>);

/// The paths without those below another one.
fn separate(paths: &[PathBuf]) -> Result<Vec<Asking<'_>>> {
    let mut all: Vec<Asking<'_>> = Vec::new();
    for path in paths {
        let names = names_of(path);
        let wrong = match names.is_empty() {
            _ if names.contains(&&b".."[..]) => "a path to restore has no `..`",
            true => "to restore everything, name no path: the whole branch is restored",
            false => {
                all.push((path, names));
                continue;
            }
        };
        return Err(Error::Invalid(wrong).at(path));
    }
    // What is below a path follows it.
    all.sort_by(|(_, a), (_, b)| a.cmp(b));
    let mut kept: Vec<Asking<'_>> = Vec::new();
    for (path, names) in all {
        let last = kept.last().map(|(_, names)| names);
        if !last.is_some_and(|last| names.starts_with(last)) {
            kept.push((path, names));
        }
    }
    Ok(kept)
}

pub(super) fn restore_paths(
    fs: &Arc<FileSystem>,
    from: &Frozen,
    paths: &[Asking<'_>],
    base: u32,
) -> Result<String> {
    let core = fs.core();
    let staged = Staged::fork(fs, base)?;
    let roots = fs.roots();
    let before = parent_of(staged.id, &roots).ok_or(Error::Stale)?;
    let before = Frozen::of(fs, before.clone())?;
    let (old, new) = (before.files(fs), from.files(fs));
    // The branch of the state may be gone by now; what was frozen of it stays, with all above it.
    let related = parted(fs, staged.id, from.id(), &roots).is_some();
    let mut chunk = (0, 0);
    let mut new_ino = || core.superblocks().new_ino(&mut chunk);
    let mut places = Places::default();
    for (path, names) in paths {
        let found = places.find((&old, &new), names, related, &mut new_ino);
        found.map_err(|e| e.at(path))?;
    }
    let (regions, all) = differences(fs, (old, new), &places, related)?;
    let asked = Asked {
        all: &all,
        related,
        old: regions.0,
        new: regions.1,
        above: places.above,
        missing: places.missing,
    };
    let limited = limit(asked, &mut new_ino, core.now())?;
    let mut trees = FrozenTrees::new([old, old, new], core.data());
    let planned = plan(&TreeDelta::default(), limited.delta, &mut trees, &|_| None)?;
    let Plan {
        operations,
        conflicts,
    } = planned;
    if let Some(conflict) = conflicts.first() {
        let found = format!("{:?} at {:?}", conflict.kind, conflict.path);
        return Err(Error::corrupt(0, "tree to restore", "no conflict", found));
    }
    if !operations.is_empty() {
        let mut graft = Graft::new(staged.open()?)?;
        let source = Source {
            files: new,
            blocks: core.data(),
        };
        apply(&mut graft, source, &operations, &limited.copies, core.now())?;
        // Files have the numbers that were received with the state.
        if related && let Some(received) = joined(received_of(old)?, &received_of(new)?)? {
            graft.set_received(&received)?;
        }
        graft.finish()?;
    }
    staged.publish(base, Some(before.root.id))
}

/// The regions of the branch and of the state, and the differences of what may be in them.
fn differences<'f>(
    fs: &'f FileSystem,
    (old, new): (FileTree<'f>, FileTree<'f>),
    places: &Places,
    related: bool,
) -> Result<((Region<'f>, Region<'f>), TreeDelta)> {
    let regions = (
        Region::new(old, places.old.clone())?,
        Region::new(new, places.new.clone())?,
    );
    let mut all = TreeDelta::default();
    if related && (regions.0.has_dirs() || regions.1.has_dirs()) {
        all = TreeDelta::collect(Changes::new(old, new)?)?;
    } else if related {
        for ino in places.new.values() {
            let delta = InodeDelta::of_file(*ino, (&old, &new), fs.core().data())?;
            all.inodes.extend(delta.map(|delta| (*ino, delta)));
        }
    }
    Ok((regions, all))
}

/// Where the paths are in the branch and in the state.
#[derive(Default)]
struct Places {
    /// Their names in the branch, as far as it has them, and the inodes.
    old: BTreeMap<Name, u64>,
    /// Their names in the state, and the inodes.
    new: BTreeMap<Name, u64>,
    /// The directories above them, by their numbers in the state: those in the result.
    above: BTreeMap<u64, u64>,
    /// Those that the branch does not have, by their numbers in the state, with names of the result.
    missing: BTreeMap<u64, Name>,
}

impl Places {
    fn find(
        &mut self,
        (old, new): (&FileTree<'_>, &FileTree<'_>),
        names: &[&[u8]],
        related: bool,
        new_ino: &mut dyn FnMut() -> u64,
    ) -> Result<()> {
        let (mut from, mut dir) = (ROOT_INO, ROOT_INO);
        self.above.insert(from, dir);
        let Some((last, above)) = names.split_last() else {
            return Ok(());
        };
        for name in above {
            from = new.child(from, name)?.ok_or(Error::NotFound)?;
            if let Some(known) = self.above.get(&from) {
                dir = *known;
                continue;
            }
            let there = if self.is_missing(dir) {
                None
            } else {
                old.child(dir, name)?
            };
            dir = match there {
                Some(there) => {
                    let inode = old.inode(there)?.ok_or(Error::NotFound)?;
                    if is_dir(&inode) {
                        there
                    } else {
                        return Err(Error::NotDirectory);
                    }
                }
                None => {
                    let name = name.to_vec();
                    self.missing.insert(from, Name { dir, name });
                    if related && old.inode(from)?.is_none() {
                        from
                    } else {
                        new_ino()
                    }
                }
            };
            self.above.insert(from, dir);
        }
        let ino = new.child(from, last)?.ok_or(Error::NotFound)?;
        let name = last.to_vec();
        if !self.is_missing(dir)
            && let Some(there) = old.child(dir, last)?
        {
            let name = name.clone();
            self.old.insert(Name { dir, name }, there);
        }
        self.new.insert(Name { dir: from, name }, ino);
        Ok(())
    }

    /// Whether a directory of the result is one that the branch does not have.
    fn is_missing(&self, dir: u64) -> bool {
        let missing = self.missing.keys();
        let mut numbers = missing.filter_map(|from| self.above.get(from));
        numbers.any(|number| *number == dir)
    }
}
