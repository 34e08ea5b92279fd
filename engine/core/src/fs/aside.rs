//! Space that is set aside for writes that are accepted before they are made.

use std::sync::Arc;

use crate::fs::FileSystem;
use crate::fs::room;
use crate::space::{Class, Delayed};
use cairnfs_disk::error::Result;

/// Space that nothing else can take before this is dropped. Writes to its tree that were accepted fit then.
pub struct SetAside {
    fs: Arc<FileSystem>,
    space: Delayed,
}

impl SetAside {
    /// Whether it is meant for writes to this tree.
    pub fn is_of(&self, fs: &Arc<FileSystem>) -> bool {
        Arc::ptr_eq(&self.fs, fs)
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        self.fs.core().release_delayed(self.fs.items(), self.space);
    }
}

impl FileSystem {
    /// Sets space aside for so many writes of at most so many blocks each. Makes no room for it.
    ///
    /// # Errors
    /// [`Error::NoSpace`](cairnfs_disk::error::Error::NoSpace); a failed or read-only volume.
    pub fn set_aside(self: &Arc<Self>, writes: u64, blocks: u64) -> Result<SetAside> {
        self.check_changeable()?;
        let each = room::most(blocks);
        let space = Delayed {
            blocks: each.blocks * writes,
            growth: each.growth * writes,
            leaves: each.leaves * writes,
        };
        self.core()
            .reserve_delayed(self.items(), space, Class::Ordinary)?;
        Ok(SetAside {
            fs: Arc::clone(self),
            space,
        })
    }
}
