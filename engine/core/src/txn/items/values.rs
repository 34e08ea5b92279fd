//! Shared values as the index holds them: reading one at its place.

use crate::index::{Index, Tree};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::xattr::{SharedRef, decode_shared_bytes, decode_shared_value};

/// The error for a reference to a missing or different value, in the leaf at `block`.
pub(in crate::txn) fn bad_value(block: u64, place: SharedRef, found: String) -> Error {
    let expected = format!("a value with hash {:016x}, slot {}", place.hash, place.slot);
    Error::corrupt(block, "shared attribute value", expected, found)
}

/// The value at a place in the index, and its leaf's block.
pub fn value_at(index: &Index, tree: &Tree, place: SharedRef) -> Result<Option<(Vec<u8>, u64)>> {
    let Some((mut item, block)) = index.get_at(tree, &place.key())? else {
        return Ok(None);
    };
    let bad = |found| bad_value(block, place, found);
    if let Some(len) = decode_shared_value(&item).map_err(bad)?.1.map(<[u8]>::len) {
        return Ok(Some((item.split_off(item.len() - len), block)));
    }
    let found = index.get_at(tree, &place.bytes_key())?;
    let (bytes, block) = found.ok_or_else(|| bad("uses without a value".into()))?;
    decode_shared_bytes(&bytes).map_err(|found| bad_value(block, place, found))?;
    Ok(Some((bytes, block)))
}

#[cfg(test)]
#[cfg(shuttle)]
impl crate::txn::items::ItemStore {
    /// The use counts of all values in the index, in order of their keys.
    pub fn shared_uses(&self) -> Result<Vec<u64>> {
        let mut uses = Vec::new();
        let from = cairnfs_disk::format::xattr::shared_key(0);
        self.index().scan(&self.tree(), &from, &mut |key, item| {
            let shared = key.kind == from.kind && key.object == from.object;
            if shared && let Ok((count, _)) = decode_shared_value(item) {
                uses.push(count);
            }
            Ok(shared)
        })?;
        Ok(uses)
    }
}
