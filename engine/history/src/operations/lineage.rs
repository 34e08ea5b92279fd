//! How roots descend from each other. Pure: the caller passes the list of roots.

use std::collections::BTreeSet;

use cairnfs_disk::types::RootInfo;

/// The ids of the roots above a root, the nearest first.
pub(super) fn ancestors(id: u32, roots: &[RootInfo]) -> Vec<u32> {
    let parent = |id: u32| roots.iter().find(|root| root.id == id)?.parent;
    let mut seen = BTreeSet::from([id]);
    std::iter::successors(parent(id), |id| parent(*id))
        .take_while(|id| seen.insert(*id))
        .collect()
}

/// The state in which two roots have parted: the nearest root that both descend from, or one of them
/// if the other descends from that.
pub(super) fn common_ancestor(a: u32, b: u32, roots: &[RootInfo]) -> Option<&RootInfo> {
    let with_itself = |id: u32| std::iter::once(id).chain(ancestors(id, roots));
    let above: BTreeSet<u32> = with_itself(a).collect();
    let common = with_itself(b).find(|id| above.contains(id))?;
    roots.iter().find(|root| root.id == common)
}
