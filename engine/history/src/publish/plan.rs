//! The planner: conflicts first; operations if there are none.
//!
//! Uses the merged view and the trees. With a choice of sides by path the parts of inodes that are in
//! conflict are decided for a side and the plan is made anew, until no conflict is left that the
//! choice covers. Each round decides at least one more part of the changed inodes, so this ends.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::diff::{InodeDelta, Name, TreeDelta};
use crate::publish::decided::{Decided, Part};
use crate::publish::merged::{Merged, Slot};
use crate::publish::outcome::{Attribute, Conflict, ConflictKind, Operation, Plan, Side};
use crate::publish::trees::{Trees, Version};
use crate::publish::twins::Twins;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::{RawInode, S_IFDIR, S_IFMT};

/// Plans how `theirs`, the changes from the base to their tree, become part of our tree, which
/// changed by `ours`. What both made in one place becomes one, if it can. `choose` gets the path of a
/// conflict and returns the side from which what is in conflict is taken, or `None` to report it.
///
/// # Errors
/// Those of `trees`.
pub fn plan(
    ours: &TreeDelta,
    mut theirs: TreeDelta,
    trees: &mut dyn Trees,
    choose: &dyn Fn(&[u8]) -> Option<Side>,
) -> Result<Plan> {
    let twins = Twins::unite(ours, &mut theirs, trees)?;
    let mut decided = Decided::default();
    loop {
        let merged = Merged::new(ours, &theirs, &decided);
        let mut planner = Planner {
            merged,
            twins: &twins,
            trees,
            found: BTreeMap::new(),
        };
        planner.find_conflicts()?;
        if planner.found.is_empty() {
            let operations = planner.operations()?;
            return Ok(Plan {
                operations,
                conflicts: Vec::new(),
            });
        }
        let found = planner.found;
        let before = decided.len();
        for ((path, kind), inodes) in &found {
            if let Some(side) = choose(path) {
                for ino in inodes {
                    decided.add(*ino, Part::of(kind), side);
                }
            }
        }
        if decided.len() == before {
            let conflict = |((path, kind), inodes): ((Vec<u8>, ConflictKind), BTreeSet<u64>)| {
                let inodes = inodes.into_iter().collect();
                Conflict { path, kind, inodes }
            };
            return Ok(Plan {
                operations: Vec::new(),
                conflicts: found.into_iter().map(conflict).collect(),
            });
        }
    }
}

struct Planner<'a> {
    merged: Merged<'a>,
    twins: &'a Twins,
    trees: &'a mut dyn Trees,
    found: BTreeMap<(Vec<u8>, ConflictKind), BTreeSet<u64>>,
}

/// Whether a side changed an inode, apart from what follows from changes of other inodes.
fn is_changed(inode: &InodeDelta) -> bool {
    let attributes = |item: &RawInode| {
        let dir = is_dir(item);
        let all = Attribute::all(item).into_iter();
        let own = all.filter(move |a| !(dir && matches!(a, Attribute::Mtime(_))));
        own.collect::<Vec<_>>()
    };
    let item = inode.item.is_some_and(|item| match (&item.old, &item.new) {
        (Some(old), Some(new)) => attributes(old) != attributes(new),
        _ => true,
    });
    let names = !inode.lost.is_empty() || !inode.gained.is_empty();
    item || names || !inode.xattrs.is_empty() || !inode.contents.is_empty()
}

fn is_dir(inode: &RawInode) -> bool {
    inode.mode.get() & S_IFMT == S_IFDIR
}

