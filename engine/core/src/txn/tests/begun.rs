//! A change of roots that fails after it has begun: it cannot be taken back, so the volume stops.

use std::sync::Arc;

use crate::fs::{MakeOptions, make_device};
use crate::txn::{Core, Limits, Need, OpenMode};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::root::Root;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

const FILES: u64 = 400;

/// A device of which the block at an offset cannot be read; at 0 there is none.
struct Unreadable {
    device: MemoryDevice,
    at: AtomicU64,
}

impl Device for Unreadable {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = self.at.load(Ordering::Relaxed);
        if at > 0 && (offset..offset + buf.len() as u64).contains(&at) {
            return Err(Error::Io {
                op: "read",
                offset,
                len: buf.len(),
                source: Arc::new(std::io::Error::other("unreadable")),
            });
        }
        self.device.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.device.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }
}

fn open(device: &Arc<Unreadable>) -> Result<Core> {
    let mode = OpenMode::seeded(Limits::for_budget(8 << 20));
    Core::open(device.clone(), mode)
}

/// Commits items of more than one leaf.
fn fill(core: &Core) -> Result<()> {
    let items = core.open_root(core.main_root())?;
    for ino in 1000..1000 + FILES {
        let reservation = core.reserve(&items, Need::items(1, 256, 0))?;
        let inode = items.table().get_or_new(ino);
        let mut state = inode.write();
        let mut commit = core.commit(&items)?;
        commit.put(&inode, &mut state, Kind::Inline, 0, &[1; 200], false);
        let receipt = commit.finish(reservation);
        drop(state);
        core.throttle(receipt)?;
    }
    Ok(())
}

/// The input of an earlier change is kept meanwhile. It must not be taken for that of the failed one,
/// whose roots would be in memory and never in the log.
#[test]
fn volume_stops_if_a_change_of_roots_fails_after_it_has_begun() -> Result<()> {
    let device = MemoryDevice::new(64 << 20);
    make_device(&device, &MakeOptions::default(), &mut |_, _| {})?;
    let at = AtomicU64::new(0);
    let device = Arc::new(Unreadable { device, at });
    let core = open(&device)?;
    fill(&core)?;
    core.merge()?;
    drop(core);
    let core = open(&device)?;
    let main = core.main_root();
    let tree = core.roots.merged(main).ok_or(Error::NotFound)?.tree;
    assert!(tree.height.get() > 1, "its nodes are not known by its root");
    let place = tree.ptr.block.get() * BLOCK_SIZE as u64;
    device.at.store(place, Ordering::Relaxed);
    let head = |origin: u32, name: &str| Root {
        origin,
        name: name.into(),
        ..Root::default()
    };
    let first = core.superblocks.new_root()?;
    core.change_roots(&[], |_, _| Ok(((), [(first, head(first, "first"))].into())))?;
    // Its nodes are counted for the copies that it may need.
    let second = core.superblocks.new_root()?;
    let changed = core.change_roots(&[], |_, _| {
        Ok(((), [(second, head(main, "second"))].into()))
    });
    assert!(matches!(changed, Err(Error::Io { .. })));
    assert!(core.storage.failure().is_some());
    assert!(matches!(core.merge(), Err(Error::Stopped(_))));
    Ok(())
}
