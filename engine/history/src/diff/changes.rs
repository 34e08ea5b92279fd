//! What differs between two trees of files, from the items that differ: inodes, entries,
//! attributes, ranges of contents.
//!
//! Uses the walk of the index. Changes come in the order of the keys, so those of an inode are
//! together: first its item, then its entries, attributes and contents. Memory: the walk's, and the
//! changes of one item; for a file that gets its first name, the changes of this file.
//!
//! Invariants:
//! - An inode without links (unlinked and open, or never linked) is not part of a tree.
//! - Of an inode that is gone only that is told, and the entries that it held as a directory.
//! - Ranges of contents are disjoint and ascending. Only what reads differently can be in them:
//!   holes and unwritten extents are the same, and so are extents that were split or joined.
//!   Rewritten blocks count as changed, whatever they hold.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use crate::diff::sweep::Sweep;
use crate::diff::tree::{Entry, FileTree, bad_item, entry_of, inode_of};
use cairnfs_core::index::{Difference, Differences};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::{RawInode, S_IFLNK, S_IFMT, S_IFREG};
use cairnfs_disk::format::key::{Key, Kind, ORPHANS, SHARED_BYTES, SHARED_VALUES};
use cairnfs_disk::format::received::RECEIVED;
use cairnfs_disk::format::xattr::{StoredXattr, decode_shared_value, decode_stored_xattrs};

/// A change from the old to the new tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The item of an inode changed; `None` where the inode does not exist.
    Inode {
        /// Number of the inode.
        ino: u64,
        /// Its item in the old tree.
        old: Option<RawInode>,
        /// Its item in the new tree.
        new: Option<RawInode>,
    },
    /// The entry at an index of a directory changed.
    Entry {
        /// The directory.
        dir: u64,
        /// What it held there in the old tree.
        old: Option<Entry>,
        /// What it holds there in the new tree.
        new: Option<Entry>,
    },
    /// The value of an extended attribute changed.
    Xattr {
        /// Number of the inode.
        ino: u64,
        /// Name with its namespace.
        name: Vec<u8>,
        /// The value in the old tree.
        old: Option<Vec<u8>>,
        /// The value in the new tree.
        new: Option<Vec<u8>>,
    },
    /// Bytes of a file changed; of a new file or symbolic link, a range with data. A range may end
    /// behind the end of the smaller of the two files.
    Contents {
        /// Number of the inode.
        ino: u64,
        /// The bytes.
        range: Range<u64>,
    },
}

/// The inode whose items are being compared.
struct Object {
    ino: u64,
    old: Option<RawInode>,
    new: Option<RawInode>,
    /// All its items were taken from the new tree, so differences are ignored.
    taken: bool,
    sweep: Sweep,
    /// A range that the next one may extend.
    range: Option<Range<u64>>,
}

/// The changes between two trees of files.
pub struct Changes<'a> {
    walk: Differences<'a>,
    old: FileTree<'a>,
    new: FileTree<'a>,
    object: Option<Object>,
    ready: VecDeque<Change>,
    ended: bool,
}

impl<'a> Changes<'a> {
    /// The changes from `old` to `new`, two trees of one volume.
    ///
    /// # Errors
    /// A damaged volume.
    pub fn new(old: FileTree<'a>, new: FileTree<'a>) -> Result<Self> {
        Ok(Self {
            walk: old.differences(&new)?,
            old,
            new,
            object: None,
            ready: VecDeque::new(),
            ended: false,
        })
    }

