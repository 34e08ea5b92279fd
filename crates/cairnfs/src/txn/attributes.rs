//! Extended attributes of an inode, wherever they are: in its dirty sets, or in the index.
//!
//! In dirty sets an attribute has its value, as in the log; in the index it may refer to one that
//! stands once. Whoever follows a reference holds the inode's lock all the while: then no merge
//! changes the attribute, so its use keeps the value where it is, in this tree and in newer ones.

use crate::error::{Error, Result};
use crate::format::MAX_OWN_VALUE;
use crate::format::key::{Key, Kind};
use crate::format::record::Entry;
use crate::format::xattr::{
    SharedRef, StoredValue, XATTR_HEAD, decode_stored_xattrs, decode_xattrs, shared_place,
    xattr_head,
};
use crate::inode::{Inode, InodeState};
use crate::journal::vector::Parts;
use crate::txn::shared::value_at;
use crate::txn::{Core, Item};
use crate::values::Value;

/// The value of an attribute as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// The value.
    Bytes(Vec<u8>),
    /// Where the index has it; see [`Core::held`].
    At(SharedRef),
}

/// An attribute as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Its full name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: AttributeValue,
}

/// The error for an item of inode `ino` that makes no sense, in the leaf at `block`; 0 if it is not known.
pub(super) fn bad_item(block: u64, ino: u64) -> impl FnOnce(String) -> Error {
    let expected = format!("attributes of inode {ino}");
    move |found| Error::corrupt(block, "attribute item", expected, found)
}

/// The error for a reference that leads to something else, in the leaf at `block`.
pub(super) fn bad_value(block: u64, place: SharedRef, found: String) -> Error {
    let expected = format!("a value with hash {:016x}, slot {}", place.hash, place.slot);
    Error::corrupt(block, "shared attribute value", expected, found)
}

/// The attributes of an item of inode `ino`.
fn attributes_of(ino: u64, item: &Item) -> Result<Vec<Attribute>> {
    if let Some(block) = item.stored {
        let list = decode_stored_xattrs(&item.value).map_err(bad_item(block, ino))?;
        let attribute = list.iter().map(|x| Attribute {
            name: x.name(),
            value: held_of(&x.value),
        });
        return Ok(attribute.collect());
    }
    let list = decode_xattrs(&item.value).map_err(bad_item(0, ino))?;
    let attribute = list.iter().map(|x| Attribute {
        name: x.name.to_vec(),
        value: AttributeValue::Bytes(x.value.to_vec()),
    });
    Ok(attribute.collect())
}

/// The value of an attribute as the index has it, if it is in that item of inode `ino`, in the leaf at
/// `block`.
fn stored_value(ino: u64, item: &[u8], block: u64, name: &[u8]) -> Result<Option<AttributeValue>> {
    let list = decode_stored_xattrs(item).map_err(bad_item(block, ino))?;
    let found = list.iter().find(|x| x.is_named(name));
    Ok(found.map(|x| held_of(&x.value)))
}

/// The value of an attribute as the log has it, if it is in that item of inode `ino`.
fn logged_value(ino: u64, parts: Parts<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    if let Some(value) = parts.shared {
        let named = parts.own.get(XATTR_HEAD..) == Some(name);
        return Ok(named.then(|| value.bytes().to_vec()));
    }
    let list = decode_xattrs(parts.own).map_err(bad_item(0, ino))?;
    let found = list.iter().find(|x| x.name == name);
    Ok(found.map(|x| x.value.to_vec()))
}

fn held_of(value: &StoredValue<'_>) -> AttributeValue {
    match value {
        StoredValue::Own(value) => AttributeValue::Bytes(value.to_vec()),
        StoredValue::Shared(place) => AttributeValue::At(*place),
    }
}

