//! The bytes of a volume: where structures are, and how to damage them with valid or invalid
//! checksums.

use cairnfs::{Error, Result, device::Device};
use cairnfs_check::{CheckOptions, Report, check};
use cairnfs_disk::format::checksum::crc;
use cairnfs_disk::format::geometry::{GROUP_BLOCKS, Geometry, LOG_START, SUPERBLOCK_SLOTS};
use cairnfs_disk::format::group::GroupEntry;
use cairnfs_disk::format::node::RawOverflow;
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::record::{Entry, RecordHeader, blocks_for, push_entry};
use cairnfs_disk::format::superblock::{COPIES, MAGIC, MAX_LABEL, RawCheckpoint, Superblock};
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS, NODE_SIZE};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::plan::Rec;

pub const SIZE: u64 = 16 << 20;
pub const SEED: u64 = 0x5eed;
pub const UUID: [u8; 16] = *b"a test's volume!";
pub const MERGED: u64 = 5;
pub const TAIL: u64 = 1020;
const NODES_FROM: u64 = 2000;

pub fn geometry() -> Geometry {
    Geometry::for_size(SIZE, None).unwrap()
}

/// The device block of the `i`-th block of file contents.
pub fn data_block(i: u64) -> u64 {
    geometry().data_start() + i
}

/// The contents of [`data_block`] `i`.
pub fn contents(i: u64) -> Vec<u8> {
    (0..BLOCK_SIZE)
        .map(|at| (at as u64 * 7 + i) as u8)
        .collect()
}

pub struct VecDevice(pub Vec<u8>);

impl Device for VecDevice {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let from = usize::try_from(offset).ok().and_then(|o| self.0.get(o..));
        match from.and_then(|f| f.get(..buf.len())) {
            Some(from) => buf.copy_from_slice(from),
            None => return Err(Error::Invalid("a read beyond the end")),
        }
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }
}

/// A volume's bytes and the places of its structures.
pub struct Image {
    pub bytes: Vec<u8>,
    pub superblock: Superblock,
    /// Levels and blocks of the nodes of the files' tree.
    pub nodes: Vec<(u8, u64)>,
    pub nodes_done: bool,
    /// First blocks of the units of large values.
    pub units: Vec<u64>,
    /// First blocks of the log records.
    pub records: Vec<u64>,
    /// LSN after the last record.
    pub end_lsn: u64,
    end_chain: u64,
    /// Bitmap of the only group.
    pub bitmap: Vec<u8>,
    pub group: GroupEntry,
    next_node: u64,
}

impl Image {
    pub fn empty() -> Self {
        let g = geometry();
        let mut label = [0; MAX_LABEL];
        label[..4].copy_from_slice(b"test");
        let superblock = Superblock {
            magic: MAGIC,
            checksum: U64::new(0),
            compatible: U64::new(0),
            ro_compatible: U64::new(0),
            incompatible: U64::new(0),
            uuid: UUID,
            hash_seed: U64::new(SEED),
            label,
            created: U64::new(1),
            block_size: U32::new(BLOCK_SIZE as u32),
            node_size: U32::new(NODE_SIZE as u32),
            total_blocks: U64::new(g.total_blocks),
            log_blocks: U64::new(g.log_blocks),
            generation: U64::new(8),
            merged_seq: U64::new(MERGED),
            tail_lsn: U64::new(TAIL),
            tail_chain: U64::new(1234),
            required_lsn: U64::new(TAIL),
            next_ino: U64::new(22),
            next_root: U32::new(2),
            table_copy: U32::new(1),
            table_crc: U32::new(0),
            root_height: U32::new(0),
            root: RawPtr::default(),
            free_blocks: U64::new(0),
            checkpoint: RawCheckpoint::default(),
            checkpoint_before: RawCheckpoint::default(),
            ranges: U32::new(0),
            copies: [U64::new(0); 2],
            place: U64::new(0),
        };
        let mut image = Self {
            bytes: vec![0; SIZE as usize],
            superblock,
            nodes: Vec::new(),
            nodes_done: false,
            units: Vec::new(),
            records: Vec::new(),
            end_lsn: 0,
            end_chain: 0,
            bitmap: vec![0; BLOCK_SIZE],
            group: GroupEntry::default(),
            next_node: NODES_FROM,
        };
        image.mark(0, g.data_start());
        image.mark(g.total_blocks, GROUP_BLOCKS - g.total_blocks);
        image
    }

