//! Compares calls of the library with those of `std::fs` on equal trees, with paths of all kinds:
//! their results, and the trees afterwards. [`differs`] lists the intended differences.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::{Path, PathBuf};

use cairnfs::{Metadata, OpenOptions, Result, Volume};

use super::{fails_with, permissions, volume};

/// The result of a call: a description of the success, or kind and errno of the failure.
type Outcome = std::result::Result<String, (ErrorKind, Option<i32>)>;

/// The name of a call, the call of the library, and that of `std::fs`.
type Call = (
    &'static str,
    fn(&Volume, &str) -> Result<String>,
    fn(&str) -> io::Result<String>,
);

/// The tree before each call.
const DIRS: [&str; 4] = ["d", "d/sub", "empty", "full"];
const FILES: [&str; 3] = ["f", "d/inner", "full/x"];
const LINKS: [(&str, &str); 9] = [
    ("link", "f"),
    ("dirlink", "d"),
    ("slashed", "d/"),
    ("up", "d/sub/.."),
    ("dangling", "none"),
    ("newdir", "none/"),
    ("loop", "pool"),
    ("pool", "loop"),
    ("d/out", "../f"),
];

/// The paths, each of which is tried with each call.
const PATHS: [&str; 51] = [
    "",
    ".",
    "..",
    "./.",
    "/",
    "d",
    "d/",
    "d//",
    "d/.",
    "d/..",
    "d/./",
    "d/../",
    "empty",
    "empty/",
    "empty/.",
    "empty/..",
    "full",
    "full/",
    "f",
    "f/",
    "f/.",
    "f/..",
    "f/x",
    "link",
    "link/",
    "link/.",
    "link/x",
    "dirlink",
    "dirlink/",
    "dirlink/.",
    "dirlink/..",
    "dirlink/inner",
    "slashed",
    "slashed/sub",
    "up",
    "up/inner",
    "d/out",
    "d/sub/../inner",
    "d/sub/../../f",
    ".//d///inner",
    "none",
    "none/",
    "none/.",
    "none/..",
    "none/x",
    "dangling",
    "dangling/",
    "newdir",
    "loop",
    "loop/x",
    "loop/",
];

/// Whether the results differ intentionally.
fn differs(call: &str, path: &str) -> bool {
    let last = path.trim_end_matches('/').rsplit('/').next();
    match call {
        // The library refuses before it removes anything; std empties the directory before it
        // fails.
        "remove_dir_all" => {
            matches!(last, Some("." | "..")) || ["dirlink/", "dangling/", "loop/"].contains(&path)
        }
        // The target is the file's own directory: it is not empty, and it is a directory. The
        // kernel reports only the first.
        "rename a file to" => path == "d",
        // The library refuses to copy a file to itself; std truncates the file.
        "copy to" => ["f", "link", "d/out", "d/sub/../../f"].contains(&path),
        _ => false,
    }
}

fn shown(m: &Metadata) -> String {
    let size = m.is_file().then_some(m.len());
    format!("{:o} {size:?}", m.mode())
}

fn shown_by_std(m: &fs::Metadata) -> String {
    let size = m.is_file().then_some(m.len());
    format!("{:o} {size:?}", m.mode())
}

fn done<T, E>(result: std::result::Result<T, E>) -> std::result::Result<String, E> {
    result.map(|_| String::new())
}

/// Returns the path of `name` in the case's directory.
fn beside(path: &str, name: &str) -> String {
    let top = path.find("/case/").unwrap() + "/case/".len();
    format!("{}{name}", &path[..top])
}

