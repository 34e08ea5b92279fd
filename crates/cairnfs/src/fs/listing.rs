//! Listings: the entries of a directory in the order of their indexes, with stable cookies. A
//! listing ends at the last entry that existed when it began, that is when it was read from cookie
//! 0.
//!
//! The directory's lock is held while its entries are delivered, but not while their inodes are
//! read, because inodes are locked in order of their numbers only.

use crate::error::{Error, Result};
use crate::format::item::decode_dir_entry;
use crate::format::key::Kind;
use crate::fs::FileSystem;
use crate::fs::locked::dir_attrs;
use crate::inode::Inode;
use crate::inode::listings::Listing;
use crate::types::{Attr, EntryRef, FileKind};

/// Entries that a listing with attributes reads before it loads their inodes.
const PLUS_BATCH: usize = 64;

impl FileSystem {
    /// Delivers the entries after `cookie` until `each` returns `false`. A listing begins with
    /// cookie 0. Entries that exist then and stay are delivered once; later entries are not. A
    /// directory distinguishes 256 listings that began at different states of it; an older listing,
    /// or one of a directory that was evicted from memory, also delivers some later entries.
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

    /// Like [`FileSystem::readdir`], with attributes. Takes one use of each inode for which `each`
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

/// Begins a listing, which records its end.
fn begin(dir: &Inode, cookie: u64) -> Result<Listing> {
    let mut state = dir.write();
    let next = dir_attrs(&state)?.next_index;
    Ok(state.begin_listing(cookie, next))
}
