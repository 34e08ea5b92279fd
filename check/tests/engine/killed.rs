//! Volumes that are closed, killed at any write, and mounted again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairnfs::Result;
use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_tier::size;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::ops::{Op, Run, op, refused};
use super::seen::{assert_sound, options, tree};

/// A device that copies its contents after a given number of writes, as a kill leaves them.
struct Killed {
    device: MemoryDevice,
    left: AtomicU64,
    image: Mutex<Option<Arc<MemoryDevice>>>,
}

impl Killed {
    fn new(size: u64, after: u64) -> Self {
        Self {
            device: MemoryDevice::new(size),
            left: AtomicU64::new(after),
            image: Mutex::new(None),
        }
    }

    fn copy(&self) -> Arc<MemoryDevice> {
        let copy = MemoryDevice::new(self.device.size());
        let mut chunk = vec![0; 1 << 20];
        for at in (0..self.device.size()).step_by(chunk.len()) {
            self.device.read(at, &mut chunk).unwrap();
            if chunk.iter().any(|b| *b != 0) {
                copy.write(at, &chunk).unwrap();
            }
        }
        Arc::new(copy)
    }
}

impl Device for Killed {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }
    fn writes_together(&self) -> bool {
        true
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.device.write(offset, buf)?;
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            *self.image.lock() = Some(self.copy());
        }
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }
}

fn run(ops: &[Op], size: u64, kill_after: u64, workers: bool) {
    let device = Arc::new(Killed::new(size, u64::MAX));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    device.left.store(kill_after, Ordering::SeqCst);
    let fs = FileSystem::open_device(device.clone(), &options(workers)).unwrap();
    let mut run = Run {
        fs: fs.clone(),
        held: Vec::new(),
    };
    for (i, op) in ops.iter().enumerate() {
        if let Err(e) = run.apply(op) {
            assert!(refused(&e), "{i}: {op:?}: {e}");
        }
    }
    for ino in run.held.drain(..) {
        fs.forget(ino, 1);
    }
    let before = tree(&fs);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    let reopened = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    assert_eq!(tree(&reopened), before);
    reopened.close().unwrap();
    let Some(image) = device.image.lock().take() else {
        return;
    };
    assert_sound(&*image, "killed");
    let seen = {
        let read_only = Options {
            read_only: true,
            ..options(false)
        };
        let fs = FileSystem::open_device(image.clone(), &read_only).unwrap();
        tree(&fs)
    };
    let again = FileSystem::open_device(image.clone(), &options(false)).unwrap();
    assert_sound(&*image, "mounted again");
    assert_eq!(tree(&again), seen);
    again.merge().unwrap();
    assert_eq!(tree(&again), seen);
    again.close().unwrap();
    assert_sound(&*image, "closed again");
    let last = FileSystem::open_device(image, &options(false)).unwrap();
    assert_eq!(tree(&last), seen);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: size(12, 48), ..ProptestConfig::default() })]

    /// Contract: atomic
    #[test]
    fn volume_is_sound_after_close_and_kill(
        ops in proptest::collection::vec(op(), 1..250),
        kill_after in 1u64..400,
        workers in any::<bool>(),
    ) {
        run(&ops, 64 << 20, kill_after, workers);
    }

    /// Contract: atomic, failure.space
    #[test]
    fn full_volume_is_sound_after_close_and_kill(
        ops in proptest::collection::vec(op(), 100..400),
        kill_after in 1u64..2000,
    ) {
        run(&ops, 16 << 20, kill_after, false);
    }
}
