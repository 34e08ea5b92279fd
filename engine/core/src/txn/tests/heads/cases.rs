//! The histories.
//!
//! Contract: roots

use super::*;
use crate::txn::RootPin;
use cairnfs_disk::error::Error;
use cairnfs_disk::sync::atomic::Ordering;

/// The files that the histories use.
pub const INODES: std::ops::Range<u64> = 100..104;
/// Their blocks.
pub const BLOCKS: std::ops::Range<u64> = 0..4;

/// Runs a history with and without limits that make merges and replay take many steps, or merges
/// have many parts.
fn history(run: impl Fn(&mut Run)) {
    let tight = Some(Pressure::steps(300, 2));
    for pressure in [None, tight, Some(Pressure::parts(300, 1))] {
        let mut volume = Run::new(pressure);
        run(&mut volume);
        volume.survive();
    }
}

#[test]
fn heads_of_one_volume_change_apart() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        v.put(main, (101, 0), 2);
        let b = v.branch(main, "b");
        v.put(b, (100, 0), 3);
        v.put(main, (101, 0), 4);
        v.remove(b, (101, 0));
        v.sync();
        v.merge();
        v.put(b, (100, 1), 5);
        v.put(main, (100, 0), 6);
        v.sync();
        v.merge();
    });
}

#[test]
fn two_snapshots_one_merge() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        let b = v.branch(main, "b");
        v.put(b, (100, 0), 2);
        v.snapshot(b, "s");
        v.put(b, (100, 0), 3);
        v.put(main, (100, 0), 4);
        v.snapshot(main, "t");
        v.put(main, (100, 0), 5);
        v.sync();
        v.merge();
    });
}

/// What a fork's merge leaves until its superblock is durable is not used before: neither the nodes
/// and blocks that it freed, nor the copies of the free space that the superblock before refers to.
#[test]
fn forks_leave_their_superblocks_unflushed() {
    history(|v| {
        let main = v.id("main");
        for ino in INODES {
            v.put(main, (ino, 0), 1);
        }
        v.merge();
        for (value, name) in [(2, "b"), (3, "c"), (4, "d")] {
            v.put(main, (100, 0), value);
            v.remove(main, (100 + u64::from(value) % 4, 0));
            let branch = v.branch(main, name);
            assert!(v.core.merger.has_rest(), "no flush but that of the record");
            v.put(branch, (101, 1), value);
        }
        v.put(main, (103, 2), 5);
        v.sync();
        v.core.settle_merge().unwrap();
        assert!(!v.core.merger.has_rest());
        v.put(main, (100, 0), 6);
        v.sync();
        v.merge();
    });
}

/// A branch of a tree without changes is opened, written and forked before any merge has taken it.
#[test]
fn branches_open_before_a_merge_has_them() {
    history(|v| {
        let main = v.id("main");
        for ino in INODES {
            v.put(main, (ino, 0), 1);
        }
        v.merge();
        let merges = v.core.merger.merges();
        let b = v.branch(main, "b");
        let c = v.branch(main, "c");
        v.put(c, (100, 0), 2);
        assert!(v.core.roots.is_only_logged(b) && v.core.roots.is_only_logged(c));
        fsync(&v.core, c, 100);
        v.note(true);
        assert_eq!(v.core.merger.merges(), merges, "no merge came between");
        v.remove(c, (101, 0));
        v.put(main, (102, 0), 3);
        v.snapshot(c, "s");
        v.put(c, (100, 0), 4);
        v.put(b, (100, 0), 5);
        v.sync();
        v.merge();
    });
}

/// Each change of roots pays for its own context in the log, also if one merge takes several.
#[test]
fn joined_changes_leave_log_space_as_it_was() {
    let v = Run::new(None);
    let (main, ring) = (v.core.main_root(), v.core.journal.ring());
    let free = |v: &Run| {
        v.core.merge().unwrap();
        v.core.reservations.sweep();
        ring.free()
    };
    v.core.fork(main, "first", ForkKind::Frozen).unwrap();
    let before = free(&v);
    for n in 0..20 {
        v.core
            .fork(main, &format!("s{n}"), ForkKind::Frozen)
            .unwrap();
    }
    assert!(
        v.core.roots.is_only_logged(v.id("s0")),
        "no merge came between"
    );
    assert_eq!(free(&v), before);
}