    pub fn write(&mut self, block: u64, bytes: &[u8]) {
        let at = block as usize * BLOCK_SIZE;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn flip(&mut self, block: u64, offset: usize) {
        self.bytes[block as usize * BLOCK_SIZE + offset] ^= 0x40;
    }

    /// Marks blocks as in use; ignores blocks outside the volume.
    pub fn mark(&mut self, block: u64, len: u64) {
        for b in block..block.saturating_add(len) {
            if let Some(byte) = self.bitmap.get_mut(b as usize / 8) {
                *byte |= 1 << (b % 8);
            }
        }
    }

    pub fn unmark(&mut self, block: u64) {
        self.bitmap[block as usize / 8] &= !(1 << (block % 8));
    }

    pub fn allocate_node(&mut self) -> u64 {
        let block = self.next_node;
        self.next_node += NODE_BLOCKS;
        self.mark(block, NODE_BLOCKS);
        block
    }

    pub fn overflow(&mut self, value: &[u8]) -> RawOverflow {
        let data: Vec<&[u8]> = value.chunks(NODE_SIZE - 8).collect();
        let blocks: Vec<u64> = data.iter().map(|_| self.allocate_node()).collect();
        let mut all = Vec::new();
        for (i, data) in data.iter().enumerate() {
            let next = blocks.get(i + 1).copied().unwrap_or(0);
            let mut unit = next.to_le_bytes().to_vec();
            unit.extend_from_slice(data);
            unit.resize(NODE_SIZE, 0);
            self.write(blocks[i], &unit);
            self.units.push(blocks[i]);
            all.extend_from_slice(&unit);
        }
        RawOverflow {
            block: U64::new(blocks[0]),
            birth: U64::new(MERGED),
            len: U32::new(value.len() as u32),
            crc: U32::new(crc(&all)),
        }
    }

    pub fn write_log(&mut self, log: &[Rec]) {
        (self.end_lsn, self.end_chain) = (TAIL, self.superblock.tail_chain.get());
        for rec in log {
            let (lsn, chain) = (self.end_lsn, self.end_chain);
            let (blocks, sum) = self.write_record(rec, lsn, chain);
            self.records.push(LOG_START + lsn % geometry().log_blocks);
            (self.end_lsn, self.end_chain) = (lsn + blocks, sum);
        }
        self.superblock.required_lsn = U64::new(self.end_lsn);
    }

    /// Writes a record; returns its length in blocks and its checksum.
    pub fn write_record(&mut self, rec: &Rec, lsn: u64, chain: u64) -> (u64, u64) {
        let mut payload = Vec::new();
        for change in &rec.changes {
            let entry = Entry {
                root: change.root,
                key: change.key,
                delete: change.delete,
                value: &change.value,
            };
            push_entry(&mut payload, &entry);
        }
        let mut header = RecordHeader {
            flags: U32::new(rec.flags),
            uuid: UUID,
            nonce: U64::new(rec.nonce),
            lsn: U64::new(lsn),
            chain: U64::new(chain),
            seq: U64::new(rec.seq),
            durable_lsn: U64::new(rec.durable),
            generation: U64::new(rec.generation),
            part: U32::new(rec.part),
            entries: U32::new(rec.changes.len() as u32),
            payload_len: U32::new(payload.len() as u32),
            payload_crc: U32::new(crc(&payload)),
            ..Default::default()
        };
        header.seal();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(&payload);
        let blocks = blocks_for(payload.len());
        bytes.resize(blocks as usize * BLOCK_SIZE, 0);
        for (i, block) in bytes.chunks(BLOCK_SIZE).enumerate() {
            let at = LOG_START + (lsn + i as u64) % geometry().log_blocks;
            self.write(at, block);
        }
        (blocks, header.checksum.get())
    }

    /// Writes the bitmap from [`Image::bitmap`] and the table, with all counts correct.
    pub fn write_bitmaps(&mut self) {
        let free = self.bitmap.iter().map(|b| b.count_zeros()).sum::<u32>();
        self.superblock.free_blocks = U64::new(free.into());
        self.group = GroupEntry {
            crc: U32::new(crc(&self.bitmap)),
            free: U16::new(free as u16),
            copy: 1,
            reserved: 0,
        };
        let bitmap = self.bitmap.clone();
        self.write(geometry().bitmap_block(0, 1), &bitmap);
        self.write_table();
    }

    /// Writes the table from [`Image::group`], and the superblock.
    pub fn write_table(&mut self) {
        let mut table = self.group.as_bytes().to_vec();
        table.resize(BLOCK_SIZE, 0);
        self.superblock.table_crc = U32::new(crc(&table));
        self.write(geometry().table_start(1), &table);
        self.write_superblock();
    }

    /// Writes both superblock slots; the older one has the generation before.
    pub fn write_superblock(&mut self) {
        let newest = self.superblock;
        let mut older = newest;
        older.generation = U64::new(newest.generation.get() - 1);
        for superblock in [older, newest] {
            self.write(superblock.slot_block(), &superblock.encode());
        }
    }

    /// Gives the volume copies of its superblocks, in these units.
    pub fn write_copies(&mut self, units: [u64; 2]) {
        units.iter().for_each(|unit| self.mark(*unit, NODE_BLOCKS));
        self.superblock.ro_compatible = U64::new(COPIES);
        self.superblock.copies = units.map(U64::new);
        self.write_bitmaps();
        for by in [0, 1] {
            self.write_copies_of(by);
        }
    }

    /// Writes copies of the superblock as it was some generations before.
    pub fn write_copies_of(&mut self, by: u64) {
        let mut old = self.superblock;
        old.generation = U64::new(old.generation.get() - by);
        for block in old.copy_blocks(old.slot()) {
            self.write(block, &old.encode_copy(block));
        }
    }

    pub fn edit_superblock(&mut self, change: impl FnOnce(&mut Superblock)) {
        change(&mut self.superblock);
        self.write_superblock();
    }

    pub fn newest_slot(&self) -> u64 {
        SUPERBLOCK_SLOTS[self.superblock.slot()]
    }

    pub fn check(&self, data: bool) -> Result<Report> {
        let device = VecDevice(self.bytes.clone());
        check(&device, &CheckOptions { data }, &mut |_| {})
    }
}

/// The codes of the findings of a check that includes file contents.
pub fn codes(image: &Image) -> Vec<&'static str> {
    let report = image.check(true).unwrap();
    report.findings.iter().map(|f| f.code).collect()
}
