//! Random edits of both sides.

use std::collections::{BTreeMap, BTreeSet};

use cairnfs_tier::size;
use proptest::prelude::*;

use super::oracle::{merge, merge_node, nobody};
use super::support::{Attributes, Models, Plain, is_sound, plain};
use super::twins::{echo, renumbered, unite};
use crate::diff::tests::model::{Counters, Model, Random};
use crate::diff::tests::volume::{ModelVolume, Numbered};
use crate::diff::{Changes, TreeDelta};
use crate::publish::{Conflict, ConflictKind, FrozenTrees, Plan, Side, plan};
use cairnfs_disk::format::ROOT_INO;

/// Removes inodes without names: no tree shows them.
fn shown(mut model: Model) -> Model {
    let named: BTreeSet<u64> = model.names.values().map(|(_, i)| *i).collect();
    model
        .nodes
        .retain(|ino, _| *ino == ROOT_INO || named.contains(ino));
    model
}

/// A base and two states that came from it, of `before` and `after` random changes. With `echoed`,
/// both sides made much under the same names, and each changed some of it afterwards.
fn three(seed: u64, before: usize, after: usize, echoed: bool) -> [Model; 3] {
    let mut random = Random(seed | 1);
    let mut counters = Counters::default();
    let mut base = Model::default();
    for _ in 0..before {
        base.change(&mut counters, &mut random);
    }
    let base = shown(base);
    let [mut ours, mut theirs] = [base.clone(), base.clone()];
    for side in [&mut ours, &mut theirs] {
        for _ in 0..random.below(after + 1) {
            side.change(&mut counters, &mut random);
        }
    }
    let [mut ours, mut theirs] = [shown(ours), shown(theirs)];
    if echoed {
        echo(&base, &ours, &mut theirs, (&mut counters, &mut random));
        for side in [&mut ours, &mut theirs] {
            for _ in 0..random.below(3) {
                side.change(&mut counters, &mut random);
            }
        }
    }
    [base, shown(ours), shown(theirs)]
}

fn report_all(_: &[u8]) -> Option<Side> {
    None
}

fn mirrored(conflicts: Vec<Conflict>) -> Vec<Conflict> {
    let turn = |kind| match kind {
        ConflictKind::Removed(side) => ConflictKind::Removed(side.other()),
        ConflictKind::DirectoryRemoved(side) => ConflictKind::DirectoryRemoved(side.other()),
        ConflictKind::Renamed { ours, theirs } => ConflictKind::Renamed {
            ours: theirs,
            theirs: ours,
        },
        other => other,
    };
    let mut turned: Vec<Conflict> = conflicts
        .into_iter()
        .map(|c| Conflict {
            kind: turn(c.kind),
            ..c
        })
        .collect();
    turned.sort();
    turned
}

/// Conflicts by kind and inode. A file with several names may be shown under another one of them,
/// and so beside other inodes or alone.
fn kinds(conflicts: &[Conflict], numbers: &BTreeMap<u64, u64>) -> BTreeSet<(ConflictKind, u64)> {
    let each = conflicts.iter().flat_map(|conflict| {
        let inodes = conflict.inodes.iter();
        inodes.map(|ino| (conflict.kind.clone(), *numbers.get(ino).unwrap_or(ino)))
    });
    each.collect()
}

/// A model without the times of files that both sides made: each side keeps its own.
fn without_times(model: &Model, files: &BTreeSet<u64>) -> Plain {
    let mut model = model.clone();
    for ino in files {
        let node = model.nodes.get_mut(ino);
        node.into_iter().for_each(|node| node.mtime = 0);
    }
    plain(&model)
}

