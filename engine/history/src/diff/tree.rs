//! Reads of one tree of files: inodes, entries, attributes, contents.
//!
//! Uses the index and the decoders of the format. The tree must be frozen: its nodes and blocks are
//! not reused while it is read, so an item that does not decode is damage. Data blocks come from
//! [`Blocks`].

use std::ops::Range;

use cairnfs_core::data::DataStore;
use cairnfs_core::index::{Differences, Index, Tree};
use cairnfs_core::txn::value_at;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::item::{
    DirEntryRef, EXTENT_UNWRITTEN, RawInode, decode_dir_entry, decode_extent_at, decode_inode,
};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::xattr::{StoredValue, decode_stored_xattrs};
use cairnfs_disk::format::{BLOCK_SIZE, MAX_EXTENT_BLOCKS, ROOT_INO};

/// Reads data blocks.
pub trait Blocks {
    /// Reads adjacent blocks, one for each checksum, verifies them, and passes each to `each` with
    /// its position.
    ///
    /// # Errors
    /// A device failure, or a checksum mismatch.
    fn read(&self, block: u64, crcs: &[u32], each: &mut dyn FnMut(usize, &[u8])) -> Result<()>;
}

impl Blocks for DataStore {
    fn read(&self, block: u64, crcs: &[u32], each: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        self.read_run(block, crcs, each)
    }
}

/// An extent of a file, with the positions of its blocks in the file and on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    /// First file block.
    pub start: u64,
    /// Exclusive last file block.
    pub end: u64,
    /// First device block.
    pub block: u64,
    /// One checksum for each block; empty if the extent is unwritten.
    pub crcs: Vec<u32>,
}

impl Extent {
    fn decode(key: &Key, value: &[u8], geometry: &Geometry) -> Result<Self> {
        let (raw, crcs) = decode_extent_at(key.offset, value, geometry)
            .map_err(|found| bad_item(key, "extent item", found))?;
        let written = raw.flags.get() & EXTENT_UNWRITTEN == 0;
        Ok(Self {
            start: key.offset,
            end: key.offset + u64::from(raw.len.get()),
            block: raw.block.get(),
            crcs: if written {
                crcs.iter().map(|c| c.get()).collect()
            } else {
                Vec::new()
            },
        })
    }

    /// The device block and the checksum of a file block; `None` if it reads as zeros.
    pub fn at(&self, file_block: u64) -> Option<(u64, u32)> {
        let nth = file_block.checked_sub(self.start)?;
        let crc = self.crcs.get(usize::try_from(nth).ok()?)?;
        Some((self.block + nth, *crc))
    }
}

/// A directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Inode number of the child.
    pub ino: u64,
    /// File type bits of the child's mode.
    pub kind: u32,
    /// Name of the entry.
    pub name: Vec<u8>,
}

/// A frozen tree of files.
#[derive(Clone, Copy)]
pub struct FileTree<'a> {
    index: &'a Index,
    tree: Tree,
    geometry: &'a Geometry,
}

impl<'a> FileTree<'a> {
    /// The files of `tree` on a volume of this geometry.
    pub fn new(index: &'a Index, tree: Tree, geometry: &'a Geometry) -> Self {
        Self {
            index,
            tree,
            geometry,
        }
    }

    /// Whether there are no items: not even a root directory.
    pub fn is_empty(&self) -> bool {
        self.tree.height == 0
    }

