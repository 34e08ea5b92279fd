//! The persistent free space: bitmaps in two alternating copies, and the table that names them.

use crate::device::{AlignedBuf, Device};
use crate::error::{Error, Result};
use crate::format::geometry::{GROUP_BLOCKS, Geometry};
use crate::format::group::GroupEntry;
use crate::format::{BLOCK_SIZE, checksum};
use crate::space::bitmap::Bitmap;
use crate::space::group::fixed_parts;
use crate::space::{Run, Space};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

/// Bitmap blocks written at once.
const WRITE_BLOCKS: usize = 256;

/// What a superblock says of the group table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableState {
    /// The copy that counts.
    pub copy: u8,
    /// CRC32C of its blocks.
    pub crc: u32,
    /// Sum of the free blocks of all groups.
    pub free_blocks: u64,
}

/// The group table in memory, and what of it waits for its superblock.
pub struct Table {
    copy: u8,
    entries: Vec<GroupEntry>,
    pending: Option<Vec<GroupEntry>>,
}

impl Table {
    pub(super) fn read(
        device: &dyn Device,
        geometry: &Geometry,
        state: TableState,
    ) -> Result<Self> {
        let block = geometry.table_start(state.copy);
        let len = geometry.table_blocks() as usize * BLOCK_SIZE;
        let mut bytes = AlignedBuf::zeroed(len);
        device.read(block * BLOCK_SIZE as u64, &mut bytes)?;
        let crc = checksum::crc(&bytes);
        if crc != state.crc {
            let want = format!("{:08x}", state.crc);
            return Err(Error::corrupt(
                block,
                "group table checksum",
                want,
                format!("{crc:08x}"),
            ));
        }
        let groups = geometry.groups() as usize;
        let size = size_of::<GroupEntry>();
        let entries: Vec<GroupEntry> = bytes
            .chunks_exact(size)
            .take(groups)
            .filter_map(|c| GroupEntry::read_from_bytes(c).ok())
            .collect();
        let free: u64 = entries.iter().map(|e| u64::from(e.free.get())).sum();
        let sound = entries
            .iter()
            .all(|e| e.copy <= 1 && u64::from(e.free.get()) <= GROUP_BLOCKS);
        if !sound || entries.len() != groups || free != state.free_blocks {
            return Err(Error::corrupt(
                block,
                "group table",
                format!("{groups} groups with {} free blocks", state.free_blocks),
                format!("{} with {free}", entries.len()),
            ));
        }
        Ok(Self {
            copy: state.copy,
            entries,
            pending: None,
        })
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &GroupEntry> {
        self.entries.iter()
    }

    pub(super) fn entry(&self, number: u64) -> GroupEntry {
        self.entries
            .get(number as usize)
            .copied()
            .unwrap_or_default()
    }
}

fn write_table(
    device: &dyn Device,
    geometry: &Geometry,
    copy: u8,
    entries: &[GroupEntry],
) -> Result<TableState> {
    let mut bytes = AlignedBuf::zeroed(geometry.table_blocks() as usize * BLOCK_SIZE);
    let from = entries.as_bytes();
    if let Some(to) = bytes.get_mut(..from.len()) {
        to.copy_from_slice(from);
    }
    device.write(geometry.table_start(copy) * BLOCK_SIZE as u64, &bytes)?;
    Ok(TableState {
        copy,
        crc: checksum::crc(&bytes),
        free_blocks: entries.iter().map(|e| u64::from(e.free.get())).sum(),
    })
}

/// Writes bitmap blocks, adjacent ones together.
struct BitmapWriter<'a> {
    device: &'a dyn Device,
    buffer: AlignedBuf,
    start: u64,
    count: usize,
}

impl<'a> BitmapWriter<'a> {
    fn new(device: &'a dyn Device) -> Self {
        Self {
            device,
            buffer: AlignedBuf::zeroed(WRITE_BLOCKS * BLOCK_SIZE),
            start: 0,
            count: 0,
        }
    }

    /// Room for the block `block`.
    fn next(&mut self, block: u64) -> Result<&mut [u8]> {
        if self.count == WRITE_BLOCKS || self.start + self.count as u64 != block {
            self.finish()?;
            self.start = block;
        }
        let at = self.count * BLOCK_SIZE;
        self.count += 1;
        Ok(self.buffer.get_mut(at..at + BLOCK_SIZE).unwrap_or_default())
    }

    fn finish(&mut self) -> Result<()> {
        let bytes = self
            .buffer
            .get(..self.count * BLOCK_SIZE)
            .unwrap_or_default();
        if !bytes.is_empty() {
            self.device.write(self.start * BLOCK_SIZE as u64, bytes)?;
        }
        self.count = 0;
        Ok(())
    }
}

