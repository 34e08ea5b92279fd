//! Publishing branches and restoring earlier states.
//!
//! Contract: roots.whole

use std::path::PathBuf;

use cairnfs::{ConflictKind, Error, Flags, PublishOptions, Side, Volume};

use crate::tree::{change, plant, tree, unchanged_times};
use crate::{roots, volume};

fn onto_main() -> PublishOptions {
    PublishOptions::default()
}

fn main_of(volume: &Volume) -> Volume {
    volume.open_branch("main").unwrap()
}

/// A volume whose branch `work` has changes of every kind.
fn with_branch() -> (Volume, Volume) {
    let volume = volume();
    plant(&volume);
    let work = volume.branch("work").unwrap();
    change(&work);
    (volume, work)
}

#[test]
fn publish_onto_an_unchanged_base_moves_names() {
    let (volume, work) = with_branch();
    let (before, after) = (tree(&volume), tree(&work));
    let published = volume.publish("work", &onto_main()).unwrap();
    assert!(published.conflicts.is_empty() && !published.merged);
    let kept = published.kept.unwrap();
    assert_eq!(roots(&volume), ["main", &kept]);
    let main = main_of(&volume);
    assert_eq!(tree(&main), after);
    assert_eq!(tree(&volume.open_branch(&kept).unwrap()), before);
    // Who has the old base open cannot change what it was.
    assert!(matches!(
        volume.write("f", "late").unwrap_err().cause(),
        Error::Stale
    ));
    // The branch that was published goes on as main.
    work.write("more", "of main").unwrap();
    assert_eq!(main.read("more").unwrap(), b"of main");
    let back = volume.restore(&kept, "main", &[]).unwrap();
    assert_eq!(tree(&main_of(&volume)), before);
    let again = volume.open_branch(&back).unwrap();
    assert_eq!(again.read("more").unwrap(), b"of main");
}

