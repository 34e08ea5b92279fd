//! Lookup of items of an inode: current set, sealed set, index, in this order.
//!
//! The caller holds the inode's lock, so its sealed set stays during the read. The index is read
//! without a lock: if a merge has replaced the tree meanwhile and reused its blocks, the checksums
//! in the pointers detect that, and the lookup is repeated in the new tree.

use crate::index::{Found, hides};
use crate::inode::dirty::Slot;
use crate::inode::{Inode, InodeState};
use crate::txn::items::ItemStore;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::item::{
    DirEntryRef, decode_dir_entry, decode_dir_name, decode_extent_at,
};
use cairnfs_disk::format::key::{Key, Kind};

/// Items read from the index at a time while a listing merges it with the dirty sets.
const BATCH: usize = 128;
/// Bytes of values that also end such a batch.
const BATCH_BYTES: usize = 1 << 20;

/// Deleted items that a backward search skips at most.
const MAX_TOMBSTONES: usize = 8;

/// Where a scan begins.
#[derive(Debug, Clone, Copy)]
enum Start {
    /// At the first item from this offset on.
    At(u64),
    /// At the last item up to an offset, but not before another one.
    Last { least: u64, upto: u64 },
}

/// What a scan calls with the offset of each item.
type Each<'e> = dyn FnMut(u64, Item) -> Result<bool> + 'e;

/// An item as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its value.
    pub value: Vec<u8>,
    /// Whether it was found below the current set.
    pub below: bool,
    /// The leaf's block if it was found in the index by its key, 0 if it was found by a scan.
    /// Attributes are encoded differently there.
    pub stored: Option<u64>,
}

impl Item {
    /// The item of a slot, `None` if it is deleted there.
    fn of(slot: &Slot, below: bool) -> Option<Item> {
        let value = slot.vector.with(|v| v.map(<[u8]>::to_vec))?;
        Some(Item {
            value,
            below,
            stored: None,
        })
    }
}

/// Where an item was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Current,
    Sealed,
    /// In the leaf at this block.
    Index(u64),
}

impl Place {
    fn below(self) -> bool {
        self != Place::Current
    }
}

impl Start {
    /// The offset from which the sets in memory are scanned, if the index has nothing before it. For
    /// [`Start::Last`] it is that of their last item up to `upto` that is not deleted. A deletion
    /// before that counts only for an item of the index from which the scan begins.
    fn in_memory(self, state: &InodeState, kind: Kind) -> u64 {
        let (least, upto) = match self {
            Start::At(from) => return from,
            Start::Last { least, upto } => (least, upto),
        };
        let mut to = upto;
        for _ in 0..MAX_TOMBSTONES {
            let last = state.last_slot(kind, to).filter(|(at, _)| *at >= least);
            match last {
                None => return upto,
                Some((at, slot)) if slot.vector.with(|value| value.is_some()) => return at,
                Some((at, _)) if at == least => return upto,
                Some((at, _)) => to = at - 1,
            }
        }
        least
    }
}

impl ItemStore {
    /// An item of an inode whose lock the caller holds.
    pub fn item(
        &self,
        inode: &Inode,
        state: &InodeState,
        kind: Kind,
        offset: u64,
    ) -> Result<Option<Item>> {
        self.with_item(inode, state, kind, offset, |value, place| Item {
            value: value.to_vec(),
            below: place.below(),
            stored: match place {
                Place::Index(block) => Some(block),
                Place::Current | Place::Sealed => None,
            },
        })
    }

    /// Calls `f` with the value of an item and where it was found.
    fn with_item<R>(
        &self,
        inode: &Inode,
        state: &InodeState,
        kind: Kind,
        offset: u64,
        f: impl FnOnce(&[u8], Place) -> R,
    ) -> Result<Option<R>> {
        if let Some((slot, below)) = state.slot(kind, offset) {
            let place = if below { Place::Sealed } else { Place::Current };
            return Ok(slot.vector.with(|value| value.map(|v| f(v, place))));
        }
        if !state.may_be_indexed() {
            return Ok(None);
        }
        let key = match kind {
            Kind::Orphan => Key::orphan(inode.ino),
            _ => Key::new(inode.ino, kind, offset),
        };
        let found = self.in_index(|tree| self.index().get_at(tree, &key))?;
        Ok(found.map(|(value, block)| f(&value, Place::Index(block))))
    }

