//! The mounted tree is replaced by another one, with a kernel: working directories and open files
//! survive, what changed is seen, and nothing is mixed. Skipped without root or `/dev/fuse`, unless
//! `CAIRNFS_REQUIRE_FUSE=1`; tests of rings also if the kernel has no FUSE over io_uring.
//!
//! Contract: replace.mounted

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod programs;
mod stand;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cairnfs::{Error, PublishOptions, Volume};
use cairnfs_fuse::Transport;
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::sessions::NotAdded;
use rustix::fs::{FlockOperation, flock};

use crate::stand::{Mount, Shell, able, each_way, is_missing, is_refused, is_stale};

const LARGE: usize = 1 << 20;

fn fill(main: &Volume) {
    main.create_dir("d").unwrap();
    main.create_dir("d/old name").unwrap();
    main.write("d/old name/f", "inside").unwrap();
    main.write("d/same", vec![b's'; LARGE]).unwrap();
    main.write("d/changed", vec![b'a'; LARGE]).unwrap();
    main.write("d/removed", "removed").unwrap();
    main.write("d/mode", "mode").unwrap();
    main.set_xattr("d/mode", "user.a", "1").unwrap();
}

#[test]
fn shell_goes_on_and_open_files_are_read_through_publish_and_restore() {
    each_way(|write, transport| {
        let mount = Mount::new((write, transport), |main| {
            fill(main);
            main.snapshot("begin").unwrap();
        });
        let d = mount.at("d");
        let mut shell = Shell::new(&d);
        let mut below = Shell::new(&mount.at("d/old name"));
        let same = mount.open("d/same");
        flock(&same, FlockOperation::NonBlockingLockExclusive).unwrap();
        let changed = mount.open("d/changed");
        let mut half = vec![0; LARGE / 2];
        changed.read_exact_at(&mut half, 0).unwrap();
        let unlinked = mount.open("d/removed");
        assert_eq!(fs::metadata(mount.at("d/mode")).unwrap().uid(), 0);
        assert!(is_missing(&mount.at("d/added")));
        assert_eq!(shell.run("ls | wc -l"), "5");

        let work = mount.work("work");
        work.write("d/changed", vec![b'b'; 2 * LARGE]).unwrap();
        work.remove_file("d/removed").unwrap();
        work.rename("d/old name", "d/new name").unwrap();
        work.write("d/added", "added").unwrap();
        work.chown("d/mode", Some(7), None).unwrap();
        work.set_xattr("d/mode", "user.a", "2").unwrap();
        let published = mount.publish(work);
        assert!(!published.merged);

        // What is open of a file that changed has the earlier contents, all of them.
        let mut all = vec![0; LARGE];
        changed.read_exact_at(&mut all, 0).unwrap();
        assert!(all.iter().all(|byte| *byte == b'a'));
        assert_eq!(changed.metadata().unwrap().len(), LARGE as u64);
        assert!(is_stale(changed.set_len(3)));
        let written = changed
            .write_all_at(b"x", 0)
            .and_then(|()| changed.sync_all());
        assert!(is_stale(written));
        let mut removed = [0; 7];
        unlinked.read_exact_at(&mut removed, 0).unwrap();
        assert_eq!(&removed, b"removed");
        // By name there is the new state.
        assert_eq!(
            fs::read(mount.at("d/changed")).unwrap(),
            vec![b'b'; 2 * LARGE]
        );
        assert_eq!(
            fs::metadata(mount.at("d/changed")).unwrap().len(),
            2 * LARGE as u64
        );
        assert_eq!(fs::read(mount.at("d/added")).unwrap(), b"added");
        assert!(is_missing(&mount.at("d/removed")) && is_missing(&mount.at("d/old name")));
        assert_eq!(fs::metadata(mount.at("d/mode")).unwrap().uid(), 7);
        let mut value = [0; 8];
        let len = rustix::fs::getxattr(mount.at("d/mode"), "user.a", &mut value).unwrap();
        assert_eq!(&value[..len], b"2");
        // Working directories.
        assert_eq!(shell.run("echo $(ls)"), "added changed mode new name same");
        assert_eq!(
            shell.run("echo from the shell > made && cat made"),
            "from the shell"
        );
        assert_eq!(below.run("cat f; echo"), "inside");
        let d_new = d.join("new name");
        assert!(d_new.is_dir());
        assert_eq!(
            below.run("readlink /proc/self/cwd"),
            d_new.canonicalize().unwrap().to_str().unwrap()
        );
        // A file that is equal in both trees, open and locked: by its name it is another one.
        let mut before = vec![0; LARGE];
        same.read_exact_at(&mut before, 0).unwrap();
        assert!(before.iter().all(|byte| *byte == b's'));
        let lost = same.write_all_at(b"lost", 0);
        assert!(is_refused(lost.and_then(|()| same.sync_all())));
        let again = mount.open("d/same");
        flock(&again, FlockOperation::NonBlockingLockExclusive).unwrap();
        again.write_all_at(b"written", 0).unwrap();
        again.sync_all().unwrap();
        let mut found = [0; 9];
        again.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"writtenss");
        assert_eq!(mount.main().read("d/made").unwrap(), b"from the shell\n");

        // Back, with what was made in between.
        let undo = mount.restore("begin");
        assert_eq!(
            shell.run("echo $(ls)"),
            "changed mode old name removed same"
        );
        assert_eq!(below.run("cat f; echo"), "inside");
        assert_eq!(fs::read(mount.at("d/changed")).unwrap(), vec![b'a'; LARGE]);
        assert_eq!(fs::read(mount.at("d/same")).unwrap(), vec![b's'; LARGE]);
        again.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"writtenss", "of the version that was replaced");
        mount.restore(&undo);
        assert_eq!(fs::read(mount.at("d/made")).unwrap(), b"from the shell\n");
        assert_eq!(shell.run("cat added; echo"), "added");
        let stat = rustix::fs::statvfs(mount.at("")).unwrap();
        assert_eq!(stat.f_files - stat.f_ffree, {
            let s = mount.main().statfs();
            s.files - s.files_free
        });
        drop((shell, below, same, again, changed, unlinked));
        mount.forget_all();
    });
}

