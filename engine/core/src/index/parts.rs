//! Applying edits in parts, each of which a thread of its own may do.
//!
//! A part is a range of objects with its edits. The leaves of all parts are made independently, in
//! any order; afterwards one thread makes the nodes above them from the lists of what becomes of the
//! old leaves. There are some hundred times fewer of these nodes, so nearly all of the work is done
//! in parts.
//!
//! Invariants:
//! - The ranges of the parts ascend and have no gap, so each old leaf belongs to one or more parts
//!   that follow each other. A leaf of several parts is replaced by each of them.
//! - Old nodes are retired only when the nodes above are made, each once.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::index::apply::{Feed, plant};
use crate::index::bounds::Bounds;
use crate::index::leaves::{Leaves, Replaced};
use crate::index::output::Output;
use crate::index::read::root_level;
use crate::index::walk::{Source, Target, Walk};
use crate::index::{Edits, Index, NodeCounts, NodeSpace, Part, Tree};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::sync::{Mutex, in_threads};

/// Units that a part allocates together, so that its nodes are next to each other and large writes
/// are possible. What it does not use is free again after the step.
pub const TOGETHER: usize = 16;

/// Implements [`Index::apply_parts`].
pub(super) fn run<E: Edits + Send>(
    index: &Index,
    tree: &Tree,
    parts: &mut [Part<E>],
    birth: u64,
    (space, threads): (&(dyn NodeSpace + Sync), usize),
) -> Result<Tree> {
    let level = root_level(tree)?;
    let allocating = Mutex::new(());
    let one = |part: &mut Part<E>| {
        let space = PartSpace {
            space,
            allocating: &allocating,
            units: RefCell::default(),
        };
        leaves_of(index, tree, part, birth, &space)
    };
    let replaced = in_threads(threads, parts.iter_mut(), one);
    let replaced = replaced.into_iter().collect::<Result<Vec<_>>>()?;
    let mut walk = Walk {
        source: Joined(replaced.into_iter().flatten().collect()),
        out: Output::new(index, birth, space),
    };
    let whole = Bounds::default();
    match level {
        None => {
            for replaced in &walk.source.0 {
                walk.out.adopt(&replaced.made)?;
            }
            walk.out.finish(0)
        }
        Some(level) if walk.visit(&tree.ptr, level, &whole)? => walk.out.finish(level),
        Some(_) => Ok(*tree),
    }
}

/// Makes the leaves of a part.
fn leaves_of<E: Edits>(
    index: &Index,
    tree: &Tree,
    part: &mut Part<E>,
    birth: u64,
    space: &dyn NodeSpace,
) -> Result<Vec<Replaced>> {
    let mut walk = Walk {
        source: Feed::new(&mut part.edits, part.range),
        out: Leaves::new(index, birth, space, part.range),
    };
    match root_level(tree)? {
        None => plant(&mut walk)?,
        Some(level) => {
            walk.visit(&tree.ptr, level, &Bounds::default())?;
        }
    }
    walk.out.finish()
}

/// The old leaves that are replaced, in key order; a leaf of several parts follows itself.
struct Joined(VecDeque<Replaced>);

impl Source<Output<'_>> for Joined {
    fn next(&mut self, bounds: &Bounds) -> Result<Option<Key>> {
        let next = self.0.front().map(|replaced| replaced.key);
        Ok(next.filter(|key| bounds.reaches(key)))
    }

    fn goes_on(&self) -> bool {
        false
    }

    fn leaf(
        &mut self,
        out: &mut Output<'_>,
        ptr: &RawPtr,
        bounds: &Bounds,
    ) -> Result<Option<Error>> {
        // Its part has checked it.
        out.enter_leaf(ptr);
        while let Some(replaced) = self.0.pop_front_if(|r| bounds.reaches(&r.key)) {
            out.open()?;
            if replaced.remains {
                out.remain();
            }
            out.adopt(&replaced.made)?;
        }
        Ok(None)
    }

    fn damaged(&mut self, _: &mut Output<'_>, _: u8, _: &Bounds, damage: Error) -> Result<bool> {
        Err(damage)
    }
}

/// The space of a part.
struct PartSpace<'a> {
    space: &'a (dyn NodeSpace + Sync),
    /// Held while units are allocated, so that those of a part follow each other.
    allocating: &'a Mutex<()>,
    /// Units that were allocated and are not used yet.
    units: RefCell<VecDeque<u64>>,
}

impl PartSpace<'_> {
    fn allocate(&self) -> Result<u64> {
        let _allocating = self.allocating.lock();
        let first = self.space.alloc()?;
        for _ in 1..TOGETHER {
            match self.space.alloc() {
                Ok(unit) => self.units.borrow_mut().push_back(unit),
                // One is enough.
                Err(Error::NoSpace) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(first)
    }
}

impl Drop for PartSpace<'_> {
    fn drop(&mut self) {
        self.units
            .take()
            .into_iter()
            .for_each(|unit| self.space.retire(unit));
    }
}

impl NodeSpace for PartSpace<'_> {
    fn alloc(&self) -> Result<u64> {
        let next = self.units.borrow_mut().pop_front();
        next.map_or_else(|| self.allocate(), Ok)
    }

    fn retire(&self, block: u64) {
        self.space.retire(block);
    }

    fn is_inherited(&self, birth: u64) -> bool {
        self.space.is_inherited(birth)
    }

    fn give_up(&self, block: u64, birth: u64) {
        self.space.give_up(block, birth);
    }

    // The thread that makes the nodes above counts all nodes. There are no parts when space is short.
    fn note_nodes(&self, _: &NodeCounts) {}
}
