//! Takes the files' logical state item by item and hands each object's items to its checks.
//!
//! What must be compared across objects (entries and inodes) is collected in [`Found`] in compact
//! form: about 32 bytes for each inode and each entry.

use std::collections::{BTreeMap, BTreeSet};

use cairnfs::error::Result;
use cairnfs::format::geometry::Geometry;
use cairnfs::format::item::{ORPHAN_REMOVE, ORPHAN_TRUNCATE, decode_dir_entry, decode_extent_at};
use cairnfs::format::key::{Kind, ORPHANS, SHARED_BYTES, SHARED_VALUES};
use cairnfs::format::xattr::decode_stored_xattrs;
use cairnfs::format::{FIRST_USER_INO, ROOT_INO};

use crate::blocks::BlockSet;
use crate::codes;
use crate::holes::{Holes, KeyRange};
use crate::log::Replay;
use crate::object::Object;
use crate::overlay::{Item, Sink};
use crate::report::{Finding, Ledger};
use crate::shared::Shared;
use crate::volume::Volume;

/// An inode, as far as others depend on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InodeRecord {
    pub(crate) ino: u64,
    /// Type bits of the mode.
    pub(crate) kind: u32,
    pub(crate) nlink: u32,
    pub(crate) parent: u64,
    /// Of a directory: entries that are directories.
    pub(crate) subdirs: u32,
    /// Whether it is a directory with entries.
    pub(crate) occupied: bool,
    /// Of a directory: whether all its entries are known.
    pub(crate) whole: bool,
}

/// A directory entry, ordered by what it refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) child: u64,
    pub(crate) dir: u64,
    pub(crate) index: u64,
    /// Type bits that the entry tells.
    pub(crate) kind: u32,
}

/// Blocks in use.
pub(crate) struct Claims {
    /// Nodes and units of large values.
    pub(crate) index: BlockSet,
    /// Extents in the index: with the former, what the bitmaps must tell.
    pub(crate) indexed: BlockSet,
    /// Extents of the logical state.
    pub(crate) live: BlockSet,
    /// Blocks of extents that the log put and replaced, but for those that their inodes still have.
    pub(crate) waiting: BlockSet,
    /// Whether something in use may not be known.
    pub(crate) incomplete: bool,
}

/// What the walk has found that goes beyond one object.
pub(crate) struct Found {
    pub(crate) claims: Claims,
    pub(crate) holes: Holes,
    /// Whether entries may exist that are not in `links`.
    pub(crate) links_incomplete: bool,
    /// In ascending order.
    pub(crate) inodes: Vec<InodeRecord>,
    pub(crate) links: Vec<Link>,
    pub(crate) orphans: BTreeMap<u64, u8>,
    /// Inodes without inode item that were reported.
    pub(crate) missing: BTreeSet<u64>,
}

/// What an object's checks use beside its items.
pub(crate) struct Context<'a> {
    pub(crate) geometry: &'a Geometry,
    /// Inodes of which the log put extents and replaced them.
    pub(crate) replaced: BTreeSet<u64>,
    pub(crate) hash_seed: u64,
    /// Sequence of the newest context.
    pub(crate) seq: u64,
    pub(crate) found: Found,
}

/// Sorts items by object.
pub(crate) struct Structure<'a> {
    context: Context<'a>,
    /// No inode has this number or a greater one.
    ino_limit: u64,
    shared: Shared,
    current: Option<Object>,
}

impl<'a> Structure<'a> {
    pub(crate) fn new(volume: &'a Volume<'_>, replay: &Replay) -> Self {
        let superblock = &volume.superblock;
        let geometry = &volume.geometry;
        let next = superblock.next_ino.get();
        let mut waiting = BlockSet::new(geometry);
        for (block, len) in replay.overlay.replaced.values().flatten() {
            waiting.insert(*block, *len);
        }
        Self {
            context: Context {
                geometry,
                replaced: replay.overlay.replaced.keys().copied().collect(),
                hash_seed: superblock.hash_seed.get(),
                seq: replay.seq,
                found: Found {
                    claims: Claims {
                        index: BlockSet::new(geometry),
                        indexed: BlockSet::new(geometry),
                        live: BlockSet::new(geometry),
                        waiting,
                        incomplete: replay.incomplete,
                    },
                    holes: Holes::default(),
                    links_incomplete: replay.incomplete,
                    inodes: Vec::new(),
                    links: Vec::new(),
                    orphans: BTreeMap::new(),
                    missing: BTreeSet::new(),
                },
            },
            ino_limit: next.max(replay.overlay.greatest_ino().saturating_add(1)),
            shared: Shared::new(superblock.hash_seed.get()),
            current: None,
        }
    }

    /// Tells that the tree itself cannot be read.
    pub(crate) fn lose_everything(&mut self) {
        self.hole(KeyRange::ALL);
    }

