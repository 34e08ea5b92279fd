//! What a merge brings into the index: the frozen sets in key order, and what follows from them.
//!
//! Derived state is computed here and nowhere else, from the value in the index and the final value
//! of each touched key: the name items of directories, which blocks the persistent free space gains
//! and loses, and how often values that stand once are used. Live merges and merges of a replayed log use it alike.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::deliberate::{Deliberate, happens};
use crate::error::{Error, Result};
use crate::fetch::fetch;
use crate::format::MAX_OWN_VALUE;
use crate::format::checksum::name_hash;
use crate::format::item::{decode_dir_entry, decode_dir_name, decode_extent, encode_dir_name};
use crate::format::key::{Key, Kind, ORPHANS};
use crate::format::xattr::{
    StoredValue, XATTR_HEAD, decode_stored_xattrs, decode_xattrs, encode_stored_xattr,
};
use crate::index::{Edits, Tree};
use crate::inode::Inode;
use crate::inode::dirty::{DirtySet, Frozen};
use crate::journal::vector::LogVector;
use crate::space::Run;
use crate::txn::Core;
use crate::txn::attributes::bad_item;
use crate::txn::merge::TOGETHER;
use crate::txn::shared::SharedEdits;
use crate::values::Value;

/// Changes of the entries whose names share a hash.
#[derive(Debug, Default)]
struct NameChange {
    remove: SmallVec<[u64; 1]>,
    add: SmallVec<[u64; 1]>,
}

enum Edit {
    Item(Arc<LogVector>),
    /// A new entry at that index, and no other change of its name item: so nearly all are.
    Named(u64),
    Names(Box<NameChange>),
}

/// What became of one entry.
struct Renamed {
    /// The hash of its name.
    hash: u64,
    index: u64,
    removed: bool,
}

impl NameChange {
    fn add(&mut self, entry: &Renamed) {
        match entry.removed {
            true => self.remove.push(entry.index),
            false => self.add.push(entry.index),
        }
    }
}

/// Blocks that the index loses and gains; all losses are applied before all gains.
#[derive(Debug, Default)]
pub struct ImageChange {
    /// No longer referred to.
    pub removed: Vec<Run>,
    /// Newly referred to.
    pub added: Vec<Run>,
}

/// The frozen sets of a merge as edits of the index, delivered in steps. What no later commit has
/// frozen is frozen when its turn comes, so a merge goes through all inodes but once before it lets go.
pub struct MergeEdits<'a> {
    hash_seed: u64,
    /// Inodes whose turn has not come, ascending.
    inodes: &'a [(u64, Arc<Inode>)],
    /// The last context that is merged; none while nobody commits yet.
    boundary: Option<u64>,
    /// The first of the inodes, whose memory was fetched.
    fetched: usize,
    /// Orphan items of all of them, which are an object of their own.
    orphans: Vec<Arc<LogVector>>,
    /// Whether they were looked for.
    collected: bool,
    edits: VecDeque<(Key, Edit)>,
    /// Index nodes that this step has taken so far, and may take.
    taken: &'a Cell<u64>,
    limit: u64,
    /// Keys that this step has taken so far.
    keys: u64,
    /// File block up to which extents taken in this step reach, and their inode.
    covered: (u64, u64),
    /// What this step changes in the persistent free space.
    pub image: ImageChange,
    core: &'a Core,
    /// What this step changes of the values that stand once.
    shared: SharedEdits<'a>,
    /// The value taken last.
    value: Vec<u8>,
}

fn item(vector: Arc<LogVector>) -> (Key, Edit) {
    (vector.key(), Edit::Item(vector))
}

impl<'a> MergeEdits<'a> {
    /// The edits of inodes, whose numbers ascend, up to the context `boundary`. `taken` counts the nodes
    /// that the caller allocates.
    pub fn new(
        core: &'a Core,
        inodes: &'a [(u64, Arc<Inode>)],
        boundary: Option<u64>,
        taken: &'a Cell<u64>,
    ) -> Self {
        Self {
            hash_seed: core.hash_seed,
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
            image: ImageChange::default(),
            core,
            shared: core.shared_edits(Tree::default()),
            value: Vec::new(),
        }
    }

    /// Looks for orphan items, whose turn comes before that of the inodes they tell of.
    pub fn collect_orphans(&mut self) {
        self.collected = true;
        for together in self.inodes.chunks(TOGETHER) {
            together.iter().for_each(|(_, inode)| inode.fetch());
            for (_, inode) in together {
                let mut state = inode.write();
                state.freeze_up_to(self.boundary);
                if let Some(set) = state.frozen_set() {
                    let orphans = set.range(Kind::Orphan, 0);
                    let vectors = orphans.map(|(_, slot)| slot.vector.clone());
                    self.orphans.extend(vectors);
                }
            }
        }
        self.orphans.sort_unstable_by_key(|vector| vector.key());
    }

    /// Begins a step on `tree` that ends, at the next sound place, once `limit` nodes were taken.
    pub fn begin_step(&mut self, tree: Tree, limit: u64) {
        self.limit = limit;
        self.keys = 0;
        self.image = ImageChange::default();
        self.shared = self.core.shared_edits(tree);
    }

