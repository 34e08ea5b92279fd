//! The last argument of a command if it is a symbolic link, a pipe or a device, and the last path
//! components that are refused.
//!
//! Contract: copies

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::place::{Place, pattern};

fn with_file() -> Place {
    let p = Place::with_volume();
    fs::write(p.path("in"), "new").unwrap();
    p.ok(&["cp", "in", "v.img:/f"]);
    p
}

fn assert_link_target(link: &Path, target: &str) {
    assert_eq!(fs::read_link(link).unwrap(), Path::new(target));
}

#[test]
fn link_as_destination_is_followed() {
    let p = with_file();
    fs::create_dir(p.path("d")).unwrap();
    fs::write(p.path("d/target"), "old").unwrap();
    symlink("d/target", p.path("link")).unwrap();
    for options in ["-q", "-a", "-r"] {
        fs::write(p.path("d/target"), "old").unwrap();
        p.ok(&["cp", options, "v.img:/f", "link"]);
        assert_link_target(&p.path("link"), "d/target");
        assert_eq!(fs::read(p.path("d/target")).unwrap(), b"new");
    }
    assert_eq!(fs::read_dir(p.path("d")).unwrap().count(), 1);
    // A name below the destination was not typed and is replaced.
    symlink("target", p.path("d/f")).unwrap();
    fs::write(p.path("d/target"), "old").unwrap();
    p.ok(&["cp", "v.img:/f", "d"]);
    assert!(p.path("d/f").symlink_metadata().unwrap().is_file());
    assert_eq!(fs::read(p.path("d/target")).unwrap(), b"old");
    // Nothing is made through a dangling link, as with cp(1).
    symlink("absent", p.path("dangling")).unwrap();
    p.fails(&["cp", "v.img:/f", "dangling"], 1, "leads to nothing");
    assert_link_target(&p.path("dangling"), "absent");
    assert!(!p.path("absent").exists());
}

#[test]
fn link_inside_volume_as_destination_is_followed() {
    let p = with_file();
    fs::create_dir_all(p.path("t/d")).unwrap();
    fs::write(p.path("t/d/target"), "old").unwrap();
    symlink("d/target", p.path("t/link")).unwrap();
    symlink("/link", p.path("t/d/up")).unwrap();
    symlink("absent", p.path("t/dangling")).unwrap();
    p.ok(&["import", "-q", "t", "v.img"]);
    p.ok(&["cp", "in", "v.img:/d/up"]);
    assert_eq!(p.ok(&["cat", "v.img:/d/target"]), "new");
    assert!(p.ok(&["ls", "-l", "v.img:/"]).contains("link -> d/target"));
    assert!(p.ok(&["ls", "-l", "v.img:/d"]).contains("up -> /link"));
    p.fails(&["cp", "in", "v.img:/dangling"], 1, "leads to nothing");
    let same = "source and destination are the same file";
    p.fails(&["cp", "v.img:/d/target", "v.img:/link"], 1, same);
}

#[test]
fn pipes_and_character_devices_are_written_to() {
    let p = with_file();
    let large = pattern(300_000);
    fs::write(p.path("large"), &large).unwrap();
    p.ok(&["cp", "large", "v.img:/large"]);
    symlink("/dev/null", p.path("null")).unwrap();
    p.ok(&["cp", "v.img:/f", "null"]);
    assert_link_target(&p.path("null"), "/dev/null");
    symlink("/proc/self/fd/1", p.path("so")).unwrap();
    let out = p.shell("\"$cairnfs\" cp v.img:/large so | cat", |_| {});
    assert!(out.stdout == large, "{:?}", out.stderr);
    assert_link_target(&p.path("so"), "/proc/self/fd/1");
    // A file that is standard output is written in place.
    let line = "(echo a; \"$cairnfs\" cp v.img:/f so; echo b) > out && cat out";
    assert_eq!(p.shell(line, |_| {}).stdout, b"a\nnewb\n");
    let line = "mkfifo p; cat p > got & \"$cairnfs\" cp v.img:/large p && wait && test -p p";
    assert!(p.shell(line, |_| {}).status.success());
    assert!(fs::read(p.path("got")).unwrap() == large);
}

#[test]
fn export_follows_link_at_archive_path() {
    let p = with_file();
    symlink("/proc/self/fd/1", p.path("so.tar")).unwrap();
    for options in ["-q", "-qf"] {
        let line = format!("\"$cairnfs\" export {options} v.img so.tar | tar t");
        let out = p.shell(&line, |_| {});
        let names = String::from_utf8_lossy(&out.stdout);
        assert!(names.contains('f'), "{names}{:?}", out.stderr);
        assert_link_target(&p.path("so.tar"), "/proc/self/fd/1");
    }
    fs::create_dir(p.path("d")).unwrap();
    fs::write(p.path("d/real.tar"), "old").unwrap();
    symlink("d/real.tar", p.path("link.tar")).unwrap();
    p.fails(&["export", "v.img", "link.tar"], 1, "exists");
    p.ok(&["export", "-qf", "v.img", "link.tar"]);
    assert_link_target(&p.path("link.tar"), "d/real.tar");
    assert!(fs::read(p.path("d/real.tar")).unwrap().len() > 3);
    assert_eq!(fs::read_dir(p.path("d")).unwrap().count(), 1);
}

#[test]
fn rm_refuses_paths_ending_in_dots() {
    let p = with_file();
    p.ok(&["mkdir", "-p", "v.img:/a/b"]);
    p.ok(&["cp", "in", "v.img:/a/b/f"]);
    for name in [
        ".",
        "..",
        "/",
        "/.",
        "/a/b/.",
        "/a/b/..",
        "/a/b/./",
        "/a/b/..//",
    ] {
        let place = format!("v.img:{name}");
        for options in ["-r", "-rf"] {
            let out = p.run(&["rm", options, &place]);
            assert_eq!(out.status.code(), Some(1), "{place}");
        }
    }
    p.fails(&["rm", "-r", "v.img:/a/b/."], 1, "'.' and '..'");
    assert_eq!(p.ok(&["cat", "v.img:/a/b/f"]), "new");
    // A trailing slash requires a directory.
    p.fails(&["rm", "v.img:/a/b/f/"], 1, "not a directory");
    p.fails(&["cat", "v.img:/f/."], 1, "not a directory");
    p.fails(&["cat", "v.img:/f/../f"], 1, "not a directory");
    p.fails(&["mkdir", "v.img:/new/."], 1, "no such");
    p.ok(&["rm", "-r", "v.img:/a/b/"]);
    assert_eq!(p.ok(&["ls", "v.img:/a"]), "");
}

#[test]
fn trailing_slash_of_destination_requires_directory() {
    let p = with_file();
    fs::write(p.path("plain"), "old").unwrap();
    for place in ["v.img:/f/", "v.img:/f/.", "v.img:/x//", "v.img:/x/."] {
        let out = p.run(&["cp", "in", place]);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(text.contains("is not a directory"), "{text}");
        assert!(!text.contains("several"), "{text}");
    }
    for place in ["plain/", "plain/.", "absent/", "absent/."] {
        let out = p.run(&["cp", "v.img:/f", place]);
        let text = String::from_utf8_lossy(&out.stderr).to_lowercase();
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(text.contains("not a directory"), "{text}");
    }
    assert_eq!(fs::read(p.path("plain")).unwrap(), b"old");
    assert!(!p.path("absent").exists());
    p.fails(&["cp", "in", "plain", "v.img:/f"], 1, "several sources");
}
