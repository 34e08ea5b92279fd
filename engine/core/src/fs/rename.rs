//! Rename: replace, no replace, exchange, leave a whiteout.
//!
//! One transaction removes the old entry and adds the new one, or changes the existing entry of the
//! new name to name the other inode. An exchange changes both entries; a whiteout replaces the old
//! entry. A rename to a new name in the same directory changes the entry itself, which keeps its
//! index. Data written to the file before is written back first, without holding a lock, so that a
//! crash leaves either the old or the complete new contents. A directory moves to another parent
//! only under the volume's one lock for that, because the walk to the root that rules out a cycle
//! needs a stable tree.

use std::collections::HashSet;
use std::sync::Arc;

use crate::fs::FileSystem;
use crate::fs::flags::{may_add_entry, may_remove_entry};
use crate::fs::locked::{Locked, attrs, live_dir};
use crate::fs::namespace::{change_dir, check_name, group_in, links_with};
use crate::fs::observe::Call;
use crate::fs::remove::check_removable;
use crate::fs::sizes::{ENTRY_MAX, INLINE_REMOVAL, INODE_LEN};
use crate::fs::tree::MoveLock;
use crate::inode::attrs::Attrs;
use crate::inode::{Inode, InodeState};
use crate::txn::{Commit, NameFound, Need};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::{DirEntryRef, S_IFCHR};
use cairnfs_disk::types::{Attr, Creds, RenameMode, Time};

/// One side of a rename.
struct Side<'a> {
    dir: Arc<Inode>,
    name: &'a [u8],
    hash: u64,
}

impl Side<'_> {
    /// The side's entry, naming the moved inode.
    fn entry_of(&self, moved: &Target) -> DirEntryRef<'_> {
        DirEntryRef {
            ino: moved.found.ino,
            kind: moved.found.kind,
            name: self.name,
        }
    }
}

/// The entry and the inode of a name.
struct Target {
    found: NameFound,
    inode: Arc<Inode>,
}

/// A completed rename.
struct Renamed {
    /// The whiteout under the old name, if one was asked for.
    whiteout: Option<Attr>,
}

impl FileSystem {
    /// Renames `name` in `dir` to `to_name` in `to_dir`.
    ///
    /// # Errors
    /// No such name; the new name exists (no replace) or does not (exchange), or names an inode
    /// that cannot be replaced by this one; a directory moved into itself; no space.
    pub fn rename(
        &self,
        dir: u64,
        name: &[u8],
        to_dir: u64,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = ((dir, name), (to_dir, to_name));
        let call = Call::Rename { from, to, mode };
        self.observed(call, || self.move_name(from, to, mode))?;
        Ok(())
    }

    fn move_name(
        &self,
        (dir, name): (u64, &[u8]),
        (to_dir, to_name): (u64, &[u8]),
        mode: RenameMode,
    ) -> Result<Option<Attr>> {
        check_name(name)?;
        check_name(to_name)?;
        let from = self.side(dir, name)?;
        let to = self.side(to_dir, to_name)?;
        loop {
            let source = self.target(&from)?.ok_or(Error::NotFound)?;
            let target = self.target(&to)?;
            let unchanged = match (mode, &target) {
                (RenameMode::NoReplace | RenameMode::Whiteout { replace: false, .. }, Some(_)) => {
                    Some(Err(Error::Exists))
                }
                (_, Some(t)) if t.found.ino == source.found.ino => Some(Ok(None)),
                (RenameMode::Exchange, None) => return Err(Error::NotFound),
                _ => None,
            };
            if let (Some(answer), Some(target)) = (unchanged, &target) {
                if self.are_there((&from, &source), (&to, target))? {
                    return answer;
                }
                continue;
            }
            let files = [Some(&source), target.as_ref()];
            for file in files.into_iter().flatten() {
                if mode == RenameMode::Exchange || file.found.ino == source.found.ino {
                    let write_back = || self.write_back(&file.inode);
                    fault::unless(InjectedFault::RenameWithoutData, write_back)?;
                }
            }
            let apart = from.dir.ino != to.dir.ino;
            let moves_dir = is_dir(&source) || target.as_ref().is_some_and(is_dir);
            let moving = (apart && moves_dir).then(|| self.root.shape.lock_moves());
            if let Some(moving) = &moving {
                self.refuse_cycle(moving, &source, &to)?;
                if let (RenameMode::Exchange, Some(target)) = (mode, &target) {
                    self.refuse_cycle(moving, target, &from)?;
                }
            }
            if let Some(done) = self.rename_now(&from, &to, &source, target.as_ref(), mode)? {
                return Ok(done.whiteout);
            }
        }
    }

