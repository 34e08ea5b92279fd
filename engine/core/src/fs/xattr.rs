//! Extended attributes. One item holds all attributes of an inode whose names have the same hash.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::fs::FileSystem;
use crate::fs::flags::may_change;
use crate::fs::locked::{attrs, attrs_mut, found_attrs};
use crate::fs::observe::Call;
use crate::fs::sizes::INODE_LEN;
use crate::inode::attrs::Attrs;
use crate::inode::{Inode, InodeState, KNOWN_ATTRIBUTES};
use crate::txn::{Attribute, Changes, Commit, Need, Receipt, Reservation};
use crate::values::{Value, Values};
use cairnfs_disk::acl::{ACCESS, Acl, DEFAULT};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::received::RECEIVED;
use cairnfs_disk::format::xattr::{XATTR_HEAD, XattrRef, encode_xattr, xattr_head};
use cairnfs_disk::format::{
    MAX_NAME, MAX_OWN_VALUE, MAX_VALUE, MAX_XATTR_NAMES, MAX_XATTR_VALUE, ROOT_INO,
};
use cairnfs_disk::types::{FileKind, KillPrivileges, XattrMode};

/// Hash and name of an attribute.
type Name<'a> = (u64, &'a [u8]);

/// Name and value of an attribute.
pub type Given<'a> = (&'a [u8], &'a [u8]);

const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Refuses a malformed value of the two access list attributes.
fn check_list(name: &[u8], value: &[u8]) -> Result<()> {
    if (name == ACCESS || name == DEFAULT) && Acl::parse(value).is_none() {
        return Err(Error::Invalid("not an access control list"));
    }
    Ok(())
}

/// Whether a name is one of the two known `system.` names. The kernel checks no permission for that
/// namespace, so any other name in it would be open to every caller.
fn is_known_system(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Refuses names outside Linux's namespaces, unknown `system.` names, and [`RECEIVED`]: copied to
/// another tree, it would tell of files that this one does not have.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME {
        return Err(Error::NameTooLong);
    }
    if name == RECEIVED {
        return Err(Error::NotPermitted(
            "only receiving a stream sets this attribute",
        ));
    }
    if is_known_system(name) {
        return Ok(());
    }
    let bare = NAMESPACES
        .iter()
        .find_map(|space| name.strip_prefix(*space))
        .ok_or(Error::Unsupported(
            "attributes begin with user., trusted. or security., or are access lists",
        ))?;
    if bare.is_empty() || bare.contains(&0) {
        return Err(Error::Invalid(
            "an attribute's name is empty, or has NUL in it",
        ));
    }
    Ok(())
}

/// As [`check_name`], for the name of an attribute that is there or not.
fn check_seen(name: &[u8]) -> Result<()> {
    if name == RECEIVED {
        Err(Error::NoAttribute)
    } else {
        check_name(name)
    }
}

/// Refuses `user.` attributes on inodes other than files and directories.
fn check_kind(name: &[u8], kind: FileKind) -> Result<()> {
    if name.starts_with(b"user.") && !matches!(kind, FileKind::File | FileKind::Directory) {
        return Err(Error::NotPermitted(
            "user. attributes are for files and directories",
        ));
    }
    Ok(())
}

/// The attributes of an inode that have a name's hash.
#[derive(Default)]
pub(super) struct Found {
    /// There is an attribute with that name.
    existed: bool,
    /// The other attributes with that hash, in log format.
    others: Vec<u8>,
    /// They were found below the current dirty set.
    below: bool,
}

impl Found {
    /// Bytes of the other attributes.
    pub fn logged(&self) -> usize {
        self.others.len()
    }

    /// The other attributes, and whether they were found below the current dirty set.
    pub fn parts(self) -> (Vec<u8>, bool) {
        (self.others, self.below)
    }
}

impl FileSystem {
    /// Whether the inode is known to have no attribute with this name hash. Reads memory only.
    pub(super) fn lacks(state: &InodeState, hash: u64) -> Result<bool> {
        Ok(attrs(state)?.xattrs == 0 || state.lacks_attribute(hash))
    }

