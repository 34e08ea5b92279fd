//! Random histories of a small log, with kills, power cuts and rot, as a model that knows what was
//! written and what was durable: recovery calls no state damaged that a power cut leaves, and
//! calls everything damaged that lacks what is known to have been durable.
//!
//! The model writes records, flushes, durable marks, superblocks of merges and mount records in
//! the order in which an engine does. Volumes of an earlier version get units with copies of the
//! mark. A power cut keeps any part of what was not flushed, in sectors. Rot takes single blocks, or
//! the front with some of the log. Nothing of the engine is used but the format and the scan.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::journal::position::LogPosition;
use crate::journal::recover::{Scan, scan};
use cairnfs_disk::device::Device;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::geometry::{LOG_START, MARK_BLOCK};
use cairnfs_disk::format::mark::RawMark;
use cairnfs_disk::format::record::{FLAG_FSYNC, FLAG_LAST, FLAG_MOUNT, HEADER_SIZE, RecordHeader};
use cairnfs_disk::format::superblock::{COPIES, Superblock, mark_block_of};
use cairnfs_disk::format::{BLOCK_SIZE, checksum};

const HISTORIES: u64 = 20_000;
/// Blocks of the log: so few that it wraps after a few records.
const RING: u64 = 24;
/// Units that have copies of the mark, or will have.
const UNITS: [u64; 2] = [LOG_START + RING, LOG_START + RING + 4];
const END: u64 = LOG_START + RING + 8;
const SECTOR: usize = 512;
const UUID: [u8; 16] = [5; 16];

/// Numbers that depend on a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The blocks before the data area, and the units with copies.
#[derive(Clone)]
struct Blocks(Vec<u8>);

impl Blocks {
    fn block(&self, block: u64) -> &[u8] {
        let at = block as usize * BLOCK_SIZE;
        &self.0[at..at + BLOCK_SIZE]
    }

    fn put(&mut self, block: u64, sector: usize, bytes: &[u8]) {
        let at = block as usize * BLOCK_SIZE + sector * SECTOR;
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Device for Blocks {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = offset as usize;
        buf.copy_from_slice(&self.0[at..at + buf.len()]);
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }
    fn flush(&self) -> Result<()> {
        Err(Error::ReadOnly)
    }
    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }
}

/// A complete context or fsync record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Whole {
    seq: u64,
    start: u64,
    end: LogPosition,
}