    fn side<'a>(&self, dir: u64, name: &'a [u8]) -> Result<Side<'a>> {
        Ok(Side {
            dir: self.inode(dir)?,
            name,
            hash: self.hash(name),
        })
    }

    fn target(&self, side: &Side<'_>) -> Result<Option<Target>> {
        loop {
            let found = {
                let state = side.dir.read();
                live_dir(&state)?;
                self.items()
                    .find_name(&side.dir, &state, side.hash, side.name)?
            };
            let Some(found) = found else { return Ok(None) };
            match self.inode(found.ino) {
                Ok(inode) => return Ok(Some(Target { found, inode })),
                Err(Error::NotFound) if !self.has_entry(&side.dir, side.name, &found)? => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Whether both entries are there at the same time. They were looked up one after the other: a
    /// rename in between can have made the second one from the first one.
    fn are_there(
        &self,
        (from, source): (&Side<'_>, &Target),
        (to, target): (&Side<'_>, &Target),
    ) -> Result<bool> {
        let mut locked = Locked::new(&[&from.dir, &to.dir]);
        let both = self.current_entry(&mut locked, from, source)?.is_some()
            && self.current_entry(&mut locked, to, target)?.is_some();
        Ok(both)
    }

    /// Refuses to move a directory into itself or one of its descendants. The answer holds while
    /// the lock is held.
    fn refuse_cycle(&self, _: &MoveLock<'_>, moved: &Target, to: &Side<'_>) -> Result<()> {
        let mut ino = to.dir.ino;
        let mut passed = HashSet::new();
        while ino != ROOT_INO {
            if ino == moved.found.ino {
                return Err(Error::Invalid("a directory cannot move into itself"));
            }
            if !passed.insert(ino) {
                let expected = format!("a way from directory {} to the root", to.dir.ino);
                let found = format!("directory {ino} twice on it");
                return Err(Error::corrupt(0, "directory parents", expected, found));
            }
            let dir = self.inode(ino)?;
            let parent = live_dir(&dir.read())?.parent;
            ino = parent;
        }
        Ok(())
    }

    /// The rename itself; `None` if an entry changed meanwhile and the lookups must be repeated.
    fn rename_now(
        &self,
        from: &Side<'_>,
        to: &Side<'_>,
        source: &Target,
        target: Option<&Target>,
        mode: RenameMode,
    ) -> Result<Option<Renamed>> {
        let owner = match mode {
            RenameMode::Whiteout { owner, .. } => Some(owner),
            _ => None,
        };
        let need = match owner {
            Some(_) => Need::items(10, 5 * INODE_LEN + 3 * ENTRY_MAX + 1, INLINE_REMOVAL + 4),
            None => Need::items(8, 4 * INODE_LEN + 2 * ENTRY_MAX + 1, INLINE_REMOVAL + 4),
        };
        // Without a whiteout these renames do not grow the index, so they work on a full volume.
        let grows = owner.is_some() || target.is_none() && to.name.len() > from.name.len();
        let need = if grows { need } else { need.deleting() };
        let reservation = self.reserve(need)?;
        let mut inodes = vec![&from.dir, &to.dir, &source.inode];
        inodes.extend(target.map(|t| &t.inode));
        let mut locked = Locked::new(&inodes);
        live_dir(locked.state(&from.dir)?)?;
        live_dir(locked.state(&to.dir)?)?;
        let Some(old) = self.current_entry(&mut locked, from, source)? else {
            return Ok(None);
        };
        let replaced = match target {
            Some(t) => match self.current_entry(&mut locked, to, t)? {
                Some(entry) => Some((t, entry)),
                None => return Ok(None),
            },
            None => {
                let state = locked.state(&to.dir)?;
                if self
                    .items()
                    .find_name(&to.dir, state, to.hash, to.name)?
                    .is_some()
                {
                    return Ok(None);
                }
                None
            }
        };
        check_flags(&mut locked, (from, source), (to, target))?;
        let source_dir = locked.attrs(&source.inode)?.is_dir();
        let exchange = mode == RenameMode::Exchange;
        if let (Some(t), false) = (target, exchange) {
            check_removable(locked.state(&t.inode)?, source_dir)?;
        }
        let removed = match target {
            Some(t) if !exchange => {
                Some(self.belongings(&t.inode, locked.state(&t.inode)?, INLINE_REMOVAL)?)
            }
            _ => None,
        };
        let target_dir = match target {
            Some(t) => locked.attrs(&t.inode)?.is_dir(),
            None => false,
        };
        let now = self.core().now();
        // Subdirectories that leave and arrive at each side.
        let (left, reached) = (i64::from(source_dir), i64::from(target_dir));
        let at_from = if exchange { reached - left } else { -left };
        let at_to = left - reached;
        if from.dir.ino != to.dir.ino {
            // A refusal must leave the first directory unchanged.
            links_with(locked.attrs(&to.dir)?, at_to)?;
        }
        let whiteout = match owner {
            Some(owner) => Some(self.new_whiteout(&mut locked, from, owner, now)?),
            None => None,
        };
        // No other thread can reach it, so this does not wait.
        let mut whiteout = whiteout.as_ref().map(|inode| (inode, inode.write()));
        let mut commit = self.commit()?;
        change_dir(locked.attrs(&from.dir)?, now, at_from)?;
        change_dir(locked.attrs(&to.dir)?, now, at_to)?;
        let in_place = from.dir.ino == to.dir.ino && target.is_none() && whiteout.is_none();
        let over = match &replaced {
            Some((t, entry)) => Some((to.hash, *t, entry)),
            None => in_place.then_some((from.hash, source, &old)),
        };
        self.place(&mut commit, &mut locked, (to, over), source, now)?;
        if let Some(t) = target {
            commit.join(&source.inode, &t.inode);
        }
        match target {
            Some(t) if exchange => {
                let over = Some((from.hash, source, &old));
                self.place(&mut commit, &mut locked, (from, over), t, now)?;
            }
            _ if in_place => {}
            _ => {
                let (state, old_name) = (locked.state(&from.dir)?, (from.hash, &*source.inode));
                match &mut whiteout {
                    Some((inode, white)) => {
                        self.put_whiteout(
                            &mut commit,
                            from,
                            (state, old_name, &old),
                            (inode, white),
                        );
                        commit.join(&source.inode, inode);
                    }
                    None => self.delete_entry(&mut commit, &from.dir, state, old_name, &old)?,
                }
            }
        }
        if let (Some(t), Some(removed)) = (target, &removed) {
            self.drop_link(&mut commit, &t.inode, locked.state(&t.inode)?, now, removed)?;
        }
        let left = match &whiteout {
            Some((inode, state)) => Some(attrs(state)?.public(inode.ino, 0)),
            None => None,
        };
        commit.put_inode(&from.dir, locked.state(&from.dir)?);
        commit.put_inode(&to.dir, locked.state(&to.dir)?);
        let receipt = commit.finish(reservation);
        drop(whiteout);
        drop(locked);
        self.core().throttle(receipt)?;
        if let (Some(t), false) = (target, exchange) {
            self.reap_unused(&t.inode);
        }
        Ok(Some(Renamed { whiteout: left }))
    }

    /// A new whiteout inode, without an entry.
    fn new_whiteout(
        &self,
        locked: &mut Locked<'_>,
        from: &Side<'_>,
        owner: Creds,
        now: Time,
    ) -> Result<Arc<Inode>> {
        let state = locked.state(&from.dir)?;
        let dir = live_dir(state)?;
        let (gid, flags) = (group_in(dir, owner), dir.flags.inherited());
        let ino = self.core().superblocks().new_ino(state.chunk());
        let mut made = Attrs::new(S_IFCHR, (owner.uid, gid), 0, from.dir.ino, now);
        made.flags = flags;
        Ok(Arc::new(Inode::made(ino, made)))
    }

    /// Changes the old entry, which names `old_child`, to name a new whiteout.
    fn put_whiteout(
        &self,
        commit: &mut Commit<'_>,
        from: &Side<'_>,
        (dir, (hash, old_child), old): (&mut InodeState, (u64, &Inode), &NameFound),
        (inode, state): (&Arc<Inode>, &mut InodeState),
    ) {
        self.items().table().insert(inode.clone());
        let entry = DirEntryRef {
            ino: inode.ino,
            kind: S_IFCHR,
            name: from.name,
        };
        let white = (from.hash, &entry, &**inode);
        self.change_entry(commit, &from.dir, dir, (hash, old_child, old), white);
        commit.put_inode(inode, state);
    }

    /// The current entry of a side, if it still names that inode.
    fn current_entry(
        &self,
        locked: &mut Locked<'_>,
        side: &Side<'_>,
        target: &Target,
    ) -> Result<Option<NameFound>> {
        let state = locked.state(&side.dir)?;
        self.find_again(&side.dir, state, side.name, &target.found)
    }

    /// Moves an inode to a side: adds an entry there, or changes an existing entry of the directory
    /// (`over`: hash of its name, the inode it names) to the side's name and the moved inode.
    fn place(
        &self,
        commit: &mut Commit<'_>,
        locked: &mut Locked<'_>,
        (side, over): (&Side<'_>, Option<(u64, &Target, &NameFound)>),
        moved: &Target,
        now: Time,
    ) -> Result<()> {
        move_inode(commit, locked, &side.dir, moved, now)?;
        let entry = side.entry_of(moved);
        let state = locked.state(&side.dir)?;
        match over {
            None => {
                let named = (&entry, &*moved.inode);
                self.put_entry(commit, &side.dir, state, side.hash, named)?;
            }
            Some((hash, old, found)) => {
                let before = (hash, &*old.inode, found);
                let after = (side.hash, &entry, &*moved.inode);
                self.change_entry(commit, &side.dir, state, before, after);
            }
        }
        Ok(())
    }
}

/// Checks the flags of all inodes: `source` may leave the first side, and take the place of
/// `target` on the other.
fn check_flags(
    locked: &mut Locked<'_>,
    (from, source): (&Side<'_>, &Target),
    (to, target): (&Side<'_>, Option<&Target>),
) -> Result<()> {
    let mut flags = |inode: &Inode| Ok::<_, Error>(locked.attrs(inode)?.flags);
    may_remove_entry(flags(&from.dir)?, flags(&source.inode)?)?;
    match target {
        Some(target) => may_remove_entry(flags(&to.dir)?, flags(&target.inode)?),
        None => may_add_entry(flags(&to.dir)?),
    }
}

/// Changes the attributes of an inode that moves to a directory.
fn move_inode(
    commit: &mut Commit<'_>,
    locked: &mut Locked<'_>,
    dir: &Inode,
    moved: &Target,
    now: Time,
) -> Result<()> {
    let attrs = locked.attrs(&moved.inode)?;
    attrs.ctime = now;
    attrs.parent = dir.ino;
    commit.put_inode(&moved.inode, locked.state(&moved.inode)?);
    if is_dir(moved) {
        commit.moved(&moved.inode);
    }
    Ok(())
}

fn is_dir(target: &Target) -> bool {
    target.found.kind == cairnfs_disk::format::item::S_IFDIR
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::fs::locked::attrs_mut;
    use crate::fs::{MakeOptions, Options, make_device};
    use cairnfs_disk::device::MemoryDevice;
    use cairnfs_disk::format::MAX_LINKS;

    #[test]
    fn rename_into_directory_with_most_links_changes_nothing() {
        let device = MemoryDevice::new(64 << 20);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = FileSystem::open_device(Arc::new(device), &Options::default()).unwrap();
        let creds = Creds { uid: 0, gid: 0 };
        let made = |dir: u64, name: &[u8]| fs.mkdir(dir, name, 0o755, creds).unwrap().ino;
        let (from, to) = (made(ROOT_INO, b"from"), made(ROOT_INO, b"to"));
        made(from, b"moved");
        fs.mknod(to, b"file", 0o100_644, 0, creds).unwrap();
        let full = fs.inode(to).unwrap();
        attrs_mut(&mut full.write()).unwrap().nlink = MAX_LINKS;
        let before = [from, to].map(|dir| fs.getattr(dir).unwrap());
        let moves: [(u64, &[u8], u64, &[u8], _); 3] = [
            (from, b"moved", to, b"new", RenameMode::Replace),
            (from, b"moved", to, b"file", RenameMode::Exchange),
            (to, b"file", from, b"moved", RenameMode::Exchange),
        ];
        for (dir, name, to_dir, to_name, mode) in moves {
            let refused = fs.rename(dir, name, to_dir, to_name, mode);
            assert!(matches!(refused, Err(Error::TooManyLinks)), "{refused:?}");
            assert_eq!([from, to].map(|dir| fs.getattr(dir).unwrap()), before);
        }
        attrs_mut(&mut full.write()).unwrap().nlink = 2;
        fs.rename(from, b"moved", to, b"new", RenameMode::Replace)
            .unwrap();
        assert_eq!([from, to].map(|dir| fs.getattr(dir).unwrap().nlink), [2, 3]);
    }
}
