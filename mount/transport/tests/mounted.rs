//! A small file system on a real mount, over both transports.
//!
//! Needs root and `/dev/fuse`; a test that lacks them says so and ends, or fails with
//! `CAIRNFS_REQUIRE_FUSE=1`. Tests of rings end, too, if the kernel has no FUSE over io_uring.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    unsafe_code,
    reason = "a test fails by panicking; seccomp(2) has no wrapper"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write as _};
use std::path::Path;
use std::thread;

use cairnfs_transport::Transport;
use rustix::mount::{UnmountFlags, unmount};

use crate::memory::Mounted;

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251 + seed) as u8).collect()
}

/// Files of many sizes, written, synced, read and listed by several threads.
fn use_files(mounted: &Mounted) {
    let dir = mounted.dir.path();
    thread::scope(|scope| {
        for t in 0..4usize {
            scope.spawn(move || {
                for n in 0..60usize {
                    let bytes = pattern(n * t, n * n * 700);
                    let path = dir.join(format!("file {t} {n}"));
                    fs::write(&path, &bytes).unwrap();
                    File::open(&path).unwrap().sync_all().unwrap();
                    let file = File::open(&path).unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    assert!(fs::read(&path).unwrap() == bytes, "{}", path.display());
                    if n % 3 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(fs::read_dir(mounted.dir.path()).unwrap().count(), 4 * 40);
}

/// Makes io_uring_setup(2) fail for this thread and the threads that it starts.
fn forbid_io_uring() {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        // The number of the system call is the first field of `struct seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::SYS_io_uring_setup as u32,
            0,
            1,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            0,
            0,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: prctl(2) reads the program, which lives during the call.
    let (promised, filtered) = unsafe {
        (
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program),
        )
    };
    assert_eq!(
        (promised, filtered),
        (0, 0),
        "{}",
        io::Error::last_os_error()
    );
}

#[test]
fn files_over_device_where_io_uring_is_forbidden() {
    let tested = thread::spawn(|| {
        forbid_io_uring();
        let Some(mut mounted) = Mounted::new(Transport::Ring) else {
            return;
        };
        use_files(&mounted);
        assert_eq!(mounted.traffic.transport(), "dev");
        mounted.end().unwrap();
    });
    tested.join().unwrap();
}

#[test]
fn lazy_unmount_ends_rings_with_the_last_file() {
    let Some(mut mounted) = Mounted::new(Transport::Ring) else {
        return;
    };
    fs::write(mounted.path("f"), "before").unwrap();
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .append(true)
        .open(mounted.path("f"))
        .unwrap();
    unmount(mounted.dir.path(), UnmountFlags::DETACH).unwrap();
    file.write_all(b" and after").unwrap();
    file.seek(io::SeekFrom::Start(0)).unwrap();
    assert_eq!(io::read_to_string(&file).unwrap(), "before and after");
    assert!(!mounted.session.as_ref().unwrap().is_finished());
    drop(file);
    mounted.end().unwrap();
}

#[test]
fn forced_unmount_ends_rings_with_requests_in_service() {
    let Some(mut mounted) = Mounted::new(Transport::Ring) else {
        return;
    };
    let file = File::create(mounted.path("stuck")).unwrap();
    let syncing = thread::spawn(move || file.sync_all());
    mounted.held.recv().unwrap();
    unmount(
        mounted.dir.path(),
        UnmountFlags::FORCE | UnmountFlags::DETACH,
    )
    .unwrap();
    let error = syncing.join().unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNABORTED));
    drop(mounted.release.take());
    mounted.end().unwrap();
}

#[test]
fn files_over_device() {
    let Some(mut mounted) = Mounted::new(Transport::Dev) else {
        return;
    };
    use_files(&mounted);
    assert_eq!(mounted.traffic.transport(), "dev");
    mounted.end().unwrap();
}

/// Makes, reads and removes a file again and again.
fn use_alone(path: &Path, times: usize) {
    for n in 0..times {
        let bytes = pattern(n, n % 9000);
        fs::write(path, &bytes).unwrap();
        assert!(fs::read(path).unwrap() == bytes, "{}", path.display());
        fs::remove_file(path).unwrap();
    }
}

/// A loop that follows a client stops when others come, and follows the next one.
#[test]
fn lone_client_is_followed() {
    let Some(mut mounted) = Mounted::new(Transport::Dev) else {
        return;
    };
    if thread::available_parallelism().unwrap().get() == 1 {
        println!("skipped: there is one processor");
        return;
    }
    for n in 0..3 {
        let before = mounted.traffic.followed();
        // Names of different lengths have different numbers.
        let path = |thread: usize| mounted.path(&"x".repeat(5 * n + thread + 1));
        // Some ten messages are enough; others may take the processors for a while.
        while mounted.traffic.followed() == before {
            let path = path(0);
            thread::spawn(move || use_alone(&path, 500)).join().unwrap();
        }
        thread::scope(|scope| {
            for thread in 0..4 {
                let path = path(thread);
                scope.spawn(move || use_alone(&path, 200));
            }
        });
    }
    mounted.end().unwrap();
}

#[test]
fn files_over_ring() {
    let Some(mut mounted) = Mounted::new(Transport::Ring) else {
        return;
    };
    use_files(&mounted);
    assert_eq!(mounted.traffic.transport(), "ring");
    mounted.end().unwrap();
}
