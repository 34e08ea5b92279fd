//! A change of roots that fails after it has begun: it cannot be taken back, so the volume stops.

use std::sync::Arc;

use crate::fs::{MakeOptions, make_device};
use crate::txn::{Core, Limits, Need, OpenMode};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::root::Root;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_SIZE};

const FILES: u64 = 400;

fn open(device: &Arc<dyn Device>) -> Result<Core> {
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
    let device: Arc<dyn Device> = Arc::new(device);
    let core = open(&device)?;
    fill(&core)?;
    core.merge()?;
    drop(core);
    let core = open(&device)?;
    let main = core.main_root();
    let tree = core.roots.merged(main).ok_or(Error::NotFound)?.tree;
    assert!(tree.height.get() > 1, "its nodes are not known by its root");
    let place = tree.ptr.block.get() * BLOCK_SIZE as u64;
    device.write(place, &[0xa5; NODE_SIZE])?;
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
    assert!(matches!(changed, Err(Error::Corrupt(_))));
    assert!(core.storage.failure().is_some());
    assert!(matches!(core.merge(), Err(Error::Stopped(_))));
    Ok(())
}
