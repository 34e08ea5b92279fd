//! Discarding free space: statfs counts the blocks as available meanwhile, and an allocation that
//! finds no other blocks waits for the discard. A failed discard does not stop the volume.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs::{Error, Result};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::types::Creds;

use super::seen::{assert_sound, options};

/// A device whose discards signal that they began, and wait until they are released.
struct HeldDiscards {
    memory: MemoryDevice,
    began: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
}

impl Device for HeldDiscards {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.memory.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }
    fn discards(&self) -> bool {
        true
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let _ = self.began.lock().unwrap().send(());
        // An error means that the sender is gone: no discard is held.
        let _ = self.go_on.lock().unwrap().recv();
        self.memory.discard(offset, len)
    }
}

/// Contract: failure.space
#[test]
fn space_being_discarded_counts_as_available() {
    let (begins, began) = channel();
    let (let_go, go_on) = channel::<()>();
    let device = Arc::new(HeldDiscards {
        memory: MemoryDevice::new(16 << 20),
        began: Mutex::new(begins),
        go_on: Mutex::new(go_on),
    });
    make_device(&device.memory, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let quiet = cairnfs::fs::Options {
        discard: false,
        ..options(false)
    };
    let fs = FileSystem::open_device(device, &quiet).unwrap();
    let make = |name: &str| fs.mknod(1, name.as_bytes(), 0o100_644, 0, Creds::default());
    let rest = make("rest").unwrap().ino;
    let mut at = 0;
    while fs.statfs().available > 200 {
        at += fs.write(rest, at, &[9; 16_384], false).unwrap() as u64;
    }
    fs.sync().unwrap();
    fs.merge().unwrap();
    let available = fs.statfs().available;
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| fs.trim());
        began.recv().unwrap();
        assert!(fs.statfs().available.abs_diff(available) <= 4);
        let (asks, asked) = channel();
        let others = scope.spawn(move || {
            asks.send(()).unwrap();
            (0..20)
                .map(|i| make(&i.to_string()).map(|_| ()))
                .collect::<Result<Vec<()>>>()
        });
        asked.recv().unwrap();
        drop(let_go);
        others.join().unwrap().unwrap();
        trim.join().unwrap().unwrap();
    });
}

/// A device whose discards fail.
struct Refusing(MemoryDevice);

impl Device for Refusing {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.0.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        Err(Error::Io {
            op: "discard",
            offset,
            len: len as usize,
            source: Arc::new(std::io::Error::other("refused")),
        })
    }
}

#[test]
fn failed_discard_does_not_stop_volume() {
    let device = Arc::new(Refusing(MemoryDevice::new(16 << 20)));
    make_device(&device.0, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    let who = Creds::default();
    for round in 0..3 {
        let file = fs.mknod(1, b"file", 0o100_644, 0, who).unwrap().ino;
        fs.write(file, 0, &[7; 4 << 20], false).unwrap();
        fs.sync().unwrap();
        fs.forget(file, 1);
        fs.unlink(1, b"file").unwrap();
        fs.merge().unwrap();
        assert!(fs.failure().is_none(), "round {round}");
    }
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}
