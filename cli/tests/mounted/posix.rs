//! Guarantees of POSIX and Linux for files, on a mounted volume.
//!
//! Each test compares with the manual pages, and ends with a check of the volume.
//!
//! Contract: posix

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::process::Command;

use cairnfs_tier::size;
use rustix::fs::{CWD, FallocateFlags, FlockOperation, OFlags, RenameFlags, SeekFrom as Seeking};
use rustix::io::Errno;

use crate::place::{Place, able, arg, pattern, shell, succeed};

/// The error of a standard library call as an errno.
fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).unwrap()
}

#[test]
fn directory_holds_many_entries() {
    if !able(&[]) {
        return;
    }
    let count = size(20_000, 100_000);
    let mut place = Place::mounted("2G", "");
    let dir = place.at("many");
    fs::create_dir(&dir).unwrap();
    let name = |n: u32| format!("entry number {n} with a name of some length");
    for n in 0..count {
        File::create(dir.join(name(n))).unwrap();
    }
    let listed = || -> Vec<_> {
        let names = fs::read_dir(&dir).unwrap();
        names
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    let all: HashSet<String> = (0..count).map(name).collect();
    let found = listed();
    assert_eq!(found.len(), count as usize);
    assert_eq!(found.into_iter().collect::<HashSet<_>>(), all);
    place.remount("");
    assert_eq!(listed().into_iter().collect::<HashSet<_>>(), all);
    assert!(dir.join(name(count - 777)).exists() && !dir.join(name(count)).exists());
    assert_eq!(errno(fs::remove_dir(&dir)), Errno::NOTEMPTY);
    // Entries that remain are listed exactly once while others are removed.
    let mut kept = Vec::new();
    for entry in fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        let text = entry.file_name().into_string().unwrap();
        if text.contains("7 with") {
            kept.push(text)
        } else {
            fs::remove_file(entry.path()).unwrap()
        }
    }
    assert_eq!(kept.len(), count as usize / 10);
    assert_eq!(listed().len(), count as usize / 10);
    fs::remove_dir_all(&dir).unwrap();
    place.finish();
}

#[test]
fn sparse_file_of_hundred_gibibytes() {
    if !able(&["cp", "fallocate"]) {
        return;
    }
    let mut place = Place::mounted("256M", "");
    let path = place.at("sparse");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(100 << 30).unwrap();
    let islands = [0, 5 << 30, (60 << 30) + 12_345, (100 << 30) - 4096];
    for (n, at) in islands.into_iter().enumerate() {
        file.write_all_at(&pattern(n as u64 + 1, 4096), at).unwrap();
    }
    file.sync_all().unwrap();
    let verify = |path: &std::path::Path| {
        let file = File::open(path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 100 << 30);
        assert!(
            file.metadata().unwrap().blocks() * 512 < 1 << 20,
            "it takes space"
        );
        for (n, at) in islands.into_iter().enumerate() {
            let mut bytes = vec![0; 4096];
            file.read_exact_at(&mut bytes, at).unwrap();
            assert!(bytes == pattern(n as u64 + 1, 4096), "island {n}");
        }
        let mut hole = vec![1; 100_000];
        file.read_exact_at(&mut hole, 33 << 30).unwrap();
        assert!(hole.iter().all(|b| *b == 0));
        assert_eq!(
            rustix::fs::seek(&file, Seeking::Data(1 << 30)).unwrap(),
            5 << 30
        );
        assert_eq!(
            rustix::fs::seek(&file, Seeking::Hole(5 << 30)).unwrap(),
            (5 << 30) + 4096
        );
    };
    verify(&path);
    drop(file);
    place.remount("");
    verify(&path);
    place.sh("cp --sparse=always sparse copy");
    verify(&place.at("copy"));
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(50 << 30).unwrap();
    file.set_len(100 << 30).unwrap();
    let mut byte = [1];
    File::open(&path)
        .unwrap()
        .read_exact_at(&mut byte, (60 << 30) + 13_000)
        .unwrap();
    assert_eq!(byte, [0], "what was cut off came back");
    drop(file);
    place.finish();
}

