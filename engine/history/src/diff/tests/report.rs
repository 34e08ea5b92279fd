//! Reports: paths, statuses, sums, and their JSON.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::compare::history;
use super::model::{Counters, Model, node};
use super::volume::{ModelVolume, Numbered};
use crate::diff::{FilePath, Patches, Report, Status, Summary};
use cairnfs_core::index::Tree;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::{S_IFDIR, S_IFREG};

fn report(volume: &ModelVolume, old: Tree, new: Tree) -> Report {
    Report::new(volume.tree(old), volume.tree(new), &Numbered).unwrap()
}

fn all_paths(model: &Model, ino: u64) -> BTreeSet<Vec<u8>> {
    let names = model.names_of(ino).into_iter();
    names.map(|(dir, name)| model.path(dir, &name)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Every path of a report is one of the model, and what got or lost a name is in the report.
    #[test]
    fn paths_and_statuses_are_those_of_the_models(seed in any::<u64>(), changes in 1usize..150) {
        let (volume, states) = history(seed, 3, changes);
        for (old, new) in [(0, 2), (2, 0), (1, 2)] {
            let ((old, old_tree), (new, new_tree)) = (&states[old], &states[new]);
            let report = report(&volume, *old_tree, *new_tree);
            prop_assert!(report.files.is_sorted_by_key(|f| (
            f.path.bytes.clone(),
            f.status != Status::Removed,
            f.ino
        )));
            let mut told = BTreeSet::new();
            for file in &report.files {
                prop_assert!(told.insert(file.ino));
                let old_ino = file.old_ino.unwrap_or(file.ino);
                prop_assert!(file.old_ino.is_none_or(|old_ino| told.insert(old_ino)));
                let (before, now) = (old.names_of(old_ino), new.names_of(file.ino));
                let root = file.ino == ROOT_INO;
                let status = match (before.is_empty() && !root, now.is_empty() && !root) {
                    (true, _) => Status::Added,
                    (_, true) => Status::Removed,
                    _ if file.old_ino.is_some() => Status::Changed,
                    _ if before.difference(&now).next().is_some()
                        && now.difference(&before).next().is_some() => Status::Renamed,
                    _ => Status::Changed,
                };
                prop_assert_eq!(file.status, status);
                let paths = match status {
                    Status::Removed => all_paths(old, file.ino),
                    _ => all_paths(new, file.ino),
                };
                prop_assert!(root && file.path.bytes.is_empty() || paths.contains(&file.path.bytes));
                for path in &file.new_paths {
                    prop_assert!(all_paths(new, file.ino).contains(&path.bytes));
                }
                for path in &file.old_paths {
                    prop_assert!(all_paths(old, file.ino).contains(&path.bytes));
                }
            }
            let inodes: BTreeSet<u64> = old.nodes.keys().chain(new.nodes.keys()).copied().collect();
            for ino in inodes {
                if old.names_of(ino) != new.names_of(ino) {
                    prop_assert!(told.contains(&ino));
                }
            }
        }
    }
}

#[test]
fn report_names_what_users_did() {
    let (mut model, mut counters) = (Model::default(), Counters::default());
    let mut volume = ModelVolume::new();
    for (ino, mode, dir, name) in [
        (20, S_IFDIR | 0o755, ROOT_INO, "dir"),
        (21, S_IFREG | 0o644, 20, "kept"),
        (22, S_IFREG | 0o644, 20, "moved"),
        (23, S_IFREG | 0o644, ROOT_INO, "gone"),
    ] {
        model.nodes.insert(ino, node(mode, dir));
        model.link(dir, name.into(), ino);
    }
    let old = volume.write(&model, 256);
    model.names.remove(&(ROOT_INO, b"gone".to_vec()));
    model.nodes.remove(&23);
    model.names.remove(&(20, b"moved".to_vec()));
    model.link(ROOT_INO, b"m\xff".to_vec(), 22);
    model.nodes.insert(24, node(S_IFREG | 0o600, 20));
    model.link(20, b"new".to_vec(), 24);
    model.write(&mut counters, 24, 0, b"hello");
    model.nodes.get_mut(&21).unwrap().mode = S_IFREG | 0o600;
    // The directory's mtime follows from its entries.
    model.nodes.get_mut(&20).unwrap().mtime = 9;
    let new = volume.write(&model, 256);
    let report = report(&volume, old, new);
    let told: Vec<_> = report
        .files
        .iter()
        .map(|f| (f.status, &*f.path.path))
        .collect();
    assert_eq!(
        told,
        [
            (Status::Changed, "dir/kept"),
            (Status::Added, "dir/new"),
            (Status::Removed, "gone"),
            (Status::Renamed, "m\u{fffd}"),
        ]
    );
    let summary = Summary {
        added: 1,
        removed: 1,
        renamed: 1,
        changed: 1,
        bytes: 5,
    };
    assert_eq!(report.summary(), summary);
    let json = serde_json::to_value(&report).unwrap();
    let files = json["files"].as_array().unwrap();
    let change = &files[0]["attributes"][0];
    assert_eq!(
        (&change["name"], &change["old"], &change["new"]),
        (&"mode".into(), &0o644.into(), &0o600.into())
    );
    assert_eq!(files[1]["contents"][0]["end"], 5);
    assert_eq!(
        (&files[1]["kind"], &files[1]["status"]),
        (&"file".into(), &"added".into())
    );
    assert_eq!(files[3]["path_hex"], "6dff");
    assert_eq!(files[3]["old_paths"][0]["path"], "dir/moved");
    assert!(files[0].get("path_hex").is_none() && files[0].get("bytes").is_none());
    assert_eq!(FilePath::from(b"a/b".to_vec()).path, "a/b");
}

#[test]
fn patch_shows_text_and_names_the_rest() {
    let (mut model, mut counters) = (Model::default(), Counters::default());
    let mut volume = ModelVolume::new();
    for (ino, name) in [(20, "text"), (21, "gone"), (22, "large"), (23, "touched")] {
        model.nodes.insert(ino, node(S_IFREG | 0o644, ROOT_INO));
        model.link(ROOT_INO, name.into(), ino);
        model.write(&mut counters, ino, 0, b"one\ntwo\n");
    }
    model.nodes.insert(25, node(S_IFDIR | 0o755, ROOT_INO));
    model.link(ROOT_INO, b"dir".to_vec(), 25);
    let old = volume.write(&model, 256);
    model.write(&mut counters, 20, 4, b"2");
    model.names.remove(&(ROOT_INO, b"text".to_vec()));
    model.link(25, b"moved".to_vec(), 20);
    model.unlink(ROOT_INO, b"gone", false);
    model.write(&mut counters, 22, 0, &[1; 20_000]);
    model.nodes.get_mut(&23).unwrap().uid = 3;
    model.nodes.insert(24, node(S_IFREG | 0o600, ROOT_INO));
    model.link(ROOT_INO, b"new".to_vec(), 24);
    model.write(&mut counters, 24, 0, b"fresh\n");
    let new = volume.write(&model, 256);
    let trees = (volume.tree(old), volume.tree(new));
    let report = report(&volume, old, new);
    let mut patches = Patches::new(&report, trees, &Numbered).unwrap();
    let shown = |file| String::from_utf8(patches.of(file).unwrap()).unwrap();
    let patches: String = report.files.iter().map(shown).collect();
    let expected = "\
diff --git a/text b/dir/moved
rename from text
rename to dir/moved
--- a/text
+++ b/dir/moved
@@ -1,2 +1,2 @@
 one
-two
+2wo
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1,2 +0,0 @@
-one
-two
diff --git a/large b/large
Binary files a/large and b/large differ
diff --git a/new b/new
new file mode 100644
--- /dev/null
+++ b/new
@@ -0,0 +1 @@
+fresh
";
    assert_eq!(patches, expected);
}

/// The item of a file with several names may name a directory that has none of them any more.
#[test]
fn file_with_a_stale_hint_is_found() {
    let (mut model, mut volume) = (Model::default(), ModelVolume::new());
    for (ino, mode, dir, name) in [
        (20, S_IFDIR | 0o755, ROOT_INO, "a"),
        (21, S_IFDIR | 0o755, ROOT_INO, "b"),
        (22, S_IFREG | 0o644, 20, "first"),
    ] {
        model.nodes.insert(ino, node(mode, dir));
        model.link(dir, name.into(), ino);
    }
    model.link(21, b"second".to_vec(), 22);
    model.unlink(21, b"second", false);
    assert_eq!(model.nodes[&22].parent, 21);
    let old = volume.write(&model, 256);
    model.nodes.get_mut(&22).unwrap().uid = 7;
    let new = volume.write(&model, 256);
    let found = report(&volume, old, new).files;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path.path, "a/first");
    assert_eq!(found[0].attributes.len(), 1);
}

#[test]
fn circle_of_directories_is_damage() {
    let (mut model, mut volume) = (Model::default(), ModelVolume::new());
    for ino in [20, 21] {
        model.nodes.insert(ino, node(S_IFDIR | 0o755, 41 - ino));
    }
    for ino in [20, 21] {
        model.link(41 - ino, b"d".to_vec(), ino);
    }
    let old = volume.write(&model, 256);
    model.nodes.get_mut(&20).unwrap().uid = 7;
    let new = volume.write(&model, 256);
    let refused = Report::new(volume.tree(old), volume.tree(new), &Numbered);
    assert!(matches!(
        refused,
        Err(cairnfs_disk::error::Error::Corrupt(_))
    ));
}
