//! Helpers that use the engine below [`cairnfs::Volume`], in memory: opened without workers,
//! killed, opened again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairnfs::device::{Device, MemoryDevice};
use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs::{Error, Mechanism, Result};
use cairnfs_disk::types::Creds;

pub const ROOT: u64 = 1;
pub const OWNER: Creds = Creds { uid: 0, gid: 0 };

/// Opens a file system without workers: all work is done within the calls.
pub fn open(device: Arc<dyn Device>) -> Arc<FileSystem> {
    open_with(device, Options::default())
}

/// Like [`open`], with other options.
pub fn open_with(device: Arc<dyn Device>, options: Options) -> Arc<FileSystem> {
    let options = Options {
        workers: false,
        durability_interval: None,
        ..options
    };
    FileSystem::open_device(device, &options).unwrap()
}

/// Like [`open`], without one mechanism.
pub fn open_ablated(device: Arc<dyn Device>, ablated: Option<Mechanism>) -> Arc<FileSystem> {
    let options = Options {
        ablated,
        ..Options::default()
    };
    open_with(device, options)
}

pub fn fresh() -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(super::SIZE);
    make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    Arc::new(device)
}

/// Copies a device in its current state, as after a kill of the process.
pub fn copy(device: &MemoryDevice) -> Arc<MemoryDevice> {
    let copy = MemoryDevice::new(device.size());
    let mut chunk = vec![0; 1 << 20];
    for at in (0..device.size()).step_by(chunk.len()) {
        device.read(at, &mut chunk).unwrap();
        if chunk.iter().any(|b| *b != 0) {
            copy.write(at, &chunk).unwrap();
        }
    }
    Arc::new(copy)
}

pub fn create(fs: &FileSystem, name: &str) -> u64 {
    let made = fs.mknod(ROOT, name.as_bytes(), 0o100_644, 0, OWNER);
    made.unwrap().ino
}

/// A device whose flushes fail after [`Self::fail`].
pub struct FailingFlushes {
    device: Arc<MemoryDevice>,
    fails: AtomicBool,
}

impl FailingFlushes {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            device: fresh(),
            fails: AtomicBool::new(false),
        })
    }

    pub fn fail(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }
}

impl Device for FailingFlushes {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.device.write(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            Err(Error::Io {
                op: "flush",
                offset: 0,
                len: 0,
                source: Arc::new(io::Error::other("the device has failed")),
            })
        } else {
            self.device.flush()
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }
}
