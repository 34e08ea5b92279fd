//! Reads the table of roots, checks the lineages, and walks the trees, parents before children.
//!
//! A tree may contain a node or block of another tree only if it inherits it: born up to the
//! boundary of its parent, and there in its parent. Everything else belongs to one root alone.
//!
//! What a root inherits is looked up in its parent: the top of each inherited subtree, large values
//! and extents of the root's own leaves must be there at the same place. An inherited block is
//! written in both roots or in neither. Roots agree about the birth of each block that they share: a
//! root between two of them may go, and then the birth alone tells whether both have it. The same
//! holds of extents that the log replaces, because a snapshot that only the log has may get them.
//! The union of what is found must be what the bitmaps have.
//!
//! Lineages are checked for parents and replaced roots that are unknown, heads, or not older, for
//! boundaries that are not merged, equal names, and ids that were not given. Changes of roots in the log are checked in their
//! order by the rules of replay. Nothing in the index may be younger than the first of them, no
//! extent that the log adds behind one older than it, and nothing in a frozen root younger than its
//! boundary. A dropped root is whole until its item goes, so it is checked like any other.

use std::collections::{BTreeMap, BTreeSet};

use cairnfs_disk::error::Result;
use cairnfs_disk::format::key::{Key, Kind, MAIN_ROOT, VOLUME_ROOT};
use cairnfs_disk::format::lineage::check_changes;
use cairnfs_disk::format::root::{MAIN_NAME, Root, RootState};
use cairnfs_disk::format::superblock::{REPLACED, ROOTS};

use crate::checked::Checked;
use crate::checked_volume::Volume;
use crate::codes;
use crate::context::{Claims, Link};
use crate::data;
use crate::holes::{Holes, KeyRange};
use crate::links;
use crate::log::{Log, Replay};
use crate::overlay::Merge;
use crate::paths;
use crate::report::{Finding, Ledger};
use crate::structure::Structure;
use crate::tree::Walker;
use crate::visit::{Inherited, Item, Visitor};

/// The roots of a volume while they are checked.
pub(crate) struct Roots<'v, 'd> {
    volume: &'v Volume<'d>,
    table: Table,
    walker: Walker<'v, 'd>,
    /// Blocks in use by the roots checked so far.
    claims: Claims,
}

impl<'v, 'd> Roots<'v, 'd> {
    /// Reads and checks the table.
    pub(crate) fn read(volume: &'v Volume<'d>, log: &Log, ledger: &mut Ledger<'_>) -> Result<Self> {
        let superblock = &volume.superblock;
        let mut walker = Walker::new(volume, log.youngest());
        let mut table = Table::default();
        let height = superblock.root_height.get();
        walker.walk(&superblock.root, height, &mut table, ledger)?;
        table.check(volume, ledger);
        table.check_log(log, ledger);
        Ok(Self {
            volume,
            table,
            walker,
            claims: Claims::new(volume, &log.of_frozen(0)),
        })
    }

    /// Checks all roots except the main root, which is the last one, and their files' contents if
    /// `contents`.
    pub(crate) fn check_others(
        &mut self,
        log: &mut Log,
        contents: bool,
        ledger: &mut Ledger<'_>,
    ) -> Result<()> {
        let stats = *ledger.stats();
        let main = self.table.main();
        for id in self.table.in_order() {
            let Some(checked) = self.table.checked(id).filter(|_| Some(id) != main) else {
                continue;
            };
            let replay = match checked.root.state {
                RootState::Head => log.take(id),
                RootState::Frozen | RootState::Dropping => log.of_frozen(checked.root.boundary),
            };
            let first = ledger.findings().len();
            let is_frozen = checked.root.state != RootState::Head;
            ledger.begin_root(id, &checked.root.name, is_frozen);
            let (walker, claims) = (&mut self.walker, &mut self.claims);
            let links = check_root(self.volume, &replay, &checked, (walker, claims), ledger)?;
            if contents {
                data::check(self.volume, &replay, &checked, ledger)?;
            }
            paths::name(self.volume, &replay, &checked, &links, first, ledger)?;
            ledger.end_root();
        }
        // The counts are those of the files of the main root.
        let verified = ledger.stats().verified_blocks;
        *ledger.stats() = stats;
        ledger.stats().verified_blocks = verified;
        Ok(())
    }

