//! What a tree tells of the streams that its files have come in.
//!
//! Uses the comparison's view of a tree.

use zerocopy::little_endian::U64;

use crate::diff::FileTree;
use crate::operations::numbers;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::received::{RECEIVED, RawReceived, Received};
use cairnfs_disk::format::stream::{RawOrigin, mark};
use cairnfs_disk::types::RootInfo;

/// The mark of a snapshot of this volume in streams.
pub(super) fn mark_of(root: &RootInfo) -> u64 {
    mark(root.boundary, root.created.into())
}

/// What the root directory of a tree has recorded; nothing of a tree whose files were all made here.
pub(super) fn received_of(files: FileTree<'_>) -> Result<Received> {
    let mut found = None;
    files.xattrs(ROOT_INO, &mut |name, value| {
        if name == RECEIVED {
            found = Received::decode(&value);
        }
        Ok(())
    })?;
    Ok(found.unwrap_or_default())
}

/// What a tree records that gets files of another one of its volume; `None` if it has recorded all
/// of that.
///
/// # Errors
/// [`Error::Unsupported`](cairnfs_disk::Error::Unsupported) if there are too many ranges.
pub(super) fn joined(ours: Received, theirs: &Received) -> Result<Option<Received>> {
    let ranges = numbers::joined(&ours.ranges, &theirs.ranges)?;
    // A shift would stand for the ranges.
    let raw = RawReceived {
        shift: U64::new(0),
        ..ours.raw
    };
    Ok(ranges.map(|ranges| Received { raw, ranges }))
}

/// What a stream of a tree of the volume `own` tells of the origin of its files.
pub(super) fn origins_of(files: FileTree<'_>, own: [u8; 16]) -> Result<Vec<RawOrigin>> {
    let ranges = received_of(files)?.ranges.into_iter();
    let foreign = ranges.filter(|range| range.origin.uuid != own);
    Ok(foreign
        .map(|range| RawOrigin {
            sent: range.here,
            ..range.origin
        })
        .collect())
}
