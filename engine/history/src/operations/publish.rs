//! Publishing a branch: its files become those of its base, in one change of roots.
//!
//! Uses the planner of merges, staged heads and grafts. If the base has the files that the branch
//! began with, names move and nothing is copied. Otherwise the changes of the branch are applied to
//! a fork of the base, which then gets its name. A base that changes meanwhile makes the last step
//! fail, and everything begins again.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::diff::{Changes, FileTree, TreeDelta};
use crate::operations::apply::{Source, apply};
use crate::operations::frozen::Frozen;
use crate::operations::graft::Graft;
use crate::operations::lineage::{parent_of, parted};
use crate::operations::named::with_turns;
use crate::operations::received::{joined, received_of};
use crate::operations::stage::{Staged, replace, until_unchanged};
use crate::operations::{name_of, names_of};
use crate::publish::{Conflict, FrozenTrees, Plan, Side, plan};
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::root::MAIN_NAME;
use cairnfs_disk::types::RootInfo;

/// How to publish a branch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishOptions {
    /// The branch that gets the changes; `None` for `main`.
    pub onto: Option<String>,
    /// Paths at and below which what is in conflict is taken from the base. Of several paths above a
    /// conflict the deepest decides, and this list before the other.
    pub ours: Vec<PathBuf>,
    /// Paths at and below which what is in conflict is taken from the branch, likewise.
    pub theirs: Vec<PathBuf>,
    /// Whether nothing is changed: only conflicts are found.
    pub dry_run: bool,
}

/// What a publish did; of a dry run, what it would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    /// The snapshot of the base's state before; `None` of a dry run.
    pub kept: Option<String>,
    /// Of a dry run, what would be an [`Error::Conflicts`], sorted by path; else empty.
    pub conflicts: Vec<Conflict>,
    /// Whether the base had changed since the branch began, so that changes were merged. False if
    /// there are conflicts: nothing would be merged.
    pub merged: bool,
}

/// Publishes the branch of a reference.
///
/// # Errors
/// [`Error::Conflicts`], of which a dry run is none; [`Error::NoRoot`]; [`Error::Invalid`] for what is no
/// branch; [`Error::NotFound`] for a path of the options that none of the states has; [`Error::Unsettled`] if the base or
/// the branch does not stop changing; no space; the device's failure.
pub fn publish(fs: &Arc<FileSystem>, branch: &str, options: &PublishOptions) -> Result<Published> {
    let onto = options.onto.as_deref().unwrap_or(MAIN_NAME);
    // A dry run takes nothing away.
    let taken = if options.dry_run { 0 } else { 2 };
    with_turns(fs, [onto, branch], taken, |[base, branch]| {
        publish_onto(fs, (base, branch), options)
    })
}

pub(super) fn publish_onto(
    fs: &Arc<FileSystem>,
    (base, branch): (&RootInfo, &RootInfo),
    options: &PublishOptions,
) -> Result<Published> {
    if !base.writable || !branch.writable {
        return Err(Error::Invalid(
            "a snapshot cannot be changed or published: make a branch of it",
        ));
    }
    if base.id == branch.id {
        return Err(Error::Invalid("a branch cannot be published onto itself"));
    }
    let _states = check_paths(fs, (base, branch), options)?;
    let both = format!("{} or {}", name_of(base), name_of(branch));
    let published = until_unchanged(fs, (&[base.id, branch.id], &both), || {
        match move_names(fs, (base.id, branch), options.dry_run)? {
            Some(kept) => Ok(Published {
                kept,
                ..Published::default()
            }),
            None => merge(fs, (base.id, branch), options),
        }
    })?;
    if published.merged && published.kept.is_some() {
        // Nothing here has it open any more.
        fs.free_dropped(branch.id);
    }
    Ok(published)
}

