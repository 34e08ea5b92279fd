//! Replay: puts the contents of the log into dirty sets, as if they had just been committed.
//!
//! Later entries replace earlier ones, so each key ends with its final value; derived state follows
//! at the next merge by the usual code. A log that does not fit into the memory budget is replayed
//! in passes: each pass reads the whole log, takes a range of keys, and merges their final values
//! into the index. So the index never gets a value that is older than one that an interrupted merge
//! or an earlier pass has put there. A full log needs no more memory than a short one, except for a
//! file of very many extents: a pass takes all items of a file, so that it knows which of its
//! blocks are in use. A volume opened read-only is recovered in the same way: its device writes to
//! a temporary file.
//!
//! A context that ends with changes of roots is a boundary: everything up to it is merged, with
//! the changes, before anything later is replayed. No merge of replay ends elsewhere than at such a
//! boundary or at the end of the log, and no merge of an open volume goes beyond such a boundary.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::inode::attrs::Attrs;
use crate::inode::dirty::Slot;
use crate::inode::{Inode, InodeState};
use crate::journal::recover::{FoundContext, Scan, read_context};
use crate::journal::vector::{Change, LogVector};
use crate::space::BlockRun;
use crate::txn::Core;
use crate::txn::change::shrinkage;
use crate::txn::heads::HeadInput;
use crate::txn::items::ItemStore;
use crate::txn::roots::RootItems;
use crate::txn::runs::subtract_runs;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::item::{decode_dir_entry, decode_extent, decode_extent_at};
use cairnfs_disk::format::key::{Key, Kind, MAIN_ROOT, VOLUME_ROOT};
use cairnfs_disk::format::lineage::check_changes;
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::record::Entry;
use cairnfs_disk::format::root::Root;
use cairnfs_disk::format::xattr::decode_xattrs;
use cairnfs_disk::sync::Mutex;

/// Approximate bytes of memory of a slot, besides its vector.
const SLOT_MEMORY: i64 = 64;

/// Position of an item in the order of passes: its root, inode, kind and offset. An orphan item is
/// ordered with the inode it names.
type Place = (u32, u64, u8, u64);

/// A range of places that one pass over the log takes.
struct Pass {
    from: Place,
    /// End of the range; `None` if it is open.
    until: Option<Place>,
    /// Bytes of memory that it may hold; it exceeds them if it cannot leave anything to the next
    /// pass.
    limit: i64,
    /// Extents whose log entries were replaced later in the log, with their roots and inodes.
    replaced: Vec<((u32, u64), BlockRun)>,
}

impl Pass {
    fn new(from: Place, limit: i64) -> Self {
        Self {
            from,
            until: None,
            limit,
            replaced: Vec::new(),
        }
    }

    fn takes(&self, place: Place) -> bool {
        place >= self.from && self.until.is_none_or(|until| place < until)
    }

    /// Whether this is the first pass: before its end no merge has allocated blocks.
    fn is_first(&self) -> bool {
        self.from == Place::default()
    }
}

fn place_of(root: u32, key: &Key) -> Place {
    match key.kind {
        Kind::Orphan => (root, key.offset, 0, 0),
        kind => (root, key.object, kind as u8, key.offset),
    }
}

fn memory_of(vector: &LogVector) -> i64 {
    vector.memory() as i64 + SLOT_MEMORY
}

/// The replay of a log into a volume that no other thread uses yet.
pub(super) struct Replay<'a> {
    core: &'a Core,
    /// Changes of roots that the next merge applies.
    roots: Mutex<RootItems>,
}

impl<'a> Replay<'a> {
    /// Replays into `core`.
    pub fn new(core: &'a Core) -> Self {
        Self {
            core,
            roots: Mutex::default(),
        }
    }

