//! The changes in the log, and the logical state: the index with these changes applied.
//!
//! Items arrive in key order, those of the index from a walk of the tree. Name items are never
//! logged; their changes are derived from those of the entries, removals before additions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use cairnfs_disk::error::Result;
use cairnfs_disk::format::checksum::name_hash;
use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::item::{
    decode_dir_entry, decode_dir_name, decode_extent, decode_extent_at, decode_inode,
    encode_dir_name,
};
use cairnfs_disk::format::key::{Key, Kind, VOLUME_ROOT};
use cairnfs_disk::format::numbers::Given;
use cairnfs_disk::format::record::Entry;
use cairnfs_disk::format::root::Root;
use cairnfs_disk::format::xattr::decode_xattrs;

use crate::blocks::BlockSet;
use crate::given_up::{Mapped, Replaced};
use crate::holes::KeyRange;
use crate::report::Ledger;
use crate::visit::{Item, Visitor};

/// The final change of a key.
enum Change {
    Put { value: Box<[u8]>, block: u64 },
    Delete { name_hash: Option<u64> },
}

#[derive(Default, Clone)]
struct NameChange {
    remove: BTreeSet<u64>,
    add: BTreeSet<u64>,
}

impl NameChange {
    /// The changed value; an invalid value is kept as it is, to be reported.
    fn apply(&self, indexed: &[u8]) -> Vec<u8> {
        let mut list: Vec<u64> = match decode_dir_name(indexed) {
            Ok(list) => list.collect(),
            Err(_) if indexed.is_empty() => Vec::new(),
            Err(_) => return indexed.to_vec(),
        };
        list.retain(|index| !self.remove.contains(index));
        for index in &self.add {
            if !list.contains(index) {
                list.push(*index);
            }
        }
        encode_dir_name(&list)
    }
}

type Names = BTreeMap<Key, NameChange>;

/// The changes in the log, of each root.
#[derive(Default)]
pub(crate) struct Overlays {
    of: BTreeMap<u32, Overlay>,
    /// What the log does to roots, in its order.
    pub(crate) steps: Vec<RootStep>,
}

/// A part of the log that ends with a change of roots, or the rest behind the last one.
#[derive(Default)]
pub(crate) struct RootStep {
    /// The roots whose files it changes, each with a log block that does.
    pub(crate) files: BTreeMap<u32, u64>,
    /// The root items at its end.
    pub(crate) changes: BTreeMap<u32, Root>,
    /// The context that they close, and a log block of it.
    pub(crate) end: Option<(u64, u64)>,
}

impl Overlays {
    /// Takes an entry of the context `seq`, as [`Overlay::apply`] does. `roots` tells whether the
    /// context is marked as one that ends with changes of roots.
    pub(crate) fn apply(
        &mut self,
        entry: &Entry<'_>,
        (seq, roots): (u64, bool),
        block: u64,
        geometry: &Geometry,
    ) -> Result<(), String> {
        let ended = |step: &RootStep| step.end.is_some_and(|(end, _)| end != seq);
        if self.steps.last().is_none_or(ended) {
            self.steps.push(RootStep::default());
        }
        let Some(step) = self.steps.last_mut() else {
            return Ok(());
        };
        if entry.root != VOLUME_ROOT {
            step.files.entry(entry.root).or_insert(block);
            let before = self.steps.iter().rev().nth(1).and_then(|step| step.end);
            let overlay = self.of.entry(entry.root).or_default();
            overlay.apply(entry, block, geometry)?;
            check_birth(entry, seq)?;
            overlay.note_old(entry, before.map_or(0, |(end, _)| end), geometry);
            return Ok(());
        }
        let id = entry.key.object;
        if entry.delete || entry.key != Key::new(id, Kind::Root, 0) {
            return Err(format!("{:?}, which is no root", entry.key));
        }
        if !roots {
            return Err(format!(
                "root {id} in a context that is not marked as having any"
            ));
        }
        step.changes
            .insert(id as u32, Root::decode(id, entry.value)?);
        step.end = Some((seq, block));
        Ok(())
    }

    /// Derives the changes of the name items, after all entries have been taken.
    pub(crate) fn derive_names(&mut self, hash_seed: u64) {
        let all = self.of.values_mut();
        all.for_each(|overlay| overlay.derive_names(hash_seed));
    }

    /// Takes the changes of the files of a root.
    pub(crate) fn take(&mut self, root: u32) -> Overlay {
        self.of.remove(&root).unwrap_or_default()
    }
}

/// The changes in the log to the files of one root: the final value of each key.
#[derive(Default)]
pub(crate) struct Overlay {
    changes: BTreeMap<Key, Change>,
    /// The extents that the log added and replaced.
    pub(crate) replaced: Replaced,
    /// Blocks of all extents in the log so far.
    logged: Option<BlockSet>,
    /// Blocks of extents that are older than a change of roots before them in the log, which nothing
    /// in the log had before: the index has them, or a snapshot would lack what it seems to share.
    pub(crate) old: Vec<Mapped>,
    names: Names,
}

