//! The changes of roots: forks, names that move, new heads.
//!
//! Each is one atomic step: the root items that it changes are the last entries of one context, and
//! what it depends on is checked while no thread commits. A root never changes its tree; names move
//! between ids. So a name that gets another tree is a name that moves to another root.

use zerocopy::little_endian::U64;

use crate::inode::attrs::Attrs;
use crate::journal::ring::CONTEXT_BASE;
use crate::space::Class;
use crate::txn::merge::ClosedWithRoots;
use crate::txn::roots::{ROOTS_LOG, RootItems, Roots};
use crate::txn::{Core, Need, RootPin};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::root::{MAIN_NAME, MAX_REPLACED, RawRoot, Root, RootState};

/// From this number of changed inodes on, what a change of roots leaves to the next merge is merged
/// in the background. Less costs the next change of roots little time, and at most one flush.
const MANY_INODES: usize = 1000;

/// What a fork makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkKind {
    /// A frozen root: a snapshot.
    Frozen,
    /// A head: a branch.
    Head,
}

/// What must not have changed when names move.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unchanged<'n> {
    /// The frozen root whose files the base must have.
    pub since: Option<u32>,
    /// A head that is retired, and the frozen root whose files it must have.
    pub retired: Option<(u32, u32)>,
    /// The name that the change takes away: that of the retired head, or else of the staged one.
    pub taken: Option<&'n str>,
}

/// A root that a change needs, of one of these states.
fn known(roots: &Roots, id: u32, state: RootState) -> Result<Root> {
    let root = roots.get(id).ok_or(Error::NotFound)?;
    match root.state == state {
        true => Ok(root),
        false if state == RootState::Head => Err(Error::Stale),
        false => Err(Error::NotFound),
    }
}

/// The same root without its tree: it keeps the tree that it has.
fn without_tree(root: Root) -> Root {
    let birth = root.tree.birth;
    let tree = RawRoot {
        birth,
        ..RawRoot::default()
    };
    Root { tree, ..root }
}

/// A root that is made by the context `boundary`.
fn made(core: &Core, boundary: u64, origin: u32, name: &str) -> Root {
    Root {
        tree: RawRoot {
            birth: U64::new(boundary),
            ..RawRoot::default()
        },
        created: core.now().into(),
        origin,
        name: name.into(),
        ..Root::default()
    }
}

/// The changes that freeze the head `head` under the new id `frozen`, which gets its place in the
/// history; the head continues as its child.
fn freeze_under(core: &Core, ids: (u32, u32), head: Root, boundary: u64, name: &str) -> RootItems {
    let (id, frozen) = ids;
    let snapshot = Root {
        parent: head.parent,
        replaced: head.replaced.clone(),
        state: RootState::Frozen,
        boundary,
        ..made(core, boundary, id, name)
    };
    let head = Root {
        parent: frozen,
        replaced: Vec::new(),
        ..without_tree(head)
    };
    [(frozen, snapshot), (id, head)].into()
}

impl Core {
    /// Makes a snapshot of the main root, as [`Self::fork_pinned`].
    #[cfg(test)]
    pub fn snapshot(&self, name: &str) -> Result<()> {
        let made = self.fork(self.main_root(), name, ForkKind::Frozen);
        made.map(|_| ())
    }

    /// As [`Self::fork_pinned`]. Returns the id.
    #[cfg(test)]
    pub fn fork(&self, from: u32, name: &str, kind: ForkKind) -> Result<u32> {
        Ok(self.fork_pinned(from, name, kind)?.id())
    }

    /// Makes a root with the tree of `from`, as it is after everything committed so far: a snapshot
    /// of a head, or a new head from a head or a snapshot. It is durable when this returns. The time
    /// does not depend on the number of files; it includes the merge of an earlier change of roots
    /// if that is not merged yet. The root is pinned from the moment it exists, so one without a name
    /// is not dropped while it is used.
    ///
    /// `name` may be empty. A head without a name is dropped after the next opening.
    ///
    /// # Errors
    /// [`Error::Exists`]; a name that no root can have, too many roots; no such root;
    /// [`Error::Stale`] for a snapshot of what is not a head any more, and of a root that was frozen
    /// and has no name; a read-only volume; no space for copies of its index nodes, or for the merge
    /// of an earlier change; the device's failure.
    pub fn fork_pinned(&self, from: u32, name: &str, kind: ForkKind) -> Result<RootPin> {
        let closed = self.close_fork(from, name, kind)?;
        self.end_change(closed)
    }

