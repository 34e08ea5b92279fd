//! Which roots come after which: the parent of a root and the roots that it has replaced come before
//! it, and what comes before those.
//!
//! Boundaries grow along the way, and heads, which have none, are the last ones. A volume that is
//! damaged may break that; nothing here depends on it to end. Pure: roots are looked up by a function.

use std::collections::{BTreeSet, HashMap};

use cairnfs_disk::format::key::VOLUME_ROOT;
use cairnfs_disk::format::root::{MAX_REPLACED, Root, RootState};
use cairnfs_disk::hash::IntHash;

/// What comes directly after a root.
#[derive(Debug, Default, Clone, Copy)]
pub struct After {
    /// The roots whose parent it is: how many, and one of them.
    pub children: (usize, Option<u32>),
    /// Those that have replaced it, likewise.
    replacing: (usize, Option<u32>),
}

/// What comes directly after each root.
pub struct Afters(HashMap<u32, After, IntHash>);

impl Afters {
    /// Of those roots that are asked for, among `all`.
    pub fn of<'r>(all: impl Iterator<Item = (u32, &'r Root)>, asked: impl Fn(u32) -> bool) -> Self {
        let mut afters: HashMap<u32, After, IntHash> = HashMap::default();
        let add = |(count, one): &mut (usize, Option<u32>), id| {
            *count += 1;
            one.get_or_insert(id);
        };
        for (id, root) in all {
            if root.parent != VOLUME_ROOT && asked(root.parent) {
                add(&mut afters.entry(root.parent).or_default().children, id);
            }
            for of in root.replaced.iter().filter(|of| asked(**of)) {
                add(&mut afters.entry(*of).or_default().replacing, id);
            }
        }
        Self(afters)
    }

    /// Of one root.
    pub fn get(&self, id: u32) -> After {
        self.0.get(&id).copied().unwrap_or_default()
    }
}

/// The sequence of the last context whose changes a root has: of a head, which goes on, the greatest.
fn ended(root: &Root) -> u64 {
    match root.state {
        RootState::Head => u64::MAX,
        RootState::Frozen | RootState::Dropping => root.boundary,
    }
}

/// Roots that a function looks up by their ids.
pub struct History<F>(pub F);

impl<'r, F: Fn(u32) -> Option<&'r Root>> History<F> {
    /// Adds a root to `above`, and everything that comes before it.
    fn add(&self, id: u32, above: &mut BTreeSet<u32>) {
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            let Some(root) = self.0(id).filter(|_| above.insert(id)) else {
                continue;
            };
            todo.push(root.parent);
            todo.extend(&root.replaced);
        }
    }

    /// A root and everything that comes before it.
    fn with_all_before(&self, id: u32) -> BTreeSet<u32> {
        let mut above = BTreeSet::new();
        self.add(id, &mut above);
        above
    }

    /// The state in which two roots have parted: of all that both come after, and of both themselves,
    /// the newest.
    pub fn parted(&self, a: u32, b: u32) -> Option<u32> {
        let of_a = self.with_all_before(a);
        let both = self.with_all_before(b).into_iter();
        let both = both.filter(|id| of_a.contains(id));
        both.max_by_key(|id| self.0(*id).map(ended))
    }

    /// Of the roots `replaced`, those that a root with this parent must name so that it comes after all
    /// of them: the others come before one of these, or the parent.
    fn needed(&self, parent: u32, replaced: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let known = replaced
            .into_iter()
            .filter_map(|id| Some((self.0(id)?, id)));
        let mut known: Vec<(u64, u32)> = known.map(|(root, id)| (ended(root), id)).collect();
        known.sort_unstable();
        let mut above = self.with_all_before(parent);
        let mut needed = Vec::new();
        for (_, id) in known.into_iter().rev() {
            if !above.contains(&id) {
                self.add(id, &mut above);
                needed.push(id);
            }
        }
        needed.sort_unstable();
        needed
    }

    /// What the head `staged` names as replaced once it takes the place of the head `base`. Without
    /// `always`, the base has the tree that `staged` began with, or an equal one. Then the base need not
    /// be named unless it comes after something by what it, or a parent, has replaced: what was forked
    /// in between has the same tree, too.
    pub fn taking_place(&self, staged: u32, base: u32, always: bool) -> Option<Vec<u32>> {
        let (new, old) = (self.0(staged)?, self.0(base)?);
        let above = self.with_all_before(staged);
        let older = |root: &&'r Root| {
            let parent = self.0(root.parent);
            parent.filter(|parent| ended(parent) < ended(root))
        };
        let since = std::iter::successors(Some(old), older);
        // From the first one on, `staged` comes after them.
        let mut ends = since.map(|root| (above.contains(&root.parent), &root.replaced));
        let end = ends.find(|(is_common, replaced)| *is_common || !replaced.is_empty());
        let is_equal = end.is_some_and(|(_, replaced)| replaced.is_empty());
        let base = Some(base).filter(|_| always || !is_equal);
        Some(self.needed(new.parent, new.replaced.iter().copied().chain(base)))
    }

    /// Whether a root can go, as far as the others need it. What comes `after` it is one root at most,
    /// or a child and what the child comes after anyway: then no two roots have parted there.
    pub fn can_go(&self, id: u32, after: After) -> bool {
        let (children, replacing) = (after.children, after.replacing);
        let parted = match (children, replacing) {
            ((0, _), (0 | 1, _)) | ((1, _), (0, _)) => false,
            ((1, Some(child)), (1, Some(other))) => !self.with_all_before(child).contains(&other),
            _ => true,
        };
        let both = [children.1, replacing.1].into_iter().flatten();
        let most = self.0(id).map_or(0, |root| root.replaced.len() + 1);
        let fits = |next: u32| {
            self.0(next).is_none_or(|next| {
                next.replaced.len() + most <= MAX_REPLACED
                    || self.without(id, next).replaced.len() <= MAX_REPLACED
            })
        };
        !parted && both.into_iter().all(fits)
    }

    /// What a root that comes directly after `gone` becomes without it: it comes after the same others.
    pub fn without(&self, gone: u32, root: &Root) -> Root {
        let Some(before) = self.0(gone) else {
            return root.clone();
        };
        let is_child = root.parent == gone;
        let parent = if is_child { before.parent } else { root.parent };
        let others = root.replaced.iter().filter(|id| **id != gone);
        let others = others.chain(&before.replaced).copied();
        Root {
            parent,
            replaced: self.needed(parent, others.chain([before.parent])),
            ..root.clone()
        }
    }
}

#[cfg(test)]
mod tests;
