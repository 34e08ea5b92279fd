//! The order of data and log records on the device: data that a record names without a checksum
//! must be durable before the record is written. And how many writes the data of many files takes.

use std::io;
use std::sync::{Arc, Mutex};

use cairnfs::fs::{Fallocate, FileSystem, MakeOptions, Options, make_device};
use cairnfs::{Error, Result};
use cairnfs_disk::device::{Device, MemoryDevice, Piece};

use super::engine::{OWNER, ROOT, copy, open};

const PAGE: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Write { bytes: usize },
    Flush,
}

/// A device that records the operations.
struct Recording {
    device: MemoryDevice,
    done: Mutex<Vec<Done>>,
    /// The number of writes of each call.
    calls: Mutex<Vec<usize>>,
    /// Whether it reports to benefit from concurrent writes.
    together: bool,
    /// Number of writes until one fails.
    fails_after: Mutex<Option<usize>>,
}

impl Recording {
    /// A new volume.
    fn fresh(together: bool) -> Arc<Self> {
        let recording = Arc::new(Self {
            device: MemoryDevice::new(64 << 20),
            done: Mutex::default(),
            calls: Mutex::default(),
            together,
            fails_after: Mutex::default(),
        });
        make_device(&*recording, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        recording
    }

    fn must_fail(&self) -> bool {
        let mut left = self.fails_after.lock().unwrap();
        let fails = *left == Some(0);
        *left = left.and_then(|n| n.checked_sub(1));
        fails
    }
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
        if self.must_fail() {
            return Err(Error::Io {
                op: "write",
                offset,
                len: bytes,
                source: Arc::new(io::Error::from_raw_os_error(libc::EIO)),
            });
        }
        self.done.lock().unwrap().push(Done::Write { bytes });
        self.device.write(offset, buf)
    }

    fn write_all(&self, pieces: &[Piece]) -> Result<()> {
        self.calls.lock().unwrap().push(pieces.len());
        let mut pieces = pieces.iter();
        pieces.try_for_each(|piece| self.write(piece.offset, &piece.bytes()))
    }

    fn writes_together(&self) -> bool {
        self.together
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
    let device = Recording::fresh(true);
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

const FILES: usize = 1000;

/// The contents of a small file: all differ.
fn contents(n: usize) -> Vec<u8> {
    format!("file {n};").into_bytes().repeat(300)
}

fn many_files(fs: &FileSystem) -> Vec<u64> {
    let write = |n: usize| {
        let name = format!("f{n}");
        let made = fs.mknod(ROOT, name.as_bytes(), 0o100_644, 0, OWNER);
        let ino = made.unwrap().ino;
        fs.write(ino, 0, &contents(n), false).unwrap();
        ino
    };
    (0..FILES).map(write).collect()
}

#[track_caller]
fn all_read(fs: &FileSystem, files: &[u64]) {
    for (n, ino) in files.iter().enumerate() {
        let mut bytes = vec![0; 2 * PAGE];
        let len = fs.read(*ino, 0, &mut bytes).unwrap();
        bytes.truncate(len);
        assert!(bytes == contents(n), "file {n}");
    }
}

/// A sync writes the pages of many files together, and flushes them before the records that name
/// them.
#[test]
fn sync_of_many_files_takes_few_writes() {
    for together in [true, false] {
        let device = Recording::fresh(together);
        let fs = open(device.clone());
        let files = many_files(&fs);
        device.done.lock().unwrap().clear();
        fs.sync().unwrap();

        let done = device.done.lock().unwrap().clone();
        let writes = done.iter().filter(|d| matches!(d, Done::Write { .. }));
        assert!(writes.count() <= FILES / 25, "{done:?}");
        let first = done.iter().position(|d| *d == Done::Flush).unwrap();
        let bytes = |d: &Done| match d {
            Done::Write { bytes } => *bytes,
            Done::Flush => 0,
        };
        let data: usize = done.iter().take(first).map(bytes).sum();
        assert_eq!(data, FILES * PAGE, "{done:?}");
        all_read(&open(copy(&device.device)), &files);
    }
}

/// Small files of which there are more than memory for unwritten pages: those before them go
/// together, a part at a time.
#[test]
fn small_files_beyond_the_memory_for_pages_take_few_writes() {
    const BUDGET: usize = 8 << 20;
    const UNWRITTEN: usize = BUDGET / 8;
    let device = Recording::fresh(true);
    let options = Options {
        cache_budget: BUDGET,
        ..Options::default()
    };
    let fs = FileSystem::open_device(Arc::clone(&device) as _, &options).unwrap();
    device.done.lock().unwrap().clear();
    let files = many_files(&fs);
    let done = device.done.lock().unwrap().clone();
    let sizes = done.iter().filter_map(|d| match d {
        Done::Write { bytes } => Some(*bytes),
        Done::Flush => None,
    });
    let written: usize = sizes.clone().sum();
    assert!(written >= FILES * PAGE - UNWRITTEN, "{done:?}");
    assert!(sizes.count() <= FILES / 8, "{done:?}");
    all_read(&fs, &files);
}

/// Pages that go to separate places of the device are submitted in one call, also those of a file
/// with more of them than are staged for a record.
#[test]
fn separate_places_are_written_in_one_call() {
    let device = Recording::fresh(true);
    let fs = open(device.clone());
    let sparse = file(&fs, "sparse", 0);
    fs.fallocate(
        sparse,
        0,
        128 * PAGE as u64,
        Fallocate::Allocate { keep_size: false },
        false,
    )
    .unwrap();
    fs.sync().unwrap();
    for n in 0..16 {
        let two = [n as u8 + 1; 2 * PAGE];
        fs.write(sparse, n * 8 * PAGE as u64, &two, false).unwrap();
    }
    device.calls.lock().unwrap().clear();
    fs.fsync(sparse, false).unwrap();
    assert_eq!(*device.calls.lock().unwrap(), [16, 1], "data, record");
}

/// A write for several files fails: the sync tells it, so does a later one, and no file has lost
/// what was written to it as long as the volume is open.
#[test]
fn failed_write_for_many_files_fails_the_sync_and_keeps_their_data() {
    for good in [0, 3, FILES / 64] {
        let device = Recording::fresh(true);
        let fs = open(device.clone());
        let kept = file(&fs, "kept", 1);
        fs.sync().unwrap();
        let files = many_files(&fs);
        *device.fails_after.lock().unwrap() = Some(good);
        let failed = fs.sync();
        assert!(
            matches!(failed, Err(Error::Io { op: "write", .. })),
            "{failed:?}"
        );
        all_read(&fs, &files);
        let again = fs.sync();
        assert!(matches!(again, Err(Error::Stopped(_))), "{again:?}");
        all_read(&fs, &files);

        let later = open(copy(&device.device));
        let mut bytes = vec![0; 2 * PAGE];
        assert_eq!(later.read(kept, 0, &mut bytes).unwrap(), PAGE);
        assert!(later.lookup(ROOT, b"f0").is_err(), "no record was written");
    }
}