/// Publishes without a merge if the base has exactly the files that the branch began with: `None` if it
/// has not. Returns the name of the state before; with `dry_run` it does nothing, and there is none.
fn move_names(
    fs: &FileSystem,
    (base, branch): (u32, &RootInfo),
    dry_run: bool,
) -> Result<Option<Option<String>>> {
    let Some(since) = began_with(fs, (base, branch.id), &fs.roots())? else {
        return Ok(None);
    };
    if dry_run {
        let is_unchanged = fs.open_root(base)?.is_unchanged_since(since)?;
        return Ok(is_unchanged.then_some(None));
    }
    match replace(fs, base, (branch.id, name_of(branch)), Some(since)) {
        Ok(kept) => Ok(Some(Some(kept))),
        Err(Error::Stale) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The snapshot above the base, if it has the files that the branch began with. Other forks of the
/// base since then are in between, and have the same tree.
fn began_with(
    fs: &FileSystem,
    (base, branch): (u32, u32),
    roots: &[RootInfo],
) -> Result<Option<u32>> {
    let newest = parent_of(base, roots);
    let (Some(newest), Some(common)) = (newest, parted(fs, base, branch, roots)) else {
        return Ok(None);
    };
    if newest.id != common.id {
        let tree = |root: &RootInfo| Frozen::of(fs, root.clone());
        match (tree(newest), tree(common)) {
            (Ok(newest), Ok(common)) if newest.is_same(&common) => {}
            // A root without a name may be gone meanwhile.
            (Ok(_) | Err(Error::NotFound), Ok(_) | Err(Error::NotFound)) => return Ok(None),
            (Err(e), _) | (_, Err(e)) => return Err(e),
        }
    }
    Ok(Some(newest.id))
}

fn merge(
    fs: &Arc<FileSystem>,
    (base, branch): (u32, &RootInfo),
    options: &PublishOptions,
) -> Result<Published> {
    let core = fs.core();
    let staged = Staged::fork(fs, base)?;
    let theirs = Frozen::of(fs, branch.clone())?;
    let roots = fs.roots();
    let before = parent_of(staged.id, &roots).ok_or(Error::Stale)?;
    let before = Frozen::of(fs, before.clone())?;
    let common = Frozen::parted(fs, staged.id, theirs.id())?;
    let common = common.ok_or(Error::Invalid(
        "the branch and the one that it is published onto have no state in common",
    ))?;
    let trees = [common.files(fs), before.files(fs), theirs.files(fs)];
    let plan = plan_of(fs, trees, options)?;
    if options.dry_run {
        return Ok(Published {
            kept: None,
            merged: plan.conflicts.is_empty(),
            conflicts: plan.conflicts,
        });
    }
    if !plan.conflicts.is_empty() {
        return Err(Error::Conflicts(plan.conflicts));
    }
    let [.., files] = trees;
    let blocks = core.data();
    let mut graft = Graft::new(staged.open()?)?;
    let source = Source { files, blocks };
    apply(
        &mut graft,
        source,
        &plan.operations,
        &BTreeMap::new(),
        core.now(),
    )?;
    let recorded = (received_of(before.files(fs))?, received_of(files)?);
    if let Some(received) = joined(recorded.0, &recorded.1)? {
        graft.set_received(&received)?;
    }
    graft.finish()?;
    let (since, retired) = (Some(before.root.id), Some((branch.id, theirs.id())));
    let kept = staged.publish_retiring(base, since, (retired, Some(name_of(branch))))?;
    Ok(Published {
        kept: Some(kept),
        conflicts: Vec::new(),
        merged: true,
    })
}

fn plan_of(
    fs: &FileSystem,
    [common, ours, theirs]: [FileTree<'_>; 3],
    options: &PublishOptions,
) -> Result<Plan> {
    let delta = |tree| TreeDelta::collect(Changes::new(common, tree)?);
    let (our_delta, their_delta) = (delta(ours)?, delta(theirs)?);
    let mut trees = FrozenTrees::new([common, ours, theirs], fs.core().data());
    let choose = |path: &[u8]| {
        let path = Path::new(OsStr::from_bytes(path));
        let deepest = |list: &[PathBuf]| {
            let above = list.iter().filter(|prefix| is_below(path, prefix));
            above.map(|prefix| names_of(prefix).len()).max()
        };
        match (deepest(&options.ours), deepest(&options.theirs)) {
            (None, None) => None,
            (ours, theirs) if ours >= theirs => Some(Side::Ours),
            _ => Some(Side::Theirs),
        }
    };
    plan(&our_delta, their_delta, &mut trees, &choose)
}

/// Whether a path is at or below another one.
fn is_below(path: &Path, prefix: &Path) -> bool {
    names_of(path).starts_with(&names_of(prefix))
}

/// Checks that the base, the branch, or the state in which they parted has each of the paths for
/// which the options choose a side: any other one is a mistake. Returns these states, if they were
/// needed: they stay in the volume as long, so that what follows finds the base as it was here.
fn check_paths(
    fs: &FileSystem,
    (base, branch): (&RootInfo, &RootInfo),
    options: &PublishOptions,
) -> Result<Vec<Frozen>> {
    let chosen: Vec<&PathBuf> = options.ours.iter().chain(&options.theirs).collect();
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let mut states = vec![
        Frozen::of(fs, base.clone())?,
        Frozen::of(fs, branch.clone())?,
    ];
    states.extend(Frozen::parted(fs, base.id, branch.id)?);
    for path in chosen {
        let names = names_of(path);
        let mut known = false;
        for state in &states {
            known |= state.files(fs).find(&names)?.is_some();
        }
        if !known {
            return Err(Error::NotFound.at(path));
        }
    }
    Ok(states)
}
