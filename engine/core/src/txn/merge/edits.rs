//! The edits that a merge applies to the index: the sealed sets in key order, and the changes
//! derived from them.
//!
//! Derived state is computed only here, from the value in the index and the final value of each
//! touched key: the name items of directories, the blocks that the persistent free space gains and
//! loses, and the use counts of shared values. Live merges and merges of a replayed log use the
//! same code.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::index::{Edits, Tree};
use crate::inode::Inode;
use crate::inode::dirty::{DirtySet, Sealed};
use crate::journal::vector::LogVector;
use crate::space::BlockRun;
use crate::txn::commit::is_inherited;
use crate::txn::drop::GivenUp;
use crate::txn::items::{ItemStore, bad_item};
use crate::txn::merge::old_names::{Indexes, OldNames, change_names};
use crate::txn::merge::shared::{SharedEdits, StepValues};
use crate::values::Value;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::MAX_OWN_VALUE;
use cairnfs_disk::format::item::{decode_dir_entry, decode_extent};
use cairnfs_disk::format::key::{Key, Kind, ORPHANS};
use cairnfs_disk::format::xattr::{
    StoredValue, XATTR_HEAD, decode_stored_xattrs, decode_xattrs, encode_stored_xattr,
};
use cairnfs_disk::prefetch::prefetch;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

/// Inodes that are prefetched together.
pub(super) const TOGETHER: usize = 16;

/// Changes of the entries whose names share a hash.
#[derive(Debug, Default)]
struct NameChange {
    remove: Indexes,
    add: Indexes,
}

enum Edit {
    Item(Arc<LogVector>),
    /// A new entry at that index, and no other change of its name item; this is the usual case.
    Named(u64),
    Names(Box<NameChange>),
}

/// An entry that was added, changed or removed.
struct Renamed {
    /// The hash of its name.
    hash: u64,
    index: u64,
    removed: bool,
}

impl NameChange {
    fn add(&mut self, entry: &Renamed) {
        if entry.removed {
            self.remove.push(entry.index)
        } else {
            self.add.push(entry.index)
        }
    }
}

/// Blocks that the index loses and gains. All losses are applied before all gains. Blocks that
/// another root has too stay in use and are not among them.
#[derive(Debug, Default)]
pub struct ImageChange {
    /// Blocks that the index stops referring to.
    pub removed: Vec<BlockRun>,
    /// Blocks that the index starts referring to.
    pub added: Vec<BlockRun>,
    /// Of the blocks that another root has too, those that a drop of that root must know.
    pub given_up: GivenUp,
}

impl ImageChange {
    /// Adds the changes of another tree, which has no block of this one except inherited ones.
    pub fn add(&mut self, mut other: Self) {
        self.removed.append(&mut other.removed);
        self.added.append(&mut other.added);
        self.given_up.add(other.given_up);
    }
}

/// The sealed sets of one head in a merge as edits of the index, delivered in steps. A current set that no
/// later commit has sealed is sealed when the merge reaches its inode, so a merge visits each inode
/// only once before it releases it.
pub struct MergeEdits<'a> {
    /// Inodes that are not processed yet, ascending.
    inodes: &'a [(u64, Arc<Inode>)],
    /// The last context that is merged; `None` during replay, before the first commit.
    boundary: Option<u64>,
    /// How many of the first inodes were prefetched.
    fetched: usize,
    /// Orphan items of all inodes; they belong to an object of their own.
    orphans: Vec<Arc<LogVector>>,
    /// Whether the orphan items were collected.
    collected: bool,
    edits: VecDeque<(Key, Edit)>,
    /// Index nodes that this step has allocated so far, and may allocate.
    taken: &'a AtomicU64,
    limit: u64,
    /// Keys that this step has processed so far.
    keys: u64,
    /// Inode of the last extents processed in this step, and the file block up to which they reach.
    covered: (u64, u64),
    /// Blocks born up to this context belong to other roots too, as the roots were merged before
    /// this merge: what the files gave up before its own boundary no root keeps.
    inherited: u64,
    /// Changes of the persistent free space in this step.
    pub image: ImageChange,
    items: &'a ItemStore,
    /// Keys that a step processes at most.
    step_keys: u64,
    /// Changes of the shared values in this step.
    shared: Arc<StepValues<'a>>,
    /// Names from before this step that are still in the index.
    old_names: OldNames<'a>,
    /// Buffer for the value that was returned last.
    value: Vec<u8>,
}

