//! Random histories of roots, beside a record that forgets nothing. Roots are forked, written,
//! published, restored and dropped, and go as soon as they can. What two roots have parted at, and so
//! every publish, is the same by the table of roots and by the record. Where two roots have several
//! newest states in common, because branches were restored from each other, it is one of them.

use std::collections::{BTreeMap, BTreeSet};

use cairnfs_tier::size;
use proptest::prelude::*;

use super::*;

/// The files of a tree: names and contents. Every write makes another version of the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tree {
    version: u64,
    files: BTreeMap<u8, u64>,
}

/// What a publish does: the files, or the names in conflict.
type Outcome = Result<BTreeMap<u8, u64>, BTreeSet<u8>>;

#[derive(Debug, Clone, Copy)]
enum Step {
    Write { head: usize, name: u8, remove: bool },
    Snapshot { head: usize },
    Branch { from: usize },
    Publish { branch: usize, onto: usize },
    Restore { branch: usize, to: usize },
    Drop { root: usize },
    DropReplaced,
    Go { one: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = || 0..64_usize;
    let step = prop_oneof![
        6 => (any(), 0..5_u8, prop::bool::weighted(0.3))
            .prop_map(|(head, name, remove)| Step::Write { head, name, remove }),
        2 => any().prop_map(|head| Step::Snapshot { head }),
        3 => any().prop_map(|from| Step::Branch { from }),
        4 => (any(), any()).prop_map(|(branch, onto)| Step::Publish { branch, onto }),
        3 => (any(), any()).prop_map(|(branch, to)| Step::Restore { branch, to }),
        3 => any().prop_map(|root| Step::Drop { root }),
        2 => Just(Step::DropReplaced),
        4 => any().prop_map(|one| Step::Go { one }),
    ];
    prop::collection::vec(step, 10..60)
}

/// Heads that there are at most, and replaced states that stay.
const HEADS: usize = 5;
const REPLACED: usize = 2;

/// The table of roots, and the record.
struct World {
    table: BTreeMap<u32, Root>,
    /// The trees of all roots that ever were.
    trees: BTreeMap<u32, Tree>,
    /// Of all roots that ever were, what they came after, and when they were frozen.
    record: BTreeMap<u32, (BTreeSet<u32>, u64)>,
    seq: u64,
    next: u32,
}

impl World {
    fn new() -> Self {
        Self {
            table: [(1, Root::main(Default::default()))].into(),
            trees: [(1, Tree::default())].into(),
            record: [(1, (BTreeSet::new(), u64::MAX))].into(),
            seq: 1,
            next: 2,
        }
    }

