//! The group table on disk, and the free space of a new volume.
//!
//! Uses device and format. The table is small (8 bytes per group of 128 MiB) and always read and
//! written as a whole; the superblock holds its checksum.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::bitmap::Bitmap;
use super::group::Bounds;
use super::{BlockRun, Space, parts};
use cairnfs_disk::device::{AlignedBuf, Device};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::geometry::{GROUP_ENTRY_SIZE, Geometry};
use cairnfs_disk::format::group::GroupEntry;
use cairnfs_disk::format::{BLOCK_SIZE, checksum};

/// The state of the free space that the superblock records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableState {
    /// The valid copy of the group table (0 or 1).
    pub copy: u8,
    /// CRC32C of all blocks of that copy.
    pub crc: u32,
    /// Free blocks, the sum over all groups.
    pub free_blocks: u64,
}

/// Reads and checks the table.
pub(super) fn read(
    device: &dyn Device,
    geometry: &Geometry,
    state: TableState,
) -> Result<Vec<GroupEntry>> {
    let at = geometry.table_start(state.copy);
    let mut bytes = AlignedBuf::zeroed(geometry.table_blocks() as usize * BLOCK_SIZE);
    device.read(at * BLOCK_SIZE as u64, &mut bytes)?;
    let crc = checksum::crc(&bytes);
    if crc != state.crc {
        return Err(Error::corrupt(
            at,
            "group table checksum",
            format_args!("{:08x}", state.crc),
            format_args!("{crc:08x}"),
        ));
    }
    let mut table = Vec::with_capacity(geometry.groups() as usize);
    let mut sum = 0;
    for (group, raw) in (0..geometry.groups()).zip(bytes.chunks(GROUP_ENTRY_SIZE as usize)) {
        let entry = GroupEntry::read_from_bytes(raw).unwrap_or_default();
        let most = Bounds::of(geometry, group).blocks();
        let block = at + group * GROUP_ENTRY_SIZE / BLOCK_SIZE as u64;
        if u32::from(entry.free.get()) > most {
            return Err(Error::corrupt(
                block,
                "group table",
                format_args!("at most {most} free blocks in group {group}"),
                entry.free.get(),
            ));
        }
        if entry.copy > 1 {
            return Err(Error::corrupt(
                block,
                "group table",
                format_args!("copy 0 or 1 of the bitmap of group {group}"),
                entry.copy,
            ));
        }
        sum += u64::from(entry.free.get());
        table.push(entry);
    }
    if sum != state.free_blocks {
        return Err(Error::corrupt(
            at,
            "group table",
            format_args!("{} free blocks as in the superblock", state.free_blocks),
            sum,
        ));
    }
    Ok(table)
}

/// Writes a copy of the table.
pub(super) fn write(
    device: &dyn Device,
    geometry: &Geometry,
    copy: u8,
    table: &[GroupEntry],
) -> Result<TableState> {
    let mut bytes = AlignedBuf::zeroed(geometry.table_blocks() as usize * BLOCK_SIZE);
    for (to, from) in bytes.iter_mut().zip(table.as_bytes()) {
        *to = *from;
    }
    device.write(geometry.table_start(copy) * BLOCK_SIZE as u64, &bytes)?;
    Ok(TableState {
        copy,
        crc: checksum::crc(&bytes),
        free_blocks: table.iter().map(|e| u64::from(e.free.get())).sum(),
    })
}

/// Encodes a bitmap into its block and returns the table entry for it.
pub(super) fn encode(map: &Bitmap, copy: u8, block: &mut [u8]) -> GroupEntry {
    map.encode(block);
    GroupEntry {
        crc: U32::new(checksum::crc(block)),
        free: U16::new(map.count_free() as u16),
        copy,
        reserved: 0,
    }
}

/// Gathers bitmaps with consecutive block addresses into large writes.
pub(super) struct BitmapWriter<'a> {
    device: &'a dyn Device,
    buf: AlignedBuf,
    start: u64,
    blocks: usize,
}

impl<'a> BitmapWriter<'a> {
    /// Maximum blocks per write (1 MiB).
    const MAX_BLOCKS: usize = 256;

    pub fn new(device: &'a dyn Device) -> Self {
        Self {
            device,
            buf: AlignedBuf::default(),
            start: 0,
            blocks: 0,
        }
    }

    /// Adds the bitmap of the block address `block`; writes the gathered ones first if it does not
    /// follow them.
    pub fn push(&mut self, block: u64, map: &Bitmap, copy: u8) -> Result<GroupEntry> {
        if self.blocks == Self::MAX_BLOCKS || self.start + self.blocks as u64 != block {
            self.finish()?;
            self.start = block;
        }
        let at = self.blocks * BLOCK_SIZE;
        self.buf.ensure(at + BLOCK_SIZE);
        let bytes = self.buf.get_mut(at..at + BLOCK_SIZE).unwrap_or_default();
        self.blocks += 1;
        Ok(encode(map, copy, bytes))
    }

    /// Writes the gathered bitmaps.
    pub fn finish(&mut self) -> Result<()> {
        let bytes = self.buf.get(..self.blocks * BLOCK_SIZE).unwrap_or_default();
        if !bytes.is_empty() {
            self.device.write(self.start * BLOCK_SIZE as u64, bytes)?;
        }
        self.blocks = 0;
        Ok(())
    }
}

impl Space {
    /// Writes the free space of a new volume, with the `used` data blocks in use; does not flush.
    /// On a `fresh` device, which reads as zeros, all-zero bitmaps are not written.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `used` overlaps or leaves the data area; a device error.
    pub fn format(
        device: &dyn Device,
        geometry: &Geometry,
        fresh: bool,
        used: &[BlockRun],
    ) -> Result<TableState> {
        geometry.validate().map_err(Error::Invalid)?;
        if used.iter().any(|r| !geometry.in_data(r.start, r.len)) {
            return Err(Error::Invalid("used blocks outside of the data area"));
        }
        let mut used: Vec<_> = used.iter().flat_map(|run| parts(*run)).collect();
        used.sort_unstable();
        let mut used = used.into_iter().peekable();
        let mut writer = BitmapWriter::new(device);
        let mut zeros = vec![0; BLOCK_SIZE];
        let zero_entry = encode(&Bitmap::free(), 0, &mut zeros);
        let mut table = Vec::with_capacity(geometry.groups() as usize);
        for group in 0..geometry.groups() {
            let bounds = Bounds::of(geometry, group);
            let whole = u64::from(bounds.blocks()) == cairnfs_disk::format::geometry::GROUP_BLOCKS;
            let touched = used.peek().is_some_and(|(g, ..)| *g as u64 == group);
            if fresh && whole && !touched {
                table.push(zero_entry);
                continue;
            }
            let mut map = bounds.empty_map();
            while let Some((_, bit, len)) = used.next_if(|(g, ..)| *g as u64 == group) {
                if map.first_used(bit, len).is_some() {
                    return Err(Error::Invalid("used blocks overlap"));
                }
                map.set(bit, len);
            }
            table.push(writer.push(geometry.bitmap_block(group, 0), &map, 0)?);
        }
        writer.finish()?;
        write(device, geometry, 0, &table)
    }
}