    /// The attributes of an inode that have a name's hash.
    pub(super) fn find_attribute(
        &self,
        inode: &Inode,
        state: &InodeState,
        at: Name<'_>,
    ) -> Result<Found> {
        if Self::lacks(state, at.0)? {
            return Ok(Found::default());
        }
        if self.items().is_alone(state, at) {
            return Ok(Found {
                existed: true,
                ..Found::default()
            });
        }
        let (mut others, below) = self.items().attributes(inode, state, at.0)?;
        let before = others.len();
        others.retain(|x| x.name != at.1);
        Ok(Found {
            existed: others.len() < before,
            others: self.logged(others)?,
            below,
        })
    }

    /// Caches the set of an inode's attributes if they are few: a caller asked for one that is
    /// missing, and is likely to ask again.
    pub(super) fn remember_attributes(&self, inode: &Inode) -> Result<()> {
        let mut state = inode.write();
        let count = attrs(&state)?.xattrs as usize;
        if state.knows_attributes() || count == 0 || count > KNOWN_ATTRIBUTES {
            return Ok(());
        }
        let mut hashes = Vec::new();
        let mut each = |hash, _: &[u8]| hashes.push(hash);
        self.items().attribute_names(inode, &state, &mut each)?;
        state.set_attributes(hashes.into_iter());
        Ok(())
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// No such attribute; a name that [`FileSystem::setxattr`] refuses.
    pub fn getxattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        self.getxattr_of(&*self.inode(ino)?, name)
    }

    /// Like [`FileSystem::getxattr`], for a loaded inode.
    #[doc(hidden)]
    pub fn getxattr_of(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.engine.lifecycle.check_open()?;
        check_seen(name)?;
        let hash = self.hash(name);
        let state = inode.read();
        found_attrs(inode, &state)?;
        if Self::lacks(&state, hash)? {
            return Err(Error::NoAttribute);
        }
        if let Some(value) = self.items().attribute(inode, &state, (hash, name))? {
            return Ok(value);
        }
        let knows = state.knows_attributes();
        drop(state);
        if !knows {
            self.remember_attributes(inode)?;
        }
        Err(Error::NoAttribute)
    }

    /// Sets an attribute. Setting an access list also sets the mode, as
    /// [`FileSystem::set_access_list`] does for a caller that may keep set-group-id.
    ///
    /// # Errors
    /// A name without a known namespace, or an unknown name in `system.`; a value over 64 KiB; a
    /// malformed access control list; the attribute exists (create) or does not (replace); no
    /// space, also for more than 65,536 bytes of names.
    pub fn setxattr(&self, ino: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.setxattr_of(&self.inode(ino)?, name, value, mode)
    }

    /// Like [`FileSystem::setxattr`], for a loaded inode.
    #[doc(hidden)]
    pub fn setxattr_of(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.engine.lifecycle.check_open()?;
        if value.len() > MAX_XATTR_VALUE {
            return Err(Error::AttributeTooLarge);
        }
        if name == ACCESS {
            return self.set_access_list_of(inode, value, mode, KillPrivileges::No);
        }
        check_name(name)?;
        check_list(name, value)?;
        let call = Call::SetXattr {
            ino: inode.ino,
            name,
            value,
            mode,
        };
        self.observed(call, || {
            self.change_xattr(inode, (name, Some(value)), mode, |_| {})
        })
    }

    /// Sets an attribute of an inode whose names are being exchanged: until the last of the old ones
    /// is removed there may be twice as many bytes of names. [`FileSystem::check_listed`] follows.
    ///
    /// # Errors
    /// As [`FileSystem::setxattr`].
    #[doc(hidden)]
    pub fn exchange_xattr(&self, ino: u64, name: &[u8], value: &[u8]) -> Result<()> {
        if name == ACCESS || value.len() > MAX_XATTR_VALUE {
            return self.setxattr(ino, name, value, XattrMode::Set);
        }
        self.engine.lifecycle.check_open()?;
        check_name(name)?;
        check_list(name, value)?;
        let (inode, how) = (self.inode(ino)?, (XattrMode::Set, 2 * MAX_XATTR_NAMES));
        self.change_xattr_within(&inode, (name, Some(value)), how, |_| {})
    }

