//! Snapshots of the tree of files, and the list of roots.

use crate::error::Result;
use crate::fault::{self, InjectedFault};
use crate::format::root::RootState;
use crate::fs::FileSystem;
use crate::fs::observe::Call;
use crate::types::RootInfo;

impl FileSystem {
    /// Makes a snapshot: a read-only tree of files that stays as the volume's files are now, with
    /// every call that has returned. It is durable when this returns. Unwritten data is written
    /// back first; besides that, the time does not depend on the number of files, but includes the
    /// merge of an earlier snapshot if that was not merged yet.
    ///
    /// # Errors
    /// [`Error::Exists`](crate::Error::Exists); a name that no root can have; too many roots; a
    /// read-only volume; no space; the device's failure.
    pub fn snapshot(&self, name: &str) -> Result<()> {
        self.observed(Call::Snapshot { name }, || {
            self.lifecycle.check_open()?;
            self.core.check_changeable()?;
            fault::unless(InjectedFault::SyncWithoutPages, || self.write_back_all())?;
            self.with_room(|| self.core.snapshot(name))
        })
    }

    /// The roots of the volume: the tree of its files, and its snapshots, in order of their ids.
    pub fn roots(&self) -> Vec<RootInfo> {
        let list = self.core.roots().list().into_iter();
        let info = |(id, root): (u32, crate::format::root::Root)| RootInfo {
            id,
            name: Some(root.name).filter(|name| !name.is_empty()),
            parent: Some(root.parent).filter(|parent| *parent != 0),
            writable: root.state == RootState::Head,
            boundary: root.boundary,
            created: root.created.into(),
        };
        list.map(info).collect()
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/snapshots.rs"]
mod tests;
