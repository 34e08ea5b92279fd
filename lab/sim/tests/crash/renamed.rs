//! Entries that get another name under the same index: in the log, in the index, and between the
//! steps of a merge.
//!
//! Each history runs twice: with merges in one step, and with merges and replays that handle one
//! key at a time, so that the power also fails between an entry and its name items.
//!
//! Contract: dependency, posix.listing

use crate::hazards::NEIGHBOURS;
use crate::replay::history_in_steps;
use crate::support::history;

fn both_ways(text: &str) {
    history(text);
    history_in_steps(text);
}

#[test]
fn rename_of_indexed_entry() {
    both_ways("create a; sync; merge; rename a b; sync; merge");
    both_ways("create a; sync; merge; rename a b; fsync b; rename b c; sync; merge");
    both_ways(
        "mkdir d; create d/a; sync; merge; rename d/a d/b; fsync d; merge; rename d/b d/a; merge",
    );
    both_ways(
        "mkdir a; create a/x; sync; merge; rename a b; fsync b/x; merge; rename b a; fsync .",
    );
}

#[test]
fn names_that_only_the_log_had() {
    both_ways("create a; sync; merge; rename a b; fsync b; rename b c; fsync c; rename c d; merge");
    both_ways(
        "create a; sync; merge; rename a b; sync; rename b c; sync; merge; rename c a; merge",
    );
    both_ways(
        "create a; fsync a; rename a b; fsync b; rename b c; sync; merge; create a; create b; merge",
    );
}

#[test]
fn fsync_between_chained_renames() {
    both_ways("create a; create x; sync; merge; rename a b; fsync b; rename b c; fsync x; merge");
    both_ways("create a; create x; sync; merge; rename a b; fsync x; rename b c; fsync c; merge");
    both_ways(
        "create a; create x; sync; merge; rename a b; rename x a; fsync a; rename b c; merge",
    );
}

#[test]
fn removal_of_renamed_entry() {
    both_ways("create a; create x; sync; merge; rename a b; unlink b; fsync x; sync; merge");
    both_ways(
        "create a; create x; sync; merge; rename a b; fsync b; unlink b; fsync x; sync; merge",
    );
    both_ways(
        "create a; sync; merge; rename a b; sync; unlink b; create a; fsync a; merge; create b; merge",
    );
    both_ways("create a; fsync a; rename a b; unlink b; create a; fsync a; unlink a; sync; merge");
    both_ways("mkdir a; mkdir x; sync; merge; rename a b; rmdir b; mkdir a; fsync a; merge");
}

#[test]
fn rename_to_a_name_just_freed() {
    both_ways("create a; create b; sync; merge; unlink b; rename a b; fsync b; merge");
    both_ways("create a; create b; sync; merge; unlink b; rename a b; create a; fsync a; merge");
    both_ways("create a; create b; sync; merge; rename a c; rename b a; fsync a; merge");
}

#[test]
fn cyclic_renames() {
    both_ways(
        "create a; create b; sync; merge; rename a t; rename b a; rename t b; fsync a; merge;
         rename a t; rename b a; rename t b; sync; merge",
    );
    both_ways(
        "create a; create b; create c; sync; merge; rename a t; rename c a; fsync a; rename b c;
         rename t b; fsync c; exchange a b; rename c t; sync; merge",
    );
}

#[test]
fn entries_change_names_and_inodes() {
    both_ways(
        "create a; create b; write b 0 5000; sync; merge; rename a c; rename b c; fsync c;
         rename c d; sync; merge",
    );
    both_ways(
        "create a; create b; sync; merge; exchange a b; rename a c; fsync c; rename b a; merge",
    );
    both_ways("create a; sync; merge; whiteout a b; rename a c; fsync b; rename b a; sync; merge");
    both_ways("create a; sync; merge; rename a b; whiteout b c; fsync c; rename b a; merge");
}

#[test]
fn rename_of_hard_links() {
    both_ways("create a; link a b; sync; merge; rename a c; fsync c; rename b a; sync; merge");
    both_ways("create a; link a b; sync; merge; rename b c; unlink a; fsync c; rename c a; merge");
    both_ways(
        "create a; sync; merge; rename a b; link b a; fsync a; rename b c; unlink a; sync; merge",
    );
}

#[test]
fn renames_with_entries_moving_between_directories() {
    both_ways(
        "mkdir d; mkdir e; create d/a; create d/b; sync; merge; rename d/a d/c; rename d/b e/a;
         fsync e/a; rename e/a d/a; fsync d; merge; rename d/a d/b; rename d/c d/a; sync; merge",
    );
    both_ways(
        "mkdir d; mkdir d/s; create d/a; sync; merge; rename d/s d/t; create d/s; fsync d/s;
         rename d/a d/t/a; rename d/t d/u; fsync d/u/a; sync; merge",
    );
}

#[test]
fn rename_between_names_with_equal_hashes() {
    let [a, b] = NEIGHBOURS;
    both_ways(&format!(
        "create {a}; sync; merge; rename {a} {b}; fsync {b}; merge; create {a}; rename {b} c;
         fsync c; rename {a} {b}; sync; merge; rename c {a}; unlink {b}; sync; merge"
    ));
}
