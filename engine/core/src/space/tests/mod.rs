//! Tests of the public interface: against a model, at the limits, from many threads, and with
//! damaged bytes.

mod damage;
mod limits;
mod model;
mod pinned;
mod placement;
#[cfg(shuttle)]
mod schedules;
mod threads;

use std::sync::Arc;

use parking_lot::Mutex;

use super::bitmap::Bitmap;
use super::*;
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS};

const MIB: u64 = 1 << 20;

/// A device that records its reads, writes and discards, in blocks.
struct Recorder {
    inner: MemoryDevice,
    reads: Mutex<Vec<BlockRun>>,
    writes: Mutex<Vec<BlockRun>>,
    discards: Mutex<Vec<BlockRun>>,
}

impl Recorder {
    fn new(size: u64) -> Self {
        Self {
            inner: MemoryDevice::new(size),
            reads: Mutex::default(),
            writes: Mutex::default(),
            discards: Mutex::default(),
        }
    }
}

fn blocks(offset: u64, len: u64) -> BlockRun {
    let size = BLOCK_SIZE as u64;
    BlockRun::new(offset / size, len / size)
}

impl Device for Recorder {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reads.lock().push(blocks(offset, buf.len() as u64));
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.writes.lock().push(blocks(offset, buf.len() as u64));
        self.inner.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.discards.lock().push(blocks(offset, len));
        self.inner.discard(offset, len)
    }
}

struct Volume {
    device: Arc<Recorder>,
    geometry: Geometry,
    state: TableState,
}

impl Volume {
    fn new(size: u64, used: &[BlockRun]) -> Self {
        let device = Arc::new(Recorder::new(size));
        let geometry = Geometry::for_size(size, None).unwrap();
        let state = Space::format(&*device, &geometry, true, used).unwrap();
        Self {
            device,
            geometry,
            state,
        }
    }

    fn open(&self) -> Space {
        self.try_open().unwrap()
    }

    fn try_open(&self) -> Result<Space> {
        Space::open(self.device.clone(), self.geometry, self.state)
    }

    fn data_blocks(&self) -> u64 {
        self.geometry.data_blocks()
    }
}

/// Reads all bitmaps and compares them with all counters.
fn check(space: &Space) {
    let (mut free, mut units) = (0, 0);
    for (index, group) in space.groups.iter().enumerate() {
        let maps = space.lock(index).unwrap();
        assert_eq!(maps.live.count_free(), group.free(), "group {index}");
        assert_eq!(maps.live.count_units(), group.units(), "group {index}");
        for word in 0..512 {
            assert_eq!(maps.image.word(word) & !maps.live.word(word), 0);
        }
        free += u64::from(group.free());
        units += u64::from(group.units());
    }
    assert_eq!(space.free_blocks(), free);
    assert_eq!(space.free_units(), units);
    let (promised, promised_units) = space.reserved();
    assert!(promised + 4 * promised_units <= free);
    assert!(promised_units <= units);
}

/// The blocks of the data area that are in use in a bitmap.
fn used(space: &Space, map: impl Fn(&Maps) -> &Bitmap) -> Vec<u64> {
    let mut all = Vec::new();
    for index in 0..space.groups.len() {
        let maps = space.lock(index).unwrap();
        let bounds = Bounds::of(&space.geometry, index as u64);
        all.extend(
            (bounds.first..bounds.end)
                .filter(|bit| map(&maps).first_used(*bit, 1).is_some())
                .map(|bit| block_of(index, bit)),
        );
    }
    all
}

fn release(space: &Space, runs: impl IntoIterator<Item = BlockRun>) -> Result<()> {
    space.release(&mut runs.into_iter().collect(), false)
}
