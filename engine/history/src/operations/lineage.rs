//! How roots come after each other, for those who have the list of them.

use cairnfs_core::fs::FileSystem;
use cairnfs_disk::types::RootInfo;

/// The root that was frozen when a root was forked, or in which a head was frozen last.
pub(super) fn parent_of(id: u32, roots: &[RootInfo]) -> Option<&RootInfo> {
    let parent = find(id, roots)?.parent?;
    find(parent, roots)
}

/// The state in which two roots have parted: the newest of those that both come after, or one of them
/// if the other comes after that. Not found if it has gone since the list was made.
pub(super) fn parted<'r>(
    fs: &FileSystem,
    a: u32,
    b: u32,
    roots: &'r [RootInfo],
) -> Option<&'r RootInfo> {
    find(fs.core().roots().parted(a, b)?, roots)
}

fn find(id: u32, roots: &[RootInfo]) -> Option<&RootInfo> {
    roots.iter().find(|root| root.id == id)
}
