//! Log records: a header, then the entries of one part of a context.
//!
//! A record begins at a block boundary and fills whole blocks; its payload is padded with zeros.
//! Its LSN is the number of its first block, counted without wrapping since the volume was created;
//! its position in the log ring is `LSN mod ring size`, in blocks. The chain field contains the
//! checksum of the previous record, so a stale record, written before the wrap or by another mount,
//! is never accepted.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Corruption;
use crate::format::key::{Key, Kind};
use crate::format::{BLOCK_SIZE, MAX_COUNTER, MAX_VALUE, checksum};

/// Magic number of a record.
pub const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"CLog");
/// Size of a record header in bytes.
pub const HEADER_SIZE: usize = 128;
/// Maximum size of a record in blocks (1 MiB).
pub const MAX_RECORD_BLOCKS: u64 = 256;
/// Maximum size of a record's payload in bytes.
pub const MAX_PAYLOAD: usize = MAX_RECORD_BLOCKS as usize * BLOCK_SIZE - HEADER_SIZE;
/// Size of an entry header in bytes; the value follows it.
pub const ENTRY_HEADER_SIZE: usize = 24;

/// Record flag: the last part of its context.
pub const FLAG_LAST: u32 = 1;
/// Record flag: the first record of a mount; it has no entries.
pub const FLAG_MOUNT: u32 = 2;
/// Record flag: an fsync record, written ahead of the rest of its context.
pub const FLAG_FSYNC: u32 = 4;
/// Record flag: its context ends with changes of roots.
pub const FLAG_ROOTS: u32 = 8;

/// The on-disk record header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RecordHeader {
    /// XXH3-64 of the header behind this field.
    pub checksum: U64,
    /// [`RECORD_MAGIC`].
    pub magic: U32,
    /// A combination of [`FLAG_LAST`], [`FLAG_MOUNT`], [`FLAG_FSYNC`] and [`FLAG_ROOTS`].
    pub flags: U32,
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// Random number of the mount that wrote the record.
    pub nonce: U64,
    /// Log sequence number: the number of the record's first block.
    pub lsn: U64,
    /// Checksum field of the previous record.
    pub chain: U64,
    /// Sequence of the record's context.
    pub seq: U64,
    /// The log was durable up to this LSN when the record was written.
    pub durable_lsn: U64,
    /// Generation of the newest superblock when the record was written.
    pub generation: U64,
    /// Number of the part within the context, from 0.
    pub part: U32,
    /// Number of entries.
    pub entries: U32,
    /// Length of the payload in bytes.
    pub payload_len: U32,
    /// CRC32C of the payload.
    pub payload_crc: U32,
    /// Length of the data checks at the end of the payload, in bytes.
    pub checks_len: U32,
    /// Zero.
    pub reserved: [u8; 28],
}

impl RecordHeader {
    /// Size of the record in blocks.
    pub fn blocks(&self) -> u64 {
        blocks_for(self.payload_len.get() as usize)
    }

    /// Sets the magic and the checksum.
    pub fn seal(&mut self) {
        self.magic = U32::new(RECORD_MAGIC);
        self.checksum = U64::new(self.compute());
    }

    fn compute(&self) -> u64 {
        checksum::hash64(self.as_bytes().get(8..).unwrap_or_default())
    }

    /// Decodes the header at the beginning of `bytes`; `None` if its magic, checksum, lengths or
    /// counters are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, _) = RecordHeader::read_from_prefix(bytes).ok()?;
        let counters = [header.lsn, header.seq, header.generation];
        (header.magic.get() == RECORD_MAGIC
            && header.checksum.get() == header.compute()
            && header.payload_len.get() as usize <= MAX_PAYLOAD
            && header.checks_len.get() <= header.payload_len.get()
            && counters.iter().all(|c| c.get() < MAX_COUNTER))
        .then_some(header)
    }
}

/// Appends a data check to a payload: the checksums that the data blocks from `block` on must have
/// for recovery to accept the record.
pub fn push_check(payload: &mut Vec<u8>, block: u64, crcs: &[u32]) {
    payload.reserve(size_of::<u64>() + size_of::<u32>() + size_of_val(crcs));
    payload.extend_from_slice(&block.to_le_bytes());
    payload.extend_from_slice(&(crcs.len() as u32).to_le_bytes());
    for crc in crcs {
        payload.extend_from_slice(&crc.to_le_bytes());
    }
}

