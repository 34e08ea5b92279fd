//! Who may do what: one table of callers, modes, lists and calls, run on a mount and on ext4, with
//! equal results required.
//!
//! Every object is first open to all and used by the caller, so that the kernel has cached its
//! names and attributes, and then gets the mode or list of the case: what was permitted before must
//! be refused at once. Callers differ in user, group, supplementary groups and capabilities.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::fs::{Access, AtFlags, CWD, OFlags, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities,
};

use crate::modes::{Caller, Ext4, OWNER, assume, caller, chmod, chown, list};
use crate::place::{Place, able, arg, succeed};

const GROUP: u32 = 2000;
const THIRD: u32 = 1003;
const LISTED: u32 = 4321;
const ACCESS: &str = "system.posix_acl_access";

/// A caller, and the capabilities that it keeps of the superuser's.
struct Who {
    caller: Caller,
    keeps: CapabilitySet,
}

const fn who(name: &'static str, uid: u32, gid: u32, groups: &'static [u32]) -> Who {
    let caller = caller(name, uid, gid, groups);
    let keeps = CapabilitySet::empty();
    Who { caller, keeps }
}

const fn with(keeps: CapabilitySet, who: Who) -> Who {
    Who { keeps, ..who }
}

const CALLERS: [Who; 9] = [
    with(CapabilitySet::all(), who("superuser", 0, 0, &[])),
    who("superuser without capabilities", 0, 0, &[]),
    who("owner", OWNER, 3000, &[]),
    who("other", 1002, 3000, &[]),
    who("member", 1002, GROUP, &[]),
    who("supplementary member", 1002, 3000, &[4000, GROUP]),
    who("listed", LISTED, 3000, &[]),
    with(
        CapabilitySet::DAC_OVERRIDE,
        who("overriding", 1002, 3000, &[]),
    ),
    with(
        CapabilitySet::DAC_READ_SEARCH,
        who("searching", 1002, 3000, &[]),
    ),
];

const MODES: [u32; 14] = [
    0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o700, 0o070, 0o077, 0o007, 0o710, 0o755, 0o1777,
    0o2775,
];

/// Lists in addition to the modes: each names a user, and has a mask.
fn lists() -> [Vec<u8>; 4] {
    [
        list(7, 0, Some(7), 0),
        list(7, 5, Some(4), 0),
        list(0, 7, Some(1), 7),
        list(7, 7, Some(0), 5),
    ]
}

type Call = fn(&Path) -> rustix::io::Result<()>;

fn opens(path: &Path, flags: OFlags) -> rustix::io::Result<()> {
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::open(path, flags | OFlags::CLOEXEC, mode).map(drop)
}

fn may(path: &Path, access: Access) -> rustix::io::Result<()> {
    rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS)
}

fn now() -> Timestamps {
    let now = rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    Timestamps {
        last_access: now,
        last_modification: now,
    }
}

/// Calls on an object of the mode itself, a directory or a file.
const ON_OBJECT: [(&str, Call); 11] = [
    ("stat", |p| rustix::fs::stat(p).map(drop)),
    ("open to read", |p| opens(p, OFlags::RDONLY)),
    ("open to write", |p| opens(p, OFlags::WRONLY)),
    ("open to truncate", |p| {
        opens(p, OFlags::RDWR | OFlags::TRUNC)
    }),
    ("may read", |p| may(p, Access::READ_OK)),
    ("may write", |p| may(p, Access::WRITE_OK)),
    ("may execute", |p| may(p, Access::EXEC_OK)),
    ("touch", |p| {
        rustix::fs::utimensat(CWD, p, &now(), AtFlags::empty())
    }),
    ("getxattr", |p| {
        rustix::fs::getxattr(p, "user.text", &mut [0u8; 8][..]).map(drop)
    }),
    ("setxattr", |p| {
        rustix::fs::setxattr(p, "user.text", b"new", XattrFlags::empty())
    }),
    ("chmod", |p| {
        let mode = rustix::fs::stat(p)?.st_mode;
        chmod(p, mode & 0o7777)
    }),
];

