//! An inode in memory and the state under its lock.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::inode::attrs::Attrs;
use crate::inode::dirty::{DirtySet, Sealed, Slot};
use crate::inode::known_names::{NameMemory, Names};
use crate::inode::listing_ends::{Ends, Listing};
use crate::inode::log_deps::LogDeps;
use crate::inode::pages::Pages;
use crate::journal::vector::LogVector;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::prefetch::prefetch;
use cairnfs_disk::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use cairnfs_disk::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard,
};

/// An inode in memory.
pub struct Inode {
    /// Its inode number.
    pub ino: u64,
    /// Uses by callers: lookups of the kernel, open files.
    uses: AtomicU64,
    log_deps: Mutex<LogDeps>,
    /// It was loaded and found to exist, which can be seen without locking the state.
    ready: AtomicBool,
    /// Second chance against eviction.
    pub(super) recent: AtomicBool,
    /// Whether it is in the table's queue.
    pub(super) queued: AtomicBool,
    /// Held for a whole change of the contents (write, truncate, fallocate), and taken before any
    /// reservation. Merge, push and writeback never take it, so waiting under it cannot deadlock.
    contents: Mutex<()>,
    /// The lower half of the end of the last read, to detect sequential reads.
    pub last_read: AtomicU32,
    state: RwLock<InodeState>,
}

/// The state under an inode's lock.
#[derive(Default)]
pub struct InodeState {
    /// Merge boundary under which the current set began.
    pub epoch: u64,
    /// Whether its attributes were loaded.
    pub loaded: bool,
    /// Whether the inode item exists below the current set.
    pub persisted: bool,
    /// Whether the index may have items of it.
    pub indexed: bool,
    /// Of a directory: whether `names` has all its names.
    knows_all_names: bool,
    /// Whether it is in the volume's list of files with unwritten data.
    pub listed: bool,
    /// Whether attributes changed only in memory (size and times of writes).
    pub uncommitted: bool,
    /// Whether an orphan item records that blocks beyond the size are still to be freed.
    pub truncating: bool,
    /// Whether it was made without a name and never had one: only then may it get its first.
    pub nameless: bool,
    /// Items that a running merge takes.
    pub sealed: Option<Sealed>,
    /// Items changed since the newest merge began.
    pub current: DirtySet,
    /// Unwritten pages.
    pub pages: Pages,
    /// Of a directory: names known in memory.
    names: Option<Box<Names>>,
    /// Cached knowledge of the extended attributes.
    attributes: Attributes,
    /// `None` before it is loaded, and after it is deleted.
    pub attrs: Option<Attrs>,
    /// Further state of a directory in use.
    directory: Option<Box<Directory>>,
}

/// Cached knowledge of the extended attributes that exist; in memory only.
#[derive(Default)]
enum Attributes {
    #[default]
    Unknown,
    /// For few attributes: hashes of names, with those of all existing attributes among them. No
    /// attribute with another hash exists, so none is searched for.
    Hashes(SmallVec<[u64; 2]>),
    /// For many attributes: bytes of all names, each with its NUL.
    Listed(u32),
}

/// State of a directory that was listed, or in which files were made; in memory only.
#[derive(Default)]
struct Directory {
    /// Inode numbers allocated for children: next number and end.
    chunk: (u64, u64),
    /// Ends of its listings.
    ends: Ends,
}

/// With the two counters of its `Arc` an inode exactly fills a size class of allocators; one byte
/// more would cost a quarter more memory.
#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Inode>() <= 512 - 16);

impl Inode {
    /// An inode that is not loaded yet.
    pub fn new(ino: u64) -> Self {
        Self::with_state(ino, InodeState::default())
    }

    /// A newly created inode with one use.
    pub fn born(ino: u64, attrs: Attrs) -> Self {
        let inode = Self::made(ino, attrs);
        inode.take_use();
        inode
    }

    /// A newly created inode without uses.
    pub fn made(ino: u64, attrs: Attrs) -> Self {
        let state = InodeState {
            knows_all_names: attrs.is_dir(),
            attrs: Some(attrs),
            loaded: true,
            ..InodeState::default()
        };
        Self::with_state(ino, state)
    }