impl Core {
    /// The value of an attribute whose name has that hash. The caller holds the inode's lock.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn attribute(
        &self,
        inode: &Inode,
        state: &InodeState,
        (hash, name): (u64, &[u8]),
    ) -> Result<Option<Vec<u8>>> {
        if let Some((slot, _)) = state.slot(Kind::Xattr, hash) {
            let value = |parts: Parts<'_>| logged_value(inode.ino, parts, name);
            return slot.vector.with_parts(value).unwrap_or(Ok(None));
        }
        if !state.may_be_indexed() {
            return Ok(None);
        }
        let key = Key::new(inode.ino, Kind::Xattr, hash);
        let Some((item, block)) = self.in_index(|tree| self.index.get_at(tree, &key))? else {
            return Ok(None);
        };
        let held = stored_value(inode.ino, &item, block, name)?;
        held.map(|held| self.held(held)).transpose()
    }

    /// Whether nothing but the attribute of that name has its hash, in the current set, with a value
    /// that others may have, too.
    pub fn is_alone(&self, state: &InodeState, (hash, name): (u64, &[u8])) -> bool {
        let slot = state.current.get(Kind::Xattr, hash);
        let alone =
            |parts: Parts<'_>| parts.shared.is_some() && parts.own.get(XATTR_HEAD..) == Some(name);
        slot.and_then(|slot| slot.vector.with_parts(alone)) == Some(true)
    }

    /// The attributes whose names have that hash, and whether they were found below the current set.
    /// The caller holds the inode's lock.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn attributes(
        &self,
        inode: &Inode,
        state: &InodeState,
        hash: u64,
    ) -> Result<(Vec<Attribute>, bool)> {
        match self.item(inode, state, Kind::Xattr, hash)? {
            Some(item) => Ok((attributes_of(inode.ino, &item)?, item.below)),
            None => Ok((Vec::new(), false)),
        }
    }

    /// Shows the names of all attributes, with the hash of each. The caller holds the inode's lock.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn attribute_names(
        &self,
        inode: &Inode,
        state: &InodeState,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<()> {
        self.items(inode, state, Kind::Xattr, 0, u64::MAX, &mut |hash, item| {
            for attribute in attributes_of(inode.ino, &item)? {
                each(hash, &attribute.name);
            }
            Ok(true)
        })
    }

    /// How many attributes an item of an inode holds.
    ///
    /// # Errors
    /// An item that makes no sense.
    pub fn count_attributes(ino: u64, item: &Item) -> Result<usize> {
        Ok(attributes_of(ino, item)?.len())
    }

    /// The bytes of a value. The caller holds the lock of the inode where he found it.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn held(&self, held: AttributeValue) -> Result<Vec<u8>> {
        let place = match held {
            AttributeValue::Bytes(bytes) => return Ok(bytes),
            AttributeValue::At(place) => place,
        };
        if let Some(value) = self.values.at(place) {
            return Ok(value.bytes().to_vec());
        }
        let bytes = self.in_index(|tree| {
            let found = value_at(&self.index, tree, place)?;
            let (bytes, block) = found.ok_or_else(|| bad_value(0, place, "nothing".into()))?;
            let there = shared_place(place.offset(), &bytes, self.hash_seed);
            match there {
                Ok(there) if there == place => Ok(bytes),
                Ok(there) => Err(bad_value(block, place, format!("hash {:016x}", there.hash))),
                Err(found) => Err(bad_value(block, place, found)),
            }
        })?;
        self.values
            .remember(&self.values.intern(&bytes), place.slot);
        Ok(bytes)
    }

    /// Of an attribute in the log: what stands before its value, and the value, if others may share
    /// it and nothing else is in the item.
    pub(super) fn shared_part(&self, entry: &Entry<'_>) -> Option<(Vec<u8>, Value)> {
        if entry.key.kind != Kind::Xattr || entry.delete {
            return None;
        }
        let list = decode_xattrs(entry.value).ok()?;
        let [xattr] = list.as_slice() else {
            return None;
        };
        if xattr.value.len() <= MAX_OWN_VALUE {
            return None;
        }
        let head = xattr_head(xattr.name, xattr.value.len());
        let own = [&head, xattr.name].concat();
        Some((own, self.values.intern(xattr.value)))
    }
}
