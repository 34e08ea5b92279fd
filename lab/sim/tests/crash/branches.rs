//! Histories of several branches: the power fails at every write, and each branch must be there with
//! files that its own calls allow.
//!
//! Contract: branch

use crate::support::pressed_history;

#[test]
fn branch_exists_wholly_or_not() {
    pressed_history(
        "create a; write a 0 9000; create b; fsync b; branch x; on x; write a 4096 4096; fsync a;
         unlink b; on main; write a 0 4096; fsync a; merge",
    );
}

/// One record has what the fsyncs of two branches need, and nothing of the one that no call synced.
#[test]
fn fsyncs_of_several_branches_in_one_context() {
    pressed_history(
        "create a; write a 0 5000; branch x; branch y; on x; create b; write b 0 5000; on y;
         rename a c; create d; on main; write a 0 8192; fsync a; on x; fsync b; on y; create e;
         fsync e; on main; sync",
    );
}

/// Equal inode numbers in two roots are different files to the log, the merge and the replay.
#[test]
fn equal_numbers_in_two_roots() {
    pressed_history(
        "create a; write a 0 20000; sync; branch x; on x; truncate a 100; fsync a; on main;
         write a 8192 4096; fsync a; merge; on x; write a 0 20000; on main; unlink a; sync; merge",
    );
}

#[test]
fn branches_of_branches_and_snapshots() {
    pressed_history(
        "create a; write a 0 9000; snapshot s; on s; branch x; on x; write a 4096 4096; branch y;
         on y; append a 4096; fsync a; snapshot t; on main; unlink a; on x; truncate a 0; sync;
         merge",
    );
}

/// Both sides give up what they share: neither may free it.
#[test]
fn shared_blocks_given_up_by_both_sides() {
    pressed_history(
        "create a; write a 0 16384; create b; write b 0 16384; merge; branch x; unlink a; on x;
         unlink a; truncate b 0; on main; merge; write b 0 16384; merge; create c;
         write c 0 40000; sync",
    );
}

/// A file that is open and has no name is in the old tree until its last use ends. The new tree
/// loses it at its first opening, which a crash may cut anywhere.
#[test]
fn branch_with_open_unlinked_files_and_unfinished_truncation() {
    pressed_history(
        "create a; write a 0 20000; create b; write b 0 9000; sync; unlink-open a; branch x; on x;
         create c; write c 0 9000; fsync c; on main; write b 0 4096; truncate b 100; branch y; on y;
         append b 100; sync; merge",
    );
}

/// Attributes whose values are stored once have counts in the tree of each root.
#[test]
fn shared_values_of_branches() {
    pressed_history(
        "create a; create b; setvalue a x 0; setvalue b x 0; branch y; on y; removexattr a x; merge;
         on main; removexattr b x; removexattr a x; merge; on y; setvalue a x 4; on main;
         setvalue a x 4; sync; merge",
    );
}

/// Forks one after the other, of a tree that has changed since the last one: each leaves its
/// superblock to the next flush.
#[test]
fn forks_of_a_changing_tree() {
    pressed_history(
        "create a; write a 0 9000; sync; merge; chmod a 384; branch x; create b; branch y;
         write b 0 9000; branch z; on z; unlink a; fsync .; on main; truncate b 0; fsync b; branch w;
         on w; append b 5000; on x; write a 4096 4096; fsync a; on main; unlink b; sync; merge",
    );
}

/// Forks of a tree that has not changed need no merge: they are written, synced and forked while
/// only the log has them.
#[test]
fn forks_of_an_unchanged_tree() {
    pressed_history(
        "create a; write a 0 9000; create b; write b 0 5000; merge; branch x; branch y; on y;
         write a 4096 4096; fsync a; snapshot s; on x; unlink b; create c; write c 0 9000; fsync c;
         on main; branch z; on z; truncate a 100; on y; unlink a; sync; merge",
    );
}
