//! Inode flags: one table of calls, flags and callers, run on a mount and on ext4. Errors and
//! effects must be the same, except for the differences listed here and in docs/differences.md.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, RenameFlags, StatxFlags,
    Timespec, Timestamps, XattrFlags, ioctl_getflags, ioctl_setflags,
};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::modes::{Ext4, OWNER, assume, caller, chmod, chown};
use crate::place::{Place, able, arg, said, shell, succeed};
use crate::writes::compile;

type Outcome = rustix::io::Result<()>;

/// A call. Its argument is the directory of the case, which holds the directory `d`, with the
/// file `f` and the empty directory `s`, and the file `other`.
type Run = fn(&Path) -> Outcome;

fn open(
    path: &Path,
    set: impl FnOnce(&mut OpenOptions) -> &mut OpenOptions,
) -> Result<File, Errno> {
    let mut options = File::options();
    let opened = set(&mut options).open(path);
    opened.map_err(|e| Errno::from_io_error(&e).unwrap())
}

fn done<T>(result: std::io::Result<T>) -> Outcome {
    let refused = |e| Errno::from_io_error(&e).unwrap();
    result.map(drop).map_err(refused)
}

fn allocate(path: &Path, flags: FallocateFlags) -> Outcome {
    let file = open(path, |o| o.append(true))?;
    rustix::fs::fallocate(file, flags, 5000, 9000)
}

fn times(path: &Path, [atime, mtime]: [i64; 2]) -> Outcome {
    let at = |nanos: i64| match nanos {
        0 => Timespec {
            tv_sec: 7,
            tv_nsec: 7,
        },
        special => Timespec {
            tv_sec: 0,
            tv_nsec: special,
        },
    };
    let times = Timestamps {
        last_access: at(atime),
        last_modification: at(mtime),
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())
}

const NOW: i64 = rustix::fs::UTIME_NOW;
const OMIT: i64 = rustix::fs::UTIME_OMIT;

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> Outcome {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
}