    /// Checks the last object and takes the walker's blocks.
    pub(crate) fn finish(&mut self, index: BlockSet, ledger: &mut Ledger<'_>) {
        self.finish_object(ledger);
        let found = &mut self.context.found;
        self.shared.finish(&found.holes, ledger);
        found.claims.index = index;
        found.claims.incomplete |= !found.holes.is_empty();
        found.links_incomplete |= !found.holes.is_empty();
    }

    pub(crate) fn into_found(self) -> Found {
        self.context.found
    }

    fn finish_object(&mut self, ledger: &mut Ledger<'_>) {
        if let Some(object) = self.current.take() {
            object.finish(&mut self.context, ledger);
        }
    }

    fn begin_object(&mut self, item: &Item<'_>, ledger: &mut Ledger<'_>) {
        let ino = item.key.object;
        if ino != ROOT_INO && ino >= self.ino_limit {
            let message = format!("numbers from {} on were not given yet", self.ino_limit);
            let finding = Finding::new(codes::INODE_NUMBER, message).of(ino);
            ledger.add(finding.at(item.block));
        }
        self.current = Some(Object::new(ino));
    }

    fn orphan(&mut self, item: &Item<'_>, ledger: &mut Ledger<'_>) {
        let ino = item.key.offset;
        match item.value {
            [what @ (ORPHAN_REMOVE | ORPHAN_TRUNCATE)] => {
                ledger.stats().orphans += 1;
                self.context.found.orphans.insert(ino, *what);
            }
            other => {
                let message = format!("orphan item of {} bytes, or of unknown kind", other.len());
                let finding = Finding::new(codes::ORPHAN_ITEM, message).of(ino);
                ledger.add(finding.at(item.block));
                self.context.found.holes.push(KeyRange::one(item.key));
            }
        }
    }
}

impl Sink for Structure<'_> {
    /// What a merge reads of the old value of an item must make sense though the log changes it.
    fn indexed(&mut self, item: &Item<'_>, changed: bool, ledger: &mut Ledger<'_>) {
        let key = item.key;
        let wrong = match key.kind {
            Kind::Extent => match decode_extent_at(key.offset, item.value, self.context.geometry) {
                Ok((raw, _)) => {
                    let claims = &mut self.context.found.claims;
                    claims.indexed.insert(raw.block.get(), raw.len.get().into());
                    return;
                }
                Err(why) => {
                    self.context.found.claims.incomplete = true;
                    (codes::EXTENT_ITEM, why)
                }
            },
            Kind::Xattr => match decode_stored_xattrs(item.value) {
                Ok(list) => return self.shared.uses(key.object, &list),
                Err(why) => {
                    self.shared.incomplete();
                    (codes::XATTR_ITEM, why)
                }
            },
            Kind::SharedValue if key.object == SHARED_VALUES => {
                if let Err(finding) = self.shared.value(item) {
                    ledger.add(finding);
                    self.context.found.holes.push(KeyRange::one(key));
                }
                ledger.stats().shared_values += 1;
                return;
            }
            Kind::SharedValue if key.object == SHARED_BYTES => {
                if let Err(finding) = self.shared.bytes(item) {
                    ledger.add(finding);
                    self.context.found.holes.push(KeyRange::one(key));
                }
                return;
            }
            Kind::DirIndex => match decode_dir_entry(item.value) {
                Ok(_) => return,
                Err(why) => (codes::DIR_ENTRY, why),
            },
            _ => return,
        };
        if changed {
            let (code, why) = wrong;
            let message = format!("changed by the log, but in the index {why}");
            ledger.add(Finding::new(code, message).of(key.object).at(item.block));
        }
    }

    fn item(&mut self, item: &Item<'_>, ledger: &mut Ledger<'_>) -> Result<()> {
        let key = item.key;
        if self.current.as_ref().is_some_and(|o| o.ino() != key.object) {
            self.finish_object(ledger);
        }
        let shared = matches!(key.object, SHARED_VALUES | SHARED_BYTES);
        if shared && key.kind == Kind::SharedValue {
            // Never logged: it was seen in the index.
        } else if key.object == ORPHANS && key.kind == Kind::Orphan {
            self.orphan(item, ledger);
        } else if key.object != ROOT_INO && key.object < FIRST_USER_INO {
            let message = format!("{key:?} of an object that has none");
            ledger.add(Finding::new(codes::UNEXPECTED_ITEM, message).at(item.block));
        } else {
            if self.current.is_none() {
                self.begin_object(item, ledger);
            }
            if let Some(object) = &mut self.current {
                object.item(item, &mut self.context, ledger);
            }
        }
        Ok(())
    }

    fn hole(&mut self, hole: KeyRange) {
        self.context.found.holes.push(hole);
    }
}