/// Decodes the data checks at the end of a payload: (first block, checksums). A truncated check
/// yields `None` and ends the iteration.
pub fn checks(bytes: &[u8]) -> impl Iterator<Item = Option<(u64, &[U32])>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let check = check(rest);
        rest = check.map_or(&[], |(.., behind)| behind);
        Some(check.map(|(block, crcs, _)| (block, crcs)))
    })
}

fn check(bytes: &[u8]) -> Option<(u64, &[U32], &[u8])> {
    let (block, rest) = U64::read_from_prefix(bytes).ok()?;
    let (count, rest) = U32::read_from_prefix(rest).ok()?;
    let (crcs, behind) = <[U32]>::ref_from_prefix_with_elems(rest, count.get() as usize).ok()?;
    Some((block.get(), crcs, behind))
}

/// Size in blocks of a record with a payload of `payload_len` bytes.
pub fn blocks_for(payload_len: usize) -> u64 {
    (payload_len + HEADER_SIZE).div_ceil(BLOCK_SIZE) as u64
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    /// Kind in the low byte, with its top bit set for a deletion; value length in the upper bits.
    head: U32,
    root: U32,
    object: U64,
    offset: U64,
}

/// A log entry: the change of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The root that the item belongs to.
    pub root: u32,
    /// The item's key.
    pub key: Key,
    /// Whether the item is deleted. The value is then empty, except for a directory index: there it
    /// is the hash of the name.
    pub delete: bool,
    /// The new value.
    pub value: &'a [u8],
}

/// Size in bytes of an entry with a value of `len` bytes.
pub const fn entry_size(len: usize) -> usize {
    ENTRY_HEADER_SIZE + len
}

/// Appends an entry to a payload.
pub fn push_entry(payload: &mut Vec<u8>, entry: &Entry<'_>) {
    let len = payload.len();
    payload.resize(len + entry_size(entry.value.len()), 0);
    put_entry(payload.get_mut(len..).unwrap_or_default(), entry, &[]);
}

/// Writes an entry, whose value is `entry.value` followed by `rest`, to the beginning of `to`.
/// Returns its size in bytes, or `None` if it does not fit.
pub fn put_entry(to: &mut [u8], entry: &Entry<'_>, rest: &[u8]) -> Option<usize> {
    let len = entry.value.len() + rest.len();
    debug_assert!(len <= MAX_VALUE);
    let kind = entry.key.kind as u32 | if entry.delete { 0x80 } else { 0 };
    let raw = RawEntry {
        head: U32::new(kind | (len as u32) << 8),
        root: U32::new(entry.root),
        object: U64::new(entry.key.object),
        offset: U64::new(entry.key.offset),
    };
    let to = to.get_mut(..entry_size(len))?;
    let (head, value) = to.split_at_mut_checked(ENTRY_HEADER_SIZE)?;
    let (own, shared) = value.split_at_mut_checked(entry.value.len())?;
    head.copy_from_slice(raw.as_bytes());
    own.copy_from_slice(entry.value);
    shared.copy_from_slice(rest);
    Some(entry_size(len))
}