fn reading(file: impl Read) -> io::Result<String> {
    let (mut file, mut text) = (file, String::new());
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn appending(file: impl Write) -> io::Result<String> {
    let mut file = file;
    file.write_all(b"more")?;
    file.flush()?;
    Ok(String::new())
}

/// A call that opens with these options, and then uses the file.
macro_rules! opened {
    ($name:literal, $then:expr $(, $option:ident)+) => {
        (
            $name,
            |v: &Volume, p: &str| {
                let file = v.open_with(p, OpenOptions::new()$(.$option(true))+)?;
                Ok($then(file)?)
            },
            |p: &str| $then(fs::OpenOptions::new()$(.$option(true))+.open(p)?),
        )
    };
}

const CALLS: [Call; 34] = [
    (
        "metadata",
        |v, p| v.metadata(p).map(|m| shown(&m)),
        |p| fs::metadata(p).map(|m| shown_by_std(&m)),
    ),
    (
        "symlink_metadata",
        |v, p| v.symlink_metadata(p).map(|m| shown(&m)),
        |p| fs::symlink_metadata(p).map(|m| shown_by_std(&m)),
    ),
    (
        "exists",
        |v, p| v.exists(p).map(|e| e.to_string()),
        |p| fs::exists(p).map(|e| e.to_string()),
    ),
    (
        "read",
        |v, p| v.read(p).map(|b| format!("{b:?}")),
        |p| fs::read(p).map(|b| format!("{b:?}")),
    ),
    (
        "read_to_string",
        |v, p| v.read_to_string(p),
        |p| fs::read_to_string(p),
    ),
    (
        "write",
        |v, p| done(v.write(p, "new")),
        |p| done(fs::write(p, "new")),
    ),
    (
        "open_file",
        |v, p| Ok(reading(v.open_file(p)?)?),
        |p| reading(fs::File::open(p)?),
    ),
    (
        "create_file",
        |v, p| Ok(appending(v.create_file(p)?)?),
        |p| appending(fs::File::create(p)?),
    ),
    (
        "create_new_file",
        |v, p| Ok(appending(v.create_new_file(p)?)?),
        |p| appending(fs::File::create_new(p)?),
    ),
    opened!("open read", reading, read),
    opened!("open write", appending, write),
    opened!("open read, write", reading, read, write),
    opened!("open append, create", appending, append, create),
    opened!("open truncate", appending, write, truncate),
    opened!("open create_new", appending, write, create_new),
    opened!("open for writing, then read", reading, write),
    opened!("open for nothing", reading, create),
    (
        "create_dir",
        |v, p| done(v.create_dir(p)),
        |p| done(fs::create_dir(p)),
    ),
    (
        "create_dir_all",
        |v, p| done(v.create_dir_all(p)),
        |p| done(fs::create_dir_all(p)),
    ),
    (
        "remove_dir",
        |v, p| done(v.remove_dir(p)),
        |p| done(fs::remove_dir(p)),
    ),
    (
        "remove_dir_all",
        |v, p| done(v.remove_dir_all(p)),
        |p| done(fs::remove_dir_all(p)),
    ),
    (
        "remove_file",
        |v, p| done(v.remove_file(p)),
        |p| done(fs::remove_file(p)),
    ),
    (
        "read_dir",
        |v, p| {
            let names = v.read_dir(p)?.map(|e| {
                let e = e?;
                Ok(format!("{:?} {}", e.file_name(), e.file_type()?.is_dir()))
            });
            sorted(names.collect::<Result<_>>()?)
        },
        |p| {
            let names = fs::read_dir(p)?.map(|e| {
                let e = e?;
                Ok(format!("{:?} {}", e.file_name(), e.file_type()?.is_dir()))
            });
            Ok(sorted(names.collect::<io::Result<_>>()?)?)
        },
    ),
    (
        "read_link",
        |v, p| v.read_link(p).map(|t| t.display().to_string()),
        |p| fs::read_link(p).map(|t| t.display().to_string()),
    ),
    (
        "canonicalize",
        |v, p| v.canonicalize(p).map(|c| below_the_top(&c)),
        |p| fs::canonicalize(p).map(|c| below_the_top(&c)),
    ),
    (
        "symlink",
        |v, p| done(v.symlink("f", p)),
        |p| done(symlink("f", p)),
    ),
    (
        "hard_link from",
        |v, p| done(v.hard_link(p, beside(p, "second"))),
        |p| done(fs::hard_link(p, beside(p, "second"))),
    ),
    (
        "hard_link to",
        |v, p| done(v.hard_link(beside(p, "f"), p)),
        |p| done(fs::hard_link(beside(p, "f"), p)),
    ),
    (
        "rename a file to",
        |v, p| done(v.rename(beside(p, "d/inner"), p)),
        |p| done(fs::rename(beside(p, "d/inner"), p)),
    ),
    (
        "rename a directory to",
        |v, p| done(v.rename(beside(p, "full"), p)),
        |p| done(fs::rename(beside(p, "full"), p)),
    ),
    (
        "rename from",
        |v, p| done(v.rename(p, beside(p, "second"))),
        |p| done(fs::rename(p, beside(p, "second"))),
    ),
    (
        "copy to",
        |v, p| v.copy(beside(p, "f"), p).map(|n| n.to_string()),
        |p| fs::copy(beside(p, "f"), p).map(|n| n.to_string()),
    ),
    (
        "set_permissions",
        |v, p| done(v.set_permissions(p, permissions(0o640))),
        |p| done(fs::set_permissions(p, permissions(0o640))),
    ),
    (
        "lchown",
        |v, p| done(v.lchown(p, None, Some(7))),
        |p| done(lchown(p, None, Some(7))),
    ),
];

fn sorted(mut names: Vec<String>) -> Result<String> {
    names.sort();
    Ok(names.join(", "))
}

/// Returns the path from the case's directory on, which both trees share.
fn below_the_top(path: &Path) -> String {
    let text = path.to_str().unwrap();
    match text.find("/case") {
        Some(at) => text[at..].to_owned(),
        None => "above".to_owned(),
    }
}

fn outcome_of_std(result: io::Result<String>) -> Outcome {
    result.map_err(|e| (e.kind(), e.raw_os_error()))
}

/// Compares results; the errno only if std reports one.
fn same(ours: &Result<String>, theirs: &Outcome) -> bool {
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => ours == theirs,
        (Err(ours), Err((kind, errno))) => {
            ours.kind() == *kind && errno.is_none_or(|errno| errno == ours.errno())
        }
        _ => false,
    }
}

