//! Item keys (object, kind, offset) in lexicographic order, and their 17-byte encoding, whose byte
//! order is the same.

use crate::format::{BLOCK_SIZE, MAX_COUNTER, MAX_FILE_SIZE};

/// Length of an encoded key in bytes.
pub const KEY_LEN: usize = 17;

/// Exclusive upper bound of the file blocks of extents.
const FILE_BLOCKS: u64 = MAX_FILE_SIZE / BLOCK_SIZE as u64;

/// Object of the orphan items of a root.
pub const ORPHANS: u64 = 2;
/// Object of the shared attribute values of a root, with their use counts.
pub const SHARED_VALUES: u64 = 3;
/// Object of the bytes of shared values that are too long to be stored with their use counts.
pub const SHARED_BYTES: u64 = 4;

/// The root of the volume's own items, including the table of the other roots.
pub const VOLUME_ROOT: u32 = 0;
/// The root of the volume's files.
pub const MAIN_ROOT: u32 = 1;

/// The kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Attributes of an inode; key (ino, 1, 0).
    Inode = 1,
    /// Content of a small file, or the target of a symbolic link; key (ino, 2, 0).
    Inline = 2,
    /// A directory entry; key (dir, 3, index).
    DirIndex = 3,
    /// Indexes of the entries whose names have this hash (derived data); key (dir, 4, hash).
    DirName = 4,
    /// The extended attributes whose names have this hash; key (ino, 5, hash).
    Xattr = 5,
    /// A run of data blocks; key (ino, 6, first file block).
    Extent = 6,
    /// A shared attribute value; key (SHARED_VALUES, 7, content hash + slot). The bytes of a long
    /// value have the key (SHARED_BYTES, 7, content hash + slot).
    SharedValue = 7,
    /// An inode to remove or truncate when it is no longer in use; key (ORPHANS, 8, ino).
    Orphan = 8,
    /// A root of the volume; key (root id, 9, 0), in the volume's own root.
    Root = 9,
}

impl Kind {
    /// The kind that a byte encodes; `None` if unknown.
    pub fn from_u8(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Inode,
            2 => Kind::Inline,
            3 => Kind::DirIndex,
            4 => Kind::DirName,
            5 => Kind::Xattr,
            6 => Kind::Extent,
            7 => Kind::SharedValue,
            8 => Kind::Orphan,
            9 => Kind::Root,
            _ => return None,
        })
    }
}

/// The key of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Usually an inode number.
    pub object: u64,
    /// The kind of the item.
    pub kind: Kind,
    /// Depends on the kind: a hash, an index or a file block.
    pub offset: u64,
}

impl Key {
    /// A key from its parts.
    pub const fn new(object: u64, kind: Kind, offset: u64) -> Self {
        Self {
            object,
            kind,
            offset,
        }
    }

    /// The smallest key of an object.
    pub const fn first_of(object: u64) -> Self {
        Self::new(object, Kind::Inode, 0)
    }

    /// The largest key of an object.
    pub const fn last_of(object: u64) -> Self {
        Self::new(object, Kind::Root, u64::MAX)
    }

    /// Key of an inode's attributes.
    pub const fn inode(ino: u64) -> Self {
        Self::new(ino, Kind::Inode, 0)
    }

    /// Key of the orphan item of inode `ino`.
    pub const fn orphan(ino: u64) -> Self {
        Self::new(ORPHANS, Kind::Orphan, ino)
    }

    /// Checks that its numbers are ones that a log entry can have: the inode number and the
    /// directory index were given, and the file block is one of a file. Additions to them do not
    /// overflow.
    ///
    /// # Errors
    /// What is out of range, as text.
    pub fn check_logged(&self) -> Result<(), String> {
        let offset = self.offset;
        // The key of an orphan item has the inode number as its offset.
        let ino = match self.kind {
            Kind::Orphan => offset,
            _ => self.object,
        };
        match self.kind {
            _ if ino >= MAX_COUNTER => Err(format!("inode number {ino}")),
            Kind::DirIndex if offset >= MAX_COUNTER => Err(format!("directory index {offset}")),
            Kind::Extent if offset >= FILE_BLOCKS => Err(format!("file block {offset}")),
            _ => Ok(()),
        }
    }

    /// The encoded key; byte order equals key order.
    pub fn encode(&self) -> [u8; KEY_LEN] {
        let mut out = [0; KEY_LEN];
        let (object, rest) = out.split_at_mut(8);
        object.copy_from_slice(&self.object.to_be_bytes());
        let (kind, offset) = rest.split_at_mut(1);
        kind.copy_from_slice(&[self.kind as u8]);
        offset.copy_from_slice(&self.offset.to_be_bytes());
        out
    }

    /// Decodes a key; `None` if the kind is unknown.
    pub fn decode(bytes: &[u8; KEY_LEN]) -> Option<Self> {
        let (object, rest) = bytes.split_first_chunk::<8>()?;
        let (kind, offset) = rest.split_first()?;
        Some(Self {
            object: u64::from_be_bytes(*object),
            kind: Kind::from_u8(*kind)?,
            offset: u64::from_be_bytes(*offset.first_chunk::<8>()?),
        })
    }
}

/// The bytes without the zeros at their end.
pub fn strip_zeros(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
    bytes.get(..end).unwrap_or_default()
}

/// The number of bytes at the beginning that are equal; at most 17.
pub fn common_prefix(a: &[u8; KEY_LEN], b: &[u8; KEY_LEN]) -> usize {
    match (a.split_first_chunk::<16>(), b.split_first_chunk::<16>()) {
        (Some((a, last_a)), Some((b, last_b))) if a == b => 16 + usize::from(last_a == last_b),
        (Some((a, _)), Some((b, _))) => {
            let different = u128::from_be_bytes(*a) ^ u128::from_be_bytes(*b);
            different.leading_zeros() as usize / 8
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        (any::<u64>(), 1u8..=9, any::<u64>())
            .prop_map(|(o, k, f)| Key::new(o, Kind::from_u8(k).unwrap(), f))
    }

    proptest! {
        #[test]
        fn key_encoding_round_trips_and_keeps_order(a in key(), b in key()) {
            prop_assert_eq!(a.cmp(&b), a.encode().cmp(&b.encode()));
            prop_assert_eq!(Key::decode(&a.encode()), Some(a));
        }
    }
}
