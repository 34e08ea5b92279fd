//! Faults in the table of roots, and in what roots share.

use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::node::RawOverflow;
use cairnfs_disk::format::record::FLAG_ROOTS;
use cairnfs_disk::format::root::{RawRoot, Root, RootState};
use cairnfs_disk::format::superblock::{REPLACED, Superblock};
use zerocopy::little_endian::{U32, U64};

use super::image::{MERGED, codes, data_block};
use super::plan::{Change, Fork, Plan, extent, extent_key, put};
use super::with_plan;

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

/// A root that was dropped stays whole until its item goes; so does a nameless one.
#[test]
fn dropped_and_nameless_roots_are_sound() {
    let dropped: Fork = |_, frozen, _| {
        frozen.state = RootState::Dropping;
        frozen.name = String::new();
    };
    assert_eq!(forked(dropped), [] as [&str; 0]);
    let nameless: Fork = |_, frozen, _| frozen.name = String::new();
    assert_eq!(forked(nameless), [] as [&str; 0]);
}

/// The space of a root that was dropped was freed, and the root is still there.
#[test]
fn freed_space_of_a_dropped_root_is_found() {
    let mut plan = Plan::base();
    plan.fork = Some((MERGED, |main, frozen, _| {
        frozen.state = RootState::Dropping;
        frozen.name = String::new();
        // The files are empty, so the dropped root alone has the blocks.
        (main.tree, main.nodes) = (RawRoot::default(), 0);
    }));
    plan.log.clear();
    let mut image = plan.build();
    image.unmark(data_block(0));
    image.write_bitmaps();
    image.write_superblock();
    // The main root has no files, nor a directory for them.
    assert_eq!(codes(&image), ["inode-missing", "block-not-allocated"]);
}

/// A root is gone, and what it alone had is still in use.
#[test]
fn space_left_by_a_gone_root_is_found() {
    let mut plan = Plan::base();
    plan.fork = Some((MERGED, |_, _, _| {}));
    let mut image = plan.build();
    image.mark(data_block(29), 1);
    image.write_bitmaps();
    image.write_superblock();
    assert_eq!(codes(&image), ["block-leaked"]);
}

/// A root is gone, and its child still has it as its parent.
#[test]
fn child_of_a_gone_root_is_found() {
    let found = with_plan(|plan| {
        plan.fork = Some((MERGED, |main, _, _| main.parent = 9));
    });
    assert!(found.contains(&"root-lineage"), "{found:?}");
}

/// What two heads have was born before a boundary of both.
#[test]
fn blocks_of_two_heads_are_found() {
    let found = forked(|main, other, _| {
        main.parent = 0;
        (other.state, other.boundary, other.origin) = (RootState::Head, 0, 1);
    });
    assert!(found.contains(&"block-shared"), "{found:?}");
}

/// The files of the main root, whose parent has none, with an extent that the log replaces.
fn replaced_extent(index_birth: u64, log_birth: u64) -> Vec<&'static str> {
    with_plan(|plan| {
        plan.fork = Some((2, |_, dropped, _| {
            dropped.state = RootState::Dropping;
            dropped.name = String::new();
            (dropped.tree, dropped.nodes) = (RawRoot::default(), 0);
        }));
        plan.items.insert(extent_key(16, 2), extent(10, 3, 3));
        plan.edit(16, |inode| inode.size = U64::new(20_000));
        plan.items
            .insert(extent_key(16, 0), extent(0, 2, index_birth));
        for (place, birth) in [(22, log_birth), (24, 8)] {
            plan.context(vec![put(extent_key(16, 0), extent(place, 2, birth))]);
        }
    })
}

/// A head inherits only what its parent has: also where the log has other contents, because a
/// snapshot in the log may get those of the index, and one of its parts those of an earlier part.
#[test]
fn replaced_extent_that_the_parent_lacks_is_found() {
    assert_eq!(replaced_extent(3, 7), [] as [&str; 0]);
    assert_eq!(replaced_extent(2, 7), ["block-shared"], "in the index");
    assert_eq!(replaced_extent(3, 2), ["block-shared"], "in the log");
}

/// Roots agree about the birth of what they share: a root between them may go, and then it decides
/// which of them has it.
#[test]
fn shared_extent_with_two_births_is_found() {
    let birth = |own: u64| {
        with_plan(|plan| {
            plan.fork = Some((MERGED, |_, _, _| {}));
            plan.context(vec![put(extent_key(16, 0), extent(0, 2, own))]);
        })
    };
    assert_eq!(birth(3), [] as [&str; 0]);
    assert_eq!(birth(2), ["extent-birth"]);
}