    /// Replays the contexts that the index does not have yet.
    ///
    /// # Errors
    /// Damage in the log or the index; the device's failure; no space for a merge of a pass.
    pub fn run(&self, found: &Scan) -> Result<()> {
        let merged = self.core.superblocks.newest().merged_seq.get();
        let first = found.contexts.partition_point(|c| c.seq <= merged);
        let mut contexts = found.contexts.get(first..).unwrap_or_default();
        if contexts.iter().any(|c| c.roots) {
            self.claim_all(contexts)?;
        }
        // The state at each change of roots is merged before anything later is replayed.
        while let Some(at) = contexts.iter().position(|c| c.roots) {
            let (until, later) = contexts.split_at(at + 1);
            let seq = until.last().map_or(merged, |c| c.seq);
            let pass = self.replay_passes(until, seq)?;
            self.merge_roots(seq, pass)?;
            contexts = later;
        }
        let pass = self.replay_passes(contexts, found.last_seq)?;
        let heads = self.take_heads();
        let unused = self.not_referred(&heads, pass.replaced);
        let inodes = || heads.iter().flat_map(|head| &head.inodes);
        let grown = inodes().map(|(_, i)| set_growth(&i.read())).sum();
        let shrunk = inodes().map(|(_, i)| set_shrinkage(&i.read())).sum();
        self.core.merger.backlog().add_shrinking(shrunk);
        self.put_back(heads);
        self.hold_back(unused);
        if self.core.read_only {
            // No merge follows, so no growth need be reserved.
            Ok(())
        } else {
            self.core.space.adopt_growth(grown)
        }
    }

    /// Takes the replayed inodes of all heads, in order.
    fn take_heads(&self) -> Vec<HeadInput> {
        let heads = self.core.heads.take_dirty().into_iter();
        heads.map(|head| head.in_order(1)).collect()
    }

    fn put_back(&self, heads: Vec<HeadInput>) {
        for head in heads {
            if head.orphaned {
                head.items.dirty().note_orphan();
            }
            head.items.dirty().put_back(head.inodes);
        }
    }