fn item(vector: Arc<LogVector>) -> (Key, Edit) {
    (vector.key(), Edit::Item(vector))
}

impl<'a> MergeEdits<'a> {
    /// The edits of `inodes`, which are in order of their numbers, up to the context `boundary`.
    /// `taken` counts the nodes that the caller allocates; a step takes at most `step_keys` keys.
    pub fn new(
        (items, step_keys): (&'a ItemStore, u64),
        inodes: &'a [(u64, Arc<Inode>)],
        boundary: Option<u64>,
        taken: &'a AtomicU64,
    ) -> Self {
        Self {
            inodes,
            boundary,
            orphans: Vec::new(),
            collected: false,
            fetched: 0,
            edits: VecDeque::new(),
            taken,
            limit: u64::MAX,
            keys: 0,
            covered: (0, 0),
            inherited: items.merged_inherited(),
            image: ImageChange::default(),
            items,
            step_keys,
            shared: Arc::new(StepValues::new(items, Tree::default())),
            old_names: OldNames::new(items.index(), Tree::default()),
            value: Vec::new(),
        }
    }

    /// The tree of files that they change.
    pub fn items(&self) -> &'a ItemStore {
        self.items
    }

    /// Collects the orphan items, which must be applied before the items of the inodes they refer
    /// to.
    pub fn collect_orphans(&mut self) {
        self.collected = true;
        for together in self.inodes.chunks(TOGETHER) {
            together.iter().for_each(|(_, inode)| inode.prefetch());
            for (_, inode) in together {
                let mut state = inode.write();
                state.seal_up_to(self.boundary);
                if let Some(set) = state.sealed_set() {
                    let orphans = set.range(Kind::Orphan, 0);
                    let vectors = orphans.map(|(_, slot)| slot.vector.clone());
                    self.orphans.extend(vectors);
                }
            }
        }
        self.orphans.sort_unstable_by_key(|vector| vector.key());
    }

    /// Begins a step on `tree` that ends, at the next valid place, once `limit` nodes were
    /// allocated. `given_up` takes what the tree gives up of its parent.
    pub fn begin_step(&mut self, tree: Tree, limit: u64, given_up: GivenUp) {
        self.limit = limit;
        self.keys = 0;
        self.image = ImageChange {
            given_up,
            ..ImageChange::default()
        };
        self.shared = Arc::new(StepValues::new(self.items, tree));
        self.old_names = OldNames::new(self.items.index(), tree);
    }