    /// Calls `each` with the items of one kind in `from..=to`, ascending, until it returns `false`.
    ///
    /// # Errors
    /// A damaged volume, the device's failure, or what `each` returns.
    pub fn scan(
        &self,
        inode: &Inode,
        state: &InodeState,
        kind: Kind,
        from: u64,
        to: u64,
        each: &mut dyn FnMut(u64, Item) -> Result<bool>,
    ) -> Result<()> {
        self.scan_from(inode, state, kind, (Start::At(from), to), (None, each))
    }

    /// As [`ItemStore::scan`], but goes over what cannot be read. Returns the first such error.
    ///
    /// # Errors
    /// What `each` returns; damage in items that can be read.
    pub fn scan_readable(
        &self,
        inode: &Inode,
        state: &InodeState,
        kind: Kind,
        (from, to): (u64, u64),
        each: &mut dyn FnMut(u64, Item) -> Result<bool>,
    ) -> Result<Option<Error>> {
        let mut unread = None;
        let range = (Start::At(from), to);
        self.scan_from(inode, state, kind, range, (Some(&mut unread), each))?;
        Ok(unread)
    }

    /// The first error of what cannot be read of an inode's items of one kind in `from..=to`.
    ///
    /// # Errors
    /// A tree that is too high.
    pub fn first_unread(&self, ino: u64, kind: Kind, from: u64, to: u64) -> Result<Option<Error>> {
        let range = (&Key::new(ino, kind, from), &Key::new(ino, kind, to));
        let found = self.over_damage(|tree, unread| {
            *unread = self.index().first_unread(tree, range)?;
            Ok(())
        });
        found.map(|((), unread)| unread)
    }

    /// Calls `each` with the items of one kind of which none overlaps another, ascending, until it
    /// returns `false`: with the last one up to `from` if it is at `least` or later, and with those
    /// behind it up to `to`. It may get items before these. `kind` is not that of directory entries.
    pub fn scan_from_last(
        &self,
        inode: &Inode,
        state: &InodeState,
        kind: Kind,
        (least, from, to): (u64, u64, u64),
        each: &mut dyn FnMut(u64, Item) -> Result<bool>,
    ) -> Result<()> {
        let start = Start::Last { least, upto: from };
        self.scan_from(inode, state, kind, (start, to), (None, each))
    }