    /// Refuses an inode with more bytes of names than there can be.
    ///
    /// # Errors
    /// No space; no such inode; damage.
    #[doc(hidden)]
    pub fn check_listed(&self, ino: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut state = inode.write();
        let received = (self.hash(RECEIVED), RECEIVED);
        // No caller sees it, so it takes no place.
        let unseen = match self.items().attribute(&inode, &state, received)? {
            Some(_) => listed_bytes(RECEIVED),
            None => 0,
        };
        self.check_names(&inode, &mut state, &[], MAX_XATTR_NAMES + unseen)
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// No such attribute.
    pub fn removexattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        check_seen(name)?;
        let inode = self.inode(ino)?;
        let call = Call::RemoveXattr { ino, name };
        self.observed(call, || {
            self.change_xattr(&inode, (name, None), XattrMode::Replace, |_| {})
        })
    }

    /// What the root directory of a root has recorded of the streams that its files have come in, as
    /// it is now. The root is not opened for callers: its orphans stay.
    ///
    /// # Errors
    /// As [`FileSystem::open_root`].
    #[doc(hidden)]
    pub fn received_by(&self, root: u32) -> Result<Option<Vec<u8>>> {
        self.engine.lifecycle.check_open()?;
        let items = self.core().open_root(root)?;
        let inode = items.inode(ROOT_INO)?;
        let state = inode.read();
        found_attrs(&inode, &state)?;
        items.attribute(&inode, &state, (items.hash_of(RECEIVED), RECEIVED))
    }

    /// Records of which streams the files are. No caller sees it.
    ///
    /// # Errors
    /// As [`FileSystem::setxattr`].
    #[doc(hidden)]
    pub fn set_received(&self, value: &[u8]) -> Result<()> {
        let attribute = (RECEIVED, Some(value));
        self.change_xattr(&self.inode(ROOT_INO)?, attribute, XattrMode::Set, |_| {})
    }

    /// Sets an attribute, or removes it if `value` is `None`, and applies `also` to the inode's
    /// basic attributes in the same transaction. The caller has checked the name.
    pub(super) fn change_xattr(
        &self,
        inode: &Arc<Inode>,
        (name, value): (&[u8], Option<&[u8]>),
        mode: XattrMode,
        also: impl Fn(&mut Attrs),
    ) -> Result<()> {
        self.change_xattr_within(inode, (name, value), (mode, MAX_XATTR_NAMES), also)
    }

    /// As [`Self::change_xattr`], with another limit of the bytes of names.
    fn change_xattr_within(
        &self,
        inode: &Arc<Inode>,
        (name, value): (&[u8], Option<&[u8]>),
        (mode, most_names): (XattrMode, usize),
        also: impl Fn(&mut Attrs),
    ) -> Result<()> {
        let at = (self.hash(name), name);
        let long = value.filter(|value| value.len() > MAX_OWN_VALUE);
        let sought = long.map(|value| self.core().values().seek(value));
        let own = value.map_or(0, <[u8]>::len) + name.len() + 8;
        let mut room = own;
        loop {
            let mut need = Need::items(2, INODE_LEN + room, 1);
            if value.is_none() {
                need = need.deleting();
            }
            let reservation = self.reserve(need)?;
            let mut state = inode.write();
            check_kind(name, attrs(&state)?.kind())?;
            may_change(attrs(&state)?.flags)?;
            let found = self.find_attribute(inode, &state, at)?;
            match (mode, found.existed) {
                (XattrMode::Create, true) => return Err(Error::Exists),
                (XattrMode::Replace, false) => return Err(Error::NoAttribute),
                _ => {}
            }
            if found.others.len() + own > room {
                // Other attributes share the hash: their values are logged too.
                room = found.others.len() + own;
                continue;
            }
            if value.is_some() && room > MAX_VALUE {
                return Err(Error::NoSpace);
            }
            if value.is_some() && !found.existed && name != RECEIVED {
                self.check_names(inode, &mut state, name, most_names)?;
            }
            let new = match &sought {
                Some(sought) => Some(New::Shared(sought.intern())),
                None => value.map(New::Own),
            };
            let commit = self.commit()?;
            count_attribute(&mut state, at, (found.existed, value.is_some()))?;
            let attrs = attrs_mut(&mut state)?;
            attrs.ctime = self.core().now();
            also(attrs);
            let item = (new.as_ref(), found);
            let receipt = commit_xattr(commit, (inode, &mut state), at, item, reservation);
            drop(state);
            return self.core().throttle(receipt);
        }
    }