    /// Takes the old names that the step has not removed from their items yet. They must be applied
    /// within the step.
    pub fn take_old_names(&mut self) -> OldNames<'a> {
        let none = OldNames::new(self.items.index(), Tree::default());
        std::mem::replace(&mut self.old_names, none)
    }

    /// Takes the changes of the shared values in this step, which are applied after all other
    /// edits.
    pub fn take_shared(&mut self) -> Result<SharedEdits<'a>> {
        let none = Arc::new(StepValues::new(self.items, Tree::default()));
        let shared = std::mem::replace(&mut self.shared, none);
        let shared = Arc::into_inner(shared).map(StepValues::into_edits);
        shared.ok_or(Error::Invalid("a part of a step has not ended"))
    }

    /// The inodes that are not processed yet, ascending.
    pub fn inodes(&self) -> &'a [(u64, Arc<Inode>)] {
        self.inodes
    }

    /// Whether the edits may be divided: a step can have all of them, none was taken before, and
    /// committers have reserved for what the index grows.
    pub fn may_divide(&self) -> bool {
        self.step_keys == u64::MAX && self.edits.is_empty() && self.boundary.is_some()
    }

    /// Seals the sets of some of the inodes. Returns for each the number of keys that it changes,
    /// about, and their sum.
    pub fn seal(&self, inodes: &[(u64, Arc<Inode>)]) -> (Vec<u64>, u64) {
        let mut keys = Vec::with_capacity(inodes.len());
        for together in inodes.chunks(TOGETHER) {
            together.iter().for_each(|(_, inode)| inode.prefetch());
            for (_, inode) in together {
                let mut state = inode.write();
                state.seal_up_to(self.boundary);
                let sealed = state.sealed.as_ref();
                keys.push(sealed.map_or(0, |sealed| sealed.keys() as u64));
            }
        }
        let sum = keys.iter().sum();
        (keys, sum)
    }

    /// The edits of some of the inodes, as a part of the step on `tree`.
    pub fn part(&self, inodes: &'a [(u64, Arc<Inode>)], tree: Tree) -> Self {
        Self {
            inodes,
            boundary: self.boundary,
            orphans: Vec::new(),
            collected: self.collected,
            fetched: 0,
            edits: VecDeque::new(),
            taken: self.taken,
            limit: u64::MAX,
            keys: 0,
            covered: (0, 0),
            inherited: self.inherited,
            image: ImageChange {
                given_up: self.image.given_up.of_same_tree(),
                ..ImageChange::default()
            },
            items: self.items,
            step_keys: u64::MAX,
            shared: self.shared.clone(),
            old_names: OldNames::new(self.items.index(), tree),
            value: Vec::new(),
        }
    }

    /// Passes the orphan items on to the part that has their object.
    pub fn pass_orphans(&mut self, part: &mut Self) {
        part.orphans = std::mem::take(&mut self.orphans);
    }

    /// Adds what a part leaves when all of its edits are taken.
    pub fn add(&mut self, part: Self) {
        self.image.add(part.image);
        self.old_names.add(part.old_names);
    }

    /// All edits were taken by parts.
    pub fn end(&mut self) {
        self.inodes = &[];
        self.fetched = 0;
    }

    /// Whether no edits are left for a further step.
    pub fn is_done(&mut self) -> Result<bool> {
        self.fill()?;
        Ok(self.edits.is_empty())
    }

    /// Fills `edits`, so that the next edit, if there is one, is its first.
    fn fill(&mut self) -> Result<()> {
        while self.edits.is_empty() {
            if self.fetched == 0 {
                self.fetch_next();
            }
            let next = self.inodes.first().map(|(ino, _)| *ino);
            if !self.orphans.is_empty() && next.is_none_or(|ino| ino > ORPHANS) {
                let orphans = std::mem::take(&mut self.orphans).into_iter();
                let edits = orphans.map(|vector| (vector.key(), Edit::Item(vector)));
                self.edits.extend(edits);
                return Ok(());
            }
            let Some(((ino, inode), rest)) = self.inodes.split_first() else {
                return Ok(());
            };
            self.inodes = rest;
            self.fetched = self.fetched.saturating_sub(1);
            let sealed = inode.read().sealed.clone();
            match sealed {
                Some(Sealed::Lone(slot)) => self.edits.push_back(item(slot.vector)),
                Some(Sealed::Set(set)) => self.add_set(*ino, &set)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Seals the sets of the next inodes, and prefetches their vectors.
    fn fetch_next(&mut self) {
        let next = || self.inodes.iter().take(TOGETHER);
        next().for_each(|(_, inode)| inode.prefetch());
        for (_, inode) in next() {
            let mut state = inode.write();
            state.seal_up_to(self.boundary);
            state.sealed.iter().for_each(Sealed::prefetch);
        }
        self.fetched = next().count();
    }

    fn add_set(&mut self, ino: u64, set: &DirtySet) -> Result<()> {
        let mut names: Vec<Renamed> = Vec::new();
        let mut later = Vec::new();
        let mut ahead = set.iter();
        for (i, ((kind, _), slot)) in set.iter().enumerate() {
            if i % TOGETHER == 0 {
                let next = ahead.by_ref().take(TOGETHER);
                next.for_each(|(_, slot)| prefetch(&*slot.vector));
            }
            let edit = item(slot.vector.clone());
            match kind {
                Kind::Orphan => assert!(self.collected, "an orphan item that no commit noted"),
                Kind::Inode | Kind::Inline => self.edits.push_back(edit),
                Kind::DirIndex => {
                    names.push(self.renamed(&slot.vector)?);
                    self.edits.push_back(edit);
                }
                _ => later.push(edit),
            }
        }
        // Entries with equal hashes make one edit of their name item.
        names.sort_unstable_by_key(|entry| (entry.hash, entry.index));
        for same in names.chunk_by(|a, b| a.hash == b.hash) {
            let Some(first) = same.first() else { continue };
            let edit = if same.len() == 1 && !first.removed {
                Edit::Named(first.index)
            } else {
                let mut change = NameChange::default();
                same.iter().for_each(|entry| change.add(entry));
                Edit::Names(Box::new(change))
            };
            let key = Key::new(ino, Kind::DirName, first.hash);
            self.edits.push_back((key, edit));
        }
        self.edits.extend(later);
        Ok(())
    }

    fn renamed(&self, vector: &LogVector) -> Result<Renamed> {
        let Key { object, offset, .. } = vector.key();
        let deletion = vector.deletion();
        let hash = match &deletion {
            Some(note) => {
                let hash = note.first_chunk::<8>();
                let none = || bad_entry(object, "a deletion without its name's hash".into());
                u64::from_le_bytes(*hash.ok_or_else(none)?)
            }
            None => vector.with(|value| self.hash_of(object, value.unwrap_or_default()))?,
        };
        Ok(Renamed {
            hash,
            index: offset,
            removed: deletion.is_some(),
        })
    }

    /// The hash of the name of an entry of `dir`.
    fn hash_of(&self, dir: u64, entry: &[u8]) -> Result<u64> {
        let entry = decode_dir_entry(entry).map_err(|found| bad_entry(dir, found))?;
        Ok(self.items.hash_of(entry.name))
    }

    /// Whether a step may end before this key. It may not end within the reach of an extent already
    /// processed: a block could be recorded as gained in one step and as lost in the other.
    fn may_end_before(&self, key: &Key) -> bool {
        key.kind != Kind::Extent || key.object != self.covered.0 || key.offset >= self.covered.1
    }

    fn note_extent(&mut self, key: &Key, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<()> {
        if self.covered.0 != key.object {
            self.covered = (key.object, 0);
        }
        for (value, gained) in [(old, false), (new, true)] {
            let Some(value) = value else { continue };
            let (raw, _) = decode_extent(value).map_err(|found| {
                Error::corrupt(0, "extent item", format!("inode {}", key.object), found)
            })?;
            let run = BlockRun {
                start: raw.block.get(),
                len: u64::from(raw.len.get()),
            };
            self.covered.1 = self.covered.1.max(key.offset.saturating_add(run.len));
            if is_inherited(raw.birth.get(), self.inherited) {
                self.image.given_up.extent(run, raw.birth.get(), gained);
                continue;
            }
            if gained {
                self.image.added.push(run);
            } else {
                self.image.removed.push(run);
            }
        }
        Ok(())
    }
}

impl MergeEdits<'_> {
    /// The attributes of an item as they are stored in the index. Counts their uses of shared
    /// values.
    fn attributes(
        &mut self,
        key: &Key,
        vector: &LogVector,
        old: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        let mut stored = Vec::new();
        if let Some((own, value)) = vector.parts() {
            let name = own.get(XATTR_HEAD..).unwrap_or_default();
            self.attribute(&mut stored, name, value.bytes(), Some(&value))?;
        } else {
            let logged = vector.with(|value| value.map(<[u8]>::to_vec));
            let list = logged.as_deref().map(decode_xattrs).transpose();
            for xattr in list.map_err(bad_item(0, key.object))?.unwrap_or_default() {
                self.attribute(&mut stored, xattr.name, xattr.value, None)?;
            }
        }
        if let Some(old) = old {
            for xattr in decode_stored_xattrs(old).map_err(bad_item(0, key.object))? {
                if let StoredValue::Shared(place) = xattr.value {
                    self.shared.lose(place);
                }
            }
        }
        Ok((!stored.is_empty()).then_some(stored))
    }

    fn attribute(
        &mut self,
        stored: &mut Vec<u8>,
        name: &[u8],
        value: &[u8],
        known: Option<&Value>,
    ) -> Result<()> {
        let mut held = StoredValue::Own(value);
        if value.len() > MAX_OWN_VALUE {
            let place = match known {
                Some(known) => self.shared.gain(known)?,
                None => self.shared.gain(&self.items.values().intern(value))?,
            };
            held = place.map_or(held, StoredValue::Shared);
        }
        encode_stored_xattr(stored, name, &held);
        Ok(())
    }
}

fn bad_entry(dir: u64, found: String) -> Error {
    Error::corrupt(0, "directory entry", format!("directory {dir}"), found)
}

impl Edits for MergeEdits<'_> {
    fn peek(&mut self) -> Result<Option<Key>> {
        self.fill()?;
        let next = self.edits.front().map(|(key, _)| *key);
        let Some(key) = next.into_iter().chain(self.old_names.first()).min() else {
            return Ok(None);
        };
        let behind = self.shared.cost() + self.old_names.cost();
        let taken = self.taken.load(Ordering::Relaxed).saturating_add(behind);
        let full = taken >= self.limit || self.keys >= self.step_keys;
        if full && self.may_end_before(&key) {
            return Ok(None);
        }
        Ok(Some(key))
    }

    fn take(&mut self, key: &Key, old: Option<&[u8]>) -> Result<Option<Cow<'_, [u8]>>> {
        let lost_names = self.old_names.remove(key);
        let edit = self.edits.pop_front_if(|(next, _)| next == key);
        let edit = edit.map(|(_, edit)| edit);
        if edit.is_none() && lost_names.is_none() {
            return Err(Error::Invalid("an edit was taken twice"));
        }
        self.keys += 1;
        match edit {
            Some(Edit::Item(vector)) => self.take_item(key, &vector, old),
            Some(Edit::Named(index)) if old.is_none() => {
                self.value.clear();
                self.value.extend_from_slice(&index.to_le_bytes());
                Ok(Some(Cow::Borrowed(&self.value)))
            }
            names => {
                let mut change = match names {
                    Some(Edit::Names(change)) => *change,
                    Some(Edit::Named(index)) => NameChange {
                        add: SmallVec::from_slice(&[index]),
                        ..NameChange::default()
                    },
                    _ => NameChange::default(),
                };
                change.remove.extend(lost_names.unwrap_or_default());
                let change = (&*change.remove, &*change.add);
                Ok(change_names(key, old, change)?.map(Cow::Owned))
            }
        }
    }
}

