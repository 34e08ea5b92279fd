//! The order of data and log records on the device: data that a record names without a checksum
//! must be durable before the record is written.

use std::sync::{Arc, Mutex};

use cairnfs::Result;
use cairnfs::device::{Device, MemoryDevice};
use cairnfs::fs::{FileSystem, MakeOptions, make_device};

use super::engine::{OWNER, ROOT, open};

const PAGE: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Write { bytes: usize },
    Flush,
}

/// A device that reports to benefit from concurrent writes, and records the operations.
struct Recording {
    device: MemoryDevice,
    done: Mutex<Vec<Done>>,
}

impl Device for Recording {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let bytes = buf.len();
        self.done.lock().unwrap().push(Done::Write { bytes });
        self.device.write(offset, buf)
    }

    fn writes_together(&self) -> bool {
        true
    }

    fn flush(&self) -> Result<()> {
        self.done.lock().unwrap().push(Done::Flush);
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }
}

fn file(fs: &FileSystem, name: &str, pages: usize) -> u64 {
    let made = fs.mknod(ROOT, name.as_bytes(), 0o100_644, 0, OWNER);
    let ino = made.unwrap().ino;
    fs.write(ino, 0, &vec![7; pages * PAGE], false).unwrap();
    ino
}

/// The file has too much data for checksums in the record. Its staged end has been written with
/// another record; that record's flush does not cover the data written since.
#[test]
fn unchecksummed_data_is_flushed_before_its_record() {
    let device = Arc::new(Recording {
        device: MemoryDevice::new(64 << 20),
        done: Mutex::default(),
    });
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = open(device.clone());

    let long = file(&fs, "long", 1024 + 16);
    fs.write_out(long).unwrap();
    fs.fsync(file(&fs, "other", 2), false).unwrap();
    let much = [file(&fs, "much", 1000), file(&fs, "more", 100)];
    device.done.lock().unwrap().clear();
    fs.fsync_all(&[long, much[0], much[1]]).unwrap();

    let done = device.done.lock().unwrap().clone();
    let data = |d: &Done| matches!(d, Done::Write { bytes } if *bytes >= 64 * PAGE);
    let last = done.iter().rposition(data).unwrap();
    let after: Vec<_> = done.iter().skip(last + 1).collect();
    assert!(
        matches!(after[..], [Done::Flush, Done::Write { .. }, Done::Flush]),
        "{done:?}"
    );
}
