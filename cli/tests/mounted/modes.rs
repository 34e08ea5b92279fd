//! Mode bits: one table of operations, mode bits, file types and callers, run on a mount and on
//! ext4, with equal modes, ACLs and errors required.
//!
//! A caller is a thread with its own credentials: Linux keeps credentials per thread. The names
//! of the objects identify the case; root makes all objects before and reads their state
//! afterwards.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::place::{Place, able, arg, succeed};

pub const OWNER: u32 = 1001;
const OTHER: u32 = 1002;
const GROUP: u32 = 2000;
const ELSEWHERE: u32 = 3000;

const ACCESS: &str = "system.posix_acl_access";

/// Size in bytes of a new regular file: too large for inline data in an inode.
const LEN: usize = 5000;

/// A caller's name and credentials.
pub struct Caller {
    pub name: &'static str,
    uid: u32,
    gid: u32,
    groups: &'static [u32],
}

pub const fn caller(name: &'static str, uid: u32, gid: u32, groups: &'static [u32]) -> Caller {
    Caller {
        name,
        uid,
        gid,
        groups,
    }
}

const CALLERS: [Caller; 7] = [
    caller("root", 0, 0, &[]),
    caller("owner", OWNER, GROUP, &[]),
    caller("owner-supplementary", OWNER, ELSEWHERE, &[4000, GROUP]),
    caller("owner-outside", OWNER, ELSEWHERE, &[4000]),
    caller("other", OTHER, ELSEWHERE, &[]),
    caller("other-in-group", OTHER, GROUP, &[]),
    caller("other-supplementary", OTHER, ELSEWHERE, &[GROUP]),
];

const TYPES: [(&str, FileType); 6] = [
    ("file", FileType::RegularFile),
    ("dir", FileType::Directory),
    ("fifo", FileType::Fifo),
    ("socket", FileType::Socket),
    ("device", FileType::CharacterDevice),
    ("symlink", FileType::Symlink),
];

/// An ACL with these permissions; with an entry for a user if it has a mask.
pub fn list(owner: u16, group: u16, mask: Option<u16>, other: u16) -> Vec<u8> {
    let entry = |tag: u16, perm: u16, id: u32| {
        let (tag, perm, id) = (tag.to_le_bytes(), perm.to_le_bytes(), id.to_le_bytes());
        [&tag[..], &perm[..], &id[..]].concat()
    };
    let mut bytes = 2u32.to_le_bytes().to_vec();
    bytes.extend(entry(0x01, owner, u32::MAX));
    if mask.is_some() {
        bytes.extend(entry(0x02, 6, 4321));
    }
    bytes.extend(entry(0x04, group, u32::MAX));
    if let Some(mask) = mask {
        bytes.extend(entry(0x10, mask, u32::MAX));
    }
    bytes.extend(entry(0x20, other, u32::MAX));
    bytes
}

/// An operation on a path, and the state that it needs there.
struct Operation {
    name: &'static str,
    /// Only for regular files, which have contents to change.
    contents: bool,
    /// The object has an ACL before the operation.
    listed: bool,
    run: fn(&Path) -> rustix::io::Result<()>,
}

pub fn chown(path: &Path, uid: Option<u32>, gid: Option<u32>) -> rustix::io::Result<()> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
}

