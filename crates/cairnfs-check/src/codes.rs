//! The kinds of findings. The texts are stable: scripts and tests may rely on them.

/// The device is shorter than the volume says it is.
pub const DEVICE_TOO_SMALL: &str = "device-too-small";
/// A superblock lies in the slot that its generation is not written to.
pub const SUPERBLOCK_SLOT: &str = "superblock-slot";
/// The two superblock slots belong to different volumes.
pub const SUPERBLOCK_MISMATCH: &str = "superblock-mismatch";
/// The log knows of a newer superblock than the one that can be read.
pub const SUPERBLOCK_LOST: &str = "superblock-lost";

/// The log breaks off before something that was durable.
pub const LOG_DAMAGED: &str = "log-damaged";
/// Parts or contexts of the log come in the wrong order.
pub const LOG_ORDER: &str = "log-order";
/// An entry of a log record makes no sense.
pub const LOG_ENTRY: &str = "log-entry";

/// An index node's bytes do not match the checksum in its parent.
pub const NODE_CHECKSUM: &str = "node-checksum";
/// An index node is another one than its parent says.
pub const NODE_IDENTITY: &str = "node-identity";
/// The layout of an index node is broken though its checksum is right.
pub const NODE_LAYOUT: &str = "node-layout";
/// An index node cannot lie where its parent says.
pub const NODE_POINTER: &str = "node-pointer";
/// An index node is younger than the newest merge can be.
pub const NODE_BIRTH: &str = "node-birth";
/// An index node has keys that its parent's bounds exclude.
pub const NODE_ORDER: &str = "node-order";
/// The chain of units of a large value is broken.
pub const OVERFLOW_CHAIN: &str = "overflow-chain";
/// The units of a large value do not match their checksum.
pub const OVERFLOW_CHECKSUM: &str = "overflow-checksum";
/// The root of the files is not in the table of roots.
pub const ROOT_MISSING: &str = "root-missing";
/// A root item makes no sense.
pub const ROOT_ITEM: &str = "root-item";

/// An item of a kind that its object cannot have.
pub const UNEXPECTED_ITEM: &str = "unexpected-item";
/// An inode item makes no sense.
pub const INODE_ITEM: &str = "inode-item";
/// An inode number that no file can have.
pub const INODE_NUMBER: &str = "inode-number";
/// Items of an inode that has no inode item.
pub const INODE_MISSING: &str = "inode-missing";
/// The number of blocks in an inode is not that of its extents.
pub const INODE_BLOCKS: &str = "inode-blocks";
/// Inline contents that do not fit the inode, or a symbolic link without a sound target.
pub const INLINE_ITEM: &str = "inline-item";
/// An extent item makes no sense.
pub const EXTENT_ITEM: &str = "extent-item";
/// An extent lies outside the data area.
pub const EXTENT_RANGE: &str = "extent-range";
/// Two extents of a file cover the same file block.
pub const EXTENT_OVERLAP: &str = "extent-overlap";
/// A written extent lies behind the end of its file.
pub const EXTENT_BEYOND_END: &str = "extent-beyond-end";
/// An extent is younger than the volume.
pub const EXTENT_BIRTH: &str = "extent-birth";
/// An attribute item makes no sense.
pub const XATTR_ITEM: &str = "xattr-item";
/// An attribute lies under a hash that is not its name's.
pub const XATTR_HASH: &str = "xattr-hash";
/// The number of attributes in an inode is wrong.
pub const XATTR_COUNT: &str = "xattr-count";
/// The item of a shared value makes no sense.
pub const SHARED_ITEM: &str = "shared-item";
/// A shared value lies under a key that its hash does not lead to.
pub const SHARED_HASH: &str = "shared-hash";
/// A shared value that stands apart from its uses has none, or there are uses without a value.
pub const SHARED_APART: &str = "shared-apart";
/// A shared value tells more uses than there are.
pub const SHARED_USES_HIGH: &str = "shared-uses-high";
/// A shared value tells fewer uses than there are.
pub const SHARED_USES_LOW: &str = "shared-uses-low";
/// No attribute refers to a shared value.
pub const SHARED_UNUSED: &str = "shared-unused";
/// An attribute refers to a shared value that does not exist.
pub const SHARED_DANGLING: &str = "shared-dangling";
/// An orphan item makes no sense or names an inode that is none.
pub const ORPHAN_ITEM: &str = "orphan-item";
/// An inode without links has no orphan item.
pub const ORPHAN_MISSING: &str = "orphan-missing";

/// A directory entry makes no sense.
pub const DIR_ENTRY: &str = "dir-entry";
/// A directory entry has an index that its directory has not given.
pub const DIR_INDEX: &str = "dir-index";
/// The size of a directory is not the number of its entries.
pub const DIR_SIZE: &str = "dir-size";
/// Entries and name items of a directory do not match.
pub const DIR_NAME: &str = "dir-name";
/// Two entries of a directory have the same name.
pub const NAME_DUPLICATE: &str = "name-duplicate";
/// A directory entry refers to an inode that does not exist.
pub const ENTRY_DANGLING: &str = "entry-dangling";
/// A directory entry and its inode disagree on the type.
pub const ENTRY_TYPE: &str = "entry-type";
/// The link count of an inode is wrong.
pub const LINK_COUNT: &str = "link-count";
/// A directory names another parent than the one that holds it.
pub const PARENT: &str = "parent";
/// A directory has more than one entry.
pub const DIR_LINKED_TWICE: &str = "dir-linked-twice";
/// Directories contain each other.
pub const DIR_CYCLE: &str = "dir-cycle";
/// No directory entry leads to an inode.
pub const UNREACHABLE: &str = "unreachable";

/// The group table does not match its checksum.
pub const TABLE_CHECKSUM: &str = "table-checksum";
/// An entry of the group table makes no sense.
pub const TABLE_ENTRY: &str = "table-entry";
/// A group's bitmap does not match its checksum.
pub const BITMAP_CHECKSUM: &str = "bitmap-checksum";
/// The number of free blocks of a group is wrong.
pub const GROUP_FREE_COUNT: &str = "group-free-count";
/// The number of free blocks in the superblock is wrong.
pub const FREE_COUNT: &str = "free-count";
/// A block in use is marked free.
pub const BLOCK_NOT_ALLOCATED: &str = "block-not-allocated";
/// A block that nothing uses is marked in use.
pub const BLOCK_LEAKED: &str = "block-leaked";
/// A block is used twice.
pub const BLOCK_SHARED: &str = "block-shared";

/// A data block does not match its checksum.
pub const DATA_CHECKSUM: &str = "data-checksum";

/// More was found than the report holds.
pub const TOO_MANY: &str = "too-many";
