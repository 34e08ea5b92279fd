//! The superblock: identity, geometry, and the state from which a mount starts.
//!
//! The two slots are written alternately (slot = generation mod 2), each with a checksum. A mount
//! uses the newest valid one. A volume with the feature [`COPIES`] has both slots also in units of
//! the data area, far from its front, where each says in which block it is.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Corruption, Error};
use crate::format::geometry::{Geometry, MARK_BLOCK, SUPERBLOCK_SLOTS};
use crate::format::numbers::{Given, MAX_RANGES};
use crate::format::pointer::RawPtr;
use crate::format::{BLOCK_SIZE, FIRST_USER_INO, MAX_COUNTER, NODE_BLOCKS, NODE_SIZE, checksum};

/// Magic number: the first bytes of a volume.
pub const MAGIC: [u8; 8] = *b"CairnFS\x03";
/// Incompatible feature: the log may change the name of a directory entry under its index.
pub const RENAMED_ENTRIES: u64 = 1;
/// Incompatible feature: the volume has, or had, roots besides the main root.
pub const ROOTS: u64 = 2;
/// Incompatible feature: roots may name others that they have replaced.
pub const REPLACED: u64 = 4;
/// Read-only compatible feature: the superblock names checkpoints, and blocks that are written in place
/// are born again.
pub const CHECKPOINTS: u64 = 1;
/// Read-only compatible feature: files of other volumes have numbers in ranges of their own.
pub const RANGES: u64 = 2;
/// Read-only compatible feature: the superblock names units with copies of both slots.
pub const COPIES: u64 = 4;
/// Incompatible features that this version supports.
pub const KNOWN_INCOMPATIBLE: u64 = RENAMED_ENTRIES | ROOTS | REPLACED;
/// Read-only compatible features that this version supports.
pub const KNOWN_RO_COMPATIBLE: u64 = CHECKPOINTS | RANGES | COPIES;
/// Maximum length of the label in bytes.
pub const MAX_LABEL: usize = 64;

/// The name of a checkpoint: a state of the whole volume that was shipped elsewhere. All zeros for
/// none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawCheckpoint {
    /// The merged sequence of that state: what it has was born up to it, everything later was not.
    pub seq: U64,
    /// Random number, so that no other state of a copy of the volume has the name.
    pub number: U64,
}

/// The on-disk superblock. `checksum` covers everything behind it, to the end of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawSuperblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// XXH3-64 of the block's bytes behind this field.
    pub checksum: U64,
    /// Compatible features: a version that does not support them may ignore them.
    pub compatible: U64,
    /// Read-only compatible features: a version that does not support them may mount read-only.
    pub ro_compatible: U64,
    /// Incompatible features: a version that does not support them must not mount the volume.
    pub incompatible: U64,
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// Seed of the name hashes.
    pub hash_seed: U64,
    /// Label chosen by the user, padded with NUL.
    pub label: [u8; MAX_LABEL],
    /// Time of mkfs, in seconds since the epoch.
    pub created: U64,
    /// Block size in bytes.
    pub block_size: U32,
    /// Size of an index node in bytes.
    pub node_size: U32,
    /// Size of the volume in blocks.
    pub total_blocks: U64,
    /// Size of the log in blocks.
    pub log_blocks: U64,
    /// Incremented with each superblock write.
    pub generation: U64,
    /// The index contains all contexts up to this sequence.
    pub merged_seq: U64,
    /// LSN of the log tail: the first record to replay.
    pub tail_lsn: U64,
    /// Required value of the chain field of the record at the tail.
    pub tail_chain: U64,
    /// Recovery must reach this LSN (the end of a record); a log that ends earlier is damaged.
    pub required_lsn: U64,
    /// Lower bound of unused inode numbers: merged contexts use only smaller ones.
    pub next_ino: U64,
    /// Id of the next root to be created.
    pub next_root: U32,
    /// The active copy of the group table (0 or 1).
    pub table_copy: U32,
    /// CRC32C of all blocks of that copy.
    pub table_crc: U32,
    /// Height of the volume root's tree: 1 for a single leaf, 0 if empty.
    pub root_height: U32,
    /// Root node of the volume root's tree.
    pub root: RawPtr,
    /// Number of free blocks in the bitmaps.
    pub free_blocks: U64,
    /// The newest checkpoint.
    pub checkpoint: RawCheckpoint,
    /// The checkpoint with which that one was compared.
    pub checkpoint_before: RawCheckpoint,
    /// Number of ranges of inode numbers that were taken for files of other volumes.
    pub ranges: U32,
    /// First blocks of the units with copies of both slots; 0 for none.
    pub copies: [U64; 2],
    /// In a copy, the block in which it is; 0 at the front, and in a decoded superblock.
    pub place: U64,
}

