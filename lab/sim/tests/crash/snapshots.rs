//! Histories of snapshots: the power fails at every write, and each snapshot must be there with the
//! files that it was made of.
//!
//! Contract: snapshot

use cairnfs_sim::record::{VOLUME_SIZE, fresh_volume, pressed};
use cairnfs_sim::workload::{after, record, record_as, steps};

use crate::support::{THOROUGH, history, pressed_history, text, try_recording};

/// A merge frees by the lineage that the index had before it, not by the boundary that it brings in.
/// Each step of a merge may be the last one before the power fails.
#[test]
fn boundary_merge_uses_old_lineage() {
    pressed_history(
        "create a; write a 0 16384; create b; write b 0 9000; sync; merge; write a 4096 4096;
         unlink b; snapshot s; write a 8192 4096; merge; truncate a 0; merge",
    );
}

/// What a merge left is released only when its superblock is durable.
#[test]
fn two_snapshots_one_merge() {
    pressed_history(
        "create a; write a 0 9000; snapshot s; write a 4096 4096; snapshot t; write a 0 4096; sync;
         merge; unlink a; merge",
    );
}

/// Of two boundaries without a commit between them, the earlier one gets no nodes of the later one.
#[test]
fn snapshot_of_empty_context() {
    pressed_history(
        "create a; write a 0 5000; merge; snapshot s; snapshot t; write a 0 5000; merge",
    );
    history("snapshot s; create a; fsync a; snapshot t; merge; snapshot u");
}

/// Nodes of a replay that ends within a context are younger than every boundary before it.
#[test]
fn mid_context_replay_births() {
    pressed_history(
        "create a; create b; snapshot s; create c; write c 0 5000; fsync c; create d; fsync d;
         chmod a 384; fsync a",
    );
}

#[test]
fn replay_merges_not_before_a_step() {
    pressed_history(
        "create a; write a 0 9000; create b; sync; write a 4096 4096; fsync a; snapshot s;
         write a 4096 4096; fsync a; chmod b 384; sync; merge; write a 0 4096; fsync a",
    );
}

#[test]
fn replaced_in_log_held_by_snapshot() {
    pressed_history(
        "create a; write a 0 32768; snapshot s; merge; write a 4096 4096; fsync a;
         write a 12288 4096; fsync a; write a 4096 12288; fsync a; create b; write b 0 40000;
         merge; create c; write c 0 40000; sync",
    );
    pressed_history(
        "create a; write a 0 16384; fsync a; write a 4096 4096; fsync a; snapshot s;
         write a 0 16384; fsync a; truncate a 0; sync; create b; write b 0 30000; merge",
    );
}

#[test]
fn join_across_boundary() {
    pressed_history(
        "create a; append a 4096; append a 4096; fsync a; snapshot s; append a 4096; fsync a; merge;
         append a 4096; truncate a 0; merge; create b; write b 0 30000; sync",
    );
}

#[test]
fn unwritten_write_meets_snapshot() {
    pressed_history(
        "create a; allocate a 0 32768; write a 0 4096; snapshot s; write a 4096 4096; fsync a;
         snapshot t; write a 8192 8192; merge; punch a 0 16384; merge; create b; write b 0 40000",
    );
}

#[test]
fn snapshot_between_two_fsync_records_of_a_context() {
    pressed_history(
        "create a; create b; mkdir d; write a 0 5000; fsync a; create d/c; snapshot s; fsync d/c;
         write b 0 5000; fsync b; rename d/c d/e; fsync d; snapshot t; unlink a; sync",
    );
}

#[test]
fn snapshot_with_open_unlinked_files_and_unfinished_truncation() {
    pressed_history(
        "create a; write a 0 20000; create b; sync; unlink-open a; snapshot s; create c;
         write c 0 20000; truncate c 100; snapshot t; unlink-open b; sync; merge",
    );
}

/// Equal attribute values are counted in the tree of each root.
#[test]
fn shared_values_of_a_snapshot() {
    pressed_history(
        "create a; create b; setvalue a x 0; setvalue b x 0; setvalue a y 4; snapshot s;
         removexattr a x; removexattr b x; merge; setvalue b x 3; removexattr a y; merge; snapshot t;
         setvalue a y 4; merge",
    );
}

#[test]
fn names_changed_after_snapshot() {
    pressed_history(
        "mkdir d; create d/a; create d/b; snapshot s; rename d/a d/c; unlink d/b; create d/b; merge;
         rename d/c d/a; snapshot t; exchange d/a d/b; sync; merge",
    );
}

/// A volume that already has snapshots, with limits of all kinds.
#[test]
fn changes_on_a_volume_with_snapshots() {
    let base = "mkdir d; create d/a; write d/a 0 20000; create d/b; write d/b 0 100; snapshot s;
         write d/a 4096 4096; create d/c; write d/c 0 9000; snapshot t";
    let start = after(fresh_volume(VOLUME_SIZE).unwrap(), &steps(base).unwrap()).unwrap();
    let changes = "write d/a 0 20000; fsync d/a; unlink d/c; merge; snapshot u; truncate d/a 5000;
         rename d/b d/e; sync; merge; write d/e 0 30000; fsync d/e";
    let changes = steps(changes).unwrap();
    for seed in [3, 6, 12] {
        let recording = record_as(start.clone(), &changes, &pressed(seed), 0).unwrap();
        try_recording(&text(&changes), &recording, &THOROUGH);
    }
    let recording = record(start, &changes).unwrap();
    try_recording(&text(&changes), &recording, &THOROUGH);
}