/// An ACL for owner, user 4321, group and others.
fn list() -> Vec<u8> {
    let entries = [
        (0x01, 6, u32::MAX),
        (0x02, 4, 4321),
        (0x04, 4, u32::MAX),
        (0x10, 4, u32::MAX),
        (0x20, 4, u32::MAX),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        let (tag, perm): (u16, u16) = (tag, perm);
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Outcome {
    rustix::fs::renameat_with(CWD, from, CWD, to, flags)
}

const CALLS: &[(&str, Run)] = &[
    ("open for writing", |p| {
        open(&p.join("d/f"), |o| o.write(true)).map(drop)
    }),
    ("open for appending", |p| {
        open(&p.join("d/f"), |o| o.append(true)).map(drop)
    }),
    ("may write", |p| {
        rustix::fs::access(p.join("d/f"), Access::WRITE_OK)
    }),
    ("may write the directory", |p| {
        rustix::fs::access(p.join("d"), Access::WRITE_OK)
    }),
    ("write", |p| {
        done(open(&p.join("d/f"), |o| o.write(true))?.write_at(b"x", 0))
    }),
    ("append", |p| {
        done(open(&p.join("d/f"), |o| o.append(true))?.write_all(b"x"))
    }),
    ("append much", |p| {
        done(open(&p.join("d/f"), |o| o.append(true))?.write_all(&vec![7; 3 << 20]))
    }),
    ("write directly", |p| {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let file = open(&p.join("d/f"), |o| o.write(true).custom_flags(direct))?;
        done(file.write_at(&[], 0))?;
        done(open(&p.join("d/f"), |o| o.write(true))?.write_at(b"x", 0))
    }),
    ("open truncating", |p| {
        open(&p.join("d/f"), |o| o.write(true).truncate(true)).map(drop)
    }),
    ("open making", |p| {
        open(&p.join("d/f"), |o| o.append(true).create(true)).map(drop)
    }),
    ("truncate", |p| {
        rustix::fs::ftruncate(open(&p.join("d/f"), |o| o.append(true))?, 3)
    }),
    ("truncate up", |p| {
        rustix::fs::ftruncate(open(&p.join("d/f"), |o| o.append(true))?, 30_000)
    }),
    ("allocate", |p| {
        allocate(&p.join("d/f"), FallocateFlags::empty())
    }),
    ("allocate, keep size", |p| {
        allocate(&p.join("d/f"), FallocateFlags::KEEP_SIZE)
    }),
    ("punch", |p| {
        allocate(
            &p.join("d/f"),
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        )
    }),
    ("zero", |p| {
        allocate(&p.join("d/f"), FallocateFlags::ZERO_RANGE)
    }),
    ("copy", |p| {
        let to = open(&p.join("d/f"), |o| o.write(true))?;
        let from = open(&p.join("other"), |o| o.read(true))?;
        rustix::fs::copy_file_range(from, None, to, None, 3).map(drop)
    }),
    ("chmod", |p| chmod(&p.join("d/f"), 0o600)),
    ("chmod the directory", |p| chmod(&p.join("d"), 0o700)),
    ("chown", |p| chown(&p.join("d/f"), Some(7), Some(7))),
    ("chown nothing", |p| chown(&p.join("d/f"), None, None)),
    ("utimes", |p| times(&p.join("d/f"), [0, 0])),
    ("utimes now", |p| times(&p.join("d/f"), [NOW, NOW])),
    ("utimes mtime now", |p| times(&p.join("d/f"), [OMIT, NOW])),
    ("utimes of the directory", |p| {
        times(&p.join("d"), [0, OMIT])
    }),
    ("setxattr", |p| set_xattr(&p.join("d/f"), "user.b", b"2")),
    ("setxattr of the directory", |p| {
        set_xattr(&p.join("d"), "user.b", b"2")
    }),
    ("setxattr trusted", |p| {
        set_xattr(&p.join("d/f"), "trusted.b", b"2")
    }),
    ("removexattr", |p| {
        rustix::fs::removexattr(p.join("d/f"), "user.a")
    }),
    ("setfacl", |p| {
        set_xattr(&p.join("d/f"), "system.posix_acl_access", &list())
    }),
    ("setfacl default", |p| {
        set_xattr(&p.join("d"), "system.posix_acl_default", &list())
    }),
    ("link", |p| {
        done(fs::hard_link(p.join("d/f"), p.join("link")))
    }),
    ("link into", |p| {
        done(fs::hard_link(p.join("other"), p.join("d/new")))
    }),
    ("unlink", |p| done(fs::remove_file(p.join("d/f")))),
    ("rmdir", |p| done(fs::remove_dir(p.join("d/s")))),
    ("rmdir the directory", |p| done(fs::remove_dir(p.join("d")))),
    ("rename away", |p| {
        rename(&p.join("d/f"), &p.join("new"), RenameFlags::empty())
    }),
    ("rename within", |p| {
        rename(&p.join("d/f"), &p.join("d/new"), RenameFlags::empty())
    }),
    ("rename over", |p| {
        rename(&p.join("other"), &p.join("d/f"), RenameFlags::empty())
    }),
    ("rename over nothing", |p| {
        rename(&p.join("other"), &p.join("d/new"), RenameFlags::NOREPLACE)
    }),
    ("rename into", |p| {
        rename(&p.join("other"), &p.join("d/new"), RenameFlags::empty())
    }),
    ("rename to itself", |p| {
        rename(&p.join("d/f"), &p.join("d/f"), RenameFlags::empty())
    }),
    ("rename the directory", |p| {
        rename(&p.join("d"), &p.join("new"), RenameFlags::empty())
    }),
    ("exchange", |p| {
        rename(&p.join("d/f"), &p.join("other"), RenameFlags::EXCHANGE)
    }),
    ("leave a whiteout", |p| {
        rename(&p.join("d/f"), &p.join("new"), RenameFlags::WHITEOUT)
    }),
    ("create", |p| done(File::create(p.join("d/new")))),
    ("create what is there", |p| {
        done(File::create_new(p.join("d/f")))
    }),
    ("mkdir", |p| done(fs::create_dir(p.join("d/new")))),
    ("mknod", |p| {
        rustix::fs::mknodat(CWD, p.join("d/new"), FileType::Fifo, Mode::RUSR, 0)
    }),
    ("symlink", |p| done(symlink("f", p.join("d/new")))),
    ("read", |p| done(fs::read(p.join("d/f")))),
    ("list", |p| done(fs::read_dir(p.join("d")))),
    ("clear the flags", |p| {
        change_flags(&p.join("d/f"), |_| IFlags::empty())
    }),
    ("clear the directory's flags", |p| {
        change_flags(&p.join("d"), |_| IFlags::empty())
    }),
    ("set append-only", |p| {
        change_flags(&p.join("d/f"), |f| f | IFlags::APPEND)
    }),
    ("set immutable", |p| {
        change_flags(&p.join("d/f"), |f| f | IFlags::IMMUTABLE)
    }),
    ("set nodump", |p| {
        change_flags(&p.join("d/f"), |f| f | IFlags::NODUMP)
    }),
    ("set nodump for the directory", |p| {
        change_flags(&p.join("d"), |f| f | IFlags::NODUMP)
    }),
];

/// The flags of the table.
fn ours() -> IFlags {
    IFlags::IMMUTABLE | IFlags::APPEND | IFlags::NODUMP
}

fn flags(path: &Path) -> rustix::io::Result<IFlags> {
    Ok(ioctl_getflags(open(path, |o| o.read(true))?)? & ours())
}

fn change_flags(path: &Path, change: impl FnOnce(IFlags) -> IFlags) -> Outcome {
    let file = open(path, |o| o.read(true))?;
    let flags = ioctl_getflags(file.as_fd())?;
    // Other flags are kept, for example ext4's flag for extents.
    let others = IFlags::from_bits_retain(flags.bits() & !ours().bits());
    ioctl_setflags(file, others | change(flags & ours()))
}

/// The flagged file, and the flag set before the call.
const FLAGGED: [(&str, &str, IFlags); 8] = [
    ("none", "d/f", IFlags::empty()),
    ("append-only file", "d/f", IFlags::APPEND),
    ("immutable file", "d/f", IFlags::IMMUTABLE),
    ("nodump file", "d/f", IFlags::NODUMP),
    ("append-only directory", "d", IFlags::APPEND),
    ("immutable directory", "d", IFlags::IMMUTABLE),
    ("nodump directory", "d", IFlags::NODUMP),
    ("append-only empty directory", "d/s", IFlags::APPEND),
];

const CALLERS: [&str; 4] = ["root", "root without the capability", "owner", "other"];

/// Gives the calling thread the credentials of a caller, permanently.
fn become_caller(name: &str) {
    match name {
        "root" => {}
        "owner" => assume(&caller("owner", OWNER, OWNER, &[])),
        "other" => assume(&caller("other", OWNER + 1, OWNER + 1, &[])),
        _ => {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::LINUX_IMMUTABLE);
            rustix::thread::set_capabilities(None, sets).unwrap();
        }
    }
}

/// Everything that a call may have changed, except times.
fn state(case: &Path) -> String {
    let mut lines = Vec::new();
    let mut todo = vec![case.to_path_buf()];
    while let Some(path) = todo.pop() {
        let found = path.symlink_metadata().unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&found);
        let what = match found.file_type() {
            kind if kind.is_dir() => {
                todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
                format!("{:?}", flags(&path))
            }
            kind if kind.is_file() => {
                let bytes = fs::read(&path).unwrap();
                let sum: usize = bytes.iter().map(|b| *b as usize).sum();
                format!("{} bytes, sum {sum}, {:?}", bytes.len(), flags(&path))
            }
            _ => String::new(),
        };
        let mut names = [0; 500];
        let n = rustix::fs::llistxattr(&path, &mut names[..]).unwrap();
        let names = String::from_utf8_lossy(&names[..n]).replace('\0', " ");
        let mut names: Vec<_> = names.split_whitespace().map(str::to_owned).collect();
        names.sort();
        let name = path.strip_prefix(case).unwrap().display().to_string();
        lines.push(format!("{name}: {mode:o} {what} {names:?}"));
    }
    lines.sort();
    lines.join("; ")
}

