//! What a change of roots in the log may do.
//!
//! One context changes some root items. Replay and the check compare them with the items before it
//! and use the same rules, so that a record of valid checksums cannot give a root a place in the
//! history that no call could have given it: blocks are freed by the places of roots. What a root
//! has replaced is named by a head that takes the name of another one, which that change freezes; a
//! snapshot of the head takes it over.

use std::collections::BTreeMap;

use crate::format::key::VOLUME_ROOT;
use crate::format::root::{MAIN_NAME, MAX_ROOTS, Root, RootState};

/// Roots by id.
type Items = BTreeMap<u32, Root>;

/// The roots after a change.
struct After<'a> {
    before: &'a Items,
    changes: &'a Items,
    seq: u64,
}

/// Checks that the context `seq` can have changed roots from `before` in this way.
///
/// # Errors
/// What is wrong, as text.
pub fn check_changes(before: &Items, changes: &Items, seq: u64) -> Result<(), String> {
    let after = After {
        before,
        changes,
        seq,
    };
    for (id, root) in changes {
        let changed = match before.get(id) {
            Some(old) => after.changed(*id, old, root),
            None => after.made(*id, root),
        };
        let changed = changed.and_then(|()| after.came_before(root));
        changed.map_err(|why| format!("root {id}: {why}"))?;
    }
    after.names()
}

