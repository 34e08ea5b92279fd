//! What an fsync must include and what it must leave out: a history for each rule of the dependency
//! closure.
//!
//! Contract: dependency

use cairnfs_sim::explore::Depth;
use cairnfs_sim::record::{VOLUME_SIZE, fresh_volume};
use cairnfs_sim::workload::{record, steps};

use crate::hazards::NEIGHBOURS;
use crate::support::{THOROUGH, history, try_recording};

/// Rule: the directories above a name are included, each with its own name.
#[test]
fn fsync_includes_directories_up_to_root() {
    history(
        "mkdir a; create x; mkdir a/b; create a/y; mkdir a/b/c; create a/b/z; create a/b/c/f;
         fsync a/b/c/f; create a/b/c/g; mkdir a/b/c/d; fsync a/b/c/d; sync",
    );
    history("mkdir a; tmpfile a/f; setxattr a b 10; fsync a/f; removexattr a b; fsync a");
}

/// Rule: moved directories on the path to the root are included, at any depth.
#[test]
fn fsync_of_moved_directory_keeps_path_to_root() {
    history(
        "mkdir a; mkdir a/b; mkdir a/b/c; sync; rename a/b b; rename a b/c/a; fsync b/c/a;
         create b/c/a/x; fsync b/c/a/x; merge",
    );
    history(
        "mkdir a; mkdir a/b; create a/b/f; mkdir c; sync; rename a c/a; chmod c/a/b/f 384;
         fsync c/a/b/f; rename c d; fsync d/a/b/f; exchange d/a d; fsync d/a",
    );
    history(
        "mkdir a; mkdir b; mkdir a/x; mkdir b/y; create a/x/f; create b/y/g; sync;
         exchange a/x b/y; exchange a b; rename b/x c; fsync a/x/f; fsync c/g; fsync b/y/g; sync",
    );
}

/// Rule: the same holds for each name of a file, including names that are durable already.
#[test]
fn fsync_keeps_paths_of_all_names() {
    history(
        "create f; mkdir d; mkdir d/e; link f d/e/f; sync; rename d x; chmod f 384; fsync f;
         rename x/e e; fsync f; unlink f; fsync e/f",
    );
}

/// Rule: all changes of one transaction are included together.
#[test]
fn fsync_includes_partners_of_rename() {
    history("create f; create g; link g n; sync; rename f g; fsync n; fsync g; sync");
    history("create f; mkdir d; create d/x; sync; exchange f d; create f/y; fsync d; fsync f/y");
    history("mkdir a; mkdir b; create b/x; sync; unlink b/x; rename a b; fsync b; sync");
}

/// Rule: the new use of a name depends on the removal of its old use, through any number of inodes.
/// Contract: dependency
#[test]
fn fsync_of_reused_name_includes_its_earlier_uses() {
    history(
        "create a; create b; create c; sync; unlink a; rename b a; rename a d; rename c a;
         unlink a; create a; fsync a; fsync d; sync",
    );
    history("create f; sync; create n; exchange n f; unlink f; create f; fsync f; sync");
    history("mkdir a; create a/x; sync; rename a b; mkdir a; create a/x; fsync a/x; fsync b/x");
    let [a, b] = NEIGHBOURS;
    history(&format!(
        "create {a}; create {b}; sync; rename {a} x; unlink {b}; create {a}; fsync {a};
         rename {a} {b}; fsync {b}; sync"
    ));
}

/// Rule: a directory is removed only if its entries are removed, wherever they were moved.
/// Contract: dependency
#[test]
fn removed_directory_includes_removal_of_its_entries() {
    history(
        "mkdir d; mkdir d/s; create d/s/f; mkdir e; sync; rename d/s/f e/f; rmdir d/s; rmdir d;
         mkdir d; fsync d; fsync e/f; sync",
    );
    history(
        "mkdir d; create d/f; link d/f g; mkdir e; sync; unlink d/f; rename e d; fsync d; fsync g;
         sync",
    );
    history("mkdir d; create d/f; unlink-open d/f; rmdir d; create d; fsync d; merge");
}

