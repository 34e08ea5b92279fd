//! Faults in the table of roots, and in what roots share.

use cairnfs::format::key::{Key, Kind};
use cairnfs::format::root::RootState;
use cairnfs::format::superblock::Superblock;
use zerocopy::little_endian::{U32, U64};

use crate::image::MERGED;
use crate::plan::Fork;
use crate::with_plan;

fn forked(change: Fork) -> Vec<&'static str> {
    with_plan(|plan| {
        plan.fork = Some((MERGED, change));
    })
}

#[test]
fn main_root_and_its_snapshot_share_everything() {
    assert_eq!(forked(|_, _, _| {}), [] as [&str; 0]);
}

#[test]
fn impossible_lineages_are_found() {
    let changes: [(&str, Fork); 8] = [
        ("no parent", |main, _, _| main.parent = 7),
        ("a head as parent", |_, frozen, _| frozen.parent = 1),
        ("a name twice", |_, frozen, _| frozen.name = "main".into()),
        ("a boundary that is not merged", |_, frozen, superblock| {
            frozen.boundary = superblock.merged_seq.get() + 1;
        }),
        ("an id not given", |_, _, superblock: &mut Superblock| {
            superblock.next_root = U32::new(2);
        }),
        ("no feature", |_, _, superblock| {
            superblock.incompatible = U64::new(0)
        }),
        ("another number of nodes", |main, _, _| main.nodes += 1),
        ("frozen before its parent", |main, frozen, _| {
            main.state = RootState::Frozen;
            main.boundary = frozen.boundary;
        }),
    ];
    for (what, change) in changes {
        let mut found = forked(change);
        found.dedup();
        assert!(found.contains(&"root-lineage"), "{what}: {found:?}");
    }
    let found = forked(|_, frozen, _| frozen.name = "main".into());
    assert_eq!(found, ["root-lineage"]);
}

/// Nodes that are younger than the boundary belong to one root.
#[test]
fn node_of_two_roots_that_is_not_inherited_is_found() {
    let found = with_plan(|plan| plan.fork = Some((MERGED - 1, |_, _, _| {})));
    assert!(found.contains(&"block-shared"), "{found:?}");
}

/// A node that a root inherits is in its parent.
#[test]
fn inherited_node_that_the_parent_lacks_is_found() {
    let found = forked(|_, frozen, _| frozen.tree = Default::default());
    assert!(found.contains(&"block-shared"), "{found:?}");
}

#[test]
fn root_item_under_a_wrong_key_is_found() {
    let found = with_plan(|plan| {
        drop(plan.roots.insert(Key::new(2, Kind::Root, 5), vec![0; 32]));
    });
    assert_eq!(found, ["unexpected-item"]);
}
