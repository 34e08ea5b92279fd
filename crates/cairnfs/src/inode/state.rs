//! An inode in memory and the state under its lock.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::format::key::Kind;
use crate::inode::attrs::Attrs;
use crate::inode::dirty::{DirtySet, Sealed, Slot};
use crate::inode::listings::{Ends, Listing};
use crate::inode::log_deps::LogDeps;
use crate::inode::names::{NameMemory, Names};
use crate::inode::pages::Pages;
use crate::journal::vector::LogVector;
use crate::prefetch::prefetch;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard,
};

/// An inode in memory. In this order, what a merge looks at lies in few lines of the processor's cache:
/// it comes by when most inodes have long left there.
#[repr(C)]
pub struct Inode {
    /// Its number.
    pub ino: u64,
    /// Uses by callers: look-ups to be forgotten, open files.
    uses: AtomicU64,
    log_deps: Mutex<LogDeps>,
    /// It was loaded and found to exist: nobody need lock the state to see that.
    ready: AtomicBool,
    /// Second chance against eviction.
    pub(super) recent: AtomicBool,
    /// It stands in the table's queue.
    pub(super) queued: AtomicBool,
    /// Taken for a whole change of the contents (write, truncate, fallocate), before any
    /// reservation. Merge, push and writeback never take it, so waiting under it cannot deadlock.
    contents: Mutex<()>,
    /// The lower half of the end of the last read, to guess at sequential reading.
    pub last_read: AtomicU32,
    state: RwLock<InodeState>,
}

/// What an inode's lock guards. What a merge and nearly all changes need comes first, then what has to
/// be looked at when it leaves memory.
#[derive(Default)]
#[repr(C)]
pub struct InodeState {
    /// Merge boundary under which the current set began.
    pub epoch: u64,
    /// Whether the index was asked for it.
    pub loaded: bool,
    /// Whether the inode item exists below the current set.
    pub persisted: bool,
    /// Whether the index may hold items of it.
    pub indexed: bool,
    /// Of a directory: no other names exist.
    knows_all_names: bool,
    /// Whether it stands in the volume's list of files with unwritten data.
    pub listed: bool,
    /// Attributes changed in memory only (size and times of writes).
    pub uncommitted: bool,
    /// An orphan item says that blocks behind the size are still to be freed.
    pub truncating: bool,
    /// It was made without a name and never had one: only then may it get its first.
    pub nameless: bool,
    /// Changes that a running merge takes.
    pub sealed: Option<Sealed>,
    /// Changes since the newest merge began.
    pub current: DirtySet,
    /// Unwritten data.
    pub pages: Pages,
    /// Of a directory: names known in memory.
    names: Option<Box<Names>>,
    /// What is known of the extended attributes.
    attributes: Attributes,
    /// `None` before it was loaded, and once it is gone.
    pub attrs: Option<Attrs>,
    /// What a directory in use has beside.
    directory: Option<Box<Directory>>,
}

/// What is known in memory alone of the extended attributes that exist.
#[derive(Default)]
enum Attributes {
    #[default]
    Unknown,
    /// Of few: hashes of names, all that exist among them. A name with another hash is not looked for
    /// anywhere.
    Hashes(SmallVec<[u64; 2]>),
    /// Of many: bytes of all names, each with its NUL.
    Listed(u32),
}

/// What is known in memory alone of a directory that was listed, or in which files were made.
#[derive(Default)]
struct Directory {
    /// Inode numbers set aside for children, next and end.
    chunk: (u64, u64),
    /// Where its listings end.
    ends: Ends,
}

/// With its two counters an inode fills a size of memory that allocators have; a byte more, and each
/// would take a quarter more.
#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Inode>() <= 512 - 16);

impl Inode {
    /// An inode not loaded yet.
    pub fn new(ino: u64) -> Self {
        Self::with_state(ino, InodeState::default())
    }

    /// An inode just made, with one use.
    pub fn born(ino: u64, attrs: Attrs) -> Self {
        let inode = Self::made(ino, attrs);
        inode.take_use();
        inode
    }

    /// An inode just made, which nobody uses.
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

