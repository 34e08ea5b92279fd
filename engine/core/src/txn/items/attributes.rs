//! Extended attributes of an inode, read from its dirty sets or from the index.
//!
//! In dirty sets an attribute holds its value, as in the log; in the index it may refer to a shared
//! value, which is stored once. A reader that follows a reference holds the inode's lock all the
//! time: then no merge changes the attribute, so its use keeps the value in place, in this tree and
//! in newer ones.

use crate::inode::{Inode, InodeState};
use crate::journal::vector::Parts;
use crate::txn::items::ItemStore;
use crate::txn::items::read::Item;
use crate::txn::items::values::{bad_value, value_at};
use crate::values::Value;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::MAX_OWN_VALUE;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::record::Entry;
use cairnfs_disk::format::xattr::{
    SharedRef, StoredValue, XATTR_HEAD, decode_stored_xattrs, decode_xattrs, shared_place,
    xattr_head,
};

/// The value of an attribute as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// The bytes of the value.
    Bytes(Vec<u8>),
    /// Its place in the index; see [`ItemStore::held`].
    At(SharedRef),
}

/// An attribute as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Its full name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: AttributeValue,
}

/// The error for a malformed attribute item of inode `ino`, in the leaf at `block`; 0 if the leaf
/// is not known.
pub(in crate::txn) fn bad_item(block: u64, ino: u64) -> impl FnOnce(String) -> Error {
    let expected = format!("attributes of inode {ino}");
    move |found| Error::corrupt(block, "attribute item", expected, found)
}

/// Decodes the attributes in an item of inode `ino`.
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

/// The value of the attribute `name`, if it is in `item`, an item of inode `ino` from the index
/// leaf at `block`.
fn stored_value(ino: u64, item: &[u8], block: u64, name: &[u8]) -> Result<Option<AttributeValue>> {
    let list = decode_stored_xattrs(item).map_err(bad_item(block, ino))?;
    let found = list.iter().find(|x| x.is_named(name));
    Ok(found.map(|x| held_of(&x.value)))
}

/// The value of the attribute `name`, if it is in `parts`, an item of inode `ino` as it is logged.
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

/// Number of attributes in an item of inode `ino`.
///
/// # Errors
/// A malformed item.
pub fn count_attributes(ino: u64, item: &Item) -> Result<usize> {
    Ok(attributes_of(ino, item)?.len())
}

impl ItemStore {
    /// The value of the attribute `name`, whose hash is `hash`. The caller holds the inode's lock.
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
        let Some((item, block)) = self.in_index(|tree| self.index().get_at(tree, &key))? else {
            return Ok(None);
        };
        let held = stored_value(inode.ino, &item, block, name)?;
        held.map(|held| self.held(held)).transpose()
    }

    /// Whether the current set has the attribute `name` with a shareable value, as the only
    /// attribute of its hash.
    pub fn is_alone(&self, state: &InodeState, (hash, name): (u64, &[u8])) -> bool {
        let slot = state.current.get(Kind::Xattr, hash);
        let alone =
            |parts: Parts<'_>| parts.shared.is_some() && parts.own.get(XATTR_HEAD..) == Some(name);
        slot.and_then(|slot| slot.vector.with_parts(alone)) == Some(true)
    }

    /// The attributes whose names have the hash, and whether they were found below the current set.
    /// The caller holds the inode's lock.
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

    /// Calls `each` with the hash and the name of every attribute. The caller holds the inode's
    /// lock.
    pub fn attribute_names(
        &self,
        inode: &Inode,
        state: &InodeState,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<()> {
        self.scan(inode, state, Kind::Xattr, 0, u64::MAX, &mut |hash, item| {
            for attribute in attributes_of(inode.ino, &item)? {
                each(hash, &attribute.name);
            }
            Ok(true)
        })
    }

    /// The bytes of a value. The caller holds the lock of the inode in which it found the value.
    pub fn held(&self, held: AttributeValue) -> Result<Vec<u8>> {
        let place = match held {
            AttributeValue::Bytes(bytes) => return Ok(bytes),
            AttributeValue::At(place) => place,
        };
        if let Some(value) = self.values().at(self.number, place) {
            return Ok(value.bytes().to_vec());
        }
        let bytes = self.in_index(|tree| {
            let found = value_at(self.index(), tree, place)?;
            let (bytes, block) = found.ok_or_else(|| bad_value(0, place, "nothing".into()))?;
            let there = shared_place(place.offset(), &bytes, self.hash_seed());
            match there {
                Ok(there) if there == place => Ok(bytes),
                Ok(there) => Err(bad_value(block, place, format!("hash {:016x}", there.hash))),
                Err(found) => Err(bad_value(block, place, found)),
            }
        })?;
        let values = self.values();
        values.remember(self.number, &values.intern(&bytes), place.slot);
        Ok(bytes)
    }

    /// For a logged attribute: the bytes before its value, and the value, if the value is shareable
    /// and the item holds no other attribute.
    pub(in crate::txn) fn shared_part(&self, entry: &Entry<'_>) -> Option<(Vec<u8>, Value)> {
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
        Some((own, self.values().intern(xattr.value)))
    }
}
