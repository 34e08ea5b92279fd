//! The space of one step of a merge, or of packing: the units that its index nodes take, and those
//! that it retires.
//!
//! Uses the allocator only. Units come first from the reservation that committers made for the
//! growth of the index (`promised`). A node that is rewritten is no growth: it draws a unit from
//! the reservation and retires another one. So when the retired units of a step are released, as
//! many as it drew are reserved again, before a committer can reserve them; a failed step returns
//! its allocated units in the same way. The part of the reservation that is missing at the end is
//! the growth of the index.

use std::collections::HashSet;

use crate::index::{NodeCounts, NodeSpace};
use crate::space::{BlockRun, Class, Funding};
use crate::txn::Core;
use crate::txn::commit::is_inherited;
use crate::txn::copies::reserve_up_to;
use crate::txn::drop::GivenUp;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::format::key::{Key, VOLUME_ROOT};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Units released at once while the unreserved units do not cover what must be reserved again.
/// Fewer than the permanent reserve, so that no ordinary reservation takes them in between.
const FEW: usize = 8;

/// The blocks of a unit, by the first one.
pub(super) fn unit(block: &u64) -> BlockRun {
    BlockRun::new(*block, NODE_BLOCKS)
}

/// Releases `blocks`, the first block of each unit, and reserves up to `again` of these units.
/// Returns how many were reserved.
fn release(core: &Core, blocks: &[u64], again: u64, discard: bool) -> Result<u64> {
    let again = again.min(blocks.len() as u64);
    let mut promised = reserve_up_to(&core.space, again, Class::Merge)?;
    let together = if promised < again { FEW } else { usize::MAX };
    for some in blocks.chunks(together) {
        core.space
            .release(&mut some.iter().map(unit).collect(), discard)?;
        promised += reserve_up_to(&core.space, again - promised, Class::Merge)?;
    }
    Ok(promised)
}

/// Index nodes of one step, which parts of it may allocate and retire side by side. If the step
/// fails, they are released on drop.
pub(in crate::txn) struct StepSpace<'a> {
    core: &'a Core,
    taken: &'a AtomicU64,
    promised: &'a AtomicU64,
    /// Units of the reservation that the step has allocated.
    drawn: AtomicU64,
    /// Whether units are short.
    short: bool,
    /// Number of nodes that the step should allocate at most.
    limit: u64,
    /// The part of `limit` that edits known already may need.
    held: AtomicU64,
    /// The root whose tree is rewritten.
    root: AtomicU32,
    /// What was born up to this context belongs to other trees too.
    inherited: AtomicU64,
    /// How the nodes of the current tree of files differ from those before the step.
    nodes: Mutex<NodeCounts>,
    allocated: Mutex<Vec<u64>>,
    retired: Mutex<Vec<u64>>,
    /// What trees give up of a parent for which a walk runs.
    given_up: Mutex<GivenUp>,
}

impl<'a> StepSpace<'a> {
    /// A step without nodes. `taken` counts the nodes allocated, `promised` holds the reserved
    /// units.
    pub fn new(core: &'a Core, taken: &'a AtomicU64, promised: &'a AtomicU64) -> Self {
        Self {
            core,
            taken,
            promised,
            drawn: AtomicU64::new(0),
            short: core.space.is_short(),
            limit: core.space.step_units(),
            held: AtomicU64::new(0),
            root: AtomicU32::new(VOLUME_ROOT),
            inherited: AtomicU64::new(0),
            nodes: Mutex::default(),
            allocated: Mutex::default(),
            retired: Mutex::default(),
            given_up: Mutex::default(),
        }
    }

    /// Number of nodes that the step should allocate at most.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether so many copies of nodes, and twice the growth that was reserved, fit into half of the
    /// step.
    pub fn has_room_for(&self, copies: u64) -> bool {
        copies + 2 * self.promised.load(Ordering::Relaxed) <= self.limit / 2
    }

    /// Sets the number of nodes that edits known already may need.
    pub fn hold(&self, nodes: u64) {
        self.held.store(nodes, Ordering::Relaxed);
    }

