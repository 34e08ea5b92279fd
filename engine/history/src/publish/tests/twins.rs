//! What both sides made in one place: made often, and found in models the plain way.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::tests::model::{Contents, Counters, Model, Random};
use cairnfs_disk::format::item::{S_IFDIR, S_IFMT, S_IFREG};

/// Makes in `theirs` much of what `ours` has made since the base, under the same names: mostly
/// equal, sometimes a little different.
pub fn echo(
    base: &Model,
    ours: &Model,
    theirs: &mut Model,
    (counters, random): (&mut Counters, &mut Random),
) {
    let mut numbers: BTreeMap<u64, u64> = base.nodes.keys().map(|ino| (*ino, *ino)).collect();
    for _ in 0..4 {
        for ((dir, name), (_, ino)) in &ours.names {
            let Some(to) = numbers.get(dir).copied() else {
                continue;
            };
            let free = !theirs.names.contains_key(&(to, name.clone()));
            let fits = theirs.nodes.get(&to).is_some_and(|n| n.is(S_IFDIR)) && free;
            if !fits || base.nodes.contains_key(ino) || random.below(4) == 0 {
                continue;
            }
            let node = &ours.nodes[ino];
            let copy = match numbers.get(ino) {
                Some(_) if node.is(S_IFDIR) => continue,
                Some(copy) => *copy,
                None => {
                    let copy = counters.ino();
                    theirs.nodes.insert(copy, node.clone());
                    numbers.insert(*ino, copy);
                    alter(theirs, copy, (&mut *counters, &mut *random));
                    copy
                }
            };
            if theirs.nodes.contains_key(&copy) {
                theirs.link(to, name.clone(), copy);
            }
        }
    }
}

fn alter(model: &mut Model, ino: u64, (counters, random): (&mut Counters, &mut Random)) {
    let node = model.nodes.get_mut(&ino).unwrap();
    match random.below(16) {
        0 => node.mode ^= 0o20,
        1 => node.uid += 1,
        2 => drop(node.xattrs.insert(b"user.0".to_vec(), b"own".to_vec())),
        3..=6 => node.mtime += random.below(9) as i64 - 4,
        7 if node.is(S_IFREG) => model.write(counters, ino, 0, b"own"),
        _ => {}
    }
}

/// Contents without the difference between no bytes and an empty list of them.
pub fn data(contents: &Contents) -> Contents {
    let mut contents = contents.clone();
    contents.inline.take_if(|bytes| bytes.is_empty());
    contents
}

/// Their tree with our numbers of what both made.
pub struct United {
    pub theirs: Model,
    pub files: BTreeSet<u64>,
    /// Their numbers, with ours.
    pub numbers: BTreeMap<u64, u64>,
}

pub fn unite(base: &Model, ours: &Model, theirs: &Model) -> United {
    let made = |a: u64, b: u64| a != b && ![a, b].iter().any(|ino| base.nodes.contains_key(ino));
    let mut dirs: BTreeMap<u64, u64> = BTreeMap::new();
    loop {
        let before = dirs.len();
        for ((dir, name), (_, their)) in &theirs.names {
            let dir = dirs.get(dir).unwrap_or(dir);
            let our = ours.names.get(&(*dir, name.clone())).map(|(_, our)| *our);
            let our = our.filter(|our| made(*our, *their) && ours.nodes[our].is(S_IFDIR));
            if let Some(our) = our.filter(|_| theirs.nodes[their].is(S_IFDIR)) {
                dirs.insert(*their, our);
            }
        }
        if dirs.len() == before {
            break;
        }
    }
    let mut renamed = renumbered(theirs, &dirs);
    let mut files = BTreeMap::new();
    for (their, node) in &theirs.nodes {
        let names = renamed.names_of(*their);
        let Some(first) = names.first().filter(|_| !node.is(S_IFDIR)) else {
            continue;
        };
        let Some((_, our)) = ours.names.get(first).filter(|(_, our)| made(*our, *their)) else {
            continue;
        };
        let other = &ours.nodes[our];
        let same = node.mode == other.mode && node.uid == other.uid && node.xattrs == other.xattrs;
        assert!(!same || node.mode & S_IFMT == other.mode & S_IFMT);
        if same && data(&node.contents) == data(&other.contents) && names == ours.names_of(*our) {
            files.insert(*their, *our);
        }
    }
    renamed = renumbered(&renamed, &files);
    for our in files.values() {
        renamed.nodes.insert(*our, ours.nodes[our].clone());
    }
    let equal = files.values().copied().collect();
    dirs.extend(files);
    United {
        theirs: renamed,
        files: equal,
        numbers: dirs,
    }
}

pub fn renumbered(model: &Model, numbers: &BTreeMap<u64, u64>) -> Model {
    let number = |ino: &u64| numbers.get(ino).copied().unwrap_or(*ino);
    let mut new = Model {
        nodes: BTreeMap::new(),
        names: BTreeMap::new(),
    };
    for (ino, node) in &model.nodes {
        let mut node = node.clone();
        node.parent = number(&node.parent);
        assert!(new.nodes.insert(number(ino), node).is_none());
    }
    for ((dir, name), (index, ino)) in &model.names {
        let place = (number(dir), name.clone());
        let before = new.names.insert(place, (*index, number(ino)));
        assert!(before.is_none());
    }
    new
}