impl Overlay {
    /// Takes an entry; a later one with the same key wins. A replaced value is not in the logical
    /// state, but a replay reads it, so it is checked here.
    fn apply(&mut self, entry: &Entry<'_>, block: u64, geometry: &Geometry) -> Result<(), String> {
        if matches!(
            entry.key.kind,
            Kind::DirName | Kind::SharedValue | Kind::Root
        ) {
            return Err(format!("a logged item of kind {:?}", entry.key.kind));
        }
        let change = if entry.delete {
            let name_hash = entry.value.as_array().map(|hash| u64::from_le_bytes(*hash));
            if name_hash.is_some() != (entry.key.kind == Kind::DirIndex)
                || (name_hash.is_none() && !entry.value.is_empty())
            {
                let (kind, len) = (entry.key.kind, entry.value.len());
                return Err(format!("a deletion of a {kind:?} item with {len} bytes"));
            }
            Change::Delete { name_hash }
        } else {
            let value = entry.value.into();
            Change::Put { value, block }
        };
        let Some(Change::Put { value, .. }) = self.changes.insert(entry.key, change) else {
            return Ok(());
        };
        check_value(&entry.key, &value, geometry)
            .map_err(|why| format!("{:?}, which is replaced later: {why}", entry.key))?;
        if let (Kind::Extent, Ok((raw, _))) = (entry.key.kind, decode_extent(&value)) {
            let extents = self.replaced.entry(entry.key.object).or_default();
            extents.push(Mapped::new(entry.key.object, entry.key.offset, &raw));
        }
        Ok(())
    }

    /// Takes the blocks of an extent; `boundary` is the last change of roots before it in the log.
    fn note_old(&mut self, entry: &Entry<'_>, boundary: u64, geometry: &Geometry) {
        if entry.key.kind != Kind::Extent || entry.delete {
            return;
        }
        let Ok((raw, _)) = decode_extent_at(entry.key.offset, entry.value, geometry) else {
            return;
        };
        let extent = Mapped::new(entry.key.object, entry.key.offset, &raw);
        let logged = self.logged.get_or_insert_with(|| BlockSet::new(geometry));
        if extent.birth <= boundary {
            let known = |nth: &u64| logged.has(extent.block + nth);
            let mut nth = 0;
            while let Some(from) = (nth..extent.len).find(|nth| !known(nth)) {
                nth = (from..extent.len).find(known).unwrap_or(extent.len);
                self.old.push(extent.part(from, nth));
            }
        }
        logged.insert(extent.block, extent.len);
    }

    /// Derives the changes of the name items, after all entries have been taken.
    fn derive_names(&mut self, hash_seed: u64) {
        for (key, change) in &self.changes {
            if key.kind != Kind::DirIndex {
                continue;
            }
            match change {
                Change::Put { value, .. } => {
                    if let Ok(entry) = decode_dir_entry(value) {
                        let name = name_key(key.object, name_hash(hash_seed, entry.name));
                        self.names.entry(name).or_default().add.insert(key.offset);
                    }
                }
                Change::Delete { name_hash } => {
                    if let Some(hash) = name_hash {
                        let name = name_key(key.object, *hash);
                        let change = self.names.entry(name).or_default();
                        change.remove.insert(key.offset);
                    }
                }
            }
        }
    }

    /// Adds the inode numbers among the items that the log adds.
    pub(crate) fn add_numbers(&self, given: &mut Given) {
        let puts = self.changes.iter();
        puts.filter(|(k, c)| k.kind == Kind::Inode && matches!(c, Change::Put { .. }))
            .for_each(|(k, _)| given.add(k.object));
    }
}

/// Checks that an extent was born in its context or before: a snapshot that the log makes between
/// the two would not have it.
fn check_birth(entry: &Entry<'_>, seq: u64) -> Result<(), String> {
    let extent = if entry.key.kind == Kind::Extent && !entry.delete {
        decode_extent(entry.value).ok()
    } else {
        None
    };
    match extent.map(|(raw, _)| raw.birth.get()) {
        Some(birth) if birth > seq => {
            let at = entry.key;
            Err(format!("{at:?} in context {seq}, born in context {birth}"))
        }
        _ => Ok(()),
    }
}

/// Checks that a value can be decoded.
fn check_value(key: &Key, value: &[u8], geometry: &Geometry) -> Result<(), String> {
    match key.kind {
        Kind::Inode => decode_inode(value).map(|_| ()),
        Kind::DirIndex => decode_dir_entry(value).map(|_| ()),
        Kind::Extent => decode_extent_at(key.offset, value, geometry).map(|_| ()),
        Kind::Xattr => decode_xattrs(value).map(|_| ()),
        _ => Ok(()),
    }
}

