//! Tests of the model itself: it rejects trees that the contract does not allow, and names the
//! broken promise.

use cairnfs_disk::types::Flags;
use cairnfs_sim::model::Violation;
use cairnfs_sim::record::{Recording, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::tree::{Node, ROOT, Tree};
use cairnfs_sim::workload::{Runner, steps};

/// Judges the tree after these steps and this change, as if a crash at the end had left it.
fn verdict(text: &str, change: impl FnOnce(&mut Tree)) -> Result<(), Violation> {
    let mut tree = Tree::default();
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let recording = Recording::of(start, &options(1), |fs| {
        let mut runner = Runner::new(fs);
        for step in steps(text).unwrap() {
            runner.run(&step)?;
        }
        tree = Tree::read(fs).unwrap();
        Ok(())
    })
    .unwrap();
    change(&mut tree);
    recording.verify(&tree, recording.moment(recording.events().len()))
}

fn assert_breaks(promise: &str, text: &str, change: impl FnOnce(&mut Tree)) {
    let violation = verdict(text, change).unwrap_err();
    assert_eq!(violation.promise, promise, "{violation}");
}

/// The inode of a name in the root directory.
fn named(tree: &Tree, name: &str) -> u64 {
    tree.nodes[&ROOT].entries[name.as_bytes()]
}

fn remove(tree: &mut Tree, name: &str) {
    let root = tree.nodes.get_mut(&ROOT).unwrap();
    let ino = root.entries.remove(name.as_bytes()).unwrap();
    if root.entries.values().all(|other| *other != ino) {
        tree.nodes.remove(&ino);
    }
}

fn first_block<'t>(tree: &'t mut Tree, name: &str) -> &'t mut Vec<u8> {
    let ino = named(tree, name);
    let node = tree.nodes.get_mut(&ino).unwrap();
    node.blocks.get_mut(&0).unwrap()
}

fn cut(tree: &mut Tree, name: &str, size: u64) {
    let ino = named(tree, name);
    let node = tree.nodes.get_mut(&ino).unwrap();
    node.size = size;
    node.blocks.clear();
}

#[test]
fn unchanged_tree_is_allowed() {
    let text = "mkdir d; create d/f; write d/f 0 9000; fsync d/f; rename d/f g; sync";
    verdict(text, |_| {}).unwrap();
}

#[test]
fn unsynced_changes_may_be_lost() {
    verdict("create f; sync; create g", |tree| remove(tree, "g")).unwrap();
    verdict("create f; sync; write f 0 9000", |tree| cut(tree, "f", 0)).unwrap();
}

/// Contract: durable.fsync, durable.sync
#[test]
fn synced_changes_may_not_be_lost() {
    for text in ["create f; fsync f", "create f; sync", "create f; fsync ."] {
        assert_breaks("durable", text, |tree| remove(tree, "f"));
    }
    assert_breaks("durable", "create f; write f 0 9000; fsync f", |tree| {
        cut(tree, "f", 0);
    });
    assert_breaks("durable", "create f; sync; chmod f 384; fsync f", |tree| {
        let ino = named(tree, "f");
        tree.nodes.get_mut(&ino).unwrap().facts.mode = 0o644;
    });
    assert_breaks("durable", "create f; sync; chattr f 96; fsync f", |tree| {
        let ino = named(tree, "f");
        tree.nodes.get_mut(&ino).unwrap().facts.flags = Flags::NONE;
    });
    assert_breaks("durable", "mkdir d; create d/f; fsync d/f", |tree| {
        remove(tree, "d");
    });
}

/// Contract: atomic
#[test]
fn rename_is_atomic() {
    assert_breaks("atomic", "create f; sync; rename f g", |tree| {
        remove(tree, "g");
    });
    assert_breaks("atomic", "create f; sync; rename f g", |tree| {
        let ino = named(tree, "g");
        let root = tree.nodes.get_mut(&ROOT).unwrap();
        root.entries.insert(b"f".to_vec(), ino);
    });
}

/// Contract: dependency.data
#[test]
fn rename_over_file_needs_its_data() {
    assert_breaks(
        "dependency order",
        "create f; sync; create t; write t 0 9000; rename t f",
        |tree| cut(tree, "f", 0),
    );
}

/// Contract: dependency
#[test]
fn entry_needs_earlier_move_of_its_directory() {
    let text = "mkdir d; mkdir e; sync; rename d e/d; create e/d/f";
    assert_breaks("dependency order", text, |tree| {
        let (d, e) = {
            let e = named(tree, "e");
            (tree.nodes[&e].entries[b"d".as_slice()], e)
        };
        tree.nodes.get_mut(&e).unwrap().entries.clear();
        let root = tree.nodes.get_mut(&ROOT).unwrap();
        root.entries.insert(b"d".to_vec(), d);
    });
}

fn node<'t>(tree: &'t mut Tree, name: &str) -> &'t mut Node {
    let ino = named(tree, name);
    tree.nodes.get_mut(&ino).unwrap()
}

/// Contract: dependency
#[test]
fn entry_needs_earlier_attributes_of_its_directory() {
    let text = "mkdir d; sync; chmod d 448; create d/f; fsync d/f";
    assert_breaks("dependency order", text, |tree| {
        node(tree, "d").facts.mode = 0o755;
    });
    let text = "mkdir d; sync; setxattr d a 10; create d/f; fsync d/f";
    assert_breaks("dependency order", text, |tree| {
        node(tree, "d").facts.xattrs.clear();
    });
    let text = "mkdir d; create d/f; create g; sync; chmod d 448; link g d/h; unlink d/f";
    assert_breaks("dependency order", text, |tree| {
        node(tree, "d").facts.mode = 0o755;
    });
}