pub fn chmod(path: &Path, mode: u32) -> rustix::io::Result<()> {
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

fn open(path: &Path) -> rustix::io::Result<File> {
    let opened = File::options().write(true).open(path);
    opened.map_err(|e| Errno::from_io_error(&e).unwrap())
}

fn allocate(path: &Path, flags: FallocateFlags, offset: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(open(path)?, flags, offset, 4096)
}

fn set_list(path: &Path, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(path, ACCESS, value, XattrFlags::empty())
}

const fn on_all(name: &'static str, run: fn(&Path) -> rustix::io::Result<()>) -> Operation {
    Operation {
        name,
        contents: false,
        listed: false,
        run,
    }
}

const fn on_files(name: &'static str, run: fn(&Path) -> rustix::io::Result<()>) -> Operation {
    Operation {
        contents: true,
        ..on_all(name, run)
    }
}

const fn with_list(name: &'static str, run: fn(&Path) -> rustix::io::Result<()>) -> Operation {
    Operation {
        listed: true,
        ..on_all(name, run)
    }
}

const OPERATIONS: [Operation; 27] = [
    on_all("chown-same", |p| chown(p, Some(OWNER), Some(GROUP))),
    on_all("chown-owner", |p| chown(p, Some(OWNER), None)),
    on_all("chown-group", |p| chown(p, None, Some(ELSEWHERE))),
    on_all("chown-away", |p| chown(p, Some(OTHER), Some(ELSEWHERE))),
    on_all("chown-nothing", |p| chown(p, None, None)),
    on_all("chmod-plain", |p| chmod(p, 0o640)),
    on_all("chmod-set-ids", |p| chmod(p, 0o6755)),
    on_all("chmod-no-execute", |p| chmod(p, 0o7666)),
    on_all("setfacl", |p| set_list(p, &list(7, 5, Some(7), 2))),
    on_all("setfacl-narrow", |p| set_list(p, &list(6, 7, Some(2), 2))),
    on_all("setfacl-minimal", |p| set_list(p, &list(6, 4, None, 2))),
    on_all("setfacl-none", |p| rustix::fs::lremovexattr(p, ACCESS)),
    with_list("chmod-of-a-list", |p| chmod(p, 0o2751)),
    with_list("setfacl-again", |p| set_list(p, &list(7, 5, Some(1), 6))),
    with_list("setfacl-away", |p| set_list(p, &list(6, 4, None, 2))),
    with_list("list-removed", |p| rustix::fs::lremovexattr(p, ACCESS)),
    with_list("chown-of-a-list", |p| chown(p, None, Some(GROUP))),
    on_files("write", |p| {
        let written = open(p)?.write_at(b"x", 10);
        written
            .map(|_| ())
            .map_err(|e| Errno::from_io_error(&e).unwrap())
    }),
    on_files("append", |p| {
        let written = open(p)?.write_at(&[7; 9000], LEN as u64);
        written
            .map(|_| ())
            .map_err(|e| Errno::from_io_error(&e).unwrap())
    }),
    on_files("truncate", |p| rustix::fs::ftruncate(open(p)?, 3)),
    on_files("truncate-up", |p| rustix::fs::ftruncate(open(p)?, 70_000)),
    on_files("truncate-same", |p| {
        rustix::fs::ftruncate(open(p)?, LEN as u64)
    }),
    on_files("open-truncating", |p| {
        let opened = File::options().write(true).truncate(true).open(p);
        opened
            .map(|_| ())
            .map_err(|e| Errno::from_io_error(&e).unwrap())
    }),
    on_files("allocate", |p| allocate(p, FallocateFlags::empty(), 8192)),
    on_files("allocate-again", |p| {
        allocate(p, FallocateFlags::KEEP_SIZE, 0)
    }),
    on_files("punch", |p| {
        allocate(p, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0)
    }),
    on_files("copy", |p| {
        let from = File::open(p.with_file_name("source")).unwrap();
        let n = rustix::fs::copy_file_range(from, None, open(p)?, None, 100)?;
        assert_eq!(n, 100);
        Ok(())
    }),
];

/// One row of the table.
#[derive(Clone, Copy)]
struct Case {
    operation: &'static Operation,
    what: &'static str,
    kind: FileType,
    mode: u32,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for operation in &OPERATIONS {
        for (what, kind) in TYPES {
            let special = kind != FileType::RegularFile;
            let follows = operation.name.starts_with("chmod") || operation.listed;
            if (operation.contents && special) || (kind == FileType::Symlink && follows) {
                continue;
            }
            for bits in 0..8 {
                for base in [0o666, 0o676] {
                    cases.push(Case {
                        operation,
                        what,
                        kind,
                        mode: bits << 9 | base,
                    });
                }
            }
        }
    }
    cases
}

impl Case {
    fn path(&self, dir: &Path, caller: &Caller) -> PathBuf {
        let Case { what, mode, .. } = self;
        dir.join(format!(
            "{} {} {what} {mode:o}",
            caller.name, self.operation.name
        ))
    }

    /// Makes the object, as root.
    fn make(&self, path: &Path) {
        match self.kind {
            FileType::RegularFile => fs::write(path, [1; LEN]).unwrap(),
            FileType::Directory => fs::create_dir(path).unwrap(),
            FileType::Symlink => std::os::unix::fs::symlink("nowhere", path).unwrap(),
            kind => {
                let device = rustix::fs::makedev(1, 3);
                rustix::fs::mknodat(CWD, path, kind, Mode::RUSR, device).unwrap();
            }
        }
        chown(path, Some(OWNER), Some(GROUP)).unwrap();
        if self.operation.listed {
            set_list(path, &list(7, 5, Some(6), 6)).unwrap();
        }
        if self.kind != FileType::Symlink {
            chmod(path, self.mode).unwrap();
        }
    }
}

/// Mode, owner, group and ACL of an object. An ACL that is equivalent to the mode counts as none.
fn state(path: &Path) -> String {
    let found = path.symlink_metadata().unwrap();
    let mut value = [0; 200];
    let perm = |shift: u32| (found.mode() >> shift & 7) as u16;
    let list = match rustix::fs::lgetxattr(path, ACCESS, &mut value[..]) {
        Ok(len) if value[..len] == list(perm(6), perm(3), None, perm(0)) => "none".into(),
        Ok(len) => format!("{:?}", &value[4..len]),
        Err(_) => "none".into(),
    };
    format!(
        "{:o} {}:{} list {list}",
        found.mode(),
        found.uid(),
        found.gid()
    )
}

/// Gives the calling thread the credentials of a caller, permanently.
pub fn assume(caller: &Caller) {
    let groups: Vec<Gid> = caller.groups.iter().map(|g| Gid::from_raw(*g)).collect();
    set_thread_groups(&groups).unwrap();
    let (uid, gid) = (Uid::from_raw(caller.uid), Gid::from_raw(caller.gid));
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
}

/// Runs all cases of one caller. Returns the outcome of each by name.
fn run(dir: &Path, caller: &'static Caller) -> BTreeMap<String, String> {
    let cases = cases();
    for case in &cases {
        case.make(&case.path(dir, caller));
    }
    let as_caller = || {
        assume(caller);
        let outcome = |case: &Case| (case.operation.run)(&case.path(dir, caller));
        cases.iter().map(outcome).collect::<Vec<_>>()
    };
    let outcomes = thread::scope(|scope| scope.spawn(as_caller).join().unwrap());
    let result = cases.iter().zip(outcomes).map(|(case, outcome)| {
        let path = case.path(dir, caller);
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let outcome = outcome.map_err(Errno::raw_os_error);
        (name, format!("{outcome:?}, {}", state(&path)))
    });
    result.collect()
}

/// Runs the whole table in a directory that everyone may search.
fn table(dir: &Path) -> BTreeMap<String, String> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let source = dir.join("source");
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o644);
    options
        .open(&source)
        .unwrap()
        .write_all_at(&[3; 1000], 0)
        .unwrap();
    CALLERS.iter().flat_map(|caller| run(dir, caller)).collect()
}