/// A branch of a branch of a snapshot, each with changes of its own.
#[test]
fn branches_in_any_depth() {
    history(|v| {
        let main = v.id("main");
        for ino in INODES {
            v.put(main, (ino, 0), 1);
        }
        let s = v.snapshot(main, "s");
        let b = v.branch(s, "b");
        v.put(b, (100, 0), 2);
        v.put(main, (100, 0), 3);
        let c = v.branch(b, "c");
        v.put(c, (100, 0), 4);
        v.remove(c, (101, 0));
        v.put(b, (100, 0), 5);
        v.merge();
        v.remove(b, (100, 0));
        v.remove(c, (100, 0));
        v.remove(main, (100, 0));
        v.sync();
        v.merge();
    });
}

#[test]
fn boundary_merge_uses_old_lineage() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        let b = v.branch(main, "b");
        v.put(b, (100, 0), 2);
        v.put(b, (101, 0), 3);
        v.sync();
        v.merge();
        v.put(b, (100, 0), 4);
        v.remove(b, (101, 0));
        v.branch(b, "c");
        v.put(b, (100, 0), 5);
        v.merge();
        v.remove(b, (100, 0));
        v.merge();
    });
}

/// Forks between which nothing is committed wait for one merge together. Its steps may be cut, and
/// then the boundaries are merged one by one.
#[test]
fn boundaries_without_changes_between_join() {
    history(|v| {
        let main = v.id("main");
        for ino in INODES {
            v.put(main, (ino, 0), 1);
        }
        v.sync();
        let merges = v.core.merger.merges();
        let s = v.snapshot(main, "s");
        v.snapshot(main, "t");
        assert!(v.core.roots.is_only_logged(s), "no merge came between");
        let b = v.fork(main, "b", ForkKind::Head);
        assert_eq!(v.core.merger.merges(), merges);
        v.put(b, (100, 0), 2);
        assert!(!v.core.roots.is_only_logged(s));
        v.put(main, (100, 0), 3);
        v.put(main, (103, 0), 3);
        v.sync();
        v.merge();
        v.remove(main, (101, 0));
        v.merge();
    });
}

#[test]
fn snapshot_of_empty_context() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        v.merge();
        let b = v.branch(main, "b");
        v.snapshot(b, "s");
        v.snapshot(b, "t");
        v.branch(b, "c");
        v.put(b, (100, 0), 2);
        v.merge();
    });
}

/// Nodes of a replay that ends within a context are younger than every boundary before it.
#[test]
fn mid_context_replay_births() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        let b = v.branch(main, "b");
        v.put(b, (101, 0), 2);
        fsync(&v.core, b, 101);
        v.snapshot(b, "s");
        v.put(b, (101, 0), 3);
        v.put(main, (100, 0), 4);
        fsync(&v.core, b, 101);
        v.sync();
    });
}

#[test]
fn replay_merges_not_before_a_step() {
    history(|v| {
        let main = v.id("main");
        let b = v.branch(main, "b");
        for ino in INODES {
            v.put(main, (ino, 0), 1);
            v.put(b, (ino, 0), 2);
        }
        v.sync();
        v.branch(b, "c");
        for ino in INODES {
            v.put(b, (ino, 0), 3);
        }
        v.put(main, (100, 0), 4);
        v.sync();
        v.merge();
    });
}

#[test]
fn publish_then_overwrite() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        v.put(main, (101, 0), 2);
        let b = v.branch(main, "b");
        v.put(b, (100, 0), 3);
        v.put(main, (101, 0), 4);
        v.publish(main, b, "old", None);
        assert_eq!(v.id("main"), b);
        v.put(b, (100, 0), 5);
        v.put(b, (101, 0), 6);
        v.sync();
        v.merge();
        v.put(b, (101, 1), 7);
        v.merge();
    });
}

/// What only the base had goes with the snapshot that a publish keeps of it, and nothing else.
#[test]
fn publish_then_overwrite_then_drop_auto() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        v.put(main, (101, 0), 2);
        v.put(main, (102, 0), 3);
        let b = v.branch(main, "b");
        v.put(b, (100, 0), 4);
        v.put(main, (101, 0), 5);
        v.publish(main, b, "auto", None);
        v.put(b, (100, 0), 6);
        v.put(b, (102, 0), 7);
        v.merge();
        v.drop_root(main);
        v.free();
        v.put(b, (101, 0), 8);
        v.merge();
    });
}