/// Makes the files of a case.
fn prepare(case: &Path, flagged: (&str, IFlags)) {
    fs::create_dir_all(case.join("d/s")).unwrap();
    fs::write(case.join("d/f"), [1; 10_000]).unwrap();
    fs::write(case.join("other"), "other").unwrap();
    set_xattr(&case.join("d/f"), "user.a", b"1").unwrap();
    for path in ["", "d", "d/s", "d/f", "other"] {
        chown(&case.join(path), Some(OWNER), Some(OWNER)).unwrap();
    }
    change_flags(&case.join(flagged.0), |_| flagged.1).unwrap();
}

/// Removes the files of a case, whatever their flags.
fn clear(case: &Path) {
    let mut todo = vec![case.to_path_buf()];
    while let Some(path) = todo.pop() {
        let kind = path.symlink_metadata().unwrap().file_type();
        if kind.is_dir() || kind.is_file() {
            change_flags(&path, |_| IFlags::empty()).unwrap();
        }
        if kind.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
    }
    fs::remove_dir_all(case).unwrap();
}

/// Runs the whole table. Returns outcome and state by the name of the case.
fn table(dir: &Path) -> BTreeMap<String, (Outcome, String)> {
    chmod(dir, 0o755).unwrap();
    let mut results = BTreeMap::new();
    for who in CALLERS {
        for (what, path, flags) in FLAGGED {
            for (name, _) in CALLS {
                prepare(&dir.join(format!("{who}, {what}, {name}")), (path, flags));
            }
        }
        let all = || {
            FLAGGED
                .iter()
                .flat_map(|flagged| CALLS.iter().map(move |call| (flagged.0, call)))
        };
        let as_caller = || {
            become_caller(who);
            let run = |(what, (name, run)): (_, &(&str, Run))| {
                run(&dir.join(format!("{who}, {what}, {name}")))
            };
            all().map(run).collect::<Vec<_>>()
        };
        let outcomes = thread::scope(|scope| scope.spawn(as_caller).join().unwrap());
        for ((what, (name, _)), outcome) in all().zip(outcomes) {
            let case = format!("{who}, {what}, {name}");
            let path = dir.join(&case);
            results.insert(case, (outcome, state(&path)));
            clear(&path);
        }
    }
    results
}