    /// Called when the nodes of the tree of another `root` are rewritten, which inherits what was born
    /// up to this context from its parent; 0 and [`VOLUME_ROOT`] for the volume tree.
    pub fn enter(&self, root: u32, (inherited, parent): (u64, u32)) {
        self.root.store(root, Ordering::Relaxed);
        let floor = self.core.drops.watch().floor_of(parent);
        self.given_up.lock().set_floor(floor);
        self.inherited.store(inherited, Ordering::Relaxed);
        self.held.store(0, Ordering::Relaxed);
        *self.nodes.lock() = NodeCounts::default();
    }

    /// How the nodes of the tree differ from those that it had when it was entered.
    pub fn nodes(&self) -> NodeCounts {
        *self.nodes.lock()
    }

    /// Takes what the trees have given up of a parent for which a walk runs.
    pub fn take_given_up(&self) -> GivenUp {
        std::mem::take(&mut *self.given_up.lock())
    }

    /// The allocated and the retired nodes, which the caller owns from here on.
    pub fn into_done(self) -> StepUnits<'a> {
        StepUnits {
            allocated: self.allocated.lock().drain(..).collect(),
            retired: self.retired.lock().drain(..).collect(),
            promised: self.promised,
            drawn: self.drawn.load(Ordering::Relaxed),
        }
    }
}

impl Drop for StepSpace<'_> {
    fn drop(&mut self) {
        let unused = std::mem::take(&mut *self.allocated.lock());
        match release(self.core, &unused, *self.drawn.get_mut(), false) {
            Ok(again) => {
                self.promised.fetch_add(again, Ordering::Relaxed);
            }
            Err(error) => self.core.storage.fail(error),
        }
    }
}

impl NodeSpace for StepSpace<'_> {
    fn alloc(&self) -> Result<u64> {
        let draw = |left: u64| left.checked_sub(1);
        let order = Ordering::Relaxed;
        let drawn = self.promised.fetch_update(order, order, draw).is_ok();
        let funding = if drawn {
            Funding::Reserved
        } else {
            Funding::New(Class::Merge)
        };
        let block = self.core.space.alloc_unit(funding);
        let Ok(Some(block)) = block else {
            self.promised.fetch_add(u64::from(drawn), order);
            return block?.ok_or(Error::NoSpace);
        };
        self.drawn.fetch_add(u64::from(drawn), order);
        self.taken.fetch_add(1, order);
        self.core.merger.packing.count_node();
        self.allocated.lock().push(block);
        Ok(block)
    }

    fn retire(&self, block: u64) {
        if !self.core.space.wrongly_reuses_node(block) {
            self.retired.lock().push(block);
        }
    }

    fn is_inherited(&self, birth: u64) -> bool {
        is_inherited(birth, self.inherited.load(Ordering::Relaxed))
    }

    fn give_up(&self, block: u64, birth: u64) {
        self.given_up.lock().unit(block, birth);
    }

    fn note_nodes(&self, nodes: &NodeCounts) {
        let mut sum = self.nodes.lock();
        *sum = sum.and(nodes);
    }

    fn is_short(&self) -> bool {
        self.short
    }

    fn has_room(&self) -> bool {
        let held = self.held.load(Ordering::Relaxed);
        self.taken.load(Ordering::Relaxed) + held < self.limit
    }

    fn cuts_damaged(&self) -> bool {
        self.core.cuts_damaged
    }

    fn note_cut(&self, block: u64, keys: (Key, Option<Key>)) {
        let root = self.root.load(Ordering::Relaxed);
        self.core.cuts.note(root, block, keys);
        self.core.values.note_lost();
    }

    fn leaves_out(&self) -> bool {
        let leaves = self.core.read_only;
        if leaves {
            self.core.left_out.fetch_add(1, Ordering::Relaxed);
        }
        leaves
    }

    fn writes_apart(&self) -> bool {
        self.core.signals.has_workers()
    }
}

/// Units of a step whose tree is complete.
pub(in crate::txn) struct StepUnits<'a> {
    /// Index nodes that the step wrote.
    pub allocated: HashSet<u64>,
    /// Index nodes that its tree does not use any more, some of which the step itself wrote.
    pub retired: HashSet<u64>,
    promised: &'a AtomicU64,
    drawn: u64,
}

