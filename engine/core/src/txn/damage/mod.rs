//! Removal of what is damaged: trees without their damaged nodes, and everything else as if what
//! these held had been removed.
//!
//! Runs on a volume that nothing else uses. The log is merged first; that merge cuts out the damaged
//! nodes that it meets. Then a [`survey`] of each head finds which of the other items have lost what
//! belongs to them, and how they must change, and one superblock has the new trees of all heads, and
//! frees all blocks that no root has any more. Frozen roots never change: a damaged one is reported.

mod parted;
mod survey;

pub use parted::Cuts;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

use zerocopy::little_endian::U32;

use crate::index::{NodeSpace, Owned, Tree};
use crate::space::BlockRun;
use crate::txn::Core;
use crate::txn::blocks::BlockSet;
use crate::txn::damage::parted::WHOLE;
use crate::txn::damage::survey::Survey;
use crate::txn::merge::{Ending, StepSpace, VolumeStep, write_roots};
use crate::txn::roots::{RootItems, tree_of};
use crate::txn::superblocks::volume_tree;
use cairnfs_disk::error::{Corruption, Error, Result};
use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::format::item::decode_extent_at;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::root::{RawRoot, Root, RootState};
use cairnfs_disk::sync::atomic::AtomicU64;
use cairnfs_disk::types::RemovedDamage;

/// What is written at the end of a removal.
#[derive(Default)]
struct Changed {
    /// The items of the heads with new trees.
    items: RootItems,
    /// The trees of all roots after it, each with the boundary of its parent.
    trees: BTreeMap<u32, (Tree, u64)>,
    /// Nodes of the old trees that no other root has.
    retired: Vec<u64>,
}

impl Core {
    /// Removes what is damaged from all heads.
    ///
    /// # Errors
    /// A read-only volume; damage outside the trees of files; no space for the new nodes; the
    /// device's failure. The volume is then as it was, or its log is merged.
    pub fn remove_damage(&self) -> Result<RemovedDamage> {
        self.check_changeable()?;
        // Nodes are born after the boundary of every root.
        self.merge()?;
        let mut removed = RemovedDamage {
            nodes: self.cuts.blocks(),
            ..RemovedDamage::default()
        };
        self.merger
            .settled(self, || match self.rewrite(&mut removed) {
                Err(Error::NoSpace) => Ok(Err(Error::NoSpace)),
                done => done.map(Ok),
            })?;
        Ok(removed)
    }

    fn rewrite(&self, removed: &mut RemovedDamage) -> Result<()> {
        let (count, promised) = (AtomicU64::new(0), AtomicU64::new(0));
        let space = StepSpace::new(self, &count, &promised);
        let birth = self.superblocks.newest().merged_seq.get();
        let mut changed = Changed::default();
        for (id, root) in self.roots.list() {
            let tree = tree_of(&root.tree);
            let inherited = self.roots.merged_inherited(id);
            changed.trees.insert(id, (tree, inherited));
            match root.state {
                RootState::Head => {
                    self.rewrite_head((id, root), birth, &space, &mut changed, removed)?;
                }
                RootState::Frozen if root.boundary > self.merged_before => {
                    self.survey_frozen(&root, removed)?;
                }
                RootState::Frozen | RootState::Dropping => {}
            }
        }
        let freed = self.not_needed(&changed, removed)?;
        removed.freed = freed.len();
        if changed.items.is_empty() && freed.len() == 0 {
            return Ok(());
        }
        let written = changed.items.iter();
        let written = written
            .map(|(id, root)| (*id, Some(root.clone())))
            .collect();
        let step = VolumeStep {
            roots: &written,
            birth,
            lose: || {
                let mut runs = freed.groups().flatten();
                runs.try_for_each(|run| self.space.image_remove(run))
            },
            gain: || Ok(()),
        };
        let done = write_roots(self, space, step, (|_| (), Ending::Settled))?;
        self.heads.each(|items| {
            if let Some(root) = changed.items.get(&items.root()) {
                items.set_tree(tree_of(&root.tree));
            }
        });
        self.roots.set_merged(changed.items, &RootItems::new());
        done.release_retired(self)?;
        for mut runs in freed.groups() {
            self.space.release(&mut runs, self.discard)?;
        }
        Ok(())
    }

    /// Reports a frozen root that only the log had, if its merge has cut something out of its tree. What
    /// belongs to that stays in the tree.
    fn survey_frozen(&self, root: &Root, removed: &mut RemovedDamage) -> Result<()> {
        let tree = tree_of(&root.tree);
        let mut survey = match Survey::of(self, (root.origin, tree)) {
            // Its nodes are reported with what no root has.
            Err(Error::Corrupt(_)) => return Ok(()),
            survey => survey?,
        };
        survey.repair()?;
        let found = survey.end();
        if found.nodes.is_empty() && !found.edits.is_empty() {
            let lost = Corruption {
                block: tree.ptr.block.get(),
                what: "snapshot",
                expected: "all that it had when it was made".into(),
                found: "a tree without its damaged nodes".into(),
            };
            removed.still_damaged.push((root.name.clone(), lost));
        }
        Ok(())
    }

