//! Trees deeper than `PATH_MAX`, with few descriptors.
//!
//! Contract: copies

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use cairnfs_tier::size;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

use crate::place::Place;

/// Number of levels; their names together are longer than `PATH_MAX`.
fn depth() -> usize {
    size(600, 1500)
}

fn name(level: usize) -> String {
    format!("level{level}")
}

fn enter(dir: &OwnedFd, name: &str) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    openat(dir, name, flags, Mode::empty()).unwrap()
}

fn top(path: &Path) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    openat(CWD, path, flags, Mode::empty()).unwrap()
}

/// Makes a chain of directories with a file in every hundredth.
fn make_deep_tree(path: &Path) {
    std::fs::create_dir(path).unwrap();
    let mut dir = top(path);
    for level in 0..depth() {
        mkdirat(&dir, name(level).as_str(), Mode::RWXU).unwrap();
        dir = enter(&dir, &name(level));
        if level % 100 == 99 {
            let flags = OFlags::WRONLY | OFlags::CREATE;
            let file = openat(&dir, "zfile", flags, Mode::RUSR).unwrap();
            File::from(file).write_all(name(level).as_bytes()).unwrap();
        }
    }
}

fn verify_deep_tree(path: &Path) {
    let mut dir = top(path);
    for level in 0..depth() {
        dir = enter(&dir, &name(level));
        if level % 100 == 99 {
            let file = openat(&dir, "zfile", OFlags::RDONLY, Mode::empty()).unwrap();
            let mut text = String::new();
            File::from(file).read_to_string(&mut text).unwrap();
            assert_eq!(text, name(level));
        }
    }
}

/// Removes the deep trees with rm(1): the temporary directory's own removal fails at such a
/// depth.
struct DeepTree<'a>(&'a Place);

impl Drop for DeepTree<'_> {
    fn drop(&mut self) {
        for name in ["in", "out", "copy", "from-tar"] {
            let _ = Command::new("rm")
                .arg("-rf")
                .arg(self.0.path(name))
                .status();
        }
    }
}

#[test]
fn deep_trees_are_copied_in_and_out() {
    let p = Place::with_volume();
    let _cleanup = DeepTree(&p);
    make_deep_tree(&p.path("in"));
    for args in [
        "import -q in v.img:/x",
        "export -q v.img:/x out",
        "cp -a v.img:/x copy",
        "cp -a copy v.img:/y",
        "export -q v.img:/y out.tar",
        "import -q --create --size 64M out.tar w.img",
        "export -q w.img from-tar",
    ] {
        let out = p.shell(&format!("ulimit -n 128; exec \"$cairnfs\" {args}"), |_| {});
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args}: {text}");
    }
    for name in ["out", "copy", "from-tar"] {
        verify_deep_tree(&p.path(name));
    }
    p.ok(&["check", "--data", "v.img"]);
}