#[test]
fn publish_onto_a_changed_base_merges() {
    let (volume, work) = with_branch();
    volume.write("dir/own", "of the base").unwrap();
    volume
        .set_permissions("large", std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let after = tree(&work);
    let published = volume.publish("work", &onto_main()).unwrap();
    assert_eq!(published.conflicts, []);
    assert!(published.merged);
    let main = main_of(&volume);
    assert_eq!(main.read("moved/own").unwrap(), b"of the base");
    assert_eq!(main.metadata("large").unwrap().mode() & 0o777, 0o600);
    let mut merged = tree(&main);
    merged.remove(&PathBuf::from("/moved/own")).unwrap();
    for (path, seen) in &after {
        let mut found = merged
            .remove(path)
            .unwrap_or_else(|| panic!("{}", path.display()));
        unchanged_times(&mut found, seen);
        match path.to_str() {
            // It has a name more, and was changed by both.
            Some("/moved") => assert_eq!(found.entries(), seen.entries() + 1),
            Some("/large") => assert_eq!(found.contents(), seen.contents()),
            _ => assert_eq!(&found, seen, "{}", path.display()),
        }
    }
    assert!(merged.is_empty(), "{merged:?}");
    assert_eq!(roots(&volume), ["main", &published.kept.unwrap()]);
}

#[test]
fn conflicts_are_listed_and_change_nothing() {
    let volume = volume();
    for file in ["a", "b", "d/c"] {
        volume.create_dir_all("d").unwrap();
        volume.write(file, "base").unwrap();
    }
    let work = volume.branch("work").unwrap();
    for (volume, text) in [(&volume, "ours"), (&work, "theirs")] {
        volume.write("a", text).unwrap();
        volume.write("d/c", text).unwrap();
        volume.write(format!("new-{text}"), text).unwrap();
    }
    work.remove_file("b").unwrap();
    let before = tree(&volume);
    let dry = PublishOptions {
        dry_run: true,
        ..onto_main()
    };
    let would = volume.publish("work", &dry).unwrap();
    assert!(would.kept.is_none() && !would.merged);
    let refused = volume.publish("work", &onto_main());
    let text = refused.as_ref().unwrap_err().to_string();
    let says =
        "nothing was published because of conflicts: 2; the first at a: both changed the contents";
    assert_eq!(text, says);
    let conflicts = crate::conflicts(refused);
    assert_eq!(would.conflicts, conflicts);
    let found: Vec<(&[u8], &ConflictKind)> =
        conflicts.iter().map(|c| (&c.path[..], &c.kind)).collect();
    let contents = &ConflictKind::Contents;
    assert_eq!(found, [(&b"a"[..], contents), (b"d/c", contents)]);
    assert_eq!(roots(&volume), ["main", "work"]);
    // What was prepared is dropped at once, not by the next opening.
    let unfinished = |root: &&cairnfs::RootInfo| root.writable && root.name.is_none();
    assert_eq!(volume.roots().iter().find(unfinished), None);
    assert_eq!(tree(&main_of(&volume)), before);
    let dry = PublishOptions {
        dry_run: true,
        theirs: vec![".".into()],
        ..onto_main()
    };
    let would = volume.publish("work", &dry).unwrap();
    assert_eq!((would.conflicts, would.kept), (Vec::new(), None));
    assert_eq!(tree(&main_of(&volume)), before);
    let options = PublishOptions {
        ours: vec!["/d".into()],
        theirs: vec!["a".into()],
        ..onto_main()
    };
    let published = volume.publish("work", &options).unwrap();
    assert!(published.kept.is_some());
    let main = main_of(&volume);
    let read = |file| main.read_to_string(file).ok();
    let expected = [
        ("a", Some("theirs")),
        ("b", None),
        ("d/c", Some("ours")),
        ("new-ours", Some("ours")),
        ("new-theirs", Some("theirs")),
    ];
    for (file, contents) in expected {
        assert_eq!(read(file).as_deref(), contents, "{file}");
    }
}

#[test]
fn removed_and_changed_is_a_conflict_of_that_side() {
    let volume = volume();
    volume.write("f", "base").unwrap();
    let work = volume.branch("work").unwrap();
    work.remove_file("f").unwrap();
    volume.write("f", "changed").unwrap();
    let conflicts = crate::conflicts(volume.publish("work", &onto_main()));
    assert_eq!(conflicts[0].kind, ConflictKind::Removed(Side::Theirs));
}

#[test]
fn what_cannot_be_published_is_refused() {
    let volume = volume();
    volume.snapshot("a").unwrap();
    let refused = |branch: &str, onto: &str| {
        let options = PublishOptions {
            onto: Some(onto.into()),
            ..onto_main()
        };
        volume.publish(branch, &options).unwrap_err()
    };
    assert!(matches!(refused("main", "main"), Error::Invalid(_)));
    assert!(matches!(refused("a", "main"), Error::Invalid(_)));
    assert!(matches!(refused("b", "main"), Error::NoRoot { .. }));
    volume.branch("work").unwrap();
    assert!(matches!(refused("work", "a"), Error::Invalid(_)));
    assert!(matches!(
        volume.restore("b", "main", &[]).unwrap_err(),
        Error::NoRoot { .. }
    ));
    assert!(matches!(
        volume.restore("a", "a", &[]).unwrap_err(),
        Error::Invalid(_)
    ));
    assert_eq!(roots(&volume), ["a", "main", "work"]);
}

#[test]
fn several_branches_are_published_one_after_the_other() {
    let volume = volume();
    volume.write("shared", "base").unwrap();
    let branches: Vec<Volume> = (0..4)
        .map(|n| volume.branch(&format!("work{n}")).unwrap())
        .collect();
    for (n, branch) in branches.iter().enumerate() {
        branch.create_dir(format!("dir{n}")).unwrap();
        branch
            .write(format!("dir{n}/f"), vec![n as u8; 100_000])
            .unwrap();
    }
    drop(branches);
    for n in 0..4 {
        let published = volume.publish(&format!("work{n}"), &onto_main()).unwrap();
        assert_eq!(published.conflicts, []);
        assert_eq!(published.merged, n > 0);
    }
    let main = main_of(&volume);
    for n in 0..4 {
        assert_eq!(
            main.read(format!("dir{n}/f")).unwrap(),
            vec![n as u8; 100_000]
        );
    }
    let diff = volume.diff("main", "main").unwrap();
    assert!(diff.report().files.is_empty());
}

#[test]
fn restore_brings_paths_back() {
    let volume = volume();
    plant(&volume);
    volume.set_flags("dir", Flags::IMMUTABLE).unwrap();
    let planted = tree(&volume);
    volume.snapshot("a").unwrap();
    volume.set_flags("dir", Flags::NONE).unwrap();
    change(&volume);
    let changed = tree(&volume);
    let paths = ["moved", "large", "dir/deeper", "one"].map(PathBuf::from);
    let refused = volume.restore("a", "main", &paths).unwrap_err();
    assert_eq!(refused.to_string(), "moved: no such file or directory");
    let kept = volume.restore("a", "main", &paths[1..]).unwrap();
    let main = main_of(&volume);
    let mut restored = tree(&main);
    for path in ["/large", "/dir/deeper", "/dir/deeper/small"] {
        let path = PathBuf::from(path);
        let (seen, before) = (restored.get_mut(&path).unwrap(), &planted[&path]);
        unchanged_times(seen, before);
        assert_eq!(seen, before, "{}", path.display());
    }
    // Among the files restored they are hard links.
    let one = main.metadata("one").unwrap();
    assert_eq!(one.ino(), main.metadata("dir/deeper/three").unwrap().ino());
    assert_eq!(one.nlink(), 2);
    assert_eq!(
        restored[&PathBuf::from("/moved")].entries(),
        changed[&PathBuf::from("/moved")].entries()
    );
    assert_eq!(tree(&volume.open_branch(&kept).unwrap()), changed);
    let numbers = volume
        .open_branch("a")
        .unwrap()
        .metadata("large")
        .unwrap()
        .ino();
    assert_eq!(main.metadata("large").unwrap().ino(), numbers);
}

#[test]
fn restore_of_a_branch_can_be_taken_back() {
    let volume = volume();
    plant(&volume);
    volume.snapshot("a").unwrap();
    let planted = tree(&volume);
    change(&volume);
    let changed = tree(&volume);
    let kept = volume.restore("a", "main", &[]).unwrap();
    assert_eq!(tree(&main_of(&volume)), planted);
    let taken_back = volume.restore(&kept, "main", &[]).unwrap();
    assert_eq!(tree(&main_of(&volume)), changed);
    assert_eq!(tree(&volume.open_branch(&taken_back).unwrap()), planted);
    // The states that were replaced are in the history of main.
    let before = volume.find_root(&format!("main@{kept}")).unwrap();
    assert_eq!(before.name, Some(kept));
}

#[test]
fn branch_is_dropped_right_after_its_last_handle() {
    let volume = Volume::in_memory(64 << 20).unwrap();
    for n in 0..50 {
        let branch = volume.branch("trial").unwrap();
        branch.write("file", vec![n; 100_000]).unwrap();
        let refused = volume.drop_root("trial");
        assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
        drop(branch);
        volume.drop_root("trial").unwrap();
    }
}

/// Of the paths above a conflict the deepest decides which side is taken.
#[test]
fn deepest_path_decides_conflicts() {
    let volume = volume();
    let files = ["a/file", "a/b/file", "a/b/c/file"];
    volume.create_dir_all("a/b/c").unwrap();
    let write = |to: &Volume, text: &str| {
        for file in files {
            to.write(file, text).unwrap();
        }
    };
    write(&volume, "base");
    let work = volume.branch("work").unwrap();
    write(&volume, "ours");
    write(&work, "theirs");
    drop(work);
    let options = PublishOptions {
        ours: vec!["a".into(), "a/b/c".into()],
        theirs: vec![".".into(), "a/b".into(), "a/b/c".into()],
        ..onto_main()
    };
    let published = volume.publish("work", &options).unwrap();
    assert!(published.kept.is_some(), "{:?}", published.conflicts);
    let main = main_of(&volume);
    let found = files.map(|file| main.read_to_string(file).unwrap());
    assert_eq!(found, ["ours", "theirs", "ours"]);
}
