//! The kinds of findings. The strings are stable: scripts and tests may rely on them.

/// The device is smaller than the size in the superblock.
pub const DEVICE_TOO_SMALL: &str = "device-too-small";
/// A superblock is in the wrong slot for its generation.
pub const SUPERBLOCK_SLOT: &str = "superblock-slot";
/// The two superblock slots belong to different volumes.
pub const SUPERBLOCK_MISMATCH: &str = "superblock-mismatch";
/// The front of the volume has no superblock, or only older ones: a copy was used.
pub const SUPERBLOCK_FRONT: &str = "superblock-front";
/// A copy of the superblock is lost or stale, other than a power cut leaves it.
pub const SUPERBLOCK_COPY: &str = "superblock-copy";
/// A note: a place of a superblock, at the front or of a copy, has none, and others have it.
pub const SUPERBLOCK_PLACE: &str = "superblock-place";
/// A note: a place of the durable mark has something else than one.
pub const MARK_PLACE: &str = "mark-place";
/// A log record was written under a newer superblock than the newest readable one.
pub const SUPERBLOCK_LOST: &str = "superblock-lost";

/// A superblock names a checkpoint that cannot be.
pub const CHECKPOINT: &str = "checkpoint";

/// The log ends before records that were durable.
pub const LOG_DAMAGED: &str = "log-damaged";
/// Parts or contexts of the log are in the wrong order.
pub const LOG_ORDER: &str = "log-order";
/// An entry of a log record is invalid.
pub const LOG_ENTRY: &str = "log-entry";

/// An index node's bytes do not match the checksum in its parent.
pub const NODE_CHECKSUM: &str = "node-checksum";
/// An index node is not the node that its parent refers to.
pub const NODE_IDENTITY: &str = "node-identity";
/// The layout of an index node is invalid although its checksum is correct.
pub const NODE_LAYOUT: &str = "node-layout";
/// The parent's pointer to an index node leads to an impossible place.
pub const NODE_POINTER: &str = "node-pointer";
/// An index node or a large value was born after the newest possible merge.
pub const NODE_BIRTH: &str = "node-birth";
/// An index node has keys that its parent's bounds exclude.
pub const NODE_ORDER: &str = "node-order";
/// The chain of units of a large value is broken.
pub const OVERFLOW_CHAIN: &str = "overflow-chain";
/// The units of a large value do not match their checksum.
pub const OVERFLOW_CHECKSUM: &str = "overflow-checksum";
/// The table of roots has no root for the files' tree.
pub const ROOT_MISSING: &str = "root-missing";
/// A root item is invalid.
pub const ROOT_ITEM: &str = "root-item";

/// The lineage of a root is impossible: its id, name, state, parent or boundary.
pub const ROOT_LINEAGE: &str = "root-lineage";

/// An item of a kind that its object cannot have.
pub const UNEXPECTED_ITEM: &str = "unexpected-item";
/// An inode item is invalid.
pub const INODE_ITEM: &str = "inode-item";
/// An inode number that no inode can have.
pub const INODE_NUMBER: &str = "inode-number";
/// Items of an inode that has no inode item.
pub const INODE_MISSING: &str = "inode-missing";
/// The block count in an inode differs from the blocks of its extents.
pub const INODE_BLOCKS: &str = "inode-blocks";
/// Inline contents that do not match the inode, or a symbolic link without a valid target.
pub const INLINE_ITEM: &str = "inline-item";
/// An extent item is invalid.
pub const EXTENT_ITEM: &str = "extent-item";
/// An extent is outside the data area.
pub const EXTENT_RANGE: &str = "extent-range";
/// Two extents of a file cover the same file block.
pub const EXTENT_OVERLAP: &str = "extent-overlap";
/// A written extent is beyond the end of its file.
pub const EXTENT_BEYOND_END: &str = "extent-beyond-end";
/// An extent was born after the newest context of the volume, or one in the index after the newest
/// possible merge; roots have it with different births; or a snapshot in the log would lack it.
pub const EXTENT_BIRTH: &str = "extent-birth";
/// An attribute item is invalid.
pub const XATTR_ITEM: &str = "xattr-item";
/// An attribute is stored under a hash other than that of its name.
pub const XATTR_HASH: &str = "xattr-hash";
/// The attribute count in an inode is wrong.
pub const XATTR_COUNT: &str = "xattr-count";
/// The item of a shared value is invalid.
pub const SHARED_ITEM: &str = "shared-item";
/// A shared value is stored under a key that does not match its hash.
pub const SHARED_HASH: &str = "shared-hash";
/// A shared value stored apart from its use count has no count, or the count has no value.
pub const SHARED_APART: &str = "shared-apart";
/// The use count of a shared value is too high.
pub const SHARED_USES_HIGH: &str = "shared-uses-high";
/// The use count of a shared value is too low.
pub const SHARED_USES_LOW: &str = "shared-uses-low";
/// No attribute refers to a shared value.
pub const SHARED_UNUSED: &str = "shared-unused";
/// An attribute refers to a shared value that does not exist.
pub const SHARED_DANGLING: &str = "shared-dangling";
/// An orphan item is invalid, or its inode does not exist or still has links.
pub const ORPHAN_ITEM: &str = "orphan-item";
/// An inode without links has no orphan item.
pub const ORPHAN_MISSING: &str = "orphan-missing";

/// A directory entry is invalid.
pub const DIR_ENTRY: &str = "dir-entry";
/// A directory entry has an index that its directory has not assigned.
pub const DIR_INDEX: &str = "dir-index";
/// The size of a directory differs from the number of its entries.
pub const DIR_SIZE: &str = "dir-size";
/// The entries and the name items of a directory do not match.
pub const DIR_NAME: &str = "dir-name";
/// Two entries of a directory have the same name.
pub const NAME_DUPLICATE: &str = "name-duplicate";
/// A directory entry refers to an inode that does not exist.
pub const ENTRY_DANGLING: &str = "entry-dangling";
/// A directory entry and its inode disagree on the type.
pub const ENTRY_TYPE: &str = "entry-type";
/// The link count of an inode is wrong.
pub const LINK_COUNT: &str = "link-count";
/// The parent in a directory's inode is not the directory that has its entry.
pub const PARENT: &str = "parent";
/// More than one entry refers to a directory.
pub const DIR_LINKED_TWICE: &str = "dir-linked-twice";
/// Directories form a cycle.
pub const DIR_CYCLE: &str = "dir-cycle";
/// No directory entry leads to an inode that is not an orphan.
pub const UNREACHABLE: &str = "unreachable";

/// The group table does not match its checksum.
pub const TABLE_CHECKSUM: &str = "table-checksum";
/// An entry of the group table is invalid.
pub const TABLE_ENTRY: &str = "table-entry";
/// A group's bitmap does not match its checksum.
pub const BITMAP_CHECKSUM: &str = "bitmap-checksum";
/// The free count of a group is wrong.
pub const GROUP_FREE_COUNT: &str = "group-free-count";
/// The free count in the superblock is wrong.
pub const FREE_COUNT: &str = "free-count";
/// A block in use is marked free.
pub const BLOCK_NOT_ALLOCATED: &str = "block-not-allocated";
/// An unused block is marked in use.
pub const BLOCK_LEAKED: &str = "block-leaked";
/// A block is used more than once.
pub const BLOCK_SHARED: &str = "block-shared";

/// A data block does not match its checksum.
pub const DATA_CHECKSUM: &str = "data-checksum";

/// There are more findings than the report holds.
pub const TOO_MANY: &str = "too-many";
