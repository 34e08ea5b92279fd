//! Several threads on one volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairnfs::Error;
use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::{Creds, XattrMode};
use cairnfs_tier::size;
use proptest::prelude::*;

use super::ops::{Op, Run, op, refused};
use super::seen::{assert_sound, options, tree};

/// Runs operations of several threads in the same few directories, with workers and little memory.
fn run_threads(scripts: Vec<Vec<Op>>, size: u64) {
    let device = Arc::new(MemoryDevice::new(size));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(true)).unwrap();
    std::thread::scope(|scope| {
        for script in scripts {
            let mut run = Run {
                fs: fs.clone(),
                held: Vec::new(),
            };
            scope.spawn(move || {
                for op in &script {
                    if let Err(e) = run.apply(op) {
                        assert!(refused(&e), "{op:?}: {e}");
                    }
                }
                for ino in run.held.drain(..) {
                    run.fs.forget(ino, 1);
                }
            });
        }
    });
    let before = tree(&fs);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    let reopened = FileSystem::open_device(device, &options(false)).unwrap();
    assert_eq!(tree(&reopened), before);
}

/// Sets and removes the same few values on a thread's own files and on files of all threads.
fn share_values(fs: &Arc<FileSystem>, inos: &[u64], rounds: u64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let merges = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                fs.merge().unwrap();
            }
        });
        let work = |thread: u64| {
            let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread + 1);
            for round in 0..rounds {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(round);
                let pick = |bits: u32, among: usize| (random >> bits) as usize % among;
                let own = &inos[thread as usize * 8..][..8];
                let file = match pick(60, 4) {
                    0 => inos[pick(40, inos.len())],
                    _ => own[pick(40, own.len())],
                };
                let name = format!("user.{}", pick(36, 2));
                let value = vec![pick(32, 5) as u8; [70, 400, 5000][pick(28, 3)]];
                let result = match pick(24, 3) {
                    0 => fs.removexattr(file, name.as_bytes()),
                    _ => fs.setxattr(file, name.as_bytes(), &value, XattrMode::Set),
                };
                assert!(result.as_ref().err().is_none_or(refused), "{result:?}");
                let again = inos[pick(20, inos.len())];
                if let Ok(value) = fs.getxattr(again, name.as_bytes()) {
                    assert!(value.windows(2).all(|w| w[0] == w[1]), "a mixed value");
                }
                if pick(16, 32) == 0 {
                    fs.fsync(file, false).unwrap();
                }
            }
        };
        let workers: Vec<_> = (0..8).map(|t| scope.spawn(move || work(t))).collect();
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Release);
        merges.join().unwrap();
    });
}

/// The offline check compares the use counts, and the last user removes the value.
/// Contract: atomic.attributes
#[test]
fn threads_share_values_during_merges() {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(true)).unwrap();
    let inos: Vec<u64> = (0..64)
        .map(|i| {
            let name = format!("f{i}");
            let made = fs.mknod(1, name.as_bytes(), 0o100_644, 0, Creds::default());
            made.unwrap().ino
        })
        .collect();
    share_values(&fs, &inos, 3000);
    let before = tree(&fs);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    let fs = FileSystem::open_device(device.clone(), &options(true)).unwrap();
    assert_eq!(tree(&fs), before);
    for ino in &inos {
        for name in [b"user.0", b"user.1"] {
            let removed = fs.removexattr(*ino, name);
            assert!(matches!(removed, Ok(()) | Err(Error::NoAttribute)));
        }
    }
    fs.close().unwrap();
    let report = check(&*device, &CheckOptions::default(), &mut |_| {}).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!((report.stats.xattrs, report.stats.shared_values), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: size(8, 24), ..ProptestConfig::default() })]

    /// Contract: atomic
    #[test]
    fn threads_leave_a_sound_volume(
        scripts in proptest::collection::vec(proptest::collection::vec(op(), 100..300), 2..6),
        small in any::<bool>(),
    ) {
        run_threads(scripts, if small { 16 << 20 } else { 128 << 20 });
    }
}