fn name_key(dir: u64, hash: u64) -> Key {
    Key::new(dir, Kind::DirName, hash)
}

/// Receives the logical state.
pub(crate) trait Sink {
    /// Every item of the index, changed by the log or not. It precedes [`Sink::item`], which only
    /// gets unchanged items.
    fn indexed(&mut self, item: &Item<'_>, changed: bool, ledger: &mut Ledger<'_>);
    /// An item of the logical state, in key order.
    fn item(&mut self, item: &Item<'_>, ledger: &mut Ledger<'_>) -> Result<()>;
    /// A range of keys that cannot be read.
    fn hole(&mut self, hole: KeyRange);
}

/// Merges the changes of the log with the items of a walk.
pub(crate) struct Merge<'a, S> {
    overlay: &'a Overlay,
    names: Names,
    hash_seed: u64,
    /// Key of the last item or change delivered.
    last: Option<Key>,
    pub(crate) sink: &'a mut S,
}

impl<'a, S: Sink> Merge<'a, S> {
    pub(crate) fn new(overlay: &'a Overlay, hash_seed: u64, sink: &'a mut S) -> Self {
        Self {
            overlay,
            names: overlay.names.clone(),
            hash_seed,
            last: None,
            sink,
        }
    }

    /// Delivers the items that the log adds after the last item of the index.
    pub(crate) fn finish(mut self, ledger: &mut Ledger<'_>) -> Result<()> {
        self.advance(Bound::Unbounded, ledger)
    }

    /// Delivers the items of the log after the last key, up to `end`.
    fn advance(&mut self, end: Bound<Key>, ledger: &mut Ledger<'_>) -> Result<()> {
        if let (Some(last), Bound::Excluded(end)) = (self.last, end)
            && last >= end
        {
            return Ok(());
        }
        loop {
            let start = self.last.map_or(Bound::Unbounded, Bound::Excluded);
            let range = (start, end);
            let change = self.overlay.changes.range(range).next();
            let name = self.names.range(range).next();
            match (change, name) {
                (Some((key, change)), name) if name.is_none_or(|(n, _)| key < n) => {
                    self.last = Some(*key);
                    self.deliver(*key, change, ledger)?;
                }
                (_, Some((key, _))) => {
                    let key = *key;
                    self.last = Some(key);
                    self.deliver_name(key, &[], None, ledger)?;
                }
                _ => return Ok(()),
            }
        }
    }

    fn deliver(&mut self, key: Key, change: &Change, ledger: &mut Ledger<'_>) -> Result<()> {
        let Change::Put { value, block } = change else {
            return Ok(());
        };
        let item = Item {
            key,
            value,
            block: Some(*block),
            birth: None,
            logged: true,
        };
        self.sink.item(&item, ledger)
    }

    /// Delivers a name item: the value in the index with the derived changes applied.
    fn deliver_name(
        &mut self,
        key: Key,
        indexed: &[u8],
        block: Option<u64>,
        ledger: &mut Ledger<'_>,
    ) -> Result<()> {
        let value = match self.names.get(&key) {
            Some(change) => change.apply(indexed),
            None => indexed.to_vec(),
        };
        let removed = value.is_empty() && (block.is_none() || !indexed.is_empty());
        if removed {
            return Ok(());
        }
        let item = Item {
            key,
            value: &value,
            block,
            birth: None,
            logged: false,
        };
        self.sink.item(&item, ledger)
    }

    /// Removes the old name of a changed entry from its name item.
    fn replaced(&mut self, item: &Item<'_>) {
        let Ok(old) = decode_dir_entry(item.value) else {
            return;
        };
        let hash = name_hash(self.hash_seed, old.name);
        let name = self.names.entry(name_key(item.key.object, hash));
        name.or_default().remove.insert(item.key.offset);
    }
}

impl<S: Sink> Visitor for Merge<'_, S> {
    fn item(&mut self, item: &Item<'_>, ledger: &mut Ledger<'_>) -> Result<()> {
        self.advance(Bound::Excluded(item.key), ledger)?;
        self.last = Some(item.key);
        let overlay = self.overlay;
        let changed = overlay.changes.contains_key(&item.key);
        self.sink.indexed(item, changed, ledger);
        match overlay.changes.get(&item.key) {
            Some(change) => {
                if item.key.kind == Kind::DirIndex {
                    self.replaced(item);
                }
                self.deliver(item.key, change, ledger)
            }
            None if item.key.kind == Kind::DirName => {
                self.deliver_name(item.key, item.value, item.block, ledger)
            }
            None => self.sink.item(item, ledger),
        }
    }

    fn hole(&mut self, hole: KeyRange, ledger: &mut Ledger<'_>) -> Result<()> {
        self.advance(Bound::Excluded(hole.low), ledger)?;
        self.sink.hole(hole);
        Ok(())
    }
}