#[test]
fn publish_with_branch_snapshots() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        let b = v.branch(main, "b");
        v.put(b, (100, 0), 2);
        v.snapshot(b, "s");
        v.put(b, (100, 0), 3);
        let c = v.branch(main, "c");
        v.publish(main, b, "old", None);
        v.put(b, (100, 0), 4);
        v.put(c, (100, 1), 5);
        v.publish(b, c, "older", None);
        v.put(c, (100, 0), 6);
        v.merge();
    });
}

/// A rollback is a fork of the snapshot that gets the name.
#[test]
fn rollback_keeps_newer_state() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        let s = v.snapshot(main, "s");
        v.put(main, (100, 0), 2);
        let back = v.fork(s, "", ForkKind::Head);
        v.publish(main, back, "undone", None);
        v.put(back, (100, 0), 3);
        v.merge();
        v.sync();
    });
}

/// Both the snapshots made since and the state that the rollback left are dropped; what they share
/// with the state that is back stays.
#[test]
fn rollback_then_drop_newer() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        v.put(main, (101, 0), 2);
        let s = v.snapshot(main, "s");
        v.put(main, (100, 0), 3);
        let newer = v.snapshot(main, "newer");
        v.put(main, (101, 0), 4);
        let back = v.fork(s, "", ForkKind::Head);
        v.publish(main, back, "undone", None);
        v.put(back, (100, 0), 5);
        v.merge();
        v.drop_root(newer);
        v.free();
        v.drop_root(main);
        v.free();
        v.put(back, (101, 0), 6);
        v.merge();
    });
}

/// The entries of a branch that lost its name in the same log are those of its snapshot, too.
#[test]
fn dropped_root_entries_feed_child() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        let b = v.branch(main, "b");
        v.put(b, (100, 0), 2);
        v.put(b, (101, 0), 3);
        let s = v.snapshot(b, "s");
        let staged = v.fork(main, "", ForkKind::Head);
        let retired = crate::txn::Unchanged {
            since: None,
            retired: Some((b, s)),
            ..Default::default()
        };
        let named = v.core.publish_names(main, staged, "old", retired, || false);
        named.unwrap();
        v.note(true);
        assert!(v.core.roots.is_only_logged(s), "nothing was merged");
        v.put(staged, (101, 0), 4);
        v.sync();
        v.free();
        v.put(staged, (100, 0), 5);
        v.merge();
    });
}

/// A commit looks whether its root was frozen since the root was opened.
#[test]
fn commit_after_freeze_is_stale() {
    let mut v = Run::new(None);
    let main = v.id("main");
    v.put(main, (100, 0), 1);
    let items = v.core.open_root(main).unwrap();
    assert!(items.is_head());
    let b = v.branch(main, "b");
    v.publish(main, b, "old", None);
    assert!(!items.is_head());
    let refused = put(&v.core, main, (100, 0), Some(2));
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    let s = v.snapshot(b, "s");
    let refused = put(&v.core, s, (100, 0), Some(2));
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    assert_eq!(state_of(&v.core).unwrap(), v.moments.last().unwrap().state);
    v.survive();
}

/// One record and one flush serve fsyncs of several branches; what they do not ask for may be lost.
#[test]
fn fsyncs_of_several_branches_in_one_record() {
    let mut v = Run::new(None);
    let main = v.id("main");
    v.put(main, (100, 0), 1);
    let heads = [main, v.branch(main, "b"), v.branch(main, "c")];
    v.merge();
    v.sync();
    let from = v.disk.ops();
    for (n, head) in heads.into_iter().enumerate() {
        put(&v.core, head, (100, 0), Some(10 + n as u8)).unwrap();
        put(&v.core, head, (101, 0), Some(20 + n as u8)).unwrap();
    }
    let written = || {
        let counters = v.core.journal.counters();
        let load =
            |counter: &cairnfs_disk::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        [&counters.fsync_records, &counters.fsync_inodes].map(load)
    };
    let before = written();
    let open_heads = heads.map(|head| v.core.open_root(head).unwrap());
    v.core.fsyncs.force_together(&v.core, &open_heads, 100);
    let after = written();
    assert_eq!([after[0] - before[0], after[1] - before[1]], [1, 3]);
    for cut in from..=v.disk.ops() {
        for image in v.disk.images(cut) {
            let core = open(Arc::new(Disk::new(image)), None).unwrap();
            let all = cut == v.disk.ops();
            for (n, head) in heads.into_iter().enumerate() {
                let files = files_of(&core, &core.open_root(head).unwrap()).unwrap();
                let found = files.get(&(100, 0)).copied();
                let new = Some(10 + n as u8);
                assert!(
                    found == new || !all && found == Some(1),
                    "{cut} {n} {files:?}"
                );
                let other = files.get(&(101, 0)).copied();
                assert!(other.is_none(), "{cut} {n} {files:?}");
            }
        }
    }
}

