//! Messages that the kernel sends for common operations, as counted by the daemon.
//!
//! The budget is the table in docs/internals/mount.md: a measurement must not exceed it, and must
//! use it up, so that the table stays exact. All operations run in one process, one after another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    FallocateFlags, IFlags, Mode, OFlags, SeekFrom, XattrFlags, copy_file_range, fallocate,
    ioctl_getflags, listxattr, open, removexattr, seek, setxattr, statfs,
};

use super::place::{Place, able, caches_are_kept, shell, tell};

/// Repetitions of each operation.
const TIMES: u64 = 200;

/// Permitted deviation of a count from `TIMES` times the budget: a tenth of a message for each
/// repetition. It covers what is sent once (a LOOKUP of the directory itself), a FORGET that the
/// daemon has not yet received when the counters are read, and a WRITE that the kernel splits
/// because it reclaimed a page.
const SLACK: u64 = TIMES / 10;

/// Measurements of which one must keep to the budget. The kernel forgets names when memory is
/// short, and looks them up again; an operation that sends too much does so every time.
const MEASUREMENTS: u64 = 3;

/// The table with the budget.
const TABLE: &str = "docs/internals/mount.md";

/// Number of messages by the names of the daemon's counters.
type Messages = BTreeMap<String, u64>;

/// Least and greatest number of messages for one repetition, by name in the table.
type Budget = BTreeMap<String, (u64, u64)>;

/// An operation of the table. The functions receive a directory of their own.
struct Operation {
    /// Its name in the table.
    name: &'static str,
    /// Makes the files. The volume is mounted anew after that, so all caches of the kernel are
    /// empty.
    prepare: fn(&Path),
    /// Fills the kernel's caches, before the counters are read.
    warm: fn(&Path),
    /// Does the operation `TIMES` times.
    run: fn(&Path),
}

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "create",
        prepare: |_| {},
        warm: |_| {},
        run: |dir| each(dir, |path| drop(File::create_new(path).unwrap())),
    },
    Operation {
        name: "create, write",
        prepare: |_| {},
        warm: |_| {},
        run: |dir| each(dir, |path| fs::write(path, BLOCK).unwrap()),
    },
    Operation {
        name: "read, cold",
        prepare: make_files,
        warm: |_| {},
        run: read_files,
    },
    Operation {
        name: "read, cached",
        prepare: make_files,
        warm: read_files,
        run: read_files,
    },
    Operation {
        name: "write + fsync",
        prepare: make_file,
        warm: |_| {},
        run: |dir| write_and_sync(dir, &[7; 64 << 10]),
    },
    Operation {
        name: "append + fsync",
        prepare: make_file,
        warm: |_| {},
        run: |dir| {
            let options = OpenOptions::new().append(true).open(file(dir, 0));
            let mut file = options.unwrap();
            repeat(|_| {
                file.write_all(BLOCK).unwrap();
                file.sync_all().unwrap();
            });
        },
    },
    Operation {
        name: "overwrite + fsync",
        prepare: |dir| fs::write(file(dir, 0), BLOCK.repeat(TIMES as usize)).unwrap(),
        warm: |_| {},
        run: |dir| write_and_sync(dir, BLOCK),
    },
    Operation {
        name: "mail",
        prepare: |dir| {
            fs::create_dir(dir.join("tmp")).unwrap();
            fs::create_dir(dir.join("new")).unwrap();
        },
        warm: |_| {},
        run: deliver,
    },
    Operation {
        name: "rename over",
        prepare: |dir| {
            make_files(dir);
            each(dir, |path| fs::write(old(path), BLOCK).unwrap());
        },
        warm: |dir| {
            read_files(dir);
            each(dir, |path| {
                assert!(fs::metadata(old(path)).unwrap().is_file())
            });
        },
        run: |dir| each(dir, |path| fs::rename(path, old(path)).unwrap()),
    },
    Operation {
        name: "unlink",
        prepare: make_files,
        warm: read_files,
        run: |dir| each(dir, |path| fs::remove_file(path).unwrap()),
    },
    Operation {
        name: "setxattr",
        prepare: make_files,
        warm: read_files,
        run: |dir| {
            each(dir, |path| {
                setxattr(path, "user.name", b"value", XattrFlags::empty()).unwrap();
            });
        },
    },
    Operation {
        name: "listing, cold",
        prepare: make_directories,
        warm: |_| {},
        run: list,
    },
    Operation {
        name: "listing, second",
        prepare: make_directories,
        warm: list,
        run: list,
    },
    Operation {
        name: "listing, later",
        prepare: make_directories,
        warm: |dir| (0..2).for_each(|_| list(dir)),
        run: list,
    },
];

const BLOCK: &[u8] = &[7; 4096];

