//! Orphans: inodes without a name that are removed with their last use, and files with an
//! unfinished truncation.
//!
//! The orphan item is committed with the change that makes the orphan, and deleted with the last
//! step that removes or truncates it. However many crashes come between, the first opening of the
//! root after them continues. A branch begins with the orphans that the tree had of which it was
//! made; no file of the branch was open then, so its first opening removes them as well.
//!
//! # The life of an inode
//!
//! Transitions with a commit are decided under the lock of the inode's state, and are durable with
//! the next fsync or sync that has them. Uses (look-ups and open files) are in memory only.
//!
//! | From | To | Caused by | In the log then |
//! |---|---|---|---|
//! | | linked, in use | mknod, mkdir, symlink, link of a nameless file | inode item and entry |
//! | | nameless, in use | a temporary file (`O_TMPFILE`): no links, a use | inode item and orphan item |
//! | nameless | linked | its first name, which only it may get | entry; the orphan item goes |
//! | linked, in use | linked, unused | the last use ends: memory may be evicted, nothing else | |
//! | linked, few items | removed | the last name goes, and it has no use | all its items go |
//! | linked | orphan | the last name goes, and it is in use or has many items | links 0, orphan item |
//! | orphan, in use | orphan, unused | the last use ends; [`FileSystem::reap_unused`] goes on | |
//! | orphan, unused | orphan, smaller | a step of [`FileSystem::reap`] | fewer items |
//! | orphan, unused | removed | its last step | the rest, and the orphan item, go |
//! | linked | truncating | a truncation with more extents than one step takes | new size, orphan item |
//! | truncating | linked | the last step of the truncation | the orphan item goes |
//! | orphan, truncating | the same, unused | a crash, a kill, no space: [`FileSystem::settle_orphans`] goes on at an opening | |
//!
//! 1. An inode without links has an orphan item, unless it is removed in the same transaction.
//! 2. What is in use is not removed, and its items stay.
//! 3. An inode without links stays in memory while it is in use: its use count is not set apart.
//! 4. No handle to a root is given out for writing before its orphans were looked at.

use std::sync::Arc;

use crate::fs::FileSystem;
use crate::fs::locked::attrs;
use crate::fs::reclaim::done_or_later;
use crate::fs::remove::{Belongings, is_orphaned};
use crate::fs::sizes::{INODE_LEN, ORPHAN_STEP};
use crate::inode::{Inode, InodeState};
use crate::txn::{Commit, Need};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::{ORPHAN_REMOVE, ORPHAN_TRUNCATE};
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::sync::Mutex;

/// Whether the orphans that a root had when it was opened are removed. The lock is held while they
/// are, so that no handle is given out before.
#[derive(Default)]
pub(super) struct OrphanSettlement {
    done: Mutex<bool>,
}

impl FileSystem {
    /// Makes an inode an orphan; `what` is the reason, an `ORPHAN_` constant.
    pub(super) fn put_orphan(
        &self,
        commit: &mut Commit<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        what: u8,
    ) {
        let links = state.attrs.as_ref().map(|attrs| attrs.nlink);
        assert!(
            links.is_none_or(|links| (links == 0) == (what == ORPHAN_REMOVE)),
            "inode invariant 1: without links an orphan item says that the inode is removed"
        );
        // An inode with an unfinished truncation has an orphan item already, maybe in the index.
        let existed = state.truncating;
        state.truncating |= what == ORPHAN_TRUNCATE;
        commit.put(inode, state, Kind::Orphan, inode.ino, &[what], existed);
    }

    /// Deletes an inode's orphan item.
    pub(super) fn delete_orphan(
        &self,
        commit: &mut Commit<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
    ) {
        state.truncating = false;
        commit.delete(inode, state, Kind::Orphan, inode.ino, &[], true);
    }

    /// Removes an inode without links, in steps. Stops if it is in use or linked again.
    pub(super) fn reap(&self, inode: &Arc<Inode>) -> Result<()> {
        loop {
            let need = Need::items(2, INODE_LEN + 1, ORPHAN_STEP + 2).deleting();
            let reservation = self.reserve(need)?;
            let mut state = inode.write();
            let not_orphan = state.attrs.as_ref().is_none_or(|a| a.nlink > 0);
            if not_orphan || inode.uses() > 0 {
                return Ok(());
            }
            let belongings = self.belongings(inode, &state, ORPHAN_STEP)?;
            let mut commit = self.commit()?;
            self.delete_belongings(&mut commit, inode, &mut state, &belongings);
            let done = !belongings.more;
            if done {
                self.delete_orphan(&mut commit, inode, &mut state);
                commit.delete_inode(inode, &mut state);
            } else {
                self.account_removed(&mut state, &belongings);
                commit.put_inode(inode, &mut state);
            }
            let receipt = commit.finish(reservation);
            drop(state);
            self.core().throttle(receipt)?;
            if done {
                return Ok(());
            }
        }
    }

    /// Removes an inode without names and uses. A failure is logged only, because the change that
    /// removed its last name is done: the orphan item stays, and the next mount removes the inode.
    pub(super) fn reap_unused(&self, inode: &Arc<Inode>) {
        let unused = inode.uses() == 0 && is_orphaned(&inode.read());
        if unused && let Err(error) = self.reap(inode) {
            tracing::warn!(ino = inode.ino, %error, "removing an unlinked inode was put off");
        }
    }

    /// Keeps an inode's block and attribute counts correct between two steps.
    fn account_removed(&self, state: &mut InodeState, removed: &Belongings) {
        let blocks: u64 = removed.extents.iter().map(|e| e.len()).sum();
        if let Some(attrs) = &mut state.attrs {
            attrs.blocks = attrs.blocks.saturating_sub(blocks);
            attrs.xattrs = attrs.xattrs.saturating_sub(removed.xattrs as u32);
        }
    }

    /// Removes or truncates the orphans that a crash, a kill or a fork left in this root, unless
    /// that was done since the root was opened. Those for whose removal there is no space stay for the
    /// next opening: no name leads to them, and space is freed in a root that is open.
    pub(super) fn settle_orphans(&self) -> Result<()> {
        let mut done = self.root.orphans.done.lock();
        if !*done && !self.is_read_only() {
            self.finish_orphans()?;
        }
        *done = true;
        Ok(())
    }

    fn finish_orphans(&self) -> Result<()> {
        for ino in self.items().orphans()? {
            let inode = match self.items().inode(ino) {
                Ok(inode) => inode,
                Err(Error::NotFound) => continue,
                Err(e) => return Err(e),
            };
            let links = {
                let mut state = inode.write();
                let item = self.items().item(&inode, &state, Kind::Orphan, ino)?;
                state.truncating = item.is_some();
                item.map(|_| attrs(&state).map(|a| a.nlink)).transpose()?
            };
            match links {
                Some(0) => done_or_later(self.reap(&inode), "removing an unlinked inode")?,
                Some(_) => self.finish_truncate(&inode)?,
                None => {}
            }
        }
        Ok(())
    }
}
