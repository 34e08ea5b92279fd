//! How much a copy will move, for progress bars.
//!
//! Counts what it can read and passes over the rest: the copy itself tells of it.

use std::collections::HashSet;

use cairnfs::types::FileKind;

use super::Source;

/// Bytes of all regular files at and below `node`, holes included.
pub fn bytes<S: Source>(source: &S, node: &S::Node) -> u64 {
    let Ok(meta) = source.meta(node) else {
        return 0;
    };
    if meta.kind != FileKind::Directory {
        return meta.size;
    }
    let mut total: u64 = 0;
    let mut met = HashSet::from([meta.id]);
    let mut stack = vec![children(source, node)];
    while let Some(siblings) = stack.last_mut() {
        let Some(child) = siblings.pop() else {
            stack.pop();
            continue;
        };
        let Ok(meta) = source.meta(&child) else {
            continue;
        };
        match meta.kind {
            FileKind::File => total = total.saturating_add(meta.size),
            FileKind::Directory if met.insert(meta.id) => stack.push(children(source, &child)),
            _ => {}
        }
    }
    total
}

fn children<S: Source>(source: &S, node: &S::Node) -> Vec<S::Node> {
    let names = source.names(node).unwrap_or_default();
    names
        .iter()
        .filter_map(|name| source.child(node, name).ok())
        .collect()
}