    /// What the step changes of the values that stand once, to be applied behind all else.
    pub fn take_shared(&mut self) -> SharedEdits<'a> {
        let none = self.core.shared_edits(Tree::default());
        std::mem::replace(&mut self.shared, none)
    }

    /// Whether nothing is left for a further step.
    pub fn is_done(&mut self) -> Result<bool> {
        self.fill()?;
        Ok(self.edits.is_empty())
    }

    /// Makes sure that the next edit, if there is one, stands first.
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
            let frozen = inode.read().frozen.clone();
            match frozen {
                Some(Frozen::Lone(slot)) => self.edits.push_back(item(slot.vector)),
                Some(Frozen::Set(set)) => self.add_set(*ino, &set)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Freezes the next inodes, and fetches what they hold.
    fn fetch_next(&mut self) {
        let next = || self.inodes.iter().take(TOGETHER);
        next().for_each(|(_, inode)| inode.fetch());
        for (_, inode) in next() {
            let mut state = inode.write();
            state.freeze_up_to(self.boundary);
            state.frozen.iter().for_each(Frozen::fetch);
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
                next.for_each(|(_, slot)| fetch(&*slot.vector));
            }
            let edit = item(slot.vector.clone());
            match kind {
                Kind::Orphan => assert!(self.collected, "an orphan item nobody told of"),
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
            let edit = match same.len() == 1 && !first.removed {
                true => Edit::Named(first.index),
                false => {
                    let mut change = NameChange::default();
                    same.iter().for_each(|entry| change.add(entry));
                    Edit::Names(Box::new(change))
                }
            };
            let key = Key::new(ino, Kind::DirName, first.hash);
            self.edits.push_back((key, edit));
        }
        self.edits.extend(later);
        Ok(())
    }

    fn renamed(&self, vector: &LogVector) -> Result<Renamed> {
        let index = vector.key().offset;
        let dir = vector.key().object;
        let bad =
            |found: String| Error::corrupt(0, "directory entry", format!("directory {dir}"), found);
        let deletion = vector.deletion();
        let hash = match &deletion {
            Some(note) => note
                .first_chunk::<8>()
                .map(|hash| u64::from_le_bytes(*hash))
                .ok_or_else(|| bad("a deletion without its name's hash".into()))?,
            None => vector.with(|value| {
                decode_dir_entry(value.unwrap_or_default())
                    .map(|entry| name_hash(self.hash_seed, entry.name))
                    .map_err(bad)
            })?,
        };
        Ok(Renamed {
            hash,
            index,
            removed: deletion.is_some(),
        })
    }

    /// A step may end before this key: never inside the reach of an extent already taken, where the
    /// same block could stand in one half as gained and in the other as lost.
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
            let run = Run {
                start: raw.block.get(),
                len: u64::from(raw.len.get()),
            };
            self.covered.1 = self.covered.1.max(key.offset.saturating_add(run.len));
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
    /// The attributes of an item as the index has them; their uses of values are counted.
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
                None => self.shared.gain(&self.core.values.intern(value))?,
            };
            held = place.map_or(held, StoredValue::Shared);
        }
        encode_stored_xattr(stored, name, &held);
        Ok(())
    }
}

impl Core {
    fn shared_edits(&self, tree: Tree) -> SharedEdits<'_> {
        SharedEdits::new(self.hash_seed, &self.index, &self.values, tree)
    }
}

fn change_names(key: &Key, old: Option<&[u8]>, change: &NameChange) -> Result<Option<Vec<u8>>> {
    let mut indexes: Vec<u64> = match old {
        Some(old) => decode_dir_name(old)
            .map_err(|found| {
                Error::corrupt(0, "name item", format!("directory {}", key.object), found)
            })?
            .collect(),
        None => Vec::new(),
    };
    let late = happens(Deliberate::NamesAddedFirst);
    indexes.retain(|i| late || !change.remove.contains(i));
    for index in &change.add {
        if !indexes.contains(index) {
            indexes.push(*index);
        }
    }
    indexes.retain(|i| !late || !change.remove.contains(i));
    Ok((!indexes.is_empty()).then(|| encode_dir_name(&indexes)))
}

impl Edits for MergeEdits<'_> {
    fn peek(&mut self) -> Result<Option<Key>> {
        self.fill()?;
        let Some((key, _)) = self.edits.front() else {
            return Ok(None);
        };
        let taken = self.taken.get().saturating_add(self.shared.cost());
        let full = taken >= self.limit || self.keys >= self.core.limits.step_keys;
        if full && self.may_end_before(key) {
            return Ok(None);
        }
        Ok(Some(*key))
    }

    fn take(&mut self, key: &Key, old: Option<&[u8]>) -> Result<Option<Cow<'_, [u8]>>> {
        let Some((_, edit)) = self.edits.pop_front() else {
            return Err(Error::Invalid("an edit was taken twice"));
        };
        self.keys += 1;
        let vector = match edit {
            Edit::Item(vector) => vector,
            Edit::Named(index) if old.is_none() => {
                self.value.clear();
                self.value.extend_from_slice(&index.to_le_bytes());
                return Ok(Some(Cow::Borrowed(&self.value)));
            }
            Edit::Named(index) => {
                let change = NameChange {
                    add: SmallVec::from_slice(&[index]),
                    ..NameChange::default()
                };
                return Ok(change_names(key, old, &change)?.map(Cow::Owned));
            }
            Edit::Names(change) => return Ok(change_names(key, old, &change)?.map(Cow::Owned)),
        };
        if key.kind == Kind::Xattr {
            return Ok(self.attributes(key, &vector, old)?.map(Cow::Owned));
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
}