/// A disk, and an engine that uses it.
struct History {
    random: Random,
    durable: Blocks,
    /// Blocks that were written and not flushed, in order.
    pending: Vec<(u64, Vec<u8>)>,
    /// Contents that blocks of the log had before.
    older: Vec<(u64, Vec<u8>)>,
    superblock: Superblock,
    /// Written and not flushed.
    next_superblock: Option<Superblock>,
    /// Since the tail of `superblock`.
    wholes: Vec<Whole>,
    head: LogPosition,
    durable_lsn: u64,
    nonce: u64,
    seq: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut durable = Blocks(vec![0; END as usize * BLOCK_SIZE]);
        // What is in a unit before it has copies is not the volume's, and may look like a mark.
        for block in UNITS.map(mark_block_of) {
            durable.put(block, 0, &RawMark::new(UUID, block, 1 << 40).encode());
        }
        Self {
            random: Random(seed),
            durable,
            pending: Vec::new(),
            older: Vec::new(),
            superblock: Superblock {
                log_blocks: U64::new(RING),
                total_blocks: U64::new(END),
                uuid: UUID,
                generation: U64::new(1),
                ..zerocopy::FromZeros::new_zeroed()
            },
            next_superblock: None,
            wholes: Vec::new(),
            head: LogPosition::default(),
            durable_lsn: 0,
            nonce: 0,
            seq: 1,
        }
    }

    fn has_room(&self, blocks: u64) -> bool {
        // One block is left for a mount.
        self.head.lsn + blocks < self.superblock.tail_lsn.get() + RING
    }

    /// Writes a record of so many blocks at the head.
    fn record(&mut self, blocks: u64, flags: u32, part: u32) {
        let len = match flags & FLAG_MOUNT {
            0 => (blocks as usize - 1) * BLOCK_SIZE + 1 + self.random.below(3000) as usize,
            _ => 0,
        };
        let value = self.random.below(256) as u8;
        let payload = vec![value; len];
        let mut header = RecordHeader {
            flags: U32::new(flags),
            uuid: UUID,
            nonce: U64::new(self.nonce),
            lsn: U64::new(self.head.lsn),
            chain: U64::new(self.head.chain),
            seq: U64::new(self.seq),
            durable_lsn: U64::new(self.durable_lsn),
            generation: self.superblock.generation,
            part: U32::new(part),
            payload_len: U32::new(len as u32),
            payload_crc: U32::new(checksum::crc(&payload)),
            ..RecordHeader::default()
        };
        header.seal();
        assert_eq!(header.blocks(), blocks);
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(payload);
        bytes.resize(blocks as usize * BLOCK_SIZE, 0);
        for (lsn, block) in (self.head.lsn..).zip(bytes.chunks(BLOCK_SIZE)) {
            self.pending.push((LOG_START + lsn % RING, block.to_vec()));
        }
        self.head = self.head.after(&header);
    }

    /// Writes a context or fsync record of several parts, or only its first parts.
    fn whole(&mut self, broken_off: bool) {
        let fsync = self.random.once_in(3);
        let flags = if fsync { FLAG_FSYNC } else { 0 };
        let parts = 1 + self.random.below(3) as u32;
        let sizes: Vec<u64> = (0..parts).map(|_| 1 + self.random.below(3)).collect();
        if !self.has_room(sizes.iter().sum()) {
            return;
        }
        let start = self.head.lsn;
        for (part, blocks) in (0..).zip(sizes) {
            let last = part + 1 == parts;
            if last && broken_off {
                return;
            }
            self.record(blocks, flags | if last { FLAG_LAST } else { 0 }, part);
        }
        let whole = Whole {
            seq: self.seq,
            start,
            end: self.head,
        };
        self.wholes.push(whole);
        if !fsync {
            self.seq += 1;
        }
    }

    fn flush(&mut self) {
        for (block, bytes) in std::mem::take(&mut self.pending) {
            self.older.push((block, self.durable.block(block).to_vec()));
            self.durable.put(block, 0, &bytes);
        }
        self.durable_lsn = self.head.lsn;
        if let Some(next) = self.next_superblock.take() {
            self.use_superblock(next);
        }
    }

    fn use_superblock(&mut self, next: Superblock) {
        self.superblock = next;
        let tail = next.tail_lsn.get();
        self.wholes.retain(|whole| whole.start >= tail);
    }

    /// Writes the superblock of a merge that takes some of the log.
    fn merge(&mut self) {
        self.flush();
        let count = self.wholes.len() as u64;
        let Some(last) = self.random.below(count + 1).checked_sub(1) else {
            return;
        };
        let merged = self.wholes[last as usize];
        self.next_superblock = Some(Superblock {
            generation: U64::new(self.superblock.generation.get() + 1),
            merged_seq: U64::new(merged.seq),
            tail_lsn: U64::new(merged.end.lsn),
            tail_chain: U64::new(merged.end.chain),
            required_lsn: U64::new(self.durable_lsn),
            ..self.superblock
        });
        if !self.random.once_in(4) {
            self.flush();
        }
    }

    fn mark(&mut self) {
        for (block, place) in self.superblock.mark_blocks() {
            let mark = RawMark::new(UUID, place, self.durable_lsn).encode();
            self.pending.push((block, mark));
        }
        if self.random.once_in(2) {
            self.flush();
        }
    }

    /// Gives a volume of an earlier version its units with copies.
    fn claim(&mut self) {
        if self.superblock.ro_compatible.get() != 0 {
            return;
        }
        for block in UNITS.map(mark_block_of) {
            let mark = RawMark::new(UUID, block, self.random.below(self.durable_lsn + 1));
            self.pending.push((block, mark.encode()));
        }
        self.flush();
        self.next_superblock = Some(Superblock {
            generation: U64::new(self.superblock.generation.get() + 1),
            ro_compatible: U64::new(COPIES),
            copies: UNITS.map(U64::new),
            ..self.superblock
        });
        if self.random.once_in(2) {
            self.flush();
        }
    }

    /// Loses any part of what was not flushed.
    fn power_cut(&mut self) {
        let all = self.random.below(4);
        for (block, bytes) in std::mem::take(&mut self.pending) {
            let (kept, torn) = (self.random.once_in(2), self.random.once_in(4));
            for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
                let keep = match all {
                    0 => false,
                    1 => true,
                    _ if torn => self.random.once_in(2),
                    _ => kept,
                };
                if keep {
                    self.durable.put(block, sector, bytes);
                }
            }
        }
        if let Some(next) = self.next_superblock.take()
            && self.random.once_in(2)
        {
            self.use_superblock(next);
        }
    }

    fn scan(&self, blocks: &Blocks) -> Result<Scan> {
        scan(blocks, &self.superblock, false, false)
    }

    /// Checks that recovery finds a beginning of what was written, with all up to `durable`.
    fn check_found(&self, found: &Scan, durable: u64) {
        let contexts = found.contexts.iter().filter(|c| !c.mount);
        let contexts: Vec<Whole> = contexts
            .map(|c| Whole {
                seq: c.seq,
                start: c.start.lsn,
                end: c.end,
            })
            .collect();
        assert_eq!(contexts, self.wholes[..contexts.len()]);
        let due = self.wholes.partition_point(|w| w.end.lsn <= durable);
        assert!(
            contexts.len() >= due,
            "{} of {due} that are known to have been durable up to LSN {durable}",
            contexts.len()
        );
    }

    /// Opens the volume: what recovery finds is no damage.
    fn mount(&mut self) {
        let found = self.scan(&self.durable).unwrap();
        self.check_found(&found, self.durable_lsn);
        let count = found.contexts.iter().filter(|c| !c.mount).count();
        self.wholes.truncate(count);
        self.head = found.end;
        self.durable_lsn = found.end.lsn;
        self.nonce += 1;
        self.seq = found.last_seq + 1;
        self.record(1, FLAG_MOUNT | FLAG_LAST, 0);
        self.seq += 1;
        if self.random.once_in(5) {
            // The mount record alone may be lost.
            self.power_cut();
            self.mount();
        } else {
            self.flush()
        }
    }

    fn step(&mut self) {
        match self.random.below(17) {
            16 => self.claim(),
            0..7 => self.whole(false),
            7..10 => self.flush(),
            10 => self.mark(),
            11..13 => self.merge(),
            13 => {
                // A kill leaves what was written.
                let broken_off = self.random.once_in(2);
                self.whole(broken_off);
                self.flush();
                self.mount();
            }
            _ => {
                let broken_off = self.random.once_in(2);
                self.whole(broken_off);
                self.power_cut();
                self.mount();
            }
        }
    }

    /// Overwrites everything before the log and some of the log.
    fn lose_front(&mut self) -> Blocks {
        let mut blocks = self.durable.clone();
        let value = self.random.below(256) as u8;
        for block in 0..LOG_START + self.random.below(RING / 2) {
            blocks.put(block, 0, &[value; BLOCK_SIZE]);
        }
        blocks
    }

    /// Damages some blocks of the log, or a mark.
    fn rot(&mut self) -> Blocks {
        if self.random.once_in(4) {
            return self.lose_front();
        }
        let mut blocks = self.durable.clone();
        for _ in 0..1 + self.random.below(4) {
            let [first, second] = UNITS.map(mark_block_of);
            let block = match self.random.below(20) {
                0 => MARK_BLOCK,
                1 => first,
                2 => second,
                _ => LOG_START + self.random.below(RING),
            };
            let older: Vec<&Vec<u8>> = self
                .older
                .iter()
                .filter_map(|(at, bytes)| (*at == block).then_some(bytes))
                .collect();
            let bytes = match self.random.below(4) {
                0 => vec![0; BLOCK_SIZE],
                1 if !older.is_empty() => {
                    older[self.random.below(older.len() as u64) as usize].clone()
                }
                2 => {
                    let mut bytes = blocks.block(block).to_vec();
                    bytes[self.random.below(HEADER_SIZE as u64) as usize] ^= 4;
                    bytes
                }
                _ => vec![self.random.below(256) as u8; BLOCK_SIZE],
            };
            blocks.put(block, 0, &bytes);
        }
        blocks
    }

    /// The LSN up to which the log is known to have been durable, by all that is left on the disk.
    fn known(&self, blocks: &Blocks) -> u64 {
        let tail = self.superblock.tail_lsn.get();
        let said = (tail..tail + RING).filter_map(|lsn| {
            let header = RecordHeader::decode(blocks.block(LOG_START + lsn % RING))?;
            (header.lsn.get() == lsn).then_some(header.durable_lsn.get())
        });
        let marks = self.superblock.mark_blocks();
        let marked =
            marks.filter_map(|(block, place)| RawMark::decode(blocks.block(block), &UUID, place));
        let required = self.superblock.required_lsn.get();
        said.chain(marked).max().unwrap_or(0).max(required)
    }
}