/// As after a rename over it. Programs compare both numbers to see whether their file has moved: a
/// database that does not see it would write a journal for a file that is not its own.
#[test]
fn open_file_and_the_one_in_its_place_are_two() {
    each_way(|write, transport| {
        let mount = Mount::new((write, transport), fill);
        let (changed, removed) = (mount.open("d/changed"), mount.open("d/removed"));
        let same = mount.open("d/same");
        let number = changed.metadata().unwrap().ino();
        let work = mount.work("work");
        work.write("d/changed", "other").unwrap();
        work.remove_file("d/removed").unwrap();
        mount.publish(work);
        let now = fs::metadata(mount.at("d/changed")).unwrap();
        assert_ne!(now.ino(), number);
        assert_eq!(now.nlink(), 1);
        let (old, gone) = (changed.metadata().unwrap(), removed.metadata().unwrap());
        assert_eq!((old.ino(), old.nlink(), gone.nlink()), (number, 0, 0));
        let equal = fs::metadata(mount.at("d/same")).unwrap();
        let open = same.metadata().unwrap();
        assert_ne!(equal.ino(), open.ino());
        assert_eq!((equal.nlink(), open.nlink()), (1, 0));
        let mut entries = fs::read_dir(mount.at("d")).unwrap().map(Result::unwrap);
        let listed = entries.find(|entry| entry.file_name() == "changed");
        assert_eq!(listed.unwrap().ino(), now.ino());
    });
}

/// A mapping has pages of one state only, also those that are read after the switch.
#[test]
fn mapped_pages_are_of_one_state() {
    if !able(Transport::Dev) {
        return;
    }
    let mount = Mount::new((WriteMode::Through, Transport::Dev), fill);
    let script = "import mmap,sys
f = open('changed', 'r+b')
m = mmap.mmap(f.fileno(), 0)
print(m[:4096] == b'a' * 4096, flush=True)
sys.stdin.readline()
print(m[:] == b'a' * len(m), flush=True)
";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .current_dir(mount.at("d"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "True");
    let work = mount.work("work");
    work.write("d/changed", vec![b'b'; LARGE]).unwrap();
    mount.publish(work);
    writeln!(child.stdin.take().unwrap()).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "True");
    child.wait().unwrap();
}

