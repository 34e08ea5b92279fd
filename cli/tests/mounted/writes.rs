//! Writes in both write modes of a mount: their times, when they are refused and when they are
//! durable, and that direct writes leave no stale page.
//!
//! Contract: posix, posix.times

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, OFlags, SeekFrom, Timespec, Timestamps, UTIME_NOW, XattrFlags,
};

use crate::place::{Place, Random, able, arg, nap, pattern, succeed};

const MODES: [&str; 2] = ["write=through", "write=back"];

/// Compiles a program from the directory of these tests.
pub fn compile(place: &Place, source: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mounted/programs");
    let program = place.beside(source.trim_end_matches(".c"));
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-pthread", "-o", arg(&program)]);
    succeed(command.arg(tests.join(source)));
    program
}

/// A time of a file: seconds and nanoseconds.
type Stamp = (i64, i64);

fn mtime(path: &Path) -> Stamp {
    let found = path.symlink_metadata().unwrap();
    (found.mtime(), found.mtime_nsec())
}

fn ctime(path: &Path) -> Stamp {
    let found = path.symlink_metadata().unwrap();
    (found.ctime(), found.ctime_nsec())
}

fn atime(path: &Path) -> Stamp {
    let found = path.symlink_metadata().unwrap();
    (found.atime(), found.atime_nsec())
}

fn set_times_to_now(path: &Path) {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let both = Timestamps {
        last_access: now,
        last_modification: now,
    };
    rustix::fs::utimensat(CWD, path, &both, AtFlags::empty()).unwrap();
}

#[test]
fn file_written_later_has_no_older_mtime() {
    if !able(&[]) {
        return;
    }
    for mode in MODES {
        let place = Place::mounted("64M", mode);
        let (stamp, out) = (place.at("st"), place.at("out"));
        for round in 0..300 {
            File::create(&stamp).unwrap();
            let mut file = File::create(&out).unwrap();
            file.write_all(b"x\n").unwrap();
            assert!(mtime(&out) >= mtime(&stamp), "{mode}, round {round}");
            drop(file);
            assert!(mtime(&out) >= mtime(&stamp), "{mode}, round {round}");
            fs::remove_file(&stamp).unwrap();
        }
        place.finish();
    }
}

/// Makes one of the calls that set times. Returns the call's name and the times it set.
fn call(place: &Place, file: &File, round: u64, which: u64) -> (&'static str, Vec<Stamp>) {
    let (dir, f) = (place.at("d"), place.at("d/f"));
    let new = dir.join(format!("new{round}"));
    let beside = place.beside("elsewhere");
    match which {
        0 => {
            File::create(&new).unwrap();
            ("create", vec![mtime(&new), ctime(&new), mtime(&dir)])
        }
        1 => {
            fs::create_dir(&new).unwrap();
            ("mkdir", vec![mtime(&new), ctime(&new), mtime(&dir)])
        }
        2 => {
            fs::rename(&f, &new).unwrap();
            fs::rename(&new, &f).unwrap();
            ("rename", vec![ctime(&f), mtime(&dir), ctime(&dir)])
        }
        3 => {
            fs::hard_link(&f, &new).unwrap();
            ("link", vec![ctime(&f), mtime(&dir)])
        }
        4 => {
            fs::hard_link(&f, &new).unwrap();
            fs::remove_file(&new).unwrap();
            ("unlink", vec![ctime(&f), mtime(&dir)])
        }
        5 => {
            set_times_to_now(&f);
            ("utime", vec![mtime(&f), ctime(&f), atime(&f)])
        }
        6 => {
            rustix::fs::setxattr(&f, "user.a", &round.to_le_bytes(), XattrFlags::empty()).unwrap();
            ("setxattr", vec![ctime(&f)])
        }
        7 => {
            let mode = 0o600 + (round % 8) as u32;
            fs::set_permissions(&f, fs::Permissions::from_mode(mode)).unwrap();
            ("chmod", vec![ctime(&f)])
        }
        8 => {
            file.set_len(5000 + round).unwrap();
            ("truncate", vec![mtime(&f), ctime(&f)])
        }
        9 => {
            file.write_all_at(b"written", round % 5000).unwrap();
            ("write", vec![mtime(&f), ctime(&f)])
        }
        10 => {
            let at = (1 << 20) + round * 4096;
            rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, 4096).unwrap();
            ("fallocate", vec![ctime(&f)])
        }
        11 => {
            symlink("to", &new).unwrap();
            ("symlink", vec![mtime(&new), mtime(&dir)])
        }
        12 => {
            set_times_to_now(&dir);
            ("utime of a directory", vec![mtime(&dir), ctime(&dir)])
        }
        13 => {
            file.sync_all().unwrap();
            ("fsync", vec![])
        }
        _ => {
            // In many file systems, a file whose times were read gets its next times from the
            // kernel's finest clock.
            set_times_to_now(&beside);
            mtime(&beside);
            set_times_to_now(&beside);
            ("a change elsewhere", vec![mtime(&beside)])
        }
    }
}

