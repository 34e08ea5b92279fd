//! Listings: the entries of a directory in the order of their indexes, with stable cookies. A listing
//! ends with what was there when it began: when it was asked for the cookie 0.
//!
//! The directory's lock is held while its entries are delivered, but not while their inodes are
//! looked at: inodes are locked in the order of their numbers only.

use crate::error::{Error, Result};
use crate::format::item::decode_dir_entry;
use crate::format::key::Kind;
use crate::fs::FileSystem;
use crate::fs::locked::dir_attrs;
use crate::inode::Inode;
use crate::inode::listings::Listing;
use crate::types::{Attr, EntryRef, FileKind};

/// Entries that a listing with attributes reads before it looks at their inodes.
const PLUS_BATCH: usize = 64;

impl FileSystem {
    /// Delivers the entries behind `cookie` until `each` returns `false`. A listing begins with the
    /// cookie 0; what was there then and stays is delivered once, later entries are not. 256
    /// listings begun at different states of a directory are told apart; an older one, or one of a
    /// directory that left memory, delivers some later entries, too.
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
        let mut state = inode.read();
        let listing = match state.listing(cookie, dir_attrs(&state)?.next_index) {
            Some(listing) => listing,
            None => {
                drop(state);
                let listing = begin(&inode, cookie)?;
                state = inode.read();
                listing
            }
        };
        let parent = dir_attrs(&state)?.parent;
        for (own, name, ino) in [(1, &b"."[..], dir), (2, &b".."[..], parent)] {
            let entry = EntryRef {
                ino,
                kind: FileKind::Directory,
                name,
                cookie: listing.cookie(own),
            };
            if listing.after < own && !each(entry) {
                return Ok(());
            }
        }
        let (from, last) = (listing.after + 1, listing.end - 1);
        if from > last {
            return Ok(());
        }
        self.core.items(
            &inode,
            &state,
            Kind::DirIndex,
            from,
            last,
            &mut |index, item| {
                let entry = decode_dir_entry(&item.value).map_err(|found| {
                    Error::corrupt(0, "directory entry", format!("directory {dir}"), found)
                })?;
                Ok(each(EntryRef {
                    ino: entry.ino,
                    kind: FileKind::from_mode(entry.kind).unwrap_or(FileKind::File),
                    name: entry.name,
                    cookie: listing.cookie(index),
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
                let dots = entry.is_dots();
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

/// A listing that needs a new end.
fn begin(dir: &Inode, cookie: u64) -> Result<Listing> {
    let mut state = dir.write();
    let next = dir_attrs(&state)?.next_index;
    Ok(state.begin_listing(cookie, next))
}