#[test]
fn holes_are_punched_and_space_is_allocated() {
    if !able(&["fallocate"]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    let path = place.at("f");
    let mut expected = pattern(3, 1 << 20);
    fs::write(&path, &expected).unwrap();
    place.sh("sync f; fallocate -p -o 8192 -l 100000 f");
    expected[8192..108_192].fill(0);
    assert!(fs::read(&path).unwrap() == expected);
    place.sh("fallocate -z -o 500001 -l 70000 f");
    expected[500_001..570_001].fill(0);
    assert!(fs::read(&path).unwrap() == expected);
    place.sh("fallocate -n -o 1M -l 4M f; test $(stat -c %s f) = 1048576; fallocate -l 2M f");
    expected.resize(2 << 20, 0);
    place.remount("");
    assert!(fs::read(&path).unwrap() == expected);
    let file = File::options().write(true).open(&path).unwrap();
    let collapse = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(Errno::OPNOTSUPP));
    drop(file);
    place.finish();
}

#[test]
fn links_and_names_of_any_bytes() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    fs::write(place.at("one"), b"shared").unwrap();
    for n in 0..100 {
        fs::hard_link(place.at("one"), place.at(format!("link{n}"))).unwrap();
    }
    assert_eq!(place.at("link7").metadata().unwrap().nlink(), 101);
    symlink("one", place.at("sym")).unwrap();
    symlink("x".repeat(4095), place.at("long")).unwrap();
    symlink("absent", place.at("dangling")).unwrap();
    assert_eq!(
        errno(fs::hard_link(place.at("one"), place.at("sym"))),
        Errno::EXIST
    );
    fs::create_dir(place.at("d")).unwrap();
    assert!(
        fs::hard_link(place.at("d"), place.at("e")).is_err(),
        "a link of a directory"
    );
    // Every byte that a name may contain, and the longest name.
    let odd: Vec<Vec<u8>> = (1..=255)
        .filter(|b| *b != b'/' && *b != b'.')
        .map(|b| vec![b])
        .chain([
            vec![0xff; 255],
            vec![b'n'; 255],
            (1..=46).collect(),
            b"...".to_vec(),
        ])
        .collect();
    for name in &odd {
        let path = place.at("d").join(OsString::from_vec(name.clone()));
        fs::write(path, name).unwrap();
    }
    let long = OsString::from_vec(vec![b'n'; 256]);
    assert_eq!(errno(File::create(place.at(long))), Errno::NAMETOOLONG);
    place.remount("");
    assert_eq!(fs::read(place.at("sym")).unwrap(), b"shared");
    assert_eq!(
        fs::read_link(place.at("long")).unwrap().as_os_str().len(),
        4095
    );
    assert_eq!(errno(File::open(place.at("dangling"))), Errno::NOENT);
    assert_eq!(place.at("one").metadata().unwrap().nlink(), 101);
    let mut seen = 0;
    for entry in fs::read_dir(place.at("d")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(
            fs::read(entry.path()).unwrap(),
            entry.file_name().into_vec()
        );
        seen += 1;
    }
    assert_eq!(seen, odd.len());
    for n in 0..100 {
        fs::remove_file(place.at(format!("link{n}"))).unwrap();
    }
    assert_eq!(place.at("one").metadata().unwrap().nlink(), 1);
    place.finish();
}

#[test]
fn open_files_stay_usable_after_unlink() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    fs::write(place.at("f"), pattern(1, 100_000)).unwrap();
    let mut old = File::options()
        .read(true)
        .write(true)
        .open(place.at("f"))
        .unwrap();
    fs::write(place.at("new"), pattern(2, 50_000)).unwrap();
    fs::rename(place.at("new"), place.at("f")).unwrap();
    let mut bytes = Vec::new();
    old.read_to_end(&mut bytes).unwrap();
    assert!(bytes == pattern(1, 100_000), "the open file changed");
    assert!(fs::read(place.at("f")).unwrap() == pattern(2, 50_000));
    assert_eq!(old.metadata().unwrap().nlink(), 0);
    old.write_all(&bytes).unwrap();
    old.sync_all().unwrap();
    old.seek(SeekFrom::Start(100_000)).unwrap();
    let mut again = Vec::new();
    old.read_to_end(&mut again).unwrap();
    assert!(again == bytes, "what was written after the unlink");
    let dir = File::open({
        fs::create_dir(place.at("gone")).unwrap();
        place.at("gone")
    })
    .unwrap();
    fs::remove_dir(place.at("gone")).unwrap();
    let create = OFlags::CREATE | OFlags::WRONLY;
    let refused = rustix::fs::openat(&dir, "x", create, 0o644.into()).unwrap_err();
    assert_eq!(refused, Errno::NOENT);
    drop((old, dir));
    place.finish();
}