#[test]
fn unchanged_base_is_recognised_across_openings() {
    let mut v = Run::new(None);
    let main = v.id("main");
    v.put(main, (100, 0), 1);
    let b = v.branch(main, "b");
    let since = v.core.roots.get(main).unwrap().parent;
    v.put(b, (100, 0), 2);
    let stale = |v: &Run| {
        v.core.publish_names(
            main,
            b,
            "old",
            crate::txn::Unchanged {
                since: Some(since),
                retired: None,
                ..Default::default()
            },
            || false,
        )
    };
    v.put(main, (101, 0), 3);
    assert!(matches!(stale(&v), Err(Error::Stale)), "changed in memory");
    v.sync();
    v.again();
    assert!(matches!(stale(&v), Err(Error::Stale)), "changed in the log");
    v.merge();
    assert!(
        matches!(stale(&v), Err(Error::Stale)),
        "changed in the index"
    );
    let plan = v.fork(main, "", ForkKind::Frozen);
    v.sync();
    v.again();
    v.merge();
    v.publish(main, b, "old", Some(plan));
    v.survive();
}

/// Ids of roots that only the log has are not used again.
#[test]
fn create_in_log_ids_not_reused() {
    let mut v = Run::new(None);
    let main = v.id("main");
    let b = v.branch(main, "b");
    assert!(!has_item(&v.core, b));
    v.again();
    let c = v.branch(main, "c");
    assert!(c > b, "{c}");
    v.survive();
}

/// Nor are ids of roots that were dropped, also once nothing is left of them.
#[test]
fn create_drop_in_log_ids_not_reused() {
    for freed in [false, true] {
        let mut v = Run::new(None);
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        let b = v.branch(main, "b");
        v.drop_root(b);
        v.again();
        if freed {
            v.free();
            assert!(v.core.roots.get(b).is_none());
            v.again();
        }
        let c = v.branch(main, "c");
        assert!(c > b, "{c} after {b}");
        v.survive();
    }
}

#[test]
fn empty_head_begins_with_its_own_tree() {
    history(|v| {
        let main = v.id("main");
        v.put(main, (100, 0), 1);
        let made = v.core.new_empty_head().unwrap();
        let head = made.id();
        v.files.insert(head, Files::new());
        v.put(head, (101, 0), 2);
        v.snapshot(head, "received");
        v.put(head, (101, 0), 3);
        v.publish(main, head, "old", None);
        v.put(head, (100, 0), 4);
        v.merge();
    });
}

#[test]
fn names_move_and_are_unique() {
    let mut v = Run::new(None);
    let main = v.id("main");
    let b = v.branch(main, "b");
    assert!(matches!(
        v.core.fork(main, "b", ForkKind::Head),
        Err(Error::Exists)
    ));
    assert!(matches!(
        v.core.rename_root(b, "b", "main"),
        Err(Error::Exists)
    ));
    assert!(matches!(
        v.core.rename_root(main, "main", "x"),
        Err(Error::NotPermitted(_))
    ));
    for (id, old) in [(77, "b"), (77, ""), (b, "main"), (b, "")] {
        let renamed = v.core.rename_root(id, old, "x");
        assert!(matches!(renamed, Err(Error::NotFound)), "{id} {old:?}");
    }
    v.core.rename_root(b, "b", "c").unwrap();
    v.note(true);
    assert_eq!((v.core.roots.named("b"), v.id("c")), (None, b));
    v.branch(main, "b");
    v.merge();
    v.core.rename_root(b, "c", "d").unwrap();
    v.note(true);
    v.survive();
}