impl Planner<'_> {
    fn find_conflicts(&mut self) -> Result<()> {
        for ino in self.merged.changed() {
            for kind in self.conflicts_of(ino)? {
                if self.merged.decided(ino, &Part::of(&kind)).is_none() {
                    let path = self.path_of(ino)?;
                    self.add(path, kind, [ino]);
                }
            }
        }
        for (name, slot) in self.merged.slots() {
            self.check_slot(name, &slot)?;
        }
        self.find_circles()
    }

    fn add(&mut self, path: Vec<u8>, kind: ConflictKind, inodes: impl IntoIterator<Item = u64>) {
        self.found.entry((path, kind)).or_default().extend(inodes);
    }

    /// The path of an inode: in the base, or where a side created it.
    fn path_of(&mut self, ino: u64) -> Result<Vec<u8>> {
        if ino == ROOT_INO {
            return Ok(Vec::new());
        }
        if self.merged.in_base(ino) {
            return match self.trees.base_name(ino)? {
                Some(name) => self.trees.path(Version::Base, &name),
                None => Ok(Vec::new()),
            };
        }
        let sides = [(Side::Ours, Version::Ours), (Side::Theirs, Version::Theirs)];
        for (side, version) in sides {
            if let Some(name) = self.merged.delta(side, ino).gained.first() {
                let name = name.clone();
                return self.path_in(&name, version);
            }
        }
        Ok(Vec::new())
    }

    /// The path of a name: in the base if its directory is there.
    fn path_of_name(&mut self, name: &Name) -> Result<Vec<u8>> {
        let version = match name.dir {
            dir if self.merged.in_base(dir) => Version::Base,
            dir if self.merged.exists(Side::Ours, dir) => Version::Ours,
            _ => Version::Theirs,
        };
        self.path_in(name, version)
    }

    /// The path of a name in the tree that has its directory. A directory that both sides made is
    /// where its name is in the base or, if that is in a directory of one side, there.
    fn path_in(&mut self, name: &Name, version: Version) -> Result<Vec<u8>> {
        let (mut at, mut version) = (name.clone(), version);
        let mut below: Vec<Vec<u8>> = Vec::new();
        while self.twins.is_directory(at.dir) {
            let ours = self.merged.delta(Side::Ours, at.dir);
            let Some(above) = ours.gained.first().cloned() else {
                break;
            };
            version = if self.merged.in_base(above.dir) {
                Version::Base
            } else {
                Version::Ours
            };
            below.push(std::mem::replace(&mut at, above).name);
        }
        let mut parts = vec![self.trees.path(version, &at)?];
        parts.extend(below.into_iter().rev());
        Ok(parts.join(&b'/'))
    }

    /// The item of an inode in the base, and on both sides.
    fn items(&mut self, ino: u64) -> Result<[Option<RawInode>; 3]> {
        let base = match self.merged.base_item(ino) {
            Some(item) => item,
            None => self.trees.base(ino)?,
        };
        let on = |side| self.merged.delta(side, ino).item.map_or(base, |i| i.new);
        Ok([base, on(Side::Ours), on(Side::Theirs)])
    }

    /// The conflicts of an inode with itself.
    fn conflicts_of(&mut self, ino: u64) -> Result<Vec<ConflictKind>> {
        let (ours, theirs) = (Side::Ours, Side::Theirs);
        let merged = &self.merged;
        let there = (merged.exists(ours, ino), merged.exists(theirs, ino));
        let gone = match there {
            (true, true) => None,
            (true, false) => Some(theirs),
            (false, true) => Some(ours),
            (false, false) => return Ok(Vec::new()),
        };
        if let Some(gone) = gone {
            let changed = is_changed(merged.delta(gone.other(), ino));
            let conflict = merged.in_base(ino) && changed;
            return Ok(conflict
                .then_some(ConflictKind::Removed(gone))
                .into_iter()
                .collect());
        }
        let (a, b) = (merged.delta(ours, ino), merged.delta(theirs, ino));
        if !is_changed(a) || !is_changed(b) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let lost_by_both = a.lost.iter().any(|name| b.lost.contains(name));
        let within = |a: &[Name], b: &[Name]| a.iter().all(|name| b.contains(name));
        let agree = within(&a.gained, &b.gained) || within(&b.gained, &a.gained);
        let mut renamed = None;
        if (lost_by_both || !merged.in_base(ino)) && !agree {
            let only = |a: &[Name], b: &[Name]| a.iter().find(|name| !b.contains(name)).cloned();
            renamed = only(&a.gained, &b.gained).zip(only(&b.gained, &a.gained));
        }
        let xattrs = a.xattrs.iter().filter(|(name, values)| {
            let other = b.xattrs.get(*name);
            other.is_some_and(|other| other.new != values.new)
        });
        found.extend(xattrs.map(|(name, _)| ConflictKind::Xattr(name.clone())));
        let contents = !a.contents.is_empty() && !b.contents.is_empty();
        if let Some((ours, theirs)) = renamed {
            found.push(ConflictKind::Renamed {
                ours: self.path_in(&ours, Version::Ours)?,
                theirs: self.path_in(&theirs, Version::Theirs)?,
            });
        }
        let [base, our, their] = self.items(ino)?;
        let equal = self.twins.is_file(ino);
        if contents && !equal && !self.trees.same_contents(ino, ino)? {
            found.push(ConflictKind::Contents);
        }
        let (Some(our), Some(their)) = (our, their) else {
            return Ok(found);
        };
        let differing = merge_attributes(base.as_ref(), &our, &their).into_iter();
        let names = differing
            .filter(|(_, merged)| merged.is_none())
            .map(|(a, _)| a.name());
        found.extend(names.map(ConflictKind::Attribute));
        if self.is_nameless(ino, base.as_ref()) {
            found.push(ConflictKind::Nameless);
        }
        Ok(found)
    }

    /// Whether a file that both sides have would have no name.
    fn is_nameless(&self, ino: u64, base: Option<&RawInode>) -> bool {
        let names = base.map_or(0, |b| if is_dir(b) { 1 } else { b.nlink.get() as usize });
        let gained = self.merged.gained(ino).len();
        ino != ROOT_INO && names + gained <= self.merged.lost(ino).len()
    }

    fn check_slot(&mut self, name: &Name, slot: &Slot) -> Result<()> {
        let mut holders = slot.merged();
        holders.retain(|ino| self.merged.survives(*ino));
        if holders.len() > 1 || slot.differs() {
            let empty = |side| slot.holders(side).is_empty();
            let kind = match (empty(Side::Ours), empty(Side::Theirs)) {
                (true, false) => ConflictKind::Removed(Side::Ours),
                (false, true) => ConflictKind::Removed(Side::Theirs),
                _ => ConflictKind::NameTaken,
            };
            let path = self.path_of_name(name)?;
            self.add(path, kind, slot.inodes());
        }
        if !holders.is_empty() && !self.merged.survives(name.dir) {
            let gone = if self.merged.exists(Side::Ours, name.dir) {
                Side::Theirs
            } else {
                Side::Ours
            };
            let path = self.path_of(name.dir)?;
            let inodes = holders.into_iter().chain([name.dir]);
            self.add(path, ConflictKind::DirectoryRemoved(gone), inodes);
        }
        Ok(())
    }

    /// Directories that moves of both sides put into each other. Only moved directories can be the
    /// beginning of a circle.
    fn find_circles(&mut self) -> Result<()> {
        let mut fine = BTreeSet::from([ROOT_INO]);
        for ino in self.merged.changed() {
            let moved = !self.merged.gained(ino).is_empty() && self.merged.survives(ino);
            if !moved || !self.is_directory(ino)? {
                continue;
            }
            let (mut at, mut way) = (ino, Vec::new());
            while !fine.contains(&at) && !way.contains(&at) {
                way.push(at);
                at = self.parent(at)?;
            }
            if let Some(start) = way.iter().position(|dir| *dir == at) {
                let circle: BTreeSet<u64> = way.iter().skip(start).copied().collect();
                let moved = |dir: &&u64| !self.merged.gained(**dir).is_empty();
                let moved: BTreeSet<u64> = circle.iter().filter(moved).copied().collect();
                let mut paths = Vec::new();
                for dir in &moved {
                    paths.push(self.path_of(*dir)?);
                }
                let path = paths.into_iter().min().unwrap_or_default();
                self.add(path, ConflictKind::Circle, moved);
            }
            fine.extend(way);
        }
        Ok(())
    }

    fn is_directory(&mut self, ino: u64) -> Result<bool> {
        let items = self.items(ino)?;
        Ok(items.iter().flatten().next().is_some_and(is_dir))
    }

    /// The directory that holds a directory in the merged tree; the root if it is in none, which is
    /// another conflict.
    fn parent(&mut self, dir: u64) -> Result<u64> {
        if let Some(name) = self.merged.gained(dir).first() {
            return Ok(name.dir);
        }
        let [base, ..] = self.items(dir)?;
        Ok(base.map_or(ROOT_INO, |item| item.parent.get()))
    }

    fn operations(&mut self) -> Result<Vec<Operation>> {
        let mut steps = Steps::default();
        for ino in self.merged.touched() {
            self.names(ino, &mut steps);
            match (
                self.merged.exists(Side::Ours, ino),
                self.merged.survives(ino),
            ) {
                (false, true) => steps.created.push(Operation::Create { ino }),
                (true, false) => steps.removed.push(Operation::Remove { ino }),
                (true, true) => self.inside(ino, &mut steps.changed)?,
                (false, false) => {}
            }
        }
        let Steps {
            mut created,
            unlinked,
            linked,
            changed,
            removed,
        } = steps;
        for more in [unlinked, linked, changed, removed] {
            created.extend(more);
        }
        Ok(created)
    }

    /// Brings our names of an inode to those of the merged tree.
    fn names(&self, ino: u64, steps: &mut Steps) {
        let ours = self.merged.delta(Side::Ours, ino);
        let theirs = self.merged.delta(Side::Theirs, ino);
        let (mut lost, mut gained) = (self.merged.lost(ino), self.merged.gained(ino));
        if !self.merged.survives(ino) {
            // All names of the base are lost on the side that does not have it.
            lost = ours.lost.iter().chain(&theirs.lost).collect();
            gained.clear();
        }
        let unlinked = ours.gained.iter().filter(|name| !gained.contains(name));
        let more = lost
            .iter()
            .copied()
            .filter(|name| !ours.lost.contains(name));
        for name in unlinked.chain(more) {
            let name = name.clone();
            steps.unlinked.push(Operation::Unlink { name, ino });
        }
        if !self.merged.survives(ino) {
            return;
        }
        let linked = gained
            .into_iter()
            .filter(|name| !ours.gained.contains(name));
        let back = ours.lost.iter().filter(|name| !lost.contains(name));
        for name in linked.chain(back) {
            let name = name.clone();
            steps.linked.push(Operation::Link { name, ino });
        }
    }

    /// Brings contents and attributes of an inode that we have to those of the merged tree.
    fn inside(&mut self, ino: u64, out: &mut Vec<Operation>) -> Result<()> {
        let [base, our, their] = self.items(ino)?;
        let (Some(our), Some(their)) = (our, their) else {
            return Ok(());
        };
        let (ours, theirs) = (
            self.merged.delta(Side::Ours, ino),
            self.merged.delta(Side::Theirs, ino),
        );
        let both_wrote = !ours.contents.is_empty() && !theirs.contents.is_empty();
        let contents = self.merged.decided(ino, &Part::Contents);
        let wanted = match contents {
            Some(Side::Theirs) => union(&ours.contents, &theirs.contents),
            // Both wrote the same, or it would be a conflict.
            None if !both_wrote => theirs.contents.clone(),
            _ => Vec::new(),
        };
        if !wanted.is_empty() {
            out.push(Operation::Contents {
                ino,
                ranges: wanted,
                size: their.size.get(),
            });
        }
        for (name, values) in &theirs.xattrs {
            let our = ours.xattrs.get(name).map_or(&values.old, |v| &v.new);
            let value = match self.merged.decided(ino, &Part::Xattr(name.clone())) {
                Some(Side::Ours) => our,
                _ => &values.new,
            };
            if value != our {
                out.push(Operation::Xattr {
                    ino,
                    name: name.clone(),
                    value: value.clone(),
                });
            }
        }
        let merged = merge_attributes(base.as_ref(), &our, &their).into_iter();
        let merged = merged.zip(Attribute::all(&their));
        for ((ours, merged), theirs) in merged {
            let part = match ours {
                // The time is that of the contents.
                Attribute::Mtime(_) => Part::Contents,
                _ => Part::Attribute(ours.name()),
            };
            let attribute = match self.merged.decided(ino, &part) {
                Some(Side::Ours) => ours,
                Some(Side::Theirs) => theirs,
                None => merged.unwrap_or(ours),
            };
            if attribute != ours {
                out.push(Operation::Attribute { ino, attribute });
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Steps {
    created: Vec<Operation>,
    unlinked: Vec<Operation>,
    linked: Vec<Operation>,
    changed: Vec<Operation>,
    removed: Vec<Operation>,
}

/// Each attribute of ours with its merged value; `None` in conflict. Of two times the later one is
/// taken.
fn merge_attributes(
    base: Option<&RawInode>,
    ours: &RawInode,
    theirs: &RawInode,
) -> Vec<(Attribute, Option<Attribute>)> {
    let all = Attribute::all(ours).into_iter().zip(Attribute::all(theirs));
    let bases = base.map(Attribute::all);
    let merge = |(i, (ours, theirs)): (usize, (Attribute, Attribute))| {
        let base = bases.and_then(|all| all.get(i).copied());
        let merged = match (ours, theirs) {
            _ if ours == theirs || base == Some(theirs) => Some(ours),
            _ if base == Some(ours) => Some(theirs),
            (Attribute::Mtime(a), Attribute::Mtime(b)) => Some(Attribute::Mtime(a.max(b))),
            _ => None,
        };
        (ours, merged)
    };
    all.enumerate().map(merge).collect()
}

/// The union of two lists of ranges, each ascending and disjoint.
fn union(a: &[Range<u64>], b: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = a.iter().chain(b).cloned().collect();
    all.sort_unstable_by_key(|range| range.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for range in all {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}