    /// As [`Self::fork_pinned`], for a root that is opened next, which then needs no merge. If the
    /// tree must be made by a merge, one flush makes the record of the root and the nodes durable.
    ///
    /// # Errors
    /// As [`Self::fork_pinned`].
    pub fn fork_readable(&self, from: u32, name: &str, kind: ForkKind) -> Result<RootPin> {
        let closed = self.close_fork(from, name, kind)?;
        match self.make_readable(closed.made.id()) {
            // The root is made. The opening looks for space again, and tells.
            Err(Error::NoSpace) | Ok(()) => self.end_change(closed),
            Err(error) => Err(error),
        }
    }

    fn close_fork(
        &self,
        from: u32,
        name: &str,
        kind: ForkKind,
    ) -> Result<ClosedWithRoots<RootPin>> {
        let named = |roots: &Roots| match name {
            "" => Ok(()),
            name => roots.check_name(name),
        };
        named(&self.roots)?;
        let source = self.roots.get(from).ok_or(Error::NotFound)?;
        let copies: &[u32] = match (source.state, kind) {
            (RootState::Head, ForkKind::Head) => &[from, from],
            _ => &[from],
        };
        // What is only read for a while, and by no name, is possible on a full volume.
        let class = match (name, kind) {
            ("", ForkKind::Frozen) => Class::Delete,
            _ => Class::Ordinary,
        };
        self.close_changed((copies, class), |roots, boundary| {
            named(roots)?;
            roots.check_room(2)?;
            let source = roots.get(from).ok_or(Error::NotFound)?;
            let new = self.superblocks.new_root()?;
            let branch = |parent| Root {
                parent,
                ..made(self, boundary, parent, name)
            };
            let changes = match (source.state, kind) {
                (RootState::Head, ForkKind::Frozen) => {
                    freeze_under(self, (from, new), source, boundary, name)
                }
                (RootState::Head, ForkKind::Head) => {
                    let head = self.superblocks.new_root()?;
                    let mut changes = freeze_under(self, (from, new), source, boundary, "");
                    changes.insert(head, branch(new));
                    let pin = self.heads.pin(head).ok_or(Error::NotFound)?;
                    return Ok((pin, changes));
                }
                (RootState::Frozen, ForkKind::Head) if !source.name.is_empty() => {
                    [(new, branch(from))].into()
                }
                // It was replaced, or published, since the caller has looked.
                (RootState::Frozen, _) => return Err(Error::Stale),
                (RootState::Dropping, _) => return Err(Error::NotFound),
            };
            let pin = self.heads.pin(new).ok_or(Error::NotFound)?;
            Ok((pin, changes))
        })
    }

    /// Makes a head without a name and without a parent, whose tree has an empty root directory
    /// only. Returns it pinned. It is dropped after the next opening unless it has a name by then.
    ///
    /// # Errors
    /// As [`Self::fork_pinned`].
    pub fn new_empty_head(&self) -> Result<RootPin> {
        let pin = self.change_roots(&[], |roots, boundary| {
            roots.check_room(1)?;
            let id = self.superblocks.new_root()?;
            // Its own origin: its tree begins without a node.
            let pin = self.heads.pin(id).ok_or(Error::NotFound)?;
            Ok((pin, [(id, made(self, boundary, id, ""))].into()))
        })?;
        let items = self.open_root(pin.id())?;
        let reservation = self.reserve(&items, Need::items(1, 512, 0))?;
        let inode = items.table().get_or_new(ROOT_INO);
        let mut state = inode.write();
        let attrs = Attrs::new(libc::S_IFDIR | 0o755, (0, 0), 0, ROOT_INO, self.now());
        state.attrs = Some(attrs);
        state.loaded = true;
        let mut commit = self.commit(&items)?;
        commit.put_inode(&inode, &mut state);
        let receipt = commit.finish(reservation);
        inode.set_ready(true);
        drop(state);
        self.throttle(receipt)?;
        Ok(pin)
    }