/// Calls below a directory of the mode. Later ones find what earlier ones left.
const BELOW: [(&str, Call); 13] = [
    ("stat below", |p| rustix::fs::stat(p.join("f")).map(drop)),
    ("stat of nothing", |p| {
        rustix::fs::stat(p.join("nothing")).map(drop)
    }),
    ("read below", |p| opens(&p.join("f"), OFlags::RDONLY)),
    ("write below", |p| opens(&p.join("f"), OFlags::WRONLY)),
    ("stat of the directory by itself", |p| {
        rustix::fs::stat(p.join(".")).map(drop)
    }),
    ("through a directory", |p| {
        rustix::fs::stat(p.join("sub/..")).map(drop)
    }),
    ("list", |p| match fs::read_dir(p) {
        Ok(names) => {
            assert!(names.count() >= 3);
            Ok(())
        }
        Err(e) => Err(Errno::from_io_error(&e).unwrap()),
    }),
    ("create", |p| {
        opens(
            &p.join("new"),
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY,
        )
    }),
    ("create again", |p| {
        opens(
            &p.join("new"),
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY,
        )
    }),
    ("link", |p| rustix::fs::link(p.join("f"), p.join("second"))),
    ("rename", |p| {
        rustix::fs::rename(p.join("f"), p.join("moved"))
    }),
    ("unlink", |p| rustix::fs::unlink(p.join("victim"))),
    ("rmdir", |p| rustix::fs::rmdir(p.join("sub"))),
];

/// Gives the calling thread the credentials of a caller, permanently.
fn become_caller(who: &Who) {
    set_keep_capabilities(true).unwrap();
    assume(&who.caller);
    let had = capabilities(None).unwrap().permitted;
    let keeps = who.keeps & had;
    let sets = CapabilitySets {
        effective: keeps,
        permitted: keeps,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).unwrap();
}

/// What decides about an object: a mode, and a list instead of its permissions.
#[derive(Clone)]
struct Rights {
    name: String,
    mode: u32,
    list: Option<Vec<u8>>,
}

fn rights() -> Vec<Rights> {
    let modes = MODES.map(|mode| Rights {
        name: format!("{mode:o}"),
        mode,
        list: None,
    });
    let lists = lists().into_iter().enumerate().map(|(n, list)| Rights {
        name: format!("list {n}"),
        mode: 0o700,
        list: Some(list),
    });
    modes.into_iter().chain(lists).collect()
}

impl Rights {
    fn give(&self, path: &Path) {
        chmod(path, self.mode).unwrap();
        if let Some(list) = &self.list {
            rustix::fs::setxattr(path, ACCESS, list, XattrFlags::empty()).unwrap();
        }
    }
}

/// Makes a file or a directory that everyone may use.
fn open_object(path: &Path, is_dir: bool) {
    let all = |path: &Path, owner| {
        chown(path, Some(owner), Some(GROUP)).unwrap();
        chmod(path, 0o777).unwrap();
    };
    if is_dir {
        fs::create_dir(path).unwrap();
        for (name, owner) in [("f", OWNER), ("victim", THIRD)] {
            fs::write(path.join(name), "text").unwrap();
            all(&path.join(name), owner);
        }
        fs::create_dir(path.join("sub")).unwrap();
        all(&path.join("sub"), OWNER);
    } else {
        fs::write(path, "text").unwrap();
    }
    rustix::fs::setxattr(path, "user.text", b"old", XattrFlags::empty()).unwrap();
    all(path, OWNER);
}

fn calls(is_dir: bool) -> Vec<(&'static str, Call)> {
    let below = BELOW.iter().filter(|_| is_dir);
    ON_OBJECT.iter().chain(below).copied().collect()
}

