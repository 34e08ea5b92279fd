//! The references that the kernel has through one mount, by node id.
//!
//! The engine counts uses for each tree and inode, over all mounts and callers. When a mount ends, the
//! kernel gives nothing back, so the mount must know its own share. Knows neither trees nor the engine.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::Mutex;

/// Parts with locks of their own; a power of two.
const SHARDS: usize = 64;

/// Entries for which a part keeps memory when it has become empty.
const KEPT: usize = 1024;

/// A multiplicative hasher for node ids, which no user chooses.
#[derive(Default)]
struct NodeHasher(u64);

impl Hasher for NodeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

type Counts = HashMap<u64, u64, BuildHasherDefault<NodeHasher>>;

/// A part in cache lines of its own.
#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<Counts>);

/// The kernel's references of one mount.
pub(crate) struct References {
    shards: [Shard; SHARDS],
}

impl Default for References {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Shard::default()),
        }
    }
}

impl References {
    fn shard(&self, node: u64) -> Option<&Mutex<Counts>> {
        let shard = self.shards.get(node as usize & (SHARDS - 1));
        shard.map(|shard| &shard.0)
    }

    /// Counts another one.
    pub fn add(&self, node: u64) {
        if let Some(shard) = self.shard(node) {
            *shard.lock().entry(node).or_default() += 1;
        }
    }

    /// Counts up to `n` less; returns how many.
    pub fn remove(&self, node: u64, n: u64) -> u64 {
        let Some(shard) = self.shard(node) else {
            return 0;
        };
        let mut counts = shard.lock();
        let Entry::Occupied(mut count) = counts.entry(node) else {
            return 0;
        };
        let has = *count.get();
        if n < has {
            count.insert(has - n);
            return n;
        }
        count.remove();
        if counts.is_empty() && counts.capacity() > KEPT {
            counts.shrink_to(KEPT);
        }
        has
    }

    /// Whether there are any to a node.
    pub fn has(&self, node: u64) -> bool {
        let shard = self.shard(node);
        shard.is_some_and(|shard| shard.lock().contains_key(&node))
    }

    /// All nodes with their counts, in no order.
    pub fn all(&self) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let counts = shard.0.lock();
            found.extend(counts.iter().map(|(node, count)| (*node, *count)));
        }
        found
    }

    /// Removes all, and returns them.
    pub fn take_all(&self) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(std::mem::take(&mut *shard.0.lock()));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_removed_than_was_added() {
        let references = References::default();
        for node in [5, 5, 5, 1 << 63] {
            references.add(node);
        }
        assert_eq!(references.remove(5, 1), 1);
        assert_eq!(references.remove(5, 9), 2);
        assert_eq!(references.remove(5, 9), 0);
        assert!(!references.has(5) && references.has(1 << 63));
        assert_eq!(references.all(), [(1 << 63, 1)]);
        assert_eq!(references.take_all(), [(1 << 63, 1)]);
        assert!(references.all().is_empty());
    }
}