    /// The next change.
    ///
    /// # Errors
    /// A damaged volume, the device's failure. The walk cannot be continued after an error.
    pub fn next_change(&mut self) -> Result<Option<Change>> {
        while self.ready.is_empty() && !self.ended {
            match self.walk.next_difference()? {
                Some(difference) => self.take(&difference)?,
                None => {
                    self.ended = true;
                    self.end_object();
                }
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Number of index nodes read so far.
    pub fn nodes_read(&self) -> u64 {
        self.walk.nodes_read()
    }

    fn take(&mut self, d: &Difference) -> Result<()> {
        match d.key.object {
            ORPHANS => return Ok(()),
            SHARED_VALUES | SHARED_BYTES => return check_shared(d),
            ino if self.object.as_ref().is_none_or(|o| o.ino != ino) => {
                self.end_object();
                self.begin_object(d)?;
            }
            _ => {}
        }
        let Some(object) = &mut self.object else {
            return Ok(());
        };
        if object.taken {
            Ok(())
        } else {
            object.take((&self.old, &self.new), d, &mut self.ready)
        }
    }

    fn begin_object(&mut self, d: &Difference) -> Result<()> {
        let ino = d.key.object;
        let is_item = d.key.kind == Kind::Inode;
        let item = |tree: &FileTree<'_>, value: &Option<Vec<u8>>| {
            if is_item {
                value.as_deref().map(|v| inode_of(&d.key, v)).transpose()
            } else {
                tree.inode(ino)
            }
        };
        let stored = (item(&self.old, &d.old)?, item(&self.new, &d.new)?);
        if stored == (None, None) {
            let found = format!("no inode with an item of kind {:?}", d.key.kind);
            return Err(bad_item(&d.key, "inode item", found));
        }
        let visible = |inode: Option<RawInode>| inode.filter(|i| i.nlink.get() > 0);
        let (old, new) = (visible(stored.0), visible(stored.1));
        if is_item && (old.is_some() || new.is_some()) {
            self.ready.push_back(Change::Inode { ino, old, new });
        }
        let mut object = Object {
            ino,
            old,
            new,
            taken: false,
            sweep: Sweep::default(),
            range: None,
        };
        // A file that gets its first name has items that are equal in both trees, and yet all of
        // them are new.
        if old.is_none() && stored.0.is_some() && new.is_some() {
            object.taken = true;
            let (trees, ready) = ((&self.old, &self.new), &mut self.ready);
            self.new.items(ino, Kind::Inline, 0, &mut |key, value| {
                let added = Difference {
                    key: *key,
                    old: None,
                    new: Some(value.to_vec()),
                };
                object.take(trees, &added, ready)?;
                Ok(true)
            })?;
        }
        self.object = Some(object);
        Ok(())
    }

    fn end_object(&mut self) {
        if let Some(object) = self.object.take() {
            object.end(&mut self.ready);
        }
    }
}

impl Object {
    fn take(
        &mut self,
        trees: (&FileTree<'_>, &FileTree<'_>),
        d: &Difference,
        ready: &mut VecDeque<Change>,
    ) -> Result<()> {
        if d.key.kind == Kind::DirIndex {
            return self.entry(d, ready);
        }
        if self.new.is_none() {
            return Ok(());
        }
        match d.key.kind {
            Kind::Inline => {
                let differing = differing(d.old.as_deref(), d.new.as_deref());
                self.changed(differing, ready);
                Ok(())
            }
            Kind::Xattr => {
                // A symbolic link is made with its target, which has no further ranges.
                let mode = self.new.map_or(0, |inode| inode.mode.get());
                if mode & S_IFMT == S_IFLNK {
                    let (ino, target) = (self.ino, self.range.take());
                    ready.extend(target.map(|range| Change::Contents { ino, range }));
                }
                self.xattrs(trees, d, ready)
            }
            Kind::Extent => {
                let extent = |tree: &FileTree<'_>, value: &Option<Vec<u8>>| {
                    let value = value.as_deref();
                    value.map(|v| tree.extent(&d.key, v)).transpose()
                };
                let next = (extent(trees.0, &d.old)?, extent(trees.1, &d.new)?);
                for range in self.sweep.take(d.key.offset, next) {
                    self.changed(range, ready);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn entry(&self, d: &Difference, ready: &mut VecDeque<Change>) -> Result<()> {
        let entry = |value: &Option<Vec<u8>>| -> Result<Option<Entry>> {
            let Some(value) = value else { return Ok(None) };
            let entry = entry_of(&d.key, value)?;
            Ok(Some(Entry {
                ino: entry.ino,
                kind: entry.kind,
                name: entry.name.to_vec(),
            }))
        };
        ready.push_back(Change::Entry {
            dir: self.ino,
            old: entry(&d.old)?,
            new: entry(&d.new)?,
        });
        Ok(())
    }

    fn xattrs(
        &self,
        (old_tree, new_tree): (&FileTree<'_>, &FileTree<'_>),
        d: &Difference,
        ready: &mut VecDeque<Change>,
    ) -> Result<()> {
        let olds = stored(&d.key, d.old.as_deref())?;
        let news = stored(&d.key, d.new.as_deref())?;
        let names: BTreeSet<Vec<u8>> = olds.iter().chain(&news).map(StoredXattr::name).collect();
        for name in names.into_iter().filter(|name| name != RECEIVED) {
            let value = |tree: &FileTree<'_>, list: &[StoredXattr<'_>]| {
                let xattr = list.iter().find(|x| x.is_named(&name));
                xattr.map(|x| tree.value(&d.key, &x.value)).transpose()
            };
            let (old, new) = (value(old_tree, &olds)?, value(new_tree, &news)?);
            if old != new {
                let ino = self.ino;
                ready.push_back(Change::Xattr {
                    ino,
                    name,
                    old,
                    new,
                });
            }
        }
        Ok(())
    }

    /// Adds a range, without what is behind the end of either file.
    fn changed(&mut self, range: Range<u64>, ready: &mut VecDeque<Change>) {
        let size = |inode: &Option<RawInode>| inode.map_or(u64::MAX, |i| i.size.get());
        let end = range.end.min(size(&self.old)).min(size(&self.new));
        self.add(range.start..end, ready);
    }

    fn add(&mut self, range: Range<u64>, ready: &mut VecDeque<Change>) {
        if range.is_empty() {
            return;
        }
        match &mut self.range {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            last => {
                let before = last.replace(range);
                ready.extend(before.map(|range| Change::Contents {
                    ino: self.ino,
                    range,
                }));
            }
        }
    }

    fn end(mut self, ready: &mut VecDeque<Change>) {
        for range in self.sweep.end() {
            self.changed(range, ready);
        }
        if let (Some(old), Some(new)) = (self.old, self.new)
            && new.mode.get() & S_IFMT == S_IFREG
        {
            let (old, new) = (old.size.get(), new.size.get());
            self.add(old.min(new)..old.max(new), ready);
        }
        let ino = self.ino;
        let last = self.range.take();
        ready.extend(last.map(|range| Change::Contents { ino, range }));
    }
}

fn stored<'v>(key: &Key, item: Option<&'v [u8]>) -> Result<Vec<StoredXattr<'v>>> {
    let list = item.map(decode_stored_xattrs).transpose();
    Ok(list
        .map_err(|f| bad_item(key, "attribute", f))?
        .unwrap_or_default())
}

/// The range in which two inline contents differ; the whole if there is only one.
fn differing(old: Option<&[u8]>, new: Option<&[u8]>) -> Range<u64> {
    let (Some(old), Some(new)) = (old, new) else {
        return 0..old.or(new).map_or(0, <[u8]>::len) as u64;
    };
    let differs = |(a, b): (&u8, &u8)| a != b;
    let mut pairs = old.iter().zip(new);
    let first = pairs.clone().position(differs);
    let last = pairs.rposition(differs);
    match (first, last) {
        (Some(first), Some(last)) => first as u64..last as u64 + 1,
        _ => 0..0,
    }
}

/// Refuses trees in which one place for shared values has two values: attributes that refer to it
/// would differ, although their items are equal.
fn check_shared(d: &Difference) -> Result<()> {
    let (Some(old), Some(new)) = (&d.old, &d.new) else {
        return Ok(());
    };
    let value = |item: &[u8]| -> Result<Option<Vec<u8>>> {
        if d.key.object == SHARED_BYTES {
            return Ok(Some(item.to_vec()));
        }
        let decoded = decode_shared_value(item).map_err(|f| shared_damage(&d.key, f))?;
        Ok(decoded.1.map(<[u8]>::to_vec))
    };
    if value(old)? == value(new)? {
        Ok(())
    } else {
        Err(Error::Unsupported(
            "two attribute values with equal hashes took the same place in the two trees; copy the \
             files to compare them",
        ))
    }
}

fn shared_damage(key: &Key, found: String) -> Error {
    let expected = format!("a value at {:016x}", key.offset);
    Error::corrupt(0, "shared attribute value", expected, found)
}