/// How the histories ended after rot.
#[derive(Debug, Default)]
struct Ends {
    damaged: u64,
    whole: u64,
    shorter: u64,
}

/// Contract: rot.log
#[test]
fn only_what_lacks_durable_records_is_damage() {
    let mut ends = Ends::default();
    for seed in 0..HISTORIES {
        let mut history = History::new(seed);
        history.mount();
        for _ in 0..5 + history.random.below(20) {
            history.step();
        }
        if history.random.once_in(2) {
            history.power_cut()
        } else {
            history.flush()
        }
        let sound = history.scan(&history.durable).unwrap();
        history.check_found(&sound, 0);
        for _ in 0..4 {
            let rotten = history.rot();
            match history.scan(&rotten) {
                Err(Error::Corrupt(_)) => ends.damaged += 1,
                Err(e) => panic!("seed {seed}: {e}"),
                Ok(found) => {
                    history.check_found(&found, history.known(&rotten));
                    if found.contexts.len() == sound.contexts.len() {
                        ends.whole += 1
                    } else {
                        ends.shorter += 1
                    }
                }
            }
        }
    }
    let least = HISTORIES / 10;
    let Ends {
        damaged,
        whole,
        shorter,
    } = ends;
    assert!(
        damaged > least && whole > least && shorter > 0,
        "{damaged} damaged, {whole} whole, {shorter} shorter"
    );
}