/// Publishes that merge and restores of paths, while a program writes to a file that they do not
/// change: it is told, opens the file again, and what it was told to be durable is in the new state.
#[test]
fn writer_opens_its_file_again_and_loses_nothing() {
    each_way(|write, transport| {
        let mount = Mount::new((write, transport), |main| {
            fill(main);
            main.write("other", "0").unwrap();
            main.snapshot("begin").unwrap();
        });
        let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut file = mount.open("d/same");
                while !stop.load(Ordering::Relaxed) {
                    let round = rounds.fetch_add(1, Ordering::Relaxed);
                    let write = |file: &File| {
                        file.write_all_at(&round.to_le_bytes(), 0)?;
                        file.sync_all()
                    };
                    while let Err(error) = write(&file) {
                        assert!(is_refused(Err(error)));
                        file = mount.open("d/same");
                    }
                    let mut back = [0; 8];
                    let now = mount.open("d/same");
                    now.read_exact_at(&mut back, 0).unwrap();
                    assert_eq!(u64::from_le_bytes(back), round);
                    // It may be replaced between the open and the write.
                    while let Err(error) = fs::write(mount.at("made"), back) {
                        assert!(is_refused(Err(error)));
                    }
                    fs::remove_file(mount.at("made")).unwrap();
                    // A branch that changes without pause is not published.
                    thread::sleep(Duration::from_millis(2));
                }
            });
            for round in 0..50 {
                let work = mount.work(&format!("work{round}"));
                let name = work.name().unwrap();
                work.write("other", format!("{round}")).unwrap();
                drop(work);
                let options = PublishOptions::default();
                settled(|| mount.replacing(|| mount.volume.publish(&name, &options)));
                assert_eq!(
                    fs::read(mount.at("other")).unwrap(),
                    format!("{round}").as_bytes()
                );
                if round % 5 == 4 {
                    let paths = [PathBuf::from("other")];
                    let restore = || mount.volume.restore("begin", "main", &paths);
                    settled(|| mount.replacing(restore));
                    assert_eq!(fs::read(mount.at("other")).unwrap(), b"0");
                }
            }
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap();
        });
        let last = rounds.load(Ordering::Relaxed) - 1;
        mount.sessions.fetch("main").unwrap();
        let same = mount.main().read("d/same").unwrap();
        assert_eq!(&same[..8], last.to_le_bytes());
        mount.forget_all();
    });
}

/// Whatever is read while files are replaced is of one state: through what was opened, and by name.
#[test]
fn readers_never_see_two_states() {
    each_way(|write, transport| {
        let mount = Mount::new((write, transport), |main| {
            main.write("f", vec![0; LARGE]).unwrap();
        });
        let stop = AtomicBool::new(false);
        let read_all = |file: &File| {
            let mut all = vec![0; LARGE];
            file.read_exact_at(&mut all, 0).unwrap();
            assert!(all.iter().all(|byte| *byte == all[0]), "two states");
            all[0]
        };
        thread::scope(|scope| {
            let mut readers = Vec::new();
            for _ in 0..3 {
                readers.push(scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let file = File::open(mount.at("f")).unwrap();
                        let first = read_all(&file);
                        assert_eq!(read_all(&file), first);
                    }
                }));
            }
            for round in 1..=20 {
                let work = mount.work(&format!("work{round}"));
                work.write("f", vec![round; LARGE]).unwrap();
                mount.publish(work);
                assert_eq!(read_all(&File::open(mount.at("f")).unwrap()), round);
            }
            stop.store(true, Ordering::Relaxed);
            readers
                .into_iter()
                .for_each(|reader| reader.join().unwrap());
        });
        mount.forget_all();
    });
}

