//! Snapshots that give way when space runs out: before a call fails with ENOSPC, they are dropped one
//! after another, in an order that the front end chooses. Without a choice, the states that publishes
//! and restores have replaced are.

use crate::fs::FileSystem;
use crate::refs;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::types::RootInfo;

/// Chooses the roots that give way, among all roots: their ids, the first one first.
type Choice = Box<dyn Fn(&[RootInfo]) -> Vec<u32> + Send + Sync>;

/// What gives way in a volume.
#[derive(Default)]
pub(super) struct Yielding {
    choice: Mutex<Option<Choice>>,
}

impl Yielding {
    fn among(&self, roots: &[RootInfo]) -> Vec<u32> {
        let choice = self.choice.lock();
        match &*choice {
            Some(choice) => choice(roots),
            None => refs::replaced(roots).iter().map(|root| root.id).collect(),
        }
    }
}

impl FileSystem {
    /// Sets which roots are dropped when a call finds no space, in place of an earlier choice; at first
    /// it is [`refs::replaced`]. It gets all roots, and returns ids in the order in which they go. A root that is in use stays.
    pub fn set_yielding(&self, choice: impl Fn(&[RootInfo]) -> Vec<u32> + Send + Sync + 'static) {
        *self.engine.yielding.choice.lock() = Some(Box::new(choice));
    }

    /// Ends a checkpoint that is being shipped if that frees anything, else drops the next root that
    /// gives way. Returns whether there was one.
    pub(super) fn give_way(&self) -> Result<bool> {
        if self.core().break_capture()? {
            tracing::info!("a checkpoint gave way for space");
            return Ok(true);
        }
        let roots = self.roots();
        for id in self.engine.yielding.among(&roots) {
            let found = roots.iter().find(|root| root.id == id);
            let name = found
                .and_then(|root| root.name.as_deref())
                .unwrap_or_default();
            match self.drop_id(id, name) {
                Ok(()) => {
                    tracing::info!(name, "dropped for space");
                    return Ok(true);
                }
                // In use, or dropped or renamed by somebody else.
                Err(Error::Busy(_) | Error::NotFound | Error::NotPermitted(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}