    /// Refuses a name that would make an inode's list of names longer than `most`, which is what the
    /// kernel accepts. An empty name takes nothing.
    fn check_names(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        name: &[u8],
        most: usize,
    ) -> Result<()> {
        if (attrs(state)?.xattrs as usize) < MAX_XATTR_NAMES / (MAX_NAME + 1) {
            return Ok(());
        }
        let listed = match state.listed_bytes() {
            Some(listed) => listed,
            None => {
                let mut listed = 0;
                let mut each = |_, name: &[u8]| listed += listed_bytes(name);
                self.items().attribute_names(inode, state, &mut each)?;
                state.set_listed_bytes(listed);
                listed
            }
        };
        let added = if name.is_empty() {
            0
        } else {
            listed_bytes(name)
        };
        if listed + added > most {
            Err(Error::NoSpace)
        } else {
            Ok(())
        }
    }

    /// Encodes attributes in log format.
    fn logged(&self, attributes: Vec<Attribute>) -> Result<Vec<u8>> {
        let mut item = Vec::new();
        for Attribute { name, value } in attributes {
            let value = self.items().held(value)?;
            let (name, value) = (&name[..], &value[..]);
            encode_xattr(&mut item, &XattrRef { name, value });
        }
        Ok(item)
    }

    /// The names of all valid attributes, each followed by NUL.
    ///
    /// # Errors
    /// No such inode; damage.
    pub fn listxattr(&self, ino: u64) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let state = inode.read();
        let mut names = Vec::new();
        if attrs(&state)?.xattrs == 0 {
            return Ok(names);
        }
        self.items()
            .attribute_names(&inode, &state, &mut |_, name| {
                if check_name(name).is_ok() {
                    names.extend_from_slice(name);
                    names.push(0);
                }
            })?;
        Ok(names)
    }
}

