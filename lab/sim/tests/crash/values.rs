//! Shared attribute values: whatever is lost in a crash, the use count of each value is correct,
//! and a value exists while it has uses. The offline check compares the counts in every state.
//!
//! Contract: atomic.attributes

use cairnfs::fs::{FileSystem, Options};
use cairnfs_sim::explore::Depth;
use cairnfs_sim::record::{Recording, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::workload::{Runner, Step, steps};
use cairnfs_tier::size;

use crate::support::{counted, history, try_recording};

/// Blocks that a volume has left when a merge must take several steps.
const LEFT: u64 = 440;

#[test]
fn equal_values_set_and_removed() {
    history(
        "create a; create b; setvalue a x 0; sync; merge; setvalue b x 0; fsync b; merge;
         removexattr a x; fsync a; merge; removexattr b x; sync; merge",
    );
}

#[test]
fn value_replaced_by_another() {
    history(
        "create a; create b; setvalue a x 0; setvalue b x 1; sync; merge; setvalue a x 1; fsync a;
         setvalue b x 0; merge; setvalue a x 0; setvalue a x 2; fsync a; merge; setvalue b x 3; merge",
    );
}

#[test]
fn value_removed_with_its_last_file() {
    history(
        "create a; create b; setvalue a x 0; setvalue b y 0; setvalue b x 4; sync; merge; unlink a;
         fsync .; merge; unlink-open b; sync; merge",
    );
}

/// A value loses its last use and gets a new one in the same merge, and in the next merge.
#[test]
fn removed_value_set_again_in_same_merge() {
    history(
        "create a; create b; create c; setvalue a x 0; merge; removexattr a x; setvalue b x 0; merge;
         unlink b; merge; setvalue c x 0; fsync c; merge; removexattr c x; setvalue c x 0; merge",
    );
}

/// Rule: a log record is complete by itself; sharing a value creates no dependency between inodes.
#[test]
fn fsync_makes_shared_value_durable() {
    history(
        "create a; create b; sync; merge; setvalue a x 0; setvalue b x 0; fsync b; setvalue a y 3;
         setvalue b y 3; fsync a; merge; setvalue b x 3; fsync b",
    );
}

/// The attributes with which a file is created (an inherited access control list) survive with the
/// file.
/// Contract: atomic.attributes
#[test]
fn created_file_survives_with_its_attributes() {
    history(
        "createwith a x 0; createwith b x 0; fsync b; merge; createwith c x 4; rename c a; fsync a;
         unlink b; createwith b y 2; sync; merge",
    );
}

/// Rule: a look-up by hash never stops at another value with the same hash.
#[test]
fn values_with_equal_hashes_are_all_found() {
    history(
        "create a; create b; create c; setvalue a x 1000; setvalue b x 1001; sync; merge;
         setvalue c x 1001; fsync c; removexattr a x; merge; setvalue a y 1002; sync; merge;
         setvalue a x 1000; merge; removexattr b x; fsync b; merge; unlink c; merge",
    );
}

#[test]
fn more_values_with_equal_hashes_than_slots() {
    let files: String = (0..10)
        .map(|i| format!("create f{i}; setvalue f{i} x {};", 1000 + i))
        .collect();
    history(&format!(
        "{files} merge; create g; setvalue g x 1009; setvalue g y 1003; removexattr f3 x; fsync g;
         merge; setvalue f9 x 1003; unlink f0; merge; setvalue g z 1000; sync; merge"
    ));
}

/// Rule: in each superblock the use counts are those of its index, also between the steps of a
/// merge.
#[test]
fn use_counts_are_correct_after_each_merge_step() {
    let mut before = String::new();
    let mut text = String::new();
    for i in 0..900 {
        before += &format!("create f{i}; append f{i} 1800; setvalue f{i} x {};", i % 6);
        text += &format!("setvalue f{i} x {};", i * 5 % 35);
    }
    before += "sync; merge; create full";
    let [before, text] = [before, text].map(|text| steps(&text).unwrap());
    let roomy = Options {
        cache_budget: 64 << 20,
        ..options(1)
    };
    let recording = Recording::of(fresh_volume(VOLUME_SIZE).unwrap(), &roomy, |fs| {
        let mut runner = Runner::new(fs);
        before.iter().try_for_each(|step| runner.run(step))?;
        let room = fs.statfs().available - LEFT;
        runner.run(&Step::Reserve("full".into(), 0, room * 4096))?;
        fs.merge()?;
        let count = |fs: &FileSystem| (fs.info().generation, counted(fs, "merges"));
        let (generation, merges) = count(fs);
        text.iter().try_for_each(|step| runner.run(step))?;
        fs.sync()?;
        fs.merge()?;
        let (flips, merges) = (count(fs).0 - generation, count(fs).1 - merges);
        assert!(flips > merges, "{merges} merges of one step each");
        Ok(())
    })
    .unwrap();
    let depth = Depth {
        states: size(60, 100),
        interrupted: 24,
        within: 6,
        used: 16,
    };
    let tally = try_recording("a merge in steps", &recording, &depth);
    assert!(tally.states > size(5, 60), "{}", tally.states);
}
