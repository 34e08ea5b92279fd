//! Shared values, which are stored once: the values that a step of a merge adds, counts and
//! removes.
//!
//! Attributes reach a merge with their values and leave it with references. While the step
//! processes them, each attribute loses its use of the old value and gains a use of the new one;
//! the sums are kept here by place. At the end the step applies the sums to the index. So in each
//! superblock the uses of a value are exactly the attributes that refer to it, also between the
//! steps of a merge. A replay over completed steps finds old and final values equal, and counts
//! nothing twice.
//!
//! A place keeps its value while it has any use. So a value that is found here in the tree before
//! the step is also there after it, or is added. The bytes of a long value are added and removed in
//! the step in which its uses are, and are not touched in between.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use crate::index::{Edits, Tree};
use crate::txn::items::{ItemStore, bad_value, value_at};
use crate::values::{Value, Values};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::key::{Key, SHARED_BYTES};
use cairnfs_disk::format::overflow::UNIT_DATA;
use cairnfs_disk::format::xattr::{
    SLOTS, SharedRef, bytes_key, decode_shared_value, encode_shared_value, is_apart, shared_key,
    shared_place,
};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

/// The change of one value.
struct Change {
    place: SharedRef,
    /// Uses gained minus uses lost.
    uses: i64,
    /// Its bytes, if the index did not have them before the step.
    new: Option<Value>,
}

/// The changes of one step.
pub(super) struct SharedEdits<'a> {
    items: &'a ItemStore,
    values: &'a Values,
    /// The tree before the step.
    tree: Tree,
    /// By offset of the key.
    changes: BTreeMap<u64, Change>,
    /// Long values that are added, or removed if there are no bytes; by offset of the key,
    /// ascending, applied after all changes.
    apart: VecDeque<(u64, Option<Value>)>,
    /// Index nodes that the changes may allocate.
    cost: u64,
}

/// The changes of one step, to which its parts add side by side.
pub(super) struct StepValues<'a> {
    edits: Mutex<SharedEdits<'a>>,
    /// Index nodes that the changes so far may allocate.
    cost: AtomicU64,
}

impl<'a> StepValues<'a> {
    /// An empty set of changes of `tree`.
    pub fn new(items: &'a ItemStore, tree: Tree) -> Self {
        Self {
            edits: Mutex::new(SharedEdits::new(items, tree)),
            cost: AtomicU64::new(0),
        }
    }

    /// Index nodes that the changes so far may allocate.
    pub fn cost(&self) -> u64 {
        self.cost.load(Ordering::Relaxed)
    }

    /// Removes a use of the value at `place`.
    pub fn lose(&self, place: SharedRef) {
        let mut edits = self.edits.lock();
        edits.lose(place);
        self.cost.store(edits.cost, Ordering::Relaxed);
    }

    /// As [`SharedEdits::gain`].
    pub fn gain(&self, value: &Value) -> Result<Option<SharedRef>> {
        let mut edits = self.edits.lock();
        let place = edits.gain(value);
        self.cost.store(edits.cost, Ordering::Relaxed);
        place
    }

    /// The changes, as edits.
    pub fn into_edits(self) -> SharedEdits<'a> {
        self.edits.into_inner()
    }
}

/// Index nodes that a change of a value's uses may allocate: a leaf, and one more if separately
/// stored bytes may be removed.
fn cost_of_uses(len: usize) -> u64 {
    1 + u64::from(is_apart(len))
}

/// Index nodes that a new value may allocate: a leaf that splits, and another one for bytes that
/// are stored separately.
fn cost_of_value(len: usize) -> u64 {
    if is_apart(len) {
        4 + len.div_ceil(UNIT_DATA) as u64
    } else {
        2
    }
}

/// Whether a value of the same hash is equal.
fn equal(bytes: &[u8], value: &Value) -> bool {
    bytes == value.bytes() || is_injected(InjectedFault::HashesNotCompared)
}

impl<'a> SharedEdits<'a> {
    fn new(items: &'a ItemStore, tree: Tree) -> Self {
        Self {
            items,
            values: items.values(),
            tree,
            changes: BTreeMap::new(),
            apart: VecDeque::new(),
            cost: 0,
        }
    }