/// The tree below a directory: mode, group, link count, and contents or target by path.
type Tree = BTreeMap<PathBuf, String>;

fn tree(volume: &Volume, top: &str) -> Tree {
    let Ok(walk) = volume.walk(top) else {
        return Tree::new();
    };
    let found = walk.map(|entry| {
        let path = entry.unwrap().path();
        let m = volume.symlink_metadata(&path).unwrap();
        let what = match (m.is_file(), m.is_symlink()) {
            (true, _) => volume.read_to_string(&path).unwrap(),
            (_, true) => volume.read_link(&path).unwrap().display().to_string(),
            _ => String::new(),
        };
        let below = path.strip_prefix(top).unwrap().to_owned();
        (
            below,
            format!(
                "{:o} {} {} {what}",
                m.mode(),
                m.gid(),
                m.nlink() * u64::from(!m.is_dir())
            ),
        )
    });
    found.collect()
}

fn tree_of_std(top: &Path, dir: &Path, found: &mut Tree) {
    let Ok(listing) = fs::read_dir(dir) else {
        return;
    };
    for entry in listing {
        let path = entry.unwrap().path();
        let m = path.symlink_metadata().unwrap();
        let what = match (m.is_file(), m.is_symlink()) {
            (true, _) => fs::read_to_string(&path).unwrap(),
            (_, true) => fs::read_link(&path).unwrap().display().to_string(),
            _ => String::new(),
        };
        let below = path.strip_prefix(top).unwrap().to_owned();
        let links = m.nlink() * u64::from(!m.is_dir());
        found.insert(below, format!("{:o} {} {links} {what}", m.mode(), m.gid()));
        if m.is_dir() {
            tree_of_std(top, &path, found);
        }
    }
}

/// Creates both trees at `dir/case`.
fn prepare(volume: &Volume, dir: &str, host: &Path) {
    volume.create_dir_all(format!("{dir}/case")).unwrap();
    let top = host.join("case");
    fs::create_dir_all(&top).unwrap();
    for name in DIRS {
        volume.create_dir(format!("{dir}/case/{name}")).unwrap();
        fs::create_dir(top.join(name)).unwrap();
        fs::set_permissions(top.join(name), permissions(0o755)).unwrap();
    }
    for name in FILES {
        volume.write(format!("{dir}/case/{name}"), name).unwrap();
        fs::write(top.join(name), name).unwrap();
        fs::set_permissions(top.join(name), permissions(0o644)).unwrap();
    }
    for (name, target) in LINKS {
        volume
            .symlink(target, format!("{dir}/case/{name}"))
            .unwrap();
        symlink(target, top.join(name)).unwrap();
    }
}

#[test]
fn calls_match_std_fs() {
    // The library's default permissions match this mask.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let volume = volume();
    let temporary = tempfile::tempdir().unwrap();
    let long = "n".repeat(255);
    let too_long = "n".repeat(256);
    let more = [
        long.clone(),
        format!("{too_long}/x"),
        format!("d/{too_long}"),
        format!("{long}/"),
        "a\0b".to_owned(),
        too_long,
    ];
    let paths = PATHS.iter().map(|p| (*p).to_owned()).chain(more);
    let mut wrong = Vec::new();
    let mut tried = 0;
    for (path, (name, ours, theirs)) in paths.flat_map(|p| CALLS.map(|c| (p.clone(), c))) {
        if differs(name, &path) {
            continue;
        }
        tried += 1;
        let dir = format!("{tried}");
        let host = temporary.path().join(&dir);
        prepare(&volume, &dir, &host);
        let got = ours(&volume, &format!("/{dir}/case/{path}"));
        let expected = outcome_of_std(theirs(&format!("{}/case/{path}", host.display())));
        let mut left = Tree::new();
        tree_of_std(&host, &host, &mut left);
        let ours_left = tree(&volume, &dir);
        if !same(&got, &expected) {
            wrong.push(format!("{name} {path:?}: {got:?}, std {expected:?}"));
        } else if ours_left != left {
            wrong.push(format!("{name} {path:?} left {ours_left:?}, std {left:?}"));
        }
        volume.remove_dir_all(&dir).unwrap();
        fs::remove_dir_all(&host).unwrap();
    }
    assert!(tried > 1800, "{tried}");
    assert!(wrong.is_empty(), "{} of {tried}: {wrong:#?}", wrong.len());
}

