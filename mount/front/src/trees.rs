//! Which tree of files, and which inode of it, a node id of the kernel means.
//!
//! Normally a node id is the number of an inode of the mounted tree. When that tree is replaced by
//! another one ([`Trees::switch`]), ids of inodes that go on mean the new tree from then on. The id of
//! an inode that does not stays *bound* to the old tree, as long as the kernel has references to it;
//! if the new tree has an inode of that number, it gets an id of its own, which no inode number
//! reaches. The references of this mount's kernel are counted by id, and are a part of the uses that
//! the engine counts for each inode over all mounts and callers; the end of the mount gives back
//! exactly that part. Knows the engine's handles, and neither operations nor the kernel.
//!
//! Invariants:
//! - Each inode of each tree has at most one id at a time.
//! - A bound id has references, or an operation that holds references is about to give back the last.
//! - A tree that was replaced is open as long as ids are bound to it, and no longer.

use std::collections::HashMap;
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs_disk::device::waiting;
use cairnfs_disk::types::{Attr, RootInfo};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::convert::{Outcome, Refusal};
use crate::losses::File;
use crate::references::References;

/// The first id that is not the number of an inode: the engine's counter does not get there.
const FIRST_APART: u64 = 1 << 63;

/// The answer for an inode that only a replaced tree has.
pub(crate) const STALE: Refusal = Refusal(libc::ESTALE);

/// An inode of a tree.
pub(crate) struct Place {
    pub fs: Arc<FileSystem>,
    pub ino: u64,
    /// Whether the tree was the mounted one when this was looked up.
    pub mounted: bool,
    /// Whether the id is bound.
    pub bound: bool,
}

impl Place {
    /// The file, for the record of losses.
    pub fn file(&self) -> File {
        (self.fs.root_id(), self.ino)
    }

    /// Its attributes as programs see them: in the mounted tree it has no name if it is of another one.
    pub fn shown(&self, attr: Attr) -> Attr {
        if self.mounted {
            attr
        } else {
            Attr { nlink: 0, ..attr }
        }
    }

    /// The inode, if it is one of the mounted tree.
    ///
    /// # Errors
    /// `ESTALE`: of a replaced tree only what the kernel knows is used.
    pub fn of_mounted(self) -> Outcome<Self> {
        if self.mounted { Ok(self) } else { Err(STALE) }
    }
}

struct Bound {
    fs: Arc<FileSystem>,
    ino: u64,
}

struct Table {
    mounted: Arc<FileSystem>,
    /// The inodes of ids that are not the number of an inode of the mounted tree.
    bound: HashMap<u64, Bound>,
    /// The ids of inodes of the mounted tree that are not their numbers.
    apart: HashMap<u64, u64>,
    /// The next id that is given to one.
    next: u64,
}

/// The trees of a mount.
pub(crate) struct Trees {
    /// Locked for moments only.
    table: RwLock<Table>,
    /// The kernel's references. Locked inside the table's lock.
    counts: References,
    /// Held shared by operations that take or release references. It is not held while an operation
    /// waits for a replacement.
    references: RwLock<()>,
    turn: Turn,
}

/// Replacements, one at a time.
#[derive(Default)]
struct Turn {
    one: Mutex<()>,
    under_way: Mutex<Option<UnderWay>>,
    ended: Condvar,
}

#[derive(Clone)]
struct UnderWay {
    /// The name of the branch that was mounted when it began.
    branch: Option<String>,
}

/// A replacement that is under way.
pub(crate) struct Replacement<'a> {
    turn: &'a Turn,
    /// The name of the branch that was mounted when it began.
    pub branch: Option<String>,
    _one: MutexGuard<'a, ()>,
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        *self.turn.under_way.lock() = None;
        self.turn.ended.notify_all();
    }
}

/// Excludes operations that take or release references.
pub(crate) struct NoReferences<'a>(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

impl Trees {
    pub fn new(mounted: Arc<FileSystem>) -> Self {
        Self {
            table: RwLock::new(Table {
                mounted,
                bound: HashMap::new(),
                apart: HashMap::new(),
                next: FIRST_APART,
            }),
            counts: References::default(),
            references: RwLock::default(),
            turn: Turn::default(),
        }
    }

    /// The mounted tree.
    pub fn mounted(&self) -> Arc<FileSystem> {
        Arc::clone(&self.table.read().mounted)
    }

    /// What an id means.
    ///
    /// # Errors
    /// `ESTALE` for an id apart that is not bound: one from a file handle.
    pub fn place(&self, node: u64) -> Outcome<Place> {
        let table = self.table.read();
        match table.bound.get(&node) {
            None if node >= FIRST_APART => Err(STALE),
            None => Ok(Place {
                fs: Arc::clone(&table.mounted),
                ino: node,
                mounted: true,
                bound: false,
            }),
            Some(bound) => Ok(Place {
                fs: Arc::clone(&bound.fs),
                ino: bound.ino,
                mounted: Arc::ptr_eq(&bound.fs, &table.mounted),
                bound: true,
            }),
        }
    }

