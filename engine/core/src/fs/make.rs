//! Creating a volume, and inspecting one without opening it.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::fs::info::volume_info;
use crate::inode::attrs::Attrs;
use crate::source::Source;
use crate::space::{BlockRun, Space};
use crate::txn::{find_copies, newest_at_front, read_superblock};
use cairnfs_disk::device::{Access, AlignedBuf, Device, FileDevice, looks_empty};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::geometry::{Geometry, LOG_START, MARK_BLOCK, SUPERBLOCK_SLOTS};
use cairnfs_disk::format::item::S_IFDIR;
use cairnfs_disk::format::key::{Key, Kind, MAIN_ROOT};
use cairnfs_disk::format::node::{CellValue, NodeBuilder};
use cairnfs_disk::format::root::RawRoot;
use cairnfs_disk::format::search::Effort;
use cairnfs_disk::format::superblock::{
    COPIES, MAGIC, MAX_LABEL, RENAMED_ENTRIES, RawCheckpoint, RawSuperblock, Superblock,
    copy_blocks_of, mark_block_of,
};
use cairnfs_disk::format::{BLOCK_SIZE, FIRST_USER_INO, NODE_BLOCKS, NODE_SIZE, ROOT_INO};
use cairnfs_disk::types::{Time, VolumeInfo};

/// Bytes written at a time.
const CHUNK: usize = 1 << 20;

/// How to create a volume.
#[derive(Debug, Clone, Default)]
pub struct MakeOptions {
    /// Size in bytes; `None` for the size of the file or device.
    pub size: Option<u64>,
    /// A human-readable name, at most 64 bytes.
    pub label: String,
    /// Bytes of log; `None` for 1/32 of the volume, 4 to 256 MiB.
    pub log_size: Option<u64>,
    /// Overwrite existing contents.
    pub force: bool,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// Makes UUID and times depend only on this number; `None`: random, and the current time.
    pub seed: Option<u64>,
}

