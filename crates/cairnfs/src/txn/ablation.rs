//! What an fsync does only because a mechanism is ablated ([`crate::mechanism`]).
//!
//! Nothing here changes what becomes durable.

use crate::error::Result;
use crate::format::key::{Key, Kind};
use crate::inode::Inode;
use crate::mechanism::Mechanism;
use crate::txn::Core;

impl Core {
    /// Work that the mechanisms save for each inode of an fsync. Returns at once if they are not
    /// ablated.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub(super) fn ablated_fsync(&self, inode: &Inode) -> Result<()> {
        if self.journal.is_ablated(Mechanism::AttributesKnown) {
            self.search_attributes(inode)?;
        }
        if self.journal.is_ablated(Mechanism::OneFlush) {
            self.journal.data_first(self.storage.stamp())?;
        }
        Ok(())
    }

    /// Searches the index and the dirty sets for extended attributes, even if there can be none.
    fn search_attributes(&self, inode: &Inode) -> Result<()> {
        let first = Key::new(inode.ino, Kind::Xattr, 0);
        let last = Key::new(inode.ino, Kind::Xattr, u64::MAX);
        let state = inode.read();
        self.items.in_index(|tree| {
            let mut each = |key: &Key, _: &[u8]| Ok(*key <= last);
            self.index.scan(tree, &first, &mut each)
        })?;
        let sealed = state.sealed_set().into_iter();
        let found = sealed.flat_map(|set| set.range(Kind::Xattr, 0));
        std::hint::black_box(found.chain(state.current.range(Kind::Xattr, 0)).count());
        Ok(())
    }
}
