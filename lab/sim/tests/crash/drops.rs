//! Histories of dropped snapshots: the power fails at every write. A snapshot is gone for good or
//! whole, the others have their files, and in the end nothing is in use that no root has.
//!
//! Contract: snapshot.drop

use cairnfs_tier::size;

use crate::support::{history, pressed_history};

#[test]
fn dropped_snapshot_is_gone_and_its_space_is_free() {
    pressed_history(
        "create a; write a 0 20000; create b; write b 0 9000; snapshot s; write a 4096 4096; unlink b;
         sync; merge; drop s; free 0; create c; write c 0 40000; sync; merge",
    );
}

/// Wherever the walk is when the child gives up what it has passed.
#[test]
fn dissolve_child_gives_up_behind_cursor() {
    for steps in size(&[4, 12][..], &[4, 8, 12, 16]) {
        pressed_history(&format!(
            "create a; write a 0 32768; create b; write b 0 20000; create c; write c 0 20000;
             snapshot s; write b 0 4096; sync; merge; drop s; free {steps}; write a 4096 4096;
             truncate b 0; sync; merge; free 3; unlink c; write a 0 32768; sync; merge; free 0;
             create d; write d 0 60000; sync; merge"
        ));
    }
}

/// The child splits an extent that the walk has passed in part, and joins none across.
#[test]
fn dissolve_extent_spans_separator() {
    for steps in size(&[6, 14][..], &[6, 10, 14]) {
        pressed_history(&format!(
            "create a; write a 0 65536; snapshot s; write a 4096 4096; write a 12288 4096; sync; merge;
             drop s; free {steps}; write a 20480 4096; sync; merge; free 1; truncate a 8192; sync;
             merge; free 0; create d; write d 0 60000; sync; merge"
        ));
    }
}

/// The child's snapshot takes the child's place while the walk runs.
#[test]
fn dissolve_child_snapshotted() {
    pressed_history(
        "create a; write a 0 32768; create b; write b 0 20000; snapshot s; write a 4096 4096; sync; merge;
         drop s; free 10; write b 0 4096; sync; merge; snapshot t; write a 0 32768; truncate b 0; sync; merge;
         free 0; create d; write d 0 60000; sync; drop t; free 0; create e; write e 0 40000; sync; merge",
    );
    pressed_history(
        "create a; write a 0 32768; snapshot s; write a 4096 4096; sync; merge; drop s; snapshot t;
         write a 8192 4096; free 0; sync; merge; drop t; free 0; create d; write d 0 60000; sync",
    );
}

#[test]
fn dissolve_split_extents() {
    pressed_history(
        "create a; write a 0 65536; snapshot s; write a 8192 4096; write a 20480 8192; fsync a; sync; merge;
         punch a 40960 4096; sync; merge; drop s; free 0; create d; write d 0 60000; sync; merge;
         truncate a 0; sync; merge; create e; write e 0 60000; sync",
    );
    pressed_history(
        "create a; allocate a 0 65536; write a 0 4096; snapshot s; write a 4096 8192; fsync a; sync; merge;
         snapshot t; write a 16384 4096; sync; merge; drop s; drop t; free 0; create d; write d 0 60000;
         sync; merge",
    );
}

#[test]
fn drop_all_orders() {
    let orders = ["r s t", "r t s", "s r t", "s t r", "t r s", "t s r"];
    for order in orders {
        let drops: String = order
            .split(' ')
            .map(|name| format!("drop {name}; free 0; "))
            .collect();
        history(&format!(
            "create a; write a 0 20000; create b; write b 0 9000; snapshot r; write a 4096 4096;
             snapshot s; write a 8192 4096; write b 0 4096; snapshot t; write a 4096 8192; sync; merge;
             {drops} create d; write d 0 60000; sync; merge"
        ));
    }
}

/// The last contexts before a drop are only in the log, and a later snapshot is made of them.
#[test]
fn dropped_root_entries_feed_child() {
    pressed_history(
        "create a; write a 0 20000; sync; merge; write a 4096 4096; create b; write b 0 5000;
         fsync b; snapshot s; drop s; write a 8192 4096; fsync a; snapshot t; unlink b; fsync a;
         free 0; sync",
    );
}

/// Ids are not given again, although only the log has had the root.
#[test]
fn create_drop_in_log_ids_not_reused() {
    pressed_history(
        "create a; write a 0 9000; snapshot s; drop s; snapshot s; write a 0 4096; fsync a; drop s;
         snapshot s; write a 4096 4096; sync; free 0; drop s; snapshot u; free 0; merge",
    );
}

/// The newest snapshot goes before the older ones.
#[test]
fn newest_dropped_first() {
    pressed_history(
        "create a; write a 0 20000; snapshot s; write a 0 9000; snapshot t; truncate a 5000; sync; merge;
         drop t; free 0; write a 0 20000; sync; merge; drop s; free 0; create d; write d 0 60000; sync; merge",
    );
}

/// Values that inodes share, names and large values.
#[test]
fn dropped_values_and_names() {
    pressed_history(
        "mkdir d; create d/a; create d/b; setvalue d/a x 0; setvalue d/b x 0; setvalue d/a y 4;
         snapshot s; removexattr d/a x; rename d/a d/c; unlink d/b; setvalue d/c y 3; sync; merge; drop s;
         free 12; removexattr d/c y; create d/a; setvalue d/a z 4; sync; merge; free 0; create e;
         write e 0 60000; sync; merge",
    );
}
