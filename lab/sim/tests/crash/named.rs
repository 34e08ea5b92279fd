//! Named histories of the kinds that broke the log replay of btrfs, ext4 and other file systems.
//!
//! Contract: atomic

use cairnfs::fs::{Options, Pressure};
use cairnfs_sim::explore::Depth;
use cairnfs_sim::record::{VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::workload::{after, record, record_as, steps};

use crate::support::{THOROUGH, history, try_recording};

#[test]
fn rename_then_create_under_the_old_name() {
    history(
        "create a; write a 0 5000; sync; rename a b; create a; write a 0 100; fsync a; fsync b",
    );
    history("mkdir a; create a/x; sync; rename a b; mkdir a; create a/y; fsync a/y; fsync b");
}

#[test]
fn unlink_then_link_again() {
    history(
        "create f; write f 0 5000; link f g; sync; unlink g; link f g; fsync f; unlink f; fsync g",
    );
    history("create f; link f g; sync; unlink f; create f; fsync f; link g h; unlink g; fsync h");
}

#[test]
fn exchange_of_names() {
    history(
        "create a; write a 0 5000; create b; write b 0 50; sync; exchange a b; fsync a; fsync b",
    );
    history(
        "mkdir d; create d/x; create f; sync; exchange d f; fsync f; create f/y; exchange d f; fsync .",
    );
    history(
        "mkdir d; mkdir e; mkdir d/x; create e/y; sync; exchange d/x e/y; fsync d; exchange d e; sync",
    );
}

/// Contract: atomic, posix.overlay
#[test]
fn rename_with_whiteout() {
    history("create a; write a 0 5000; sync; whiteout a b; fsync b; unlink a; create a; fsync a");
    history("create a; mkdir d; create d/x; sync; whiteout a d/x; fsync a; whiteout d a; fsync .");
    history(
        "mkdir d; mkdir e; mkdir d/x; create d/x/f; sync; whiteout d/x e/x; fsync e/x/f;
         rename d/x d/y; whiteout e/x d/x; fsync d; sync",
    );
    history(
        "create a; whiteout a b; whiteout b a; fsync a; whiteout a c; unlink b; fsync c; merge",
    );
}

#[test]
fn open_file_replaced_by_rename() {
    history(
        "create f; write f 0 9000; sync; create n; write n 0 5000; unlink-open f; fsync n;
         rename n f; fsync f; create m; write m 0 5000; rename m f; sync; merge",
    );
}

/// Contract: dependency.data
#[test]
fn replaced_file_is_old_or_complete_new_one() {
    history("create f; write f 0 9000; sync; create t; write t 0 12000; rename t f");
    history(
        "create f; write f 0 100; sync; create t; write t 0 900; rename t f; create x; fsync x",
    );
    history("create f; write f 0 100; fsync f; tmpfile t; rename t f; fsync .");
}

#[test]
fn directory_renamed_with_unlogged_children() {
    history(
        "mkdir d; sync; create d/a; mkdir d/b; create d/b/c; rename d e; fsync e/a; rename e/b b;
         fsync b/c; merge",
    );
}

#[test]
fn hard_links_in_two_directories() {
    history(
        "mkdir d; mkdir e; create d/f; sync; link d/f e/f; link d/f e/g; unlink d/f; fsync e/f",
    );
    history(
        "mkdir d; mkdir e; create d/f; write d/f 0 5000; link d/f e/f; fsync e; unlink d/f; fsync d",
    );
}

#[test]
fn fsync_after_punch_hole() {
    history(
        "create f; write f 0 40000; sync; punch f 4096 8192; fsync f; punch f 5000 20000; fsync f; merge",
    );
    history("create f; write f 0 1500; fsync f; punch f 100 500; fsync f; write f 200 50; fsync f");
    history(
        "create f; write f 0 20000; fsync f; zero f 3000 10000; fsync f; reserve f 20480 8192; append f 3000; fsync f",
    );
}

#[test]
fn fsync_after_size_change() {
    history(
        "create f; write f 0 20000; sync; truncate f 5000; fsync f; truncate f 30000; fsync f; append f 10; fsync f",
    );
    history(
        "create f; write f 0 20000; fsync f; truncate f 0; fsync f; write f 0 100; fsync f; truncate f 90; truncate f 4000; fsync f",
    );
    history(
        "create f; write f 0 8192; truncate f 5000; write f 12288 100; fsync f; truncate f 1; truncate f 9000; sync; merge",
    );
}

#[test]
fn attribute_removed() {
    history(
        "create f; setxattr f a 10; setxattr f b 20000; sync; removexattr f a; fsync f; removexattr f b; fsync f; merge",
    );
    history(
        "mkdir d; setxattr d a 300; fsync d; setxattr d a 20; setxattr d b 5; fsync d; removexattr d a; create d/x; fsync d/x",
    );
}

/// The mode and the access list change in one transaction; reading a state detects a pair that
/// disagrees.
#[test]
fn access_list_and_mode_change_together() {
    history(
        "create f; chmod f 384; sync; setlist f 504; fsync f; chmod f 416; fsync f; setlist f 432;
         chmod f 509; sync; merge; chmod f 384; setxattr f a 300; setlist f 488; merge; chmod f 448",
    );
    history(
        "mkdir d; setlist d 504; create d/f; setlist d/f 416; fsync d/f; chmod d 448; chmod d/f 384;
         fsync d; merge; chmod d 493; removexattr d/f a; setlist d 448; fsync d; unlink-open d/f; sync",
    );
}

/// A truncation and the set-id bits that it clears are one transaction.
#[test]
fn truncation_clears_set_id_bits_atomically() {
    history(
        "create f; write f 0 9000; chmod f 3565; fsync f; truncate-as f 5000; fsync f; chmod f 3565;
         truncate-as f 0; sync; write f 0 100; chmod f 3565; fsync f; truncate-as f 900; fsync f;
         chmod f 3565; truncate-as f 20000; merge",
    );
    history(
        "create f; write f 0 9000; chmod f 3565; truncate-as f 30000; fsync f; write f 40000 10;
         chmod f 3565; truncate-as f 50001; truncate-as f 10; chmod f 3565; truncate-as f 10; sync",
    );
}

/// Changes so many files that several contexts are needed: none may end within one change.
fn change_many_files(mode: u32, change: &str, argument: u32) {
    let made: String = (0..3000)
        .map(|i| format!("create f{i}; chmod f{i} {mode};"))
        .collect();
    let changed: String = (0..3000)
        .map(|i| format!("{change} f{i} {argument};"))
        .collect();
    let [made, changed] = [made, changed].map(|text| steps(&text).unwrap());
    let start = after(fresh_volume(VOLUME_SIZE).unwrap(), &made).unwrap();
    let recording = record(start, &changed).unwrap();
    let depth = Depth {
        states: 60,
        interrupted: 0,
        used: 0,
        ..THOROUGH
    };
    let tally = try_recording(change, &recording, &depth);
    assert!(tally.states > 3, "only {} states", tally.states);
}

/// Each file has its new size without set-id bits, or its old size with them.
/// Contract: atomic.attributes
#[test]
fn truncation_of_many_files_clears_set_id_bits() {
    change_many_files(0o6755, "truncate-as", 10);
}

/// Contract: atomic.attributes
#[test]
fn access_lists_set_on_many_files() {
    change_many_files(0o600, "setlist", 0o770);
}

#[test]
fn fifos_and_symlinks() {
    history(
        "mkdir d; fifo d/p; symlink d/l 3000; fsync d; rename d/p p; fsync p; link p q; unlink p; fsync q; unlink d/l; fsync d",
    );
}

/// Contract: atomic.rest
#[test]
fn orphans() {
    history(
        "create f; write f 0 60000; create g; write g 0 100; sync; unlink-open f; unlink-open g;
         sync; create f; fsync f; merge; tmpfile t; unlink-open t; sync",
    );
    history("create f; write f 0 300000; sync; truncate f 0; unlink f; sync; merge");
}

#[test]
fn truncation_of_file_with_many_extents() {
    let mut text = String::from("create f;");
    for i in 0..600 {
        text += &format!("write f {} 10;", i * 8192);
    }
    history(
        &(text
            + "fsync f; merge; truncate f 100; sync; truncate f 20000; fsync f; unlink f; sync; merge"),
    );
}

#[test]
fn nearly_full_log_wraps() {
    let mut text = String::from("create f; create g; mkdir d;");
    for i in 0..90 {
        text += &format!(
            "setxattr f a {}; fsync f; rename g d/g; rename d/g g;",
            60_000 - i
        );
    }
    history(&(text + "sync"));
}

#[test]
fn changes_during_merges() {
    history(
        "create f; write f 0 20000; mkdir d; sync; rename f d/f; write d/f 4096 4096; merge;
         create f; write f 0 100; fsync f; unlink d/f; merge; rmdir d; rename f g; merge; fsync g",
    );
}

#[test]
fn changes_without_any_sync() {
    history("create a; write a 0 5000; rename a b; link b c; write c 0 100; rename c d; merge");
}

/// A context whose items were all cancelled takes a sequence and leaves no record. The check must
/// find every node of a merge that is cut between its steps no younger than the log.
#[test]
fn merge_in_steps_after_contexts_without_record() {
    for text in [
        "create a; sync; tmpfile a; sync; merge",
        "create a; sync; tmpfile a; sync; tmpfile a; sync; tmpfile a; sync; merge; create b; merge",
        "create a; create b; sync; merge; tmpfile a; sync; chmod a 384; fsync a; chmod b 384;
         fsync b; tmpfile a; sync; merge; tmpfile a; sync; merge",
    ] {
        let start = fresh_volume(VOLUME_SIZE).unwrap();
        let pressure = Some(Pressure::steps(0, 2));
        let options = Options {
            pressure,
            ..options(4)
        };
        let recording = record_as(start, &steps(text).unwrap(), &options, 0).unwrap();
        try_recording(text, &recording, &THOROUGH);
    }
}
