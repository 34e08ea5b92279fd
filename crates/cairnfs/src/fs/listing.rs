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
        self.items().scan(
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
            let batch = self.entries_after(dir, cookie, PLUS_BATCH)?;
            let whole = batch.len() < PLUS_BATCH;
            for mut entry in batch {
                let before = std::mem::replace(&mut cookie, entry.cookie);
                let Some(attr) = self.use_entry(dir, before, &mut entry)? else {
                    continue;
                };
                if !each(entry.as_ref(), &attr) {
                    if !entry.as_ref().is_dots() {
                        self.forget(entry.ino, 1);
                    }
                    return Ok(());
                }
            }
            if whole {
                return Ok(());
            }
        }
    }

    /// Up to `most` entries behind a cookie.
    fn entries_after(&self, dir: u64, cookie: u64, most: usize) -> Result<Vec<Listed>> {
        let mut found = Vec::with_capacity(most);
        self.readdir(dir, cookie, &mut |e| {
            found.push(Listed {
                ino: e.ino,
                kind: e.kind,
                name: e.name.to_vec(),
                cookie: e.cookie,
            });
            found.len() < most
        })?;
        Ok(found)
    }

    /// Takes a use of the inode of an entry that was read behind the cookie `before`, and returns
    /// its attributes. If the entry was replaced or renamed since, it is read again; `None` if it
    /// was removed.
    fn use_entry(&self, dir: u64, before: u64, entry: &mut Listed) -> Result<Option<Attr>> {
        if entry.as_ref().is_dots() {
            return self.getattr(entry.ino).map(Some);
        }
        loop {
            match self.take_use(entry.ino) {
                // Unlinked, but still in use.
                Ok(attr) if attr.nlink == 0 => self.forget(entry.ino, 1),
                Ok(attr) => return Ok(Some(attr)),
                Err(Error::NotFound) => {}
                Err(e) => return Err(e),
            }
            let again = self.entries_after(dir, before, 1)?.pop();
            match again.filter(|a| a.cookie == entry.cookie && a.ino != entry.ino) {
                Some(again) => *entry = again,
                None => return Ok(None),
            }
        }
    }
}

/// An entry of a batch.
struct Listed {
    ino: u64,
    kind: FileKind,
    name: Vec<u8>,
    cookie: u64,
}

impl Listed {
    fn as_ref(&self) -> EntryRef<'_> {
        EntryRef {
            ino: self.ino,
            kind: self.kind,
            name: &self.name,
            cookie: self.cookie,
        }
    }
}

/// Begins a listing, which records its end.
fn begin(dir: &Inode, cookie: u64) -> Result<Listing> {
    let mut state = dir.write();
    let next = dir_attrs(&state)?.next_index;
    Ok(state.begin_listing(cookie, next))
}
