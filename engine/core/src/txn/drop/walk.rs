//! The walk that finds what belongs to a root alone.
//!
//! It compares the root's tree with that of its child, or with nothing, and leaves out what the
//! parent has. It goes in pieces of a bounded number of items and nodes. The child may change between
//! two pieces and during one: what it inherits can only become less, so a block that any of its
//! newer trees lacks belongs to no child any more, and [`GivenUp`](super::GivenUp) has what it
//! loses behind the walk. If the units of a tree that a piece reads are reused, the piece is read
//! again in the newer tree.
//!
//! Nodes and large values are compared by their addresses, data block by block: the two trees may
//! have split or joined the same blocks differently.

use crate::index::{Difference, Limits, OldOnly, Progress, Tree};
use crate::space::BlockRun;
use crate::txn::Core;
use crate::txn::blocks::BlockSet;
use crate::txn::roots::Place;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::item::decode_extent_at;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::numbers::Given;
use cairnfs_disk::format::{MAX_EXTENT_BLOCKS, NODE_BLOCKS};

/// Attempts to read a piece while merges replace the tree, before merges have to wait for it.
const ATTEMPTS: usize = 4;

/// What a walk has found so far.
#[derive(Default)]
struct Found {
    /// Blocks that the root has at places where the other tree differs.
    gone: BlockSet,
    /// Blocks that the other tree has at places where it differs, and may share with the root.
    kept: BlockSet,
}

/// A walk in progress.
pub(super) struct Walk {
    /// The root, and its neighbours in the history.
    pub place: Place,
    /// All keys before this one were compared.
    from: Option<Key>,
    found: Found,
    /// Whether a tree cannot be compared, because it is damaged.
    is_damaged: bool,
}

impl Walk {
    /// A walk that has compared nothing.
    pub fn new(place: Place) -> Self {
        Self {
            place,
            from: None,
            found: Found::default(),
            is_damaged: false,
        }
    }

    /// Ends a walk that damage is in the way of.
    pub fn end_at_damage(&mut self) {
        self.is_damaged = true;
    }

    /// Whether what it has found is not all, because of damage.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Compares one more piece of about `moves` items and nodes. Returns whether it was the last one.
    ///
    /// # Errors
    /// Damage in the index; the device's failure.
    pub fn piece(&mut self, core: &Core, moves: u64) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            let newest = core.roots.tree_compared_with(&self.place);
            match self.piece_of(core, newest, moves) {
                Err(Error::Corrupt(_)) if newest != core.roots.tree_compared_with(&self.place) => {}
                done => return done,
            }
        }
        core.merger.alone(|| {
            let newest = core.roots.tree_compared_with(&self.place);
            self.piece_of(core, newest, moves)
        })
    }

    fn piece_of(&mut self, core: &Core, (old, new): (Tree, Tree), moves: u64) -> Result<bool> {
        let limits = Limits {
            from: self.from.map(before_extents),
            older: self.place.floor,
            only: Some(Kind::Extent),
        };
        let mut units = Vec::new();
        let mut walk = core.index.differences_within(&old, &new, limits)?;
        walk.report_old_only(|only| {
            match only {
                OldOnly::Node(ptr) => units.push((ptr.block.get(), ptr.birth.get())),
                OldOnly::Value(address) => {
                    let birth = address.birth.get();
                    let of_value = core.index.units_of(&address)?;
                    units.extend(of_value.into_iter().map(|unit| (unit, birth)));
                }
            }
            Ok(())
        });
        let mut most = moves;
        let next = loop {
            match walk.advance(most)? {
                Progress::Found(difference) => self.found.note(core, &self.place, &difference)?,
                Progress::Pause(next) if self.from.is_none_or(|from| next > from) => {
                    break Some(next);
                }
                Progress::Pause(_) => most = walk.moves() + moves,
                Progress::End => break None,
            }
        };
        drop(walk);
        for (unit, _) in units.iter().filter(|(_, birth)| *birth > self.place.floor) {
            self.found.gone.insert(BlockRun::new(*unit, NODE_BLOCKS));
        }
        self.from = next.or(self.from);
        Ok(next.is_none())
    }

    /// The part of the inode numbers that were `given` that it has passed.
    pub fn part_of(&self, given: Given) -> f64 {
        let (passed, all) = given.before(self.from.map_or(0, |key| key.object));
        (passed as f64 / all.max(1) as f64).min(1.0)
    }

    /// What the root alone has, together with what its child has `given_up` meanwhile.
    pub fn result(&self, given_up: &BlockSet) -> BlockSet {
        let mut alone = BlockSet::default();
        alone.add(&self.found.gone);
        if !is_injected(InjectedFault::ExtentsComparedWhole) {
            alone.subtract(&self.found.kept);
        }
        alone.add(given_up);
        alone
    }
}

impl Found {
    /// Notes the blocks of an extent that differs.
    fn note(&mut self, core: &Core, place: &Place, difference: &Difference) -> Result<()> {
        let Key { object, offset, .. } = difference.key;
        let Difference { old, new, .. } = difference;
        for (value, blocks) in [(old, &mut self.gone), (new, &mut self.kept)] {
            let Some(value) = value else { continue };
            let (raw, _) = decode_extent_at(offset, value, &core.geometry).map_err(|found| {
                Error::corrupt(0, "extent item", format!("inode {object}"), found)
            })?;
            if (place.floor + 1..=place.boundary).contains(&raw.birth.get()) {
                blocks.insert(BlockRun::new(raw.block.get(), raw.len.get().into()));
            }
        }
        Ok(())
    }
}

/// The key from which a walk must continue to see every extent that reaches `key` in either tree.
fn before_extents(key: Key) -> Key {
    match key.kind {
        Kind::Extent => {
            let offset = fault::or(
                InjectedFault::PausedExtentPassed,
                || key.offset.saturating_sub(MAX_EXTENT_BLOCKS),
                || key.offset + 1,
            );
            Key::new(key.object, Kind::Extent, offset)
        }
        _ => key,
    }
}