/// Files in each directory that is listed.
const ENTRIES: u64 = 10;

fn repeat(operation: impl FnMut(u64)) {
    (0..TIMES).for_each(operation);
}

fn file(dir: &Path, n: u64) -> PathBuf {
    dir.join(format!("f{n}"))
}

fn old(path: &Path) -> PathBuf {
    path.with_extension("old")
}

fn each(dir: &Path, mut operation: impl FnMut(&Path)) {
    repeat(|n| operation(&file(dir, n)));
}

fn make_file(dir: &Path) {
    fs::write(file(dir, 0), b"").unwrap();
}

fn make_files(dir: &Path) {
    each(dir, |path| fs::write(path, BLOCK).unwrap());
}

/// Reads each file with a single `read(2)` that fits.
fn read_files(dir: &Path) {
    let mut bytes = [0; BLOCK.len()];
    each(dir, |path| {
        assert_eq!(
            File::open(path).unwrap().read(&mut bytes).unwrap(),
            BLOCK.len()
        );
    });
}

/// Writes one file from its beginning, and syncs after each write.
fn write_and_sync(dir: &Path, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(file(dir, 0)).unwrap();
    repeat(|n| {
        file.write_all_at(bytes, n * bytes.len() as u64).unwrap();
        file.sync_all().unwrap();
    });
}

/// Delivers messages like a mail server: the steps of `cairnfs-bench maildir`.
fn deliver(dir: &Path) {
    let new = File::open(dir.join("new")).unwrap();
    repeat(|n| {
        let (from, to) = (file(&dir.join("tmp"), n), file(&dir.join("new"), n));
        let mut message = File::create_new(&from).unwrap();
        message.write_all(BLOCK).unwrap();
        message.sync_all().unwrap();
        drop(message);
        fs::rename(from, to).unwrap();
        new.sync_all().unwrap();
    });
}

fn make_directories(dir: &Path) {
    each(dir, |path| {
        fs::create_dir(path).unwrap();
        for n in 0..ENTRIES {
            fs::write(file(path, n), b"contents").unwrap();
        }
    });
}

fn read_entries(dir: &Path, n: u64) {
    for n in 0..n {
        fs::read(file(dir, n)).unwrap();
    }
}

/// Lists each directory with the attributes of all entries, as `ls -l`.
fn list(dir: &Path) {
    each(dir, list_one);
}

fn list_one(dir: &Path) {
    let entries = fs::read_dir(dir).unwrap();
    let files = entries.filter(|entry| entry.as_ref().unwrap().metadata().unwrap().is_file());
    assert_eq!(files.count() as u64, ENTRIES);
}

