//! Whether a volume in a file is read through the page cache of the host, and what if that is wrong.

use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Result, Volume};
use cairnfs_disk::device::{Device, MemoryDevice};

/// Bytes that this thread has fetched from devices so far (proc(5)).
fn fetched() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let bytes = io.lines().find_map(|l| l.strip_prefix("read_bytes: "));
    bytes.unwrap().parse().unwrap()
}

#[test]
fn volume_of_a_program_is_read_through_it_and_that_of_a_kernel_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let new = Volume::options().create(true).size(64 << 20);
    new.open(&path).unwrap().close().unwrap();
    let place = rustix::fs::statfs(dir.path()).unwrap();
    if ![0xef53, 0x5846_5342].contains(&place.f_type) {
        // Elsewhere reads are as writes.
        return;
    }
    let opening_fetches = |kernel_caches| {
        let options = Options {
            read_only: true,
            kernel_caches,
            ..Options::default()
        };
        let before = fetched();
        FileSystem::open(&path, &options).unwrap().close().unwrap();
        fetched() - before
    };
    // The first one brings the nodes into the page cache that an opening reads.
    opening_fetches(false);
    assert!(opening_fetches(false) < opening_fetches(true));
}

/// A device whose host has read everything wrongly.
struct ReadWrongly(Arc<MemoryDevice>);

impl Device for ReadWrongly {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read(offset, buf)
    }
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read(offset, buf)?;
        buf.iter_mut().step_by(1000).for_each(|byte| *byte ^= 1);
        Ok(())
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.0.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }
}

#[test]
fn what_was_read_wrongly_is_read_again() {
    let contents = |n: usize| vec![n as u8; 1 + n % 10 * 3000];
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let volume = Volume::options().create_device(device.clone()).unwrap();
    for n in 0..1000 {
        volume.write(format!("file{n}"), contents(n)).unwrap();
    }
    volume.close().unwrap();
    let device = Arc::new(ReadWrongly(device));
    let volume = Volume::options().open_device(device).unwrap();
    assert_eq!(volume.read_dir("/").unwrap().count(), 1000);
    for n in 0..1000 {
        assert!(volume.read(format!("file{n}")).unwrap() == contents(n));
    }
    volume.close().unwrap();
}
