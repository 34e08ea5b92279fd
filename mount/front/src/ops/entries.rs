//! Operations on names: lookups, listings, and what makes, moves and removes entries. They take lookup
//! references, and return those that the kernel does not need any more.

use std::sync::Arc;

use cairnfs::Error;
use cairnfs::fs::FileSystem;
use cairnfs_disk::acl::{self, Acl};
use cairnfs_disk::types::{Attr, EntryRef, FileKind, KillPrivileges, RenameMode};

use crate::convert::Refusal;
use crate::ops::{Caller, Found, NewEntry, Ops, Outcome};
use crate::program_files::DOOR;
use crate::trees::{Place, STALE};

/// The access control lists that a new inode inherits.
#[derive(Default)]
pub(super) struct Inherited {
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

/// An inode without names or references, whose removal takes long.
pub struct Unused {
    fs: Arc<FileSystem>,
    ino: u64,
}

impl Ops {
    /// Looks up a name; `None` if it does not exist. Takes a lookup reference. The kernel asks for
    /// "." and ".." to resolve a file handle; `dir` is then an untrusted number: of an inode of any
    /// type, or of one that does not exist.
    ///
    /// # Errors
    /// The engine's errors, as for all operations here. `ESTALE` for "." and ".." of an inode that
    /// does not exist, and for a name in a directory that the tree that is mounted does not have.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Outcome<Option<Found>> {
        let stale = |error| match error {
            Error::NotFound => STALE,
            other => Refusal::from(other),
        };
        if let Some(door) = self.door_at(dir, name) {
            return Ok(Some(door));
        }
        match name {
            _ if dir == DOOR => self.through_door(name, true).map(Some),
            b"." => self.lookup_node(dir).map(Some),
            b".." => self.taking(dir, None, |dir| {
                let parent = dir.fs.lookup_parent(dir.ino).map_err(stale)?;
                Ok(Some(self.found(parent)))
            }),
            _ => self.taking(dir, Some(name), |place| {
                match place.fs.lookup(place.ino, name) {
                    Ok(attr) => Ok(Some(self.found(attr))),
                    Err(Error::NotFound) => {
                        self.dirs.absent(dir, name);
                        Ok(None)
                    }
                    Err(e) => Err(e.into()),
                }
            }),
        }
    }

    /// Takes a reference to an inode that is found under this id, and no other one, afterwards.
    fn lookup_node(&self, node: u64) -> Outcome<Found> {
        self.dirs.attributes_told(node);
        let (_held, place) = loop {
            let held = self.trees.hold_references();
            let place = self.trees.place(node)?;
            match self.leased(&place.fs, place.ino) {
                None => break (held, place),
                Some(channel) => {
                    drop(held);
                    self.deferrals.end_leases(channel);
                }
            }
        };
        let attr = match place.fs.lookup_number(place.ino) {
            Ok(attr) => attr,
            Err(Error::NotFound) => return Err(STALE),
            Err(other) => return Err(other.into()),
        };
        // From then on the binding of a bound id does not end.
        self.trees.took_by_id(node);
        let is_its_id = match self.trees.place(node) {
            Ok(now) if now.bound => place.bound,
            Ok(_) => !place.bound && self.trees.known(place.ino) == node,
            Err(_) => false,
        };
        if is_its_id {
            Ok(Found {
                node,
                attr: place.shown(attr),
            })
        } else {
            let uses = self.trees.gives_back(node, 1);
            place.fs.forget(place.ino, uses);
            Err(STALE)
        }
    }

    /// Returns `uses` lookup references, but no more than were taken. Returns an inode without names
    /// that is left, if its removal takes long; the caller then calls [`Ops::remove_unused`].
    pub fn forget(&self, node: u64, uses: u64) -> Option<Unused> {
        let _held = self.trees.hold_references();
        self.full.remove(node);
        self.lists.forgotten(node);
        self.listings.forgotten(node);
        let place = self.trees.place(node).ok()?;
        let uses = self.trees.gives_back(node, uses);
        self.dirs
            .forgotten(node, || self.trees.has_references(node));
        if uses == 0 {
            return None;
        }
        let left = place.fs.forget_at_once(place.ino, uses);
        self.losses
            .forget(place.file(), || left || !has_name(&place.fs, place.ino));
        if place.bound {
            self.trees.release(node);
        }
        let Place { fs, ino, .. } = place;
        left.then_some(Unused { fs, ino })
    }

    /// Removes an inode without names or references.
    pub fn remove_unused(&self, unused: Unused) {
        unused.fs.remove_unused(unused.ino);
    }