/// A block that a root inherits is in its parent at the same place of the same file.
#[test]
fn shared_extent_at_another_place_is_found() {
    let found = with_plan(|plan| {
        plan.fork = Some((MERGED, |_, _, _| {}));
        let swapped = [(0, 1), (1, 0)];
        let swapped = swapped.map(|(at, i)| put(extent_key(16, at), extent(i, 1, 3)));
        plan.context(swapped.into());
    });
    assert_eq!(found, ["block-shared", "block-shared"]);
}

/// What a root inherits is in its own parent, and not only in another root.
#[test]
fn inherited_node_that_only_another_root_has_is_found() {
    let found = with_plan(|plan| {
        plan.fork = Some((MERGED, |main, _, superblock| {
            main.parent = 3;
            superblock.next_root = U32::new(4);
        }));
        let empty = Root {
            state: RootState::Frozen,
            boundary: MERGED,
            origin: 1,
            name: "empty".into(),
            ..Root::default()
        };
        plan.roots
            .insert(Key::new(3, Kind::Root, 0), empty.encode());
    });
    // The root directory is missing in the empty one.
    assert_eq!(found, ["inode-missing", "block-shared"]);
}

/// The log changes heads that exist, or that it makes.
#[test]
fn changes_of_a_gone_or_frozen_root_are_found() {
    for root in [7, 2] {
        let found = with_plan(|plan| {
            plan.fork = Some((MERGED, |_, _, _| {}));
            let mut all = plan.log.iter().flat_map(|rec| &rec.changes);
            let mut changed = all.next().unwrap().clone();
            changed.root = root;
            plan.context(vec![changed]);
        });
        assert_eq!(found, ["log-entry"], "root {root}");
    }
}

/// Several roots, each beside the main root and its snapshot, and what is wrong with it.
#[test]
fn impossible_roots_are_one_finding_each() {
    let head = |parent, name: &str| Root {
        parent,
        origin: 2,
        name: name.into(),
        ..Root::default()
    };
    let frozen = |parent, boundary| Root {
        state: RootState::Frozen,
        boundary,
        ..head(parent, "other")
    };
    let replaced = |ids: &[u32], root: Root| Root {
        replaced: ids.to_vec(),
        ..root
    };
    let cases = [
        (
            "a replaced root that does not exist",
            replaced(&[7], head(2, "other")),
        ),
        ("a head replaced", replaced(&[1], head(2, "other"))),
        (
            "frozen at the boundary of what it replaced",
            replaced(&[2], frozen(0, MERGED)),
        ),
        ("a parent that does not exist", head(7, "other")),
        ("a head as parent", head(1, "other")),
        ("the name of another root", head(2, "frozen")),
        ("frozen at the boundary of its parent", frozen(2, MERGED)),
        (
            "frozen at a boundary that is not merged",
            frozen(0, MERGED + 1),
        ),
    ];
    for (what, root) in cases {
        let found = with_plan(|plan| {
            plan.fork = Some((MERGED, |_, _, superblock| {
                superblock.next_root = U32::new(4);
                superblock.incompatible |= U64::new(REPLACED);
            }));
            plan.roots.insert(Key::new(3, Kind::Root, 0), root.encode());
        });
        let lineage = found.iter().filter(|code| **code == "root-lineage");
        assert_eq!(lineage.count(), 1, "{what}: {found:?}");
    }
}

/// What a root has replaced is named only where programs know that there may be such roots.
#[test]
fn replaced_root_without_its_feature_is_one_finding() {
    let found = forked(|main, _, _| main.replaced = vec![2]);
    assert_eq!(found, ["root-lineage"]);
    let found = forked(|main, _, superblock| {
        main.replaced = vec![2];
        superblock.incompatible |= U64::new(REPLACED);
    });
    assert_eq!(found, [] as [&str; 0]);
}

/// Roots that are parents of each other: their boundaries cannot both be the greater one. They have
/// no files, nor directories for them.
#[test]
fn circle_of_parents_is_one_finding() {
    let frozen = |parent, boundary, name: &str| Root {
        state: RootState::Frozen,
        boundary,
        parent,
        origin: 2,
        name: name.into(),
        ..Root::default()
    };
    let replacing = |of: u32, boundary, name: &str| Root {
        replaced: vec![of],
        ..frozen(0, boundary, name)
    };
    let circles: [&[(u64, Root)]; 4] = [
        &[(3, frozen(4, 3, "a")), (4, replacing(3, 4, "b"))],
        &[(3, replacing(4, 3, "a")), (4, replacing(3, 4, "b"))],
        &[(3, frozen(4, 3, "a")), (4, frozen(3, 4, "b"))],
        &[
            (3, frozen(5, 2, "a")),
            (4, frozen(3, 3, "b")),
            (5, frozen(4, 4, "c")),
        ],
    ];
    for circle in circles {
        let found = with_plan(|plan| {
            plan.fork = Some((MERGED, |_, _, superblock| {
                superblock.next_root = U32::new(6);
                superblock.incompatible |= U64::new(REPLACED);
            }));
            for (id, root) in circle {
                plan.roots
                    .insert(Key::new(*id, Kind::Root, 0), root.encode());
            }
        });
        let expected = [&["root-lineage"][..], &vec!["inode-missing"; circle.len()]].concat();
        assert_eq!(found, expected, "{} roots", circle.len());
    }
}

