//! A request that waits for the device does not delay other requests of its queue.
//!
//! The clients of these tests run on one processor, whose ring has one thread. The device holds
//! requests back, so what waits for it cannot end; other requests must be answered all the same.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cairnfs::fs::FileSystem;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::types::Creds;
use cairnfs_fuse::Transport;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::gate::{Held, Mount};
use crate::place::{able, able_with_rings};

const FILES: u64 = 300;
const LEN: usize = 300_000;

fn name(n: u64) -> String {
    format!("file number {n:0100}")
}

fn fill(fs: &FileSystem) {
    let creds = Creds { uid: 0, gid: 0 };
    let dir = fs.mkdir(ROOT_INO, b"cold", 0o40_755, creds).unwrap().ino;
    for n in 0..FILES {
        let made = fs.mknod(dir, name(n).as_bytes(), 0o100_644, 0, creds);
        fs.write(made.unwrap().ino, 0, &vec![n as u8; LEN / 100], false)
            .unwrap();
    }
    let made = fs.mknod(ROOT_INO, b"data", 0o100_644, 0, creds).unwrap();
    fs.write(made.ino, 0, &[7; LEN], false).unwrap();
}

/// Binds the calling thread to the first processor that it may use.
fn bind() {
    bind_to(processors()[0]);
}

/// The processors that this process may use.
pub fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap();
    let all = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    all.collect()
}

/// Binds the calling thread to a processor.
pub fn bind_to(processor: usize) {
    let mut one = CpuSet::new();
    one.set(processor);
    sched_setaffinity(None, &one).unwrap();
}

/// Requests whose answers are in memory.
fn others(mount: &Mount) {
    fs::create_dir(mount.at("new/dir")).unwrap();
    fs::rename(mount.at("new/seen"), mount.at("new/dir/moved")).unwrap();
    assert_eq!(fs::read(mount.at("new/dir/moved")).unwrap(), b"seen");
    assert_eq!(fs::read_dir(mount.at("new")).unwrap().count(), 1);
    assert!(fs::metadata(mount.at("new/nothing")).is_err());
}

/// Runs `waits` while the device holds reads back, and other requests before it ends.
fn others_are_answered(transport: Transport, waits: impl Fn(&Path) + Sync) {
    let mount = Mount::over(transport, fill);
    let dir = mount.dir().to_owned();
    bind();
    fs::create_dir(mount.at("new")).unwrap();
    fs::write(mount.at("new/seen"), b"seen").unwrap();
    thread::scope(|scope| {
        mount.gate.hold(Held::Reads);
        let waiting = scope.spawn(|| {
            bind();
            waits(&dir);
        });
        mount.gate.wait_for(1);
        others(&mount);
        mount.gate.open();
        waiting.join().unwrap();
    });
}

/// Runs a test in a thread of its own, which it may bind, over each transport that there is.
fn over_each(test: impl Fn(Transport) + Sync) {
    if !able(&[]) {
        return;
    }
    let rings = able_with_rings().then_some(Transport::Ring);
    for transport in rings.into_iter().chain([Transport::Dev]) {
        thread::scope(|scope| scope.spawn(|| test(transport)).join().unwrap());
    }
}

#[test]
fn reading_data_does_not_delay_other_requests_of_the_queue() {
    over_each(|transport| {
        others_are_answered(transport, |dir| {
            let mut data = Vec::new();
            let mut file = File::open(dir.join("data")).unwrap();
            file.read_to_end(&mut data).unwrap();
            assert!(data == [7; LEN]);
        });
    });
}

#[test]
fn looking_up_a_cold_name_does_not_delay_other_requests_of_the_queue() {
    over_each(|transport| {
        others_are_answered(transport, |dir| {
            let path = dir.join("cold").join(name(FILES / 2));
            assert_eq!(fs::metadata(path).unwrap().len() as usize, LEN / 100);
        });
    });
}

#[test]
fn overwriting_a_part_of_a_cold_block_does_not_delay_other_requests_of_the_queue() {
    over_each(|transport| {
        others_are_answered(transport, |dir| {
            let file = File::options().write(true).open(dir.join("data"));
            file.unwrap().write_all_at(b"part", 5000).unwrap();
        });
    });
}

/// The write waits for the lock that the read holds; over `/dev/fuse` it would occupy the second of
/// two event loops.
#[test]
fn file_that_is_being_read_can_be_written_meanwhile() {
    if !able_with_rings() {
        return;
    }
    let test = || {
        let mount = Mount::over(Transport::Ring, fill);
        let file = File::options()
            .read(true)
            .write(true)
            .open(mount.at("data"));
        let file = file.unwrap();
        bind();
        fs::create_dir(mount.at("new")).unwrap();
        fs::write(mount.at("new/seen"), b"seen").unwrap();
        thread::scope(|scope| {
            mount.gate.hold(Held::Reads);
            let reading = scope.spawn(|| {
                let mut byte = [0];
                file.read_exact_at(&mut byte, LEN as u64 - 1).unwrap();
                assert_eq!(byte, [7]);
            });
            mount.gate.wait_for(1);
            let writing = scope.spawn(|| file.write_all_at(&[8; 4096], 0).unwrap());
            others(&mount);
            mount.gate.open();
            reading.join().unwrap();
            writing.join().unwrap();
        });
        let mut block = [0; 4097];
        file.read_exact_at(&mut block, 0).unwrap();
        assert!(block[..4096] == [8; 4096] && block[4096] == 7);
    };
    thread::scope(|scope| scope.spawn(test).join().unwrap());
}

/// A client that makes files faster than the log is written is held back, alone. Over `/dev/fuse` the
/// first change of another one would occupy the second of two event loops.
#[test]
fn throttled_writer_does_not_delay_other_requests_of_the_queue() {
    if !able_with_rings() {
        return;
    }
    let test = || {
        let mount = Mount::over(Transport::Ring, fill);
        bind();
        fs::create_dir(mount.at("new")).unwrap();
        fs::write(mount.at("new/seen"), b"seen").unwrap();
        let many = mount.at("many");
        fs::create_dir(&many).unwrap();
        let made = AtomicU64::new(0);
        let stop = AtomicU64::new(0);
        thread::scope(|scope| {
            mount.gate.hold(Held::Writes);
            let writing = scope.spawn(|| {
                bind();
                while stop.load(Ordering::Relaxed) == 0 {
                    let n = made.fetch_add(1, Ordering::Relaxed);
                    let mut file = File::create(many.join(name(n))).unwrap();
                    file.write_all(&[n as u8; 50_000]).unwrap();
                }
            });
            mount.gate.wait_for(1);
            // It is held back if it makes no file during so many requests.
            let (mut seen, mut quiet) = (0, 0);
            while quiet < 2000 {
                let now = made.load(Ordering::Relaxed);
                quiet = if now == seen { quiet + 1 } else { 0 };
                seen = now;
                assert!(fs::metadata(mount.at(format!("new/{now} {quiet}"))).is_err());
            }
            others(&mount);
            stop.store(1, Ordering::Relaxed);
            mount.gate.open();
            writing.join().unwrap();
        });
    };
    thread::scope(|scope| scope.spawn(test).join().unwrap());
}
