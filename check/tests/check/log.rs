//! Damage to the log: the chain of records, their order, their entries.

use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::MARK_BLOCK;
use cairnfs_disk::format::item::S_IFREG;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::mark::RawMark;
use cairnfs_disk::format::record::{FLAG_FSYNC, FLAG_LAST, FLAG_MOUNT};
use zerocopy::little_endian::U64;

use super::image::*;
use super::plan::*;
use super::{with_image, with_plan};

/// Contract: rot.log
#[test]
fn log_end_before_required_lsn_is_damage() {
    for record in 0..3 {
        let found = with_image(|image| image.flip(image.records[record], 20));
        assert_eq!(found, ["log-damaged"], "header of record {record}");
    }
    let found = with_image(|image| image.flip(image.records[1], 140));
    assert_eq!(found, ["log-damaged"], "payload");
}

/// Contract: rot.log
#[test]
fn log_end_before_durable_lsn_of_later_record_is_damage() {
    let lost = |durable: u64| {
        with_plan_then(
            |plan| {
                plan.context(vec![]);
                plan.log[3].durable = durable;
            },
            |image| {
                image.edit_superblock(|s| s.required_lsn = U64::new(TAIL));
                image.flip(image.records[2], 20);
            },
        )
    };
    assert_eq!(lost(TAIL + 3), ["log-damaged"]);
    assert_eq!(lost(TAIL + 2), Vec::<&str>::new(), "an end is no damage");
}

/// Contract: rot.log
#[test]
fn log_end_before_durable_mark_is_damage() {
    let lost = |uuid: [u8; 16], marked: u64| {
        with_image(|image| {
            image.edit_superblock(|s| s.required_lsn = U64::new(TAIL));
            let mark = RawMark::new(uuid, 0, marked).encode();
            let at = MARK_BLOCK as usize * BLOCK_SIZE;
            image.bytes[at..at + BLOCK_SIZE].copy_from_slice(&mark);
            image.flip(image.records[2], 20);
        })
    };
    assert_eq!(lost(UUID, TAIL + 3), ["log-damaged"]);
    assert_eq!(lost(UUID, TAIL + 2), Vec::<&str>::new(), "the end itself");
    let other = [9; 16];
    assert_eq!(
        lost(other, TAIL + 3),
        Vec::<&str>::new(),
        "of another volume"
    );
}

fn with_plan_then(
    plan_damage: impl FnOnce(&mut Plan),
    image_damage: impl FnOnce(&mut Image),
) -> Vec<&'static str> {
    let mut plan = Plan::base();
    plan_damage(&mut plan);
    let mut image = plan.build();
    image_damage(&mut image);
    codes(&image)
}

#[test]
fn tail_that_does_not_chain_is_an_empty_log() {
    let found = with_image(|image| {
        image.edit_superblock(|s| {
            s.tail_chain = U64::new(99);
            s.required_lsn = U64::new(TAIL);
        });
    });
    // The record headers after the tail only claim that everything up to the tail was durable: no
    // damage.
    assert_eq!(found, Vec::<&str>::new());
}

/// Contract: dependency
#[test]
fn records_out_of_order_are_found() {
    type Damage = fn(&mut Plan);
    let cases: [(&str, Damage); 7] = [
        ("a part is missing", |plan| plan.log[2].part = 2),
        ("a context begins late", |plan| plan.log[1].part = 1),
        ("a context within another", |plan| plan.log[2].seq = 7),
        ("contexts descend", |plan| {
            plan.context(vec![]);
            plan.log[3].seq = 6;
        }),
        ("an fsync record behind its context", |plan| {
            plan.context(vec![]);
            plan.context(vec![]);
            plan.log[4].seq = plan.log[3].seq;
            plan.log[4].flags |= FLAG_FSYNC;
        }),
        ("another mount", |plan| {
            plan.context(vec![]);
            plan.log[3].nonce = 78;
        }),
        ("a mount record of a part", |plan| {
            plan.context(vec![]);
            plan.log[3].flags = FLAG_MOUNT;
        }),
    ];
    for (what, damage) in cases {
        assert_eq!(with_plan(damage), ["log-order"], "{what}");
    }
    let found = with_plan(|plan| {
        plan.context(vec![put(Key::inode(30), vec![])]);
        plan.log[3].flags = FLAG_MOUNT | FLAG_LAST;
    });
    assert_eq!(found, ["log-order"], "a mount record with entries");
}

