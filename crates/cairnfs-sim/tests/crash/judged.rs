//! The model itself: trees that the contract does not allow are told, with the promise they break.

use cairnfs_sim::model::Violation;
use cairnfs_sim::record::{Recording, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::tree::{ROOT, Tree};
use cairnfs_sim::workload::{Runner, steps};

/// The tree after these steps, changed, as if a crash at the end had left it.
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

/// The inode that a name in the root leads to.
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
fn what_happened_is_allowed() {
    let text = "mkdir d; create d/f; write d/f 0 9000; fsync d/f; rename d/f g; sync";
    verdict(text, |_| {}).unwrap();
}

#[test]
fn what_nobody_synced_may_be_lost() {
    verdict("create f; sync; create g", |tree| remove(tree, "g")).unwrap();
    verdict("create f; sync; write f 0 9000", |tree| cut(tree, "f", 0)).unwrap();
}

#[test]
fn what_was_synced_may_not() {
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
    assert_breaks("durable", "mkdir d; create d/f; fsync d/f", |tree| {
        remove(tree, "d");
    });
}

#[test]
fn a_rename_is_whole() {
    assert_breaks("atomic", "create f; sync; rename f g", |tree| {
        remove(tree, "g");
    });
    assert_breaks("atomic", "create f; sync; rename f g", |tree| {
        let ino = named(tree, "g");
        let root = tree.nodes.get_mut(&ROOT).unwrap();
        root.entries.insert(b"f".to_vec(), ino);
    });
}

#[test]
fn a_rename_comes_after_the_data() {
    assert_breaks(
        "ordered by cause",
        "create f; sync; create t; write t 0 9000; rename t f",
        |tree| cut(tree, "f", 0),
    );
}

#[test]
fn an_entry_comes_after_its_directory_was_moved() {
    let text = "mkdir d; mkdir e; sync; rename d e/d; create e/d/f";
    assert_breaks("ordered by cause", text, |tree| {
        let (d, e) = {
            let e = named(tree, "e");
            (tree.nodes[&e].entries[b"d".as_slice()], e)
        };
        tree.nodes.get_mut(&e).unwrap().entries.clear();
        let root = tree.nodes.get_mut(&ROOT).unwrap();
        root.entries.insert(b"d".to_vec(), d);
    });
}

#[test]
fn a_size_does_not_come_before_the_data() {
    let text = "create f; write f 0 100; sync; append f 100";
    assert_breaks("ordered by cause", text, |tree| {
        let block = first_block(tree, "f");
        block[100..].fill(0);
    });
}

#[test]
fn bytes_that_were_cut_off_do_not_come_back() {
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

#[test]
fn nothing_comes_from_nowhere() {
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