/// Contract: dependency.inode
#[test]
fn truncation_needs_earlier_attributes() {
    let text = "create f; write f 0 9000; sync; chmod f 384; truncate f 0";
    assert_breaks("atomic", text, |tree| node(tree, "f").facts.mode = 0o644);
    let text = "create f; write f 0 9000; sync; setxattr f a 10; truncate f 20000";
    assert_breaks("atomic", text, |tree| node(tree, "f").facts.xattrs.clear());
    let text = "create f; write f 0 9000; sync; chmod f 384; allocate f 0 20000";
    assert_breaks("atomic", text, |tree| node(tree, "f").facts.mode = 0o644);
}

#[test]
fn attributes_need_earlier_truncation() {
    let text = "create f; sync; truncate f 100; chmod f 384";
    assert_breaks("atomic", text, |tree| node(tree, "f").size = 0);
}

/// Sets the times of an inode to those that it has after these steps.
fn date(tree: &mut Tree, name: &str, text: &str) {
    let mut before = None;
    verdict(text, |tree| before = Some(node(tree, name).times)).unwrap();
    node(tree, name).times = before.unwrap();
}

/// Contract: dependency.times
#[test]
fn times_survive_with_the_change_that_set_them() {
    let made = "create f; write f 0 5000; fsync f";
    for change in ["write f 0 5000", "chmod f 384", "touch f 5", "truncate f 9"] {
        let text = format!("{made}; {change}; fsync f");
        assert_breaks("durable", &text, |tree| date(tree, "f", made));
    }
    for change in ["chmod f 384", "setxattr f a 10", "link f g"] {
        let text = format!("{made}; {change}");
        assert_breaks("atomic", &text, |tree| date(tree, "f", made));
    }
    let text = format!("{made}; write f 4096 4096; write f 0 4096");
    assert_breaks("dependency order", &text, |tree| date(tree, "f", made));
    let made = "mkdir d; sync";
    for change in ["create d/f", "mkdir d/s", "symlink d/l 10"] {
        let text = format!("{made}; {change}");
        assert_breaks("dependency order", &text, |tree| date(tree, "d", made));
    }
}

#[test]
fn changes_of_times_survive_in_order() {
    let text = "create f; sync; chmod f 384; touch f 5";
    assert_breaks("atomic", text, |tree| {
        node(tree, "f").facts.mode = 0o644;
    });
    let made = "create f; sync; touch f 5";
    assert_breaks("atomic", "create f; sync; touch f 5; chmod f 384", |tree| {
        date(tree, "f", made);
    });
}

#[test]
fn fdatasync_may_leave_out_times() {
    let made = "create f; write f 0 5000; fsync f";
    let text = format!("{made}; write f 0 5000; fdatasync f");
    verdict(&text, |tree| date(tree, "f", made)).unwrap();
    let text = format!("{made}; write f 0 5000; fdatasync f; fsync f");
    assert_breaks("durable", &text, |tree| date(tree, "f", made));
}

#[test]
fn directory_times_may_survive_without_entries() {
    let text = "mkdir d; sync; create d/f; create d/g";
    verdict(text, |tree| {
        let entries = &mut node(tree, "d").entries;
        let g = entries.remove(b"g".as_slice()).unwrap();
        tree.nodes.remove(&g);
    })
    .unwrap();
}

/// Contract: dependency.inode
#[test]
fn written_data_needs_cleared_set_id_bits() {
    // The steps write as root, which keeps set-id bits, so this run makes the calls itself.
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let mut tree = Tree::default();
    let recording = Recording::of(start, &options(1), |fs| {
        let mut runner = Runner::new(fs);
        for step in steps("create f; write f 0 100; chmod f 2541; sync").unwrap() {
            runner.run(&step)?;
        }
        let f = fs.lookup(ROOT, b"f")?.ino;
        fs.write(f, 0, &[7; 100], true)?;
        tree = Tree::read(fs).unwrap();
        Ok(())
    })
    .unwrap();
    let end = recording.moment(recording.events().len());
    assert_eq!(node(&mut tree, "f").facts.mode, 0o755);
    recording.verify(&tree, end).unwrap();
    node(&mut tree, "f").facts.mode = 0o4755;
    let violation = recording.verify(&tree, end).unwrap_err();
    assert_eq!(violation.promise, "dependency order", "{violation}");
}

/// Contract: dependency.data
#[test]
fn grown_size_needs_its_data() {
    let text = "create f; write f 0 100; sync; append f 100";
    assert_breaks("dependency order", text, |tree| {
        let block = first_block(tree, "f");
        block[100..].fill(0);
    });
}

/// Contract: stale
#[test]
fn truncated_bytes_do_not_reappear() {
    let text = "create f; write f 0 5000; sync; truncate f 100; truncate f 5000; sync";
    let violation = verdict(text, |tree| {
        let ino = named(tree, "f");
        tree.nodes
            .get_mut(&ino)
            .unwrap()
            .blocks
            .insert(0, vec![1; 4096]);
    });
    assert!(violation.is_err());
}

/// Contract: atomic.data, rot
#[test]
fn bytes_and_names_never_written_are_rejected() {
    assert_breaks("no stale or rotten bytes", "create f; sync", |tree| {
        let ino = named(tree, "f");
        let root = tree.nodes.get_mut(&ROOT).unwrap();
        root.entries.insert(b"g".to_vec(), ino);
    });
    assert_breaks("no stale or rotten bytes", "create f; sync", |tree| {
        cut(tree, "f", 10);
    });
    assert_breaks("atomic", "create f; write f 0 4096; sync", |tree| {
        let block = first_block(tree, "f");
        block[2000] ^= 1;
    });
}
