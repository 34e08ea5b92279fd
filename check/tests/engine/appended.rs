//! An append is refused because the writeback of its file cannot read: nothing of the append
//! remains.
//!
//! Contract: failure.space

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairnfs::Error;
use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::types::{Creds, Fallocate};

use super::seen::options;

/// A device whose reads can be made to fail.
struct Unread {
    device: MemoryDevice,
    fails: AtomicBool,
}

impl Device for Unread {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> cairnfs::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            Err(Error::Io {
                op: "read",
                offset,
                len: buf.len(),
                source: Arc::new(std::io::Error::other("no reading now")),
            })
        } else {
            self.device.read(offset, buf)
        }
    }
    fn write(&self, offset: u64, buf: &[u8]) -> cairnfs::Result<()> {
        self.device.write(offset, buf)
    }
    fn flush(&self) -> cairnfs::Result<()> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> cairnfs::Result<()> {
        self.device.discard(offset, len)
    }
}

#[test]
fn refused_append_leaves_no_data() {
    const BLOCK: u64 = 4096;
    let device = Arc::new(Unread {
        device: MemoryDevice::new(64 << 20),
        fails: AtomicBool::new(false),
    });
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    let who = Creds::default();
    let file = fs.mknod(1, b"file", 0o100_644, 0, who).unwrap().ino;
    fs.write(file, 0, &vec![1; 8 << 20], false).unwrap();
    for block in (0..2047).step_by(2) {
        let hole = Fallocate::PunchHole;
        fs.fallocate(file, block * BLOCK, BLOCK, hole, false)
            .unwrap();
    }
    fs.close().unwrap();

    let fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    fs.lookup(1, b"file").unwrap();
    let before = fs.getattr(file).unwrap().size;
    device.fails.store(true, Ordering::Relaxed);
    let appended = fs.append(file, &vec![2; 2 << 20], false);
    device.fails.store(false, Ordering::Relaxed);
    let after = fs.getattr(file).unwrap().size;
    assert_eq!(appended.is_err(), before == after);
}
