//! Listings: the entries of a directory in the order of their indexes, with stable cookies. A
//! listing ends at the last entry that existed when it began, that is when it was read from cookie
//! 0.
//!
//! A listing goes over what is damaged, gives all entries that can be read, and fails at its end.
//!
//! The directory's lock is held while its entries are delivered, but not while their inodes are
//! read, because inodes are locked in order of their numbers only.

use crate::fs::FileSystem;
use crate::fs::locked::dir_attrs;
use crate::index::hides;
use crate::inode::Inode;
use crate::inode::listing_ends::Listing;
use crate::txn::Item;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::{FIRST_DIR_INDEX, decode_dir_entry};
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::types::{Attr, EntryRef, FileKind};

/// Entries that a listing with attributes reads before it loads their inodes.
const PLUS_BATCH: usize = 64;

impl FileSystem {
    /// Delivers the entries after `cookie` until `each` returns `false`. A listing begins with
    /// cookie 0. Entries that exist then and stay are delivered once; later entries are not. A
    /// directory distinguishes 256 listings that began at different states of it; an older listing,
    /// or one of a directory that was evicted from memory, also delivers some later entries.
    ///
    /// # Errors
    /// Not a directory. Damage that hides entries: of a listing that reaches its end, when all other
    /// entries were delivered, also those before `cookie` are meant.
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
        let (mut ended, mut bad) = (true, None);
        let mut deliver = |index, item: Item| {
            let entry = match decode_dir_entry(&item.value) {
                Ok(entry) => entry,
                Err(found) => {
                    let of = format!("directory {dir}");
                    let damage = || Error::corrupt(0, "directory entry", of, found);
                    bad.get_or_insert_with(damage);
                    return Ok(true);
                }
            };
            ended = each(EntryRef {
                ino: entry.ino,
                kind: FileKind::from_mode(entry.kind).unwrap_or(FileKind::File),
                name: entry.name,
                cookie: listing.cookie(index),
            });
            Ok(ended)
        };
        let mut unread = None;
        if from <= last {
            let range = (from, last);
            let items = self.items();
            unread = items.scan_readable(&inode, &state, Kind::DirIndex, range, &mut deliver)?;
        }
        if !ended {
            return Ok(());
        }
        // Earlier calls have gone over what is damaged before the cookie, and have noted it.
        let before = listing.after.min(last);
        if unread.is_none() && before >= FIRST_DIR_INDEX && self.core().storage().has_faults() {
            let items = self.items();
            unread = items.first_unread(dir, Kind::DirIndex, FIRST_DIR_INDEX, before)?;
        }
        unread.or(bad).map_or(Ok(()), Err)
    }

    /// Like [`FileSystem::readdir`], with attributes, which are `None` if they cannot be read. Takes
    /// one use of each inode for which `each` got them and returned `true`, except "." and ".."; an
    /// entry for which it returned `false` was not delivered.
    ///
    /// # Errors
    /// As [`FileSystem::readdir`].
    pub fn readdir_plus(
        &self,
        dir: u64,
        cookie: u64,
        each: &mut dyn FnMut(EntryRef<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let mut cookie = cookie;
        loop {
            let (batch, listed) = self.entries_after(dir, cookie, PLUS_BATCH);
            if let Err(error) = &listed
                && !hides(error)
            {
                // It will be asked again as a whole, by a thread that may wait if that is the reason.
                return listed;
            }
            let whole = batch.len() < PLUS_BATCH;
            for mut entry in batch {
                let before = std::mem::replace(&mut cookie, entry.cookie);
                let attr = match self.use_entry(dir, before, &mut entry) {
                    Ok(Some(attr)) => Some(attr),
                    Ok(None) => continue,
                    Err(error) if hides(&error) => None,
                    Err(error) => return Err(error),
                };
                if !each(entry.as_ref(), attr.as_ref()) {
                    if attr.is_some() && !entry.as_ref().is_dots() {
                        self.forget(entry.ino, 1);
                    }
                    return Ok(());
                }
            }
            listed?;
            if whole {
                return Ok(());
            }
        }
    }

    /// Up to `most` entries behind a cookie, and whether more are hidden by damage.
    fn entries_after(&self, dir: u64, cookie: u64, most: usize) -> (Vec<Listed>, Result<()>) {
        let mut found = Vec::with_capacity(most);
        let listed = self.readdir(dir, cookie, &mut |e| {
            found.push(Listed {
                ino: e.ino,
                kind: e.kind,
                name: e.name.to_vec(),
                cookie: e.cookie,
            });
            found.len() < most
        });
        (found, listed)
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
            let again = self.entries_after(dir, before, 1).0.pop();
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
