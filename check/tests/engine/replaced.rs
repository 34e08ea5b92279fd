//! The main branch is published onto and restored while threads write to it, with workers that
//! merge and free: what a call accepted is in the state that it wrote to, what it refused is in
//! none, and nothing stays in use that no root has.
//!
//! `CAIRNFS_REPLACE_ROUNDS=N` sets the number of replacements.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Error, PublishOptions};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::types::{Attr, Creds, RenameMode, SetAttr};
use cairnfs_tier::size_from;

use super::seen::{assert_sound, options};
use super::snapshots::{fresh, open_with, volume};

/// The first of them changes names.
const WRITERS: u64 = 3;
/// Replacements in a run, unless `CAIRNFS_REPLACE_ROUNDS` sets another number.
const ROUNDS: [u64; 2] = [6, 9];
/// States before replacements that the branch keeps.
const KEPT: usize = 24;
/// One of so many writes is followed by the making of a file, and by an fsync.
const MAKE: u64 = 40;
const SYNC: u64 = 7;

/// What the calls on one root were told.
#[derive(Default)]
struct Told {
    /// By writer, the number that was written last.
    written: BTreeMap<u64, u64>,
    made: BTreeSet<String>,
}

/// By root.
type Accepted = Mutex<BTreeMap<u32, Told>>;

fn name_of(writer: u64) -> String {
    format!("w{writer}")
}

fn block_of(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(BLOCK_SIZE / 8)
}