impl After<'_> {
    fn get(&self, id: u32) -> Option<&Root> {
        self.changes.get(&id).or_else(|| self.before.get(&id))
    }

    /// Whether a root is made by this change.
    fn is_new(&self, id: u32) -> bool {
        self.changes.contains_key(&id) && !self.before.contains_key(&id)
    }

    fn boundary(&self, root: &Root) -> Result<(), String> {
        if root.state == RootState::Head || root.boundary == self.seq {
            Ok(())
        } else {
            Err(format!(
                "frozen at {} by context {}",
                root.boundary, self.seq
            ))
        }
    }

    fn changed(&self, id: u32, old: &Root, new: &Root) -> Result<(), String> {
        if old.origin != new.origin {
            return Err(format!("origin {} instead of {}", new.origin, old.origin));
        }
        match (old.state, new.state) {
            (RootState::Head, _) => self.boundary(new)?,
            (RootState::Frozen, RootState::Frozen | RootState::Dropping)
                if old.boundary == new.boundary => {}
            _ => {
                let (from, to) = ((old.state, old.boundary), (new.state, new.boundary));
                return Err(format!("{from:?} became {to:?}"));
            }
        }
        // A head gets another parent only by a snapshot of it, in its place.
        let replaced = self.get(new.parent).is_some_and(|parent| {
            new.state == RootState::Head
                && self.is_new(new.parent)
                && (parent.origin, parent.parent) == (id, old.parent)
        });
        if old.parent != new.parent && !replaced {
            return Err(format!("parent {} instead of {}", new.parent, old.parent));
        }
        let given = match replaced {
            true => new.replaced.is_empty(),
            false => old.replaced == new.replaced || self.takes_place(old, new),
        };
        if given {
            Ok(())
        } else {
            let (new, old) = (&new.replaced, &old.replaced);
            Err(format!("has replaced {new:?} instead of {old:?}"))
        }
    }

    /// Whether a head has got its name from one that the change freezes, and names that as replaced.
    fn takes_place(&self, old: &Root, new: &Root) -> bool {
        let frozen = |id: &u32| {
            let (before, after) = (self.before.get(id), self.changes.get(id));
            before.is_some_and(|before| before.state == RootState::Head && before.name == new.name)
                && after.is_some_and(|after| after.state == RootState::Frozen)
        };
        let mut added = new.replaced.iter().filter(|id| !old.replaced.contains(id));
        new.state == RootState::Head && added.next().is_some_and(frozen) && added.next().is_none()
    }

    fn made(&self, id: u32, root: &Root) -> Result<(), String> {
        self.boundary(root)?;
        let origin = self.get(root.origin);
        let fits = match (root.state, origin) {
            (RootState::Head, _) if !root.replaced.is_empty() => false,
            (RootState::Head, _) if root.origin == id => root.parent == VOLUME_ROOT,
            (RootState::Head, Some(origin)) => {
                root.parent == root.origin && origin.state == RootState::Frozen
            }
            // A snapshot takes the place of the head, which becomes its child.
            (RootState::Frozen, Some(origin)) => {
                let old = self.before.get(&root.origin);
                let in_place =
                    |old: &Root| (old.parent, &old.replaced) == (root.parent, &root.replaced);
                origin.parent == id && old.is_some_and(in_place)
            }
            _ => false,
        };
        if fits {
            Ok(())
        } else {
            Err(format!(
                "a new {:?} root made of root {} with the parent {}, which has replaced {:?}",
                root.state, root.origin, root.parent, root.replaced
            ))
        }
    }

    /// Checks that what a root comes after was frozen before it.
    fn came_before(&self, root: &Root) -> Result<(), String> {
        let end = match root.state {
            RootState::Head => self.seq.saturating_add(1),
            RootState::Frozen | RootState::Dropping => root.boundary,
        };
        let parent = Some(root.parent).filter(|id| *id != VOLUME_ROOT);
        let parent = parent.map(|id| ("its parent", id));
        let replaced = root.replaced.iter().map(|id| ("the replaced root", *id));
        for (what, id) in parent.into_iter().chain(replaced) {
            match self.get(id) {
                None => return Err(format!("{what} {id} does not exist")),
                Some(of) if of.state != RootState::Head && of.boundary < end => {}
                Some(of) => {
                    return Err(format!("{what} {id} is {:?} at {}", of.state, of.boundary));
                }
            }
        }
        Ok(())
    }

    /// Checks that names are of one root each, and that there is a main root.
    fn names(&self) -> Result<(), String> {
        let kept = self.before.keys().filter(|id| !self.is_changed(**id));
        let ids: Vec<u32> = kept.chain(self.changes.keys()).copied().collect();
        if ids.len() > MAX_ROOTS as usize {
            return Err(format!("{} roots", ids.len()));
        }
        let mut names = BTreeMap::new();
        for id in ids {
            let Some(root) = self.get(id).filter(|root| !root.name.is_empty()) else {
                continue;
            };
            if let Some((other, _)) = names.insert(&root.name, (id, root.state)) {
                return Err(format!("roots {other} and {id} named {:?}", root.name));
            }
        }
        let main = names.iter().find(|(name, _)| name.as_str() == MAIN_NAME);
        match main {
            Some((_, (_, RootState::Head))) => Ok(()),
            _ => Err(format!("no head named {MAIN_NAME}")),
        }
    }

    fn is_changed(&self, id: u32) -> bool {
        self.changes.contains_key(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::key::MAIN_ROOT;

    /// The main root with the snapshot 2 of context 5, and its branch 3.
    fn before() -> Items {
        let main = Root {
            parent: 2,
            ..Root::main(Default::default())
        };
        let kept = Root {
            state: RootState::Frozen,
            boundary: 5,
            origin: MAIN_ROOT,
            name: "kept".into(),
            ..Root::default()
        };
        let branch = Root {
            parent: 2,
            origin: 2,
            name: "branch".into(),
            ..Root::default()
        };
        [(1, main), (2, kept), (3, branch)].into()
    }

    /// The change that makes the snapshot 4 of the main root in context 9.
    fn snapshot() -> Items {
        let main = Root {
            parent: 4,
            ..before()[&1].clone()
        };
        let new = Root {
            parent: 2,
            boundary: 9,
            name: "new".into(),
            ..before()[&2].clone()
        };
        [(1, main), (4, new)].into()
    }

    #[test]
    fn changes_that_calls_make_are_accepted() {
        assert_eq!(check_changes(&before(), &snapshot(), 9), Ok(()));
        let dropped = |root: &Root| Root {
            state: RootState::Dropping,
            boundary: root.boundary.max(9 * u64::from(root.boundary == 0)),
            name: String::new(),
            ..root.clone()
        };
        for id in [2, 3] {
            let change = [(id, dropped(&before()[&id]))].into();
            assert_eq!(check_changes(&before(), &change, 9), Ok(()), "{id}");
        }
        let published = Root {
            state: RootState::Frozen,
            boundary: 9,
            name: "old".into(),
            ..before()[&1].clone()
        };
        let main = Root {
            name: MAIN_NAME.into(),
            ..before()[&3].clone()
        };
        let change = [(1, published.clone()), (3, main.clone())].into();
        assert_eq!(check_changes(&before(), &change, 9), Ok(()));
        let main = Root {
            replaced: vec![1],
            ..main
        };
        let change: Items = [(1, published), (3, main.clone())].into();
        assert_eq!(check_changes(&before(), &change, 9), Ok(()));
        let restored: Items = before().into_iter().chain(change).collect();
        let snapshot = Root {
            parent: 2,
            replaced: vec![1],
            boundary: 12,
            origin: 3,
            name: "new".into(),
            ..before()[&2].clone()
        };
        let continued = Root {
            parent: 4,
            replaced: Vec::new(),
            ..main
        };
        let change = [(3, continued), (4, snapshot)].into();
        assert_eq!(check_changes(&restored, &change, 12), Ok(()));
        let empty = Root {
            origin: 8,
            ..Root::default()
        };
        assert_eq!(check_changes(&before(), &[(8, empty)].into(), 9), Ok(()));
    }

    #[test]
    fn changes_that_no_call_makes_are_refused() {
        type Wrong = (&'static str, fn(&mut Items));
        let wrong: [Wrong; 15] = [
            ("boundary", |c| c.get_mut(&4).unwrap().boundary = 8),
            ("parent of the snapshot", |c| {
                c.get_mut(&4).unwrap().parent = 0;
            }),
            ("parent of the head", |c| c.get_mut(&1).unwrap().parent = 0),
            ("no such parent", |c| c.get_mut(&1).unwrap().parent = 7),
            ("origin", |c| c.get_mut(&4).unwrap().origin = 3),
            ("name twice", |c| {
                c.get_mut(&4).unwrap().name = "branch".into()
            }),
            ("no main root", |c| c.get_mut(&1).unwrap().name.clear()),
            ("main root frozen", |c| {
                let main = c.get_mut(&1).unwrap();
                (main.state, main.boundary) = (RootState::Frozen, 9);
            }),
            ("thawed", |c| {
                let mut thawed = before()[&2].clone();
                (thawed.state, thawed.boundary) = (RootState::Head, 0);
                c.insert(2, thawed);
            }),
            ("moved boundary", |c| {
                let mut moved = before()[&2].clone();
                moved.boundary = 9;
                c.insert(2, moved);
            }),
            ("replaced by a snapshot", |c| {
                c.get_mut(&4).unwrap().replaced = vec![2];
            }),
            ("replaced without a change of it", |c| {
                c.get_mut(&1).unwrap().replaced = vec![2];
            }),
            ("replaced by a head of another name", |c| {
                let branch = c.entry(3).or_insert(before()[&3].clone());
                branch.state = RootState::Frozen;
                branch.boundary = 9;
                branch.name.clear();
                c.remove(&4);
                *c.get_mut(&1).unwrap() = Root {
                    replaced: vec![3],
                    ..before()[&1].clone()
                };
            }),
            ("replaced by a frozen root", |c| {
                let mut kept = before()[&2].clone();
                kept.replaced = vec![4];
                c.insert(2, kept);
            }),
            ("a new dropped root", |c| {
                c.get_mut(&4).unwrap().state = RootState::Dropping;
                c.get_mut(&4).unwrap().name.clear();
            }),
        ];
        for (what, change) in wrong {
            let mut changes = snapshot();
            change(&mut changes);
            assert!(check_changes(&before(), &changes, 9).is_err(), "{what}");
        }
    }
}
