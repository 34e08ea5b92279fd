//! Files in branches and snapshots of a volume that is not mounted, by `VOLUME@NAME:PATH`.

use std::fs;

use cairnfs::Volume;

use crate::place::Place;

/// A volume with the snapshot `old`, the branch `trial` of it, and other contents in `main`.
fn with_trees() -> Place {
    let p = Place::with_volume();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.write("notes", "old\n").unwrap();
    volume.create_dir("dir").unwrap();
    volume.write("dir/below", "below\n").unwrap();
    volume.snapshot("old").unwrap();
    drop(volume.branch("trial").unwrap());
    volume.write("notes", "new\n").unwrap();
    volume.remove_dir_all("dir").unwrap();
    volume.close().unwrap();
    p
}

#[test]
fn snapshots_and_branches_are_read_by_name() {
    let p = with_trees();
    assert_eq!(p.ok(&["cat", "v.img:/notes"]), "new\n");
    for reference in ["old", "main@old", "main@-0s", "trial"] {
        assert_eq!(
            p.ok(&["cat", &format!("v.img@{reference}:/notes")]),
            "old\n"
        );
        assert_eq!(p.ok(&["ls", &format!("v.img@{reference}")]), "dir\nnotes\n");
    }
    let both = p.ok(&[
        "cat",
        "v.img@old:/notes",
        "v.img:/notes",
        "v.img@main:/notes",
    ]);
    assert_eq!(both, "old\nnew\nnew\n");
    p.ok(&["cp", "v.img@old:/notes", "copy"]);
    assert_eq!(fs::read(p.path("copy")).unwrap(), b"old\n");
    p.ok(&["export", "-q", "v.img@old", "out"]);
    assert_eq!(fs::read(p.path("out/dir/below")).unwrap(), b"below\n");
    p.ok(&["export", "-q", "v.img@trial:/dir", "part"]);
    assert_eq!(fs::read(p.path("part/below")).unwrap(), b"below\n");
}

#[test]
fn branches_are_written_and_snapshots_are_not() {
    let p = with_trees();
    fs::write(p.path("file"), "file\n").unwrap();
    p.ok(&["cp", "file", "v.img@trial:/"]);
    p.ok(&["mkdir", "v.img@trial:/made"]);
    p.ok(&["rm", "-r", "v.img@trial:/dir"]);
    fs::create_dir(p.path("in")).unwrap();
    p.ok(&["import", "-q", "in", "v.img@trial:/in"]);
    let names = p.ok(&["ls", "v.img@trial"]);
    assert_eq!(names, "file\nin\nmade\nnotes\n");
    assert_eq!(p.ok(&["ls", "v.img"]), "notes\n");
    for args in [
        &["cp", "file", "v.img@old:/"][..],
        &["mkdir", "v.img@old:/made"],
        &["rm", "v.img@old:/notes"],
        &["import", "in", "v.img@old"],
    ] {
        p.fails(args, 1, "v.img@old:/: is a snapshot, which is read-only");
    }
    p.ok(&["check", "v.img"]);
}

#[test]
fn copies_between_trees_of_one_volume() {
    let p = with_trees();
    p.ok(&["cp", "-r", "v.img@old:/dir", "v.img:/"]);
    assert_eq!(p.ok(&["cat", "v.img:/dir/below"]), "below\n");
    p.ok(&["cp", "v.img:/notes", "v.img@old:/notes", "v.img@trial:/dir"]);
    assert_eq!(p.ok(&["cat", "v.img@trial:/dir/notes"]), "old\n");
    // The same tree by another name.
    let text = "v.img@main:/dir: cannot be copied into itself";
    p.fails(
        &["cp", "-r", "v.img@main:/dir", "v.img:/dir/again"],
        1,
        text,
    );
    p.fails(
        &["cp", "v.img@main:/notes", "v.img:/notes"],
        1,
        "the same file",
    );
    p.ok(&["check", "v.img"]);
}

#[test]
fn what_is_no_tree_is_named() {
    let p = with_trees();
    p.fails(
        &["ls", "v.img@absent"],
        1,
        "v.img: absent: there is no such branch or snapshot; there are: trial, old, main",
    );
    p.fails(&["cat", "v.img@old:/absent"], 1, "v.img@old:/absent");
    p.fails(&["ls", "w.img@old"], 1, "w.img@old: no such volume");
    let slash = "VOLUME@NAME:/PATH";
    p.fails(&["cat", "v.img@old:notes"], 1, slash);
    p.fails(&["cp", "v.img@old:notes", "."], 1, slash);
    p.fails(&["cp", "v.img:/notes", "v.img@trial:notes"], 1, slash);
    assert!(!p.path("v.img@trial:notes").exists());
    p.fails(&["rm", "-r", "v.img@trial"], 1, "cairnfs drop VOLUME NAME");
    let new = ["import", "--create", ".", "new.img@trial:/x"];
    p.fails(&new, 1, "a new volume has no branches or snapshots");
    assert!(!p.path("new.img").exists() && !p.path("new.img@trial").exists());
    fs::write(p.path("v.img@old"), "a file of this name").unwrap();
    p.fails(&["ls", "v.img@old"], 1, "v.img@old: ");
}