/// The item of a root, as an entry of the log.
fn logged(id: u64, root: &Root) -> Change {
    Change {
        root: 0,
        ..put(Key::new(id, Kind::Root, 0), root.encode())
    }
}

/// The log changes roots as no call does.
#[test]
fn impossible_changes_of_roots_in_the_log_are_found() {
    let kept = Root {
        state: RootState::Frozen,
        boundary: 7,
        parent: 2,
        origin: 1,
        name: "kept".into(),
        ..Root::default()
    };
    let moved = Root {
        parent: 3,
        ..Root::main(RawRoot::default())
    };
    let replaced = vec![2];
    let cases: [(&str, Root, Root, bool); 6] = [
        (
            "replaced by a snapshot",
            Root {
                replaced,
                ..kept.clone()
            },
            moved.clone(),
            true,
        ),
        ("sound", kept.clone(), moved.clone(), true),
        ("not marked", kept.clone(), moved.clone(), false),
        (
            "another boundary",
            Root {
                boundary: 6,
                ..kept.clone()
            },
            moved.clone(),
            true,
        ),
        (
            "another parent",
            kept.clone(),
            Root {
                parent: 0,
                ..moved.clone()
            },
            true,
        ),
        (
            "a name twice",
            Root {
                name: "frozen".into(),
                ..kept
            },
            moved,
            true,
        ),
    ];
    for (what, kept, main, marked) in cases {
        let found = with_plan(|plan| {
            plan.fork = Some((MERGED, |_, _, _| {}));
            plan.context(vec![logged(3, &kept), logged(1, &main)]);
            if marked {
                plan.log.last_mut().unwrap().flags |= FLAG_ROOTS;
            }
        });
        match what {
            "sound" => assert_eq!(found, [] as [&str; 0]),
            "not marked" => assert_eq!(found, ["log-entry"; 2]),
            _ => assert_eq!(found, ["log-entry"], "{what}"),
        }
    }
}

/// The log makes a snapshot in context 7 and goes on; no merge went beyond the snapshot.
fn snapshot_in_the_log(plan: &mut Plan) {
    let kept = Root {
        state: RootState::Frozen,
        boundary: 7,
        origin: 1,
        name: "kept".into(),
        ..Root::default()
    };
    let main = Root {
        parent: 2,
        ..Root::main(RawRoot::default())
    };
    plan.context(vec![logged(2, &kept), logged(1, &main)]);
    plan.log.last_mut().unwrap().flags |= FLAG_ROOTS;
    plan.context(vec![]);
}

/// What the index has is not younger than a snapshot that only the log has.
#[test]
fn births_behind_a_snapshot_in_the_log_are_found() {
    let births = |birth: u64, code: &str| {
        let found = with_plan(|plan| {
            snapshot_in_the_log(plan);
            plan.items.insert(extent_key(16, 0), extent(0, 2, birth));
        });
        found.iter().filter(|found| **found == code).count()
    };
    assert_eq!(births(7, "extent-birth"), 0);
    assert_eq!(births(8, "extent-birth"), 1);
    let large = |hook: fn(&Key, &mut RawOverflow)| {
        let found = with_plan(|plan| {
            snapshot_in_the_log(plan);
            plan.cell_hook = Some(hook);
        });
        found.iter().filter(|found| **found == "node-birth").count()
    };
    assert_eq!(large(|_, at| at.birth = U64::new(7)), 0);
    assert!(large(|_, at| at.birth = U64::new(8)) > 0);
}

/// What the log adds behind a snapshot is not as old as the snapshot, which would then seem to have
/// it; the parts of older extents are.
#[test]
fn new_extents_behind_a_snapshot_in_the_log_are_young() {
    let behind = |ino: u64, value: Vec<u8>| {
        let found = with_plan(|plan| {
            snapshot_in_the_log(plan);
            plan.context(vec![put(extent_key(ino, 0), value)]);
        });
        found.iter().filter(|code| **code == "extent-birth").count()
    };
    assert_eq!(behind(22, extent(24, 1, 9)), 0);
    assert_eq!(behind(22, extent(24, 1, 7)), 1);
    assert_eq!(behind(22, extent(20, 1, 6)), 0, "as the log had it before");
    assert_eq!(behind(16, extent(0, 1, 3)), 0, "as the index has it");
    assert_eq!(behind(22, extent(20, 2, 6)), 1, "one block more");
}