    fn scan_from(
        &self,
        inode: &Inode,
        state: &InodeState,
        kind: Kind,
        (start, to): (Start, u64),
        (mut unread, each): (Option<&mut Option<Error>>, &mut Each<'_>),
    ) -> Result<()> {
        if state.sealed.is_none() && !state.may_be_indexed() {
            for (offset, slot) in state.current.range(kind, start.in_memory(state, kind)) {
                if offset > to {
                    break;
                }
                if let Some(item) = Item::of(slot, false)
                    && !each(offset, item)?
                {
                    break;
                }
            }
            return Ok(());
        }
        let mut start = start;
        // A damaged index in which values share their units could hold more than the volume's size.
        let volume = self.shared.geometry.total_blocks * BLOCK_SIZE as u64;
        let mut bytes = 0;
        loop {
            let over_damage = unread.is_some();
            let batch = self.batch(inode, state, kind, (start, to), over_damage)?;
            if let (Some(first), Some(error)) = (&mut unread, batch.unread) {
                first.get_or_insert(error);
            }
            for (offset, item) in batch.items {
                let Some(item) = item else { continue };
                bytes += item.value.len() as u64;
                if bytes > volume {
                    let what = format!("at most {volume} bytes of {kind:?} items of {}", inode.ino);
                    return Err(Error::corrupt(0, "items of an inode", what, bytes));
                }
                if !each(offset, item)? {
                    return Ok(());
                }
            }
            match batch.upto {
                Some(upto) if upto < to => start = Start::At(upto + 1),
                _ => return Ok(()),
            }
        }
    }

    /// The items in a first part of what is from `start` to `to`; `upto` is where that part ends,
    /// `None` if it is everything. Deleted items are `None`.
    fn batch(
        &self,
        inode: &Inode,
        state: &InodeState,
        kind: Kind,
        (start, to): (Start, u64),
        over_damage: bool,
    ) -> Result<Batch> {
        let mut batch = Batch::default();
        if state.may_be_indexed() {
            self.index_batch(inode.ino, kind, (start, to), over_damage, &mut batch)?;
        }
        let from = start.in_memory(state, kind);
        let from = batch.items.first().map_or(from, |(at, _)| from.min(*at));
        if let Some(sealed) = state.sealed_set() {
            let slots = sealed.range(kind, from);
            batch.overlay(to, true, slots);
        }
        batch.overlay(to, false, state.current.range(kind, from));
        Ok(batch)
    }

    fn index_batch(
        &self,
        ino: u64,
        kind: Kind,
        (start, to): (Start, u64),
        over_damage: bool,
        batch: &mut Batch,
    ) -> Result<()> {
        let key = |offset| Key::new(ino, kind, offset);
        let first = match start {
            Start::At(from) => key(from),
            Start::Last { least, .. } => key(least),
        };
        let last = key(to);
        let ((), unread) = self.over_damage(|tree, unread| {
            batch.items.clear();
            batch.upto = None;
            let mut bytes = 0;
            let mut each = |at: &Key, value: &[u8]| -> Result<bool> {
                if *at > last {
                    return Ok(false);
                }
                if *at < first {
                    return Ok(true);
                }
                if kind == Kind::Extent {
                    // Users of extents compute with their positions, so these are checked here.
                    decode_extent_at(at.offset, value, &self.shared.geometry)
                        .map_err(|found| bad_extent(ino, found))?;
                }
                let item = Item {
                    value: value.to_vec(),
                    below: true,
                    stored: Some(0),
                };
                bytes += value.len();
                batch.items.push((at.offset, Some(item)));
                if batch.items.len() == BATCH || bytes >= BATCH_BYTES {
                    batch.upto = Some(at.offset);
                    return Ok(false);
                }
                Ok(true)
            };
            match start {
                Start::At(_) if over_damage => {
                    let range = (&first, &last);
                    self.index()
                        .scan_readable(tree, range, &mut |found| match found {
                            Found::Item(at, value) => each(at, value),
                            Found::Unread(hidden) => {
                                unread.get_or_insert(hidden.error);
                                Ok(true)
                            }
                        })
                }
                Start::At(_) => self.index().scan(tree, &first, &mut each),
                Start::Last { upto, .. } => {
                    let range = (&first, &key(upto));
                    self.index().scan_from_last(tree, range, &mut each)
                }
            }
        })?;
        batch.unread = unread;
        Ok(())
    }

    /// Calls `f` with the directory entry at `index`, and with whether it was found below the
    /// current set.
    pub fn dir_entry<R>(
        &self,
        dir: &Inode,
        state: &InodeState,
        index: u64,
        f: impl FnOnce(&DirEntryRef<'_>, bool) -> R,
    ) -> Result<Option<R>> {
        // What is done to an entry is logged under its index, and the log refuses such keys.
        Key::new(dir.ino, Kind::DirIndex, index)
            .check_logged()
            .map_err(|found| {
                let expected = format!("directory {}", dir.ino);
                Error::corrupt(0, "directory entry", expected, found)
            })?;
        let shown = self.with_item(dir, state, Kind::DirIndex, index, |value, place| {
            decode_dir_entry(value).map(|entry| f(&entry, place.below()))
        })?;
        shown.transpose().map_err(|found| {
            let expected = format!("directory {}", dir.ino);
            Error::corrupt(0, "directory entry", expected, found)
        })
    }

    /// The entry of that name: its index, inode number, type bits, and whether it was found below
    /// the current set. If the name's item cannot be read, it is searched for among the entries that
    /// can.
    ///
    /// # Errors
    /// A damaged volume, the device's failure, unless the entry was found.
    pub fn find_name(
        &self,
        dir: &Inode,
        state: &InodeState,
        hash: u64,
        name: &[u8],
    ) -> Result<Option<NameFound>> {
        let check = |index: u64| -> Result<Option<NameFound>> {
            let found = self.dir_entry(dir, state, index, |entry, below| {
                (entry.name == name).then_some(NameFound {
                    index,
                    ino: entry.ino,
                    kind: entry.kind,
                    below,
                })
            })?;
            Ok(found.flatten())
        };
        for index in state.named(hash) {
            if let Some(found) = check(index)? {
                return Ok(Some(found));
            }
        }
        if !state.may_have_other_names() {
            return Ok(None);
        }
        let key = Key::new(dir.ino, Kind::DirName, hash);
        let value = match self.in_index(|tree| self.index().get(tree, &key)) {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(None),
            Err(hidden) if hides(&hidden) => {
                let found = self.find_among_entries(dir, state, name)?;
                return found.map(Some).ok_or(hidden);
            }
            Err(error) => return Err(error),
        };
        let indexes = decode_dir_name(&value).map_err(|found| {
            Error::corrupt(0, "name item", format!("directory {}", dir.ino), found)
        })?;
        let mut hidden = None;
        for index in indexes {
            match check(index) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error) => hidden = hidden.or(Some(error)),
            }
        }
        hidden.map_or(Ok(None), Err)
    }