/// An ext4 file system on a loop device.
pub struct Ext4(pub PathBuf);

impl Ext4 {
    pub fn mounted(place: &Place) -> Self {
        let (image, dir) = (place.beside("ext4"), place.beside("reference"));
        File::create(&image).unwrap().set_len(512 << 20).unwrap();
        fs::create_dir(&dir).unwrap();
        succeed(Command::new("mkfs.ext4").args(["-q", "-F", "-N", "65536", arg(&image)]));
        succeed(Command::new("mount").args(["-o", "loop,acl", arg(&image), arg(&dir)]));
        Self(dir)
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(&self.0, flags);
    }
}

/// A difference that FUSE cannot avoid: chown(2) with neither owner nor group on an inode with
/// set-id bits fails elsewhere for callers that are not the owner; here it succeeds and changes
/// nothing.
fn without_fuse_difference(case: &str, result: &str) -> String {
    if case.starts_with("other") && case.contains("chown-nothing") {
        result.split_once(", ").unwrap().1.to_owned()
    } else {
        result.to_owned()
    }
}

/// Asserts that two tables are equal, and prints the differences.
fn compare(expected: &BTreeMap<String, String>, found: &BTreeMap<String, String>) {
    assert_eq!(expected.len(), found.len());
    let both = expected.iter().zip(found);
    let different: Vec<String> = both
        .filter(|((case, expected), (_, found))| {
            without_fuse_difference(case, expected) != without_fuse_difference(case, found)
        })
        .map(|((case, expected), (_, found))| format!("{case}: {found}\n    but ext4: {expected}"))
        .collect();
    let shown = different.iter().take(60).cloned().collect::<Vec<_>>();
    let (n, all) = (different.len(), expected.len());
    assert!(n == 0, "{n} of {all} cases differ:\n{}", shown.join("\n"));
}

