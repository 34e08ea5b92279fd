//! Sessions whose tree is replaced: a branch is published onto the mounted one, or that is restored.
//!
//! The number of a session's tree follows the tree. Until it does, the root that has the name of the
//! branch meanwhile counts as mounted, too, so that no other mount of it is added.
//!
//! A replacement of a branch without a mount, and the making of a mount of it, exclude each other by
//! its name: a mount that was not entered yet when its tree was replaced would stay with that.

use std::io;
use std::sync::Arc;

use cairnfs::Error;
use cairnfs_transport::Asker;
use parking_lot::MutexGuard;

use super::{Live, Sessions, State};
use crate::mounted::Mounted;
use crate::ops::Ops;

/// Holds the name of a branch: it goes to no other tree before this is dropped.
pub struct Held {
    sessions: Arc<Sessions>,
    branch: String,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.sessions.let_go(&self.branch);
    }
}

/// A branch without a mount, whose tree is being replaced.
struct Unmounted<'a> {
    sessions: &'a Sessions,
    branch: &'a str,
}

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        self.sessions.let_go(self.branch);
    }
}

/// What is replaced.
enum Begun<'a> {
    Mounted(Replacing<'a>),
    Unmounted(Unmounted<'a>),
}

/// A session whose tree is being replaced.
struct Replacing<'a> {
    sessions: &'a Sessions,
    number: u64,
    ops: Arc<Ops>,
}

impl Sessions {
    /// Makes the kernel send the data that it holds back of the mount of a branch, and waits until it
    /// has arrived, without making it durable. Does nothing if the branch is not mounted. Must not be
    /// called in an event loop.
    ///
    /// # Errors
    /// The mount cannot be reached: it is in another mount namespace, is detached and in use, or
    /// refuses access to the daemon.
    pub fn fetch(&self, branch: &str) -> io::Result<()> {
        let found = {
            let state = self.state.lock();
            let live = state.live.iter().find(|live| live.is_of_branch(branch));
            live.and_then(Live::parts)
        };
        if let Some((mounted, ops)) = found {
            mounted.fetch()?;
            ops.wait_for_writes(Asker::Other);
        }
        Ok(())
    }

    /// Runs `change`, which may give the name of a branch to another root, while operations wait that
    /// the branch's mount refuses because of that. When this returns, the mount is one of the root
    /// that has the name, and the kernel knows nothing of the earlier one that is not true any more.
    /// Without a mount of the branch only runs `change`. One replacement of a branch at a time; must
    /// not be called in an event loop, and `change` must not need a reply of this mount.
    ///
    /// # Errors
    /// Besides the result of `change`: the mount stays with the tree of before, which can be read and
    /// refuses changes.
    pub fn replacing<R>(&self, branch: &str, change: impl FnOnce() -> R) -> (R, Result<(), Error>) {
        let replacing = match self.begin_replacing(branch) {
            Begun::Mounted(replacing) => replacing,
            Begun::Unmounted(_held) => return (change(), Ok(())),
        };
        let is_free = |root| !self.has_other(replacing.number, u64::from(root));
        replacing.ops.replacing(change, is_free)
    }

    /// Holds the name of a branch for a mount that is made of it: what has the name now has it until the
    /// result is dropped. Waits for the end of a replacement. Must not be called in an event loop.
    #[must_use]
    pub fn hold(self: &Arc<Self>, branch: &str) -> Held {
        let mut state = self.wait_for_name(branch);
        state.held.push(branch.to_owned());
        Held {
            sessions: Arc::clone(self),
            branch: branch.to_owned(),
        }
    }

    /// The state when nobody holds the name of a branch.
    fn wait_for_name(&self, branch: &str) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        let is_replaced = |live: &Live| live.replaced.as_deref() == Some(branch);
        while state.held.iter().any(|held| held == branch) || state.live.iter().any(is_replaced) {
            self.changed.wait(&mut state);
        }
        state
    }

    fn let_go(&self, branch: &str) {
        let mut state = self.state.lock();
        if let Some(at) = state.held.iter().position(|held| held == branch) {
            state.held.swap_remove(at);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn begin_replacing<'a>(&'a self, branch: &'a str) -> Begun<'a> {
        let mut state = self.wait_for_name(branch);
        let mut live = state.live.iter_mut();
        let live = live.find(|live| live.is_of_branch(branch));
        let parts = live.and_then(|live| Some((live.parts()?.1, live)));
        let Some((ops, live)) = parts else {
            state.held.push(branch.to_owned());
            return Begun::Unmounted(Unmounted {
                sessions: self,
                branch,
            });
        };
        live.replaced = Some(branch.to_owned());
        let (sessions, number) = (self, live.number);
        Begun::Mounted(Replacing {
            sessions,
            number,
            ops,
        })
    }

    /// Whether another session than this one serves a tree.
    fn has_other(&self, number: u64, tree: u64) -> bool {
        let state = self.state.lock();
        let mut others = state.live.iter().filter(|live| live.number != number);
        others.any(|live| live.sole == Some(tree))
    }
}

impl Live {
    fn parts(&self) -> Option<(Arc<Mounted>, Arc<Ops>)> {
        let ops = self.replaceable.as_ref()?;
        Some((Arc::clone(&self.mounted), Arc::clone(ops)))
    }

    /// Whether it serves the tree of this number, or will when the replacement under way has ended.
    pub(super) fn is_of_tree(&self, tree: u64) -> bool {
        let follows = || -> Option<bool> {
            let root = self
                .replaceable
                .as_ref()?
                .root_named(self.replaced.as_ref()?)?;
            Some(u64::from(root) == tree)
        };
        self.sole == Some(tree) || follows() == Some(true)
    }

    fn is_of_branch(&self, branch: &str) -> bool {
        let ops = self.replaceable.as_ref().filter(|_| self.sole.is_some());
        ops.is_some_and(|ops| ops.branch().as_deref() == Some(branch))
    }
}

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        let mut state = self.sessions.state.lock();
        let mut live = state.live.iter_mut();
        if let Some(live) = live.find(|live| live.number == self.number) {
            live.replaced = None;
            live.sole = Some(u64::from(self.ops.root_id()));
        }
        drop(state);
        self.sessions.changed.notify_all();
    }
}