impl Space {
    /// Writes the bitmaps and the table of a new volume, in which the runs `used` are in use. A
    /// device that is known to read as zeros (`fresh`) keeps its holes where nothing is in use.
    ///
    /// # Errors
    /// The device's failure.
    pub fn format(
        device: &dyn Device,
        geometry: &Geometry,
        fresh: bool,
        used: &[Run],
    ) -> Result<TableState> {
        let mut entries = Vec::with_capacity(geometry.groups() as usize);
        let mut writer = BitmapWriter::new(device);
        for number in 0..geometry.groups() {
            let first = number * GROUP_BLOCKS;
            let mut bitmap = Bitmap::empty();
            let own = used.iter().filter_map(|run| {
                let from = run.start.max(first);
                let to = (run.start + run.len).min(first + GROUP_BLOCKS);
                (from < to).then(|| (from - first, to - from))
            });
            for (at, len) in fixed_parts(geometry, first).into_iter().chain(own) {
                for (i, mask) in Bitmap::masks(at, len) {
                    if let Some(word) = bitmap.word_mut(i) {
                        *word |= mask;
                    }
                }
            }
            let mut bytes = [0; BLOCK_SIZE];
            bitmap.encode(&mut bytes);
            let free = bitmap.free();
            if !fresh || u64::from(free) < GROUP_BLOCKS {
                writer
                    .next(geometry.bitmap_block(number, 0))?
                    .copy_from_slice(&bytes);
            }
            entries.push(GroupEntry {
                crc: U32::new(checksum::crc(&bytes)),
                free: U16::new(free as u16),
                copy: 0,
                reserved: 0,
            });
        }
        writer.finish()?;
        write_table(device, geometry, 0, &entries)
    }

    /// The index of the next superblock refers to these blocks. They must be live and new to it.
    ///
    /// # Errors
    /// Blocks that are not: the index is damaged.
    pub fn image_add(&self, run: Run) -> Result<()> {
        self.change_image(run, true)
    }

    /// The index of the next superblock refers to these blocks no longer. It must have until now.
    ///
    /// # Errors
    /// Blocks that it did not: the index is damaged.
    pub fn image_remove(&self, run: Run) -> Result<()> {
        self.change_image(run, false)
    }

    fn change_image(&self, run: Run, used: bool) -> Result<()> {
        self.check(run)?;
        for (number, at, len) in Self::by_group(run) {
            let mut group = self.group(number)?;
            if !group.change_image(at, len, used) {
                let (want, found) = if used {
                    (
                        "blocks that nothing in the index refers to",
                        "blocks referred to twice",
                    )
                } else {
                    ("blocks that the index refers to", "free ones among them")
                };
                return Err(Error::corrupt(run.start, "free space", want, found));
            }
        }
        Ok(())
    }

    /// Writes what has changed to the copies that do not count yet. Nothing is flushed; it counts
    /// once a superblock names the returned state, which [`Self::commit_image`] confirms.
    ///
    /// # Errors
    /// The device's failure.
    pub fn write_image(&self) -> Result<TableState> {
        let mut table = self.table.lock();
        let mut entries = table.entries.clone();
        let mut writer = BitmapWriter::new(&*self.device);
        // Copy 0 of all groups lies before copy 1 of all groups: written in two sweeps.
        for copy in [0, 1] {
            for (number, (entry, group)) in entries.iter_mut().zip(&self.groups).enumerate() {
                let before = table.entry(number as u64);
                if before.copy == copy {
                    continue;
                }
                let group = group.lock();
                if !group.changed {
                    continue;
                }
                let block = self.geometry.bitmap_block(number as u64, copy);
                let bytes = writer.next(block)?;
                let free = group.encode_image(bytes);
                *entry = GroupEntry {
                    crc: U32::new(checksum::crc(bytes)),
                    free: U16::new(free as u16),
                    copy,
                    reserved: 0,
                };
            }
            writer.finish()?;
        }
        let state = write_table(&*self.device, &self.geometry, table.copy ^ 1, &entries)?;
        table.pending = Some(entries);
        Ok(state)
    }

    /// A superblock that names what [`Self::write_image`] returned is durable.
    pub fn commit_image(&self) {
        let mut table = self.table.lock();
        if let Some(entries) = table.pending.take() {
            table.entries = entries;
            table.copy ^= 1;
            drop(table);
            for group in &self.groups {
                group.lock().changed = false;
            }
        }
    }
}
