//! Another tree takes the place of the mounted one: a branch was published onto it, or it was
//! restored.
//!
//! The engine gives the branch's name to another root, and the old one refuses changes from then on.
//! Operations that are refused so wait here until the mount has switched to the new tree, and are
//! repeated there. Regular files stay with the old tree, also if they are equal in both: a program
//! with an open file may act on what it read from other files of the old tree. The other differences
//! of the trees decide which inodes go on, and what the kernel is told to forget; see
//! docs/internals/roots.md.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs::{ChangedInode, Error, RootInfo, Succession};
use cairnfs_disk::format::ROOT_INO;

use crate::ops::{Kernel, Ops};

/// What the kernel is to forget after a switch.
#[derive(Default)]
struct Stale {
    /// Names, with the nodes of their directories.
    names: BTreeSet<(u64, Vec<u8>)>,
    /// Directories whose listings and attributes differ.
    listings: Vec<u64>,
    /// Other nodes whose attributes differ.
    attributes: Vec<u64>,
}

impl Ops {
    /// Id of the root that is mounted.
    pub(crate) fn root_id(&self) -> u32 {
        self.trees.mounted().root_id()
    }

    /// What the list of roots says about the tree that is mounted; while that is being replaced, what it
    /// said before.
    pub(crate) fn shown(&self) -> Option<RootInfo> {
        self.trees.shown()
    }

    /// Name of the branch that is mounted; `None` for a tree that cannot change, and for one that has
    /// lost its name.
    pub(crate) fn branch(&self) -> Option<String> {
        let root = self.shown()?;
        root.name.filter(|_| root.writable)
    }

    /// Id of the root that has a name.
    pub(crate) fn root_named(&self, name: &str) -> Option<u32> {
        let roots = self.trees.mounted().roots().into_iter();
        let mut named = roots.filter(|root| root.name.as_deref() == Some(name));
        named.next().map(|root| root.id)
    }

    /// Runs `change`, which may give the name of the mounted branch to another root. If it does, and
    /// `is_free` returns true for the id of that root, the mount is one of that root when this
    /// returns, and the kernel has forgotten what differs. Must not be called in an event loop, and
    /// `change` must not need the kernel.
    ///
    /// # Errors
    /// The mount stays with the tree of before, which refuses changes: the new one is in use by
    /// another mount, or cannot be compared with the old one.
    pub fn replacing<R>(
        &self,
        change: impl FnOnce() -> R,
        is_free: impl FnOnce(u32) -> bool,
    ) -> (R, Result<(), Error>) {
        // The thread may wait.
        let _no_renewal = self.without_renewals().ok();
        let _no_leases = self.deferrals.suspend();
        self.deferrals.give_up_space();
        let replacement = self.trees.begin();
        let result = change();
        let branch = replacement.branch.as_deref();
        let stale = branch.map_or(Ok(None), |branch| self.follow(branch, is_free));
        drop(replacement);
        let told = stale.map(|stale| {
            if let (Some(stale), Some(kernel)) = (stale, self.kernel.get()) {
                stale.tell(&**kernel);
            }
        });
        (result, told)
    }

    /// Switches to the root that has the name of the branch now, if it is another one.
    fn follow(
        &self,
        branch: &str,
        is_free: impl FnOnce(u32) -> bool,
    ) -> Result<Option<Stale>, Error> {
        let old = self.trees.mounted();
        if !old.is_replaced() {
            return Ok(None);
        }
        let new = old.open_named(branch)?;
        if !is_free(new.root_id()) {
            return Err(Error::Busy(
                "the branch that was published is mounted itself",
            ));
        }
        let succession = Succession::new(&old, &new)?;
        self.switch(&old, &new, &succession).map(Some)
    }

