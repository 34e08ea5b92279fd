//! Keys of items: (object, kind, offset), ordered so, and their 17-byte encoding that sorts alike.

/// Length of an encoded key in bytes.
pub const KEY_LEN: usize = 17;

/// Object that holds orphan items of a root.
pub const ORPHANS: u64 = 2;
/// Object that holds shared attribute values of a root, with their uses.
pub const SHARED_VALUES: u64 = 3;
/// Object that holds the bytes of shared values too long to stand with their uses.
pub const SHARED_BYTES: u64 = 4;

/// The root that holds the volume's own items, the table of the other roots among them.
pub const VOLUME_ROOT: u32 = 0;
/// The root that holds the files of the volume.
pub const MAIN_ROOT: u32 = 1;

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Attributes of an inode; key (ino, 1, 0).
    Inode = 1,
    /// Contents of a small file, or the target of a symbolic link; key (ino, 2, 0).
    Inline = 2,
    /// The directory entry; key (dir, 3, index).
    DirIndex = 3,
    /// Indexes of the entries whose names have that hash, derived; key (dir, 4, hash).
    DirName = 4,
    /// The extended attributes whose names have that hash; key (ino, 5, hash).
    Xattr = 5,
    /// A run of data blocks; key (ino, 6, first file block).
    Extent = 6,
    /// A shared attribute value; key (SHARED_VALUES, 7, content hash), of a long one's bytes
    /// (SHARED_BYTES, 7, content hash).
    SharedValue = 7,
    /// An inode to remove or truncate once nobody uses it; key (ORPHANS, 8, ino).
    Orphan = 8,
    /// A root of the volume; key (root id, 9, 0), in the volume's own root.
    Root = 9,
}

impl Kind {
    /// The kind of a byte, if it is one.
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
    /// What the item is.
    pub kind: Kind,
    /// Depends on the kind: a hash, an index, a file block.
    pub offset: u64,
}

impl Key {
    /// A key.
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

    /// Key of an orphan item.
    pub const fn orphan(ino: u64) -> Self {
        Self::new(ORPHANS, Kind::Orphan, ino)
    }

    /// The encoded key; byte order is key order.
    pub fn encode(&self) -> [u8; KEY_LEN] {
        let mut out = [0; KEY_LEN];
        let (object, rest) = out.split_at_mut(8);
        object.copy_from_slice(&self.object.to_be_bytes());
        let (kind, offset) = rest.split_at_mut(1);
        kind.copy_from_slice(&[self.kind as u8]);
        offset.copy_from_slice(&self.offset.to_be_bytes());
        out
    }

    /// The key of encoded bytes; `None` if the kind is unknown.
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
        fn encoding_keeps_order_and_returns(a in key(), b in key()) {
            prop_assert_eq!(a.cmp(&b), a.encode().cmp(&b.encode()));
            prop_assert_eq!(Key::decode(&a.encode()), Some(a));
        }
    }
}
