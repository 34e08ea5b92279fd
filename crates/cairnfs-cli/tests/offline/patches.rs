//! Patches of files that take each other's paths, applied by patch(1) and `git apply`.

use std::fs;

use cairnfs::Volume;

use crate::place::Place;

const OLD: [(&str, &str); 5] = [
    ("a", "one\ntwo\nthree\n"),
    ("b", "b1\nb2\n"),
    ("log", "today\n"),
    ("log.1", "yesterday\n"),
    ("dir/f", "below\n"),
];

/// What applies a patch: the directory, and the line.
type Tool = (&'static str, &'static str);

const PATCH: Tool = ("patched", "patch -f -s -p1 -d patched <p");
const GIT: Tool = (
    "applied",
    "cd applied && git init -q . && git apply ../p && rm -rf .git",
);

/// Applies the patch of what `change` does to a copy of the old tree; it must become the new one.
/// Returns the patch.
fn applies(change: impl FnOnce(&Volume)) -> String {
    applies_by(&[PATCH, GIT], change)
}

fn applies_by(tools: &[Tool], change: impl FnOnce(&Volume)) -> String {
    let p = Place::with_volume();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.create_dir("dir").unwrap();
    for (path, text) in OLD {
        volume.write(path, text).unwrap();
    }
    volume.snapshot("old").unwrap();
    change(&volume);
    volume.close().unwrap();
    p.ok(&["snapshot", "v.img", "new"]);
    p.ok(&["export", "-q", "v.img", "new"]);
    let out = p.run(&["diff", "v.img", "old", "new", "-p"]);
    assert_eq!(out.status.code(), Some(1));
    fs::write(p.path("p"), &out.stdout).unwrap();
    let patch = String::from_utf8(out.stdout).unwrap();
    p.ok(&["restore", "-q", "v.img", "old"]);
    for (dir, line) in tools {
        p.ok(&["export", "-q", "v.img", dir]);
        let out = p.shell(line, |_| {});
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(out.status.success(), "{dir}: {said}\n{patch}");
        let out = p.shell(&format!("diff -r --no-dereference new {dir}"), |_| {});
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{dir}: {said}\n{patch}");
    }
    patch
}

/// Editors that keep a backup rename the old file and write a new one.
#[test]
fn backup_beside_a_new_file() {
    let patch = applies(|volume| {
        volume.rename("a", "a~").unwrap();
        volume.write("a", "one\n2\nthree\n").unwrap();
    });
    assert!(patch.contains("-two\n+2\n"), "{patch}");
    assert!(patch.contains("copy from a\ncopy to a~\n"), "{patch}");
}

#[test]
fn backup_replaces_an_older_one() {
    applies(|volume| {
        volume.rename("a", "b").unwrap();
        volume.write("a", "new\n").unwrap();
    });
    applies(|volume| {
        volume.remove_file("b").unwrap();
        volume.hard_link("a", "b").unwrap();
        volume.write("new", "new\n").unwrap();
        volume.rename("new", "a").unwrap();
    });
}

#[test]
fn logs_are_rotated() {
    applies(|volume| {
        volume.rename("log.1", "log.2").unwrap();
        volume.rename("log", "log.1").unwrap();
        volume.write("log", "new\n").unwrap();
    });
    applies(|volume| {
        volume.rename("log", "log.1").unwrap();
        volume.write("log", "new\n").unwrap();
    });
}

#[test]
fn renames_of_each_other_stay_renames() {
    let patch = applies(|volume| {
        volume.rename("a", "t").unwrap();
        volume.rename("b", "a").unwrap();
        volume.rename("t", "b").unwrap();
    });
    assert!(patch.contains("rename from a\nrename to b\n"), "{patch}");
    assert!(!patch.contains("\n@@"), "{patch}");
}

#[test]
fn file_of_another_type_takes_the_path() {
    applies(|volume| {
        volume.rename("a", "a~").unwrap();
        volume.symlink("b", "a").unwrap();
    });
    // patch(1) looks for what is in the way before it applies anything.
    applies_by(&[GIT], |volume| {
        volume.remove_file("dir/f").unwrap();
        volume.remove_dir("dir").unwrap();
        volume.write("dir", "a file now\n").unwrap();
    });
    applies_by(&[GIT], |volume| {
        volume.rename("a", "a~").unwrap();
        volume.create_dir("a").unwrap();
        volume.write("a/f", "below\n").unwrap();
    });
}

/// The files below a renamed directory are not in the report, and others take their paths.
#[test]
fn directory_is_made_anew() {
    let patch = applies(|volume| {
        volume.rename("dir", "dir~").unwrap();
        volume.create_dir("dir").unwrap();
        volume.write("dir/f", "new below\n").unwrap();
    });
    assert!(
        patch.contains("copy from dir/f\ncopy to dir~/f\n"),
        "{patch}"
    );
}