    fn with_state(ino: u64, state: InodeState) -> Self {
        Self {
            ino,
            ready: AtomicBool::new(state.loaded),
            state: RwLock::new(state),
            log_deps: Mutex::default(),
            contents: Mutex::new(()),
            uses: AtomicU64::new(0),
            recent: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            last_read: AtomicU32::new(0),
        }
    }

    /// Whether it was loaded and found to exist. It may have been deleted since, which its state
    /// shows.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Sets whether it is loaded and exists.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// Prefetches the fields that a merge reads.
    pub fn prefetch(&self) {
        prefetch(&self.uses);
        prefetch(&self.ready);
    }

    /// Locks the state for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, InodeState> {
        self.state.read()
    }

    /// Locks the state for changes. Several inodes are locked in order of their numbers.
    pub fn write(&self) -> RwLockWriteGuard<'_, InodeState> {
        self.state.write()
    }

    /// Locks the state for changes, if no thread holds it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, InodeState>> {
        self.state.try_write()
    }

    /// Whether it was looked up since the last call.
    pub fn used_lately(&self) -> bool {
        self.recent.swap(false, Ordering::Relaxed)
    }

    /// Locks the state against changes by other threads. Readers may go on until the guard is
    /// upgraded for changes.
    pub fn prepare(&self) -> RwLockUpgradableReadGuard<'_, InodeState> {
        self.state.upgradable_read()
    }

    /// Locks the contents for a whole change.
    pub fn contents(&self) -> MutexGuard<'_, ()> {
        self.contents.lock()
    }

    /// The changes that the log does not hold yet. The caller holds the open context.
    pub fn log_deps(&self) -> MutexGuard<'_, LogDeps> {
        self.log_deps.lock()
    }

    /// Adds a use. The caller holds the state's lock and saw that the inode exists.
    pub fn take_use(&self) {
        self.uses.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds uses that the table kept while the inode was not in memory.
    pub(super) fn add_uses(&self, n: u64) {
        self.uses.fetch_add(n, Ordering::AcqRel);
    }

    /// Drops `n` uses. Returns whether none is left.
    pub fn drop_uses(&self, n: u64) -> bool {
        let less = |uses: u64| Some(uses.saturating_sub(n));
        let before = self
            .uses
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less)
            .unwrap_or_default();
        debug_assert!(
            before >= n,
            "inode {} has {before} uses, {n} given back",
            self.ino
        );
        before <= n
    }

    /// Number of uses.
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Acquire)
    }

    /// Whether it has changes that the index or the log lacks, so that a merge will clean it. Does
    /// not wait: a locked inode counts as changed.
    pub(super) fn has_changes(&self) -> bool {
        let dirty =
            |s: RwLockReadGuard<'_, InodeState>| !s.current.is_empty() || s.sealed.is_some();
        self.state.try_read().is_some_and(dirty) || !self.has_no_log_deps()
    }

    /// Whether it is deleted and will never appear in log or index, because it was created and
    /// deleted within contexts that were not written in between. `seq` is the open context. Does
    /// not wait.
    pub fn is_cancelled(&self, seq: u64) -> bool {
        let cancelled = |s: RwLockReadGuard<'_, InodeState>| {
            s.loaded && s.attrs.is_none() && s.current.is_empty() && s.sealed.is_none()
        };
        self.state.try_read().is_some_and(cancelled)
            && self.log_deps.try_lock().is_some_and(|mut log_deps| {
                let vain = log_deps.is_vain(seq);
                if vain {
                    log_deps.forget(seq);
                }
                vain
            })
    }

    /// Clears `listed` if the inode is deleted and has no unwritten data; the caller then drops it
    /// from the list of such files. Returns whether it did. Does not wait.
    pub fn unlist_if_gone(&self) -> bool {
        self.try_write().is_some_and(|mut state| {
            let gone = state.loaded && state.attrs.is_none() && state.pages.dirty.is_empty();
            state.listed &= !gone;
            gone
        })
    }

    /// Releases the items that a merge up to `seq` took; their vectors are moved to `vectors`.
    /// Returns whether the inode has no newer changes.
    pub fn release_sealed(&self, seq: u64, vectors: &mut Vec<Arc<LogVector>>) -> bool {
        let mut state = self.write();
        let sealed = state.sealed.take();
        let mut log_deps = self.log_deps();
        let more = log_deps.let_go(seq, vectors);
        let is_clean = state.current.is_empty() && log_deps.is_empty();
        drop(log_deps);
        drop(state);
        drop(more);
        match sealed {
            Some(Sealed::Lone(slot)) => vectors.push(slot.vector),
            Some(Sealed::Set(set)) => {
                let set = Arc::into_inner(set);
                vectors.extend(set.into_iter().flat_map(DirtySet::into_vectors));
            }
            None => {}
        }
        is_clean
    }

    fn has_no_log_deps(&self) -> bool {
        self.log_deps.try_lock().is_some_and(|u| u.is_empty())
    }

    /// Whether eviction would lose nothing except the number of its uses.
    pub(super) fn may_leave(&self) -> bool {
        let used = self.uses() > 0;
        self.state.try_read().is_some_and(|s| {
            let linked = || s.attrs.as_ref().is_some_and(|a| a.nlink > 0);
            (!used || linked())
                && s.current.is_empty()
                && s.sealed.is_none()
                && !s.uncommitted
                && !s.truncating
                && !s.listed
                && s.pages.dirty.is_empty()
                && self.has_no_log_deps()
        })
    }
}