    /// Checks the main root. Returns its entries, unless its tree is not known.
    pub(crate) fn check_main(
        &mut self,
        replay: &Replay,
        ledger: &mut Ledger<'_>,
    ) -> Result<Option<Vec<Link>>> {
        let main = self.table.main();
        let links = match main.and_then(|id| self.table.checked(id)) {
            Some(main) => {
                let used = (&mut self.walker, &mut self.claims);
                Some(check_root(self.volume, replay, &main, used, ledger)?)
            }
            None => {
                self.table.report_missing(ledger);
                self.claims.incomplete = true;
                None
            }
        };
        self.claims.index.add(&self.walker.used);
        Ok(links)
    }

    /// The main root.
    pub(crate) fn main(&self) -> Option<Checked<'_>> {
        self.table.checked(self.table.main()?)
    }

    /// Id of the main root.
    pub(crate) fn main_id(&self) -> u32 {
        self.table.main().unwrap_or(MAIN_ROOT)
    }

    /// The blocks in use by all roots.
    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }
}

/// Checks one tree, and adds its blocks to `claims`. Returns all its entries, sorted.
fn check_root(
    volume: &Volume<'_>,
    replay: &Replay,
    checked: &Checked<'_>,
    (walker, claims): (&mut Walker<'_, '_>, &mut Claims),
    ledger: &mut Ledger<'_>,
) -> Result<Vec<Link>> {
    let frozen = checked.root.state != RootState::Head;
    let inherits = (checked.inherited, checked.parent);
    let mut structure = Structure::new(volume, replay, (inherits, frozen), claims);
    structure.check_logged(replay, ledger);
    let seed = volume.superblock.hash_seed.get();
    let mut merge = Merge::new(&replay.overlay, seed, &mut structure);
    walker.begin_root(checked.inherited, checked.parent, replay.youngest);
    checked.walk(walker, &mut merge, ledger)?;
    merge.finish(ledger)?;
    structure.finish(ledger);
    structure.check_old(replay, ledger);
    structure.leave_parent()?;
    walker.end_root()?;
    let (recorded, nodes) = (checked.root.nodes, walker.nodes);
    if !checked.root.is_plain() && recorded != nodes && structure.is_whole() {
        let message = format!("its item tells {recorded} index nodes, its tree has {nodes}");
        ledger.add(Finding::new(codes::ROOT_LINEAGE, message));
    }
    // A branch without a name may have been left before it got its root directory. It is dropped by
    // the next opening.
    let unfinished = checked.root.name.is_empty() && checked.root.state != RootState::Frozen;
    let (own, links) = links::check(structure, unfinished, ledger);
    claims.add(own);
    Ok(links)
}

/// The table of roots.
#[derive(Default)]
struct Table {
    roots: BTreeMap<u32, Root>,
    holes: Holes,
}

impl Table {
    fn report_missing(&self, ledger: &mut Ledger<'_>) {
        if !self.is_hidden(MAIN_ROOT) {
            let message = format!("no head named {MAIN_NAME} in the table of roots");
            ledger.add(Finding::new(codes::ROOT_MISSING, message));
        }
        ledger.unchecked("all files: their root is not known");
    }

    /// Id of the head with the volume's files.
    fn main(&self) -> Option<u32> {
        let is_main = |root: &Root| root.state == RootState::Head && root.name == MAIN_NAME;
        let mut roots = self.roots.iter();
        roots.find(|(_, root)| is_main(root)).map(|(id, _)| *id)
    }

    /// Checks what the log does to roots, in its order, as a replay does: it changes the files of
    /// heads only, and roots by the rules of [`check_changes`]. Of a root that only the log has, the
    /// entries were decoded; the rest is checked once the index has it.
    fn check_log(&self, log: &Log, ledger: &mut Ledger<'_>) {
        if self.main().is_none() {
            // That is found anyway; the changes may be those of the missing root.
            return;
        }
        let mut roots = self.roots.clone();
        for step in &log.overlays.steps {
            for (id, block) in &step.files {
                let why = match roots.get(id).map(|root| root.state) {
                    Some(RootState::Head) => continue,
                    Some(RootState::Frozen | RootState::Dropping) => "which is frozen",
                    None if self.is_hidden(*id) => continue,
                    None => "which does not exist",
                };
                let message = format!("changes of root {id}, {why}");
                ledger.add(Finding::new(codes::LOG_ENTRY, message).at(*block));
            }
            let Some((seq, block)) = step.end else {
                continue;
            };
            let changed = check_changes(&roots, &step.changes, seq);
            if let (Err(why), true) = (changed, self.holes.is_empty()) {
                ledger.add(Finding::new(codes::LOG_ENTRY, why).at(block));
                // What follows depends on it.
                return;
            }
            roots.extend(step.changes.clone());
        }
    }

