//! What is lost with the damaged part of a log, by the records that can still be read there.
//!
//! Only for a volume that was opened in spite of the damage, to save its files. The paths are hints:
//! records that cannot be read may have changed them, and others may be lost without a trace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::fs::FileSystem;
use cairnfs_disk::error::{Corruption, Result};
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::decode_dir_entry;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::record::Entry;
use cairnfs_disk::types::UnappliedLog;

/// Most names and inodes that are collected.
const MAX_LOST: usize = 10_000;
/// Most inodes, and most directories, whose path is searched for in what is left of the volume.
const MAX_SEARCHED: usize = 1000;
/// Most levels of a path.
const MAX_LEVELS: usize = 64;

/// What is lost with the damaged part of a log.
#[derive(Debug, Clone)]
pub struct Lost {
    /// The damage.
    pub damage: Corruption,
    /// The LSN at which the log is damaged.
    pub end: u64,
    /// The LSN up to which it was durable.
    pub durable: u64,
    /// How many records behind the damage can be found.
    pub records: u64,
    /// What those records change in this tree: its state before the damage is found instead, or
    /// nothing.
    pub items: Vec<LostItem>,
    /// Whether there are more.
    pub more: bool,
    /// Whether they change other branches, or change which branches and snapshots there are.
    pub others: bool,
}

/// A file, directory or other inode of which changes are lost.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostItem {
    /// A path of it; "..." stands for what cannot be found.
    pub path: PathBuf,
    /// Its inode number.
    pub ino: u64,
}

/// What lost records say of a tree.
#[derive(Default)]
struct Traces {
    /// New names: of an entry of a directory, by both their numbers, the inode and the name.
    names: BTreeMap<(u64, u64), (u64, Vec<u8>)>,
    /// Inodes with other changes.
    changed: BTreeSet<u64>,
    more: bool,
    others: bool,
}

impl Traces {
    fn add(&mut self, root: u32, entry: &Entry<'_>) {
        let key = entry.key;
        if entry.root != root {
            self.others = true;
        } else if self.names.len() + self.changed.len() >= MAX_LOST {
            self.more = true;
        } else if key.kind == Kind::DirIndex && !entry.delete {
            if let Ok(found) = decode_dir_entry(entry.value) {
                let named = (found.ino, found.name.to_vec());
                self.names.insert((key.object, key.offset), named);
            }
        } else if key.kind != Kind::Orphan {
            self.changed.insert(key.object);
        }
    }

    /// The names of inodes, each with its directory.
    fn by_inode(&self) -> BTreeMap<u64, (u64, &[u8])> {
        let names = self.names.iter();
        names
            .map(|((dir, _), (ino, name))| (*ino, (*dir, name.as_slice())))
            .collect()
    }
}

impl FileSystem {
    /// What is lost of the log, if it is damaged and the volume was opened in spite of that
    /// ([`Options::damaged_log`](crate::fs::Options::damaged_log)).
    ///
    /// # Errors
    /// The device's failure.
    pub fn lost_log(&self) -> Result<Option<Lost>> {
        let Some(log) = self.core().lost_log() else {
            return Ok(None);
        };
        let (mut traces, root) = (Traces::default(), self.items().root());
        self.core()
            .each_lost(&mut |entry| traces.add(root, entry))?;
        Ok(Some(Lost {
            damage: log.damage.clone(),
            end: log.end,
            durable: log.durable,
            records: log.records,
            items: self.lost_items(&traces),
            more: traces.more,
            others: traces.others,
        }))
    }

    /// Counts the log records that are newer than the newest superblock. A volume that was opened
    /// without recovery does not show their changes.
    ///
    /// # Errors
    /// A log that cannot be read; the device's failure.
    pub fn unapplied_log(&self) -> Result<UnappliedLog> {
        self.core().unapplied()
    }

    fn lost_items(&self, traces: &Traces) -> Vec<LostItem> {
        let by_inode = traces.by_inode();
        let mut dirs = BTreeMap::new();
        let mut items = BTreeSet::new();
        for ((dir, _), (ino, name)) in &traces.names {
            let searched = dirs.len();
            let above = dirs.entry(*dir).or_insert_with(|| match searched {
                0..MAX_SEARCHED => self.lost_path(&by_inode, *dir, MAX_LEVELS),
                _ => PathBuf::from("/..."),
            });
            let path = above.join(OsStr::from_bytes(name));
            items.insert(LostItem { path, ino: *ino });
        }
        // A directory changes with each of its entries.
        let changed = traces.changed.iter();
        let unnamed = changed.filter(|ino| !by_inode.contains_key(ino) && !dirs.contains_key(ino));
        for (searched, ino) in unnamed.enumerate() {
            let path = if searched < MAX_SEARCHED {
                self.path_hint(*ino)
            } else {
                Path::new("/...").to_owned()
            };
            items.insert(LostItem { path, ino: *ino });
        }
        items.into_iter().collect()
    }

    /// The path of a directory, by lost names as far as there are any.
    fn lost_path(
        &self,
        by_inode: &BTreeMap<u64, (u64, &[u8])>,
        dir: u64,
        levels: usize,
    ) -> PathBuf {
        match by_inode.get(&dir) {
            Some((above, name)) if dir != ROOT_INO && levels > 0 => self
                .lost_path(by_inode, *above, levels - 1)
                .join(OsStr::from_bytes(name)),
            Some(_) if dir != ROOT_INO => PathBuf::from("/..."),
            _ => self.path_hint(dir),
        }
    }
}