/// Contract: posix
#[test]
fn modes_change_as_on_ext4() {
    if !able(&["mkfs.ext4", "mount"]) {
        return;
    }
    let mut place = Place::mounted("1G", "allow_other");
    fs::set_permissions(place.beside(""), fs::Permissions::from_mode(0o711)).unwrap();
    let ext4 = Ext4::mounted(&place);
    let expected = table(&ext4.0);
    let found = table(&place.dir());
    compare(&expected, &found);
    // The kernel's cached attributes equal those in the volume.
    place.remount("allow_other");
    let held = found.iter().map(|(case, result)| {
        let outcome = result.split_once(", ").unwrap().0;
        (
            case.clone(),
            format!("{outcome}, {}", state(&place.at(case))),
        )
    });
    compare(&expected, &held.collect());
    place.finish();
}

/// While mode and ACL change repeatedly, and other threads write to the file and read its
/// attributes, a member of the file's group, to whom neither ever grants access, can never open
/// it.
/// Contract: atomic.attributes
#[test]
fn acl_change_never_grants_extra_access() {
    const ROUNDS: usize = 3000;
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "allow_other");
    for dir in [place.beside(""), place.dir()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
    }
    let path = place.at("secret");
    fs::write(&path, "secret").unwrap();
    chown(&path, Some(OWNER), Some(GROUP)).unwrap();
    chmod(&path, 0o600).unwrap();
    let mut none = [0; 100];
    let result = rustix::fs::lgetxattr(&path, ACCESS, &mut none[..]);
    assert_eq!(result, Err(Errno::NODATA), "ls(1) would mark the file");
    let done = AtomicBool::new(false);
    let (mut tries, mut opened) = (0u64, 0u64);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(&path).unwrap();
            while !done.load(Ordering::Relaxed) {
                file.write_at(b"S", 0).unwrap();
                file.sync_data().unwrap();
                path.metadata().unwrap();
            }
        });
        scope.spawn(|| {
            assume(&caller("member", OTHER, GROUP, &[]));
            while !done.load(Ordering::Relaxed) {
                tries += 1;
                opened += u64::from(File::open(&path).is_ok());
            }
        });
        for _ in 0..ROUNDS {
            set_list(&path, &list(6, 0, Some(6), 0)).unwrap();
            chmod(&path, 0o640).unwrap();
            chmod(&path, 0o660).unwrap();
            set_list(&path, &list(6, 0, None, 0)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(tries > 0);
    assert_eq!(opened, 0, "of {tries} tries");
    place.finish();
}