/// Known differences, because the kernel does not know the flags. It does not send opens to the
/// daemon and permits them by the mode; the write that follows is refused. For a caller without
/// permission by the mode, the kernel reports the mode's error first.
fn is_known(case: &str, expected: &Outcome, found: &Outcome) -> bool {
    let opens = [
        "open for writing",
        "open for appending",
        "open making",
        "may write",
        "may write the directory",
    ];
    let opens = opens
        .iter()
        .any(|call| case.ends_with(&format!(", {call}")));
    *expected == Err(Errno::PERM)
        && (opens && *found == Ok(()) || case.starts_with("other,") && *found == Err(Errno::ACCESS))
}

/// Contract: posix.flags
#[test]
fn flags_refuse_calls_as_on_ext4() {
    if !able(&["mkfs.ext4", "mount"]) {
        return;
    }
    let place = Place::mounted("256M", "allow_other,dev,suid");
    chmod(&place.beside(""), 0o711).unwrap();
    let ext4 = Ext4::mounted(&place);
    let (expected, found) = (table(&ext4.0), table(&place.dir()));
    assert_eq!(expected.len(), found.len());
    let mut known = 0;
    let mut different = Vec::new();
    for ((case, expected), (_, found)) in expected.iter().zip(&found) {
        let late = is_known(case, &expected.0, &found.0);
        known += usize::from(late);
        if expected.1 != found.1 || expected.0 != found.0 && !late {
            different.push(format!("{case}: {found:?}\n    but ext4: {expected:?}"));
        }
    }
    let (n, all) = (different.len(), expected.len());
    different.truncate(40);
    assert!(
        n == 0,
        "{n} of {all} cases differ:\n{}",
        different.join("\n")
    );
    assert!(
        known > 0,
        "opens are refused now: docs/differences.md says otherwise"
    );
    place.finish();
}

