//! Listings: the entries of a directory in the order of their making, with stable cookies.
//!
//! The directory's lock is held while its entries are delivered, but not while their inodes are
//! looked at: inodes are locked in the order of their numbers only.

use crate::error::{Error, Result};
use crate::format::item::{FIRST_DIR_INDEX, decode_dir_entry};
use crate::format::key::Kind;
use crate::fs::FileSystem;
use crate::fs::locked::attrs;
use crate::types::{Attr, EntryRef, FileKind};

/// Entries that a listing with attributes reads before it looks at their inodes.
const PLUS_BATCH: usize = 64;

impl FileSystem {
    /// Delivers the entries behind `cookie` until `each` returns `false`: 0 is the start, "." has
    /// the cookie 1, ".." 2.
    ///
    /// # Errors
    /// Not a directory; damage.
    pub fn readdir(
        &self,
        dir: u64,
        cookie: u64,
        each: &mut dyn FnMut(EntryRef<'_>) -> bool,
    ) -> Result<()> {
        let inode = self.inode(dir)?;
        let state = inode.read();
        let parent = match attrs(&state)? {
            a if a.is_dir() => a.parent,
            _ => return Err(Error::NotDirectory),
        };
        for (own, name, ino) in [(1, &b"."[..], dir), (2, &b".."[..], parent)] {
            let entry = EntryRef {
                ino,
                kind: FileKind::Directory,
                name,
                cookie: own,
            };
            if cookie < own && !each(entry) {
                return Ok(());
            }
        }
        let from = cookie.saturating_add(1);
        self.core.items(
            &inode,
            &state,
            Kind::DirIndex,
            from,
            u64::MAX,
            &mut |index, item| {
                let entry = decode_dir_entry(&item.value).map_err(|found| {
                    Error::corrupt(0, "directory entry", format!("directory {dir}"), found)
                })?;
                Ok(each(EntryRef {
                    ino: entry.ino,
                    kind: FileKind::from_mode(entry.kind).unwrap_or(FileKind::File),
                    name: entry.name,
                    cookie: index,
                }))
            },
        )
    }

    /// As [`FileSystem::readdir`], with attributes. Takes a use of each inode for which `each`
    /// returned `true`, except "." and ".."; an entry for which it returned `false` was not
    /// delivered.
    ///
    /// # Errors
    /// Not a directory; damage.
    pub fn readdir_plus(
        &self,
        dir: u64,
        cookie: u64,
        each: &mut dyn FnMut(EntryRef<'_>, &Attr) -> bool,
    ) -> Result<()> {
        let mut cookie = cookie;
        loop {
            let mut batch = Vec::with_capacity(PLUS_BATCH);
            self.readdir(dir, cookie, &mut |e| {
                batch.push((e.ino, e.kind, e.name.to_vec(), e.cookie));
                batch.len() < PLUS_BATCH
            })?;
            let whole = batch.len() < PLUS_BATCH;
            for (ino, kind, name, at) in batch {
                cookie = at;
                let entry = EntryRef {
                    ino,
                    kind,
                    name: &name,
                    cookie: at,
                };
                let dots = at < FIRST_DIR_INDEX;
                let attr = match if dots {
                    self.getattr(ino)
                } else {
                    self.take_use(ino)
                } {
                    Ok(attr) => attr,
                    // Removed since the batch was read.
                    Err(Error::NotFound) => continue,
                    Err(e) => return Err(e),
                };
                if !each(entry, &attr) {
                    if !dots {
                        self.forget(ino, 1);
                    }
                    return Ok(());
                }
            }
            if whole {
                return Ok(());
            }
        }
    }
}