#[test]
fn invalid_entries_are_found() {
    let entry = |change: Change| with_plan(|plan| plan.context(vec![change]));
    let other_root = Change {
        root: 7,
        ..delete(Key::inode(90), vec![])
    };
    assert_eq!(entry(other_root), ["log-entry"]);
    let name = Key::new(1, Kind::DirName, 5);
    assert_eq!(entry(put(name, vec![0; 8])), ["log-entry"]);
    let shared = Key::new(3, Kind::SharedValue, 5);
    assert_eq!(entry(put(shared, vec![0; 8])), ["log-entry"]);
    assert_eq!(entry(delete(Key::inode(90), vec![0; 8])), ["log-entry"]);
    assert_eq!(entry(delete(index_key(1, 90), vec![])), ["log-entry"]);
}

#[test]
fn durable_lsn_beyond_log_end_is_damage() {
    let found = with_plan(|plan| plan.log[1].durable = TAIL + 100);
    assert_eq!(found, ["log-damaged"]);
}

#[test]
fn context_number_zero_is_found() {
    let found = with_plan(|plan| plan.log[0].seq = 0);
    assert_eq!(found, ["log-order"]);
}

#[test]
fn replaced_values_are_checked() {
    for (key, bad) in [
        (Key::inode(22), vec![1; 9]),
        (extent_key(22, 0), unwritten(1 << 40, 1)),
        (index_key(1, 7), vec![0; 3]),
    ] {
        let found = with_plan(|plan| {
            let logged = plan.log.iter().flat_map(|r| r.changes.clone());
            let good = logged.rev().find(|c| c.key == key).unwrap();
            plan.context(vec![put(key, bad)]);
            plan.context(vec![good]);
        });
        assert_eq!(found, ["log-entry"], "{key:?}");
    }
    let found = with_plan(|plan| {
        plan.items.insert(index_key(1, 6), vec![0; 3]);
    });
    assert_eq!(found, ["dir-entry"], "an entry that the log deletes");
    let found = with_plan(|plan| {
        plan.items.insert(extent_key(22, 0), vec![0; 3]);
    });
    assert_eq!(found, ["extent-item"], "an extent that the log replaces");
}

#[test]
fn invalid_inode_number_in_log_is_found() {
    let found = with_plan(|plan| plan.context(vec![delete(Key::inode(u64::MAX), vec![])]));
    assert_eq!(found, ["log-entry"]);
}

#[test]
fn deletion_removes_logged_and_indexed_name() {
    // Renamed and removed within one context: the index has a name that is not in the log.
    let wrong = |plan: &mut Plan| plan.log[1].changes[0].value = vec![3; 8];
    assert_eq!(with_plan(wrong), Vec::<&str>::new());
    let found = with_plan(|plan| {
        wrong(plan);
        plan.items.remove(&index_key(1, 6));
    });
    assert_eq!(found, ["dir-name"], "a name that neither tells stays");
}

#[test]
fn entry_may_change_its_name() {
    let renamed = |name| put(index_key(1, 5), entry(19, S_IFREG, name));
    for names in [&["other"][..], &["x", "small"], &["x", "y", "z"]] {
        let found = with_plan(|plan| {
            names
                .iter()
                .for_each(|name| plan.context(vec![renamed(name)]));
        });
        assert_eq!(found, Vec::<&str>::new(), "{names:?}");
    }
    let found = with_plan(|plan| plan.context(vec![renamed("file")]));
    assert_eq!(found, ["name-duplicate"]);
}

#[test]
fn stale_name_after_merge_step_is_found() {
    let with_log = |plan: &mut Plan| {
        let changed = entry(19, S_IFREG, "other");
        plan.context(vec![put(index_key(1, 5), changed.clone())]);
        plan.items.insert(index_key(1, 5), changed);
    };
    assert_eq!(with_plan(with_log), ["dir-name"]);
    let found = with_plan(|plan| {
        with_log(plan);
        plan.items.remove(&name_key(1, "small"));
    });
    assert_eq!(found, Vec::<&str>::new());
}

/// Contract: atomic
#[test]
fn replay_over_half_merged_index_is_sound() {
    // A possible result of an interrupted merge: the index has the change of an entry but not of
    // its name item.
    let found = with_plan(|plan| {
        plan.items.remove(&index_key(1, 6));
        plan.items
            .insert(index_key(1, 7), entry(22, S_IFREG, "new"));
    });
    assert_eq!(found, Vec::<&str>::new());
}

#[test]
fn extents_younger_than_their_context_are_found() {
    let born = |birth| {
        with_plan(|plan| {
            plan.context(vec![put(extent_key(22, 0), extent(20, 1, birth))]);
            plan.context(vec![]);
        })
    };
    assert_eq!(born(7), Vec::<&str>::new());
    assert_eq!(born(8), ["log-entry"], "as old as a later context");
    assert_eq!(born(9), ["log-entry"], "younger than the log");
}

#[test]
fn logged_values_are_checked_like_indexed_ones() {
    let found = with_plan(|plan| plan.context(vec![put(Key::inode(22), vec![1; 9])]));
    assert_eq!(found, ["inode-item"]);
}
