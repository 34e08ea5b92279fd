//! Receives the logical state of the files' tree item by item and passes each object's items to its
//! checks.
//!
//! Data needed for comparisons across objects (entries and inodes) is collected in [`Found`], in
//! about 32 bytes per inode and per entry.

use std::collections::{BTreeMap, BTreeSet};

use cairnfs_disk::error::Result;
use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::item::{
    ORPHAN_REMOVE, ORPHAN_TRUNCATE, decode_dir_entry, decode_extent_at,
};
use cairnfs_disk::format::key::{Kind, ORPHANS, SHARED_BYTES, SHARED_VALUES};
use cairnfs_disk::format::numbers::Given;
use cairnfs_disk::format::root::RawRoot;
use cairnfs_disk::format::xattr::decode_stored_xattrs;
use cairnfs_disk::format::{FIRST_USER_INO, ROOT_INO};

use crate::births::Births;
use crate::blocks::BlockSet;
use crate::codes;
use crate::given_up::{GivenUp, Mapped};
use crate::holes::{Holes, KeyRange};
use crate::log::Replay;
use crate::object::Object;
use crate::overlay::{Item, Sink};
use crate::parent::Parent;
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
    /// What the roots give up.
    pub(crate) waiting: BlockSet,
    /// Births of what frozen roots have; each belongs to the first of them.
    pub(crate) births: Births,
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
            births: Births::default(),
            incomplete: replay.incomplete,
        }
    }

    /// Adds the blocks of another root's extents.
    pub(crate) fn add(&mut self, other: Self) {
        self.indexed.add(&other.indexed);
        self.live.add(&other.live);
        self.written.add(&other.written);
        self.waiting.add(&other.waiting);
        self.births.add(other.births);
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
    /// The parent's tree.
    parent: Option<Parent<'a, 'a>>,
    /// Whether the root cannot change, so that other roots may inherit from it.
    frozen: bool,
    /// Blocks of the roots checked before.
    pub(crate) held: &'a Claims,
    pub(crate) given_up: GivenUp<'a>,
    pub(crate) hash_seed: u64,
    /// Sequence of the newest context.
    pub(crate) seq: u64,
    /// Greatest birth that the index can have.
    youngest: u64,
    pub(crate) found: Found,
}

impl Context<'_> {
    /// What is wrong with an extent, considering the roots checked before. An extent of a leaf that is
    /// shared is in the parent with the leaf.
    pub(crate) fn wrongly_held(
        &mut self,
        extent: &Mapped,
        shared_leaf: bool,
    ) -> Option<(&'static str, String)> {
        let shared = |why: &str| {
            let Mapped { at, len, .. } = extent;
            let message = format!("file block {at}: {len} blocks {why}");
            Some((codes::BLOCK_SHARED, message))
        };
        let blocks = || extent.block..extent.block.saturating_add(extent.len);
        if !self.inherited.has(extent.birth) {
            return match blocks().any(|block| self.held.live.has(block)) {
                true => shared("used by another root, which they were not inherited from"),
                false => None,
            };
        }
        let birth = extent.birth;
        match self.held.births.unlike(blocks(), birth) {
            Some(None) => shared("inherited from a root that does not have all of them"),
            Some(Some(other)) => {
                let at = extent.at;
                let message =
                    format!("file block {at}: born in context {birth}, in another root in {other}");
                Some((codes::EXTENT_BIRTH, message))
            }
            None if blocks().any(|block| self.held.written.has(block) != extent.written) => {
                shared("inherited, and written in one of the roots only")
            }
            None if !shared_leaf && self.parent.as_mut().is_some_and(|p| !p.has_extent(extent)) => {
                shared("inherited from a parent that has others in that place")
            }
            None => None,
        }
    }

    /// Remembers the births of what the root's children inherit from it alone.
    pub(crate) fn bequeath(&mut self, extent: &Mapped) {
        if self.frozen && !self.inherited.has(extent.birth) {
            let blocks = extent.block..extent.block.saturating_add(extent.len);
            self.found.claims.births.insert(blocks, extent.birth);
        }
    }
}