    /// Returns the target of a symlink.
    pub fn readlink(&self, node: u64) -> Outcome<Vec<u8>> {
        self.on(node, |link| {
            let target = link.fs.readlink(link.ino)?;
            self.becomes_stale(link);
            Ok(target)
        })
    }

    /// Creates a file, FIFO, socket or device. Takes a lookup reference.
    pub fn mknod(&self, new: NewEntry<'_>, rdev: u64) -> Outcome<Found> {
        if new.dir == DOOR {
            return self.through_door(new.name, false);
        }
        self.taking(new.dir, None, |dir| {
            let (mode, lists) = inherit(dir, &new)?;
            let made = make(dir, &new, (mode, rdev), &lists)?;
            Ok(self.made((new.dir, new.name), made))
        })
    }

    /// Creates a regular file without a name. Takes a lookup reference.
    pub fn tmpfile(&self, new: NewEntry<'_>) -> Outcome<Found> {
        self.taking(new.dir, None, |dir| {
            let (mode, lists) = inherit(dir, &new)?;
            let attr = dir.fs.tmpfile(dir.ino, mode, new.caller.creds())?;
            if let Some(list) = &lists.access {
                let set = dir.fs.set_access_list(attr.ino, list, KillPrivileges::No);
                // The file was not returned to a caller yet.
                set.inspect_err(|_| dir.fs.forget(attr.ino, 1))?;
            }
            Ok(self.found(attr))
        })
    }

    /// Creates a directory. Takes a lookup reference.
    pub fn mkdir(&self, new: NewEntry<'_>) -> Outcome<Found> {
        self.taking(new.dir, None, |dir| {
            let (mode, lists) = inherit(dir, &new)?;
            let mode = libc::S_IFDIR | mode & !libc::S_IFMT;
            let made = make(dir, &new, (mode, 0), &lists)?;
            Ok(self.made((new.dir, new.name), made))
        })
    }

    /// Creates a symlink. Takes a lookup reference.
    pub fn symlink(&self, caller: Caller, dir: u64, name: &[u8], target: &[u8]) -> Outcome<Found> {
        self.taking(dir, None, |place| {
            let made = place.fs.symlink(place.ino, name, target, caller.creds())?;
            Ok(self.made((dir, name), made))
        })
    }

    /// Adds a name to an inode. Takes a lookup reference.
    pub fn link(&self, node: u64, dir: u64, name: &[u8]) -> Outcome<Found> {
        self.taking(dir, None, |place| {
            let inode = self.trees.place(node)?.of_mounted()?;
            let linked = place.fs.link(inode.ino, place.ino, name)?;
            Ok(self.made((dir, name), linked))
        })
    }

    /// Removes a name of an inode that is not a directory.
    pub fn unlink(&self, dir: u64, name: &[u8]) -> Outcome<()> {
        self.changing(dir, |dir| Ok(dir.fs.unlink(dir.ino, name)?))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: u64, name: &[u8]) -> Outcome<()> {
        self.changing(dir, |dir| Ok(dir.fs.rmdir(dir.ino, name)?))
    }

    /// Renames, with the flags of `renameat2`.
    pub fn rename(
        &self,
        caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Outcome<()> {
        const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
        let whiteout = |replace| RenameMode::Whiteout {
            owner: caller.creds(),
            replace,
        };
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            libc::RENAME_WHITEOUT => whiteout(true),
            WHITEOUT_NOREPLACE => whiteout(false),
            _ => return Err(Refusal(libc::EINVAL)),
        };
        self.changing(from.0, |old| {
            let new = self.trees.place(to.0)?;
            if !Arc::ptr_eq(&old.fs, &new.fs) {
                return Err(STALE);
            }
            old.fs.rename(old.ino, from.1, new.ino, to.1, mode)?;
            self.dirs.made(to.0, to.1);
            if to.0 != from.0 {
                self.dirs.changed(to.0);
            }
            Ok(())
        })
    }

    /// An inode for which the kernel has made a name, to which [`Self::taking`] took a reference.
    fn made(&self, (dir, name): (u64, &[u8]), attr: Attr) -> Found {
        self.dirs.made(dir, name);
        self.dirs.changed(dir);
        self.found(attr)
    }

    /// As [`Self::on`], for an operation by which the kernel changes entries of a directory. It holds
    /// references, so that no program changes names meanwhile.
    fn changing(&self, dir: u64, op: impl Fn(&Place) -> Outcome<()>) -> Outcome<()> {
        self.on(dir, |place| {
            let _held = self.trees.hold_references();
            op(place)?;
            self.dirs.changed(dir);
            Ok(())
        })
    }