/// Timeout for the kernel; a longer wait is a hang.
const HANG: Duration = Duration::from_secs(60);

/// Data stored through a mapping before the file became immutable or append-only is kept. msync
/// reports data stored later as lost, and every reader sees the file without it.
/// Contract: posix.flags
#[test]
fn mapping_does_not_change_flagged_file() {
    if !able(&["cc", "chattr"]) {
        return;
    }
    for (options, flag) in [("", "+i"), ("", "+a"), ("write=back", "+i")] {
        let mut place = Place::mounted("64M", options);
        let file = place.at("f");
        fs::write(&file, [b'a'; 5000]).unwrap();
        let mut child = Command::new(compile(&place, "store.c"))
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut says = || output.next().unwrap().unwrap();
        assert_eq!(says(), "mapped");
        input.write_all(b"store\n").unwrap();
        assert_eq!(says(), "stored");
        place.sh(&format!("chattr {flag} f"));
        input.write_all(b"store\n").unwrap();
        assert_eq!(says(), "stored");
        input.write_all(b"msync\n").unwrap();
        assert_eq!(says(), format!("msync {}", Errno::PERM.raw_os_error()));
        // The kernel drops the pages soon, but asynchronously to the answer.
        let mut first = [0; 1];
        let begun = Instant::now();
        while begun.elapsed() < HANG && first != *b"1" {
            File::open(&file)
                .unwrap()
                .read_exact_at(&mut first, 0)
                .unwrap();
        }
        assert_eq!(first, *b"1");
        input.write_all(b"look\n").unwrap();
        assert_eq!(says(), "mapping 1");
        drop(input);
        assert!(child.wait().unwrap().success());
        let lost = place.run(&["sync", "m"]);
        assert!(!lost.status.success() && said(&lost).contains("Operation not permitted"));
        place.sh("chattr =d f; echo x > f; chattr +i f");
        place.remount(options);
        assert_eq!(fs::read(&file).unwrap(), b"x\n");
        assert!(place.sh("lsattr f").contains("i-d"), "the flags last");
        place.finish();
    }
}

/// With the kernel's writeback cache, fsync reports refused writes, and append-only is not
/// supported.
#[test]
fn writeback_cache_reports_refused_writes_at_fsync() {
    if !able(&["chattr"]) {
        return;
    }
    let mut place = Place::mounted("64M", "write=back");
    let path = place.at("f");
    let file = open(&path, |o| o.write(true).read(true).create(true)).unwrap();
    file.write_all_at(&[b'a'; 9000], 0).unwrap();
    change_flags(&path, |_| IFlags::IMMUTABLE).unwrap();
    file.write_all_at(b"b", 0).unwrap();
    let errno = file.sync_all().unwrap_err().raw_os_error();
    assert_eq!(errno, Some(Errno::PERM.raw_os_error()));
    let refused = File::options().write(true).truncate(true).open(&path);
    assert_eq!(done(refused), Err(Errno::PERM));
    change_flags(&path, |_| IFlags::empty()).unwrap();
    let append = change_flags(&path, |_| IFlags::APPEND);
    assert_eq!(append, Err(Errno::OPNOTSUPP));
    change_flags(&place.dir(), |_| IFlags::APPEND).unwrap();
    assert_eq!(done(fs::remove_file(&path)), Err(Errno::PERM));
    drop(file);
    place.remount("");
    assert_eq!(fs::read(&path).unwrap(), [b'a'; 9000]);
    place.finish();
}

