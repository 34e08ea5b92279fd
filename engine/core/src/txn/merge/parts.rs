//! The parts of a merge, which threads of their own bring into the index side by side.
//!
//! With enough processors a merge divides the inodes of a head into ranges of about equal work. What
//! a step shares among its parts is behind locks: its units, and the counts of shared values.
//! Everything else a part has for itself, and the head takes it when all parts are done. A head is
//! divided only if all of its changes fit into the step, as far as can be foreseen, so no part ends
//! early; if they do not, the merge is repeated without parts. An inode is not divided, so the
//! changes of one directory, or of one file, are in one part.

use std::sync::Arc;

use crate::index::{Bounds, NodeSpace, Part, TOGETHER, Tree};
use crate::inode::Inode;
use crate::txn::Core;
use crate::txn::merge::edits::MergeEdits;
use crate::txn::merge::step_space::StepSpace;
use cairnfs_disk::device::waiting;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::key::SHARED_BYTES;
use cairnfs_disk::sync::in_threads;

/// Parts for each thread, so that a thread which is done early finds another one.
const PARTS: u64 = 4;

/// Nodes that a part makes at its ends and one pass does not.
const MORE: usize = 2;

/// Inodes that are counted, or released, by one thread at a time.
pub(super) const PIECE: usize = 1024;

impl Core {
    /// Number of threads for the parts of a merge; 1: it does all in its own.
    pub(super) fn merge_threads(&self) -> usize {
        if self.signals.has_workers() {
            self.limits.merge_threads
        } else {
            1
        }
    }
}

/// Applies all edits of a head to its tree `old`, in parts. Returns none, and does nothing, if they
/// are too few for that, or might not fit into the step.
///
/// # Errors
/// Those of [`Index::apply_parts`](crate::index::Index::apply_parts).
pub(super) fn apply(
    core: &Core,
    edits: &mut MergeEdits<'_>,
    (old, birth): (&Tree, u64),
    space: &StepSpace<'_>,
) -> Result<Option<Tree>> {
    let (threads, least) = (core.merge_threads(), core.limits.part_keys.max(1));
    // It is not worth counting the keys of few inodes.
    let few = least == u64::MAX || (edits.inodes().len() as u64) < least.min(PIECE as u64);
    if few || space.is_short() || !edits.may_divide() {
        return Ok(None);
    }
    if threads > 1 {
        waiting::announced();
    }
    let pieces = edits.inodes().chunks(PIECE);
    let keys = in_threads(threads.min(pieces.len()), pieces, |piece| edits.seal(piece));
    let all = keys.iter().map(|(_, sum)| sum).sum::<u64>();
    let usual = (all / (PARTS * threads as u64)).max(least);
    let begins = divide(&keys, edits.inodes(), (least, usual));
    let copies = all.min(core.index.most_nodes(old)?);
    let more = (TOGETHER + MORE) as u64 * (begins.len() + 1) as u64;
    if begins.is_empty() || !space.has_room_for(copies + more) {
        return Ok(None);
    }
    let inodes = edits.inodes();
    let starts = || [0].into_iter().chain(begins.iter().copied());
    let ends = begins.iter().copied().chain([inodes.len()]);
    let object = |at: usize| inodes.get(at).map(|(ino, _)| *ino);
    let ranges = starts().zip(ends);
    let mut parts: Vec<_> = ranges
        .map(|(start, end)| Part {
            range: Bounds::of_objects(object(start).filter(|_| start > 0), object(end)),
            edits: edits.part(inodes.get(start..end).unwrap_or_default(), *old),
        })
        .collect();
    if let Some(first) = parts.first_mut() {
        edits.pass_orphans(&mut first.edits);
    }
    let space = (space as &(dyn NodeSpace + Sync), threads.min(parts.len()));
    let tree = core.index.apply_parts(old, &mut parts, birth, space)?;
    parts.into_iter().for_each(|part| edits.add(part.edits));
    edits.end();
    Ok(Some(tree))
}

/// Divides inodes with these numbers of keys, in pieces with the sum of each, into parts of at least
/// `least` keys, and of about `usual` where inodes have few. Returns where all parts but the first
/// one begin. The first one has the objects that are no files.
fn divide(
    keys: &[(Vec<u64>, u64)],
    inodes: &[(u64, Arc<Inode>)],
    (least, usual): (u64, u64),
) -> Vec<usize> {
    let (mut begins, mut first, mut sum) = (Vec::new(), 0, 0);
    let mut left = keys.iter().map(|(_, sum)| sum).sum::<u64>();
    for (keys, together) in keys {
        // No part begins in a piece that does not fill one.
        if sum + together < usual {
            sum += together;
            left -= together;
            first += keys.len();
            continue;
        }
        let piece = inodes.get(first..).unwrap_or_default();
        for (i, (keys, (ino, _))) in keys.iter().zip(piece).enumerate() {
            let full = sum >= usual || (sum >= least && *keys >= usual);
            if full && left >= least && *ino > SHARED_BYTES {
                begins.push(first + i);
                sum = 0;
            }
            sum += keys;
            left -= keys;
        }
        first += keys.len();
    }
    begins
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    fn divided(keys: &[u64], limits: (u64, u64)) -> Vec<usize> {
        let inode = |i: usize| (10 + i as u64, Arc::new(Inode::new(10 + i as u64)));
        let inodes: Vec<_> = (0..keys.len()).map(inode).collect();
        let piece = |keys: &[u64]| (keys.to_vec(), keys.iter().sum());
        let in_pieces = |len| keys.chunks(len).map(piece).collect::<Vec<_>>();
        let found = divide(&in_pieces(1000), &inodes, limits);
        assert_eq!(divide(&in_pieces(7), &inodes, limits), found);
        found
    }

    #[test]
    fn parts_are_about_equal_and_none_is_too_small() {
        assert_eq!(divided(&[1; 100], (10, 25)), [25, 50, 75]);
        assert_eq!(divided(&[1; 105], (10, 25)), [25, 50, 75]);
        assert_eq!(divided(&[1; 19], (10, 10)), [] as [usize; 0]);
        assert_eq!(divided(&[1; 20], (10, 10)), [10]);
        assert_eq!(divided(&[], (10, 10)), [] as [usize; 0]);
    }

    #[test]
    fn inode_with_many_keys_is_a_part_alone() {
        let mut keys = [1; 40];
        keys[15] = 1000;
        assert_eq!(divided(&keys, (10, 50)), [15, 16]);
        // Few keys before it are not worth a part.
        keys = [1; 40];
        keys[5] = 1000;
        assert_eq!(divided(&keys, (10, 50)), [6]);
    }
}
