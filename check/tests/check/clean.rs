//! Sound volumes: there is no finding, and the counts are correct.

use cairnfs_check::{CheckOptions, Progress, check};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::record::FLAG_FSYNC;

use super::image::*;
use super::plan::*;
use super::with_plan;

#[test]
fn sound_volume_is_clean() {
    let report = Plan::base().build().check(true).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(report.notes, []);
    assert_eq!(report.unchecked, Vec::<String>::new());
    let s = report.stats;
    assert_eq!((s.superblocks, s.log_records, s.log_entries), (2, 3, 7));
    assert_eq!((s.files, s.directories, s.symlinks, s.other), (4, 2, 1, 0));
    assert_eq!((s.entries, s.xattrs, s.orphans), (6, 3, 1));
    assert_eq!(s.shared_values, 1);
    assert_eq!((s.extents, s.data_blocks, s.verified_blocks), (3, 6, 3));
    assert_eq!(s.overflow_units, 2);
}

#[test]
fn contents_are_read_only_on_request() {
    let mut image = Plan::base().build();
    image.flip(data_block(0), 5);
    let report = image.check(false).unwrap();
    assert!(report.is_clean());
    assert_eq!(report.stats.verified_blocks, 0);
}

#[test]
fn phases_come_in_order_and_end_complete() {
    let device = VecDevice(Plan::base().build().bytes);
    let mut seen: Vec<Progress> = Vec::new();
    check(&device, &CheckOptions { data: true }, &mut |p| {
        if seen.last().is_some_and(|l| l.phase == p.phase) {
            seen.pop();
        }
        seen.push(p);
    })
    .unwrap();
    let phases: Vec<_> = seen.iter().map(|p| p.phase).collect();
    let wanted = ["superblock", "log", "index", "structure", "space", "data"];
    assert_eq!(phases, wanted);
    for p in seen.iter().filter(|p| p.total > 0 && p.phase != "log") {
        assert_eq!(p.done, p.total, "{}", p.phase);
    }
}

#[test]
fn invalid_older_superblock_is_not_damage() {
    let mut image = Plan::base().build();
    let older = 8 - image.newest_slot();
    image.flip(older, 100);
    let report = image.check(true).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(report.stats.superblocks, 1);
    let notes: Vec<_> = report.notes.iter().map(|n| (n.code, n.block)).collect();
    assert_eq!(notes, [("superblock-place", Some(older))]);
}

/// Contract: atomic
#[test]
fn incomplete_last_context_is_ignored() {
    let found = with_plan(|plan| {
        plan.context(vec![delete(Key::inode(16), vec![])]);
        plan.log.last_mut().unwrap().flags = 0;
    });
    assert_eq!(found, Vec::<&str>::new());
}

#[test]
fn mount_record_may_follow_incomplete_context() {
    let found = with_plan(|plan| {
        plan.context(vec![delete(Key::inode(16), vec![])]);
        plan.log.last_mut().unwrap().flags = 0;
        let mut mount = plan.log[0].clone();
        mount.seq = 9;
        mount.nonce = 78;
        plan.log.push(mount);
        plan.context(vec![]);
        plan.log.last_mut().unwrap().nonce = 78;
    });
    assert_eq!(found, Vec::<&str>::new());
}

#[test]
fn fsync_records_precede_rest_of_their_context() {
    let found = with_plan(|plan| {
        for _ in 0..3 {
            plan.context(vec![]);
        }
        let seq = plan.log[3].seq;
        for record in &mut plan.log[3..5] {
            record.flags |= FLAG_FSYNC;
        }
        for record in &mut plan.log[3..6] {
            record.seq = seq;
        }
    });
    assert_eq!(found, Vec::<&str>::new());
}

/// Contract: atomic
#[test]
fn merged_contexts_are_ignored() {
    let found = with_plan(|plan| {
        let mut old = plan.log[2].clone();
        old.seq = 4;
        old.part = 0;
        old.changes = vec![delete(Key::inode(16), vec![])];
        plan.log.insert(0, old);
    });
    assert_eq!(found, Vec::<&str>::new());
}

#[test]
fn empty_tree_with_all_items_in_log_is_sound() {
    let mut plan = Plan::base();
    let items = std::mem::take(&mut plan.items);
    let all = items
        .into_iter()
        .filter(|(k, _)| !matches!(k.kind, Kind::DirName | Kind::SharedValue))
        .map(|(k, v)| match k.kind {
            Kind::Xattr => put(k, logged(&v)),
            _ => put(k, v),
        })
        .collect();
    let mut first = plan.log[2].clone();
    (first.part, first.changes) = (0, all);
    for rec in &mut plan.log[1..] {
        rec.seq += 1;
    }
    plan.log.insert(1, first);
    assert_eq!(codes(&plan.build()), Vec::<&str>::new());
}
