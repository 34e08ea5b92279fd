//! Histories of calls on whole roots: the power fails at every write, and all named roots are as
//! before or as after the call.
//!
//! Contract: roots, roots.whole

use cairnfs_sim::record::{VOLUME_SIZE, fresh_volume, pressed};
use cairnfs_sim::whole::{History, Unmounted, check};
use cairnfs_tier::size;

fn tried(text: &str) {
    check::<Unmounted>(text, size(150, 400)).unwrap();
}

#[test]
fn publish_with_unchanged_base_is_one_step() {
    tried(
        "create a; write a 0 9000; sync; branch b; on b; write a 4096 4096; sync; create c; sync;
         publish b; on main; write a 0 4096; fsync a",
    );
}

#[test]
fn three_way_publish_is_one_step() {
    tried(
        "create a; write a 0 9000; sync; branch b; on b; write a 4096 4096; sync; on main;
         create c; sync; publish b",
    );
}

#[test]
fn restore_of_a_branch_is_one_step() {
    tried(
        "create a; write a 0 9000; sync; snapshot s; write a 4096 4096; fsync a; restore main s;
         write a 0 4096; fsync a; restore main s",
    );
}

/// What a restore takes back stays so when a branch from before is published, whatever of the replaced
/// states is dropped in between.
#[test]
fn restore_beside_a_branch_is_on_top() {
    tried(
        "create a; write a 0 9000; sync; snapshot s; create t; write a 4096 4096; sync; branch b;
         branch c; on b; create o; sync; on main; restore main s; restore main s; drop-replaced main;
         free; publish b; drop-replaced main; create p; sync; restore main s; drop-replaced main;
         publish c; drop-replaced main; free; drop s; free",
    );
}

#[test]
fn restore_of_paths_is_one_step() {
    tried(
        "mkdir d; create d/a; write d/a 0 9000; create b; sync; snapshot s; unlink d/a; sync;
         write b 0 4096; fsync b; restore main s d/a; restore main s /d b",
    );
}

#[test]
fn rename_of_a_root_is_one_step() {
    tried(
        "create a; sync; branch b; snapshot s; rename-root b c; rename-root s b; rename-root c s;
         on s; write a 0 4096; fsync a; drop b",
    );
}

#[test]
fn receive_is_one_step() {
    tried(
        "mkdir d; create d/a; write d/a 0 20000; create b; sync; snapshot s; receive s r;
         drop s; receive r t",
    );
}

/// A branch is dropped whose snapshot only the log has, as well as the changes that this has.
#[test]
fn dropped_branch_feeds_its_snapshot() {
    tried(
        "create a; write a 0 9000; sync; branch b; on b; write a 4096 4096; create c; sync; snapshot t;
         on main; drop b; write a 0 4096; fsync a",
    );
}

/// With cuts while checkpoints are made, read and stored: unwritten blocks are written in place, what
/// a checkpoint has is overwritten, roots are dropped meanwhile, and a checkpoint is stored without the
/// volume's knowledge.
/// Contract: checkpoint
#[test]
fn checkpoints_are_known_and_complete() {
    tried(
        "create a; write a 0 9000; create p; allocate p 0 40000; sync; checkpoint; ship;
         write p 4096 4096; write a 0 4096; sync; checkpoint; write a 4096 4096; sync; lose;
         write p 8192 4096; fsync p; checkpoint; unlink a; sync; ship; create b; sync",
    );
    tried(
        "create a; write a 0 9000; snapshot s; write a 0 4096; sync; branch b; checkpoint;
         on b; write a 4096 4096; sync; ship; drop s; merge; checkpoint;
         ship; free; on main; create c; sync;
         snapshot s2; publish b; checkpoint; restore main s2 a; ship",
    );
}

/// A mix of these calls, checkpoints and changes on up to three branches, from a seed. The last step of several
/// changes makes them durable.
fn random_history(seed: u64) -> String {
    let mut thrown = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut throw = |sides: usize| {
        thrown ^= thrown << 13;
        thrown ^= thrown >> 7;
        thrown ^= thrown << 17;
        (thrown % sides as u64) as usize
    };
    let mut text = "create a; create b; write a 0 9000; sync; snapshot s0".to_owned();
    let (mut branches, mut snapshots) = (vec!["main".to_owned()], vec!["s0".to_owned()]);
    for n in 1..12 {
        let on = branches[throw(branches.len())].clone();
        let other = branches.last().filter(|name| *name != "main").cloned();
        let step = match (throw(12), other) {
            (0, _) => {
                snapshots.push(format!("s{n}"));
                format!("snapshot s{n}")
            }
            (1..=3, _) if branches.len() < 3 => {
                branches.push(format!("b{n}"));
                format!("branch b{n}")
            }
            (4, _) => {
                let paths = ["", " a"][throw(2)];
                format!("restore {on} {}{paths}", snapshots[throw(snapshots.len())])
            }
            (5, Some(gone)) => {
                branches.pop();
                format!("drop {gone}")
            }
            (6, Some(gone)) => {
                branches.pop();
                format!("publish {gone}")
            }
            (7, Some(gone)) => {
                branches.pop();
                format!(
                    "on main; create m{n}; append m{n} 5000; sync; on {gone}; append a 3000;
                     create p{n}; sync; publish {gone}"
                )
            }
            (8, _) => format!("write a {} 4096; fsync a", throw(3) * 4096),
            (_, _) => {
                let (file, at) = (["a", "b"][throw(2)], throw(3) * 4096);
                let more = ["", "mkdir d; rename b d/b; rename d/b b; rmdir d; "][throw(2)];
                format!("create f{n}; write {file} {at} 5000; {more}write f{n} 0 {at}; sync")
            }
        };
        // A checkpoint is made before some steps, and stored behind them, known or not.
        let (before, behind) = [
            ("", ""),
            ("checkpoint; ", "; ship"),
            ("checkpoint; ", "; lose"),
        ][throw(6).saturating_sub(3)];
        text += &format!("; {before}on {on}; {step}{behind}");
    }
    text
}

#[test]
fn random_histories_of_roots() {
    let (mut failures, mut states, mut merged) = (0, 0, 0);
    for seed in 0..size(4, 20) {
        let text = random_history(seed);
        let start = fresh_volume(VOLUME_SIZE).unwrap();
        let history = History::record(start, &pressed(seed), &text);
        let history = history.unwrap_or_else(|e| panic!("seed {seed}: {text}\n  {e}"));
        let tally = history.explore(size(75, 150));
        for failure in &tally.failures {
            eprintln!("seed {seed}: {text}\n  {failure}");
            failures += 1;
        }
        assert!(
            tally.states > size(25, 50),
            "seed {seed}: {} states",
            tally.states
        );
        states += tally.states;
        merged += history.merged;
    }
    println!("{states} states, {merged} publishes that merged");
    assert_eq!(failures, 0);
    assert!(
        merged >= size(1, 4),
        "only {merged} publishes merged both sides"
    );
}