#[test]
fn rename_modes_behave_as_documented() {
    if !able(&["mv"]) {
        return;
    }
    let place = Place::mounted("64M", "");
    let (a, b) = (place.at("a"), place.at("b"));
    fs::write(&a, b"A").unwrap();
    fs::create_dir(&b).unwrap();
    fs::write(b.join("inside"), b"B").unwrap();
    let with = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(with(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    with(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(a.join("inside")).unwrap(), b"B");
    assert_eq!(fs::read(&b).unwrap(), b"A");
    assert_eq!(errno(fs::rename(&b, &a)), Errno::ISDIR);
    assert_eq!(errno(fs::rename(&a, &b)), Errno::NOTDIR);
    assert_eq!(errno(fs::rename(&a, a.join("below"))), Errno::INVAL);
    assert_eq!(errno(fs::rename(place.at("none"), &b)), Errno::NOENT);
    fs::create_dir_all(place.at("x/y/z")).unwrap();
    assert_eq!(errno(fs::rename(&a, place.at("x"))), Errno::NOTEMPTY);
    fs::rename(place.at("x/y"), place.at("y")).unwrap();
    assert_eq!(place.at("x").metadata().unwrap().nlink(), 2);
    fs::rename(&a, place.at("x")).unwrap();
    assert!(place.at("x/inside").exists() && place.at("y/z").exists());
    place.finish();
}

#[test]
fn modes_times_and_space_follow_posix() {
    if !able(&["setpriv"]) {
        return;
    }
    let mut place = Place::mounted("64M", "allow_other");
    let path = place.at("f");
    fs::write(&path, b"x").unwrap();
    let times = [(1, 1), (4_000_000_000, 999_999_999), (-5, 5)];
    for (seconds, nanos) in times {
        let time = rustix::fs::Timespec {
            tv_sec: seconds,
            tv_nsec: nanos,
        };
        let both = rustix::fs::Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(CWD, &path, &both, rustix::fs::AtFlags::empty()).unwrap();
        place.remount("allow_other");
        let found = path.metadata().unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (seconds, nanos));
        assert_eq!((found.atime(), found.atime_nsec()), (seconds, nanos));
    }
    // A write by another user clears the set-id bits; a chmod by the owner sets them.
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o6777);
    let nobody = |script: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sh",
            "-c",
            script,
        ]);
        command
            .current_dir(place.dir())
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(nobody("echo y >> f"));
    assert_eq!(
        path.metadata().unwrap().mode() & 0o7777,
        0o777,
        "set-id bits stayed"
    );
    // The kernel checks permissions, by the modes in the volume.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(!nobody("cat f") && !nobody("chmod 666 f") && nobody("echo own > mine"));
    assert_eq!(place.at("mine").metadata().unwrap().uid(), 65534);
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(!nobody("rm -f f") && nobody("rm mine"), "the sticky bit");
    let before = rustix::fs::statvfs(place.dir()).unwrap();
    assert_eq!((before.f_bsize, before.f_namemax), (4096, 255));
    fs::write(place.at("big"), pattern(1, 8 << 20)).unwrap();
    File::open(place.at("big")).unwrap().sync_all().unwrap();
    let after = rustix::fs::statvfs(place.dir()).unwrap();
    let taken = (before.f_bfree - after.f_bfree) * after.f_frsize;
    assert!((8 << 20..9 << 20).contains(&taken), "{taken} bytes taken");
    place.finish();
}

#[test]
fn file_locks_exclude_other_processes() {
    if !able(&["flock"]) {
        return;
    }
    let place = Place::mounted("64M", "");
    let file = File::create(place.at("lock")).unwrap();
    let other = || {
        Command::new("flock")
            .args(["-n", arg(&place.at("lock")), "true"])
            .status()
    };
    assert!(other().unwrap().success());
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    assert!(!other().unwrap().success(), "locked twice");
    rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    assert!(other().unwrap().success());
    let record = FlockOperation::NonBlockingLockExclusive;
    rustix::fs::fcntl_lock(&file, record).unwrap();
    let again = "exec 9<>lock; flock -n --fcntl 9";
    let known = shell(&place.dir(), "flock --help").contains("--fcntl");
    if known {
        let mut command = Command::new("bash");
        command.args(["-c", again]).current_dir(place.dir());
        assert!(!command.status().unwrap().success(), "locked twice");
    }
    drop(file);
    place.finish();
}

