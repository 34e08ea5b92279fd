//! The end of a drop: one superblock that frees what belonged to the root alone.
//!
//! Runs under the lock of merges. Everything merged has moved the log's tail, so no record refers
//! to a freed block, and no change of roots is in the log that still has the root as a parent.

use crate::txn::Core;
use crate::txn::blocks::BlockSet;
use crate::txn::drop::walk::Walk;
use crate::txn::merge::{Ending, StepSpace, StepUnits, VolumeStep, write_roots};
use crate::txn::roots::{Place, RootChanges};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

impl Core {
    /// Ends a complete walk. Does nothing if the lineage is another one now, so that the root waits
    /// for another walk.
    pub(super) fn dissolve(&self, walk: &Walk) -> Result<()> {
        self.merger.settled(self, || {
            let given_up = self.drops.watch.end();
            if self.roots.is_still(&walk.place) {
                let alone = if walk.is_damaged() {
                    self.of_no_other(&walk.place)?
                } else {
                    walk.result(&given_up)
                };
                self.free_root(&walk.place, &alone)
            } else {
                Ok(Ok(()))
            }
        })
    }

    /// Frees `alone`, what a root alone has, and removes the root.
    fn free_root(&self, place: &Place, alone: &BlockSet) -> Result<Result<()>> {
        let kept = &self.drops.units;
        let (count, promised) = (
            AtomicU64::new(0),
            AtomicU64::new(kept.swap(0, Ordering::Relaxed)),
        );
        let space = StepSpace::new(self, &count, &promised);
        let changes = self.roots.without(place);
        let step = VolumeStep {
            roots: &changes,
            birth: self.superblocks.newest().merged_seq.get(),
            lose: || {
                let mut runs = alone.groups().flatten();
                runs.try_for_each(|run| self.space.image_remove(run))?;
                fault::inject(InjectedFault::FreedBeforeRoot, || {
                    self.superblocks.flip(|_| ())
                })
            },
            gain: || Ok(()),
        };
        let written = write_roots(self, space, step, (|_| (), Ending::Settled));
        let freed = match written {
            Err(Error::NoSpace) => Ok(Err(Error::NoSpace)),
            Err(error) => Err(error),
            Ok(units) => self.release_root(place, changes, alone, units).map(Ok),
        };
        kept.store(promised.into_inner(), Ordering::Relaxed);
        freed
    }

    /// Makes what was freed usable, once the superblock without the root is durable.
    fn release_root(
        &self,
        place: &Place,
        changes: RootChanges,
        alone: &BlockSet,
        units: StepUnits<'_>,
    ) -> Result<()> {
        let children: Vec<u32> = changes
            .keys()
            .copied()
            .filter(|id| self.roots.merged_parent(*id) == place.id)
            .collect();
        self.roots.set_dissolved(place, changes);
        for child in children {
            self.inherit_less(child);
        }
        self.merger.copies().forget(place.id);
        units.release_retired(self)?;
        for mut runs in alone.groups() {
            self.space.release(&mut runs, self.discard)?;
        }
        Ok(())
    }

    /// Lets a tree own what it inherited from the dissolved root alone. The boundary of its parent
    /// only falls: a committer that still sees the greater one gives up a block without freeing it,
    /// and the merge frees it.
    fn inherit_less(&self, child: u32) {
        if let Some(items) = self.heads.get(child) {
            items.set_merged_inherited(self.roots.merged_inherited(child));
            items.set_inherited(self.roots.inherited(child));
        }
        let nodes = self.roots.inherited_nodes(child);
        self.merger.copies().lower(&self.space, child, nodes);
    }
}
