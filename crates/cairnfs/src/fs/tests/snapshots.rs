//! Snapshots that are made in the middle of other calls.

use std::sync::Arc;

use crate::device::{Device, MemoryDevice};
use crate::error::Result;
use crate::format::BLOCK_SIZE;
use crate::fs::extents::Extent;
use crate::fs::{FileSystem, MakeOptions, Options, make_device};
use crate::sync::Mutex;
use crate::types::{Creds, Fallocate};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// What a device does once, before its next write of this block.
type Before = (u64, Box<dyn FnOnce() + Send>);

/// A device that runs a closure before a write of data.
struct Interrupted {
    memory: MemoryDevice,
    before: Mutex<Option<Before>>,
}

impl Device for Interrupted {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let blocks = offset / BLOCK..(offset + buf.len() as u64) / BLOCK;
        let due = {
            let mut before = self.before.lock();
            before.take_if(|(block, _)| blocks.contains(block))
        };
        if let Some((_, before)) = due {
            before();
        }
        self.memory.write(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }
}

fn options() -> Options {
    Options {
        cache_budget: 8 << 20,
        durability_interval: None,
        workers: false,
        seed: Some(1),
        ..Options::default()
    }
}

/// The extents of a file.
fn extents(fs: &FileSystem, ino: u64) -> Vec<Extent> {
    let inode = fs.inode(ino).unwrap();
    let state = inode.read();
    let found = fs.extents(&inode, &state, 0, u64::MAX, usize::MAX).unwrap();
    found.into_vec()
}

/// A snapshot comes between the write of data into preallocated blocks and the commit of its
/// extents: the blocks belong to the snapshot, so the data gets others.
#[test]
fn unwritten_write_races_snapshot() {
    let device = Arc::new(Interrupted {
        memory: MemoryDevice::new(64 << 20),
        before: Mutex::default(),
    });
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options()).unwrap();
    let ino = fs
        .mknod(1, b"f", 0o100_644, 0, Creds::default())
        .unwrap()
        .ino;
    let what = Fallocate::Allocate { keep_size: false };
    fs.fallocate(ino, 0, 4 * BLOCK, what, false).unwrap();
    fs.merge().unwrap();
    let allocated = extents(&fs, ino)[0].block;
    fs.write(ino, BLOCK, &[7; BLOCK_SIZE], false).unwrap();
    let forked = fs.clone();
    let fork = move || forked.core.snapshot("s").unwrap();
    *device.before.lock() = Some((allocated + 1, Box::new(fork)));
    fs.write_back(&fs.inode(ino).unwrap()).unwrap();
    assert!(device.before.lock().is_none(), "no write in place");
    let boundary = fs.items().inherited();
    assert!(boundary > 0);
    let pieces = extents(&fs, ino);
    let written = pieces.iter().find(|e| e.at == 1).unwrap();
    assert!(!written.is_unwritten());
    assert_ne!(written.block, allocated + 1, "the snapshot's block");
    assert!(written.birth > boundary);
    for rest in pieces.iter().filter(|e| e.at != 1) {
        assert!(rest.is_unwritten() && rest.birth <= boundary, "{rest:?}");
    }
    fs.sync().unwrap();
    fs.merge().unwrap();
    let reserved = fs.core.space().reserved();
    assert_eq!(reserved.0, 0, "the page's reservation was returned");
    fs.close().unwrap();
    let snapshot = Options {
        read_only: true,
        root: Some("s".into()),
        ..options()
    };
    let mut bytes = vec![1; 4 * BLOCK_SIZE];
    let kept = FileSystem::open_device(device, &snapshot).unwrap();
    assert_eq!(kept.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.iter().all(|b| *b == 0));
}