/// Runs all calls of one caller on one object.
fn run(path: &Path, who: &Who, rights: &Rights, is_dir: bool) -> Vec<(String, String)> {
    open_object(path, is_dir);
    // In the kernel's caches, as the caller's.
    let before = || {
        become_caller(who);
        rustix::fs::stat(path).unwrap();
        opens(path, OFlags::RDONLY).unwrap();
        if is_dir {
            fs::read_dir(path).unwrap().count();
            fs::read(path.join("f")).unwrap();
            assert!(rustix::fs::stat(path.join("nothing")).is_err());
            rustix::fs::stat(path.join("sub/..")).unwrap();
        }
    };
    thread::scope(|scope| scope.spawn(before).join().unwrap());
    rights.give(path);
    let after = || {
        become_caller(who);
        let outcomes = calls(is_dir).into_iter().map(|(name, call)| {
            let outcome = call(path).map_err(Errno::raw_os_error);
            (name, format!("{outcome:?}"))
        });
        outcomes.collect::<Vec<_>>()
    };
    let outcomes = thread::scope(|scope| scope.spawn(after).join().unwrap());
    let kind = if is_dir { "directory" } else { "file" };
    let case = |call: &str| format!("{}: {kind} {}: {call}", who.caller.name, rights.name);
    let named = outcomes
        .into_iter()
        .map(|(call, outcome)| (case(call), outcome));
    named.collect()
}

fn table(dir: &Path) -> BTreeMap<String, String> {
    chmod(dir, 0o755).unwrap();
    let mut found = BTreeMap::new();
    for who in &CALLERS {
        for rights in rights() {
            for is_dir in [false, true] {
                let name = format!("{} {} {is_dir}", who.caller.name, rights.name);
                found.extend(run(&dir.join(name), who, &rights, is_dir));
            }
        }
    }
    found
}

#[test]
fn access_is_granted_and_refused_as_on_ext4() {
    if !able(&["mkfs.ext4", "mount"]) {
        return;
    }
    let place = Place::mounted("256M", "allow_other");
    chmod(&place.beside(""), 0o711).unwrap();
    let ext4 = Ext4::mounted(&place);
    let expected = table(&ext4.0);
    let found = table(&place.dir());
    assert_eq!(expected.len(), found.len());
    let differ = expected.iter().zip(&found).filter(|(e, f)| e != f);
    let differ: Vec<_> = differ
        .map(|((case, expected), (_, found))| format!("{case}: {found}, but ext4: {expected}"))
        .collect();
    let refused = expected
        .values()
        .filter(|outcome| *outcome != "Ok(())")
        .count();
    assert!(refused > 1000, "the table refuses {refused} calls only");
    let (n, all) = (differ.len(), expected.len());
    assert!(n == 0, "{n} of {all} cases differ:\n{}", differ.join("\n"));
    place.finish();
}

/// A user's own namespace gives capabilities over the files of the users that it maps: of this user,
/// and not of others. A request carries none of it.
#[test]
fn capabilities_of_a_user_namespace_count_as_on_ext4() {
    if !able(&["mkfs.ext4", "mount", "unshare", "setpriv"]) {
        return;
    }
    let place = Place::mounted("64M", "allow_other");
    chmod(&place.beside(""), 0o711).unwrap();
    let ext4 = Ext4::mounted(&place);
    let outcomes = |dir: &Path| {
        chmod(dir, 0o755).unwrap();
        let script = "for d in own other; do \
                      for p in $d/f $d/new; do echo x >> $p && echo $p || echo no $p; done; \
                      ls $d && echo listed $d || echo not listed $d; done 2>/dev/null";
        for (name, owner) in [("own", OWNER), ("other", THIRD)] {
            let path = dir.join(name);
            fs::create_dir(&path).unwrap();
            File::create(path.join("f")).unwrap();
            chown(&path.join("f"), Some(owner), Some(owner)).unwrap();
            chown(&path, Some(owner), Some(owner)).unwrap();
            chmod(&path.join("f"), 0).unwrap();
            chmod(&path, 0).unwrap();
        }
        let ids = format!("--reuid={OWNER} --regid={OWNER} --clear-groups");
        let inside = format!(
            "cd {} && setpriv {ids} unshare -r sh -c '{script}'",
            arg(&dir)
        );
        let outside = format!("cd {} && setpriv {ids} sh -c '{script}'", arg(&dir));
        [inside, outside].map(|line| succeed(Command::new("sh").args(["-c", &line])))
    };
    let _copies = crate::place::MOUNT_COPIES.read();
    let expected = outcomes(&ext4.0);
    assert!(expected[0].contains("\nown/new") && !expected[1].contains("\nown/new"));
    assert_eq!(outcomes(&place.dir()), expected);
    place.finish();
}