/// Creates a volume in a file, which is created if absent, or on a block device. Without `force`,
/// an existing file or device must be empty: its first megabyte is zeros, and it has no copy of the
/// superblock of a volume that lost its front. What a file holds after
/// that is lost. `progress` is called with the bytes written so far and the total. A new file is
/// accessible to its owner only (mode 0600), and is removed again after a failure.
///
/// # Errors
/// The target is not empty and `force` is not set; invalid sizes; a file or device in use; a device
/// failure.
pub fn make(
    path: &Path,
    options: &MakeOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VolumeInfo> {
    let existing = std::fs::metadata(path).ok();
    let image = existing.as_ref().is_none_or(std::fs::Metadata::is_file);
    if !image {
        return make_device(
            &FileDevice::open(path, Access::ReadWrite)?,
            options,
            progress,
        );
    }
    let absent = existing.is_none();
    let length = existing.map_or(0, |m| m.len());
    // Decided again under the lock.
    if length > 0 && !options.force && !holds_nothing(&Peek::open(path)?)? {
        return Err(Error::Exists);
    }
    let size = match options.size {
        Some(size) => size,
        None if length > 0 => length,
        None => return Err(Error::Invalid("a new image file needs a size")),
    };
    // Refused before the file is touched.
    Geometry::for_size(size, options.log_size)?;
    check_label(&options.label)?;
    let size = size - size % BLOCK_SIZE as u64;
    let forced = MakeOptions {
        force: true,
        size: Some(size),
        ..options.clone()
    };
    let device = if options.force {
        FileDevice::create(path, size)
    } else {
        FileDevice::create_new(path, size)
    };
    let remove = |error: &Error| {
        let others = matches!(
            error,
            Error::InUse(_) | Error::Attached { .. } | Error::Exists
        );
        if absent && !others {
            let _ = std::fs::remove_file(path);
        }
    };
    let device = device.inspect_err(remove)?;
    // The device is locked until after the removal, so the file is not another process's volume.
    write_volume(&device, &forced, true, progress).inspect_err(remove)
}

/// Creates a volume on an open device.
///
/// # Errors
/// As [`make`]; a size larger than the device.
pub fn make_device(
    device: &dyn Device,
    options: &MakeOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VolumeInfo> {
    if !options.force && !holds_nothing(device)? {
        return Err(Error::Exists);
    }
    write_volume(device, options, false, progress)
}

fn check_label(label: &str) -> Result<()> {
    if label.len() > MAX_LABEL {
        return Err(Error::Invalid("a label has at most 64 bytes"));
    }
    Ok(())
}

fn write_volume(
    device: &dyn Device,
    options: &MakeOptions,
    fresh: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VolumeInfo> {
    check_label(&options.label)?;
    let size = options.size.unwrap_or(device.size());
    if size > device.size() {
        return Err(Error::Invalid("the volume would be larger than its device"));
    }
    let geometry = Geometry::for_size(size, options.log_size)?;
    // The old superblocks are erased first, so that no crash leaves a half-overwritten old volume. The
    // mark gets its block on the host here, so that it never needs space there later.
    let copies = if fresh {
        Vec::new()
    } else {
        old_copies(device)
    };
    let units = geometry.copy_goals();
    let marks = [MARK_BLOCK].into_iter().chain(units.map(mark_block_of));
    for block in SUPERBLOCK_SLOTS.into_iter().chain(marks).chain(copies) {
        device.write(block * BLOCK_SIZE as u64, &AlignedBuf::zeroed(BLOCK_SIZE))?;
    }
    device.flush()?;
    zero_log(device, &geometry, progress)?;
    let mut superblock = first_superblock(&geometry, options)?;
    let first = geometry.data_start().next_multiple_of(NODE_BLOCKS);
    let root = write_trees(device, &superblock, first, options.root_owner)?;
    superblock.root = root;
    superblock.root_height = U32::new(1);
    let trees = BlockRun::new(first, 2 * NODE_BLOCKS);
    let [end, middle] = units.map(|unit| BlockRun::new(unit, NODE_BLOCKS));
    let table = Space::format(device, &geometry, fresh, &[trees, end, middle])?;
    superblock.table_copy = U32::new(u32::from(table.copy));
    superblock.table_crc = U32::new(table.crc);
    superblock.free_blocks = U64::new(table.free_blocks);
    device.flush()?;
    for generation in [1, 2] {
        superblock.generation = U64::new(generation);
        let copies = superblock.copy_blocks(superblock.slot());
        let front = [(superblock.slot_block(), 0)];
        for (at, place) in front.into_iter().chain(copies.map(|block| (block, block))) {
            let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
            block.copy_from_slice(&superblock.encode_copy(place));
            device.write(at * BLOCK_SIZE as u64, &block)?;
        }
    }
    device.flush()?;
    Ok(volume_info(&superblock))
}

/// Whether nothing would be lost by a new volume.
fn holds_nothing(device: &dyn Device) -> Result<bool> {
    Ok(looks_empty(device)? && find_copies(device, Effort::Places).newest().is_none())
}

/// The blocks with copies of the superblock of the volume that a device has.
fn old_copies(device: &dyn Device) -> Vec<u64> {
    let front = newest_at_front(device);
    let searched = find_copies(device, Effort::Places).newest();
    let found = front.into_iter().chain(searched.map(|(_, s)| s));
    let blocks = found.flat_map(|s| s.copy_units().flat_map(copy_blocks_of).collect::<Vec<_>>());
    let last = device.size() / BLOCK_SIZE as u64;
    blocks.filter(|block| *block < last).collect()
}

/// Writes zeros to the log's area: a hole or an unwritten extent in an image file would cost an
/// additional write when the log first reaches it.
fn zero_log(
    device: &dyn Device,
    geometry: &Geometry,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let total = geometry.log_blocks * BLOCK_SIZE as u64;
    let zeros = AlignedBuf::zeroed(CHUNK);
    let mut done = 0;
    while done < total {
        let len = (total - done).min(CHUNK as u64);
        let part = zeros.get(..len as usize).unwrap_or_default();
        device.write(LOG_START * BLOCK_SIZE as u64 + done, part)?;
        done += len;
        progress(done, total);
    }
    Ok(())
}

fn first_superblock(geometry: &Geometry, options: &MakeOptions) -> Result<Superblock> {
    let source = Source::new(options.seed);
    let mut uuid =
        (u128::from(source.random()?) << 64 | u128::from(source.random()?)).to_le_bytes();
    // Version 4, variant 1 (RFC 9562).
    let [_, _, _, _, _, _, version, _, variant, ..] = &mut uuid;
    *version = *version & 0x0f | 0x40;
    *variant = *variant & 0x3f | 0x80;
    let mut label = [0; MAX_LABEL];
    for (to, from) in label.iter_mut().zip(options.label.bytes()) {
        *to = from;
    }
    Ok(RawSuperblock {
        magic: MAGIC,
        checksum: U64::new(0),
        compatible: U64::new(0),
        ro_compatible: U64::new(COPIES),
        incompatible: U64::new(RENAMED_ENTRIES),
        uuid,
        hash_seed: U64::new(source.random()?),
        label,
        created: U64::new(source.now().secs as u64),
        block_size: U32::new(BLOCK_SIZE as u32),
        node_size: U32::new(NODE_SIZE as u32),
        total_blocks: U64::new(geometry.total_blocks),
        log_blocks: U64::new(geometry.log_blocks),
        generation: U64::new(1),
        merged_seq: U64::new(1),
        tail_lsn: U64::new(0),
        tail_chain: U64::new(0),
        required_lsn: U64::new(0),
        next_ino: U64::new(FIRST_USER_INO),
        next_root: U32::new(MAIN_ROOT + 1),
        table_copy: U32::new(0),
        table_crc: U32::new(0),
        root_height: U32::new(0),
        root: Default::default(),
        free_blocks: U64::new(0),
        checkpoint: RawCheckpoint::default(),
        checkpoint_before: RawCheckpoint::default(),
        ranges: U32::new(0),
        copies: geometry.copy_goals().map(U64::new),
        place: U64::new(0),
    })
}

/// Writes the two trees, one leaf each: the root directory, and the item with the tree's root.
fn write_trees(
    device: &dyn Device,
    superblock: &Superblock,
    first: u64,
    owner: (u32, u32),
) -> Result<cairnfs_disk::format::pointer::RawPtr> {
    let volume = superblock
        .uuid
        .first_chunk::<8>()
        .map_or(0, |c| u64::from_le_bytes(*c));
    let birth = superblock.merged_seq.get();
    let born = Time {
        secs: superblock.created.get() as i64,
        nanos: 0,
    };
    let mut builder = NodeBuilder::new();
    let root_dir = Attrs::new(S_IFDIR | 0o755, owner, 0, ROOT_INO, born);
    builder.push(&Key::inode(ROOT_INO), CellValue::Inline(&root_dir.encode()));
    let main = write_node(device, &mut builder, first, birth, volume)?;
    let root = RawRoot {
        ptr: main,
        height: U32::new(1),
        birth: U64::new(birth),
    };
    let key = Key::new(u64::from(MAIN_ROOT), Kind::Root, 0);
    builder.push(&key, CellValue::Inline(root.as_bytes()));
    write_node(device, &mut builder, first + NODE_BLOCKS, birth, volume)
}

fn write_node(
    device: &dyn Device,
    builder: &mut NodeBuilder,
    block: u64,
    birth: u64,
    volume: u64,
) -> Result<cairnfs_disk::format::pointer::RawPtr> {
    let (bytes, ptr) = builder.finish(0, block, birth, volume);
    let mut aligned = AlignedBuf::zeroed(NODE_SIZE);
    aligned.copy_from_slice(&bytes);
    device.write(block * BLOCK_SIZE as u64, &aligned)?;
    Ok(ptr)
}

/// Whether a volume remains to be made in the file at `path`: there is none, or it is empty, as
/// [`make`] defines it. Not decided under a lock, unlike by [`make`]. A failure to look, and
/// anything but a file, is `false`.
pub fn is_unmade(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => {
            let nothing = |file: &Peek| file.size == 0 || holds_nothing(file).unwrap_or(false);
            Peek::open(path).is_ok_and(|file| nothing(&file))
        }
        Ok(_) => false,
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Returns the contents of the superblock without opening the volume; works while it is mounted.
///
/// # Errors
/// Not a volume; neither a file nor a block device; a read error.
pub fn inspect(path: &Path) -> Result<VolumeInfo> {
    let identity = read_superblock(&Peek::open(path)?)?;
    let mut info = volume_info(&identity.superblock);
    info.front = identity.front;
    Ok(info)
}

/// A file opened without a lock, for reading its first megabyte only.
struct Peek {
    file: std::fs::File,
    size: u64,
}

impl Peek {
    fn open(path: &Path) -> Result<Self> {
        let error = |source| Error::Open {
            path: path.display().to_string(),
            source: Arc::new(source),
        };
        // Opening a FIFO would block.
        FileDevice::is_block_device_at(path)?;
        let file = std::fs::File::open(path).map_err(error)?;
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0));
        let size = size.map_err(|e| error(e.into()))?;
        Ok(Self { file, size })
    }
}

impl Device for Peek {
    fn size(&self) -> u64 {
        self.size
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.file
            .read_exact_at(buf, offset)
            .map_err(|source| Error::Io {
                op: "read",
                offset,
                len: buf.len(),
                source: Arc::new(source),
            })
    }
    fn write(&self, _offset: u64, _buf: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }
}