/// What the inodes of a model have beside names.
fn attributes(model: &Model, files: &BTreeSet<u64>) -> BTreeMap<u64, Attributes> {
    without_times(model, files).1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(size(300, 1500)))]
    /// The plan has conflicts if the oracle has, and else makes the oracle's tree. Then nothing is
    /// left to do. Exchanged sides have the same conflicts and the same result.
    #[test]
    fn plans_agree_with_the_oracle(
        seed in any::<u64>(),
        before in 0usize..60,
        after in 0usize..14,
        echoed in any::<bool>(),
    ) {
        let [base, ours, theirs] = three(seed, before, after, echoed);
        let mut models = Models { base: &base, ours: &ours, theirs: &theirs };
        let planned = models.plan(&report_all);
        let mut turned = Models { base: &base, ours: &theirs, theirs: &ours };
        let back = turned.plan(&report_all);
        let united = unite(&base, &ours, &theirs);
        let mirror = mirrored(back.conflicts.clone());
        if united.numbers.is_empty() {
prop_assert_eq!(&planned.conflicts, &mirror)
} else {
prop_assert_eq!(
                kinds(&planned.conflicts, &united.numbers),
                kinds(&mirror, &united.numbers)
            )
}
        let expected = merge([&base, &ours, &theirs], None);
        prop_assert_eq!(planned.conflicts.is_empty(), expected.is_some(), "{:?}", planned);
        let Some(expected) = expected else {
            prop_assert!(planned.operations.is_empty());
            return Ok(());
        };
        let result = models.apply(&planned);
        prop_assert_eq!(plain(&result), plain(&expected));
        let backwards = renumbered(&turned.apply(&back), &united.numbers);
        let timeless = |model| without_times(model, &united.files);
        prop_assert_eq!(timeless(&backwards), timeless(&expected));
        let mut again = Models { base: &base, ours: &result, theirs: &theirs };
        prop_assert_eq!(again.plan(&report_all), Plan::default());
    }

    /// With a side for every path nothing is left in conflict, and the result is a tree.
    #[test]
    fn chosen_sides_leave_no_conflict(
        seed in any::<u64>(),
        before in 0usize..60,
        after in 0usize..40,
        choice in 0..3,
        echoed in any::<bool>(),
    ) {
        let [base, ours, theirs] = three(seed, before, after, echoed);
        let choose = |path: &[u8]| match choice {
            0 => Some(Side::Ours),
            1 => Some(Side::Theirs),
            _ if path.len().is_multiple_of(2) => Some(Side::Ours),
            _ => Some(Side::Theirs),
        };
        let mut models = Models { base: &base, ours: &ours, theirs: &theirs };
        let planned = models.plan(&choose);
        if choice < 2 {
            prop_assert_eq!(&planned.conflicts, &[]);
        }
        if planned.conflicts.is_empty() {
            prop_assert!(is_sound(&models.apply(&planned)));
        }
    }

    /// What is in conflict is taken from the side chosen, and all else is merged: each attribute of
    /// an inode that both sides have is decided by itself.
    #[test]
    fn chosen_sides_decide_each_attribute(
        seed in any::<u64>(),
        before in 0usize..40,
        after in 0usize..30,
        echoed in any::<bool>(),
    ) {
        let [base, ours, theirs] = three(seed, before, after, echoed);
        for side in [Side::Ours, Side::Theirs] {
            let mut models = Models { base: &base, ours: &ours, theirs: &theirs };
            let planned = models.plan(&|_| Some(side));
            let result = models.apply(&planned);
            let united = unite(&base, &ours, &theirs);
            for (ino, found) in attributes(&result, &united.files) {
                let of = |model: &Model| model.nodes.get(&ino).cloned();
                let Some((a, b)) = of(&ours).zip(of(&united.theirs)) else {
                    continue;
                };
                let merged = merge_node([&of(&base).unwrap_or_else(nobody), &a, &b], Some(side));
                let one = Model { nodes: [(ino, merged.unwrap())].into(), ..Model::default() };
                let expected = attributes(&one, &united.files);
                prop_assert_eq!(&found, &expected[&ino], "{} {:?}", ino, side);
            }
            if let Some(expected) = merge([&base, &ours, &theirs], Some(side)) {
                let timeless = |model| without_times(model, &united.files);
                prop_assert_eq!(timeless(&result), timeless(&expected));
            }
        }
    }

    #[test]
    fn frozen_trees_make_the_same_plan(
        seed in any::<u64>(),
        after in 0usize..14,
        echoed in any::<bool>(),
    ) {
        assert_same_plan(seed, after, echoed);
    }
}