    /// Whether it was loaded and found to exist. It may have gone since: its state tells.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Says so, or that it is gone.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// Has that fetched which a merge looks at.
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

    /// The same, if nobody holds it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, InodeState>> {
        self.state.try_write()
    }

    /// Whether it was found by its number since this was last asked.
    pub fn used_lately(&self) -> bool {
        self.recent.swap(false, Ordering::Relaxed)
    }

    /// Locks the state against changes by others, for reading; readers go on until the guard is
    /// upgraded for changes.
    pub fn prepare(&self) -> RwLockUpgradableReadGuard<'_, InodeState> {
        self.state.upgradable_read()
    }

    /// Locks the contents for a whole change.
    pub fn contents(&self) -> MutexGuard<'_, ()> {
        self.contents.lock()
    }

    /// What the log does not hold yet. Whoever locks it holds the open context.
    pub fn log_deps(&self) -> MutexGuard<'_, LogDeps> {
        self.log_deps.lock()
    }

    /// Takes a use. The caller holds the state's lock and saw the inode exist.
    pub fn take_use(&self) {
        self.uses.fetch_add(1, Ordering::AcqRel);
    }

    /// Puts back uses that were kept elsewhere while the inode was not in memory.
    pub(super) fn add_uses(&self, n: u64) {
        self.uses.fetch_add(n, Ordering::AcqRel);
    }

    /// Gives back `n` uses; tells whether none is left.
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

    /// Whether it has changes that are not in the index, or ones that the log lacks, as far as can be seen without waiting: a merge will clean it.
    pub(super) fn has_changes(&self) -> bool {
        let dirty =
            |s: RwLockReadGuard<'_, InodeState>| !s.current.is_empty() || s.sealed.is_some();
        self.state.try_read().is_some_and(dirty) || !self.has_no_log_deps()
    }

    /// Whether it is gone, and neither log nor index ever hear of it: it was made and removed within
    /// contexts that were not written in between. `seq` is the open one. Waits for nobody.
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

    /// Takes its mark off that it stands in the list of files with unwritten data, if it is gone.
    /// Waits for nobody.
    pub fn unlist_if_gone(&self) -> bool {
        self.try_write().is_some_and(|mut state| {
            let gone = state.loaded && state.attrs.is_none() && state.pages.dirty.is_empty();
            state.listed &= !gone;
            gone
        })
    }

    /// Lets go what a merge up to `seq` took; its vectors go to `vectors`. Tells whether nothing newer is
    /// there.
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

    /// Whether nothing but the number of its uses would be lost if it left memory.
    pub(super) fn may_leave(&self) -> bool {
        let used = self.uses() > 0;
        self.state.try_read().is_some_and(|s| {
            let linked = || s.attrs.as_ref().is_some_and(|a| a.nlink > 0);
            (!used || linked())
                && s.current.is_empty()
                && s.sealed.is_none()
                && !s.uncommitted
                && !s.listed
                && s.pages.dirty.is_empty()
                && self.has_no_log_deps()
        })
    }
}

/// Most attributes whose hashes an inode remembers.
pub const KNOWN_ATTRIBUTES: usize = 16;

impl InodeState {
    /// Whether no attribute's name has that hash, as far as is known in memory.
    pub fn lacks_attribute(&self, hash: u64) -> bool {
        matches!(&self.attributes, Attributes::Hashes(known) if !known.contains(&hash))
    }

    /// Whether it remembers which attributes exist.
    pub fn knows_attributes(&self) -> bool {
        matches!(self.attributes, Attributes::Hashes(_))
    }

    /// Remembers these hashes of attribute names, which are all.
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

    /// Remembers them.
    pub fn set_listed_bytes(&mut self, bytes: usize) {
        self.attributes = match u32::try_from(bytes) {
            Ok(bytes) => Attributes::Listed(bytes),
            Err(_) => Attributes::Unknown,
        };
    }

    /// A further attribute exists, of a name with that hash and of so many bytes with its NUL.
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

    /// An attribute is gone whose name has so many bytes with its NUL. Its hash stays among those known:
    /// another name may have it.
    pub fn remove_attribute(&mut self, bytes: usize) {
        if let Attributes::Listed(listed) = &mut self.attributes {
            *listed = listed.saturating_sub(bytes as u32);
        }
    }

