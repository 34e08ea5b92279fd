//! Sessions whose tree is replaced: a branch is published onto the mounted one, or that is restored.
//!
//! The number of a session's tree follows the tree. Until it does, the root that has the name of the
//! branch meanwhile counts as mounted, too, so that no other mount of it is added.
//!
//! A replacement of a branch without a mount, and the making of a mount of it, exclude each other by
//! its name: a mount that was not entered yet when its tree was replaced would stay with that. So do a
//! replacement and whatever concerns the other names that it takes away or gives. All names of a
//! replacement are taken at once, so no two wait for each other.

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

/// Names that a replacement has taken, and of which no mount follows.
struct Taken<'a> {
    sessions: &'a Sessions,
    names: Vec<&'a str>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            self.sessions.let_go(name);
        }
    }
}

/// A replacement that has begun.
struct Begun<'a> {
    /// The mount of the branch, if there is one.
    mounted: Option<Replacing<'a>>,
    _taken: Taken<'a>,
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
            ops.finish_deferred();
            mounted.fetch()?;
            ops.wait_for_writes(Asker::Other);
        }
        Ok(())
    }

    /// Runs `change`, which may give the name of a branch to another root, while operations wait that
    /// the branch's mount refuses because of that. When this returns, the mount is one of the root
    /// that has the name, and the kernel knows nothing of the earlier one that is not true any more.
    /// Without a mount of the branch only runs `change`. `others` are names that `change` takes away or
    /// gives besides: no mount of what they lead to is made meanwhile. One replacement of a name at a
    /// time; must not be called in an event loop, and `change` must not need a reply of this mount.
    ///
    /// # Errors
    /// Besides the result of `change`: the mount stays with the tree of before, which can be read and
    /// refuses changes.
    pub fn replacing<R>(
        &self,
        branch: &str,
        others: &[&str],
        change: impl FnOnce() -> R,
    ) -> (R, Result<(), Error>) {
        let begun = self.begin_replacing(branch, others);
        let Some(replacing) = &begun.mounted else {
            return (change(), Ok(()));
        };
        let is_free = |root| !self.has_other(replacing.number, u64::from(root));
        replacing.ops.replacing(change, is_free)
    }

    /// Holds the name of a branch for a mount that is made of it: what has the name now has it until the
    /// result is dropped. Waits for the end of a replacement. Must not be called in an event loop.
    #[must_use]
    pub fn hold(self: &Arc<Self>, branch: &str) -> Held {
        let mut state = self.wait_for_names(&[branch]);
        state.held.push(branch.to_owned());
        Held {
            sessions: Arc::clone(self),
            branch: branch.to_owned(),
        }
    }

    /// The state when nobody holds one of these names of branches.
    fn wait_for_names(&self, names: &[&str]) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while names.iter().any(|name| state.is_taken(name)) {
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

    fn begin_replacing<'a>(&'a self, branch: &'a str, others: &[&'a str]) -> Begun<'a> {
        let mut names = others.to_vec();
        names.push(branch);
        let mut state = self.wait_for_names(&names);
        let mounted = state.live.iter_mut().find_map(|live| {
            let (_, ops) = live.parts().filter(|_| live.is_of_branch(branch))?;
            live.replaced = Some(branch.to_owned());
            Some(Replacing {
                sessions: self,
                number: live.number,
                ops,
            })
        });
        if mounted.is_some() {
            names.pop();
        }
        state
            .held
            .extend(names.iter().map(|name| (*name).to_owned()));
        Begun {
            mounted,
            _taken: Taken {
                sessions: self,
                names,
            },
        }
    }

    /// Whether another session than this one serves a tree.
    fn has_other(&self, number: u64, tree: u64) -> bool {
        let state = self.state.lock();
        let mut others = state.live.iter().filter(|live| live.number != number);
        others.any(|live| live.sole == Some(tree))
    }
}

impl State {
    /// Whether the name of a branch is held, or concerns a session whose tree is being replaced. That may
    /// have got another name by now, if it was renamed, and is not replaced twice at a time.
    fn is_taken(&self, name: &str) -> bool {
        let is_replaced = |live: &Live| match &live.replaced {
            Some(replaced) => replaced == name || live.is_of_branch(name),
            None => false,
        };
        self.held.iter().any(|held| held == name) || self.live.iter().any(is_replaced)
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A branch that is published loses its name; no mount of it is made meanwhile.
    #[test]
    fn all_names_of_a_replacement_are_held_until_it_has_ended() {
        let sessions = Arc::new(Sessions::default());
        for name in ["main", "work"] {
            let (tells, told) = channel();
            let again = Arc::clone(&sessions);
            let (waits, followed) = sessions.replacing("main", &["work"], || {
                thread::spawn(move || {
                    drop(again.hold(name));
                    tells.send(())
                });
                told.recv_timeout(Duration::from_millis(100)).is_err()
            });
            followed.unwrap();
            assert!(waits, "{name}");
            told.recv().unwrap();
        }
    }

    /// Each publishes the branch onto which the other one publishes.
    #[test]
    fn replacements_with_the_same_names_do_not_wait_for_each_other() {
        let sessions = Sessions::default();
        thread::scope(|scope| {
            for (branch, other) in [("a", "b"), ("b", "a")] {
                let sessions = &sessions;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        sessions.replacing(branch, &[other], || ()).1.unwrap();
                    }
                });
            }
        });
        assert!(sessions.state.lock().held.is_empty());
    }
}
