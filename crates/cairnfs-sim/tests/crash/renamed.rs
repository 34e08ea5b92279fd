//! Entries that get another name under their index: in the log, in the index, and between the steps
//! of a merge that brings one into the other.
//!
//! Each history runs twice: with merges in one step, and with merges and replays key by key, so that
//! the power also fails between an entry and its names.

use crate::hazards::NEIGHBOURS;
use crate::replay::history_in_steps;
use crate::support::history;

fn both(text: &str) {
    history(text);
    history_in_steps(text);
}

#[test]
fn a_name_in_the_index_changes() {
    both("create a; sync; merge; rename a b; sync; merge");
    both("create a; sync; merge; rename a b; fsync b; rename b c; sync; merge");
    both("mkdir d; create d/a; sync; merge; rename d/a d/b; fsync d; merge; rename d/b d/a; merge");
    both("mkdir a; create a/x; sync; merge; rename a b; fsync b/x; merge; rename b a; fsync .");
}

#[test]
fn the_log_has_names_that_the_index_never_had() {
    both("create a; sync; merge; rename a b; fsync b; rename b c; fsync c; rename c d; merge");
    both("create a; sync; merge; rename a b; sync; rename b c; sync; merge; rename c a; merge");
    both(
        "create a; fsync a; rename a b; fsync b; rename b c; sync; merge; create a; create b; merge",
    );
}

#[test]
fn one_rename_of_a_chain_is_synced() {
    both("create a; create x; sync; merge; rename a b; fsync b; rename b c; fsync x; merge");
    both("create a; create x; sync; merge; rename a b; fsync x; rename b c; fsync c; merge");
    both("create a; create x; sync; merge; rename a b; rename x a; fsync a; rename b c; merge");
}

#[test]
fn a_renamed_entry_is_removed() {
    both("create a; create x; sync; merge; rename a b; unlink b; fsync x; sync; merge");
    both("create a; create x; sync; merge; rename a b; fsync b; unlink b; fsync x; sync; merge");
    both(
        "create a; sync; merge; rename a b; sync; unlink b; create a; fsync a; merge; create b; merge",
    );
    both("create a; fsync a; rename a b; unlink b; create a; fsync a; unlink a; sync; merge");
    both("mkdir a; mkdir x; sync; merge; rename a b; rmdir b; mkdir a; fsync a; merge");
}

#[test]
fn a_name_just_given_up_is_taken() {
    both("create a; create b; sync; merge; unlink b; rename a b; fsync b; merge");
    both("create a; create b; sync; merge; unlink b; rename a b; create a; fsync a; merge");
    both("create a; create b; sync; merge; rename a c; rename b a; fsync a; merge");
}

#[test]
fn names_go_round() {
    both(
        "create a; create b; sync; merge; rename a t; rename b a; rename t b; fsync a; merge;
         rename a t; rename b a; rename t b; sync; merge",
    );
    both(
        "create a; create b; create c; sync; merge; rename a t; rename c a; fsync a; rename b c;
         rename t b; fsync c; exchange a b; rename c t; sync; merge",
    );
}

#[test]
fn entries_get_other_names_and_other_inodes() {
    both(
        "create a; create b; write b 0 5000; sync; merge; rename a c; rename b c; fsync c;
         rename c d; sync; merge",
    );
    both("create a; create b; sync; merge; exchange a b; rename a c; fsync c; rename b a; merge");
    both("create a; sync; merge; whiteout a b; rename a c; fsync b; rename b a; sync; merge");
    both("create a; sync; merge; rename a b; whiteout b c; fsync c; rename b a; merge");
}

#[test]
fn hard_links_change_their_names() {
    both("create a; link a b; sync; merge; rename a c; fsync c; rename b a; sync; merge");
    both("create a; link a b; sync; merge; rename b c; unlink a; fsync c; rename c a; merge");
    both("create a; sync; merge; rename a b; link b a; fsync a; rename b c; unlink a; sync; merge");
}

#[test]
fn names_change_while_others_leave_the_directory() {
    both(
        "mkdir d; mkdir e; create d/a; create d/b; sync; merge; rename d/a d/c; rename d/b e/a;
         fsync e/a; rename e/a d/a; fsync d; merge; rename d/a d/b; rename d/c d/a; sync; merge",
    );
    both(
        "mkdir d; mkdir d/s; create d/a; sync; merge; rename d/s d/t; create d/s; fsync d/s;
         rename d/a d/t/a; rename d/t d/u; fsync d/u/a; sync; merge",
    );
}

#[test]
fn names_that_share_a_hash_change_into_each_other() {
    let [a, b] = NEIGHBOURS;
    both(&format!(
        "create {a}; sync; merge; rename {a} {b}; fsync {b}; merge; create {a}; rename {b} c;
         fsync c; rename {a} {b}; sync; merge; rename c {a}; unlink {b}; sync; merge"
    ));
}
