//! Receives the logical state of the files' tree item by item and passes each object's items to its
//! checks.
//!
//! Data needed for comparisons across objects (entries and inodes) is collected in [`Found`], in
//! about 32 bytes per inode and per entry.

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
use crate::tree::Inherited;
use crate::volume::Volume;

/// The fields of an inode that checks across objects use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InodeRecord {
    pub(crate) ino: u64,
    /// Type bits of the mode.
    pub(crate) kind: u32,
    pub(crate) nlink: u32,
    pub(crate) parent: u64,
    /// For a directory: number of entries that are directories.
    pub(crate) subdirs: u32,
    /// Whether it is a directory with entries.
    pub(crate) occupied: bool,
    /// For a directory: whether all its entries are known.
    pub(crate) whole: bool,
}

/// A directory entry; the order is by child inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) child: u64,
    pub(crate) dir: u64,
    pub(crate) index: u64,
    /// Type bits in the entry.
    pub(crate) kind: u32,
}

/// Blocks in use.
pub(crate) struct Claims {
    /// Nodes and units of large values.
    pub(crate) index: BlockSet,
    /// Extents in the index. With `index` they are what the bitmaps must describe.
    pub(crate) indexed: BlockSet,
    /// Extents in the logical state.
    pub(crate) live: BlockSet,
    /// Written extents among them.
    pub(crate) written: BlockSet,
    /// Blocks of extents that the log added and replaced, except those that their inodes still
    /// have.
    pub(crate) waiting: BlockSet,
    /// Whether some blocks in use may be unknown.
    pub(crate) incomplete: bool,
}

impl Claims {
    /// No blocks yet.
    pub(crate) fn new(volume: &Volume<'_>, replay: &Replay) -> Self {
        let none = || BlockSet::new(&volume.geometry);
        Self {
            index: none(),
            indexed: none(),
            live: none(),
            written: none(),
            waiting: none(),
            incomplete: replay.incomplete,
        }
    }

    /// Adds the blocks of another root's extents.
    pub(crate) fn add(&mut self, other: &Self) {
        self.indexed.add(&other.indexed);
        self.live.add(&other.live);
        self.written.add(&other.written);
        self.waiting.add(&other.waiting);
        self.incomplete |= other.incomplete;
    }
}

/// Results of the walk that later checks compare across objects.
pub(crate) struct Found {
    pub(crate) claims: Claims,
    pub(crate) holes: Holes,
    /// Whether entries may exist that are not in `links`.
    pub(crate) links_incomplete: bool,
    /// In ascending order of inode number.
    pub(crate) inodes: Vec<InodeRecord>,
    pub(crate) links: Vec<Link>,
    pub(crate) orphans: BTreeMap<u64, u8>,
    /// Inodes that were reported as missing their inode item.
    pub(crate) missing: BTreeSet<u64>,
}

/// What the checks of an object use besides its items.
pub(crate) struct Context<'a> {
    pub(crate) geometry: &'a Geometry,
    /// What the root inherits from its parent.
    pub(crate) inherited: Inherited,
    /// Blocks of the roots checked before.
    pub(crate) held: &'a Claims,
    /// Inodes whose extents the log added and replaced.
    pub(crate) replaced: BTreeSet<u64>,
    pub(crate) hash_seed: u64,
    /// Sequence of the newest context.
    pub(crate) seq: u64,
    /// Greatest birth that the index can have.
    youngest: u64,
    pub(crate) found: Found,
}

impl Context<'_> {
    /// Why the root cannot have an extent of these blocks with this birth, considering the roots
    /// checked before.
    pub(crate) fn wrongly_held(
        &self,
        (block, len): (u64, u64),
        birth: u64,
        written: bool,
    ) -> Option<&'static str> {
        let blocks = block..block + len;
        let mut held = blocks.clone().map(|block| self.held.live.has(block));
        let mut states = blocks.map(|block| self.held.written.has(block));
        match self.inherited.has(birth) {
            true if held.any(|held| !held) => {
                Some("inherited from a root that does not have all of them")
            }
            true if states.any(|state| state != written) => {
                Some("inherited, and written in one of the roots only")
            }
            false if held.any(|held| held) => {
                Some("used by another root, which they were not inherited from")
            }
            _ => None,
        }
    }
}

/// Groups items by object.
pub(crate) struct Structure<'a> {
    context: Context<'a>,
    /// All inode numbers are less than this.
    ino_limit: u64,
    shared: Shared,
    current: Option<Object>,
}

impl<'a> Structure<'a> {
    pub(crate) fn new(
        volume: &'a Volume<'_>,
        replay: &Replay,
        inherited: Inherited,
        held: &'a Claims,
    ) -> Self {
        let superblock = &volume.superblock;
        let geometry = &volume.geometry;
        let next = superblock.next_ino.get();
        let mut claims = Claims::new(volume, replay);
        for run in replay.overlay.replaced.values().flatten() {
            if !inherited.has(run.birth) {
                claims.waiting.insert(run.block, run.len);
            }
        }
        Self {
            context: Context {
                geometry,
                inherited,
                held,
                replaced: replay.overlay.replaced.keys().copied().collect(),
                hash_seed: superblock.hash_seed.get(),
                seq: replay.seq,
                youngest: replay.youngest,
                found: Found {
                    claims,
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

    /// Checks the last object.
    pub(crate) fn finish(&mut self, ledger: &mut Ledger<'_>) {
        self.finish_object(ledger);
        let found = &mut self.context.found;
        self.shared.finish(&found.holes, ledger);
        found.claims.incomplete |= !found.holes.is_empty();
        found.links_incomplete |= !found.holes.is_empty();
    }

    /// Whether the whole tree could be read.
    pub(crate) fn is_whole(&self) -> bool {
        self.context.found.holes.is_empty()
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
    /// A merge reads the old value of an item, so it must be valid even if the log changes the
    /// item.
    fn indexed(&mut self, item: &Item<'_>, changed: bool, ledger: &mut Ledger<'_>) {
        let key = item.key;
        let wrong = match key.kind {
            Kind::Extent => match decode_extent_at(key.offset, item.value, self.context.geometry) {
                Ok((raw, _)) => {
                    let claims = &mut self.context.found.claims;
                    claims.indexed.insert(raw.block.get(), raw.len.get().into());
                    let (birth, youngest) = (raw.birth.get(), self.context.youngest);
                    // One that is younger than the log is found in the logical state.
                    if birth > youngest && (changed || birth <= self.context.seq) {
                        let message = format!(
                            "born in context {birth}, none in the index can be behind {youngest}"
                        );
                        let finding = Finding::new(codes::EXTENT_BIRTH, message).of(key.object);
                        ledger.add(finding.at(item.block));
                    }
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
            // Name items are never logged; this one was checked in the index.
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
