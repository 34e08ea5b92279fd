//! `kill -9` of the daemon at random moments under load, repeatedly on one volume.
//!
//! After each kill: the check finds nothing, the volume mounts, and all data that was reported
//! durable is intact. Each mount has a random write mode. `CAIRNFS_KILL_ROUNDS` sets the number
//! of kills (10), `CAIRNFS_KILL_SEED` repeats a run's moments and modes.
//!
//! Contract: dependency, dependency.data, durable.fsync

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairnfs_tier::size_from;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::kill_load::{Load, workers};
use crate::place::{Place, Random, able, arg, succeed, tell};

#[test]
fn kills_lose_no_durable_data() {
    if !able(&["fusermount3", "sqlite3"]) {
        return;
    }
    let rounds = size_from("CAIRNFS_KILL_ROUNDS", 3_u64, 10);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = now.as_nanos() as u64 >> 10 | 1;
    let seed = size_from("CAIRNFS_KILL_SEED", now, now);
    tell(&format!("{rounds} kills with CAIRNFS_KILL_SEED={seed}"));
    let mut random = Random(seed | 1);
    let mut place = Place::mounted("8G", "durability=1");
    let mut before: Vec<Box<dyn Load>> = Vec::new();
    for round in 0..rounds {
        let place_of_round = place.at(format!("round{round}"));
        let old = round.checked_sub(2).map(|r| place.at(format!("round{r}")));
        let delay = Duration::from_millis(random.below(1500));
        let now = load_until_killed(
            &mut place,
            &place_of_round,
            old.as_deref(),
            &mut random,
            delay,
        );
        let what = format!("round {round}, seed {seed}, killed after {delay:?}");
        println!("{what}");
        place.check();
        // Every other round leaves the dead mount, so that `mount` must replace it.
        if round % 2 == 0 {
            succeed(std::process::Command::new("fusermount3").args([
                "-u",
                "-z",
                arg(&place.dir()),
            ]));
        }
        place.mount(match random.below(2) {
            0 => "durability=1,write=through",
            _ => "durability=1,write=back",
        });
        for load in before.iter().chain(&now) {
            load.verify(&what);
        }
        before = now;
    }
    place.finish();
}

/// Runs all workers in `dir` and the removal of `old`, and kills the daemon after `delay`.
fn load_until_killed(
    place: &mut Place,
    dir: &Path,
    old: Option<&Path>,
    random: &mut Random,
    delay: Duration,
) -> Vec<Box<dyn Load>> {
    std::fs::create_dir(dir).unwrap();
    let mut loads = workers(dir, random);
    let stop = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        for load in &mut loads {
            let stop = Arc::clone(&stop);
            scope.spawn(move || while !stop.load(Ordering::Relaxed) && load.step().is_ok() {});
        }
        if let Some(old) = old {
            // Ends with an error if the kill comes first.
            scope.spawn(move || drop(std::fs::remove_dir_all(old)));
        }
        thread::sleep(delay);
        place.kill();
        stop.store(true, Ordering::Relaxed);
    });
    loads
}

/// A branch has all that programs have written, so the kernel is asked for it, by a call that waits
/// for replies of the daemon. If the daemon is killed then, the kernel must end that call: so it is
/// made by another process, which has nothing of the daemon.
#[test]
fn daemon_whose_data_is_fetched_can_be_killed() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("1G", "write=back");
    let ended = AtomicBool::new(false);
    let dir = place.dir();
    thread::scope(|scope| {
        for n in 0..3 {
            let (file, ended) = (File::create(dir.join(format!("f{n}"))), &ended);
            scope.spawn(move || {
                let file = file.unwrap();
                let mut at = 0;
                while !ended.load(Ordering::Relaxed) && file.write_all_at(&[7; 65536], at).is_ok() {
                    at = (at + 65536) % (8 << 20);
                }
            });
        }
        let commands = ["branch", "drop"].map(|word| place.command(&[word, "-q", "m", "b"]));
        let branches = scope.spawn(move || {
            let mut commands = commands;
            let mut succeed = |_: &_| {
                let mut commands = commands.iter_mut();
                commands.all(|command| command.status().unwrap().success())
            };
            (0..300).take_while(&mut succeed).count()
        });
        let pid = place.daemon_pid();
        let open = loop {
            let open = open_where_it_is_fetched(pid, &dir);
            if open.is_some() || branches.is_finished() {
                break open;
            }
        };
        ended.store(true, Ordering::Relaxed);
        let open = open.expect("a process that fetches");
        let is_of_daemon = |path: &Path| path.ends_with("fuse") || path == place.volume();
        assert!(!open.iter().any(|path| is_of_daemon(path)), "{open:?}");
        place.kill();
    });
    place.check();
    place.mount("");
    place.finish();
}

/// A search for data or holes waits until the kernel has written the file back, which needs replies of
/// the daemon. If that is killed then, the kernel must end the wait.
#[test]
fn daemon_that_fetches_pages_can_be_killed() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("1G", "write=back");
    let ended = AtomicBool::new(false);
    let names: Vec<PathBuf> = (0..3).map(|n| place.at(format!("f{n}"))).collect();
    let files: Vec<File> = names
        .iter()
        .map(|name| File::create(name).unwrap())
        .collect();
    thread::scope(|scope| {
        for (file, ended) in files.iter().map(|file| (file, &ended)) {
            scope.spawn(move || {
                let mut at = 0;
                while !ended.load(Ordering::Relaxed) && file.write_all_at(&[7; 65536], at).is_ok() {
                    at = (at + 65536) % (8 << 20);
                }
            });
            scope.spawn(move || {
                let find = || seek(file, SeekFrom::Data(0));
                let goes_on =
                    |found| found != Err(Errno::NOTCONN) && found != Err(Errno::CONNABORTED);
                while !ended.load(Ordering::Relaxed) && goes_on(find()) {}
            });
        }
        let pid = place.daemon_pid();
        let notifies = |child: &String| {
            let line = std::fs::read(format!("/proc/{child}/cmdline"));
            line.is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"notify"))
        };
        let began = std::time::Instant::now();
        while !children_of(pid).iter().any(notifies) {
            let waited = began.elapsed() < Duration::from_secs(60);
            ended.store(!waited, Ordering::Relaxed);
            assert!(waited, "no process notifies");
        }
        place.kill();
        ended.store(true, Ordering::Relaxed);
    });
    drop(files);
    place.check();
    place.mount("");
    place.finish();
}

/// The process numbers of the children of a process.
fn children_of(pid: i32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let lists = tasks.into_iter().flatten().flatten().filter_map(|task| {
        let children = std::fs::read_to_string(task.path().join("children"));
        children.ok()
    });
    let all: Vec<String> = lists.collect();
    let numbers = all.iter().flat_map(|list| list.split_whitespace());
    numbers.map(str::to_owned).collect()
}

/// What the child of a process has open that has a directory open.
fn open_where_it_is_fetched(pid: i32, dir: &Path) -> Option<Vec<PathBuf>> {
    let list = |path: String| std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut children = children_of(pid).into_iter();
    children.find_map(|child| {
        let open = list(format!("/proc/{child}/fd"));
        let open = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let open: Vec<PathBuf> = open.collect();
        open.iter().any(|path| path == dir).then_some(open)
    })
}
