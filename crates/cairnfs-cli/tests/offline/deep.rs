//! Trees that no path of the kernel reaches, with few descriptors.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

use crate::place::Place;

/// Levels; their names together are longer than `PATH_MAX`.
const DEPTH: usize = 1500;

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

/// A chain of directories with a file in every hundredth, and at the end.
fn dig(path: &Path) {
    std::fs::create_dir(path).unwrap();
    let mut dir = top(path);
    for level in 0..DEPTH {
        mkdirat(&dir, name(level).as_str(), Mode::RWXU).unwrap();
        dir = enter(&dir, &name(level));
        if level % 100 == 99 {
            let flags = OFlags::WRONLY | OFlags::CREATE;
            let file = openat(&dir, "zfile", flags, Mode::RUSR).unwrap();
            File::from(file).write_all(name(level).as_bytes()).unwrap();
        }
    }
}

fn probe(path: &Path) {
    let mut dir = top(path);
    for level in 0..DEPTH {
        dir = enter(&dir, &name(level));
        if level % 100 == 99 {
            let file = openat(&dir, "zfile", OFlags::RDONLY, Mode::empty()).unwrap();
            let mut text = String::new();
            File::from(file).read_to_string(&mut text).unwrap();
            assert_eq!(text, name(level));
        }
    }
}

/// Temporary directories are not removed at such a depth by the library.
struct Dug<'a>(&'a Place);

impl Drop for Dug<'_> {
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
fn trees_of_any_depth_go_in_and_out() {
    let p = Place::with_volume();
    let _dug = Dug(&p);
    dig(&p.path("in"));
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
        probe(&p.path(name));
    }
    p.ok(&["check", "--data", "v.img"]);
}