    fn is_hidden(&self, id: u32) -> bool {
        self.holes.hides(&Key::new(u64::from(id), Kind::Root, 0))
    }

    /// Checks names, states and lineages.
    fn check(&self, volume: &Volume<'_>, ledger: &mut Ledger<'_>) {
        let superblock = &volume.superblock;
        let mut names = BTreeSet::new();
        for (id, root) in &self.roots {
            let mut report = |message: String| {
                let message = format!("root {id}: {message}");
                ledger.add(Finding::new(codes::ROOT_LINEAGE, message));
            };
            if *id >= superblock.next_root.get() {
                report("an id that was not given yet".into());
            }
            if !root.is_plain() && superblock.incompatible.get() & ROOTS == 0 {
                report("forked, on a volume without the feature of roots".into());
            }
            if !root.replaced.is_empty() && superblock.incompatible.get() & REPLACED == 0 {
                report("has replaced others, on a volume without the feature for that".into());
            }
            if !root.name.is_empty() && !names.insert(&root.name) {
                report(format!("another root has its name, {:?}", root.name));
            }
            let (boundary, merged) = (root.boundary, superblock.merged_seq.get());
            if boundary > merged {
                report(format!("frozen at {boundary}, merged is {merged}"));
            }
            let parent = Some(root.parent).filter(|id| *id != VOLUME_ROOT);
            let parent = parent.map(|id| ("its parent", id));
            let replaced = root.replaced.iter().map(|id| ("the replaced root", *id));
            for (what, id) in parent.into_iter().chain(replaced) {
                match self.roots.get(&id) {
                    None => report(format!("{what} {id} does not exist")),
                    Some(older) if older.state == RootState::Head => {
                        report(format!("{what} {id} is not frozen"));
                    }
                    Some(older) if boundary > 0 && older.boundary >= boundary => report(format!(
                        "frozen at {boundary}, {what} {id} at {}",
                        older.boundary
                    )),
                    Some(_) => {}
                }
            }
        }
    }

    /// The ids in an order in which parents precede their children. Boundaries grow from parent to
    /// child, and only heads, which have none, end a lineage.
    fn in_order(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.roots.keys().copied().collect();
        ids.sort_by_key(|id| match self.roots.get(id).map(|root| root.boundary) {
            Some(0) | None => (u64::MAX, *id),
            Some(boundary) => (boundary, *id),
        });
        ids
    }

    fn checked(&self, id: u32) -> Option<Checked<'_>> {
        let root = self.roots.get(&id)?;
        let parent = self.roots.get(&root.parent);
        Some(Checked {
            root,
            inherited: Inherited {
                boundary: parent.map_or(0, |parent| parent.boundary),
            },
            parent: parent.map(|parent| parent.tree),
        })
    }
}

impl Visitor for Table {
    fn item(&mut self, item: &Item<'_>, ledger: &mut Ledger<'_>) -> Result<()> {
        let key = item.key;
        if key.kind != Kind::Root || key.offset != 0 || key.object == u64::from(VOLUME_ROOT) {
            let message = format!("{key:?} in the volume's own root");
            ledger.add(Finding::new(codes::UNEXPECTED_ITEM, message).at(item.block));
            return Ok(());
        }
        match Root::decode(key.object, item.value) {
            Ok(root) => {
                self.roots.insert(key.object as u32, root);
            }
            Err(why) => {
                ledger.add(Finding::new(codes::ROOT_ITEM, why).at(item.block));
                self.holes.push(KeyRange::one(key));
            }
        }
        Ok(())
    }

    fn hole(&mut self, hole: KeyRange, _: &mut Ledger<'_>) -> Result<()> {
        self.holes.push(hole);
        Ok(())
    }
}
