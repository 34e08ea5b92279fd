//! What an fsync does only because a mechanism is ablated ([`cairnfs_disk::mechanism`]).
//!
//! Nothing here changes what becomes durable.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::inode::{Inode, InodeState};
use crate::txn::reserve::Need;
use crate::txn::{Core, ItemStore};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::mechanism::Mechanism;
use cairnfs_disk::sync::Mutex;

/// Most items that an fsync writes again, so that a reservation for them is possible.
const MOST: usize = 1024;

/// An item of an inode: its kind, offset and value.
type OwnItem = (Kind, u64, Vec<u8>);

/// The inodes in memory that an fsync has logged whole, by root and number; empty unless
/// [`Mechanism::ChangesOnly`] is ablated.
#[derive(Default)]
pub struct LoggedWhole(Mutex<HashMap<(u32, u64), Weak<Inode>>>);

impl LoggedWhole {
    /// Adds an inode. Returns whether it was not there: it was evicted since, or never logged.
    fn is_new(&self, root: u32, inode: &Arc<Inode>) -> bool {
        let mut all = self.0.lock();
        let before = all.insert((root, inode.ino), Arc::downgrade(inode));
        before.is_none_or(|before| before.as_ptr() != Arc::as_ptr(inode))
    }
}

impl Core {
    /// Work that the mechanisms save for each inode of an fsync. Returns at once if they are not
    /// ablated.
    pub(super) fn ablated_fsync(&self, items: &ItemStore, inode: &Arc<Inode>) -> Result<()> {
        if self.journal.is_ablated(Mechanism::AttributesKnown) {
            self.search_attributes(items, inode)?;
        }
        if self.journal.is_ablated(Mechanism::ChangesOnly)
            && self.logged_whole.is_new(items.root(), inode)
        {
            self.log_whole(items, inode)?;
        }
        if self.journal.is_ablated(Mechanism::OneFlush) {
            self.journal.data_first(self.storage.stamp())?;
        }
        Ok(())
    }

    /// Commits the items again that an inode has below its current set, unless there is no space.
    fn log_whole(&self, items: &ItemStore, inode: &Arc<Inode>) -> Result<()> {
        let found = items_below(items, inode, &inode.read())?;
        let bytes = found.iter().map(|(_, _, value)| value.len()).sum();
        let Ok(reservation) = self.reserve(items, Need::items(found.len(), bytes, 0)) else {
            return Ok(());
        };
        let mut state = inode.write();
        if state.attrs.is_none() || items_below(items, inode, &state)? != found {
            return Ok(());
        }
        let mut commit = self.commit(items)?;
        for (kind, offset, value) in &found {
            commit.put(inode, &mut state, *kind, *offset, value, true);
        }
        let receipt = commit.finish(reservation);
        drop(state);
        self.throttle(receipt)
    }

    /// Searches the index and the dirty sets for extended attributes, even if there can be none.
    fn search_attributes(&self, items: &ItemStore, inode: &Inode) -> Result<()> {
        let first = Key::new(inode.ino, Kind::Xattr, 0);
        let last = Key::new(inode.ino, Kind::Xattr, u64::MAX);
        let state = inode.read();
        items.in_index(|tree| {
            let mut each = |key: &Key, _: &[u8]| Ok(*key <= last);
            self.index.scan(tree, &first, &mut each)
        })?;
        let sealed = state.sealed_set().into_iter();
        let found = sealed.flat_map(|set| set.range(Kind::Xattr, 0));
        std::hint::black_box(found.chain(state.current.range(Kind::Xattr, 0)).count());
        Ok(())
    }
}

/// The inode item and the data items of an inode that its current set does not have.
fn items_below(items: &ItemStore, inode: &Inode, state: &InodeState) -> Result<Vec<OwnItem>> {
    let mut found = Vec::new();
    for kind in [Kind::Inode, Kind::Inline] {
        let item = items.item(inode, state, kind, 0)?;
        found.extend(item.filter(|i| i.below).map(|i| (kind, 0, i.value)));
    }
    items.scan(
        inode,
        state,
        Kind::Extent,
        0,
        u64::MAX,
        &mut |offset, item| {
            if item.below {
                found.push((Kind::Extent, offset, item.value));
            }
            Ok(found.len() < MOST)
        },
    )?;
    Ok(found)
}
