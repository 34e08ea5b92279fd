//! An oracle: merges three whole models item by item, without differences and without cleverness.

use std::collections::{BTreeMap, BTreeSet};

use super::support::is_sound;
use super::twins::{data, unite};
use crate::diff::tests::model::{Contents, Model, Node, node};
use crate::publish::Side;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::S_IFDIR;

/// The value of three; `None` in conflict.
fn three<T: PartialEq + Clone>(base: &T, ours: &T, theirs: &T) -> Option<T> {
    if ours == theirs || theirs == base {
        return Some(ours.clone());
    }
    (ours == base).then(|| theirs.clone())
}

/// The same, with the value of a side in a conflict.
fn chosen<T: PartialEq + Clone>([base, ours, theirs]: [&T; 3], side: Option<Side>) -> Option<T> {
    three(base, ours, theirs).or_else(|| match side? {
        Side::Ours => Some(ours.clone()),
        Side::Theirs => Some(theirs.clone()),
    })
}

fn same_state(model: &Model, other: &Model, ino: u64) -> bool {
    let (a, b) = (&model.nodes[&ino], &other.nodes[&ino]);
    let times = a.is(S_IFDIR) || a.mtime == b.mtime;
    let inside = a.mode == b.mode && a.uid == b.uid && a.xattrs == b.xattrs;
    times
        && inside
        && data(&a.contents) == data(&b.contents)
        && model.names_of(ino) == other.names_of(ino)
}

/// Merges an inode that both sides have, attribute by attribute; each that is in conflict is that of
/// the side that was chosen.
pub fn merge_node([base, ours, theirs]: [&Node; 3], side: Option<Side>) -> Option<Node> {
    let mut node = ours.clone();
    node.mode = chosen([&base.mode, &ours.mode, &theirs.mode], side)?;
    node.uid = chosen([&base.uid, &ours.uid, &theirs.uid], side)?;
    node.mtime =
        three(&base.mtime, &ours.mtime, &theirs.mtime).unwrap_or(ours.mtime.max(theirs.mtime));
    let [base_data, our_data, their_data] = [base, ours, theirs].map(|n| data(&n.contents));
    node.contents = match three(&base_data, &our_data, &their_data) {
        Some(contents) => contents,
        None => {
            node.mtime = chosen([&i64::MIN, &ours.mtime, &theirs.mtime], side)?;
            chosen([&base_data, &our_data, &their_data], side)?
        }
    };
    let names: BTreeSet<&Vec<u8>> = [base, ours, theirs]
        .into_iter()
        .flat_map(|n| n.xattrs.keys())
        .collect();
    for name in names {
        let value = |n: &Node| n.xattrs.get(name).cloned();
        match chosen([&value(base), &value(ours), &value(theirs)], side)? {
            Some(value) => node.xattrs.insert(name.clone(), value),
            None => node.xattrs.remove(name),
        };
    }
    Some(node)
}

/// What no file of a model is: the base of an inode that both sides made.
pub fn nobody() -> Node {
    Node {
        uid: u32::MAX,
        mtime: i64::MIN,
        contents: Contents {
            size: u64::MAX,
            ..Contents::default()
        },
        ..node(u32::MAX, 0)
    }
}

/// The merged model; `None` if there is a conflict, except of attributes of an inode if a side was
/// chosen.
pub fn merge([base, ours, theirs]: [&Model; 3], side: Option<Side>) -> Option<Model> {
    let united = unite(base, ours, theirs);
    let theirs = &united.theirs;
    let mut nodes = BTreeMap::new();
    let all = [base, ours, theirs]
        .into_iter()
        .flat_map(|m| m.nodes.keys());
    for ino in all.copied().collect::<BTreeSet<u64>>() {
        let of = |m: &Model| m.nodes.get(&ino).cloned();
        let node = match (of(base), of(ours), of(theirs)) {
            (None, Some(one), None) | (None, None, Some(one)) => one,
            (None, Some(a), Some(b)) if ours.names_of(ino) == theirs.names_of(ino) => {
                merge_node([&nobody(), &a, &b], side)?
            }
            (Some(_), Some(_), None) if same_state(base, ours, ino) => continue,
            (Some(_), None, Some(_)) if same_state(base, theirs, ino) => continue,
            (Some(_), None, None) => continue,
            (Some(base_node), Some(a), Some(b)) => {
                let (was, our, their) =
                    (base.names_of(ino), ours.names_of(ino), theirs.names_of(ino));
                let lost = was.iter().any(|n| !our.contains(n) && !their.contains(n));
                let new = |names: &BTreeSet<(u64, Vec<u8>)>| -> BTreeSet<_> {
                    names.difference(&was).cloned().collect()
                };
                let (our, their) = (new(&our), new(&their));
                if lost && !our.is_subset(&their) && !their.is_subset(&our) {
                    return None;
                }
                merge_node([&base_node, &a, &b], side)?
            }
            _ => return None,
        };
        nodes.insert(ino, node);
    }
    let mut merged = Model {
        nodes,
        names: BTreeMap::new(),
    };
    let slots = [base, ours, theirs]
        .into_iter()
        .flat_map(|m| m.names.keys());
    for slot in slots.cloned().collect::<BTreeSet<_>>() {
        let of = |m: &Model| m.names.get(&slot).map(|(_, ino)| *ino);
        if let Some(ino) = three(&of(base), &of(ours), &of(theirs))? {
            let index = merged.names.len() as u64;
            merged.names.insert(slot, (index, ino));
        }
    }
    merged.nodes.get_mut(&ROOT_INO).unwrap().parent = ROOT_INO;
    is_sound(&merged).then_some(merged)
}