    /// Makes a head without a name the snapshot `name`, with everything that was committed to it;
    /// durable when this returns.
    ///
    /// # Errors
    /// [`Error::Stale`] if it is not a head any more; [`Error::Exists`]; a name that no root can
    /// have; the device's failure.
    pub fn freeze_head(&self, id: u32, name: &str) -> Result<()> {
        self.change_roots(&[], |roots, boundary| {
            let head = known(roots, id, RootState::Head)?;
            if !head.name.is_empty() {
                return Err(Error::Invalid("a branch with a name stays a branch"));
            }
            roots.check_name(name)?;
            let frozen = Root {
                state: RootState::Frozen,
                boundary,
                created: self.now().into(),
                name: name.into(),
                ..without_tree(head)
            };
            Ok(((), [(id, frozen)].into()))
        })
    }

    /// Gives the root that has the name `old` another one; durable when this returns.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the root does not have the name any more; [`Error::Exists`]; a name that
    /// no root can have; [`Error::NotPermitted`] for `main`, which an opening looks for; the device's
    /// failure.
    pub fn rename_root(&self, id: u32, old: &str, name: &str) -> Result<()> {
        self.change_roots(&[], |roots, _| {
            let root = roots
                .get(id)
                .filter(|root| !old.is_empty() && root.name == old);
            let root = root.ok_or(Error::NotFound)?;
            if root.name == MAIN_NAME {
                return Err(Error::NotPermitted("main is what is opened by default"));
            }
            roots.check_name(name)?;
            let renamed = Root {
                name: name.into(),
                ..without_tree(root)
            };
            Ok(((), [(id, renamed)].into()))
        })
    }

    /// Makes the head `staged` what the name of the head `base` means, in one step that is durable
    /// when this returns: the base is frozen and gets the name `kept`, its name goes to `staged`,
    /// whose own name is gone. From then on it comes after the base, which it has replaced. With `since`,
    /// a frozen root, this is refused unless the base still has exactly the files of that root: those
    /// that `staged` began with. The head `retired` with the frozen root that it must still
    /// equal loses its name in the same step and is frozen; either way the name that goes is `taken`, if
    /// that is given. `unwritten` decides last whether there
    /// is a write that no commit has; then the change is refused.
    ///
    /// # Errors
    /// [`Error::Stale`] if the base or the retired head was changed since, or `unwritten` holds, or
    /// one of the three is not a head any more; [`Error::NotFound`] if what goes has another name; [`Error::Exists`] for `kept`; a base without a name;
    /// the device's failure.
    pub fn publish_names(
        &self,
        base: u32,
        staged: u32,
        kept: &str,
        condition: Unchanged<'_>,
        unwritten: impl FnOnce() -> bool,
    ) -> Result<()> {
        let Unchanged {
            since,
            retired,
            taken,
        } = condition;
        // The item of a frozen root tells the number of its nodes; that of a main root that was
        // never forked does not.
        self.merger.alone(|| self.nodes_of(base))?;
        if let Some((branch, _)) = retired {
            self.merger.alone(|| self.nodes_of(branch))?;
        }
        if since.is_none() {
            self.check_changeable()?;
            self.mark_roots(true)?;
        }
        let mut left = None;
        self.change_roots(&[], |roots, boundary| {
            let (old, new) = (
                known(roots, base, RootState::Head)?,
                known(roots, staged, RootState::Head)?,
            );
            if old.name.is_empty() || base == staged || new.name == MAIN_NAME {
                return Err(Error::Invalid(
                    "a branch is published onto another one that has a name, and main only stays",
                ));
            }
            roots.check_name(kept)?;
            let leaves =
                retired.map_or(Ok(new.clone()), |(id, _)| known(roots, id, RootState::Head))?;
            if taken.is_some_and(|taken| leaves.name != taken) {
                return Err(Error::NotFound);
            }
            if let Some(since) = since
                && !self.is_unchanged(&old, (base, since))
            {
                return Err(Error::Stale);
            }
            let replaced = roots.taking_place(staged, base, since.is_none());
            if replaced.len() > MAX_REPLACED {
                return Err(Error::Stale);
            }
            let published = Root {
                parent: fault::or(InjectedFault::PublishedUnderBase, || new.parent, || base),
                replaced,
                name: old.name.clone(),
                ..without_tree(new)
            };
            let frozen = |root: Root, name: &str| Root {
                state: RootState::Frozen,
                boundary,
                created: self.now().into(),
                name: name.into(),
                ..without_tree(root)
            };
            let mut changes = RootItems::from([(base, frozen(old, kept)), (staged, published)]);
            if let Some((id, equal)) = retired {
                let branch = known(roots, id, RootState::Head)?;
                if branch.name == MAIN_NAME || changes.contains_key(&id) {
                    return Err(Error::Invalid("main stays, and no branch is its own base"));
                }
                if !self.is_unchanged(&branch, (id, equal)) {
                    return Err(Error::Stale);
                }
                changes.insert(id, frozen(branch, ""));
            }
            if unwritten() {
                return Err(Error::Stale);
            }
            fault::inject(InjectedFault::PublishedInTwoRecords, || {
                // That of a retired branch, without which the others are a valid change.
                let retired = retired.and_then(|(id, _)| changes.remove_entry(&id));
                left = retired.or_else(|| changes.pop_first());
            });
            Ok(((), changes))
        })?;
        left.map_or(Ok(()), |(id, root)| self.change_again(id, root))
    }