/// Repeats what was given up because the branch did not stop changing.
fn settled<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> T {
    loop {
        match attempt() {
            Err(Error::Unsettled(_)) => {}
            done => return done.unwrap(),
        }
    }
}

/// What programs have written before counts as a change, wherever it is.
#[test]
fn data_that_has_not_arrived_is_part_of_the_base() {
    each_way(|write, transport| {
        let mount = Mount::new((write, transport), fill);
        let work = mount.work("work");
        work.write("d/changed", "theirs").unwrap();
        let file = mount.open("d/same");
        file.write_all_at(b"ours", 0).unwrap();
        assert!(mount.publish(work).merged, "{write:?}, {transport:?}");
        assert_eq!(mount.main().read("d/same").unwrap()[..5], *b"ourss");
        assert_eq!(fs::read(mount.at("d/changed")).unwrap(), b"theirs");
        drop(file);
        let file = mount.open("d/same");
        file.write_all_at(b"more", 0).unwrap();
        file.sync_all().unwrap();

        let work = mount.work("again");
        work.write("d/same", "theirs").unwrap();
        file.write_all_at(b"mine", 0).unwrap();
        let refused = mount.try_publish(work);
        assert!(
            matches!(&refused, Err(Error::Conflicts(conflicts)) if conflicts.len() == 1),
            "{write:?}, {transport:?}: {refused:?}"
        );
        file.write_all_at(b"goes on", 0).unwrap();
        file.sync_all().unwrap();
    });
}

#[test]
fn new_tree_counts_as_mounted_and_the_old_one_does_not() {
    if !able(Transport::Dev) {
        return;
    }
    let mount = Mount::new((WriteMode::Through, Transport::Dev), fill);
    let old = u64::from(mount.main().file_system().root_id());
    let work = mount.work("work");
    let new = u64::from(work.file_system().root_id());
    work.write("d/changed", "theirs").unwrap();
    drop(work);
    let is_mounted = |tree| {
        matches!(
            mount.sessions.check(Some(tree)),
            Err(NotAdded::Mounted { .. })
        )
    };
    mount.replacing(|| {
        assert!(is_mounted(old) && !is_mounted(new));
        let options = PublishOptions::default();
        mount.volume.publish("work", &options).unwrap();
        assert!(is_mounted(new), "before the mount has switched");
    });
    assert!(!is_mounted(old) && is_mounted(new));
    // A branch that is not mounted is changed alone.
    let (changed, followed) = mount.sessions.replacing("aside", &[], || 7);
    assert_eq!(changed, 7);
    followed.unwrap();
    mount.sessions.fetch("aside").unwrap();
}

#[test]
fn changed_files_leave_nothing_behind() {
    if !able(Transport::Dev) {
        return;
    }
    let files = || (0..1000).map(|n| format!("d/f{n}"));
    let mount = Mount::new((WriteMode::Through, Transport::Dev), |main| {
        fill(main);
        files().for_each(|file| main.write(file, "1").unwrap());
    });
    let open: Vec<File> = files().step_by(10).map(|file| mount.open(&file)).collect();
    for round in 0..3 {
        files().for_each(|file| assert!(mount.at(&file).exists()));
        let work = mount.work(&format!("work{round}"));
        files().for_each(|file| work.write(file, format!("{round}")).unwrap());
        mount.publish(work);
        files().for_each(|file| {
            let read = fs::read_to_string(mount.at(&file)).unwrap();
            assert_eq!(read, format!("{round}"));
        });
    }
    let mut byte = [0];
    for file in &open {
        file.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(&byte, b"1");
    }
    assert_ne!(mount.ops.bound_nodes(), 0);
    drop(open);
    mount.forget_all();
    let roots = mount.volume.roots();
    let undo = roots.iter().filter_map(|root| root.name.clone());
    let undo: Vec<String> = undo.filter(|name| name.contains(".undo-")).collect();
    assert_eq!(undo.len(), 3);
    for name in undo {
        mount.volume.drop_root(&name).unwrap();
    }
    let mode = fs::metadata(mount.at("d")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}
