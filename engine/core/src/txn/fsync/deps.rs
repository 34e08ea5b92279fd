//! Recording of log dependencies: what a commit notes at the inodes that it changes.
//!
//! The caller holds the states of these inodes and the open context; the dependency lists have
//! locks of their own. An fsync follows what is recorded here ([`super::closure`]).

use crate::inode::log_deps::NameChange;
use crate::inode::{Inode, InodeState};
use crate::txn::Commit;
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::key::Kind;

/// A directory entry that a transaction adds or removes.
pub struct NameAt {
    /// Its index.
    pub index: u64,
    /// Hash of its name.
    pub hash: u64,
    /// Whether it refers to a directory.
    pub subdir: bool,
}

impl Commit<'_> {
    /// Records that an entry of `dir` to `child` is added (`put`) or removed.
    pub fn name(&mut self, dir: &Inode, state: &InodeState, child: &Inode, at: &NameAt, put: bool) {
        let seq = self.seq();
        let by = if put { 1 } else { -1 };
        let slot = state.current.get(Kind::DirIndex, at.index);
        let change = NameChange {
            dir: dir.ino,
            vector: slot.map(|s| s.vector.clone()),
            size: by,
            links: if at.subdir { by } else { 0 },
        };
        let before = {
            let mut log_deps = dir.log_deps();
            let children = log_deps.enter(seq).children();
            children.inodes.push(child.ino);
            children.pending += 1;
            children.size += i64::from(change.size);
            children.links += i64::from(change.links);
            // An inode that gets or loses a name depends on the inode that lost the same name
            // before.
            match put {
                true if children.vacated.is_empty() => None,
                true => children.vacated.get(&at.hash).copied(),
                false => children.vacated.insert(at.hash, child.ino),
            }
        };
        let mut log_deps = child.log_deps();
        log_deps.enter(seq).names.push(change);
        if let Some(before) = before.filter(|b| *b != child.ino) {
            fault::unless(InjectedFault::NameDependencyLost, || {
                log_deps.more_mut().joined.push(before);
            });
        }
    }

    /// Records that one transaction changed both inodes.
    pub fn join(&mut self, a: &Inode, b: &Inode) {
        if is_injected(InjectedFault::PartnerDependencyLost) {
            return;
        }
        let seq = self.seq();
        a.log_deps().enter(seq).more_mut().joined.push(b.ino);
        b.log_deps().enter(seq).more_mut().joined.push(a.ino);
    }

    /// Records that a directory was removed, which depends on all changes of its entries.
    pub fn removed(&mut self, dir: &Inode) {
        dir.log_deps().enter(self.seq()).children().removed =
            !is_injected(InjectedFault::RemovalDependencyLost);
    }

    /// Records that a directory was moved.
    pub fn moved(&mut self, dir: &Inode) {
        fault::unless(InjectedFault::PlaceDependencyLost, || {
            self.hold().moved(self.items.root(), dir.ino)
        });
    }
}