    /// The items in which this tree and a newer one differ.
    ///
    /// # Errors
    /// A damaged volume.
    pub fn differences(&self, new: &Self) -> Result<Differences<'a>> {
        self.index.differences(&self.tree, &new.tree)
    }

    /// The inode item of `ino`. An inode without links has no name and is not part of the visible
    /// tree.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn inode(&self, ino: u64) -> Result<Option<RawInode>> {
        let key = Key::inode(ino);
        let item = self.index.get(&self.tree, &key)?;
        item.map(|value| inode_of(&key, &value)).transpose()
    }

    /// Calls `each` with the key and the value of every item of `ino` from `kind` and `offset` on.
    pub(super) fn items(
        &self,
        ino: u64,
        kind: Kind,
        offset: u64,
        each: &mut dyn FnMut(&Key, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let from = Key::new(ino, kind, offset);
        self.index.scan(&self.tree, &from, &mut |key, value| {
            Ok(key.object == ino && each(key, value)?)
        })
    }

    /// Calls `each` with the entries of a directory, by index, until it returns `false`.
    ///
    /// # Errors
    /// A damaged volume, the device's failure, or what `each` returns.
    pub fn entries(
        &self,
        dir: u64,
        each: &mut dyn FnMut(&DirEntryRef<'_>) -> Result<bool>,
    ) -> Result<()> {
        self.entries_from(dir, 0, &mut |_, entry| each(entry))
    }

    /// As [`Self::entries`], with their indexes, from the index `first` on.
    ///
    /// # Errors
    /// As [`Self::entries`].
    pub(super) fn entries_from(
        &self,
        dir: u64,
        first: u64,
        each: &mut dyn FnMut(u64, &DirEntryRef<'_>) -> Result<bool>,
    ) -> Result<()> {
        self.items(dir, Kind::DirIndex, first, &mut |key, value| {
            if key.kind != Kind::DirIndex {
                return Ok(false);
            }
            each(key.offset, &entry_of(key, value)?)
        })
    }

    /// The inode of a name in a directory. Reads the directory's entries until it is found.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn child(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        let mut found = None;
        self.entries(dir, &mut |entry| {
            found = (entry.name == name).then_some(entry.ino);
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    /// The inode of a path, as names from the root directory on. Symbolic links are not followed.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn find(&self, names: &[&[u8]]) -> Result<Option<u64>> {
        let mut at = ROOT_INO;
        for name in names {
            match self.child(at, name)? {
                Some(ino) => at = ino,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// Calls `each` with all entries of all directories, until it returns `false`. Reads the whole
    /// tree.
    pub(super) fn all_entries(
        &self,
        each: &mut dyn FnMut(u64, &DirEntryRef<'_>) -> Result<bool>,
    ) -> Result<()> {
        let from = Key::first_of(0);
        self.index.scan(&self.tree, &from, &mut |key, value| {
            if key.kind == Kind::DirIndex {
                each(key.object, &entry_of(key, value)?)
            } else {
                Ok(true)
            }
        })
    }

    /// The bytes of an attribute's value.
    pub(super) fn value(&self, key: &Key, value: &StoredValue<'_>) -> Result<Vec<u8>> {
        let place = match value {
            StoredValue::Own(bytes) => return Ok(bytes.to_vec()),
            StoredValue::Shared(place) => *place,
        };
        let found = value_at(self.index, &self.tree, place)?;
        found.map(|(bytes, _)| bytes).ok_or_else(|| {
            let found = format!("no value at {:016x}", place.offset());
            bad_item(key, "attribute", found)
        })
    }

    /// Calls `each` with the name and the value of every extended attribute.
    ///
    /// # Errors
    /// A damaged volume, the device's failure, or what `each` returns.
    pub fn xattrs(
        &self,
        ino: u64,
        each: &mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        self.items(ino, Kind::Xattr, 0, &mut |key, item| {
            if key.kind != Kind::Xattr {
                return Ok(false);
            }
            let list = decode_stored_xattrs(item).map_err(|f| bad_item(key, "attribute", f))?;
            for xattr in list {
                each(xattr.name(), self.value(key, &xattr.value)?)?;
            }
            Ok(true)
        })
    }

    pub(super) fn extent(&self, key: &Key, value: &[u8]) -> Result<Extent> {
        Extent::decode(key, value, self.geometry)
    }

    /// The device blocks and checksums of a file's blocks from `first` on, one for each item of
    /// `places`; `None` for one that reads as zeros. Returns whether the file is inline, and has none.
    pub(super) fn places(
        &self,
        ino: u64,
        first: u64,
        places: &mut [Option<(u64, u32)>],
    ) -> Result<bool> {
        places.fill(None);
        let inline = Key::new(ino, Kind::Inline, 0);
        if self
            .index
            .get_with(&self.tree, &inline, |value| value.is_some())?
        {
            return Ok(true);
        }
        let from = first.saturating_sub(MAX_EXTENT_BLOCKS - 1);
        let last = first.saturating_add(places.len() as u64);
        self.items(ino, Kind::Extent, from, &mut |key, value| {
            if key.kind != Kind::Extent || key.offset >= last {
                return Ok(false);
            }
            let extent = self.extent(key, value)?;
            for (place, block) in places.iter_mut().zip(first..) {
                *place = extent.at(block).or(*place);
            }
            Ok(true)
        })?;
        Ok(false)
    }

    /// Fills `buf` with the contents of a file, or the target of a symbolic link, from `offset` on.
    /// Holes, and bytes behind the end, are zeros.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn read(&self, blocks: &dyn Blocks, ino: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        let inline = Key::new(ino, Kind::Inline, 0);
        if let Some(bytes) = self.index.get(&self.tree, &inline)? {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            copy(bytes.get(from..).unwrap_or_default(), buf);
            return Ok(());
        }
        let size = BLOCK_SIZE as u64;
        let end = offset.saturating_add(buf.len() as u64);
        let first = (offset / size).saturating_sub(MAX_EXTENT_BLOCKS - 1);
        self.items(ino, Kind::Extent, first, &mut |key, value| {
            if key.kind != Kind::Extent || key.offset * size >= end {
                return Ok(false);
            }
            self.read_extent(blocks, &self.extent(key, value)?, offset, buf)?;
            Ok(true)
        })
    }

    /// The first range within `range` that is written: inline contents, or written extents that
    /// follow each other. An empty range at the end of `range` if there is none.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn next_written(&self, ino: u64, range: Range<u64>) -> Result<Range<u64>> {
        let inline = Key::new(ino, Kind::Inline, 0);
        if let Some(len) = self
            .index
            .get_with(&self.tree, &inline, |v| v.map(<[u8]>::len))?
        {
            let end = range.end.min(len as u64);
            return Ok(if range.start < end {
                range.start..end
            } else {
                range.end..range.end
            });
        }
        let size = BLOCK_SIZE as u64;
        let first = (range.start / size).saturating_sub(MAX_EXTENT_BLOCKS - 1);
        let mut found: Option<Range<u64>> = None;
        self.items(ino, Kind::Extent, first, &mut |key, value| {
            if key.kind != Kind::Extent {
                return Ok(false);
            }
            let extent = self.extent(key, value)?;
            let start = (extent.start * size).max(range.start);
            let end = (extent.end * size).min(range.end);
            match &mut found {
                _ if start >= range.end => return Ok(false),
                _ if extent.crcs.is_empty() || start >= end => {}
                Some(before) if before.end == start => before.end = end,
                Some(_) => return Ok(false),
                none => *none = Some(start..end),
            }
            Ok(true)
        })?;
        Ok(found.unwrap_or(range.end..range.end))
    }

    fn read_extent(
        &self,
        blocks: &dyn Blocks,
        extent: &Extent,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let size = BLOCK_SIZE as u64;
        let end = offset.saturating_add(buf.len() as u64);
        let first = (offset / size).max(extent.start);
        let last = end.div_ceil(size).min(extent.end);
        let nth = |at: u64| at.saturating_sub(extent.start) as usize;
        let Some(crcs) = extent.crcs.get(nth(first)..nth(last)) else {
            return Ok(());
        };
        blocks.read(
            extent.block + (first - extent.start),
            crcs,
            &mut |i, bytes| {
                let at = (first + i as u64) * size;
                let skipped = offset.saturating_sub(at) as usize;
                let to = at.saturating_sub(offset) as usize;
                copy(
                    bytes.get(skipped..).unwrap_or_default(),
                    buf.get_mut(to..).unwrap_or_default(),
                );
            },
        )
    }
}

/// Copies as much as both have.
fn copy(from: &[u8], to: &mut [u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

pub(super) fn inode_of(key: &Key, value: &[u8]) -> Result<RawInode> {
    decode_inode(value).map_err(|found| bad_item(key, "inode item", found))
}

pub(super) fn entry_of<'v>(key: &Key, value: &'v [u8]) -> Result<DirEntryRef<'v>> {
    decode_dir_entry(value).map_err(|found| bad_item(key, "directory entry", found))
}

/// The error for an item that does not decode.
pub(super) fn bad_item(key: &Key, what: &'static str, found: String) -> Error {
    Error::corrupt(
        0,
        what,
        format!("a valid item of inode {}", key.object),
        found,
    )
}
