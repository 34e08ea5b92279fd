//! Receives the logical state of the files' tree item by item and passes each object's items to its
//! checks.
//!
//! Data needed for comparisons across objects is collected in [`Found`].

use std::collections::{BTreeMap, BTreeSet};

use cairnfs_disk::error::Result;
use cairnfs_disk::format::item::{
    ORPHAN_REMOVE, ORPHAN_TRUNCATE, decode_dir_entry, decode_extent_at,
};
use cairnfs_disk::format::key::{Kind, ORPHANS, SHARED_BYTES, SHARED_VALUES};
use cairnfs_disk::format::numbers::Given;
use cairnfs_disk::format::root::RawRoot;
use cairnfs_disk::format::xattr::decode_stored_xattrs;
use cairnfs_disk::format::{FIRST_USER_INO, ROOT_INO};

use crate::checked_volume::Volume;
use crate::codes;
use crate::context::{Claims, Context, Found};
use crate::given_up::{GivenUp, Mapped};
use crate::holes::{Holes, KeyRange};
use crate::log::Replay;
use crate::object::Object;
use crate::overlay::Sink;
use crate::parent::Parent;
use crate::report::{Finding, Ledger};
use crate::shared::Shared;
use crate::visit::{Inherited, Item};

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