/// A decoded, checked superblock.
pub type Superblock = RawSuperblock;

/// The error for a device of `size` bytes in which neither slot looks like a superblock.
pub fn absent(size: u64) -> Error {
    let end = (SUPERBLOCK_SLOTS[1] + 1) * BLOCK_SIZE as u64;
    let why = match size {
        0 => "it has no bytes; `cairnfs mkfs` makes a volume of an empty file".into(),
        n if n < end => format!("it has only {n} bytes; is it the right one?"),
        _ => "it has no superblock; is it the right one?".into(),
    };
    Error::NotAVolume(format!("not a CairnFS volume: {why}"))
}

/// The blocks of a unit with copies that have the slots 0 and 1: far enough apart that a block
/// between them keeps damage of one from the other.
pub const fn copy_blocks_of(unit: u64) -> [u64; 2] {
    [unit, unit + NODE_BLOCKS - 1]
}

/// The block of a unit with copies that has the durable mark.
pub const fn mark_block_of(unit: u64) -> u64 {
    unit + 1
}

impl RawSuperblock {
    /// The geometry of the volume.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            total_blocks: self.total_blocks.get(),
            log_blocks: self.log_blocks.get(),
        }
    }

    /// The inode numbers that the volume has given, apart from those that only the log has.
    pub fn given(&self) -> Given {
        Given {
            next: self.next_ino.get(),
            ranges: self.ranges.get(),
        }
    }

    /// The slot (0 or 1) of this generation.
    pub fn slot(&self) -> usize {
        (self.generation.get() & 1) as usize
    }

    /// The device block of [`Self::slot`].
    pub fn slot_block(&self) -> u64 {
        let [even, odd] = SUPERBLOCK_SLOTS;
        if self.slot() == 0 { even } else { odd }
    }

    /// The units with copies of both slots.
    pub fn copy_units(&self) -> impl Iterator<Item = u64> + use<> {
        let marked = self.ro_compatible.get() & COPIES != 0;
        let units = self.copies.map(|unit| unit.get());
        units.into_iter().filter(move |unit| marked && *unit != 0)
    }

    /// The blocks with copies of a slot (0 or 1), in the order of [`Self::copy_units`].
    pub fn copy_blocks(&self, slot: usize) -> impl Iterator<Item = u64> + use<> {
        self.copy_units().map(move |unit| {
            let [even, odd] = copy_blocks_of(unit);
            if slot & 1 == 0 { even } else { odd }
        })
    }

    /// The blocks with the durable mark, each with the place that the mark names.
    pub fn mark_blocks(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let copies = self.copy_units().map(mark_block_of);
        [(MARK_BLOCK, 0)]
            .into_iter()
            .chain(copies.map(|block| (block, block)))
    }

    /// The label as text, without its padding.
    pub fn label_text(&self) -> String {
        let end = self.label.iter().position(|b| *b == 0).unwrap_or(MAX_LABEL);
        String::from_utf8_lossy(self.label.get(..end).unwrap_or_default()).into_owned()
    }

    /// The encoded block of the slot at the front, with its checksum.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_copy(0)
    }

    /// The encoded block of a copy in the block `place`.
    pub fn encode_copy(&self, place: u64) -> Vec<u8> {
        let mut block = vec![0; BLOCK_SIZE];
        let mut raw = *self;
        raw.magic = MAGIC;
        raw.place = U64::new(place);
        for (to, from) in block.iter_mut().zip(raw.as_bytes()) {
            *to = *from;
        }
        let sum = checksum::hash64(block.get(16..).unwrap_or_default());
        if let Some(field) = block.get_mut(8..16) {
            field.copy_from_slice(&sum.to_le_bytes());
        }
        block
    }

    /// Checks and decodes a superblock that was read from `block`, which is a slot at the front.
    ///
    /// # Errors
    /// Magic, checksum, sizes, geometry or a counter is invalid, or it is a copy. Unknown features
    /// are not an error here, because it depends on the caller's purpose whether they matter.
    pub fn decode(block: u64, bytes: &[u8]) -> Result<Self, Corruption> {
        Self::decode_at(block, 0, bytes)
    }

    /// Checks and decodes a copy that was read from `block`.
    ///
    /// # Errors
    /// As [`Self::decode`]; it is no copy for this block.
    pub fn decode_copy(block: u64, bytes: &[u8]) -> Result<Self, Corruption> {
        let found = Self::decode_at(block, block, bytes)?;
        if found.copy_blocks(found.slot()).any(|copy| copy == block) {
            Ok(found)
        } else {
            Err(Corruption::new(
                block,
                "copy of the superblock",
                format!(
                    "one of generation {} in a place that it names",
                    found.generation
                ),
                format!("{:?}", found.copies.map(|unit| unit.get())),
            ))
        }
    }

    fn decode_at(block: u64, place: u64, bytes: &[u8]) -> Result<Self, Corruption> {
        let bad = |what: &'static str, expected: String, found: String| {
            Corruption::new(block, what, expected, found)
        };
        let (raw, _) = RawSuperblock::read_from_prefix(bytes).map_err(|_| {
            bad(
                "superblock",
                format!("{BLOCK_SIZE} bytes"),
                format!("{} bytes", bytes.len()),
            )
        })?;
        if raw.magic != MAGIC {
            return Err(bad(
                "superblock magic",
                format!("{:02x?}", MAGIC),
                format!("{:02x?}", raw.magic),
            ));
        }
        let sum = checksum::hash64(bytes.get(16..BLOCK_SIZE).unwrap_or_default());
        if sum != raw.checksum.get() {
            return Err(bad(
                "superblock checksum",
                format!("{:016x}", raw.checksum.get()),
                format!("{sum:016x}"),
            ));
        }
        if raw.block_size.get() as usize != BLOCK_SIZE || raw.node_size.get() as usize != NODE_SIZE
        {
            return Err(bad(
                "superblock sizes",
                format!("blocks of {BLOCK_SIZE}, nodes of {NODE_SIZE}"),
                format!("blocks of {}, nodes of {}", raw.block_size, raw.node_size),
            ));
        }
        raw.geometry().validate().map_err(|why| {
            bad(
                "superblock geometry",
                why.to_string(),
                format!("{} blocks, log of {}", raw.total_blocks, raw.log_blocks),
            )
        })?;
        let height = raw.root_height.get();
        if height > crate::format::node::MAX_HEIGHT {
            return Err(bad(
                "superblock root height",
                format!("at most {}", crate::format::node::MAX_HEIGHT),
                height.to_string(),
            ));
        }
        if raw.table_copy.get() > 1 {
            return Err(bad(
                "superblock table copy",
                "0 or 1".into(),
                raw.table_copy.to_string(),
            ));
        }
        raw.check_counters()
            .map_err(|(expected, found)| bad("superblock counter", expected, found))?;
        if raw.place.get() != place {
            return Err(bad(
                "superblock place",
                place.to_string(),
                raw.place.to_string(),
            ));
        }
        if let Some(unit) = raw.wrong_copy() {
            return Err(bad(
                "superblock copies",
                "two units of the data area".into(),
                unit.to_string(),
            ));
        }
        Ok(Self {
            place: U64::new(0),
            ..raw
        })
    }

    /// A place for copies that cannot be one.
    fn wrong_copy(&self) -> Option<u64> {
        let geometry = self.geometry();
        let [first, second] = self.copies;
        let wrong = |unit: &u64| {
            let same = first == second;
            same || !unit.is_multiple_of(NODE_BLOCKS) || !geometry.in_data(*unit, NODE_BLOCKS)
        };
        self.copy_units().find(wrong)
    }

    /// Checks the counters; the error is (expected, found).
    fn check_counters(&self) -> Result<(), (String, String)> {
        let counters = [
            ("generation", self.generation),
            ("sequence", self.merged_seq),
            ("tail", self.tail_lsn),
            ("required LSN", self.required_lsn),
            ("next inode number", self.next_ino),
            ("checkpoint", self.checkpoint.seq),
            ("checkpoint", self.checkpoint_before.seq),
        ];
        if let Some((what, value)) = counters.iter().find(|(_, c)| c.get() >= MAX_COUNTER) {
            return Err((format!("a {what} below {MAX_COUNTER}"), value.to_string()));
        }
        if self.next_ino.get() < FIRST_USER_INO {
            let expected = format!("a next inode number from {FIRST_USER_INO} on");
            return Err((expected, self.next_ino.to_string()));
        }
        if self.ranges.get() > MAX_RANGES {
            let expected = format!("at most {MAX_RANGES} ranges of inode numbers");
            return Err((expected, self.ranges.to_string()));
        }
        Ok(())
    }
}