#[test]
fn empty_path_is_refused_like_std() {
    let v = volume();
    // Calls that join another path to it are left out because they never get the empty path.
    for (name, ours, theirs) in CALLS {
        if name.starts_with("hard_link") || name.starts_with("rename") || name.starts_with("copy") {
            continue;
        }
        let (got, expected) = (ours(&v, ""), outcome_of_std(theirs("")));
        assert!(same(&got, &expected), "{name}: {got:?}, std {expected:?}");
    }
    v.write("f", "").unwrap();
    for failed in [
        v.rename("", "g"),
        v.rename("f", ""),
        v.hard_link("", "g"),
        v.hard_link("f", ""),
    ] {
        assert_eq!(failed.unwrap_err().errno(), libc::ENOENT);
    }
}

/// Compares the root of the volume with that of the host.
#[test]
fn root_is_its_own_parent() {
    let v = volume();
    let (ours, theirs) = (
        v.metadata("/").unwrap().ino(),
        fs::metadata("/").unwrap().ino(),
    );
    for path in [
        "/..",
        "/../",
        "/../..",
        "//..//..",
        "/./..",
        "/../.",
        "/../../../..",
    ] {
        assert_eq!(v.metadata(path).unwrap().ino(), ours, "{path}");
        assert_eq!(fs::metadata(path).unwrap().ino(), theirs, "{path}");
        assert_eq!(v.canonicalize(path).unwrap(), Path::new("/"));
        assert_eq!(fs::canonicalize(path).unwrap(), Path::new("/"));
        let expected = fs::remove_dir(path).unwrap_err();
        let refused = v.remove_dir(path).unwrap_err();
        assert_eq!(Some(refused.errno()), expected.raw_os_error(), "{path}");
        let (from, to) = (v.rename(path, "x"), v.rename("none", path));
        let expected = fs::rename(path, "/x").unwrap_err().raw_os_error();
        assert_eq!(Some(from.unwrap_err().errno()), expected, "{path}");
        assert_eq!(Some(to.unwrap_err().errno()), Some(libc::EBUSY), "{path}");
    }
    v.symlink("../../..", "above").unwrap();
    assert_eq!(v.metadata("above").unwrap().ino(), ours);
    v.write("above/f", "in the root").unwrap();
    assert_eq!(v.read_to_string("/f").unwrap(), "in the root");
}

#[test]
fn symlink_depth_limit_matches_kernel() {
    let v = volume();
    let host = tempfile::tempdir().unwrap();
    v.write("0", "end").unwrap();
    fs::write(host.path().join("0"), "end").unwrap();
    for n in 1..=42 {
        let (target, name) = ((n - 1).to_string(), n.to_string());
        v.symlink(&target, &name).unwrap();
        symlink(&target, host.path().join(&name)).unwrap();
        let expected = outcome_of_std(fs::read_to_string(host.path().join(&name)));
        let got = v.read_to_string(&name);
        assert_eq!(got.is_ok(), n <= 40, "{n}");
        assert!(same(&got, &expected), "{n}: {got:?}, std {expected:?}");
    }
}

#[test]
fn symlink_target_length_limit_matches_std() {
    let v = volume();
    let host = tempfile::tempdir().unwrap();
    for len in [1, 255, 256, 4094, 4095, 4096, 5000] {
        let target = "t".repeat(len);
        let name = len.to_string();
        let got = done(v.symlink(&target, &name));
        let expected = outcome_of_std(done(symlink(&target, host.path().join(&name))));
        assert!(same(&got, &expected), "{len}: {got:?}, std {expected:?}");
    }
    fails_with(v.symlink("t".repeat(4096), "l"), libc::ENAMETOOLONG);
}

/// Paths have no maximum length, so that a path returned by a walk of a deep tree can be used.
#[test]
fn path_may_exceed_path_max() {
    let v = volume();
    let deep = format!("{}/", "d".repeat(250)).repeat(20);
    assert_eq!(
        fs::metadata(format!("/{deep}")).unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
    v.create_dir_all(&deep).unwrap();
    v.write(format!("{deep}f"), "deep").unwrap();
    let last = v.walk("/").unwrap().last().unwrap().unwrap().path();
    assert!(last.as_os_str().len() > 5000);
    assert_eq!(v.read_to_string(&last).unwrap(), "deep");
    fails_with(
        v.metadata(format!("{deep}{}", "n".repeat(256))),
        libc::ENAMETOOLONG,
    );
}
