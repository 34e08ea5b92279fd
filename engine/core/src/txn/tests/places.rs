//! Random histories of superblocks on a disk that loses, keeps or tears each block of its cache in a
//! power cut, and that loses one of the places of superblocks now and then. What is found afterwards
//! is always the newest superblock that was durable, or the one that was being written.
//!
//! Contract: rot.front

use std::collections::BTreeMap;

use zerocopy::little_endian::U64;

use super::*;
use crate::source::Source;
use cairnfs_disk::format::geometry::{Geometry, MIN_VOLUME_SIZE};
use cairnfs_disk::format::superblock::COPIES;
use cairnfs_disk::sync::Mutex;

const BLOCK: u64 = BLOCK_SIZE as u64;
const HISTORIES: u64 = 20_000;

#[derive(Default)]
struct Disk {
    durable: Mutex<BTreeMap<u64, Vec<u8>>>,
    cache: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl Device for Disk {
    fn size(&self) -> u64 {
        MIN_VOLUME_SIZE
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        let (first, end) = (offset / BLOCK, (offset + buf.len() as u64) / BLOCK);
        for blocks in [self.durable.lock(), self.cache.lock()] {
            for (block, bytes) in blocks.range(first..end) {
                let at = ((block - first) * BLOCK) as usize;
                buf[at..at + BLOCK_SIZE].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        assert_eq!(buf.len(), BLOCK_SIZE);
        self.cache.lock().insert(offset / BLOCK, buf.to_vec());
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.durable.lock().append(&mut self.cache.lock());
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

/// A volume as an engine with these rules leaves it.
struct Run {
    disk: Disk,
    source: Source,
    newest: Superblock,
    /// The name of the newest superblock that is known to be durable.
    settled: u64,
    names: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let geometry = Geometry::for_size(MIN_VOLUME_SIZE, None).unwrap();
        let mut newest: Superblock = zerocopy::FromZeros::new_zeroed();
        newest.magic = MAGIC;
        newest.ro_compatible = U64::new(COPIES);
        newest.block_size = (BLOCK_SIZE as u32).into();
        newest.node_size = (cairnfs_disk::format::NODE_SIZE as u32).into();
        newest.total_blocks = U64::new(geometry.total_blocks);
        newest.log_blocks = U64::new(geometry.log_blocks);
        newest.next_ino = U64::new(cairnfs_disk::format::FIRST_USER_INO);
        newest.copies = geometry.copy_goals().map(U64::new);
        let mut run = Self {
            disk: Disk::default(),
            source: Source::new(Some(seed)),
            newest,
            settled: 0,
            names: 0,
        };
        run.write_next();
        run.write_next();
        run.settle();
        run
    }

    fn below(&self, n: u64) -> u64 {
        self.source.random().unwrap() % n
    }

    /// As `Superblocks::write_next`.
    fn write_next(&mut self) {
        self.settle();
        self.names += 1;
        self.newest.generation = U64::new(self.newest.generation.get() + 1);
        self.newest.merged_seq = U64::new(self.names);
        let next = self.newest;
        let copies = next.copy_blocks(next.slot()).map(|b| (b, b));
        for (block, place) in [(next.slot_block(), 0)].into_iter().chain(copies) {
            let bytes = next.encode_copy(place);
            self.disk.write(block * BLOCK, &bytes).unwrap();
        }
    }

    fn settle(&mut self) {
        self.disk.flush().unwrap();
        self.settled = self.newest.merged_seq.get();
    }

    /// Loses the power: each block of the cache is kept, lost or torn.
    fn cut(&self) {
        for (block, bytes) in std::mem::take(&mut *self.disk.cache.lock()) {
            let bytes = match self.below(3) {
                0 => continue,
                1 => bytes,
                _ => {
                    let mut torn = self.disk.durable.lock().get(&block).cloned();
                    let torn = torn.get_or_insert_with(|| vec![0; BLOCK_SIZE]);
                    torn[..64].copy_from_slice(&bytes[..64]);
                    torn.clone()
                }
            };
            self.disk.durable.lock().insert(block, bytes);
        }
    }

    /// Loses all of one place, or one of its slots.
    fn damage(&self) {
        let [first, second] = self.newest.copies.map(|unit| copy_blocks_of(unit.get()));
        let places = [SUPERBLOCK_SLOTS, first, second];
        let place = places[self.below(3) as usize];
        let slots = match self.below(3) {
            0 => &place[..],
            1 => &place[..1],
            _ => &place[1..],
        };
        let mut durable = self.disk.durable.lock();
        for block in slots {
            durable.insert(*block, vec![0x5a; BLOCK_SIZE]);
        }
    }

    /// As `Core::open`; with `cut` it is cut off while it mends.
    fn open(&mut self, cut: bool) {
        self.disk.flush().unwrap();
        let mut found = read_superblock(&self.disk).unwrap();
        let name = found.superblock.merged_seq.get();
        let written = self.newest.merged_seq.get();
        assert!(
            name == self.settled || name == written,
            "{name} was found, {} is durable, {written} was written last",
            self.settled
        );
        self.newest = found.superblock;
        found.mend(&self.disk).unwrap();
        if cut {
            // It goes on from either; what was found is durable in some place.
            self.settled = name;
            self.cut();
            self.open(false);
        }
        self.settle();
        // From here on every place has what the volume goes on from.
        for block in self.newest.copy_blocks(self.newest.slot()) {
            let place = Slot::read(&self.disk, block, true).valid().unwrap();
            assert_eq!(place.encode(), self.newest.encode());
        }
    }
}

#[test]
fn power_cuts_and_a_lost_place_leave_the_newest_superblock() {
    for seed in 0..HISTORIES {
        let mut run = Run::new(seed);
        for _ in 0..4 {
            for _ in 0..run.below(4) {
                run.write_next();
                if run.below(2) == 0 {
                    run.settle();
                }
            }
            // Damage and a power cut at once could take what was in one place only.
            match run.below(3) {
                0 => {
                    run.settle();
                    run.damage();
                }
                _ => run.cut(),
            }
            let cut = run.below(3) == 0;
            run.open(cut);
        }
    }
}
