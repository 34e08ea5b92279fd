//! Names that entries had in the index before a step of a merge changed them.
//!
//! A rename within a directory gives an entry another name under the same index. The old name is
//! found only in the index, and only until the step that writes the new name. So that step also
//! removes the entry from the old name's item: in each superblock a name item lists no entry that
//! has another name, and a replay over completed steps of a merge need not know older names.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use crate::index::{Edits, Index, Tree};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::item::{decode_dir_name, encode_dir_name};
use cairnfs_disk::format::key::Key;
use cairnfs_disk::hash::IntHash;

/// Indexes of entries.
pub(super) type Indexes = SmallVec<[u64; 1]>;

/// The value of a name item after the indexes `remove` are removed and `add` are added; `None` if
/// it becomes empty.
///
/// # Errors
/// A damaged name item.
pub(super) fn change_names(
    key: &Key,
    old: Option<&[u8]>,
    (remove, add): (&[u64], &[u64]),
) -> Result<Option<Vec<u8>>> {
    let mut indexes: Vec<u64> = match old {
        Some(old) => decode_dir_name(old)
            .map_err(|found| {
                Error::corrupt(0, "name item", format!("directory {}", key.object), found)
            })?
            .collect(),
        None => Vec::new(),
    };
    indexes.retain(|index| !remove.contains(index));
    for index in add {
        if !indexes.contains(index) {
            indexes.push(*index);
        }
    }
    fault::inject(InjectedFault::NamesAddedFirst, || {
        indexes.retain(|index| !remove.contains(index));
    });
    Ok((!indexes.is_empty()).then(|| encode_dir_name(&indexes)))
}

/// Entries that lose the name of one item.
struct Lost {
    indexes: Indexes,
    /// Block of the leaf that holds the item.
    leaf: u64,
}

/// Old names of the entries that a step has changed so far, by their items.
pub(super) struct OldNames<'a> {
    index: &'a Index,
    /// The tree before the step.
    tree: Tree,
    entries: BTreeMap<Key, Lost>,
    /// How many of these items each leaf holds.
    leaves: HashMap<u64, usize, IntHash>,
}

impl<'a> OldNames<'a> {
    /// An empty list, for a step on `tree`.
    pub fn new(index: &'a Index, tree: Tree) -> Self {
        Self {
            index,
            tree,
            entries: BTreeMap::new(),
            leaves: HashMap::default(),
        }
    }

    /// Records that the entry at `index` loses the name of this item.
    ///
    /// # Errors
    /// A damaged index, the device's failure.
    pub fn note(&mut self, item: Key, index: u64) -> Result<()> {
        if is_injected(InjectedFault::OldNameKept) {
            return Ok(());
        }
        if let Some(lost) = self.entries.get_mut(&item) {
            lost.indexes.push(index);
            return Ok(());
        }
        let found = match self.index.get_at(&self.tree, &item) {
            // What is hidden counts as removed.
            Err(Error::Corrupt(_)) => None,
            found => found?,
        };
        if let Some((_, leaf)) = found {
            *self.leaves.entry(leaf).or_default() += 1;
            let indexes = SmallVec::from_slice(&[index]);
            self.entries.insert(item, Lost { indexes, leaf });
        }
        Ok(())
    }

    /// Adds what another part of the step has not removed.
    pub fn add(&mut self, other: Self) {
        self.entries.extend(other.entries);
        for (leaf, items) in other.leaves {
            *self.leaves.entry(leaf).or_default() += items;
        }
    }

    /// The key of the first item that must change.
    pub fn first(&self) -> Option<Key> {
        self.entries.first_key_value().map(|(key, _)| *key)
    }

    /// Takes the entries that lose the name of this item.
    pub fn remove(&mut self, item: &Key) -> Option<Indexes> {
        let Lost { indexes, leaf } = self.entries.remove(item)?;
        if let Entry::Occupied(mut left) = self.leaves.entry(leaf) {
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
            }
        }
        Some(indexes)
    }

    /// Number of index nodes that the changes may allocate.
    pub fn cost(&self) -> u64 {
        self.leaves.len() as u64
    }
}

impl Edits for OldNames<'_> {
    fn peek(&mut self) -> Result<Option<Key>> {
        Ok(self
            .first()
            .filter(|_| !is_injected(InjectedFault::OldNamesLeft)))
    }

    fn take(&mut self, key: &Key, old: Option<&[u8]>) -> Result<Option<Cow<'_, [u8]>>> {
        let lost = self
            .remove(key)
            .ok_or(Error::Invalid("an edit was taken twice"))?;
        Ok(change_names(key, old, (&lost, &[]))?.map(Cow::Owned))
    }
}