    /// Claims the blocks of all extents in these contexts, before a merge may allocate any.
    fn claim_all(&self, contexts: &[FoundContext]) -> Result<()> {
        if let Some(error) = self
            .core
            .space
            .unread()
            .filter(|_| self.core.space.is_unread())
        {
            return Err(Error::corrupt(
                self.core.geometry.table_start(0),
                "space for the log's snapshots",
                "free blocks, to read the log",
                format_args!("none that is known to be free, because of {error}"),
            ));
        }
        if self.core.limits.replay == i64::MAX && self.core.read_only {
            return Err(Error::Incompatible(
                "features that allow reading only, and snapshots in the log that must be merged; \
                 update CairnFS to open it"
                    .into(),
            ));
        }
        let superblock = self.core.superblocks.newest();
        for context in contexts {
            read_context(&*self.core.storage, &superblock, context, &mut |entry| {
                if entry.key.kind == Kind::Extent && !entry.delete {
                    self.claim(extent_run(context.seq, entry)?)
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(())
    }

    /// Merges everything up to the context `seq`, which ends with changes of roots.
    fn merge_roots(&self, seq: u64, pass: Pass) -> Result<()> {
        let roots = std::mem::take(&mut *self.roots.lock());
        let before = self.core.roots.list().into_iter().collect();
        check_changes(&before, &roots, seq).map_err(|found| {
            let expected = format!("changes of roots that fit together (context {seq})");
            Error::corrupt(0, "log entry", expected, found)
        })?;
        // The items of the roots tell the number of nodes.
        self.core.nodes_of(MAIN_ROOT)?;
        self.core.roots.add_pending(&roots);
        self.merge_pass(seq, pass, Some(&roots))
            .inspect_err(|e| self.explain_failed_pass(e))?;
        self.core.heads.close_unused();
        let roots = &self.core.roots;
        let inherits = |items: &Arc<ItemStore>| items.set_inherited(roots.inherited(items.root()));
        self.core.heads.each(inherits);
        Ok(())
    }

    /// Replays contexts in as many passes as memory needs, and merges all except the last, whose
    /// nodes would be born in the context `seq`. Returns the last pass.
    fn replay_passes(&self, contexts: &[FoundContext], seq: u64) -> Result<Pass> {
        let mut pass = Pass::new(Place::default(), self.core.limits.replay);
        loop {
            for context in contexts {
                self.replay_context(context, &mut pass)?;
            }
            let Some(until) = pass.until else {
                return Ok(pass);
            };
            let merged = self.merge_pass(seq, pass, None);
            merged.inspect_err(|e| self.explain_failed_pass(e))?;
            pass = Pass::new(until, self.core.limits.replay);
        }
    }

    fn replay_context(&self, context: &FoundContext, pass: &mut Pass) -> Result<()> {
        let superblock = self.core.superblocks.newest();
        read_context(&*self.core.storage, &superblock, context, &mut |entry| {
            if entry.root == VOLUME_ROOT {
                self.replay_root(context, entry)?;
            } else if pass.takes(place_of(entry.root, &entry.key)) {
                self.replay_entry(context.seq, entry, pass)?;
            } else if pass.is_first() && entry.key.kind == Kind::Extent && !entry.delete {
                // All blocks that the log refers to are claimed before a merge may allocate any.
                let run = extent_run(context.seq, entry)?;
                self.claim(run)?;
            }
            if self.core.dirty_bytes() > pass.limit {
                self.narrow(pass);
            }
            Ok(())
        })
    }

    fn claim(&self, run: BlockRun) -> Result<()> {
        fault::unless(InjectedFault::BlocksNotClaimed, || {
            self.core.space.claim(run).map(|_| ())
        })
    }

    /// Leaves the upper half of the items of a pass to the next pass.
    fn narrow(&self, pass: &mut Pass) {
        let heads = self.take_heads();
        let mut inodes: Vec<(&Arc<ItemStore>, &Arc<Inode>)> = Vec::new();
        for head in &heads {
            inodes.extend(head.inodes.iter().map(|(_, inode)| (&head.items, inode)));
        }
        let enough = self.core.limits.replay / 2;
        let mut held = 0;
        let kept = inodes
            .iter()
            .take_while(|(_, inode)| {
                let before = held;
                held += set_memory(&inode.read());
                before == 0 || held <= enough
            })
            .count();
        let until = match inodes.get(kept) {
            Some((items, inode)) => Some((items.root(), inode.ino, 0, 0)),
            None => inodes
                .last()
                .and_then(|(items, dir)| self.split(items, dir)),
        };
        for (items, inode) in inodes.drain(kept..) {
            self.core
                .reservations
                .add_memory(-set_memory(&inode.read()));
            items.table().remove(inode);
        }
        for (items, inode) in inodes {
            items.dirty().put_back([(inode.ino, inode.clone())]);
            items.dirty().note_orphan();
        }
        if let Some(until) = until {
            pass.until = Some(until);
            pass.replaced
                .retain(|((root, ino), _)| (*root, *ino) < (until.0, until.1));
        }
        pass.limit = pass.limit.max(2 * self.core.dirty_bytes());
    }

    /// Removes the upper half of its entries from a directory, and all items after them. Returns
    /// where they begin.
    fn split(&self, items: &ItemStore, dir: &Inode) -> Option<Place> {
        let mut state = dir.write();
        let entries: Vec<u64> = state
            .current
            .range(Kind::DirIndex, 0)
            .map(|(index, _)| index)
            .collect();
        let middle = entries.get(entries.len().div_ceil(2)).copied()?;
        let cut = (Kind::DirIndex, middle);
        let behind: Vec<(Kind, u64)> = state
            .current
            .iter()
            .map(|(at, _)| at)
            .filter(|at| *at >= cut && at.0 != Kind::Orphan)
            .collect();
        for (kind, offset) in behind {
            if let Some(slot) = state.current.get(kind, offset) {
                self.core.reservations.add_memory(-memory_of(&slot.vector));
            }
            state.current.remove(kind, offset);
        }
        // The pass that takes an entry also adds its name.
        state.trim_names(std::iter::empty());
        Some((items.root(), dir.ino, Kind::DirIndex as u8, middle))
    }

    /// Merges the items of a pass into the index, and changes of `roots` if it is the last pass
    /// before them. The log's tail does not move, because later passes need the log.
    fn merge_pass(&self, seq: u64, pass: Pass, roots: Option<&RootItems>) -> Result<()> {
        let heads = self.take_heads();
        let mut unused = self.not_referred(&heads, pass.replaced);
        let memory = self.core.reservations.take_totals().memory;
        unused.extend(
            self.core
                .merger
                .merge_replayed(self.core, seq, (heads, memory), roots)?,
        );
        self.hold_back(unused);
        Ok(())
    }

    /// Logs how to open a damaged volume read-only without a merge.
    fn explain_failed_pass(&self, error: &Error) {
        if self.core.read_only && matches!(error, Error::Corrupt(_) | Error::NoSpace) {
            tracing::warn!(
                "the log needs more memory than the budget of {} bytes for it, and cannot be merged; \
                 with a larger budget (`cairnfs mount -o ro,cache=SIZE`) it is replayed in memory",
                self.core.limits.replay
            );
        }
    }

    /// Keeps blocks that the log refers to, but that are not in use any more, unavailable until a
    /// merge has moved the log's tail.
    fn hold_back(&self, unused: Vec<BlockRun>) {
        self.core.merger.backlog().add_pending_free(&unused);
        let hold = self.core.journal.cil().hold();
        hold.insert(&mut SmallVec::new(), &mut unused.into(), 0);
    }

    /// The blocks of replaced extents that no replayed extent refers to.
    fn not_referred(
        &self,
        heads: &[HeadInput],
        replaced: Vec<((u32, u64), BlockRun)>,
    ) -> Vec<BlockRun> {
        if replaced.is_empty() {
            return Vec::new();
        }
        let mut referred = Vec::new();
        for (_, inode) in heads.iter().flat_map(|head| &head.inodes) {
            let state = inode.read();
            for (_, slot) in state.current.range(Kind::Extent, 0) {
                referred.extend(slot.vector.with(|v| v.and_then(run_of)));
            }
        }
        subtract_runs(
            replaced.into_iter().map(|(_, run)| run).collect(),
            &referred,
        )
    }

    fn replay_entry(&self, seq: u64, entry: &Entry<'_>, pass: &mut Pass) -> Result<()> {
        if entry.delete && is_injected(InjectedFault::DeletionsNotReplayed) {
            return Ok(());
        }
        let key = entry.key;
        let items = self.head(seq, entry)?;
        items.dirty().note_change(seq);
        let ino = match key.kind {
            Kind::Orphan => {
                // A later merge processes the replayed orphan items, if none does during replay.
                items.dirty().note_orphan();
                key.offset
            }
            Kind::DirName | Kind::SharedValue | Kind::Root => {
                let found = format!("{:?}", key.kind);
                return Err(bad_entry(seq, &key, "a kind that is logged", found));
            }
            _ => key.object,
        };
        let inode = items.table().get_or_new(ino);
        let mut state = inode.write();
        if let Err(found) = self.replay_meaning(&items, (ino, &mut *state), entry) {
            return Err(bad_entry(seq, &key, "a sound value", found));
        }
        if key.kind == Kind::Inode && entry.delete {
            inode.set_ready(false);
        }
        if key.kind == Kind::Extent && !entry.delete {
            self.claim(extent_run(seq, entry)?)?;
        }
        self.core.superblocks.found_ino(ino);
        if state.current.is_empty() {
            state.epoch = self.core.journal.cil().hold().boundary;
            let listed = [(inode.ino, inode.clone())];
            items.dirty().put_back(listed);
        }
        self.replay_slot(&items, seq, (ino, &mut *state), entry, pass);
        Ok(())
    }

    /// The tree that an entry belongs to. The index has every head that the log changes: a head is
    /// made by a context before, which was merged.
    fn head(&self, seq: u64, entry: &Entry<'_>) -> Result<Arc<ItemStore>> {
        let items = match self.core.heads.get(entry.root) {
            Some(items) => Some(items),
            None => self.core.heads.open(entry.root, &self.core.roots).ok(),
        };
        items.filter(|items| items.is_head()).ok_or_else(|| {
            let found = format!("root {}", entry.root);
            bad_entry(
                seq,
                &entry.key,
                "an item of a root that can be written",
                found,
            )
        })
    }

    /// Takes a change of a root, which applies once its whole context was replayed.
    fn replay_root(&self, context: &FoundContext, entry: &Entry<'_>) -> Result<()> {
        let (id, seq) = (entry.key.object, context.seq);
        if !context.roots {
            let expected = "no root in a context that is not marked as having any";
            return Err(bad_entry(seq, &entry.key, expected, format!("root {id}")));
        }
        if entry.delete || entry.key != Key::new(id, Kind::Root, 0) {
            return Err(bad_entry(seq, &entry.key, "a root", "another item".into()));
        }
        let mut root = Root::decode(id, entry.value)
            .map_err(|found| bad_entry(seq, &entry.key, "a root", found))?;
        root.tree.ptr = RawPtr::default();
        self.core.superblocks.found_root(id as u32);
        self.roots.lock().insert(id as u32, root);
        Ok(())
    }

    /// Applies an entry to the inode in memory, except for its slot.
    fn replay_meaning(
        &self,
        items: &ItemStore,
        (ino, state): (u64, &mut InodeState),
        entry: &Entry<'_>,
    ) -> std::result::Result<(), String> {
        state.indexed = true;
        let index = entry.key.offset;
        match (entry.key.kind, entry.delete) {
            (Kind::Inode, true) => {
                state.attrs = None;
                state.loaded = true;
            }
            (Kind::Inode, false) => {
                let attrs = Attrs::decode(ino, entry.value).map_err(|e| e.to_string())?;
                state.attrs = Some(attrs);
                state.loaded = true;
                state.persisted = true;
            }
            (Kind::DirIndex, false) => {
                forget_name(items, state, index);
                let hash = items.hash_of(decode_dir_entry(entry.value)?.name);
                items.add_replayed_name(state, hash, index);
            }
            (Kind::DirIndex, true) => {
                entry.value.first_chunk::<8>().ok_or("no name hash")?;
                forget_name(items, state, index);
            }
            (Kind::Extent, false) => {
                decode_extent_at(index, entry.value, &self.core.geometry)?;
            }
            (Kind::Xattr, false) => {
                decode_xattrs(entry.value)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn replay_slot(
        &self,
        items: &ItemStore,
        seq: u64,
        (ino, state): (u64, &mut InodeState),
        entry: &Entry<'_>,
        pass: &mut Pass,
    ) {
        let key = &entry.key;
        let shared = items.shared_part(entry);
        let change = match &shared {
            _ if entry.delete => Change::Delete(entry.value),
            Some((own, value)) => Change::Join(own, value),
            None => Change::Put(entry.value),
        };
        let vector = LogVector::new(entry.root, *key, seq, &change);
        let mut memory = memory_of(&vector);
        if let Some(old) = state.current.get(key.kind, key.offset) {
            memory -= memory_of(&old.vector);
            if key.kind == Kind::Extent {
                let run = old.vector.with(|v| v.and_then(run_of));
                let inherited = |value: &[u8]| {
                    let birth = decode_extent(value).map(|(raw, _)| raw.birth.get());
                    birth.is_ok_and(|birth| items.is_inherited(birth))
                };
                let held = old.vector.with(|v| v.is_some_and(inherited));
                pass.replaced
                    .extend(run.filter(|_| !held).map(|run| ((entry.root, ino), run)));
            }
        }
        self.core.reservations.add_memory(memory);
        state.current.insert(
            key.kind,
            key.offset,
            Slot {
                vector,
                exists_below: true,
            },
        );
    }
}

/// Removes the name that an earlier log entry gave a directory entry.
fn forget_name(items: &ItemStore, state: &mut InodeState, index: u64) {
    let hash = |value: &[u8]| {
        let entry = decode_dir_entry(value).ok()?;
        Some(items.hash_of(entry.name))
    };
    let slot = state.current.get(Kind::DirIndex, index);
    if let Some(hash) = slot.and_then(|slot| slot.vector.with(|value| value.and_then(hash))) {
        state.remove_name(hash, index);
    }
}

/// The blocks of an extent item.
fn run_of(value: &[u8]) -> Option<BlockRun> {
    let (raw, _) = decode_extent(value).ok()?;
    Some(BlockRun {
        start: raw.block.get(),
        len: u64::from(raw.len.get()),
    })
}

/// The blocks of an extent that a log entry puts.
fn extent_run(seq: u64, entry: &Entry<'_>) -> Result<BlockRun> {
    run_of(entry.value)
        .ok_or_else(|| bad_entry(seq, &entry.key, "an extent", "another value".into()))
}

fn bad_entry(seq: u64, key: &Key, expected: &str, found: String) -> Error {
    let expected = format!("{expected} (context {seq}, key {key:?})");
    Error::corrupt(0, "log entry", expected, found)
}

/// Bytes of memory of an inode's current set, as replay counts it.
fn set_memory(state: &InodeState) -> i64 {
    let slots = state.current.iter();
    slots.map(|(_, slot)| memory_of(&slot.vector)).sum()
}

/// Bytes by which the index may grow with the current set of an inode.
fn set_growth(state: &InodeState) -> u64 {
    let slots = state.current.iter();
    slots.map(|(_, slot)| slot.vector.growth() as u64).sum()
}

/// Bytes by which the index shrinks with it, as far as known.
fn set_shrinkage(state: &InodeState) -> u64 {
    let slots = state.current.iter();
    let deletions = slots.filter(|(_, slot)| slot.vector.is_deletion());
    deletions
        .map(|((kind, _), _)| shrinkage(kind, state.attrs.as_ref()))
        .sum()
}
