//! Access control lists, which the kernel fetches and caches separately from the mode.
//!
//! The kernel reads the mode, possibly from before a change, and then the list, which it may also
//! have fetched before a change. In a mode that belongs to a list, the group bits hold the mask. If
//! the kernel takes such a mode for one without a list, it grants the group the mask's permissions.
//! So the kernel must never combine an inode's new mode with "no list", nor its old mode with the
//! information that the list was removed:
//!
//! - Before a list is set on an inode without one, the kernel drops its cached answer. A new
//!   request for the list waits until mode and list are changed.
//! - An inode whose list was removed is still reported to have one until the kernel forgets the
//!   inode: the minimal list that is equivalent to its mode.
//!
//! The same holds when another tree takes the place of the mounted one.
//!
//! An overlay above the mount does not learn the mode that setfacl(1) sets: it copies the kernel's mode
//! of the inode when SETXATTR returns, and that reply carries none. The daemon could bring the new mode
//! before only by a stat(2) of its own mount, which it would have to find through namespaces, and
//! would wait for its own loops.

use std::collections::HashSet;

use cairnfs::{Error, Result};
use cairnfs_disk::acl::{ACCESS, Acl};
use cairnfs_disk::types::KillPrivileges;
use parking_lot::RwLock;

use crate::convert::Outcome;
use crate::trees::Place;

/// Number of shards, selected by node id.
const PARTS: usize = 32;

/// The access control list state of a mount.
#[derive(Default)]
pub struct Lists {
    /// Nodes whose list was removed. Locked exclusively while a list is set, shared while one is
    /// read.
    had_one: [RwLock<HashSet<u64>>; PARTS],
}

impl Lists {
    /// Returns the access list of the inode of a node id.
    ///
    /// # Errors
    /// `ENODATA` if it has none; the errors of `place` and the engine.
    pub fn read(&self, node: u64, place: impl FnOnce() -> Outcome<Place>) -> Outcome<Vec<u8>> {
        let had_one = self.part(node)?.read();
        let place = place()?;
        Ok(if had_one.contains(&node) {
            place.fs.access_list(place.ino)?
        } else {
            place.fs.getxattr(place.ino, ACCESS)?
        })
    }

    /// Sets the access list of an inode, and its mode. `forget` makes the kernel drop its cached
    /// mode and list; it must not wait.
    ///
    /// # Errors
    /// The engine's errors.
    pub fn set(
        &self,
        place: &Place,
        node: u64,
        (value, kill): (&[u8], KillPrivileges),
        forget: impl FnOnce(),
    ) -> Outcome<()> {
        let mut had_one = self.part(node)?.write();
        let has_one = match place.fs.getxattr(place.ino, ACCESS) {
            Ok(_) => true,
            Err(Error::NoAttribute) => false,
            Err(error) => return Err(error.into()),
        };
        match has_one {
            true if Acl::parse(value).is_some_and(|list| list.is_minimal()) => {
                had_one.insert(node);
            }
            true => {}
            false => forget(),
        }
        Ok(place.fs.set_access_list(place.ino, value, kill)?)
    }

    /// Exchanges trees, so that modes and lists change together. `forget` makes the kernel drop the
    /// cached modes and lists of the nodes that get a list, and must not wait; `switch` exchanges the
    /// trees, and returns the nodes that go on and lose theirs besides its own result.
    pub fn switch<T>(&self, forget: impl FnOnce(), switch: impl FnOnce() -> (T, Vec<u64>)) -> T {
        let mut parts: Vec<_> = self.had_one.iter().map(RwLock::write).collect();
        forget();
        let (result, lost) = switch();
        for node in lost {
            if let Some(part) = parts.get_mut(node as usize % PARTS) {
                part.insert(node);
            }
        }
        result
    }

    /// The kernel has dropped all its references to the inode, and with them its cached mode.
    pub fn forgotten(&self, node: u64) {
        if let Ok(part) = self.part(node)
            && part.read().contains(&node)
        {
            part.write().remove(&node);
        }
    }

    fn part(&self, node: u64) -> Result<&RwLock<HashSet<u64>>> {
        let part = self.had_one.get(node as usize % PARTS);
        part.ok_or(Error::Invalid("a node without a part"))
    }
}