#[test]
fn unnamed_temporary_files_work_or_are_refused() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    match rustix::fs::open(place.dir(), flags, 0o600.into()) {
        Ok(fd) => {
            let mut file = File::from(fd);
            file.write_all(b"nameless").unwrap();
        }
        // Unsupported; programs fall back to a named file.
        Err(e) => assert_eq!(e, Errno::OPNOTSUPP),
    }
    assert_eq!(fs::read_dir(place.dir()).unwrap().count(), 0);
    tempfile::tempfile_in(place.dir())
        .unwrap()
        .write_all(b"x")
        .unwrap();
    place.finish();
}

#[test]
fn xattrs_and_acls_survive_copies() {
    if !able(&[
        "getfacl", "setfacl", "getfattr", "setfattr", "cp", "rsync", "tar", "setpriv",
    ]) {
        return;
    }
    let mut place = Place::mounted("64M", "allow_other");
    place.sh("chmod 711 .
        mkdir d; setfacl -m u:1234:rwx,g:77:r-x,m::rwx d; setfacl -d -m u:4321:rw-,g::r-x d
        echo secret > f; chmod 600 f; setfacl -m u:65534:r-- f
        setfattr -n user.small -v value f
        setfattr -n user.binary -v 0x00ff0a0d f
        setfattr -n user.large -v $(head -c 60000 /dev/zero | tr '\\0' v) d
        setfattr -n trusted.t -v root f
        mkdir d/sub; touch d/file");
    let all = "getfacl -R -p -n . | sort; getfattr -R -h -d -m - . | sort";
    let expected = place.sh(all);
    for word in [
        "user:1234:rwx",
        "default:user:4321:rw-",
        "user.binary=0sAP8KDQ==",
        "trusted.t",
    ] {
        assert!(expected.contains(word), "{word} is not in {expected}");
    }
    assert!(
        place.sh("getfacl -n d/sub").contains("user:4321:rw-"),
        "not inherited"
    );
    assert!(
        place.sh("getfacl -n d/file").contains("user:4321:rw-"),
        "not inherited"
    );
    place.remount("allow_other");
    assert_eq!(place.sh(all), expected);
    let dump = "getfacl -n d d/sub d/file f | grep -v ^$ ; getfattr -d -m - d f";
    let before = place.sh(dump);
    place.sh(
        "mkdir copied synced unpacked; cp -a d f copied/; rsync -aAX d f synced/
        tar --xattrs --xattrs-include='*' --acls -cf both.tar d f
        tar --xattrs --xattrs-include='*' --acls -xf both.tar -C unpacked",
    );
    for copy in ["copied", "synced", "unpacked"] {
        assert_eq!(shell(&place.at(copy), dump), before, "{copy}");
    }
    // With an ACL, the group bits of the mode are its mask.
    let masked = place.sh("chmod 720 d/sub; getfacl -n -c d/sub; stat -c %a d/sub");
    assert!(
        masked.contains("mask::-w-") && masked.ends_with("720\n"),
        "{masked}"
    );
    let cat = [
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "cat",
        "f",
    ];
    let mut reader = Command::new("setpriv");
    assert_eq!(
        succeed(reader.args(cat).current_dir(place.dir())),
        "secret\n"
    );
    // Attributes in the trusted namespace are listed for the superuser only.
    let list = ["getfattr", "--absolute-names", "-m", "-", "f"];
    let names = |ids: &[&str]| {
        let mut command = Command::new("setpriv");
        succeed(command.args(ids).args(list).current_dir(place.dir()))
    };
    assert!(names(&[]).contains("trusted.t"));
    let names_listed = names(&cat[..3]);
    assert!(
        names_listed.contains("user.small") && !names_listed.contains("trusted"),
        "{names_listed}"
    );
    place.sh("setfacl -b f; setfattr -x user.small f; ! getfattr -n user.small f 2>/dev/null");
    let refused = Command::new("setpriv")
        .args(cat)
        .current_dir(place.dir())
        .output()
        .unwrap();
    assert!(
        !refused.status.success(),
        "the access list is gone, but still grants"
    );
    place.finish();
}

/// The wait is in the kernel: no message to the daemon could be interrupted.
#[test]
fn signal_ends_wait_for_a_lock() {
    if !able(&["flock"]) {
        return;
    }
    let place = Place::mounted("64M", "");
    let file = File::create(place.at("locked")).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    // It waits in flock(2), and a timer's signal ends that.
    let mut waiting = Command::new("flock");
    waiting.args(["-w", "0.2", "-E", "77", arg(&place.at("locked")), "true"]);
    assert_eq!(waiting.status().unwrap().code(), Some(77));
    drop(file);
    assert!(waiting.status().unwrap().success());
    place.finish();
}