    fn history<'w>(&'w self) -> History<impl Fn(u32) -> Option<&'w Root>> {
        History(|id| self.table.get(&id))
    }

    fn named(&self, heads: bool) -> Vec<u32> {
        let all = self.table.iter();
        let named = all.filter(|(_, root)| !root.name.is_empty());
        let named = named.filter(|(_, root)| !heads || root.state == RootState::Head);
        named.map(|(id, _)| *id).collect()
    }

    fn pick(&self, heads: bool, at: usize) -> u32 {
        let ids = self.named(heads);
        ids[at % ids.len()]
    }

    fn new_root(&mut self, parent: u32, name: &str, record: (BTreeSet<u32>, u64)) -> u32 {
        let id = self.next;
        self.next += 1;
        let name = name.into();
        self.table.insert(
            id,
            Root {
                parent,
                name,
                ..Root::default()
            },
        );
        self.record.insert(id, record);
        id
    }

    fn change(&mut self, id: u32, change: impl FnOnce(&mut Root)) {
        change(self.table.get_mut(&id).unwrap());
    }

    fn freeze(&mut self, id: u32, name: &str) {
        let boundary = self.seq;
        self.change(id, |root| {
            (root.state, root.boundary, root.name) = (RootState::Frozen, boundary, name.into());
        });
        self.record.get_mut(&id).unwrap().1 = boundary;
    }

    /// Freezes a head under a new id.
    fn snapshot(&mut self, head: u32, name: &str) -> u32 {
        self.seq += 1;
        let old = self.table[&head].clone();
        let before = self.record[&head].0.clone();
        let id = self.new_root(old.parent, name, (before, self.seq));
        let boundary = self.seq;
        self.change(id, |root| {
            (root.state, root.boundary) = (RootState::Frozen, boundary);
            root.replaced = old.replaced;
        });
        self.change(head, |root| {
            root.parent = id;
            root.replaced.clear();
        });
        self.record.get_mut(&head).unwrap().0 = [id].into();
        self.trees.insert(id, self.trees[&head].clone());
        id
    }

    fn branch(&mut self, from: u32, name: &str) -> u32 {
        let from = match self.table[&from].state {
            RootState::Head => self.snapshot(from, ""),
            _ => from,
        };
        self.seq += 1;
        let id = self.new_root(from, name, ([from].into(), u64::MAX));
        self.trees.insert(id, self.trees[&from].clone());
        id
    }

    /// Lets the head `staged` take the place of the head `base`.
    fn replace(&mut self, base: u32, staged: u32, always: bool) {
        self.seq += 1;
        let replaced = self.history().taking_place(staged, base, always).unwrap();
        assert!(replaced.len() <= MAX_REPLACED);
        let name = self.table[&base].name.clone();
        let kept = format!("{name}.undo-{}", self.seq);
        self.freeze(base, &kept);
        self.change(staged, |root| (root.name, root.replaced) = (name, replaced));
        self.record.get_mut(&staged).unwrap().0.insert(base);
    }

    /// By the record: what a root comes after, with itself.
    fn recorded(&self, id: u32) -> BTreeSet<u32> {
        let (mut found, mut todo) = (BTreeSet::new(), vec![id]);
        while let Some(id) = todo.pop() {
            if found.insert(id) {
                todo.extend(&self.record[&id].0);
            }
        }
        found
    }

    /// By the record: the newest states that two roots have in common, of which none comes after
    /// another one.
    fn parted(&self, a: u32, b: u32) -> Vec<u32> {
        let both = &self.recorded(a) & &self.recorded(b);
        let mut left: Vec<u32> = both.into_iter().collect();
        left.sort_by_key(|id| self.record[id].1);
        let (mut newest, mut older) = (Vec::new(), BTreeSet::new());
        while let Some(id) = left.pop() {
            if older.insert(id) {
                newest.push(id);
            }
            older.extend(self.recorded(id));
        }
        newest
    }

    fn merged(&self, [base, ours, theirs]: [u32; 3]) -> Outcome {
        let [base, ours, theirs] = [base, ours, theirs].map(|id| &self.trees[&id].files);
        let (mut files, mut conflicts) = (BTreeMap::new(), BTreeSet::new());
        for name in 0..5 {
            let [base, ours, theirs] = [base, ours, theirs].map(|files| files.get(&name));
            let value = match () {
                () if theirs == base || theirs == ours => ours,
                () if ours == base => theirs,
                () => {
                    conflicts.insert(name);
                    None
                }
            };
            files.extend(value.map(|value| (name, *value)));
        }
        if conflicts.is_empty() {
            Ok(files)
        } else {
            Err(conflicts)
        }
    }

    fn publish(&mut self, branch: u32, onto: u32) {
        let ours = self.snapshot(onto, "");
        let parted = self.history().parted(onto, branch).unwrap();
        let outcome = self.merged([parted, ours, branch]);
        let by_record = self.parted(onto, branch).into_iter();
        let mut by_record = by_record.map(|base| self.merged([base, ours, branch]));
        assert!(
            by_record.any(|recorded| recorded == outcome),
            "publish of {branch} onto {onto} by {parted}"
        );
        if self.trees[&parted] == self.trees[&ours] {
            self.replace(onto, branch, false);
        } else if let Ok(files) = outcome {
            let staged = self.branch(onto, "");
            let version = self.seq;
            self.trees.insert(staged, Tree { version, files });
            self.replace(onto, staged, false);
            self.freeze(branch, "");
        }
    }

    fn drop(&mut self, id: u32) {
        self.seq += 1;
        if self.table[&id].state == RootState::Head {
            self.freeze(id, "");
        }
        self.change(id, |root| root.name.clear());
    }

    /// The roots that can go.
    fn going(&self) -> Vec<u32> {
        let all = || self.table.iter().map(|(id, root)| (*id, root));
        let unnamed = |root: &Root| root.name.is_empty() && root.state != RootState::Head;
        let afters = Afters::of(all(), |_| true);
        let goes = |id: &u32| self.history().can_go(*id, afters.get(*id));
        let unnamed = all().filter(|(_, root)| unnamed(root)).map(|(id, _)| id);
        unnamed.filter(goes).collect()
    }

    fn go(&mut self, id: u32) {
        let history = self.history();
        let all = self.table.iter().filter(|(other, _)| **other != id);
        let left = all.map(|(other, root)| {
            let is_after = root.parent == id || root.replaced.contains(&id);
            let root = if is_after {
                history.without(id, root)
            } else {
                root.clone()
            };
            (*other, root)
        });
        let left = left.collect();
        drop(history);
        self.table = left;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { head, name, remove } => {
                self.seq += 1;
                let version = self.seq;
                let head = self.pick(true, head);
                let tree = self.trees.get_mut(&head).unwrap();
                tree.version = version;
                if remove {
                    tree.files.remove(&name);
                } else {
                    tree.files.insert(name, version);
                }
            }
            Step::Snapshot { head } => {
                let name = format!("s{}", self.seq);
                self.snapshot(self.pick(true, head), &name);
            }
            Step::Branch { from } if self.named(true).len() < HEADS => {
                let name = format!("b{}", self.seq);
                self.branch(self.pick(false, from), &name);
            }
            Step::Publish { branch, onto } => {
                let (branch, onto) = (self.pick(true, branch), self.pick(true, onto));
                match self.table[&branch].name == "main" {
                    _ if branch == onto => {}
                    true => self.publish(onto, branch),
                    false => self.publish(branch, onto),
                }
            }
            Step::Restore { branch, to } => {
                let (branch, to) = (self.pick(true, branch), self.pick(false, to));
                let staged = self.branch(to, "");
                self.replace(branch, staged, true);
            }
            Step::Drop { root } => {
                let id = self.pick(false, root);
                if self.table[&id].name != "main" {
                    self.drop(id);
                }
            }
            Step::DropReplaced => {
                let named = self.named(false).into_iter();
                let replaced = named.filter(|id| self.table[id].name.contains(".undo-"));
                let mut replaced: Vec<u32> = replaced.collect();
                replaced.sort_by_key(|id| self.table[id].boundary);
                replaced.truncate(replaced.len().saturating_sub(REPLACED));
                replaced.into_iter().for_each(|id| self.drop(id));
            }
            Step::Go { one } => {
                let going = self.going();
                if let Some(id) = going.get(one % going.len().max(1)) {
                    self.go(*id);
                }
            }
            Step::Branch { .. } => {}
        }
    }

    /// What holds at any time.
    fn check(&self) {
        for root in self.table.values() {
            let before = root.replaced.iter().chain(Some(&root.parent));
            for id in before.filter(|id| **id != VOLUME_ROOT) {
                let of = &self.table[id];
                assert!(of.state == RootState::Frozen && of.boundary < ended(root));
            }
            let needed = self.history().needed(root.parent, root.replaced.clone());
            assert_eq!(needed, root.replaced);
        }
        let named = self.named(false);
        for (at, a) in named.iter().enumerate() {
            for b in &named[..at] {
                let (by_table, by_record) = (self.history().parted(*a, *b), self.parted(*a, *b));
                let tree = |id| &self.trees[id];
                let same = |id| by_table.as_ref().map(tree) == Some(tree(id));
                assert!(
                    by_record.iter().any(same) || by_record.is_empty() && by_table.is_none(),
                    "{a} and {b}: {by_table:?}, {by_record:?}"
                );
            }
        }
    }

    /// What stays without a name is bounded by the roots with one.
    fn check_left(&mut self) {
        while let Some(id) = self.going().first() {
            self.go(*id);
        }
        let unnamed = self.table.values().filter(|root| root.name.is_empty());
        let (named, unnamed) = (self.named(false).len(), unnamed.count());
        assert!(unnamed <= 2 * named, "{unnamed} of {named}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(size(1000, 3000)))]

    #[test]
    fn roots_part_where_they_did(steps in steps()) {
        let mut world = World::new();
        for (n, step) in steps.into_iter().enumerate() {
            world.step(step);
            if n % 8 == 0 {
                world.check();
            }
        }
        world.check();
        world.check_left();
        world.check();
    }
}
