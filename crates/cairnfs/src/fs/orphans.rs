//! Orphans: inodes to be removed, or truncated to the end, once nobody uses them.
//!
//! The orphan item is committed with the change that makes the orphan, and deleted with the last
//! step that settles it, so however often a crash comes between, the next mount goes on.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::item::ORPHAN_TRUNCATE;
use crate::format::key::Kind;
use crate::fs::FileSystem;
use crate::fs::locked::attrs;
use crate::fs::namespace::INODE_LEN;
use crate::fs::remove::{Belongings, is_orphaned};
use crate::inode::{Inode, InodeState};
use crate::txn::{Commit, Need};

/// Items removed in one step.
const STEP: usize = 512;

impl FileSystem {
    /// Makes an inode an orphan.
    pub(super) fn put_orphan(
        &self,
        commit: &mut Commit<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        what: u8,
    ) {
        // A truncation that is not finished has an item already, which may be in the index.
        let existed = state.truncating;
        state.truncating |= what == ORPHAN_TRUNCATE;
        commit.put(inode, state, Kind::Orphan, inode.ino, &[what], existed);
    }

    /// Ends that.
    pub(super) fn delete_orphan(
        &self,
        commit: &mut Commit<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
    ) {
        state.truncating = false;
        commit.delete(inode, state, Kind::Orphan, inode.ino, &[], true);
    }

    /// Removes an inode without links, step by step, unless somebody uses it (again).
    pub(super) fn reap(&self, inode: &Arc<Inode>) -> Result<()> {
        loop {
            let need = Need::items(2, INODE_LEN + 1, STEP + 2).deleting();
            let reservation = self.reserve(need)?;
            let mut state = inode.write();
            let gone = state.attrs.as_ref().is_none_or(|a| a.nlink > 0);
            if gone || inode.uses() > 0 {
                return Ok(());
            }
            let belongings = self.belongings(inode, &state, STEP)?;
            let mut commit = self.core.commit();
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
            self.core.throttle(receipt)?;
            if done {
                return Ok(());
            }
        }
    }

    /// Removes an inode that lost its last name while nobody used it, so that nobody will forget it.
    pub(super) fn reap_unused(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.uses() == 0 && is_orphaned(&inode.read()) {
            return self.reap(inode);
        }
        Ok(())
    }

    /// Keeps the counts of an inode true between two steps.
    fn account_removed(&self, state: &mut InodeState, removed: &Belongings) {
        let blocks: u64 = removed.extents.iter().map(|e| e.len()).sum();
        if let Some(attrs) = &mut state.attrs {
            attrs.blocks = attrs.blocks.saturating_sub(blocks);
            attrs.xattrs = attrs.xattrs.saturating_sub(removed.xattrs as u32);
        }
    }

    /// Settles the orphans that a crash, or a kill, left behind.
    pub(super) fn finish_orphans(&self) -> Result<()> {
        for ino in self.core.orphans()? {
            let inode = match self.core.inode(ino) {
                Ok(inode) => inode,
                Err(Error::NotFound) => continue,
                Err(e) => return Err(e),
            };
            let links = {
                let mut state = inode.write();
                let item = self.core.item(&inode, &state, Kind::Orphan, ino)?;
                state.truncating = item.is_some();
                item.map(|_| attrs(&state).map(|a| a.nlink)).transpose()?
            };
            match links {
                Some(0) => self.reap(&inode)?,
                Some(_) => self.finish_truncate(&inode)?,
                None => {}
            }
        }
        Ok(())
    }
}

/// Whether an inode has lost its last name, and may have more items than one step removes.
pub(super) fn is_large_orphan(state: &InodeState) -> bool {
    let most = STEP as u64;
    state
        .attrs
        .as_ref()
        .is_some_and(|a| a.nlink == 0 && (a.blocks > most || u64::from(a.xattrs) > most))
}