    /// Counts a reference that was taken to an inode of the mounted tree; returns the inode's id. The
    /// caller holds references.
    pub fn took(&self, ino: u64) -> u64 {
        {
            // The lock keeps a binding from ending before the reference is counted.
            let table = self.table.read();
            if let Some(node) = table.node(ino) {
                self.counts.add(node);
                return node;
            }
        }
        let mut table = self.table.write();
        let node = table.node_or_new(ino);
        self.counts.add(node);
        node
    }

    /// Counts a reference that was taken to the inode of an id. The caller holds references.
    pub fn took_by_id(&self, node: u64) {
        self.counts.add(node);
    }

    /// Counts up to `n` references less; returns how many, which the caller gives back to the engine.
    /// The caller holds references.
    pub fn gives_back(&self, node: u64, n: u64) -> u64 {
        self.counts.remove(node, n)
    }

    /// The id that the kernel knows an inode of the mounted tree by, if it knows it.
    pub fn known(&self, ino: u64) -> u64 {
        self.table.read().apart.get(&ino).copied().unwrap_or(ino)
    }

    /// Ends the binding of an id to whose inode there are no references. The caller holds references.
    pub fn release(&self, node: u64) {
        let mut table = self.table.write();
        let released = if self.counts.has(node) {
            None
        } else {
            table.bound.remove(&node)
        };
        if let Some(bound) = &released
            && table.apart.get(&bound.ino) == Some(&node)
        {
            table.apart.remove(&bound.ino);
        }
        drop(table);
        // Closes the tree if this was its last id, without a lock.
        drop(released);
    }

    /// Whether the kernel has references to the inode of an id.
    pub fn has_references(&self, node: u64) -> bool {
        self.counts.has(node)
    }

    /// The ids of all inodes that the kernel has references to.
    pub fn nodes(&self) -> Vec<u64> {
        let counts = self.counts.all().into_iter();
        counts.map(|(node, _)| node).collect()
    }

    /// Number of ids that are bound.
    pub fn bound(&self) -> usize {
        self.table.read().bound.len()
    }

    /// The tree of a root, if it is mounted or ids are bound to it.
    pub fn of_root(&self, root: u32) -> Option<Arc<FileSystem>> {
        let table = self.table.read();
        let bound = table.bound.values().map(|bound| &bound.fs);
        let mut all = std::iter::once(&table.mounted).chain(bound);
        all.find(|fs| fs.root_id() == root).map(Arc::clone)
    }

    /// A hold for an operation that takes or releases references. It lasts from before the look-up of
    /// the operation's ids until the ids of its result are known.
    pub fn hold_references(&self) -> RwLockReadGuard<'_, ()> {
        self.references.read()
    }

    /// Excludes operations that take or release references; waits for those in progress.
    pub fn exclude_references(&self) -> NoReferences<'_> {
        NoReferences(self.references.write())
    }

    /// Begins a replacement; waits for the end of an earlier one. Operations that the mounted tree
    /// refuses because it was replaced wait for its end.
    pub fn begin(&self) -> Replacement<'_> {
        let one = self.turn.one.lock();
        let branch = self.shown().filter(|root| root.writable);
        let branch = branch.and_then(|root| root.name);
        *self.turn.under_way.lock() = Some(UnderWay {
            branch: branch.clone(),
        });
        Replacement {
            turn: &self.turn,
            branch,
            _one: one,
        }
    }

    /// The mounted tree in the list of roots. During a replacement, when its root has another name
    /// already, the former entry is given: a branch of the former name will be mounted.
    pub fn shown(&self) -> Option<RootInfo> {
        self.shown_in(FileSystem::root_info)
    }

    /// As [`Self::shown`]; `look` looks at the list.
    fn shown_in(&self, look: impl Fn(&FileSystem) -> Option<RootInfo>) -> Option<RootInfo> {
        loop {
            let mounted = self.mounted();
            let root = look(&mounted)?;
            // The same look at the list tells the name and whether the tree was replaced. The tree itself
            // learns that only after the list, so it may say no when the name is another one already.
            if root.writable || mounted.is_read_only() {
                return Some(root);
            }
            let under_way = self.turn.under_way.lock().clone();
            if let Some(UnderWay { branch }) = under_way {
                return Some(RootInfo {
                    writable: branch.is_some(),
                    name: branch.or(root.name),
                    ..root
                });
            }
            // It could not be followed, or another tree is mounted by now.
            if Arc::ptr_eq(&mounted, &self.mounted()) {
                return Some(root);
            }
        }
    }

    /// Whether an operation that was refused with `ESTALE` is to be repeated, because another tree is
    /// mounted now. Waits for the end of a replacement that is under way.
    ///
    /// # Errors
    /// The thread must not wait.
    pub fn is_superseded(&self, place: &Place) -> Outcome<bool> {
        if !place.mounted || !place.fs.is_replaced() {
            return Ok(false);
        }
        let mut under_way = self.turn.under_way.lock();
        if under_way.is_some() {
            waiting::before()?;
        }
        while under_way.is_some() {
            self.turn.ended.wait(&mut under_way);
        }
        drop(under_way);
        Ok(!Arc::ptr_eq(&self.mounted(), &place.fs))
    }

    /// Mounts another tree, in which the inodes go on for which `goes_on` returns true. The others,
    /// and those without links, stay with the tree of before. Returns their numbers and ids.
    pub fn switch(
        &self,
        _exclusive: &NoReferences<'_>,
        new: &Arc<FileSystem>,
        goes_on: impl FnMut(u64) -> bool,
    ) -> HashMap<u64, u64> {
        // Nobody takes references meanwhile, so only the exchange needs the table.
        let old = self.mounted();
        let stay = old.move_uses(new, self.of_mounted(), goes_on);
        let mut table = self.table.write();
        table.mounted = Arc::clone(new);
        let mut apart = std::mem::take(&mut table.apart);
        let stay: HashMap<u64, u64> = stay
            .into_iter()
            .map(|ino| (ino, apart.remove(&ino).unwrap_or(ino)))
            .collect();
        for (ino, node) in &stay {
            let (fs, ino) = (Arc::clone(&old), *ino);
            table.bound.insert(*node, Bound { fs, ino });
        }
        for (ino, node) in &apart {
            let (fs, ino) = (Arc::clone(new), *ino);
            table.bound.insert(*node, Bound { fs, ino });
        }
        table.apart = apart;
        stay
    }

    /// The inodes of the mounted tree to which the kernel has references, with their numbers.
    fn of_mounted(&self) -> Vec<(u64, u64)> {
        let table = self.table.read();
        let counts = self.counts.all().into_iter();
        let of_mounted = counts.filter_map(|(node, count)| match table.bound.get(&node) {
            None => Some((node, count)),
            Some(bound) if Arc::ptr_eq(&bound.fs, &table.mounted) => Some((bound.ino, count)),
            Some(_) => None,
        });
        of_mounted.collect()
    }

    /// Gives back all references to the engine, ends all bindings, and so closes replaced trees: the
    /// kernel, which is gone, does not do that. Removes what has neither names nor other uses. Waits
    /// for operations in progress; none takes references afterwards.
    pub fn end(&self) {
        let _exclusive = self.exclude_references();
        let counts = self.counts.take_all();
        let (mounted, bound) = {
            let mut table = self.table.write();
            table.apart = HashMap::new();
            (Arc::clone(&table.mounted), std::mem::take(&mut table.bound))
        };
        for (node, count) in counts {
            match bound.get(&node) {
                Some(bound) => bound.fs.forget(bound.ino, count),
                None => mounted.forget(node, count),
            }
        }
    }
}