    /// The slot of an item in the sets in memory, and whether it is below the current one.
    pub fn slot(&self, kind: Kind, offset: u64) -> Option<(&Slot, bool)> {
        if let Some(slot) = self.current.get(kind, offset) {
            return Some((slot, false));
        }
        let sealed = self.sealed.as_ref()?;
        Some((sealed.get(kind, offset)?, true))
    }

    /// The items that a running merge takes, if there are more than the inode item.
    pub fn sealed_set(&self) -> Option<&Arc<DirtySet>> {
        self.sealed.as_ref()?.set()
    }

    /// The newest slot of the last item of one kind, which is not that of directory entries, up to an
    /// offset; it may be deleted there.
    pub fn last_slot(&self, kind: Kind, to: u64) -> Option<(u64, &Slot)> {
        let sealed = self.sealed_set().and_then(|set| set.last_up_to(kind, to));
        let current = self.current.last_up_to(kind, to);
        match (current, sealed) {
            (Some(current), Some(sealed)) if current.0 >= sealed.0 => Some(current),
            (current, sealed) => sealed.or(current),
        }
    }

    /// Whether the index can hold anything of it: not while the inode is new since the newest merge.
    pub fn may_be_indexed(&self) -> bool {
        !self.loaded || self.indexed
    }

    /// Of a directory: indexes of the entries in memory whose names have that hash.
    pub fn named(&self, hash: u64) -> impl Iterator<Item = u64> {
        self.names.iter().flat_map(move |names| names.find(hash))
    }

    /// Of a directory: whether a name that is not in memory may exist.
    pub fn may_have_other_names(&self) -> bool {
        !self.knows_all_names && self.may_be_indexed()
    }

    /// Of what was just loaded: a directory that counts no entries knows all its names.
    pub fn note_empty(&mut self) {
        let empty = self
            .attrs
            .as_ref()
            .is_some_and(|a| a.is_dir() && a.size == 0);
        self.knows_all_names = empty && self.current.is_empty() && self.sealed.is_none();
    }

    /// Of a directory: remembers an entry's name. Tells whether memory grew by much.
    pub fn add_name(&mut self, memory: &NameMemory, hash: u64, index: u64) -> bool {
        let names = self
            .names
            .get_or_insert_with(|| Box::new(Names::new(memory)));
        names.add(hash, index)
    }

    /// Of a directory: forgets the name of an entry that goes.
    pub fn remove_name(&mut self, hash: u64, index: u64) {
        if let Some(names) = &mut self.names {
            names.remove(hash, index);
        }
    }

    /// Of a directory: keeps only these names, which are all that are not in the index.
    pub fn trim_names(&mut self, dirty: impl Iterator<Item = (u64, u64)>) {
        self.knows_all_names = false;
        if let Some(names) = &mut self.names {
            names.replace(dirty);
        }
    }

    /// Of a directory: the listing that a cookie tells of, if it needs no new end; `next` is the next
    /// index.
    pub fn listing(&self, cookie: u64, next: u64) -> Option<Listing> {
        self.directory.as_ref()?.ends.find(cookie, next)
    }

    /// Of a directory: the same, with a new end if it needs one.
    pub fn begin_listing(&mut self, cookie: u64, next: u64) -> Listing {
        let directory = self.directory.get_or_insert_default();
        directory.ends.find_or_note(cookie, next)
    }

    /// Of a directory: inode numbers set aside for children, next and end.
    pub fn chunk(&mut self) -> &mut (u64, u64) {
        &mut self.directory.get_or_insert_default().chunk
    }

    /// Hands the current set over to the merge whose boundary has been passed.
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

    /// The same by whoever comes by first, a later commit or the merge itself; `None` as boundary while
    /// nobody commits yet: all is to be taken.
    pub fn seal_up_to(&mut self, boundary: Option<u64>) {
        if boundary == Some(self.epoch) {
            return;
        }
        self.seal();
        self.epoch = boundary.unwrap_or(self.epoch);
    }
}