    fn switch(
        &self,
        old: &FileSystem,
        new: &Arc<FileSystem>,
        succession: &Succession,
    ) -> Result<Stale, Error> {
        // The long part before operations are held up; what they looked up meanwhile is done then.
        let mut left_behind = LeftBehind::default();
        let mut names = left_behind.names(old, succession)?;
        let exclusive = self.trees.exclude_references();
        names.extend(left_behind.names(old, succession)?);
        let goes_on = |ino: u64| !left_behind.inodes.contains(&ino);
        let listed = |has: fn(&ChangedInode) -> bool| {
            let changed = succession.inodes();
            let listed = changed.filter(move |(ino, changed)| {
                has(changed) && goes_on(*ino) && (*ino == ROOT_INO || old.uses(*ino) > 0)
            });
            listed.map(|(ino, _)| self.trees.known(ino))
        };
        let forget =
            || listed(|inode| inode.list_added).for_each(|node| self.forget_attributes(node));
        let left = self.lists.switch(forget, || {
            let lost = listed(|inode| inode.list_removed).collect();
            (self.trees.switch(&exclusive, new, goes_on), lost)
        });
        let roots = (old.root_id(), new.root_id());
        let replaced = |ino| left.contains_key(&ino).then(|| old.path_hint(ino));
        self.losses.switch(roots, replaced);
        self.listings.clear();
        drop(exclusive);
        Ok(self.stale(new, succession, names, &left))
    }

    /// What the kernel is to forget; `left` has the nodes of the inodes that did not go on.
    fn stale(
        &self,
        new: &FileSystem,
        succession: &Succession,
        names: Vec<(u64, Vec<u8>)>,
        left: &HashMap<u64, u64>,
    ) -> Stale {
        let mut stale = Stale::default();
        let node = |ino: u64| match left.get(&ino) {
            Some(node) => Some(*node),
            None if ino == ROOT_INO || new.uses(ino) > 0 => Some(self.trees.known(ino)),
            None => None,
        };
        let entries = succession.entries();
        let entries = entries.map(|(dir, name)| (dir, name.to_vec()));
        for (dir, name) in entries.chain(names) {
            stale.names.extend(node(dir).map(|dir| (dir, name)));
        }
        // They have no name any more.
        stale.attributes.extend(left.values());
        stale.attributes.sort_unstable();
        for (ino, changed) in succession.inodes() {
            let Some(node) = node(ino).filter(|_| !left.contains_key(&ino)) else {
                continue;
            };
            if changed.is_dir {
                stale.listings.push(node)
            } else {
                stale.attributes.push(node)
            }
        }
        stale
    }
}

/// The inodes in use that stay with the old tree.
#[derive(Default)]
struct LeftBehind {
    inodes: BTreeSet<u64>,
    /// All inodes in use that were looked at.
    seen: BTreeSet<u64>,
}

impl LeftBehind {
    /// Looks at the inodes in use that were not looked at before. Returns the names of the inodes that
    /// stay, with their directories.
    fn names(
        &mut self,
        old: &FileSystem,
        succession: &Succession,
    ) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let mut known = old.inodes_in_use();
        let mut wanted = BTreeSet::new();
        for ino in &known {
            if self.seen.insert(*ino) && !goes_on(succession, *ino)? {
                wanted.insert(*ino);
            }
        }
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        self.inodes.extend(&wanted);
        known.push(ROOT_INO);
        succession.names(wanted, &known)
    }
}

/// Whether the node of an inode of the old tree goes on with the new one. The node of a regular file
/// does so only if no file at all differs: a program with the file open may write what follows from
/// other files, which were replaced. The kernel sends no message when a file is opened, and has one
/// cache for all programs with the file open. So only the node tells them from later ones.
///
/// If another inode has got a list, the kernel is told within the switch, and waits if it just evicts
/// the inode. So only directories go on then.
fn goes_on(succession: &Succession, ino: u64) -> Result<bool, Error> {
    match succession.of(ino) {
        _ if succession.keeps_files() => Ok(true),
        Some(changed) if changed.is_gone => Ok(false),
        Some(changed) if changed.is_dir => Ok(true),
        Some(changed) if changed.contents || changed.list_added => Ok(false),
        _ => Ok(!succession.is_file(ino)?),
    }
}

impl Stale {
    /// Tells the kernel. Names come first: for each of them it waits for operations in the directory,
    /// so that no listing from before is cached behind the invalidation of the directory.
    fn tell(&self, kernel: &dyn Kernel) {
        for (dir, name) in &self.names {
            kernel.forget_name(*dir, name);
        }
        for node in &self.listings {
            kernel.fetch_dirty(*node, 0);
        }
        for node in &self.attributes {
            kernel.forget_attributes(*node);
        }
    }
}
