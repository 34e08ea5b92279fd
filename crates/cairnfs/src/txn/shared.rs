//! Values that stand once: what a step of a merge puts, counts and removes.
//!
//! Attributes come to a merge with their values and leave it with references. While the step goes
//! through them, each gives up what the index had and takes what it has now; how often is summed up
//! here by place. When all are done, the step brings the sums into the index, so in each superblock
//! the uses of a value are exactly the attributes that refer to it, also between the steps of a
//! merge. A replay over that finds old and final values alike, and counts nothing twice.
//!
//! A place keeps its value while it has any use; so what is looked up here in the tree as it was
//! before the step is also there after it, or is put.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::deliberate::{Deliberate, happens};
use crate::error::{Error, Result};
use crate::format::MAX_XATTR_VALUE;
use crate::format::key::Key;
use crate::format::node::MAX_CELL_VALUE;
use crate::format::overflow::UNIT_DATA;
use crate::format::xattr::{
    SLOTS, SharedRef, decode_shared_value, decode_shared_value_at, encode_shared_value, shared_key,
};
use crate::index::{Edits, Index, Tree};
use crate::txn::attributes::bad_value;
use crate::values::{Value, Values};

/// What becomes of one value.
struct Change {
    place: SharedRef,
    /// Uses gained and lost.
    uses: i64,
    /// Its bytes, if the index did not have them before the step.
    new: Option<Arc<Value>>,
}

/// The changes of one step.
pub(super) struct SharedEdits<'a> {
    seed: u64,
    index: &'a Index,
    values: &'a Values,
    /// The tree before the step.
    tree: Tree,
    /// By offset of the key.
    changes: BTreeMap<u64, Change>,
    /// Index nodes that they may take.
    cost: u64,
}

/// Index nodes that the item of a value may take.
fn cost(len: usize) -> u64 {
    match len > MAX_CELL_VALUE {
        true => 1 + len.div_ceil(UNIT_DATA) as u64,
        false => 1,
    }
}

/// Whether a value of the same hash is the same.
fn equal(bytes: &[u8], value: &Value) -> bool {
    bytes == value.bytes() || happens(Deliberate::HashesNotCompared)
}

impl<'a> SharedEdits<'a> {
    /// No changes of `tree`.
    pub fn new(seed: u64, index: &'a Index, values: &'a Values, tree: Tree) -> Self {
        Self {
            seed,
            index,
            values,
            tree,
            changes: BTreeMap::new(),
            cost: 0,
        }
    }

    /// Index nodes that the changes so far may take: a leaf for each value, and the units of its bytes,
    /// which are written anew with its count.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Gives up a use.
    pub fn lose(&mut self, place: SharedRef) {
        if !happens(Deliberate::UseNotGivenUp) {
            let values = self.values;
            let len = || {
                values
                    .at(place)
                    .map_or(MAX_XATTR_VALUE, |v| v.bytes().len())
            };
            self.change(place, -1, len, None);
        }
    }

    /// Takes a use: where the value is, or will be after the step. `None` if too many others with its
    /// hash are in the way.
    pub fn gain(&mut self, value: &Arc<Value>) -> Result<Option<SharedRef>> {
        let len = || value.bytes().len();
        if let Some(place) = self.values.place(value) {
            self.change(place, 1, len, None);
            return Ok(Some(place));
        }
        let hash = value.hash();
        let mut free = None;
        for slot in 0..SLOTS {
            let place = SharedRef { hash, slot };
            match self.holds(place, value)? {
                Some(true) => {
                    self.values.remember(value, slot);
                    self.change(place, 1, len, None);
                    return Ok(Some(place));
                }
                Some(false) => {}
                None => {
                    free = free.or(Some(place));
                    // Behind a free place there is one only if others were removed: not worth a look.
                    break;
                }
            }
        }
        if let Some(place) = free {
            if self.changes.contains_key(&place.offset()) {
                return Err(bad_value(0, place, "nothing".into()));
            }
            self.values.remember(value, place.slot);
            self.change(place, 1, len, Some(value));
        }
        Ok(free)
    }

    /// Whether a place holds this value after the changes so far; `None` if it is free.
    fn holds(&self, place: SharedRef, value: &Value) -> Result<Option<bool>> {
        let change = self.changes.get(&place.offset());
        if let Some(new) = change.and_then(|c| c.new.as_ref()) {
            return Ok(Some(equal(new.bytes(), value)));
        }
        let found = self.index.get_at(&self.tree, &place.key())?;
        let Some((item, block)) = found else {
            return Ok(None);
        };
        let (_, bytes, _) = decode_shared_value_at(place.offset(), &item, self.seed)
            .map_err(|found| bad_value(block, place, found))?;
        Ok(Some(equal(bytes, value)))
    }

    fn change(
        &mut self,
        place: SharedRef,
        uses: i64,
        len: impl FnOnce() -> usize,
        new: Option<&Arc<Value>>,
    ) {
        let cost = &mut self.cost;
        let change = self.changes.entry(place.offset()).or_insert_with(|| {
            *cost += self::cost(len());
            Change {
                place,
                uses: 0,
                new: new.cloned(),
            }
        });
        change.uses += uses;
    }

    fn changed(&self, change: &Change, old: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let place = change.place;
        let bad = |found: String| bad_value(0, place, found);
        let (before, bytes) = match (old, &change.new) {
            (Some(old), _) => decode_shared_value(old).map_err(bad)?,
            (None, Some(new)) => (0, new.bytes()),
            (None, None) => return Err(bad("nothing".into())),
        };
        let uses = before.checked_add_signed(change.uses).ok_or_else(|| {
            bad(format!(
                "{before} uses, of which {} are given up",
                -change.uses
            ))
        })?;
        if uses > u64::from(happens(Deliberate::ValueGoneEarly)) {
            return Ok(Some(encode_shared_value(uses, bytes)));
        }
        self.values.forget(place);
        Ok(None)
    }
}

impl Edits for SharedEdits<'_> {
    fn peek(&mut self) -> Result<Option<Key>> {
        // A value gained and lost as often stays as it is, or never comes.
        loop {
            let Some(first) = self.changes.first_entry() else {
                return Ok(None);
            };
            let change = first.get();
            if change.uses != 0 {
                return Ok(Some(shared_key(*first.key())));
            }
            if change.new.is_some() {
                self.values.forget(change.place);
            }
            first.remove();
        }
    }

    fn take(&mut self, _: &Key, old: Option<&[u8]>) -> Result<Option<Cow<'_, [u8]>>> {
        let Some((_, change)) = self.changes.pop_first() else {
            return Err(Error::Invalid("an edit was taken twice"));
        };
        Ok(self.changed(&change, old)?.map(Cow::Owned))
    }
}

#[cfg(test)]
#[cfg(shuttle)]
impl crate::txn::Core {
    /// Uses that the values in the index tell, in order of their keys.
    pub fn shared_uses(&self) -> Result<Vec<u64>> {
        let mut uses = Vec::new();
        let (tree, from) = (self.trees.load_full().main, shared_key(0));
        self.index.scan(&tree, &from, &mut |key, item| {
            let shared = key.kind == from.kind && key.object == from.object;
            if shared && let Ok((told, _)) = decode_shared_value(item) {
                uses.push(told);
            }
            Ok(shared)
        })?;
        Ok(uses)
    }
}
