//! Counts the bytes that a copy will move, for progress bars.
//!
//! Unreadable entries are skipped: the copy itself reports them.

use std::collections::HashSet;

use cairnfs_disk::types::FileKind;

use super::Source;
use crate::interrupt;

/// Bytes of all regular files at and below the start of `source`, including holes.
pub fn bytes<S: Source>(source: &mut S) -> u64 {
    let Ok(meta) = source.start() else {
        return 0;
    };
    if meta.kind != FileKind::Directory {
        return meta.size;
    }
    let Ok(listing) = source.enter() else {
        return 0;
    };
    let mut total: u64 = 0;
    let mut met = HashSet::from([meta.id]);
    let mut stack = vec![listing.names];
    while let Some(names) = stack.last_mut() {
        if interrupt::check().is_err() {
            break;
        }
        let Some(name) = names.pop() else {
            stack.pop();
            source.leave();
            continue;
        };
        let Ok(meta) = source.find(&name) else {
            continue;
        };
        match meta.kind {
            FileKind::File => total = total.saturating_add(meta.size),
            FileKind::Directory if met.insert(meta.id) => {
                if let Ok(listing) = source.enter() {
                    stack.push(listing.names);
                }
            }
            _ => {}
        }
    }
    total
}