/// Rule: the entry count of a directory counts the entries that survive, and not those that an
/// fsync leaves out.
/// Contract: dependency
#[test]
fn entry_count_excludes_entries_left_out_of_fsync() {
    history(
        "mkdir d; sync; mkdir d/s; create d/a; mkdir d/t; create d/b; fsync d/a; rmdir d/s; fsync d/t;
         unlink d/b; fsync d/a; rename d/t t; fsync t; sync; unlink d/a; rmdir d; fsync .",
    );
    history(
        "mkdir n; create n/a; create n/b; fsync n/a; unlink n/a; unlink n/b; rmdir n; fsync .;
         merge; mkdir n; fsync n",
    );
}

/// Rule: a logged item is not changed in place, and its deletion is logged.
#[test]
fn inode_changed_again_after_fsync() {
    history(
        "create f; fsync f; chmod f 384; sync; chmod f 448; fsync f; chmod f 384; fsync f; unlink f;
         fsync .; create f; fsync f; merge; chmod f 384; fsync f; unlink f; sync",
    );
    history(
        "create f; write f 0 100; fsync f; write f 0 50; create g; fsync g; append f 5000; fsync f;
         truncate f 10; fsync g; fsync f; setxattr f a 10; fsync f; removexattr f a; fsync f",
    );
}

/// Rule: an fsync of a directory includes all its entries, with everything in their transactions.
/// Contract: durable.directory
#[test]
fn fsync_of_directory_includes_its_entries() {
    history(
        "mkdir d; mkdir e; create d/f; sync; create d/g; mkdir d/s; create d/s/x; rename d/f e/f;
         link e/f d/h; symlink d/l 20; create e/y; fsync d; create d/z; unlink d/g; fsync d; sync",
    );
}

/// Rule: one flush makes data and record durable, and a record without its data is ignored.
/// Contract: dependency.data
#[test]
fn staged_data_is_durable_with_its_record() {
    history(
        "create f; write f 0 20000; fsync f; write f 4096 4096; fsync f; write f 0 4096; fdatasync f;
         truncate f 5000; write f 4096 100; fsync f; merge; write f 0 8192; fsync f",
    );
    history(
        "create f; reserve f 0 40000; fsync f; write f 4096 8192; fsync f; write f 8192 8192; fsync f;
         punch f 4096 4096; write f 4096 4096; fsync f; unlink f; create g; write g 0 40000; fsync g",
    );
    history(
        "create a; create b; write a 0 9000; rename a b; write b 4096 4096; fsync .; append b 5000;
         sync; write b 0 4096; link b c; fsync c; write c 0 4096; fsync b; write b 0 4096; sync",
    );
}

/// Tries a history that is too long to be tried with the usual depth.
#[track_caller]
fn long_history(title: &str, text: &str, states: usize) {
    let recording = record(fresh_volume(VOLUME_SIZE).unwrap(), &steps(text).unwrap()).unwrap();
    let depth = Depth {
        states,
        interrupted: 8,
        ..THOROUGH
    };
    try_recording(title, &recording, &depth);
}

/// Rule: staged data is written before a whole context, and made durable before it.
#[test]
fn staged_data_is_durable_before_whole_context() {
    let mut text = String::from("mkdir d;");
    (0..1100).for_each(|i| text += &format!("create d/{i};"));
    text += "sync;";
    (0..1100).for_each(|i| text += &format!("unlink d/{i};"));
    text += "rmdir d; create d; write d 0 9000; fsync d; write d 4096 9000; fsync d; sync";
    long_history("data and a whole context", &text, 60);
}

/// Rule: data that is written together for many files is durable before the context that names it.
/// Contract: dependency.data
#[test]
fn data_of_many_files_is_durable_before_their_context() {
    let mut text = String::from("mkdir d;");
    (0..100).for_each(|i| text += &format!("create d/{i}; write d/{i} 0 5000;"));
    text += "sync;";
    (0..100).for_each(|i| text += &format!("write d/{i} 4096 3000;"));
    text += "write d/7 0 300000; sync; unlink d/8; write d/9 0 9000; fsync d/9; merge;
             create e; write e 0 9000; write d/9 4096 5000; sync";
    long_history("data of many files", &text, 60);
}

