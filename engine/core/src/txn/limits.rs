//! How the memory budget of a volume is divided among its parts, and how much pushes and merges do
//! at once.

use crate::journal::PushLimits;
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::record::MAX_RECORD_BLOCKS;
use cairnfs_disk::sync::processors;

/// What a clean inode counts as, in bytes.
const INODE: usize = 512;
/// Size of the largest log record, in bytes.
const RECORD: usize = MAX_RECORD_BLOCKS as usize * BLOCK_SIZE;
/// Data blocks may take 1/`LENT` of what other caches leave idle: these may then grow until memory
/// is divided again.
const LENT: usize = 2;

/// How the memory budget is divided, in bytes except where stated, and limits of pushes and merges.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Cached index nodes.
    pub nodes: usize,
    /// Cached data blocks.
    pub data: usize,
    /// Cached values of extended attributes, besides those that dirty sets hold.
    pub values: usize,
    /// Clean inodes that are kept, in number.
    pub inodes: usize,
    /// Size of the dirty sets beyond which a merge starts.
    pub dirty_soft: i64,
    /// Size of the dirty sets beyond which committers wait.
    pub dirty_hard: i64,
    /// Unwritten data beyond which writers write it back themselves.
    pub pages: i64,
    /// Directory names beyond which those of cold directories are evicted.
    pub names: i64,
    /// Size of the dirty sets beyond which replay merges a part of the log into the index.
    pub replay: i64,
    /// Keys that a step of a merge takes, in number.
    pub step_keys: u64,
    /// Keys that a part of a merge has at least, in number; with [`u64::MAX`] there are no parts.
    pub part_keys: u64,
    /// Threads for the parts of a merge.
    pub merge_threads: usize,
    /// How much background pushes do.
    pub pushes: PushLimits,
    /// Threads that push besides the log's worker, in number.
    pub pushers: usize,
}

/// Keys of a part of a merge. A part leaves its last node partly filled, so it should make some
/// hundreds.
const PART_KEYS: u64 = 1 << 15;

/// Most threads of a merge.
const MOST_MERGING: usize = 16;

/// Most log records that a push formats before its turn.
const MOST_AHEAD: usize = 16;

/// Most threads that push. XFS formats as many checkpoints at once.
const MOST_PUSHERS: usize = 4;

/// Limits below those of any budget, so that a few files reach what otherwise takes many, and as
/// many threads as a large machine has. A merge has parts only if its steps are not limited.
#[derive(Debug, Clone, Copy)]
pub struct Pressure {
    /// Bytes of dirty sets that replay may hold.
    pub replay: i64,
    /// Keys that a step of a merge may take.
    pub step_keys: u64,
    /// Keys that a part of a merge has at least.
    pub part_keys: u64,
    /// Changes that start a push, at most.
    pub push: u64,
    /// Bytes of dirty sets beyond which a merge starts, at most.
    pub dirty: i64,
}

impl Pressure {
    /// Merges in steps of so many keys, and replay in passes of so many bytes.
    pub const fn steps(replay: i64, step_keys: u64) -> Self {
        Self {
            replay,
            step_keys,
            part_keys: u64::MAX,
            push: u64::MAX,
            dirty: i64::MAX,
        }
    }

    /// Merges in parts of at least so many keys, and replay in passes of so many bytes.
    pub const fn parts(replay: i64, part_keys: u64) -> Self {
        Self {
            replay,
            step_keys: u64::MAX,
            part_keys,
            push: u64::MAX,
            dirty: i64::MAX,
        }
    }

    /// The same, with workers that push from so many changes on, and merge from so many bytes of
    /// dirty sets on.
    pub const fn early(self, push: u64, dirty: i64) -> Self {
        Self {
            push,
            dirty,
            ..self
        }
    }
}

impl Limits {
    /// Divides a budget of `bytes`, at least 8 MiB.
    pub fn for_budget(bytes: usize) -> Self {
        let bytes = bytes.max(8 << 20);
        let processors = processors();
        let merge_threads = (processors / 2).clamp(1, MOST_MERGING);
        Self {
            nodes: bytes / 4,
            data: bytes / 32 * 3,
            values: bytes / 32,
            inodes: bytes / 8 / INODE,
            dirty_soft: (bytes / 16 * 3) as i64,
            dirty_hard: (bytes / 16 * 5) as i64,
            pages: (bytes / 8) as i64,
            names: (bytes / 16) as i64,
            replay: (bytes / 16 * 5) as i64,
            step_keys: u64::MAX,
            part_keys: if merge_threads > 1 {
                PART_KEYS
            } else {
                u64::MAX
            },
            merge_threads,
            pushes: PushLimits {
                ahead: (bytes / 64 / RECORD).clamp(PushLimits::LEAST.ahead, MOST_AHEAD),
                ..PushLimits::LEAST
            },
            // One thread for each four processors pushes: formatting takes up to a sixth of the
            // processor time of the creates whose changes it writes.
            pushers: if cfg!(test) {
                1
            } else {
                (processors / 4).clamp(1, MOST_PUSHERS) - 1
            },
        }
    }

    /// Bytes that data blocks may take beyond their share, while so many bytes of nodes, inodes, and
    /// bytes of names are in memory.
    pub fn lent_to_data(&self, nodes: usize, inodes: usize, names: i64) -> usize {
        let inodes = self.inodes.saturating_sub(inodes) * INODE;
        let names = usize::try_from(self.names - names.max(0)).unwrap_or(0);
        (self.nodes.saturating_sub(nodes) + inodes + names) / LENT
    }

    /// The same, for a volume without workers, whose merges have no other threads.
    pub fn alone(self) -> Self {
        Self {
            part_keys: u64::MAX,
            merge_threads: 1,
            ..self
        }
    }

    /// The same, with tighter limits for merges and replay.
    pub fn under(self, pressure: Option<Pressure>) -> Self {
        match pressure {
            Some(Pressure {
                replay,
                step_keys,
                part_keys,
                push,
                dirty,
            }) => Self {
                replay,
                step_keys,
                part_keys,
                merge_threads: 2,
                pushers: 2,
                pushes: PushLimits {
                    changes: self.pushes.changes.min(push),
                    ..self.pushes
                },
                dirty_soft: self.dirty_soft.min(dirty),
                ..self
            },
            None => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_before_a_turn_follow_the_budget() {
        let ahead = |mib: usize| Limits::for_budget(mib << 20).pushes.ahead;
        assert_eq!([8, 256, 512, 4096].map(ahead), [4, 4, 8, 16]);
    }

    #[test]
    fn data_blocks_get_half_of_what_is_idle_and_nothing_of_what_is_used() {
        let limits = Limits::for_budget(64 << 20);
        let idle = (16 + 8 + 4) << 20;
        assert_eq!(limits.lent_to_data(0, 0, -1), idle / 2);
        assert_eq!(limits.lent_to_data(limits.nodes, 0, 0), (12 << 20) / 2);
        assert_eq!(
            limits.lent_to_data(0, limits.inodes, limits.names),
            limits.nodes / 2
        );
        let beyond = (2 * limits.nodes, 2 * limits.inodes, 2 * limits.names);
        assert_eq!(limits.lent_to_data(beyond.0, beyond.1, beyond.2), 0);
    }
}
