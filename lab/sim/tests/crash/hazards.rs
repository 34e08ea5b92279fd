//! Histories that broke earlier designs of this file system, each with the rule that it tests.
//!
//! Contract: atomic

use cairnfs::fs::{MakeOptions, Options, make_device};
use cairnfs_disk::format::checksum::name_hash;
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::superblock::RawSuperblock;
use cairnfs_sim::disk::SimDisk;
use cairnfs_sim::explore::Depth;
use cairnfs_sim::image::{BLOCK, Image};
use cairnfs_sim::record::{Recording, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::workload::{Runner, record, steps};

use crate::support::{THOROUGH, history, try_recording};

/// Rule: changes are reduced to final values, with removals before additions.
#[test]
fn final_values_replace_earlier_extents() {
    history(
        "create a; write a 0 16384; fsync a; write a 4096 4096; fsync a; merge;
         write a 8192 4096; fsync a; write a 4096 8192; sync; merge",
    );
    history(
        "create a; write a 0 4096; fsync a; write a 8192 4096; fsync a; write a 4096 4096; fsync a;
         merge; write a 0 16384; fsync a; punch a 4096 4096; sync; merge; write a 4096 4096; sync",
    );
}

/// Rule: freed space is reused only when no index and no readable log refers to it.
#[test]
fn freed_space_is_not_reused_during_merge() {
    history(
        "create a; write a 0 16384; sync; truncate a 0; create b; write b 0 16384; merge;
         create c; write c 0 16384; fsync c; unlink b; merge; create d; write d 0 32768; sync; merge",
    );
}

/// Rule: the deletion of an item that the index or the log contains is logged.
#[test]
fn deletions_are_logged() {
    history("create f; merge; unlink f; sync; merge");
    history("create f; fsync f; unlink f; create f; unlink f; sync; merge");
    history("create f; sync; merge; unlink f; create f; unlink f; sync; create f; sync");
    history("create f; setxattr f a 10; fsync f; removexattr f a; sync; setxattr f a 5; merge");
    history("create f; create g; sync; rename f g; create f; rename g f; sync; merge");
}

/// Rule: space freed after an unverified record is not reused within the part of the log that a
/// recovery may read.
#[test]
fn freed_space_is_not_reused_within_unverified_log() {
    history(
        "create a; write a 0 8192; fsync a; truncate a 0; fsync a; create b; write b 0 8192; fsync b;
         unlink b; sync; create c; write c 0 20000; fsync c; merge; write c 0 20000; fsync c",
    );
}

/// Rule: of two changes of an item the later one wins, however they reached the log.
/// Contract: dependency
#[test]
fn later_change_of_an_item_wins() {
    history(
        "create i; write i 0 100; sync; chmod i 384; write i 0 50; fsync i; chmod i 420; create j;
         fsync j; chmod i 448; merge; chmod i 384; fsync i",
    );
}

/// Rule: directories moved on the path to the root are part of the dependency closure.
/// Contract: dependency
#[test]
fn moved_directories_form_no_cycle() {
    history(
        "mkdir a; mkdir a/b; sync; rename a/b b; rename a b/a; fsync b/a; create b/a/x; fsync b/a/x;
         merge",
    );
    history("mkdir a; mkdir b; sync; merge; rename a b/a; rename b/a a; rename b a/b; fsync a/b");
}

/// Rule: the removal of a directory depends on the removal of its entries.
/// Contract: dependency
#[test]
fn directory_removal_depends_on_entry_removal() {
    history(
        "mkdir d; mkdir e; create d/f; write d/f 0 5000; sync; rename d/f e/f; rmdir d; mkdir d;
         fsync d; create d/f; fsync d; merge",
    );
}

/// Rule: the new use of a name depends on its earlier use.
/// Contract: dependency
#[test]
fn reused_name_depends_on_earlier_use() {
    history("mkdir d; create d/f; write d/f 0 100; sync; unlink d/f; create d/f; fsync d/f; merge");
    history("mkdir d; create d/f; sync; rename d/f d/g; create d/f; fsync d/f; fsync d/g");
}

/// Rule: an fsync makes every name of the inode durable, and the directories above it.
#[test]
fn fsync_keeps_second_link_in_new_directory() {
    history("create f; write f 0 9000; sync; mkdir d2; link f d2/f; fsync f; unlink f; fsync d2/f");
    history("create f; mkdir d; mkdir d/e; link f d/e/f; fsync f; rename d g; fsync f");
}

/// Two names with equal hashes on a fresh volume.
pub const NEIGHBOURS: [&str; 2] = ["38VrjY4dng1", "YBhODC8FUU9"];
/// Two attribute names, without `user.`, with equal hashes on a fresh volume.
const ATTRIBUTES: [&str; 2] = ["2KYhuLdzFE8", "4Mb5IpU6INd"];

fn assert_neighbours(names: [&str; 2]) {
    let image = fresh_volume(VOLUME_SIZE).unwrap();
    let block = SUPERBLOCK_SLOTS[0];
    let mut bytes = [0; BLOCK];
    image.read(block * BLOCK as u64, &mut bytes);
    let seed = RawSuperblock::decode(block, &bytes)
        .unwrap()
        .hash_seed
        .get();
    let [a, b] = names.map(|name| name_hash(seed, name.as_bytes()));
    assert_eq!(a, b, "{names:?}");
}

/// Rule: no probing; a hash finds all its entries.
#[test]
fn entries_with_equal_hashes_are_all_found() {
    assert_neighbours(NEIGHBOURS);
    let [a, b] = NEIGHBOURS;
    history(&format!(
        "create {a}; write {a} 0 100; create {b}; sync; merge; unlink {a}; fsync {b}; chmod {b} 384;
         create {a}; sync; rename {b} c; merge; rename c {b}; unlink {a}; fsync .; merge"
    ));
    history(&format!(
        "create {a}; fsync {a}; mkdir {b}; create {b}/x; fsync {b}/x; exchange {a} {b}; fsync {b};
         merge; unlink {b}; create {b}; fsync {b}; rename {b} {a}x; sync; rename {a} {b}; fsync ."
    ));
}

/// Rule: no probing; all attributes with one hash are one item.
#[test]
fn attributes_with_equal_hashes_are_all_found() {
    let [a, b] = ATTRIBUTES;
    assert_neighbours([&format!("user.{a}"), &format!("user.{b}")]);
    history(&format!(
        "create f; setxattr f {a} 10; setxattr f {b} 20000; sync; merge; removexattr f {a}; fsync f;
         setxattr f {b} 5; fsync f; setxattr f {a} 3000; merge; removexattr f {b}; sync;
         removexattr f {a}; fsync f; merge"
    ));
}

/// Rule: derived values of a directory are computed again from its entries.
#[test]
fn directory_counts_its_surviving_entries() {
    history(
        "mkdir d; sync; mkdir d/s; create d/a; fsync d/a; unlink d/a; rmdir d/s; rmdir d; sync",
    );
}

/// Rule: an fsync record is complete when it is written.
#[test]
fn fsync_record_is_atomic() {
    history(
        "mkdir d; mkdir e; create d/a; create e/b; sync; write d/a 0 5000; fsync d/a;
         rename d/a e/a; exchange e/a e/b; fsync e/b; fsync d; link e/b d/b; fsync e/b",
    );
}

/// Rule: a merge has reserved space and may take several steps.
#[test]
fn merge_rewrites_the_whole_index() {
    let mut text = String::new();
    for i in 0..60 {
        text += &format!("create f{i}; setxattr f{i} a 3500;");
    }
    text += "sync; merge;";
    for i in 0..60 {
        text += &format!("chmod f{i} 384;");
    }
    history(&(text + "sync; merge; sync"));
}

/// Rule: a merge has reserved space, also when the index is larger than the free space.
#[test]
fn full_volume_can_be_merged() {
    // A file takes two thirds of the volume, so that the steps need not be so many.
    let mut text = String::from("create large; reserve large 0 8192000;");
    for i in 0..500 {
        text += &format!("create f{i}; setxattr f{i} a 3900; append f{i} 5000;");
    }
    text += "sync; merge;";
    for i in 0..500 {
        text += &format!("chmod f{i} 384;");
    }
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let recording = record(start, &steps(&(text + "sync; merge; sync")).unwrap()).unwrap();
    let refused = |call: &str| call.ends_with("no space left");
    assert!(recording.calls().any(refused), "the volume never got full");
    let depth = Depth {
        states: 120,
        interrupted: 8,
        ..THOROUGH
    };
    try_recording("a full volume", &recording, &depth);
}

/// Rule: a log larger than the memory available to a replay is merged during the replay.
#[test]
fn log_larger_than_memory_is_replayed() {
    let mut text = String::from("create f; write f 0 50000; sync; unlink f;");
    for i in 0..50 {
        text += &format!("create f{i}; setxattr f{i} a 60000; write f{i} 0 5000; fsync f{i};");
    }
    text += "unlink f3; truncate f7 100; rename f9 f10; sync";
    let large = Options {
        cache_budget: 64 << 20,
        ..options(1)
    };
    let steps = steps(&text).unwrap();
    let disk = SimDisk::new(Image::new(3 * VOLUME_SIZE), false);
    let make = MakeOptions {
        log_size: Some(VOLUME_SIZE),
        seed: Some(1),
        ..MakeOptions::default()
    };
    make_device(&disk, &make, &mut |_, _| {}).unwrap();
    let recording = Recording::of(disk.image(), &large, |fs| {
        let mut runner = Runner::new(fs);
        steps.iter().try_for_each(|step| runner.run(step))?;
        assert_eq!(fs.info().merged_seq, 1, "it was merged before the end");
        Ok(())
    })
    .unwrap();
    let depth = Depth {
        states: 40,
        ..THOROUGH
    };
    try_recording("a large log", &recording, &depth);
}

/// Rule: an fsync reserves log space for its padding to whole blocks.
#[test]
fn many_small_fsyncs_wrap_the_log() {
    let mut text = String::from("create f;");
    for i in 0..1300 {
        text += &format!("write f {} 10; fsync f;", i % 30 * 5);
    }
    history(&text);
}