/// Largest number of attributes whose hashes an inode remembers.
pub const KNOWN_ATTRIBUTES: usize = 16;

impl InodeState {
    /// Whether it is known in memory that no attribute's name has this hash.
    pub fn lacks_attribute(&self, hash: u64) -> bool {
        matches!(&self.attributes, Attributes::Hashes(known) if !known.contains(&hash))
    }

    /// Whether the hashes of all attributes are known.
    pub fn knows_attributes(&self) -> bool {
        matches!(self.attributes, Attributes::Hashes(_))
    }

    /// Remembers `hashes`, those of all attribute names.
    pub fn set_attributes(&mut self, hashes: impl Iterator<Item = u64>) {
        self.attributes = Attributes::Hashes(hashes.collect());
    }

    /// Bytes of the names of all attributes, each with its NUL, if they are known.
    pub fn listed_bytes(&self) -> Option<usize> {
        match self.attributes {
            Attributes::Listed(bytes) => Some(bytes as usize),
            _ => None,
        }
    }

    /// Remembers the bytes of the names of all attributes, each with its NUL.
    pub fn set_listed_bytes(&mut self, bytes: usize) {
        self.attributes = match u32::try_from(bytes) {
            Ok(bytes) => Attributes::Listed(bytes),
            Err(_) => Attributes::Unknown,
        };
    }

    /// Records a new attribute, whose name has this hash and takes `bytes` with its NUL.
    pub fn add_attribute(&mut self, hash: u64, bytes: usize) {
        match &mut self.attributes {
            Attributes::Unknown => {}
            Attributes::Listed(listed) => *listed += bytes as u32,
            Attributes::Hashes(known) => {
                if !known.contains(&hash) {
                    known.push(hash);
                }
                if known.len() > KNOWN_ATTRIBUTES {
                    self.attributes = Attributes::Unknown;
                }
            }
        }
    }

    /// Records that an attribute was removed, whose name takes `bytes` with its NUL. Its hash stays
    /// known, because another name may have it.
    pub fn remove_attribute(&mut self, bytes: usize) {
        if let Attributes::Listed(listed) = &mut self.attributes {
            *listed = listed.saturating_sub(bytes as u32);
        }
    }

    /// The slot of an item in the sets in memory, and whether it is in the sealed one.
    pub fn slot(&self, kind: Kind, offset: u64) -> Option<(&Slot, bool)> {
        if let Some(slot) = self.current.get(kind, offset) {
            return Some((slot, false));
        }
        let sealed = self.sealed.as_ref()?;
        Some((sealed.get(kind, offset)?, true))
    }