    /// Freezes a root in a change of its own, which only a fault does.
    fn change_again(&self, id: u32, root: Root) -> Result<()> {
        self.change_roots(&[], |_, boundary| {
            Ok(((), [(id, Root { boundary, ..root })].into()))
        })
    }

    /// As [`Self::is_unchanged`], while threads may commit: a change at the same time may be missed.
    pub fn is_unchanged_since(&self, base: u32, since: u32) -> bool {
        let head = self.roots.get(base);
        head.is_some_and(|head| self.is_unchanged(&head, (base, since)))
    }

    /// Whether the head `base` has exactly the files of the frozen root `since`, as far as that is
    /// known without a comparison of trees: since is its parent, nothing was committed to it since,
    /// and its tree is the same. Trees are compared by their root nodes, so this holds across
    /// openings; a change that was taken back counts as one. A later change of roots may have taken
    /// what was committed, for a merge that was not made: then the trees are equal still, and the
    /// list of what is dirty is empty. No thread commits.
    fn is_unchanged(&self, head: &Root, (base, since): (u32, u32)) -> bool {
        let Some(boundary) = self.roots.get(since).map(|root| root.boundary) else {
            return false;
        };
        let clean = |items: std::sync::Arc<crate::txn::ItemStore>| {
            let dirty = items.dirty();
            !dirty.has_any() && !dirty.changed_after(boundary)
        };
        let tree = |id| {
            self.roots
                .merged(id)
                .map(|root| (root.tree.ptr, root.tree.height))
        };
        head.parent == since
            && self.heads.get(base).is_none_or(clean)
            && (self.roots.is_only_logged(since) || tree(base) == tree(since))
    }

    /// Changes roots in one atomic step, which is durable when this returns. `change` gets the roots
    /// and the sequence of the context that the step closes, its *boundary*; it runs while no thread
    /// commits, and returns a result and the items to change. A new root begins with the tree that
    /// its origin has after the boundary, or with none if that is the root itself; other roots keep
    /// their trees. For each root in `copies`, units are reserved for copies of the nodes of its
    /// tree: one head inherits all of them from here on.
    ///
    /// # Errors
    /// Those of `change`, and of the merge of an earlier change of roots; a read-only volume; no
    /// space; a damaged bitmap, before anything is logged; the device's failure.
    pub fn change_roots<R>(
        &self,
        copies: &[u32],
        change: impl FnOnce(&Roots, u64) -> Result<(R, RootItems)>,
    ) -> Result<R> {
        let closed = self.close_changed((copies, Class::Ordinary), change)?;
        self.end_change(closed)
    }

    /// The same, except that it need not be durable when this returns.
    fn close_changed<R>(
        &self,
        copies: (&[u32], Class),
        change: impl FnOnce(&Roots, u64) -> Result<(R, RootItems)>,
    ) -> Result<ClosedWithRoots<R>> {
        self.check_changeable()?;
        // The merge of the change may need any of them, and the log has the change by then.
        self.space.verify_all()?;
        self.mark_roots(false)?;
        self.journal.reserve(ROOTS_LOG + CONTEXT_BASE, self)?;
        self.merger
            .close_with_roots(self, (ROOTS_LOG, copies), |boundary| {
                change(&self.roots, boundary)
            })
    }

    /// Makes a change of roots durable.
    fn end_change<R>(&self, closed: ClosedWithRoots<R>) -> Result<R> {
        fault::unless(InjectedFault::RootRecordUnflushed, || {
            self.journal.force(closed.seq, self)
        })?;
        if closed.inodes >= MANY_INODES && self.roots.has_pending() {
            // So the next change of roots need not wait for it.
            self.signals.want_merge();
        }
        Ok(closed.made)
    }
}
