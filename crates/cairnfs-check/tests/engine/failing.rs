//! A device that fails: the volume stops, says why, and loses nothing that was durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairnfs::device::{Device, MemoryDevice};
use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs::types::Creds;
use cairnfs::{Error, Result};
use proptest::prelude::*;

use crate::ops::{Op, Run, op, refused};
use crate::seen::{assert_sound, options};

/// A device on which, after a number of writes, every write and flush fails.
struct Failing {
    device: Arc<MemoryDevice>,
    left: AtomicU64,
}

impl Failing {
    fn fail(&self, op: &'static str) -> Result<()> {
        let left = self.left.load(Ordering::SeqCst);
        if left > 0 {
            self.left.store(left - 1, Ordering::SeqCst);
            return Ok(());
        }
        Err(Error::Io {
            op,
            offset: 0,
            len: 0,
            source: Arc::new(std::io::Error::other("injected")),
        })
    }
}

impl Device for Failing {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.fail("write")?;
        self.device.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.fail("flush")?;
        self.device.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }
}

/// What was synced before the device failed is there afterwards; from the failure on nothing
/// changes, nothing is acknowledged, and the volume says why.
fn run_failing(ops: &[Op], fail_after: u64) {
    let inner = Arc::new(MemoryDevice::new(32 << 20));
    make_device(&*inner, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let device = Arc::new(Failing {
        device: inner.clone(),
        left: AtomicU64::new(u64::MAX),
    });
    let fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    let mut run = Run {
        fs: fs.clone(),
        held: Vec::new(),
    };
    let kept = fs
        .mknod(1, b"kept", 0o100_600, 0, Creds::default())
        .unwrap()
        .ino;
    fs.write(kept, 0, &[7; 10_000], false).unwrap();
    fs.fsync(kept, false).unwrap();
    device.left.store(fail_after, Ordering::SeqCst);
    for op in ops {
        match run.apply(op) {
            Ok(()) => assert!(
                !matches!(op, Op::Sync | Op::Fsync(..)) || fs.failure().is_none(),
                "{op:?} was acknowledged after the failure"
            ),
            Err(e) if refused(&e) => {}
            Err(e) => assert!(matches!(e, Error::Io { .. } | Error::Stopped(_)), "{e}"),
        }
    }
    let failed = fs.sync().is_err();
    assert_eq!(failed, fs.failure().is_some());
    if failed {
        let e = fs.mkdir(1, b"late", 0o755, Creds::default()).unwrap_err();
        assert!(e.to_string().contains("injected"), "{e}");
        assert!(fs.close().is_err());
    } else {
        device.left.store(u64::MAX, Ordering::SeqCst);
        fs.close().unwrap();
    }
    assert_sound(&*inner, "failed");
    let again = FileSystem::open_device(inner.clone(), &options(false)).unwrap();
    let found = again.lookup(1, b"kept").unwrap();
    let mut bytes = vec![0; 10_000];
    assert_eq!(again.read(found.ino, 0, &mut bytes).unwrap(), 10_000);
    assert!(bytes.iter().all(|b| *b == 7));
    again.forget(found.ino, 1);
    again.close().unwrap();
    assert_sound(&*inner, "closed again");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_failing_device_stops_the_volume(
        ops in proptest::collection::vec(op(), 20..120),
        fail_after in 0u64..150,
    ) {
        run_failing(&ops, fail_after);
    }
}