    /// The sealed set, if it has more than the inode item.
    pub fn sealed_set(&self) -> Option<&Arc<DirtySet>> {
        self.sealed.as_ref()?.set()
    }

    /// The newest slot of the last item of `kind` up to an offset; it may be a deletion. `kind` is
    /// not that of directory entries.
    pub fn last_slot(&self, kind: Kind, to: u64) -> Option<(u64, &Slot)> {
        let sealed = self.sealed_set().and_then(|set| set.last_up_to(kind, to));
        let current = self.current.last_up_to(kind, to);
        match (current, sealed) {
            (Some(current), Some(sealed)) if current.0 >= sealed.0 => Some(current),
            (current, sealed) => sealed.or(current),
        }
    }

    /// Whether the index may have items of it: not if the inode was created since the newest merge.
    pub fn may_be_indexed(&self) -> bool {
        !self.loaded || self.indexed
    }

    /// Of a directory: indexes of the entries in memory whose names have this hash.
    pub fn named(&self, hash: u64) -> impl Iterator<Item = u64> {
        self.names.iter().flat_map(move |names| names.find(hash))
    }

    /// Of a directory: whether a name that is not in memory may exist.
    pub fn may_have_other_names(&self) -> bool {
        !self.knows_all_names && self.may_be_indexed()
    }

    /// Called after loading: a directory without entries knows all its names.
    pub fn note_empty(&mut self) {
        let empty = self
            .attrs
            .as_ref()
            .is_some_and(|a| a.is_dir() && a.size == 0);
        self.knows_all_names = empty && self.current.is_empty() && self.sealed.is_none();
    }

    /// Of a directory: remembers an entry's name. Returns whether memory grew notably.
    pub fn add_name(&mut self, memory: &NameMemory, hash: u64, index: u64) -> bool {
        let names = self
            .names
            .get_or_insert_with(|| Box::new(Names::new(memory)));
        names.add(hash, index)
    }

    /// Of a directory: forgets the name of a removed entry.
    pub fn remove_name(&mut self, hash: u64, index: u64) {
        if let Some(names) = &mut self.names {
            names.remove(hash, index);
        }
    }

    /// Of a directory: keeps only the names in `dirty`, those that are not in the index.
    pub fn trim_names(&mut self, dirty: impl Iterator<Item = (u64, u64)>) {
        self.knows_all_names = false;
        if let Some(names) = &mut self.names {
            names.replace(dirty);
        }
    }

    /// Of a directory: the listing of a cookie, if it needs no new end; `next` is the directory's
    /// next index.
    pub fn listing(&self, cookie: u64, next: u64) -> Option<Listing> {
        self.directory.as_ref()?.ends.find(cookie, next)
    }

    /// Of a directory: the same, but records a new end if it needs one.
    pub fn begin_listing(&mut self, cookie: u64, next: u64) -> Listing {
        let directory = self.directory.get_or_insert_default();
        directory.ends.find_or_note(cookie, next)
    }

    /// Of a directory: inode numbers allocated for children: next number and end.
    pub fn chunk(&mut self) -> &mut (u64, u64) {
        &mut self.directory.get_or_insert_default().chunk
    }

    /// Seals the current set, for the merge whose boundary was passed.
    fn seal(&mut self) {
        if self.current.is_empty() {
            return;
        }
        assert!(
            self.sealed.is_none(),
            "two merges hold changes of one inode"
        );
        if self.current.get(Kind::Inode, 0).is_some() {
            self.persisted = true;
        }
        self.indexed = true;
        self.sealed = self.current.seal();
    }

    /// Seals the current set if it began under a boundary other than `boundary`. Called by a later
    /// commit or by the merge itself, whichever is first. `None` means replay, before the
    /// first commit: everything is sealed.
    pub fn seal_up_to(&mut self, boundary: Option<u64>) {
        if boundary == Some(self.epoch) {
            return;
        }
        self.seal();
        self.epoch = boundary.unwrap_or(self.epoch);
    }
}