/// Rule: a large amount of data is made durable before the record, because the record cannot list
/// checksums for all of it.
#[test]
fn large_data_is_durable_before_its_record() {
    long_history(
        "much data",
        "create f; write f 0 5000000; fsync f; write f 0 4096; fsync f",
        200,
    );
}

/// Rule: if the record cannot list checksums for all the data, the data is durable before the
/// record, including staged data.
#[test]
fn partly_staged_large_data_is_durable_before_record() {
    // 900 blocks are written with the link. At the fsync 16 blocks are staged, and 200 more are too
    // many to list.
    let mut text = String::from("create f; write f 4194304 3686400; link f g;");
    (0..16).for_each(|i| text += &format!("write f {} 4096;", i * 40_960));
    text += "write f 2097152 819200; fsync f; write f 0 4096; fsync f";
    long_history("much data, some of it waiting", &text, 200);
}

/// Rule: if the dependency closure is too large, the whole context is written.
#[test]
fn fsync_with_large_closure_writes_whole_context() {
    let mut text = String::from("mkdir d; create x;");
    for i in 0..1100 {
        text += &format!("create d/{i};");
    }
    long_history(
        "a large closure",
        &(text + "fsync d; unlink d/7; fsync d; sync"),
        60,
    );
}

/// Rule: changes of an inode's attributes survive in order, including its size and its entry count.
/// Contract: dependency.inode
#[test]
fn attributes_of_one_inode_survive_in_order() {
    history(
        "mkdir d; sync; chmod d 448; create d/f; fsync d/f; setxattr d a 10; create d/g; fsync d/g;
         chmod d 493; unlink d/f; link d/g x; fsync x; merge",
    );
    history(
        "create f; write f 0 9000; sync; chmod f 384; truncate f 0; merge; setxattr f a 10;
         truncate f 100; fsync f; chmod f 448; allocate f 0 9000; merge; chmod f 384; sync",
    );
}

/// Rule: a size set by truncation survives before later attributes, even if data below it is not
/// written yet.
/// Contract: dependency.inode
#[test]
fn truncation_of_unwritten_data_precedes_attributes() {
    history("create f; write f 0 9000; truncate f 5000; chmod f 384; merge; sync");
    history(
        "create f; write f 0 100; sync; write f 50 20000; truncate f 6000; setxattr f a 10; merge;
         write f 4096 9000; truncate f 4100; chmod f 384; merge; fsync f",
    );
    history(
        "create f; write f 0 300; truncate f 200; chmod f 384; merge; append f 20; truncate f 210;
         chmod f 448; merge; sync",
    );
}

/// Rule: times survive with the change that set them.
#[test]
fn times_survive_with_their_changes() {
    history(
        "mkdir d; create d/f; sync; write d/f 0 5000; fdatasync d/f; write d/f 0 5000; fsync d/f;
         create d/g; chmod d/f 384; fsync d/g; touch d/f 7; link d/f x; fdatasync d/f; write d/f 0 10; fdatasync d/f; fsync d; merge",
    );
}

/// Inode flags behave like other attributes: an fsync includes them, and they survive in order.
/// Calls that they refuse change nothing, and flags inherited from a directory survive with the new
/// inode.
/// Contract: posix.flags
#[test]
fn inode_flags_survive_with_their_inode() {
    history(
        "create f; append f 9000; chattr f 32; append f 100; write f 0 50; truncate f 10; fsync f;
         rename f g; chattr f 16; append f 5; unlink f; sync; chattr f 0; rename f g; fsync g",
    );
    history(
        "mkdir d; create d/f; sync; chattr d 96; create d/g; unlink d/f; fsync d/g; mkdir d/s;
         chattr d 16; create d/h; rename d e; fsync d; chattr d 0; rename d/g x; fsync x; rmdir d/s",
    );
}