    /// Makes the tree of a head without what is damaged.
    fn rewrite_head(
        &self,
        (id, root): (u32, Root),
        birth: u64,
        step: &StepSpace<'_>,
        changed: &mut Changed,
        removed: &mut RemovedDamage,
    ) -> Result<()> {
        let mut old = tree_of(&root.tree);
        let mut survey = match Survey::of(self, (id, old)) {
            // Nothing is found without its top node. It is reported with the frozen ones, and can go as
            // a whole, except for main, which begins anew.
            Err(Error::Corrupt(_)) if id != self.main_root() => return Ok(()),
            Err(Error::Corrupt(damage)) => {
                removed.nodes.push(damage.block);
                self.cuts.note(id, damage.block, WHOLE);
                old = Tree::default();
                Survey::of(self, (id, old))?
            }
            survey => survey?,
        };
        survey.repair()?;
        let found = survey.end();
        if found.edits.is_empty() && found.losses.is_empty() {
            return Ok(());
        }
        let name = root.name.clone();
        let losses = found.losses.into_iter();
        removed
            .losses
            .extend(losses.map(|loss| (name.clone(), loss)));
        removed.nodes.extend(found.nodes);
        let inherited = self.roots.merged_inherited(id);
        step.enter(id, (inherited, self.roots.merged_parent(id)));
        let space = CutSpace {
            step,
            made: RefCell::default(),
            retired: RefCell::default(),
        };
        let mut edits = found.edits;
        let tree = self.index.apply(&old, &mut edits, birth, &space)?;
        changed.retired.extend(space.retired.into_inner());
        changed.trees.insert(id, (tree, inherited));
        let nodes = match root.nodes {
            0 => 0,
            _ => self.index.count_nodes(&tree)?,
        };
        let (ptr, height) = (tree.ptr, U32::new(tree.height));
        let birth = root.tree.birth;
        let tree = RawRoot { ptr, height, birth };
        changed.items.insert(
            id,
            Root {
                tree,
                nodes,
                ..root
            },
        );
        Ok(())
    }

    /// The blocks that the image has in use, and no root after the change. If a frozen root is
    /// damaged, nobody knows what it has: then these are only the nodes that the heads give up.
    fn not_needed(&self, changed: &Changed, removed: &mut RemovedDamage) -> Result<BlockSet> {
        let mut used = BlockSet::default();
        let newest = self.superblocks.newest();
        for unit in newest.copy_units() {
            used.insert(BlockRun::new(unit, NODE_BLOCKS));
        }
        self.note_blocks(&volume_tree(&newest), 0, &mut used)?;
        let mut whole = true;
        for (id, (tree, inherited)) in &changed.trees {
            match self.note_blocks(tree, *inherited, &mut used) {
                Ok(()) => {}
                Err(Error::Corrupt(damage)) => {
                    whole = false;
                    let root = self.roots.merged(*id).unwrap_or_default();
                    removed.still_damaged.push((root.name, *damage));
                }
                Err(error) => return Err(error),
            }
        }
        let mut freed = BlockSet::default();
        if whole {
            self.space.each_in_image(&mut |run| freed.insert(run))?;
            freed.subtract(&used);
        } else {
            let retired = changed.retired.iter();
            retired.for_each(|node| freed.insert(BlockRun::new(*node, NODE_BLOCKS)));
        }
        Ok(freed)
    }

    /// Adds the blocks of a tree, except what is older than the birth `inherited`.
    pub(in crate::txn) fn note_blocks(
        &self,
        tree: &Tree,
        inherited: u64,
        used: &mut BlockSet,
    ) -> Result<()> {
        self.index.owned(tree, inherited, &mut |owned| {
            match owned {
                Owned::Unit(block) => used.insert(BlockRun::new(block, NODE_BLOCKS)),
                Owned::Item(key, value) if key.kind == Kind::Extent => {
                    let (raw, _) = decode_extent_at(key.offset, value, &self.geometry)
                        .map_err(|found| Error::corrupt(0, "extent item", "an extent", found))?;
                    used.insert(BlockRun::new(raw.block.get(), raw.len.get().into()));
                }
                Owned::Item(..) => {}
            }
            Ok(())
        })
    }
}

/// The space of a tree that is made anew. What it gives up is found by what the roots have.
struct CutSpace<'s, 'a> {
    step: &'s StepSpace<'a>,
    /// Nodes of the new tree.
    made: RefCell<HashSet<u64>>,
    /// Nodes of the old tree that the new one does not have.
    retired: RefCell<Vec<u64>>,
}

impl NodeSpace for CutSpace<'_, '_> {
    fn alloc(&self) -> Result<u64> {
        let block = self.step.alloc()?;
        self.made.borrow_mut().insert(block);
        Ok(block)
    }

    fn retire(&self, block: u64) {
        if self.made.borrow_mut().remove(&block) {
            self.step.retire(block)
        } else {
            self.retired.borrow_mut().push(block)
        }
    }

    fn is_inherited(&self, birth: u64) -> bool {
        self.step.is_inherited(birth)
    }

    fn cuts_damaged(&self) -> bool {
        true
    }
}
