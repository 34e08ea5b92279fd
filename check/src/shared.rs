//! Compares the values that attributes share with the attributes that refer to them.
//!
//! Both are taken from the index alone, because a merge updates the use counts when it brings the
//! changes of the log into the index. Values are identified by the offset of their keys. The
//! comparison takes about 60 bytes per value, and as much again for a value stored apart from its
//! count.

use std::collections::BTreeMap;

use cairnfs_disk::format::xattr::{
    SharedRef, StoredValue, StoredXattr, bytes_key, decode_shared_bytes, decode_shared_value,
    shared_key, value_hash,
};

use crate::codes;
use crate::holes::Holes;
use crate::report::{Finding, Ledger};
use crate::visit::Item;

/// Whether a value is stored where its hash demands.
#[derive(Clone, Copy)]
enum Place {
    Right(SharedRef),
    /// The hash demands another key.
    Wrong,
    /// The value was not read.
    Unknown,
}

/// The item of a value: its use count and usually the value.
struct ValueItem {
    uses: u64,
    /// None if the value is stored apart.
    place: Option<Place>,
    block: Option<u64>,
}

/// The item of a value that is stored apart from its use count.
struct Apart {
    place: Place,
    block: Option<u64>,
}

/// The attributes that refer to one place.
struct Uses {
    count: u64,
    /// One of the inodes that have them.
    ino: u64,
}

/// Shared values and their uses.
pub(crate) struct Shared {
    seed: u64,
    counts: BTreeMap<u64, ValueItem>,
    apart: BTreeMap<u64, Apart>,
    /// By offset and hash: all uses of one offset should have the same hash.
    found: BTreeMap<(u64, u64), Uses>,
    incomplete: bool,
}

impl Shared {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            counts: BTreeMap::new(),
            apart: BTreeMap::new(),
            found: BTreeMap::new(),
            incomplete: false,
        }
    }

    /// Takes the item of a use count, which usually holds the value too.
    pub(crate) fn value(&mut self, item: &Item<'_>) -> Result<(), Finding> {
        let (uses, value) = decode_shared_value(item.value)
            .map_err(|why| Finding::new(codes::SHARED_ITEM, why).at(item.block))?;
        let offset = item.key.offset;
        let count = ValueItem {
            uses,
            place: value.map(|value| self.place(offset, value)),
            block: item.block,
        };
        self.counts.insert(offset, count);
        Ok(())
    }

    /// Takes the item of a value stored apart from its use count.
    pub(crate) fn bytes(&mut self, item: &Item<'_>) -> Result<(), Finding> {
        let value = decode_shared_bytes(item.value)
            .map_err(|why| Finding::new(codes::SHARED_ITEM, why).at(item.block))?;
        let apart = Apart {
            place: self.place(item.key.offset, value),
            block: item.block,
        };
        self.apart.insert(item.key.offset, apart);
        Ok(())
    }

    fn place(&self, offset: u64, value: &[u8]) -> Place {
        SharedRef::of(value_hash(self.seed, value), offset).map_or(Place::Wrong, Place::Right)
    }

    /// Combines use counts with the values stored apart from them.
    fn join(&mut self, holes: &Holes, ledger: &mut Ledger<'_>) {
        for (offset, apart) in &self.apart {
            let count = self.counts.get(offset);
            let hidden = holes.hides(&shared_key(*offset));
            if count.is_none_or(|count| count.place.is_some()) && !hidden {
                let message = format!("a long value under {offset:016x}, without uses");
                ledger.add(Finding::new(codes::SHARED_APART, message).at(apart.block));
            }
        }
        for (offset, count) in self
            .counts
            .iter_mut()
            .filter(|(_, count)| count.place.is_none())
        {
            let apart = self.apart.get(offset);
            if apart.is_none() && !holes.hides(&bytes_key(*offset)) {
                let message = format!("uses under {offset:016x}, without a value");
                ledger.add(Finding::new(codes::SHARED_APART, message).at(count.block));
            }
            count.place = Some(apart.map_or(Place::Unknown, |apart| apart.place));
        }
    }

    /// Takes the attributes in an item of an inode.
    pub(crate) fn uses(&mut self, ino: u64, list: &[StoredXattr<'_>]) {
        for xattr in list {
            if let StoredValue::Shared(place) = xattr.value {
                let key = (place.offset(), place.hash);
                let uses = self.found.entry(key).or_insert(Uses { count: 0, ino });
                uses.count += 1;
            }
        }
    }

    /// Notes that not all uses are known.
    pub(crate) fn incomplete(&mut self) {
        self.incomplete = true;
    }

    /// Reports the differences.
    pub(crate) fn finish(&mut self, holes: &Holes, ledger: &mut Ledger<'_>) {
        self.join(holes, ledger);
        let all_found = !self.incomplete && holes.is_empty();
        for (offset, count) in &self.counts {
            let uses = self.found.range((*offset, 0)..=(*offset, u64::MAX));
            let found: u64 = uses.map(|(_, uses)| uses.count).sum();
            let mut report = |code, message: String| {
                ledger.add(Finding::new(code, message).at(count.block));
            };
            if let Some(Place::Wrong) = count.place {
                report(
                    codes::SHARED_HASH,
                    format!("a value under {offset:016x}, where its hash does not lead"),
                );
            }
            let message = format!(
                "value {offset:016x} tells {}, {found} were found",
                count.uses
            );
            if found > count.uses {
                report(codes::SHARED_USES_LOW, message);
            } else if found == 0 && all_found {
                report(codes::SHARED_UNUSED, message);
            } else if found < count.uses && all_found {
                report(codes::SHARED_USES_HIGH, message);
            }
        }
        for ((offset, hash), uses) in &self.found {
            let message = match self.counts.get(offset) {
                Some(ValueItem {
                    place: Some(Place::Right(place)),
                    ..
                }) if place.hash != *hash => "another value is there",
                Some(_) => continue,
                None if holes.hides(&shared_key(*offset)) => continue,
                None => "it does not exist",
            };
            let slot = offset.wrapping_sub(*hash);
            let message = format!("refers to value {hash:016x}, slot {slot}: {message}");
            ledger.add(Finding::new(codes::SHARED_DANGLING, message).of(uses.ino));
        }
    }
}