fn look_up(fs: &FileSystem, name: &str) -> u64 {
    let ino = fs.lookup(1, name.as_bytes()).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

fn make(fs: &FileSystem, name: &str) -> Result<(), Error> {
    let made = fs.mknod(1, name.as_bytes(), 0o100_644, 0, Creds::default())?;
    fs.forget(made.ino, 1);
    Ok(())
}

/// Writes greater and greater numbers until the branch is replaced. Returns the last one.
fn write_until_stale(
    head: &FileSystem,
    (writer, mut n): (u64, u64),
    (ended, accepted): (&AtomicBool, &Accepted),
) -> u64 {
    let ino = look_up(head, &name_of(writer));
    let told = |tell: &dyn Fn(&mut Told)| {
        tell(accepted.lock().unwrap().entry(head.root_id()).or_default());
    };
    while !ended.load(Ordering::Acquire) {
        n += 1;
        let written = head.write(ino, 0, &block_of(n), false);
        let done = written.and_then(|_| {
            told(&|told| {
                told.written.insert(writer, n);
            });
            if n.is_multiple_of(MAKE) {
                let name = format!("made{writer}-{n}");
                make(head, &name)?;
                told(&|told| {
                    told.made.insert(name.clone());
                });
            }
            if n.is_multiple_of(SYNC) {
                head.fsync(ino, false)
            } else {
                Ok(())
            }
        });
        match done {
            Ok(()) => {}
            // A handle that was opened just after the replacement cannot be written at all.
            Err(Error::Stale | Error::ReadOnly) => break,
            Err(e) => panic!("{e}"),
        }
    }
    n
}

/// Makes, renames and removes files, and changes a mode and sizes, without pause until the branch is
/// replaced. What was refused is not seen. Returns the last number.
fn rename_until_stale(
    head: &FileSystem,
    (writer, mut n): (u64, u64),
    (ended, accepted): (&AtomicBool, &Accepted),
) -> u64 {
    let ino = look_up(head, &name_of(writer));
    let still = look_up(head, "still");
    let of = |attr: Attr| (attr.mode, attr.size);
    let seen = |ino| Cell::new(of(head.getattr(ino).unwrap()));
    let told = [ino, still].map(|ino| (ino, seen(ino)));
    let set = |(ino, told): &(u64, Cell<_>), set: SetAttr| {
        told.set(of(head.setattr(*ino, &set)?));
        Ok::<(), Error>(())
    };
    let resized = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let change = |n: u64| {
        for bits in 0..64 {
            let mode = SetAttr {
                mode: Some(bits),
                ..SetAttr::default()
            };
            set(&told[0], mode)?;
            // One has its contents in the index, the other in blocks.
            set(&told[0], resized(1 + u64::from(bits) % 32 * 50))?;
            set(&told[1], resized(20_000 + u64::from(bits) % 32 * 5000))?;
        }
        let (old, new) = (format!("new{writer}"), format!("moved{writer}-{}", n % 8));
        match make(head, &old) {
            // A call that was refused has left it.
            Ok(()) | Err(Error::Exists) => {}
            other => return other,
        }
        match head.unlink(1, new.as_bytes()) {
            Ok(()) | Err(Error::NotFound) => {}
            other => return other,
        }
        accepted.lock().unwrap().entry(head.root_id()).or_default();
        head.rename(1, old.as_bytes(), 1, new.as_bytes(), RenameMode::NoReplace)
    };
    while !ended.load(Ordering::Acquire) {
        n += 1;
        match change(n) {
            Ok(()) => {}
            Err(Error::Stale | Error::ReadOnly) => break,
            Err(e) => panic!("{e}"),
        }
    }
    for (ino, told) in told {
        assert_eq!(seen(ino), told, "inode {ino} after step {n}");
    }
    n
}

/// A publish or restore in the round of this number.
fn replace(fs: &Arc<FileSystem>, round: u64) {
    let v = volume(fs);
    let branch = format!("b{round}");
    match round % 3 {
        0 => {
            let main = v.open_branch("main").unwrap();
            main.snapshot(&format!("s{round}")).unwrap();
            drop(main);
            v.restore(&format!("s{round}"), "main", &[]).unwrap();
        }
        1 => {
            let main = v.open_branch("main").unwrap();
            let changed = main.branch(&branch).unwrap();
            drop(main);
            changed.write("own", vec![round as u8; 30_000]).unwrap();
            drop(changed);
            let published = v.publish(&branch, &PublishOptions::default());
            let published = published.unwrap_or_else(|e| panic!("round {round}: {e}"));
            assert_eq!(published.conflicts.len(), 0);
        }
        _ => {
            let from = format!("s{}", round - 2);
            let paths = [PathBuf::from("still")];
            let restored = v.restore(&from, "main", &paths);
            restored.unwrap_or_else(|e| panic!("round {round}: {e}"));
            v.drop_root(&from).unwrap();
        }
    }
}

/// Compares the roots with what their writers were told. Of the states before replacements the newest
/// [`KEPT`] stay.
fn compare(fs: &Arc<FileSystem>, accepted: Accepted) {
    let accepted = accepted.into_inner().unwrap();
    let (mut compared, all) = (0, accepted.len());
    for (id, told) in accepted {
        let root = match fs.open_root(id) {
            Err(Error::NotFound) if all > KEPT => continue,
            root => root.unwrap(),
        };
        compared += 1;
        for (writer, n) in told.written {
            let mut found = vec![0; BLOCK_SIZE];
            root.read(look_up(&root, &name_of(writer)), 0, &mut found)
                .unwrap();
            let number = u64::from_le_bytes(*found.first_chunk().unwrap());
            assert_eq!(number, n, "root {id}, writer {writer}");
            assert!(found == block_of(n), "root {id}, writer {writer}: mixed");
        }
        for name in told.made {
            look_up(&root, &name);
        }
    }
    assert!(compared >= all.min(KEPT), "{compared} of {all}");
}

/// Writes, and makes, renames and removes names, without pause: each publish and restore succeeds.
/// Contract: replace
#[test]
fn replacements_beside_writers_lose_nothing() {
    let device = fresh(128 << 20);
    let often = Options {
        durability_interval: Some(Duration::from_millis(5)),
        ..options(true)
    };
    let fs = open_with(&device, &often);
    (0..WRITERS).for_each(|writer| make(&fs, &name_of(writer)).unwrap());
    let inline = look_up(&fs, &name_of(0));
    fs.write(inline, 0, b"x", false).unwrap();
    volume(&fs).write("still", vec![1; 20_000]).unwrap();
    let rounds = size_from("CAIRNFS_REPLACE_ROUNDS", ROUNDS[0], ROUNDS[1]);
    let (ended, accepted) = (AtomicBool::new(false), Accepted::default());
    std::thread::scope(|threads| {
        let write = |writer| {
            let (fs, ended, accepted) = (&fs, &ended, &accepted);
            threads.spawn(move || {
                let mut n = 0;
                while !ended.load(Ordering::Acquire) {
                    let head = fs.open_named("main").unwrap();
                    let change = match writer {
                        0 => rename_until_stale,
                        _ => write_until_stale,
                    };
                    n = change(&head, (writer, n), (ended, accepted));
                }
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        let replaced = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..rounds {
                let main = fs.open_named("main").unwrap().root_id();
                let is_written = || accepted.lock().unwrap().contains_key(&main);
                while !is_written() && !writers.iter().any(|writer| writer.is_finished()) {
                    std::thread::yield_now();
                }
                replace(&fs, round);
            }
        }));
        // Without this a failure would leave the writers running.
        ended.store(true, Ordering::Release);
        replaced.unwrap();
    });
    let roots = accepted.lock().unwrap().len() as u64;
    assert!(roots >= rounds / 3, "only {roots} roots were written to");
    // What was refused last is forgotten with the next writeback.
    fs.sync().unwrap();
    compare(&fs, accepted);
    // The first handle has the oldest of the states.
    let main = fs.open_named("main").unwrap();
    drop(fs);
    let names = main.roots().into_iter().filter_map(|root| root.name);
    let others = names.filter(|name| name != "main");
    others.for_each(|name| main.drop_root(&name).unwrap());
    while main.roots().len() > 1 {
        std::thread::yield_now();
    }
    main.close().unwrap();
    assert_sound(&*device, "one root left");
}
