//! Mounts with `-o ro` of a volume that was killed with a long log: the memory of the daemon, and
//! the directory of its temporary file.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use cairnfs::fs::{FileSystem, Options};
use cairnfs::types::Creds;

use crate::place::{CAIRNFS, Place, able, arg, said, succeed};

/// Some 23 MiB of log, which take 150 MB of memory to replay at once.
const FILES: usize = 140_000;
const MEMORY: u64 = 110 << 20;

/// A volume whose log no merge has taken.
fn killed() -> Place {
    let place = Place::new("2G");
    let options = Options {
        workers: false,
        durability_interval: None,
        cache_budget: 2 << 30,
        ..Options::default()
    };
    let used = place.beside("used.cairn");
    fs::rename(place.volume(), &used).unwrap();
    let engine = FileSystem::open(&used, &options).unwrap();
    let owner = Creds { uid: 0, gid: 0 };
    for n in 0..FILES {
        let name = format!("file{n}");
        engine
            .mknod(1, name.as_bytes(), 0o100_644, 0, owner)
            .unwrap();
    }
    engine.sync().unwrap();
    assert!(engine.info().log_used > 12 << 20);
    succeed(Command::new("cp").args(["--sparse=always", arg(&used), arg(&place.volume())]));
    // This closes it; the copy is as a kill would have left it.
    drop(engine);
    place
}

#[test]
fn a_long_log_takes_no_more_memory_than_the_cache() {
    if !able(&[]) {
        return;
    }
    let mut place = killed();
    let before = succeed(Command::new("sha256sum").arg(place.volume()));
    place.mount("ro,cache=16M");
    assert_eq!(fs::read_dir(place.dir()).unwrap().count(), FILES);
    let memory = place.daemon_memory();
    println!("at most {} MiB of memory", memory >> 20);
    assert!(memory < MEMORY, "{memory} bytes");
    place.umount();
    let after = succeed(Command::new("sha256sum").arg(place.volume()));
    assert_eq!(before, after);
    place.check();
}

/// Mounts in vain, with this directory for temporary files; tells what the command said.
fn refused(place: &Place, temporary: &Path) -> String {
    let mount = ["mount", "-o", "ro,cache=16M"];
    let mount = Command::new(CAIRNFS)
        .args(mount)
        .args([place.volume(), place.dir()])
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(mount.status.code(), Some(32));
    said(&mount)
}

#[test]
fn a_temporary_file_that_fails_is_told_with_its_directory() {
    if !able(&[]) {
        return;
    }
    let mut place = killed();
    let temporary = place.beside("temporary");
    let named = |text: &str| text.contains(arg(&temporary)) && text.contains("set TMPDIR");
    let text = refused(&place, &temporary);
    assert!(named(&text), "{text}");
    fs::create_dir(&temporary).unwrap();
    let small = ["-t", "tmpfs", "-o", "size=1M", "tmpfs", arg(&temporary)];
    succeed(Command::new("mount").args(small));
    let text = refused(&place, &temporary);
    succeed(Command::new("umount").arg(&temporary));
    assert!(named(&text) && text.contains("No space left"), "{text}");
    // As the message says: mounted for writing once, it can be mounted read-only.
    place.mount("");
    place.umount();
    place.mount("ro,cache=16M");
    place.finish();
}
