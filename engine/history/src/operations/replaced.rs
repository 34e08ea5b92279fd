//! The states that publishes and restores have replaced: how many of them stay.
//!
//! They are snapshots with names of [`refs::undo_name`]; under another name one is left alone. Uses the
//! list of roots, and drops.

use cairnfs_core::fs::FileSystem;
use cairnfs_core::refs;
use cairnfs_disk::error::Error;

/// Drops the oldest replaced states of a branch, so that [`refs::REPLACED_KEPT`] are left; `kept` is the
/// name of the newest one. One that is in use stays until another time.
pub fn drop_oldest(fs: &FileSystem, kept: &str) {
    for old in refs::replaced_before(kept, &fs.roots()) {
        match fs.drop_id(old.id, old.name.as_deref().unwrap_or_default()) {
            // Or somebody else has dropped it.
            Ok(()) | Err(Error::Busy(_) | Error::NotFound) => {}
            // What made the newest one is done, whatever becomes of the oldest.
            Err(error) => {
                tracing::warn!(name = old.name, %error, "a replaced state was not dropped")
            }
        }
    }
}
