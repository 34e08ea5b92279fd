//! The open roots of a volume, and the handles to them.
//!
//! A root stays open as long as it has a handle, and after that until its unwritten data is written
//! back: closing a branch waits for nothing, and its data becomes durable like all other data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::fs::{Engine, FileSystem, OpenRoot};
use crate::txn::ItemStore;
use cairnfs_disk::error::Result;
use cairnfs_disk::sync::atomic::{AtomicUsize, Ordering};
use cairnfs_disk::sync::{Mutex, thread};

/// The open roots by id.
#[derive(Default)]
pub(super) struct OpenRoots {
    table: Mutex<BTreeMap<u32, Arc<OpenRoot>>>,
}

impl OpenRoots {
    /// All open roots, in order of their ids.
    pub fn list(&self) -> Vec<Arc<OpenRoot>> {
        self.table.lock().values().cloned().collect()
    }

    /// The root of that id, if it is open.
    fn get(&self, id: u32) -> Option<Arc<OpenRoot>> {
        self.table.lock().get(&id).cloned()
    }

    /// The open root with the smallest id.
    pub fn first(&self) -> Option<Arc<OpenRoot>> {
        self.table.lock().values().next().cloned()
    }

    /// The open root with these items, and whether it was not open before.
    pub fn add(&self, items: &Arc<ItemStore>) -> (Arc<OpenRoot>, bool) {
        let mut table = self.table.lock();
        if let Some(root) = table.get(&items.root()) {
            return (root.clone(), false);
        }
        let root = Arc::new(OpenRoot::new(items.clone()));
        table.insert(items.root(), root.clone());
        (root, true)
    }

    /// Drops the roots that have neither a handle nor unwritten data.
    pub fn retire(&self) {
        self.table.lock().retain(|_, root| !is_unused(root));
    }

    /// Drops a root that no caller has a handle to, when no worker uses it any more. Returns
    /// `false` if a caller has one, or data of it could not be written.
    fn close(&self, id: u32) -> bool {
        loop {
            let mut table = self.table.lock();
            let Some(root) = table.get_mut(&id) else {
                return true;
            };
            if is_unused(root) {
                table.remove(&id);
                return true;
            }
            if root.callers.has_any() || root.writeback.has_any() {
                return false;
            }
            drop(table);
            thread::sleep(WORKERS_PAUSE);
        }
    }
}

/// Whether a root has neither a handle nor unwritten data. Without another reference, no thread can
/// get one before the caller releases the table.
fn is_unused(root: &mut Arc<OpenRoot>) -> bool {
    Arc::get_mut(root).is_some_and(|root| !root.writeback.has_any())
}

/// Time between two looks whether workers still use a root: less than a write to a device takes.
const WORKERS_PAUSE: Duration = Duration::from_micros(100);

/// The number of handles to a root that callers have.
#[derive(Default)]
pub(super) struct Callers {
    handles: AtomicUsize,
}

impl Callers {
    /// Counts another handle.
    fn add(&self) {
        self.handles.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts one handle less.
    pub fn remove(&self) {
        self.handles.fetch_sub(1, Ordering::AcqRel);
    }

    fn has_any(&self) -> bool {
        self.handles.load(Ordering::Acquire) > 0
    }
}

/// What a handle may do, and whose it is.
pub(super) struct HandleMode {
    /// Whether the root was a head when the handle was made.
    writable: bool,
    /// Whether a caller has it; else a worker, or a call on the whole volume.
    of_caller: bool,
}

impl HandleMode {
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    pub fn is_of_caller(&self) -> bool {
        self.of_caller
    }
}

impl OpenRoot {
    fn new(items: Arc<ItemStore>) -> Self {
        Self {
            items,
            callers: Callers::default(),
            writeback: super::WritebackList::default(),
            gate: super::Gate::default(),
            shape: super::TreeShape::default(),
            orphans: super::OrphanSettlement::default(),
        }
    }
}

impl FileSystem {
    /// A handle to an open root. The caller has a handle of the volume, or makes the first.
    fn of(engine: &Arc<Engine>, root: Arc<OpenRoot>) -> Self {
        engine.lifecycle.add_handle();
        Self::counted(engine, root)
    }

    /// A handle to some root, for a thread that has none; `None` once the last handle was dropped.
    pub(super) fn any(engine: &Arc<Engine>) -> Option<Self> {
        let root = engine.roots.first()?;
        let open = engine.lifecycle.try_add_handle();
        open.then(|| Self::counted(engine, root))
    }

    /// A handle that was counted.
    fn counted(engine: &Arc<Engine>, root: Arc<OpenRoot>) -> Self {
        let writable = root.items.is_head();
        Self {
            engine: engine.clone(),
            root,
            mode: HandleMode {
                writable,
                of_caller: false,
            },
        }
    }

    /// Handles to all open roots.
    pub(super) fn all(&self) -> impl Iterator<Item = Self> {
        let roots = self.engine.roots.list().into_iter();
        roots.map(|root| Self::of(&self.engine, root))
    }

    /// A handle to the root of these items, which have no orphans when this returns.
    pub(super) fn open_items(engine: &Arc<Engine>, items: &Arc<ItemStore>) -> Result<Arc<Self>> {
        let (root, new) = engine.roots.add(items);
        root.callers.add();
        let mut fs = Self::of(engine, root);
        fs.mode.of_caller = true;
        let fs = Arc::new(fs);
        if new {
            fs.limit_new_root();
        }
        fs.settle_orphans()?;
        Ok(fs)
    }

    /// Closes a root that no caller has a handle to, with its data written back. Returns `false` if
    /// a caller has one, or data of it could not be written.
    ///
    /// # Errors
    /// As [`Self::write_back_roots`].
    pub(super) fn close_root(&self, id: u32) -> Result<bool> {
        match self.engine.roots.get(id) {
            Some(root) if root.callers.has_any() => return Ok(false),
            Some(root) => Self::of(&self.engine, root).write_back_all()?,
            None => {}
        }
        Ok(self.engine.roots.close(id))
    }

    /// Writes back the unwritten data of all open roots. An error of one file does not stop the
    /// others.
    ///
    /// # Errors
    /// The first error; a device failure.
    pub(super) fn write_back_roots(&self) -> Result<()> {
        let mut result = Ok(());
        for fs in self.all() {
            result = result.and(fs.write_back_all());
        }
        result
    }
}
