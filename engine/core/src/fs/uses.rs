//! Uses of inodes, as a whole: which there are, and their move to the tree that has replaced this one.
//!
//! Uses are counted by the tables of inodes, a count for each tree and inode. Numbers of inodes are
//! given once for all trees, so one number is one file in both.

use crate::fs::FileSystem;

impl FileSystem {
    /// The numbers of all inodes in use, unordered. The root, which needs no uses, is not among them.
    pub fn inodes_in_use(&self) -> Vec<u64> {
        let used = self.items().table().in_use();
        used.into_iter().map(|(ino, _)| ino).collect()
    }

    /// Number of uses of an inode.
    pub fn uses(&self, ino: u64) -> u64 {
        self.items().table().uses(ino)
    }

    /// Moves `uses`, pairs of an inode and a count that the caller holds, to another tree, which has
    /// each inode for which `moves` returns true. Inodes without links have never been in that tree, so
    /// they stay. Returns those that stay.
    pub fn move_uses(
        &self,
        to: &Self,
        uses: impl IntoIterator<Item = (u64, u64)>,
        mut moves: impl FnMut(u64) -> bool,
    ) -> Vec<u64> {
        let (from, to) = (self.items().table(), to.items().table());
        let mut stay = Vec::new();
        for (ino, uses) in uses {
            // An inode without links is in memory as long as it is in use.
            let unlinked = from.peek(ino).is_some_and(|inode| {
                let state = inode.read();
                state.attrs.as_ref().is_some_and(|attrs| attrs.nlink == 0)
            });
            if unlinked || !moves(ino) {
                stay.push(ino);
                continue;
            }
            to.add_uses(ino, uses);
            from.forget(ino, uses);
        }
        stay
    }
}