    /// Calls `each` for the entries after a cookie until it returns false.
    pub fn readdir(
        &self,
        dir: u64,
        cookie: u64,
        each: &mut dyn FnMut(EntryRef<'_>) -> bool,
    ) -> Outcome<()> {
        let _held = self.trees.hold_references();
        self.dirs.listed(dir);
        let dir = self.trees.place(dir)?.of_mounted()?;
        if is_removed(&dir.fs, dir.ino) {
            return Ok(());
        }
        Ok(dir.fs.readdir(dir.ino, cookie, &mut |entry| {
            let ino = self.trees.known(entry.ino);
            each(EntryRef { ino, ..entry })
        })?)
    }

    /// Like [`Ops::readdir`], with attributes, which are `None` if they cannot be read. Takes a lookup
    /// reference to each inode for which `each` got them and returned true, except "." and "..".
    pub fn readdir_plus(
        &self,
        dir: u64,
        cookie: u64,
        each: &mut dyn FnMut(EntryRef<'_>, Option<&Found>) -> bool,
    ) -> Outcome<()> {
        let _no_leases = self.deferrals.suspend();
        let _held = self.trees.hold_references();
        let node = dir;
        self.dirs.listed(node);
        let dir = self.trees.place(node)?.of_mounted()?;
        if is_removed(&dir.fs, dir.ino) {
            return Ok(());
        }
        let (mut sent, mut left_out) = (0, None);
        let listed = dir.fs.readdir_plus(dir.ino, cookie, &mut |entry, attr| {
            let Some(attr) = attr else {
                return each(entry, None);
            };
            let node = if entry.is_dots() {
                attr.ino
            } else {
                self.trees.took(attr.ino)
            };
            if attr.kind == FileKind::Directory {
                self.dirs.attributes_told(node);
            }
            let fits = each(entry, Some(&Found { node, attr: *attr }));
            sent += u32::from(fits);
            if !fits && !entry.is_dots() {
                left_out = Some(node);
            }
            fits
        });
        // The engine has not counted the one that did not fit.
        if let Some(node) = left_out {
            self.trees.gives_back(node, 1);
            self.trees.release(node);
        }
        listed?;
        self.listings.sent(node, cookie == 0, sent);
        if cookie == 0 {
            self.becomes_stale(&dir);
        }
        Ok(())
    }
}

/// Whether an inode exists and has a name.
pub(super) fn has_name(fs: &FileSystem, ino: u64) -> bool {
    fs.getattr(ino).is_ok_and(|attr| attr.nlink > 0)
}

/// Whether an inode has no name any more. A directory without one has no entries: of one that it has removed
/// itself, the kernel does not ask.
pub(super) fn is_removed(fs: &FileSystem, ino: u64) -> bool {
    fs.getattr(ino).is_ok_and(|attr| attr.nlink == 0)
}

fn list(dir: &Place, name: &[u8]) -> Outcome<Option<Acl>> {
    match dir.fs.getxattr(dir.ino, name) {
        Ok(value) => Ok(Acl::parse(&value)),
        Err(Error::NoAttribute | Error::Unsupported(_)) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Returns the mode of a new inode, and the access control lists that it inherits from its
/// directory.
pub(super) fn inherit(dir: &Place, new: &NewEntry<'_>) -> Outcome<(u32, Inherited)> {
    let Some(default) = list(dir, acl::DEFAULT)? else {
        return Ok((new.mode & !new.umask, Inherited::default()));
    };
    let mut access = default.clone();
    let mode = access.restrict(new.mode);
    let is_dir = new.mode & libc::S_IFMT == libc::S_IFDIR;
    let lists = Inherited {
        access: (!access.is_minimal()).then(|| access.to_bytes()),
        default: is_dir.then(|| default.to_bytes()),
    };
    Ok((mode, lists))
}

/// Creates an inode together with its inherited lists, atomically.
pub(super) fn make(
    dir: &Place,
    new: &NewEntry<'_>,
    mode: (u32, u64),
    lists: &Inherited,
) -> Outcome<Attr> {
    let lists = [(acl::ACCESS, &lists.access), (acl::DEFAULT, &lists.default)];
    let given: Vec<_> = lists
        .iter()
        .filter_map(|(name, list)| Some((*name, list.as_deref()?)))
        .collect();
    let creds = new.caller.creds();
    Ok(dir.fs.make_with(dir.ino, new.name, mode, creds, &given)?)
}