/// Memory of roots that no caller has is bounded, and what they changed stays.
#[test]
fn roots_without_users_and_changes_are_closed() {
    let mut v = Run::new(None);
    let main = v.id("main");
    v.put(main, (100, 0), 1);
    let heads: Vec<u32> = (0..20).map(|n| v.branch(main, &format!("b{n}"))).collect();
    v.merge();
    for head in &heads {
        v.put(*head, (100, 0), *head as u8);
    }
    assert!(
        v.core.heads.ids().len() >= heads.len(),
        "changes keep them open"
    );
    v.merge();
    assert_eq!(v.core.heads.ids(), [0; 0]);
    let kept = v.core.open_root(heads[3]).unwrap();
    let same = v.core.open_root(heads[3]).unwrap();
    assert!(Arc::ptr_eq(&kept, &same));
    v.put(main, (100, 1), 2);
    v.merge();
    assert_eq!(v.core.heads.ids(), [heads[3]]);
    assert_eq!(state_of(&v.core).unwrap(), v.moments.last().unwrap().state);
}

#[test]
fn pinned_and_open_roots_are_not_shut() {
    let mut v = Run::new(None);
    let main = v.id("main");
    let pin = v.core.fork_pinned(main, "", ForkKind::Frozen).unwrap();
    let id = pin.id();
    assert!(!v.core.heads.shut(id), "pinned");
    let again = v.core.pin(id).unwrap();
    drop(pin);
    assert!(!v.core.heads.shut(id), "pinned again");
    let open = v.core.open_root(id).unwrap();
    drop(again);
    assert!(!v.core.heads.shut(id), "open");
    drop(open);
    assert!(v.core.heads.shut(id));
    assert!(matches!(v.core.open_root(id), Err(Error::NotFound)));
    assert!(v.core.pin(id).is_err());
    v.core.heads.admit(id);
    assert!(v.core.pin(id).is_ok());
    v.files.insert(id, Files::new());
}

/// A volume with a snapshot, and a head staged from it.
fn with_staged() -> (Run, RootPin) {
    let mut v = Run::new(None);
    let main = v.id("main");
    v.put(main, (100, 0), 1);
    let base = v.snapshot(main, "base");
    v.merge();
    let pin = v.core.fork_pinned(base, "", ForkKind::Head).unwrap();
    (v, pin)
}

fn assert_dropped(v: &Run) {
    while v.core.drop_step().unwrap() {}
    assert_eq!(v.core.roots.nameless_heads(), [0; 0]);
    v.core.merge().unwrap();
    check_space(&v.core).unwrap();
}

#[test]
fn head_given_up_in_the_log_goes() {
    let (v, pin) = with_staged();
    assert!(v.core.roots.is_only_logged(pin.id()));
    drop(pin);
    assert!(v.core.has_dropped());
    assert_dropped(&v);
    let names = v.core.roots.list().into_iter().map(|(_, root)| root.name);
    assert_eq!(names.collect::<Vec<_>>(), ["main", "base"]);
}

/// The changes of the head are in the input of a merge that waits.
#[test]
fn head_given_up_before_its_merge_goes() {
    let (mut v, pin) = with_staged();
    v.core.merge().unwrap();
    put(&v.core, pin.id(), (100, 0), Some(2)).unwrap();
    v.snapshot(v.core.main_root(), "s");
    drop(pin);
    assert_dropped(&v);
}

/// The changes of the head are in memory only, as replay leaves those after its boundary.
#[test]
fn head_of_a_killed_process_goes() {
    let (mut v, pin) = with_staged();
    put(&v.core, pin.id(), (100, 0), Some(3)).unwrap();
    v.core.force_all().unwrap();
    v.note(true);
    drop(pin);
    v.again();
    assert_dropped(&v);
}

#[test]
fn head_being_filled_stays() {
    let (v, pin) = with_staged();
    v.core.merge().unwrap();
    put(&v.core, pin.id(), (100, 0), Some(4)).unwrap();
    let merges = v.core.merger.merges();
    assert!(!v.core.drop_step().unwrap());
    assert_eq!(v.core.merger.merges(), merges);
    drop(pin);
    assert_dropped(&v);
}