impl StepUnits<'_> {
    /// Releases the retired nodes, once the step's superblock is durable.
    ///
    /// # Errors
    /// A damaged bitmap.
    pub fn release_retired(self, core: &Core) -> Result<()> {
        let promised = self.promised;
        let again = self.into_retired().release(core)?;
        promised.fetch_add(again, Ordering::Relaxed);
        Ok(())
    }

    /// The retired nodes, to be released when the step's superblock is durable.
    pub fn into_retired(self) -> Retired {
        let mut nodes: Vec<u64> = self.retired.into_iter().collect();
        nodes.sort_unstable();
        let drawn = self.drawn;
        Retired { nodes, drawn }
    }
}

/// Index nodes that a step does not use any more.
#[derive(Default)]
pub(in crate::txn) struct Retired {
    nodes: Vec<u64>,
    /// Units of the reservation that the step has allocated.
    drawn: u64,
}

impl Retired {
    /// Number of nodes.
    pub fn units(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Releases the nodes, once the step's superblock is durable. Returns how many units are
    /// reserved again for merges.
    ///
    /// # Errors
    /// A damaged bitmap.
    pub fn release(self, core: &Core) -> Result<u64> {
        release(core, &self.nodes, self.drawn, core.discard)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fs::{MakeOptions, make_device};
    use crate::txn::merge::edits::ImageChange;
    use crate::txn::merge::rest::Ending;
    use crate::txn::merge::steps::finish_step;
    use crate::txn::roots::RootItems;
    use crate::txn::{Limits, OpenMode};
    use cairnfs_disk::device::{Device, MemoryDevice};

    const PROMISED: u64 = 10;

    fn open() -> Core {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(16 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let mode = OpenMode::seeded(Limits::for_budget(8 << 20));
        Core::open(device, mode).unwrap()
    }

    /// Runs a step with a reservation of [`PROMISED`] units. Returns the part of it that is left,
    /// and the units that the volume has reserved then.
    fn step(core: &Core, run: impl FnOnce(StepSpace<'_>)) -> (u64, u64) {
        assert!(core.space.reserve(0, PROMISED, Class::Merge).unwrap());
        let (taken, promised) = (AtomicU64::new(0), AtomicU64::new(PROMISED));
        run(StepSpace::new(core, &taken, &promised));
        (promised.into_inner(), core.space.reserved().1)
    }

    fn finish(core: &Core, space: StepSpace<'_>) {
        let changes = (Vec::new(), &RootItems::new());
        let (image, ending) = (ImageChange::default(), Ending::Settled);
        let done = finish_step(core, space, changes, 1, &image, (|_| {}, ending)).unwrap();
        done.release_retired(core).unwrap();
    }

    #[test]
    fn rewritten_nodes_leave_reservation_unchanged() {
        let core = open();
        let free = core.space.free_blocks();
        let left = step(&core, |space| {
            for _ in 0..4 {
                let block = space.alloc().unwrap();
                space.retire(block);
            }
            finish(&core, space);
        });
        assert_eq!(left, (PROMISED, PROMISED));
        assert_eq!(core.space.free_blocks(), free);
    }

    #[test]
    fn index_growth_uses_reservation_once() {
        let core = open();
        let left = step(&core, |space| {
            let blocks: Vec<u64> = (0..6).map(|_| space.alloc().unwrap()).collect();
            blocks[..4].iter().for_each(|block| space.retire(*block));
            finish(&core, space);
        });
        assert_eq!(left, (PROMISED - 2, PROMISED - 2));
    }

    #[test]
    fn failed_step_restores_reservation() {
        let core = open();
        let free = core.space.free_blocks();
        let left = step(&core, |space| {
            (0..13).for_each(|_| assert!(space.alloc().is_ok()));
        });
        assert_eq!(left, (PROMISED, PROMISED));
        assert_eq!(core.space.free_blocks(), free);
    }

    #[test]
    fn drawn_units_are_reserved_again_without_free_space() {
        let core = open();
        let left = step(&core, |space| {
            let blocks: Vec<u64> = (0..PROMISED).map(|_| space.alloc().unwrap()).collect();
            let spare = core.space.free_units() - core.space.reserved().1;
            assert!(core.space.reserve(0, spare, Class::Merge).unwrap());
            blocks.iter().for_each(|block| space.retire(*block));
            finish(&core, space);
            core.space.unreserve(0, spare);
        });
        assert_eq!(left, (PROMISED, PROMISED));
    }
}