impl Table {
    /// The id of an inode of the mounted tree; `None` if it needs one of its own.
    fn node(&self, ino: u64) -> Option<u64> {
        if self.bound.is_empty() {
            return Some(ino);
        }
        let apart = self.apart.get(&ino).copied();
        apart.or_else(|| (!self.bound.contains_key(&ino)).then_some(ino))
    }

    /// As [`Self::node`]; an inode that needs a node of its own gets one.
    fn node_or_new(&mut self, ino: u64) -> u64 {
        self.node(ino).unwrap_or_else(|| {
            let node = self.next;
            self.next += 1;
            let fs = Arc::clone(&self.mounted);
            self.bound.insert(node, Bound { fs, ino });
            self.apart.insert(ino, node);
            node
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The list has the other name before the tree refuses changes. A look in between, which is made here
    /// at the list of a replacement that has not begun for the tree, sees the branch all the same.
    #[test]
    fn branch_is_shown_from_the_first_moment_of_its_replacement() {
        let volume = cairnfs::Volume::in_memory(64 << 20).unwrap();
        let fs = volume.file_system().open_named("main").unwrap();
        let trees = Trees::new(Arc::clone(&fs));
        let replacement = trees.begin();
        let listed = |fs: &FileSystem| {
            let root = fs.root_info()?;
            let name = Some("main.undo-2026-11-29T16-00-00".to_owned());
            Some(RootInfo {
                writable: false,
                name,
                ..root
            })
        };
        assert!(!fs.is_replaced());
        let shown = trees.shown_in(listed).unwrap();
        assert_eq!(
            (shown.name.as_deref(), shown.writable),
            (Some("main"), true)
        );
        drop(replacement);
        // A replacement that was not followed shows what the list says.
        let shown = trees.shown_in(listed).unwrap();
        assert_eq!((shown.name.is_some(), shown.writable), (true, false));
        // One that has ended during the look is looked at again, in the tree that is mounted by then.
        let new = volume
            .file_system()
            .open_root(volume.branch("b").unwrap().file_system().root_id());
        let (new, looks) = (new.unwrap(), Cell::new(0));
        let shown = trees.shown_in(|fs| {
            looks.set(looks.get() + 1);
            if looks.get() > 1 {
                return fs.root_info();
            }
            trees.switch(&trees.exclude_references(), &new, |_| true);
            listed(fs)
        });
        assert_eq!(shown.unwrap().name.as_deref(), Some("b"));
    }
}