impl MergeEdits<'_> {
    fn take_item(
        &mut self,
        key: &Key,
        vector: &LogVector,
        old: Option<&[u8]>,
    ) -> Result<Option<Cow<'_, [u8]>>> {
        if key.kind == Kind::Xattr {
            return Ok(self.attributes(key, vector, old)?.map(Cow::Owned));
        }
        if let (Kind::DirIndex, Some(old)) = (key.kind, old) {
            self.note_old_name(key, vector, old)?;
        }
        let mut bytes = std::mem::take(&mut self.value);
        bytes.clear();
        let put = vector.with(|value| value.map(|v| bytes.extend_from_slice(v)).is_some());
        self.value = bytes;
        if key.kind == Kind::Extent {
            let new = put.then(|| self.value.clone());
            self.note_extent(key, old, new.as_deref())?;
        }
        Ok(put.then_some(Cow::Borrowed(&self.value)))
    }

    /// Records the old name of an entry that is changed or deleted: if the index has the entry
    /// under another name, it must be removed from the item of that name within this step.
    fn note_old_name(&mut self, key: &Key, vector: &LogVector, old: &[u8]) -> Result<()> {
        let before = self.hash_of(key.object, old)?;
        if before == self.renamed(vector)?.hash {
            return Ok(());
        }
        let item = Key::new(key.object, Kind::DirName, before);
        self.old_names.note(item, key.offset)
    }
}