/// Decodes the entries of a payload with a verified checksum; `block` is the block for errors.
pub fn entries(block: u64, payload: &[u8]) -> impl Iterator<Item = Result<Entry<'_>, Corruption>> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let bad = |expected: &str, found: String| {
            Some(Err(Corruption::new(block, "log entry", expected, found)))
        };
        let Ok((raw, tail)) = RawEntry::read_from_prefix(rest) else {
            let len = rest.len();
            rest = &[];
            return bad("a whole entry header", format!("{len} bytes"));
        };
        let head = raw.head.get();
        let len = (head >> 8) as usize;
        let Some(kind) = Kind::from_u8(head as u8 & 0x7f) else {
            rest = &[];
            return bad("a known kind", format!("kind {}", head & 0x7f));
        };
        let Some((value, tail)) = tail.split_at_checked(len) else {
            rest = &[];
            return bad(
                "a whole value",
                format!("length {len} of {} bytes", tail.len()),
            );
        };
        if len > MAX_VALUE {
            rest = &[];
            return bad("a value of bounded length", format!("length {len}"));
        }
        let key = Key::new(raw.object.get(), kind, raw.offset.get());
        if let Err(found) = key.check_logged() {
            rest = &[];
            return bad("a key that can be logged", found);
        }
        rest = tail;
        Some(Ok(Entry {
            root: raw.root.get(),
            key,
            delete: head & 0x80 != 0,
            value,
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::MAX_FILE_SIZE;

    #[test]
    fn log_entries_round_trip() {
        let mut payload = Vec::new();
        let a = Entry {
            root: 1,
            key: Key::new(7, Kind::DirIndex, 9),
            delete: false,
            value: b"hello",
        };
        let b = Entry {
            root: 1,
            key: Key::new(8, Kind::Extent, 1 << 40),
            delete: true,
            value: b"",
        };
        push_entry(&mut payload, &a);
        push_entry(&mut payload, &b);
        assert_eq!(payload.len(), entry_size(5) + entry_size(0));
        let got: Vec<_> = entries(0, &payload).map(|e| e.unwrap()).collect();
        assert_eq!(got, vec![a, b]);
        assert!(entries(3, &payload[..20]).any(|e| e.is_err()));
    }

    #[test]
    fn data_checks_round_trip() {
        let mut payload = Vec::new();
        push_check(&mut payload, 77, &[1, 2, 3]);
        push_check(&mut payload, 99, &[4]);
        let got: Vec<_> = checks(&payload)
            .map(|c| c.map(|(block, crcs)| (block, crcs.len())))
            .collect();
        assert_eq!(got, vec![Some((77, 3)), Some((99, 1))]);
        assert_eq!(payload.len(), 40);
        for len in 1..payload.len() {
            let whole = len == 24;
            assert_eq!(
                checks(&payload[..len]).any(|c| c.is_none()),
                !whole,
                "{len}"
            );
        }
    }

    #[test]
    fn counters_out_of_range_are_refused() {
        let sealed = |change: fn(&mut RecordHeader)| {
            let mut header = RecordHeader::default();
            change(&mut header);
            header.seal();
            RecordHeader::decode(header.as_bytes())
        };
        assert!(sealed(|h| h.seq = U64::new(MAX_COUNTER - 1)).is_some());
        assert!(sealed(|h| h.seq = U64::new(MAX_COUNTER)).is_none());
        assert!(sealed(|h| h.lsn = U64::new(u64::MAX)).is_none());
        assert!(sealed(|h| h.generation = U64::new(u64::MAX)).is_none());
        let logged = |key, delete| {
            let mut payload = Vec::new();
            let entry = Entry {
                root: 1,
                key,
                delete,
                value: b"",
            };
            push_entry(&mut payload, &entry);
            entries(3, &payload).all(|e| e.is_ok())
        };
        let blocks = MAX_FILE_SIZE / BLOCK_SIZE as u64;
        for delete in [false, true] {
            for key in [
                Key::inode(u64::MAX),
                Key::orphan(MAX_COUNTER),
                Key::new(7, Kind::DirIndex, MAX_COUNTER),
                Key::new(7, Kind::DirIndex, u64::MAX),
                Key::new(7, Kind::Extent, blocks),
                Key::new(7, Kind::Extent, u64::MAX),
            ] {
                assert!(!logged(key, delete), "{key:?}");
            }
            for key in [
                Key::inode(MAX_COUNTER - 1),
                Key::new(7, Kind::DirIndex, MAX_COUNTER - 1),
                Key::new(7, Kind::Extent, blocks - 1),
                Key::new(7, Kind::Xattr, u64::MAX),
            ] {
                assert!(logged(key, delete), "{key:?}");
            }
        }
    }

    #[test]
    fn flipped_bit_in_record_header_is_detected() {
        let mut header = RecordHeader {
            lsn: U64::new(5),
            payload_len: U32::new(10),
            ..Default::default()
        };
        header.seal();
        assert_eq!(header.as_bytes().len(), HEADER_SIZE);
        assert_eq!(RecordHeader::decode(header.as_bytes()), Some(header));
        for bit in 0..HEADER_SIZE * 8 {
            let mut bytes = header.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&bytes), None, "bit {bit}");
        }
    }
}
