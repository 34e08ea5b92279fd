//! Patches of files that take each other's paths, applied by patch(1) and `git apply`.

use std::fs;

use cairnfs::Volume;
use cairnfs_disk::types::FileKind;
use cairnfs_tier::size_from;

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
    applies_from(tools, |_| {}, change)
}

/// As [`applies_by`], from an old tree to which `grow` adds.
fn applies_from(
    tools: &[Tool],
    grow: impl FnOnce(&Volume),
    change: impl FnOnce(&Volume),
) -> String {
    let p = Place::with_volume();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.create_dir("dir").unwrap();
    for (path, text) in OLD {
        volume.write(path, text).unwrap();
    }
    grow(&volume);
    volume.snapshot("old").unwrap();
    change(&volume);
    volume.close().unwrap();
    p.ok(&["snapshot", "v.img", "new"]);
    p.ok(&["export", "-q", "v.img", "new"]);
    let out = p.run(&["diff", "v.img", "old", "new", "-p"]);
    assert!(matches!(out.status.code(), Some(0 | 1)));
    fs::write(p.path("p"), &out.stdout).unwrap();
    let patch = String::from_utf8(out.stdout).unwrap();
    p.ok(&["restore", "-q", "v.img", "old"]);
    // A patch has no empty directories, and an empty one is refused.
    let line = "find new -type d -empty -delete; mkdir -p new";
    assert!(p.shell(line, |_| {}).status.success());
    let tools = tools.iter().filter(|_| !patch.is_empty());
    for (dir, line) in tools {
        p.ok(&["export", "-q", "v.img", dir]);
        let out = p.shell(line, |_| {});
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(out.status.success(), "{dir}: {said}\n{patch}");
        p.shell(&format!("find {dir} -type d -empty -delete"), |_| {});
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

/// Readers look for the type of what is renamed, and for links above a new path.
#[test]
fn symbolic_link_is_renamed() {
    let rename = |volume: &Volume| volume.rename("link", "renamed").unwrap();
    let patch = applies_from(&[PATCH, GIT], link, rename);
    assert!(
        patch.contains("rename from link\nrename to renamed\n"),
        "{patch}"
    );
    applies_from(&[PATCH, GIT], link, |volume| {
        rename(volume);
        volume.write("link", "a file now\n").unwrap();
    });
    applies_from(&[GIT], link, |volume| {
        rename(volume);
        volume.create_dir("link").unwrap();
        volume.write("link/f", "below\n").unwrap();
    });
}

#[test]
fn file_moves_into_the_directory_that_takes_its_path() {
    for (name, tools) in [("link", &[GIT][..]), ("a", &[GIT])] {
        applies_from(tools, link, |volume| {
            volume.rename(name, "t").unwrap();
            volume.create_dir(name).unwrap();
            volume.rename("t", format!("{name}/t")).unwrap();
        });
    }
}

fn link(volume: &Volume) {
    volume.symlink("dir", "link").unwrap();
}

/// Random changes of files, links and directories that take each other's paths.
#[test]
fn random_trees_are_patched() {
    let first = size_from("CAIRNFS_PATCH_SEED", 1_u64, 1);
    for seed in first..first + size_from("CAIRNFS_PATCH_TREES", 12, 60) {
        let mut random = Random(seed);
        let grow = |volume: &Volume| (0..12).for_each(|_| step(volume, &mut random));
        let mut after = Random(seed ^ 0x5eed);
        let change = |volume: &Volume| (0..10).for_each(|_| step(volume, &mut after));
        println!("seed {seed}");
        applies_from(&[GIT], grow, change);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Makes, removes or renames something; nothing if that is not possible.
fn step(volume: &Volume, random: &mut Random) {
    const NAMES: [&str; 5] = ["a", "b", "dir", "link", "x"];
    let mut path = |depth: usize| {
        let parts = 1 + random.below(depth);
        let parts: Vec<&str> = (0..parts)
            .map(|_| NAMES[random.below(NAMES.len())])
            .collect();
        parts.join("/")
    };
    let (one, other) = (path(2), path(3));
    let kind = |path: &str| {
        volume
            .symlink_metadata(path)
            .ok()
            .map(|meta| meta.file_type())
    };
    let remove = |path: &str| match kind(path) {
        Some(FileKind::Directory) => volume.remove_dir_all(path).unwrap(),
        Some(_) => volume.remove_file(path).unwrap(),
        None => {}
    };
    match random.below(7) {
        0 => remove(&one),
        1 | 2 => {
            let text = format!("{one}\n{}\n", random.below(1000));
            // Not through a link.
            if kind(&one).is_none_or(|kind| kind == FileKind::File) {
                let _ = volume.write(&one, text);
            }
        }
        3 => {
            let _ = volume.symlink(format!("to{}", random.below(9)), &one);
        }
        4 => {
            let _ = volume.create_dir(&one);
        }
        5 => {
            let _ = volume.rename(&one, &other);
        }
        // The path is left and taken by a directory, with what was there in it, or not.
        _ => {
            if kind(&one).is_some() && volume.rename(&one, "moved").is_ok() {
                let _ = volume.create_dir(&one);
                let to = match random.below(2) {
                    0 => format!("{one}/x"),
                    _ => "b".to_owned(),
                };
                remove(&to);
                if volume.rename("moved", to).is_err() {
                    remove("moved");
                }
                let _ = volume.write(format!("{one}/new"), "new\n");
            }
        }
    }
}