/// Commits an item: the other attributes with the name's hash, then the new attribute.
fn commit_xattr(
    mut commit: Commit<'_>,
    (inode, state): (&Arc<Inode>, &mut InodeState),
    (hash, name): Name<'_>,
    (new, found): (Option<&New<'_>>, Found),
    reservation: Reservation<'_>,
) -> Receipt {
    let (existed, (others, below)) = (found.existed, found.parts());
    let mut changes = commit.of(inode, state);
    match new {
        None if !existed => {}
        None if others.is_empty() => changes.delete(Kind::Xattr, hash, &[], below),
        new => put_item(&mut changes, (hash, below), (name, new, others)),
    }
    changes.put_inode();
    drop(changes);
    commit.finish(reservation)
}

/// Bytes of a name in a list of names.
fn listed_bytes(name: &[u8]) -> usize {
    name.len() + 1
}

/// Updates an inode's attribute count and cached attribute set after a change.
fn count_attribute(
    state: &mut InodeState,
    (hash, name): Name<'_>,
    (existed, exists): (bool, bool),
) -> Result<()> {
    let count = &mut attrs_mut(state)?.xattrs;
    match (existed, exists) {
        (false, true) => {
            *count += 1;
            if *count == 1 {
                state.set_attributes(std::iter::empty());
            }
            state.add_attribute(hash, listed_bytes(name));
        }
        (true, false) => {
            *count = count.saturating_sub(1);
            state.remove_attribute(listed_bytes(name));
        }
        _ => {}
    }
    Ok(())
}

/// Puts an item: `item` with the other attributes, then the new attribute if there is one.
pub(super) fn put_item(
    changes: &mut Changes<'_, '_, '_>,
    (hash, below): (u64, bool),
    (name, new, mut item): (&[u8], Option<&New<'_>>, Vec<u8>),
) {
    if let (Some(New::Shared(value)), true) = (new, item.is_empty()) {
        let mut own: SmallVec<[u8; 64]> = SmallVec::new();
        own.extend_from_slice(&xattr_head(name, value.bytes().len()));
        own.extend_from_slice(name);
        changes.put_joined(Kind::Xattr, hash, (&own[..], value), below);
        return;
    }
    if let Some(value) = new.map(New::bytes) {
        encode_xattr(&mut item, &XattrRef { name, value });
    }
    changes.put(Kind::Xattr, hash, &item, below);
}

/// Attributes of an inode to be created.
#[derive(Default)]
pub(super) struct Born<'a> {
    /// Sorted by the hash of the name, ascending.
    list: Vec<(u64, &'a [u8], New<'a>)>,
}

impl FileSystem {
    /// Prepares the attributes of a new inode of that kind.
    ///
    /// # Errors
    /// As for [`FileSystem::setxattr`]; a duplicate name.
    pub(super) fn born<'a>(&self, kind: FileKind, given: &[Given<'a>]) -> Result<Born<'a>> {
        let mut list = Vec::with_capacity(given.len());
        for (name, value) in given.iter().copied() {
            check_name(name)?;
            check_kind(name, kind)?;
            if value.len() > MAX_XATTR_VALUE {
                return Err(Error::AttributeTooLarge);
            }
            if list.iter().any(|(_, other, _)| *other == name) {
                return Err(Error::Exists);
            }
            list.push((self.hash(name), name, New::of(self.core().values(), value)));
        }
        list.sort_by_key(|(hash, ..)| *hash);
        let born = Born { list };
        let names: usize = given.iter().map(|(name, _)| listed_bytes(name)).sum();
        if names > MAX_XATTR_NAMES || born.groups().any(|group| bytes_of(group) > MAX_VALUE) {
            return Err(Error::NoSpace);
        }
        Ok(born)
    }
}

/// Bytes of attributes in log format.
fn bytes_of(list: &[(u64, &[u8], New<'_>)]) -> usize {
    let bytes = list
        .iter()
        .map(|(_, n, v)| XATTR_HEAD + n.len() + v.bytes().len());
    bytes.sum()
}

impl<'a> Born<'a> {
    /// Groups of attributes whose names have the same hash.
    fn groups(&self) -> impl Iterator<Item = &[(u64, &'a [u8], New<'a>)]> {
        self.list.chunk_by(|(a, ..), (b, ..)| a == b)
    }

    /// The largest number of items they need, and the bytes of these in log format.
    pub fn need(&self) -> (usize, usize) {
        (self.list.len(), bytes_of(&self.list))
    }

    /// Puts them into a new inode that no other thread sees; the caller puts its inode item.
    pub fn put(&self, commit: &mut Commit<'_>, inode: &Arc<Inode>, state: &mut InodeState) {
        for group in self.groups() {
            let Some(((hash, name, new), others)) = group.split_last() else {
                continue;
            };
            let mut item = Vec::new();
            for (_, name, value) in others {
                let value = value.bytes();
                encode_xattr(&mut item, &XattrRef { name, value });
            }
            let item = (*name, Some(new), item);
            put_item(&mut commit.of(inode, state), (*hash, false), item);
        }
        if let Some(attrs) = &mut state.attrs {
            attrs.xattrs = self.list.len() as u32;
        }
        if self.list.len() <= KNOWN_ATTRIBUTES {
            state.set_attributes(self.list.iter().map(|(hash, ..)| *hash));
        }
    }
}

/// An attribute's new value.
pub(super) enum New<'a> {
    /// Stored for this inode alone.
    Own(&'a [u8]),
    /// Long enough to be shared with other inodes.
    Shared(Value),
}

impl<'a> New<'a> {
    /// Interns a long value. The inode may be locked.
    pub fn of(values: &Values, value: &'a [u8]) -> Self {
        if value.len() > MAX_OWN_VALUE {
            New::Shared(values.intern(value))
        } else {
            New::Own(value)
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            New::Own(value) => value,
            New::Shared(value) => value.bytes(),
        }
    }
}