/// Flags that are not enforced are refused with the messages of other file systems without them.
#[test]
fn unsupported_flags_are_refused_as_on_tmpfs() {
    if !able(&["cc", "chattr", "mount"]) {
        return;
    }
    let place = Place::mounted("64M", "");
    let other = place.beside("tmpfs");
    fs::create_dir(&other).unwrap();
    succeed(Command::new("mount").args(["-t", "tmpfs", "none", arg(&other)]));
    let chattr = |dir: &Path, flag: &str| {
        let out = Command::new("chattr")
            .args([flag, "f"])
            .current_dir(dir)
            .output()
            .unwrap();
        (out.status.code(), said(&out))
    };
    let mut outputs = Vec::new();
    for dir in [place.dir(), other.clone()] {
        fs::write(dir.join("f"), "f").unwrap();
        // Flags that neither file system has.
        let refused: Vec<_> = ["+S", "+c", "+j"].map(|flag| chattr(&dir, flag)).into();
        assert!(
            refused.iter().all(|(code, _)| *code == Some(1)),
            "{refused:?}"
        );
        outputs.push(refused);
    }
    rustix::mount::unmount(&other, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(outputs[0], outputs[1]);
    // The fsxattr interface: append-only and nodump, an unknown flag, a project.
    let program = compile(&place, "fsxattr.c");
    let fsxattr = |flags: &str| {
        let printed = succeed(Command::new(&program).arg(place.at("f")).arg(flags));
        printed.trim().to_owned()
    };
    assert_eq!(fsxattr("0x90"), "flags 0x90 extent size 0 project 0");
    assert_eq!(
        fsxattr("0x20"),
        format!("set {}", Errno::OPNOTSUPP.raw_os_error())
    );
    assert!(place.sh("lsattr f").starts_with("-----ad"));
    assert_eq!(fsxattr("0"), "flags 0 extent size 0 project 0");
    place.finish();
}

/// The birth time of a file, as the file system reports it now: seconds and nanoseconds.
fn birth(path: &Path) -> Option<(i64, u32)> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    let found = rustix::fs::statx(CWD, path, flags, wanted).unwrap();
    let carried = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    carried.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
}

#[test]
fn birth_times_are_shown_by_commands() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    fs::write(place.at("f"), "f").unwrap();
    assert_eq!(birth(&place.at("f")), None, "only with the option btime");
    place.umount();
    let listing: serde_json::Value =
        serde_json::from_str(&place.ok(&["ls", "--json", "v.cairn:/f"])).unwrap();
    let entry = listing.get(0).unwrap_or(&listing);
    assert_eq!(entry["btime"], entry["atime"], "{listing}");
    assert_eq!(entry["flags"], "");
    place.check();
}

/// Whether the birth times of a file and what is made of it are as they should be: one that stays
/// through every change, and not before the directory's.
fn births(dir: &Path) -> Vec<(&'static str, bool)> {
    let at = |name: &str| dir.join(name);
    shell(dir, "mkdir d; echo text > d/f; ln -s f d/s; mkfifo d/p");
    let first = birth(&at("d/f"));
    let mut cases = vec![
        ("reported", first.is_some()),
        ("of a symlink", birth(&at("d/s")) >= first),
        ("of a fifo", birth(&at("d/p")) >= first),
        ("directory first", birth(&at("d")) <= first),
    ];
    for change in [
        "echo more >> d/f",
        "touch -d @1 d/f",
        "chmod 600 d/f",
        "ln d/f d/g; mv d/f d/h; mv d/g d/f",
        "sync -f d",
    ] {
        shell(dir, change);
        cases.push((change, birth(&at("d/f")) == first));
    }
    shell(dir, "cp -p d/f d/copy");
    cases.push(("of a copy", birth(&at("d/copy")) > first));
    cases
}

#[test]
fn birth_times_are_as_on_ext4() {
    if !able(&["mkfs.ext4", "mount"]) {
        return;
    }
    let mut place = Place::mounted("64M", "btime");
    let ext4 = Ext4::mounted(&place);
    assert_eq!(births(&place.dir()), births(&ext4.0));
    let first = birth(&place.at("d/f"));
    place.remount("btime");
    assert_eq!(birth(&place.at("d/f")), first);
    drop(ext4);
    place.finish();
}