    /// The entry of that name, if it is among those that can be read.
    fn find_among_entries(
        &self,
        dir: &Inode,
        state: &InodeState,
        name: &[u8],
    ) -> Result<Option<NameFound>> {
        let mut found = None;
        let mut look = |index, item: Item| {
            if let Ok(entry) = decode_dir_entry(&item.value)
                && entry.name == name
            {
                found = Some(NameFound {
                    index,
                    ino: entry.ino,
                    kind: entry.kind,
                    below: item.below,
                });
            }
            Ok(found.is_none())
        };
        self.scan_readable(dir, state, Kind::DirIndex, (0, u64::MAX), &mut look)?;
        Ok(found)
    }
}

fn bad_extent(ino: u64, found: String) -> Error {
    let expected = format!("an extent of inode {ino} within file and volume");
    Error::corrupt(0, "extent item", expected, found)
}

/// A directory entry that was found by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameFound {
    /// Index of the entry.
    pub index: u64,
    /// Inode number of the child.
    pub ino: u64,
    /// Type bits of the child.
    pub kind: u32,
    /// Whether it was found below the current set.
    pub below: bool,
}

#[derive(Default)]
struct Batch {
    /// Ascending by offset.
    items: Vec<(u64, Option<Item>)>,
    upto: Option<u64>,
    /// The first error of what cannot be read in the index, if the scan goes over that.
    unread: Option<Error>,
}

impl Batch {
    /// Replaces items by the slots of a dirty set, and adds new ones; a long set ends the batch
    /// early.
    fn overlay<'a>(&mut self, to: u64, below: bool, slots: impl Iterator<Item = (u64, &'a Slot)>) {
        let mut upto = self.upto.unwrap_or(to);
        let mut over = Vec::new();
        for (offset, slot) in slots {
            if offset > upto {
                break;
            }
            over.push((offset, Item::of(slot, below)));
            if over.len() == BATCH && offset < upto {
                upto = offset;
                self.upto = Some(offset);
                break;
            }
        }
        if over.is_empty() {
            return;
        }
        let under = std::mem::take(&mut self.items);
        let mut under = under.into_iter().filter(|(o, _)| *o <= upto).peekable();
        for (offset, item) in over {
            while let Some(before) = under.next_if(|(o, _)| *o < offset) {
                self.items.push(before);
            }
            under.next_if(|(o, _)| *o == offset);
            self.items.push((offset, item));
        }
        self.items.extend(under);
    }
}