/// The planner's inputs are the same from index trees as from models.
fn assert_same_plan(seed: u64, after: usize, echoed: bool) {
    let models = three(seed, 40, after, echoed);
    let mut volume = ModelVolume::new();
    let trees = [0, 1, 2].map(|i| volume.write(&models[i], 256));
    let [base, ours, theirs] = trees.map(|tree| volume.tree(tree));
    let delta = |new| TreeDelta::collect(Changes::new(base, new).unwrap()).unwrap();
    let mut frozen = FrozenTrees::new([base, ours, theirs], &Numbered);
    let found = plan(&delta(ours), delta(theirs), &mut frozen, &report_all).unwrap();
    let [base, ours, theirs] = &models;
    let expected = Models { base, ours, theirs }.plan(&report_all);
    assert_eq!(found.operations, expected.operations);
    let same = BTreeMap::new();
    assert_eq!(
        kinds(&found.conflicts, &same),
        kinds(&expected.conflicts, &same)
    );
}

/// Of a file with two names, one of which conflicts also for another reason, the trees show one name
/// and the model the other.
#[test]
fn file_shown_under_another_name_is_the_same_conflict() {
    assert_same_plan(478_869_642_051_728_518, 7, false);
}

/// The random sides do make the same often, and merge then in many cases.
#[test]
fn echoed_sides_have_twins_that_merge() {
    let (mut dirs, mut files, mut merged) = (0, 0, 0);
    for seed in 1..1000 {
        let [base, ours, theirs] = three(seed * 7919, 20, 8, true);
        let united = unite(&base, &ours, &theirs);
        files += usize::from(!united.files.is_empty());
        dirs += usize::from(united.numbers.len() > united.files.len());
        let some = !united.numbers.is_empty();
        merged += usize::from(some && merge([&base, &ours, &theirs], None).is_some());
    }
    assert!(
        dirs > 100 && files > 200 && merged > 100,
        "{dirs}, {files}, {merged}"
    );
}

/// Edits of both sides in different directories: the result is each side's own directory.
#[test]
fn edits_in_different_directories_never_conflict() {
    use crate::diff::tests::model::node;
    use cairnfs_disk::format::item::S_IFDIR;
    let graft = |to: &mut Model, part: &Model, at: u64, moved: u64| {
        let number = |ino: u64| if ino == ROOT_INO { at } else { ino + moved };
        for (ino, node) in &part.nodes {
            if *ino != ROOT_INO {
                let parent = number(node.parent);
                to.nodes.insert(
                    number(*ino),
                    crate::diff::tests::model::Node {
                        parent,
                        ..node.clone()
                    },
                );
            }
        }
        for ((dir, name), (index, ino)) in &part.names {
            to.names
                .insert((number(*dir), name.clone()), (*index, number(*ino)));
        }
    };
    for seed in 1..200 {
        let [base_a, a, _] = three(seed, 30, 40, false);
        let [base_b, _, b] = three(seed + 1000, 30, 40, false);
        let both = |a: &Model, b: &Model| {
            let mut model = Model::default();
            for (ino, name) in [(2000, "a"), (3000, "b")] {
                model.nodes.insert(ino, node(S_IFDIR | 0o755, ROOT_INO));
                model.link(ROOT_INO, name.into(), ino);
            }
            graft(&mut model, a, 2000, 10_000);
            graft(&mut model, b, 3000, 20_000);
            model
        };
        let (base, ours, theirs) = (both(&base_a, &base_b), both(&a, &base_b), both(&base_a, &b));
        let mut models = Models {
            base: &base,
            ours: &ours,
            theirs: &theirs,
        };
        let planned = models.plan(&report_all);
        assert_eq!(planned.conflicts, [], "{seed}");
        assert_eq!(
            plain(&models.apply(&planned)),
            plain(&both(&a, &b)),
            "{seed}"
        );
    }
}