impl Context<'_> {
    /// An extent of the index that the log changes.
    fn replaced(&mut self, extent: &Mapped, ledger: &mut Ledger<'_>) {
        match self.inherited.has(extent.birth) {
            true => self.check_replaced(extent, ledger),
            false => self.given_up.replaced(extent),
        }
    }

    /// Checks an extent that the log replaced. What another root has of it by mistake is found with
    /// the blocks that are given up. What it inherits must be in the parent all the same: a snapshot
    /// in the log may get the extent.
    fn check_replaced(&mut self, extent: &Mapped, ledger: &mut Ledger<'_>) {
        if let Some((code, why)) = self.wrongly_held(extent, false) {
            let message = format!("before the log changed it, {why}");
            ledger.add(Finding::new(code, message).of(extent.ino).at(extent.block));
        }
    }
}

/// Groups items by object.
pub(crate) struct Structure<'a> {
    context: Context<'a>,
    /// The inode numbers that there can be.
    given: Given,
    shared: Shared,
    current: Option<Object>,
}

impl<'a> Structure<'a> {
    pub(crate) fn new(
        volume: &'a Volume<'_>,
        replay: &'a Replay,
        ((inherited, parent), frozen): ((Inherited, Option<RawRoot>), bool),
        held: &'a Claims,
    ) -> Self {
        let superblock = &volume.superblock;
        let geometry = &volume.geometry;
        let mut given = superblock.given();
        replay.overlay.add_numbers(&mut given);
        Self {
            context: Context {
                geometry,
                inherited,
                parent: parent.map(|tree| Parent::new(volume, tree)),
                frozen,
                held,
                given_up: GivenUp::new(geometry, &replay.overlay.replaced, inherited),
                hash_seed: superblock.hash_seed.get(),
                seq: replay.seq,
                youngest: replay.youngest,
                found: Found {
                    claims: Claims::new(volume, replay),
                    holes: Holes::default(),
                    links_incomplete: replay.incomplete,
                    inodes: Vec::new(),
                    links: Vec::new(),
                    orphans: BTreeMap::new(),
                    missing: BTreeSet::new(),
                },
            },
            given,
            shared: Shared::new(superblock.hash_seed.get()),
            current: None,
        }
    }

    /// Checks the extents that the log added and replaced.
    pub(crate) fn check_logged(&mut self, replay: &Replay, ledger: &mut Ledger<'_>) {
        let inherited = self.context.inherited;
        let logged = replay.overlay.replaced.values().flatten();
        for extent in logged.filter(|extent| inherited.has(extent.birth)) {
            self.context.check_replaced(extent, ledger);
        }
    }

    /// Checks the extents in the log that are older than a change of roots before them, after the
    /// last item: the root had their blocks then.
    pub(crate) fn check_old(&self, replay: &Replay, ledger: &mut Ledger<'_>) {
        if !self.is_whole() || replay.incomplete {
            return;
        }
        let (inherited, found) = (self.context.inherited, &self.context.found);
        let old = replay.overlay.old.iter();
        for extent in old.filter(|extent| !inherited.has(extent.birth)) {
            let Mapped { at, birth, .. } = extent;
            let mut blocks = extent.block..extent.block + extent.len;
            if blocks.any(|block| !found.claims.indexed.has(block)) {
                let message = format!(
                    "file block {at}: born in context {birth}, but new behind a later change of roots"
                );
                let finding = Finding::new(codes::EXTENT_BIRTH, message).of(extent.ino);
                ledger.add(finding.at(extent.block));
            }
        }
    }

    /// Ends the look-ups in the parent.
    ///
    /// # Errors
    /// The device failed during one.
    pub(crate) fn leave_parent(&mut self) -> Result<()> {
        self.context.parent.take().map_or(Ok(()), Parent::finish)
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

    pub(crate) fn into_found(mut self) -> Found {
        self.context.found.claims.waiting = self.context.given_up.blocks;
        self.context.found
    }

    fn finish_object(&mut self, ledger: &mut Ledger<'_>) {
        if let Some(object) = self.current.take() {
            object.finish(&mut self.context, ledger);
        }
    }

    fn begin_object(&mut self, item: &Item<'_>, ledger: &mut Ledger<'_>) {
        let ino = item.key.object;
        if ino >= FIRST_USER_INO && !self.given.has(ino) {
            let message = format!(
                "the numbers below {} and {} ranges were given",
                self.given.next, self.given.ranges
            );
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
                    if changed {
                        let extent = Mapped::new(key.object, key.offset, &raw);
                        self.context.replaced(&extent, ledger);
                    }
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
