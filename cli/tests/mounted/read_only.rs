//! `-o ro` mounts of a volume that was killed with a long log: the daemon's memory, and the
//! directory of its temporary file.
//!
//! Contract: readonly

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use cairnfs::fs::{FileSystem, Options};
use cairnfs_disk::types::Creds;

use crate::place::{CAIRNFS, Place, able, arg, said, succeed, umount};

/// Produces about 23 MiB of log; replaying it at once takes 150 MB of memory.
const FILES: usize = 140_000;
/// Produces about 8 MiB of log; replaying it takes a temporary file if the cache has 16 MiB.
const FEWER: usize = 50_000;
const MEMORY: u64 = 110 << 20;

const BLOCK: usize = 4 << 10;
const NODE: usize = 16 << 10;

/// A volume whose log, of so many new files, has not been merged.
fn killed(files: usize) -> Place {
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
    for n in 0..files {
        let name = format!("file{n}");
        engine
            .mknod(1, name.as_bytes(), 0o100_644, 0, owner)
            .unwrap();
    }
    engine.sync().unwrap();
    assert!(engine.info().log_used > files as u64 * 90);
    succeed(Command::new("cp").args(["--sparse=always", arg(&used), arg(&place.volume())]));
    // Dropping the engine closes the original; the copy is the state after a kill.
    drop(engine);
    place
}

/// Contract: readonly
#[test]
fn read_only_replay_of_long_log_stays_in_cache_budget() {
    if !able(&[]) {
        return;
    }
    let mut place = killed(FILES);
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

/// Fails to mount with this directory for temporary files. Returns the output of the command.
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
fn failed_temporary_file_is_reported_with_directory() {
    if !able(&[]) {
        return;
    }
    let mut place = killed(FEWER);
    let temporary = place.beside("temporary");
    let named = |text: &str| text.contains(arg(&temporary)) && text.contains("set TMPDIR");
    let text = refused(&place, &temporary);
    assert!(named(&text), "{text}");
    fs::create_dir(&temporary).unwrap();
    let small = ["-t", "tmpfs", "-o", "size=1M", "tmpfs", arg(&temporary)];
    succeed(Command::new("mount").args(small));
    let text = refused(&place, &temporary);
    umount(&temporary);
    assert!(named(&text) && text.contains("No space left"), "{text}");
    // As the message suggests: after one mount for writing, the volume can be mounted read-only.
    place.mount("");
    place.umount();
    place.mount("ro,cache=16M");
    place.finish();
}

/// Contract: readonly
#[test]
fn read_only_mount_without_its_root_directory_is_unmounted() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("16M");
    place.mount("rw");
    fs::write(place.dir().join("only-file"), "contents").unwrap();
    place.umount();
    let mut image = fs::read(place.volume()).unwrap();
    for at in (0..image.len() - NODE).step_by(BLOCK) {
        let node = &mut image[at..at + NODE];
        if node.starts_with(b"CNod") && node.windows(9).any(|name| name == b"only-file") {
            node[9000] ^= 1;
        }
    }
    fs::write(place.volume(), image).unwrap();
    place.mount("ro");
    let unread = fs::read_dir(place.dir()).unwrap_err();
    assert_eq!(
        unread.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    place.umount();
}