    /// Index nodes that the changes so far may allocate.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    fn lose(&mut self, place: SharedRef) {
        let (values, number) = (self.values, self.items.number());
        let cost = || {
            let known = values.at(number, place).map(|v| v.bytes().len());
            cost_of_uses(known.unwrap_or(usize::MAX))
        };
        fault::unless(InjectedFault::UseNotGivenUp, || {
            self.change(place, -1, cost, None)
        });
    }

    /// Adds a use of `value`. Returns the place where the value is, or will be after the step;
    /// `None` if too many other values have its hash, or if values are not shared.
    fn gain(&mut self, value: &Value) -> Result<Option<SharedRef>> {
        if !self.values.are_once() {
            return Ok(None);
        }
        let len = value.bytes().len();
        let cost = || cost_of_uses(len);
        if let Some(place) = self.values.place(self.items.number(), value) {
            self.change(place, 1, cost, None);
            return Ok(Some(place));
        }
        let hash = value.hash();
        let mut free = None;
        for slot in 0..SLOTS {
            let place = SharedRef { hash, slot };
            match self.holds(place, value)? {
                Some(true) => {
                    self.values.remember(self.items.number(), value, slot);
                    self.change(place, 1, cost, None);
                    return Ok(Some(place));
                }
                Some(false) => {}
                None => {
                    free = free.or(Some(place));
                    // The value can be at a place after a free one only if other values were
                    // removed, which is not worth a search.
                    break;
                }
            }
        }
        if let Some(place) = free {
            if self.changes.contains_key(&place.offset()) {
                return Err(bad_value(0, place, "nothing".into()));
            }
            self.values.remember(self.items.number(), value, place.slot);
            self.change(place, 1, || cost_of_value(len), Some(value));
        }
        Ok(free)
    }

    /// Whether a place holds this value after the changes so far; `None` if it is free.
    fn holds(&self, place: SharedRef, value: &Value) -> Result<Option<bool>> {
        let change = self.changes.get(&place.offset());
        if let Some(new) = change.and_then(|c| c.new.as_ref()) {
            return Ok(Some(equal(new.bytes(), value)));
        }
        let found = match value_at(self.items.index(), &self.tree, place) {
            // There may be another value.
            Err(Error::Corrupt(_)) => return Ok(Some(false)),
            found => found?,
        };
        let Some((bytes, block)) = found else {
            return Ok(None);
        };
        shared_place(place.offset(), &bytes, self.items.hash_seed())
            .map_err(|found| bad_value(block, place, found))?;
        Ok(Some(equal(&bytes, value)))
    }

    fn change(
        &mut self,
        place: SharedRef,
        uses: i64,
        cost: impl FnOnce() -> u64,
        new: Option<&Value>,
    ) {
        let sum = &mut self.cost;
        let change = self.changes.entry(place.offset()).or_insert_with(|| {
            *sum += cost();
            Change {
                place,
                uses: 0,
                new: new.cloned(),
            }
        });
        change.uses += uses;
    }

    /// As [`Self::changed`], of a value that the tree has lost, or that is hidden. More uses bring it
    /// back if it is in memory. Otherwise uses are given up: nothing counts them any more.
    fn changed_lost(&mut self, mut change: Change) -> Result<Option<Cow<'static, [u8]>>> {
        let (tree, place) = (self.items.number(), change.place);
        if change.uses > 0 && change.new.is_none() {
            change.new = self.values.at(tree, place);
        }
        if change.new.is_none() || change.uses < 0 {
            self.values.forget(tree, place);
            return Ok(None);
        }
        Ok(self.changed(change, None)?.map(Cow::Owned))
    }

    fn changed(&mut self, change: Change, old: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let place = change.place;
        let bad = |found: String| bad_value(0, place, found);
        let (before, bytes) = match (old, &change.new) {
            (Some(old), _) => decode_shared_value(old).map_err(bad)?,
            (None, Some(new)) => (0, Some(new.bytes())),
            (None, None) => return Err(bad("nothing".into())),
        };
        let uses = before.checked_add_signed(change.uses);
        // A value that came back has fewer uses than there were; they are counted anew.
        let uses = uses
            .or(self.values.have_lost().then_some(1))
            .ok_or_else(|| {
                bad(format!(
                    "{before} uses, of which {} are given up",
                    -change.uses
                ))
            })?;
        let stays = uses > u64::from(is_injected(InjectedFault::ValueGoneEarly));
        let item = stays.then(|| encode_shared_value(uses, bytes.unwrap_or_default()));
        if !stays {
            self.values.forget(self.items.number(), place);
        }
        let is_apart = bytes.is_none_or(|bytes| is_apart(bytes.len()));
        if is_apart && stays != old.is_some() {
            let comes = change.new.filter(|_| stays);
            self.apart.push_back((place.offset(), comes));
        }
        Ok(item)
    }

    /// Adds or removes the bytes of a long value.
    fn take_apart(&mut self, key: &Key, old: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let Some((_, new)) = self.apart.pop_front() else {
            return Err(Error::Invalid("an edit was taken twice"));
        };
        if let (Some(new), Some(old)) = (&new, old)
            && new.bytes() == old
        {
            // The item with the count was hidden.
            return Ok(Some(old.to_vec()));
        }
        if new.is_some() == old.is_some() {
            let expected = format!("bytes of a shared value under {:016x}", key.offset);
            let found = if old.is_some() { "others" } else { "nothing" };
            return Err(Error::corrupt(0, "shared attribute value", expected, found));
        }
        Ok(new.map(|value| value.bytes().to_vec()))
    }
}

impl Edits for SharedEdits<'_> {
    fn peek(&mut self) -> Result<Option<Key>> {
        // A value with as many gains as losses is not changed, and not added if it is new.
        loop {
            let Some(first) = self.changes.first_entry() else {
                return Ok(self.apart.front().map(|(offset, _)| bytes_key(*offset)));
            };
            let change = first.get();
            if change.uses != 0 {
                return Ok(Some(shared_key(*first.key())));
            }
            if change.new.is_some() {
                self.values.forget(self.items.number(), change.place);
            }
            first.remove();
        }
    }

    fn take(&mut self, key: &Key, old: Option<&[u8]>) -> Result<Option<Cow<'_, [u8]>>> {
        if key.object == SHARED_BYTES {
            return Ok(self.take_apart(key, old)?.map(Cow::Owned));
        }
        let Some((_, change)) = self.changes.pop_first() else {
            return Err(Error::Invalid("an edit was taken twice"));
        };
        if old.is_none() && change.new.is_none() && self.values.have_lost() {
            return self.changed_lost(change);
        }
        Ok(self.changed(change, old)?.map(Cow::Owned))
    }

    fn take_hidden(&mut self, key: &Key) -> Result<Option<Cow<'_, [u8]>>> {
        if key.object == SHARED_BYTES {
            let next = self.apart.pop_front().and_then(|(_, new)| new);
            return Ok(next.map(|value| value.bytes().to_vec().into()));
        }
        let Some((_, change)) = self.changes.pop_first() else {
            return Err(Error::Invalid("an edit was taken twice"));
        };
        self.changed_lost(change)
    }
}