/// Reads the daemon's counters. The request goes to the root, which no operation changes, so that
/// the kernel sends nothing else for it; the request itself is not counted.
fn counted(place: &Place) -> Messages {
    let report = place.ok(&["stats", "--json", "m"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    serde_json::from_value(report["messages"].clone()).unwrap()
}

/// The counters when two reports agree: messages that nobody awaits may be on their way during one.
/// The statistics themselves send no counted message, or no two reports would agree.
fn settled(place: &Place) -> Messages {
    let mut before = counted(place);
    loop {
        let now = counted(place);
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Measures all operations: the messages of `TIMES` repetitions of each, by name of the operation.
fn measure(mode: &str) -> Vec<(&'static str, Messages)> {
    let options = format!("durability=0,write={mode}");
    let mut place = Place::mounted("512M", &options);
    let dir = |operation: &Operation| PathBuf::from(operation.name);
    for operation in OPERATIONS {
        let dir = place.at(dir(operation));
        fs::create_dir(&dir).unwrap();
        (operation.prepare)(&dir);
    }
    fs::create_dir(place.at("other")).unwrap();
    place.remount(&options);
    // The first of each makes the daemon refuse OPEN, CREATE and FLUSH, and the kernel stop.
    fs::write(place.at("other/file"), BLOCK).unwrap();
    fs::read(place.at("other/file")).unwrap();
    let measured = OPERATIONS.iter().map(|operation| {
        let dir = place.at(dir(operation));
        (operation.warm)(&dir);
        let before = settled(&place);
        (operation.run)(&dir);
        let after = settled(&place).into_iter();
        let sent = after.map(|(name, n)| (name.to_uppercase(), n - before[&name]));
        (operation.name, sent.filter(|(_, n)| *n > 0).collect())
    });
    let measured = measured.collect();
    place.finish();
    measured
}

/// Parses a budget such as `LOOKUP 1, SETATTR 0-1`, or `none`.
fn budget(cell: &str) -> Budget {
    let entry = |text: &str| {
        let (name, amount) = text.split_once(' ').expect("a name and a number");
        let (least, most) = amount.split_once('-').unwrap_or((amount, amount));
        (
            name.to_owned(),
            (least.parse().unwrap(), most.parse().unwrap()),
        )
    };
    match cell {
        "none" => Budget::new(),
        _ => cell.split(", ").map(entry).collect(),
    }
}

/// What a measurement says against a budget.
fn violations(sent: &Messages, budget: &Budget, exact: bool) -> Vec<String> {
    let names: BTreeSet<_> = sent.keys().chain(budget.keys()).collect();
    let judged = names.into_iter().filter_map(|name| {
        let n = sent.get(name).copied().unwrap_or(0);
        let (least, most) = budget.get(name).copied().unwrap_or((0, 0));
        let text = |what: &str| {
            let each = n as f64 / TIMES as f64;
            Some(format!("{name}: {each:.2} each, {what} {least} to {most}"))
        };
        if n > most * TIMES + SLACK {
            text("more than")
        } else if exact && n + SLACK < least * TIMES {
            text("the table is too generous with")
        } else {
            None
        }
    });
    judged.collect()
}

/// The budgets of one write mode from the document, by operation, and whether this kernel is the
/// one for which the table is exact.
fn documented(mode: &str) -> (BTreeMap<String, Budget>, bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(TABLE);
    let text = fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once("\n## Messages per operation\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut rows = section.lines().filter_map(|line| {
        let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
        Some(
            row.split(" | ")
                .map(|c| c.replace('`', ""))
                .collect::<Vec<_>>(),
        )
    });
    let head = rows.next().unwrap();
    let column = |name: &str| head.iter().position(|c| c == name).unwrap();
    let (through, more) = (column("write=through"), column("more with write=back"));
    let budgets = rows.map(|row| {
        let mut all = budget(&row[through]);
        if mode == "back" {
            all.extend(budget(&row[more]));
        }
        (row[0].clone(), all)
    });
    let (_, version) = section.split_once("exact for Linux ").unwrap();
    let version: String = version
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    let running = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let exact = running.starts_with(&format!("{}.", version.trim_end_matches('.')));
    (budgets.collect(), exact)
}

fn compare(mode: &str) {
    if !able(&[]) {
        return;
    }
    let _caches = caches_are_kept();
    let (budgets, exact) = documented(mode);
    if !exact {
        tell(&format!(
            "{TABLE}: another kernel, only the upper bounds are checked"
        ));
    }
    let names: BTreeSet<_> = OPERATIONS.iter().map(|operation| operation.name).collect();
    let rows: BTreeSet<_> = budgets.keys().map(String::as_str).collect();
    assert_eq!(names, rows, "operations, rows of {TABLE}");
    let mut wrong = String::new();
    for _ in 0..MEASUREMENTS {
        wrong = complaints(&measure(mode), &budgets, exact);
        if wrong.is_empty() {
            return;
        }
    }
    panic!("write={mode}, {TABLE}:\n{wrong}");
}

/// What a measurement of all operations says against their budgets, a line for each violation.
fn complaints(
    measured: &[(&str, Messages)],
    budgets: &BTreeMap<String, Budget>,
    exact: bool,
) -> String {
    let mut wrong = String::new();
    for (name, sent) in measured {
        for text in violations(sent, &budgets[*name], exact) {
            writeln!(wrong, "{name}: {text}; all: {sent:?}").unwrap();
        }
    }
    wrong
}

#[test]
fn operations_keep_to_their_budget_with_write_through() {
    compare("through");
}

#[test]
fn operations_keep_to_their_budget_with_write_back() {
    compare("back");
}

/// A mount with these options, and a directory in it, whose directories were listed and their files read.
fn listed_and_read(options: &str) -> (Place, PathBuf) {
    let mut place = Place::mounted("64M", "durability=0");
    let dir = place.at("d");
    fs::create_dir(&dir).unwrap();
    make_directories(&dir);
    place.remount(options);
    list(&dir);
    each(&dir, |path| read_entries(path, ENTRIES));
    (place, dir)
}

/// Attributes of files that were read are asked for one by one at first, and then, as soon as the
/// kernel has dropped the listings, come with new ones.
#[test]
fn directories_whose_files_were_read_are_listed_again() {
    if !able(&[]) {
        return;
    }
    let _caches = caches_are_kept();
    let (place, dir) = listed_and_read("durability=0");
    let mut before = settled(&place);
    let mut sent = |n| {
        list_one(&file(&dir, n));
        let after = settled(&place);
        let sent = |name: &str| after[name] - before[name];
        let sent = (sent("getattr"), sent("readdirplus"));
        before = after;
        sent
    };
    let (asked, listed) = sent(0);
    assert!(asked > ENTRIES / 2 && listed == 0, "{asked}, {listed}");
    let renewed: Vec<bool> = (1..TIMES).map(|n| matches!(sent(n), (0..=2, 2))).collect();
    let first = renewed.iter().position(|renewed| *renewed).unwrap();
    let rest = &renewed[first..];
    let most = rest.iter().filter(|renewed| **renewed).count();
    assert!(10 * most >= 9 * rest.len(), "{most} of {}", rest.len());
    place.finish();
}

/// There the kernel takes no access time for stale.
#[test]
fn read_only_mounts_keep_their_listings() {
    if !able(&[]) {
        return;
    }
    let _caches = caches_are_kept();
    let (place, dir) = listed_and_read("ro");
    let before = settled(&place);
    list(&dir);
    assert_eq!(settled(&place), before);
    place.finish();
}

#[test]
fn excess_and_generosity_are_violations() {
    let found = |sent: &[(&str, u64)], cell: &str| {
        let sent = sent.iter().map(|(name, n)| ((*name).to_owned(), *n));
        violations(&sent.collect(), &budget(cell), true).len()
    };
    let exact = [("LOOKUP", TIMES + 1), ("OPEN", 1), ("WRITE", 2 * TIMES)];
    assert_eq!(found(&exact, "LOOKUP 1, WRITE 2"), 0);
    assert_eq!(found(&exact, "LOOKUP 1, WRITE 0-2"), 0);
    assert_eq!(found(&exact, "WRITE 1"), 2);
    assert_eq!(found(&exact, "none"), 2);
    assert_eq!(found(&exact, "LOOKUP 2, WRITE 2, READ 1"), 2);
    assert_eq!(found(&[("LOOKUP", TIMES / 2)], "LOOKUP 1"), 1);
    assert_eq!(found(&[], "none"), 0);
}

/// READDIR is missing: every listing comes with attributes.
#[test]
fn every_message_is_counted_and_shown() {
    if !able(&["rm"]) {
        return;
    }
    let place = Place::mounted("64M", "durability=0");
    let (dir, path) = (place.at("d"), place.at("d/f"));
    fs::create_dir(&dir).unwrap();
    fs::write(&path, BLOCK).unwrap();
    fs::hard_link(&path, place.at("d/link")).unwrap();
    symlink("f", place.at("d/symlink")).unwrap();
    fs::read_link(place.at("d/symlink")).unwrap();
    drop(
        open(
            &dir,
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::RUSR,
        )
        .unwrap(),
    );
    setxattr(&path, "user.name", b"value", XattrFlags::empty()).unwrap();
    listxattr(&path, &mut [0_u8; 256][..]).unwrap();
    removexattr(&path, "user.name").unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 8192).unwrap();
    seek(&file, SeekFrom::Hole(0)).unwrap();
    let copy = File::create(place.at("d/copy")).unwrap();
    copy_file_range(&file, Some(&mut 0), &copy, None, 4096).unwrap();
    assert_eq!(ioctl_getflags(&file).unwrap(), IFlags::empty());
    file.set_len(5000).unwrap();
    assert!(fs::read(place.at("d/copy")).unwrap() == BLOCK);
    file.sync_all().unwrap();
    drop((file, copy));
    File::open(&dir).unwrap().sync_all().unwrap();
    statfs(&dir).unwrap();
    fs::rename(&path, place.at("d/new")).unwrap();
    shell(
        &place.dir(),
        "ls -l d; getfattr -n user.name d || true; rm -r d",
    );
    let counts = counted(&place);
    let none: Vec<_> = counts.iter().filter(|(_, n)| **n == 0).collect();
    assert_eq!(none, [(&"readdir".to_owned(), &0)]);
    assert_eq!((counts["mkdir"], counts["rmdir"]), (1, 1));
    let total: u64 = counts.values().sum();
    let table = place.ok(&["stats", "m"]);
    let row = |name: &str, n: u64| {
        let mut rows = table.lines().filter_map(|line| line.strip_prefix(name));
        rows.any(|rest| rest.trim() == n.to_string())
    };
    assert!(row("messages from the kernel", total), "{total}: {table}");
    assert!(
        row("  rmdir", 1) && !table.contains("  readdir "),
        "{table}"
    );
    let metrics = place.ok(&["stats", "--prometheus", "m"]);
    assert!(metrics.contains("operation=\"rmdir\"} 1\n"), "{metrics}");
    assert!(metrics.contains("operation=\"readdir\"} 0\n"), "{metrics}");
    let later = place.ok(&["stats", "--json", "-i", "0.01", "-n", "2", "m"]);
    let later: serde_json::Value = serde_json::from_str(later.lines().nth(1).unwrap()).unwrap();
    assert_eq!(
        (&later["messages"]["rmdir"], &later["messages"]["mkdir"]),
        (&0.into(), &0.into())
    );
    place.finish();
}
