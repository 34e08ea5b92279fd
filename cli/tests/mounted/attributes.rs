//! Extended attributes: one table of names, operations, file types and callers, run on a mount
//! and on ext4, with equal results required; and the limit on the number of names of an inode.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::thread;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, XattrFlags};
use rustix::io::Errno;

use crate::modes::{Caller, Ext4, assume, caller, list};
use crate::place::{Place, able};

const OWNER: u32 = 1001;
const GROUP: u32 = 2000;

const CALLERS: [Caller; 4] = [
    caller("root", 0, 0, &[]),
    caller("owner", OWNER, GROUP, &[]),
    caller("member", 1002, GROUP, &[]),
    caller("other", 1002, 3000, &[]),
];

const NAMES: [&str; 12] = [
    "user.x",
    "user.",
    "trusted.x",
    "security.x",
    "system.x",
    "system.",
    "system.nfs4_acl",
    "system.posix_acl_access",
    "system.posix_acl_default",
    "system.posix_acl_accessory",
    "nonsense.x",
    "nonsense",
];

const OPERATIONS: [&str; 5] = ["set", "replace", "get", "remove", "list"];

/// Types of objects, with their modes.
const OBJECTS: [(&str, u32); 10] = [
    ("file", 0o600),
    ("file", 0o640),
    ("file", 0o666),
    ("dir", 0o700),
    ("dir", 0o777),
    ("dir", 0o1777),
    ("fifo", 0o666),
    ("socket", 0o666),
    ("device", 0o666),
    ("symlink", 0o777),
];

fn value(name: &str) -> Vec<u8> {
    if name.starts_with("system.posix_acl") {
        list(7, 5, Some(7), 2)
    } else {
        b"value".to_vec()
    }
}

fn make(path: &Path, kind: &str, mode: u32) {
    let special = |kind| {
        let device = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, path, kind, Mode::RUSR, device).unwrap();
    };
    match kind {
        "file" => drop(File::create(path).unwrap()),
        "dir" => fs::create_dir(path).unwrap(),
        "symlink" => symlink("nowhere", path).unwrap(),
        "fifo" => special(FileType::Fifo),
        "socket" => special(FileType::Socket),
        _ => special(FileType::CharacterDevice),
    }
    let (uid, gid) = (Uid::from_raw(OWNER), Gid::from_raw(GROUP));
    rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    if kind != "symlink" {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn set(path: &Path, name: &str, flags: XattrFlags) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(path, name, &value(name), flags)
}

/// The names that listing returns to the calling thread, sorted.
fn names(path: &Path) -> rustix::io::Result<Vec<String>> {
    let mut bytes = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut bytes[..])?;
    let text = String::from_utf8(bytes[..len].to_vec()).unwrap();
    let mut names: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

/// Runs an operation and returns its result as text.
fn operate(path: &Path, operation: &str, name: &str) -> String {
    let mut bytes = [0; 100];
    match operation {
        "set" => format!("{:?}", set(path, name, XattrFlags::empty())),
        "replace" => format!("{:?}", set(path, name, XattrFlags::REPLACE)),
        "get" => {
            let found = rustix::fs::lgetxattr(path, name, &mut bytes[..]);
            format!("{:?}", found.map(|len| &bytes[..len]))
        }
        "remove" => format!("{:?}", rustix::fs::lremovexattr(path, name)),
        _ => format!("{:?}", names(path)),
    }
}

/// Runs the whole table in a directory that everyone may search. Returns the outcome of each case
/// by name.
fn table(dir: &Path) -> BTreeMap<String, String> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let mut results = BTreeMap::new();
    for caller in &CALLERS {
        let mut cases = Vec::new();
        for operation in OPERATIONS {
            for name in NAMES {
                for (kind, mode) in OBJECTS {
                    let case = format!("{} {operation} {name} {kind} {mode:o}", caller.name);
                    make(&dir.join(&case), kind, mode);
                    let before = match operation {
                        "set" => Ok(()),
                        _ => set(&dir.join(&case), name, XattrFlags::empty()),
                    };
                    cases.push((case, operation, name, before));
                }
            }
        }
        let as_caller = || {
            assume(caller);
            let outcome = |(case, operation, name, _): &(String, &str, &str, _)| {
                operate(&dir.join(case), operation, name)
            };
            cases.iter().map(outcome).collect::<Vec<_>>()
        };
        let outcomes = thread::scope(|scope| scope.spawn(as_caller).join().unwrap());
        for ((case, _, _, before), outcome) in cases.iter().zip(outcomes) {
            let after = names(&dir.join(case));
            let line = format!("before {before:?}, returned {outcome}, after {after:?}");
            results.insert(case.clone(), line);
        }
    }
    results
}

/// Contract: posix
#[test]
fn xattr_permissions_are_as_on_ext4() {
    if !able(&["mkfs.ext4", "mount"]) {
        return;
    }
    let place = Place::mounted("256M", "allow_other");
    fs::set_permissions(place.beside(""), fs::Permissions::from_mode(0o711)).unwrap();
    let ext4 = Ext4::mounted(&place);
    let (expected, found) = (table(&ext4.0), table(&place.dir()));
    let both = expected.iter().zip(&found);
    let different: Vec<String> = both
        .filter(|(expected, found)| expected != found)
        .map(|((case, expected), (_, found))| format!("{case}: {found}\n    but ext4: {expected}"))
        .collect();
    let shown = different.iter().take(60).cloned().collect::<Vec<_>>();
    let (n, all) = (different.len(), expected.len());
    assert!(n == 0, "{n} of {all} cases differ:\n{}", shown.join("\n"));
    place.finish();
}

#[test]
fn xattr_names_beyond_list_limit_are_refused() {
    const LIST_MAX: usize = 1 << 16;
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    let path = place.at("f");
    File::create(&path).unwrap();
    let set = |n: usize| set(&path, &format!("user.{n:0>245}"), XattrFlags::empty());
    let fit = LIST_MAX / 251;
    for n in 0..fit {
        set(n).unwrap();
    }
    assert_eq!(set(fit), Err(Errno::NOSPC));
    assert_eq!(names(&path).unwrap().len(), fit);
    assert_eq!(set(7), Ok(()), "a name that is there takes no more");
    place.remount("");
    assert_eq!(set(fit), Err(Errno::NOSPC));
    rustix::fs::removexattr(&path, format!("user.{:0>245}", 9)).unwrap();
    assert_eq!(set(fit), Ok(()));
    assert_eq!(set(fit + 1), Err(Errno::NOSPC));
    assert_eq!(names(&path).unwrap().len(), fit);
    place.finish();
}