#[test]
fn file_times_follow_order_of_calls() {
    if !able(&[]) {
        return;
    }
    for mode in MODES {
        let place = Place::mounted("256M", mode);
        fs::create_dir(place.at("d")).unwrap();
        File::create(place.beside("elsewhere")).unwrap();
        let file = File::create(place.at("d/f")).unwrap();
        let mut random = Random(99);
        let (mut before, mut last) = ("nothing", mtime(&place.at("d/f")));
        for round in 0..4000 {
            let (name, stamps) = call(&place, &file, round, random.below(16));
            for stamp in &stamps {
                assert!(
                    last <= *stamp,
                    "{mode}, round {round}: {name} set {stamps:?}, after {before} set {last:?}"
                );
            }
            if let Some(latest) = stamps.into_iter().max() {
                (before, last) = (name, latest);
            }
        }
        drop(file);
        place.finish();
    }
}

/// Changes a file in one of several ways; `other` is a file to copy from.
fn change(path: &Path, other: &File, which: u64) {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if which == 1 {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    let file = options.open(path).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    let punch = FallocateFlags::PUNCH_HOLE | keep;
    match which {
        0 => file.write_all_at(b"again", 0).unwrap(),
        // The kernel refuses unaligned direct writes, or writes through the cache.
        1 => drop(file.write_at(&[7; 4096], 0)),
        2 => rustix::fs::fallocate(&file, keep, 0, 1 << 20).unwrap(),
        3 => rustix::fs::fallocate(&file, punch, 0, 4096).unwrap(),
        4 => rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap(),
        5 => drop(rustix::fs::copy_file_range(other, Some(&mut 0), &file, None, 9000).unwrap()),
        6 => {
            let len = file.metadata().unwrap().len();
            succeed(Command::new("truncate").args(["-s", &len.to_string(), arg(&path)]));
        }
        7 => {
            file.write_all_at(b"again", 0).unwrap();
            file.sync_all().unwrap();
            file.write_all_at(b"and again", 0).unwrap();
        }
        8 => rustix::fs::fsetxattr(&file, "user.a", b"v", XattrFlags::empty()).unwrap(),
        _ => file.set_len(3000).unwrap(),
    }
}

#[test]
fn file_times_survive_remount() {
    if !able(&["truncate"]) {
        return;
    }
    for mode in MODES {
        let mut place = Place::mounted("256M", mode);
        fs::write(place.at("other"), pattern(1, 9000)).unwrap();
        let other = File::open(place.at("other")).unwrap();
        let files: Vec<_> = (0..200).map(|n| place.at(format!("f{n}"))).collect();
        for (n, path) in (0..).zip(&files) {
            let mut file = File::create(path).unwrap();
            file.write_all(&pattern(n, 5000)).unwrap();
            file.sync_all().unwrap();
            change(path, &other, n % 10);
        }
        drop(other);
        let times = |path: &PathBuf| [mtime(path), ctime(path)];
        let before: Vec<_> = files.iter().map(times).collect();
        place.remount(mode);
        for (n, path) in files.iter().enumerate() {
            let way = n % 10;
            assert_eq!(before[n], times(path), "{mode}, file {n}, change {way}");
        }
        place.finish();
    }
}

#[test]
fn direct_writes_leave_no_stale_page() {
    if !able(&["cc"]) {
        return;
    }
    for mode in MODES {
        let place = Place::mounted("64M", mode);
        let program = compile(&place, "direct.c");
        for engine in ["libaio", "io_uring"] {
            succeed(Command::new(&program).args([engine, arg(&place.at(engine)), "10000"]));
        }
        place.finish();
    }
}

/// Contract: failure.space
#[test]
fn refused_write_keeps_earlier_writes() {
    if !able(&[]) {
        return;
    }
    for len in [4096, 10_000, 65_536, 3 << 20] {
        let mut place = Place::mounted("32M", "write=through");
        let path = place.at("f");
        let mut file = File::create(&path).unwrap();
        let bytes = pattern(len as u64, 60 << 20);
        let mut written = 0;
        let error = loop {
            match file.write(&bytes[written..written + len]) {
                Ok(n) => written += n,
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(written > 20 << 20, "only {written} bytes fit");
        let whole = |when: &str| {
            let file = File::open(&path).unwrap();
            assert_eq!(file.metadata().unwrap().len(), written as u64, "{when}");
            let hole = rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap();
            assert_eq!(hole, written as u64, "{when}: a hole");
            assert!(
                fs::read(&path).unwrap() == bytes[..written],
                "{when}: other bytes"
            );
        };
        whole("at once");
        file.sync_all().unwrap();
        drop(file);
        place.remount("write=through");
        whole("after a remount");
        place.finish();
    }
}

/// Number of syncs of the whole volume that the daemon has done.
fn syncs(place: &Place) -> u64 {
    let status = cairnfs_fuse::control::status(&place.dir()).unwrap();
    status.counter("syncs")
}

/// Waits until a sync has ended that began after this call.
fn wait_for_interval(place: &Place) {
    // A sync that began earlier may be in progress.
    let enough = syncs(place) + 2;
    while syncs(place) < enough {
        nap(20);
    }
}

/// Contract: durable.interval
#[test]
fn write_through_data_is_durable_by_interval() {
    if !able(&["cat"]) {
        return;
    }
    let mut place = Place::mounted("64M", "write=through,durability=0.2");
    let path = place.at("open");
    // A separate process holds the file. Whenever this process starts a program, the child closes
    // its copy of every descriptor, and closing sends the kernel's dirty pages.
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(File::create(&path).unwrap())
        .spawn()
        .unwrap();
    let mut lines = child.stdin.take().unwrap();
    let mut expected = String::new();
    for n in 0..20 {
        let line = format!("line {n}\n");
        lines.write_all(line.as_bytes()).unwrap();
        expected.push_str(&line);
        while path.metadata().unwrap().len() < expected.len() as u64 {
            std::thread::yield_now();
        }
    }
    wait_for_interval(&place);
    place.kill();
    drop(lines);
    child.wait().unwrap();
    place.mount("");
    assert_eq!(fs::read_to_string(place.at("open")).unwrap(), expected);
    place.finish();
}

/// Contract: durable.interval
#[test]
fn data_is_durable_by_interval_after_close_or_unmap() {
    if !able(&["cc"]) {
        return;
    }
    for mode in MODES {
        let mut place = Place::mounted("64M", &format!("{mode},durability=0.2"));
        let mut child = Command::new(compile(&place, "mapped.c"))
            .args([arg(&place.at("mapped")), "through a mapping"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "unmapped\n");
        fs::write(place.at("closed"), b"closed").unwrap();
        wait_for_interval(&place);
        place.kill();
        drop(child.stdin.take());
        child.wait().unwrap();
        place.mount(mode);
        assert!(
            fs::read(place.at("mapped"))
                .unwrap()
                .starts_with(b"through a mapping\0"),
            "{mode}"
        );
        assert_eq!(fs::read(place.at("closed")).unwrap(), b"closed", "{mode}");
        place.finish();
    }
}

/// Fills a volume with synced files, to the last block.
fn fill(place: &Place) {
    let mut len = 1 << 20;
    for n in 0.. {
        let path = place.at(format!("filler{n}"));
        let mut file = File::create(&path).unwrap();
        let wrote = file
            .write_all(&pattern(n, len))
            .and_then(|()| file.sync_all());
        if wrote.is_err() {
            drop(file);
            fs::remove_file(&path).unwrap();
            len /= 2;
        }
        if len < 4096 {
            break;
        }
    }
}

/// Contract: failure.space
#[test]
fn file_keeps_its_size_after_refused_writeback() {
    const MORE: usize = 300_000;
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("16M", "write=back");
    let begins = [("empty", 0), ("block", 4096), ("odd", 5000)];
    for (name, len) in begins {
        let mut file = File::create(place.at(name)).unwrap();
        file.write_all(&pattern(1, len)).unwrap();
        file.sync_all().unwrap();
    }
    fill(&place);
    for (name, len) in begins {
        for cut in [None, Some(100_000), Some(100_001)] {
            let path = place.at(name);
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(&pattern(2, MORE)).unwrap();
            let refused = file.sync_all().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::StorageFull, "{name}: {refused}");
            let mut size = len + MORE;
            assert_eq!(file.metadata().unwrap().len(), size as u64, "{name}");
            if let Some(cut) = cut {
                file.set_len(cut).unwrap();
                size = cut as usize;
            }
            drop(file);
            // The first sync reports the loss; the next one has nothing to report.
            place.run(&["sync", "m"]);
            place.ok(&["sync", "m"]);
            place.remount("write=back");
            let bytes = fs::read(&path).unwrap();
            assert_eq!(bytes.len(), size, "{name}, cut to {cut:?}");
            assert!(bytes[..len] == pattern(1, len), "{name}: what was synced");
            let written = pattern(2, MORE);
            let blocks = bytes[len..].chunks(4096).zip(written.chunks(4096));
            let kept = |(found, sent): (&[u8], &[u8])| {
                let same = found.iter().zip(sent).filter(|(a, b)| a == b || **a == 0);
                same.count() == found.len()
            };
            assert!(blocks.into_iter().all(kept), "{name}: other bytes");
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(len as u64).unwrap();
        }
    }
    place.finish();
}
