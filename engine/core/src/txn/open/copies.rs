//! Space for copies of inherited index nodes, reserved when a volume is opened.
//!
//! Uses the table of roots, the index and the units of [`crate::txn::copies`]. No other thread uses the
//! volume yet.

use std::sync::Arc;

use crate::inode::Inode;
use crate::txn::change::touched;
use crate::txn::{Core, ItemStore};
use cairnfs_disk::error::Result;

/// Leaves that the replayed changes of a head may touch. The log does not tell which extents were
/// deleted together, so each of them may be the only one in its leaf.
fn replayed_leaves(items: &ItemStore) -> u64 {
    let of_inode = |inode: Arc<Inode>| {
        let state = inode.read();
        let items = state.current.iter();
        items
            .map(|((kind, _), _)| touched(kind, false))
            .sum::<u64>()
    };
    items.table().all().into_iter().map(of_inode).sum()
}

/// Reserves copies for what the log has of all heads that inherit. Without space for copies of all
/// nodes, those that the heads own are counted, which need none.
///
/// # Errors
/// A damaged bitmap or index.
pub(super) fn reserve_copies(core: &Core) -> Result<()> {
    let (copies, space) = (core.merger.copies(), &core.space);
    let mut heirs = Vec::new();
    for id in core.roots.merged_heads() {
        if core.roots.merged_inherited(id) > 0 {
            let items = core.heads.get(id);
            let replayed = items.map_or(0, |items| replayed_leaves(&items));
            let heir = core.heir(id)?;
            copies.has_inherited(&heir, replayed);
            heirs.push(heir);
        }
    }
    copies.put_back(space, 0)?;
    if copies.lacks_units(space) {
        for heir in heirs {
            let inherited = heir.nodes.saturating_sub(core.own_nodes(heir.id)?);
            copies.lower(space, heir.id, inherited);
        }
        copies.put_back(space, 0)?;
    }
    Ok(())
}
