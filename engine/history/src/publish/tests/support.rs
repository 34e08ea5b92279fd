//! Models as the three trees of a plan, and plans applied to models.

use std::collections::BTreeMap;

use super::twins::data;
use crate::diff::tests::compare::naive;
use crate::diff::tests::model::{Contents, Model, Node};
use crate::diff::tests::volume::raw_inode;
use crate::diff::{Name, TreeDelta};
use crate::publish::{Attribute, Operation, Plan, Side, Trees, Version, plan};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::item::RawInode;

pub struct Models<'a> {
    pub base: &'a Model,
    pub ours: &'a Model,
    pub theirs: &'a Model,
}

impl Trees for Models<'_> {
    fn base(&mut self, ino: u64) -> Result<Option<RawInode>> {
        let there = self.base.nodes.contains_key(&ino);
        Ok(there.then(|| raw_inode(self.base, ino)))
    }

    fn base_name(&mut self, ino: u64) -> Result<Option<Name>> {
        let first = self.base.names_of(ino).pop_first();
        Ok(first.map(|(dir, name)| Name { dir, name }))
    }

    fn path(&mut self, version: Version, name: &Name) -> Result<Vec<u8>> {
        let model = match version {
            Version::Base => self.base,
            Version::Ours => self.ours,
            Version::Theirs => self.theirs,
        };
        Ok(model.path(name.dir, &name.name))
    }

    fn same_contents(&mut self, ours: u64, theirs: u64) -> Result<bool> {
        let (ours, theirs) = (&self.ours.nodes[&ours], &self.theirs.nodes[&theirs]);
        Ok(data(&ours.contents) == data(&theirs.contents))
    }
}

impl<'a> Models<'a> {
    pub fn deltas(&self) -> (TreeDelta, TreeDelta) {
        (naive(self.base, self.ours), naive(self.base, self.theirs))
    }

    pub fn plan(&mut self, choose: &dyn Fn(&[u8]) -> Option<Side>) -> Plan {
        let (ours, theirs) = self.deltas();
        plan(&ours, theirs, self, choose).unwrap()
    }

    /// Our tree after the operations of a plan, in their order.
    pub fn apply(&self, plan: &Plan) -> Model {
        let mut model = self.ours.clone();
        for operation in &plan.operations {
            self.step(&mut model, operation);
        }
        model
    }

    fn step(&self, model: &mut Model, operation: &Operation) {
        let node = |model: &'_ mut Model, ino: u64| -> Node { model.nodes[&ino].clone() };
        match operation {
            Operation::Create { ino } => {
                let before = model.nodes.insert(*ino, self.theirs.nodes[ino].clone());
                assert!(before.is_none());
            }
            Operation::Unlink { name, ino } => {
                let found = model.names.remove(&(name.dir, name.name.clone()));
                assert_eq!(found.unwrap().1, *ino, "{name:?}");
            }
            Operation::Link { name, ino } => {
                let key = (name.dir, name.name.clone());
                assert!(!model.names.contains_key(&key), "{name:?} is taken");
                assert!(model.nodes.contains_key(&name.dir));
                model.link(name.dir, name.name.clone(), *ino);
            }
            Operation::Remove { ino } => {
                assert!(model.names_of(*ino).is_empty() && model.entries(*ino) == 0);
                model.nodes.remove(ino).unwrap();
            }
            Operation::Contents { ino, ranges, size } => {
                let from = &self.theirs.nodes[ino].contents;
                let mut to = node(model, *ino).contents;
                to.inline.clone_from(&from.inline);
                for range in ranges {
                    let blocks = range.start / 4096..range.end.div_ceil(4096);
                    to.blocks.retain(|at, _| !blocks.contains(at));
                    let new = from.blocks.iter().filter(|(at, _)| blocks.contains(at));
                    to.blocks.extend(new.map(|(at, place)| (*at, *place)));
                }
                to.size = *size;
                to.blocks.retain(|at, _| at * 4096 < *size);
                model.nodes.get_mut(ino).unwrap().contents = to;
            }
            Operation::Xattr { ino, name, value } => {
                let xattrs = &mut model.nodes.get_mut(ino).unwrap().xattrs;
                match value {
                    Some(value) => xattrs.insert(name.clone(), value.clone()),
                    None => xattrs.remove(name),
                };
            }
            Operation::Attribute { ino, attribute } => {
                let node = model.nodes.get_mut(ino).unwrap();
                match attribute {
                    Attribute::Mode(mode) => node.mode = node.mode & !0o7777 | mode,
                    Attribute::Uid(uid) => node.uid = *uid,
                    Attribute::Mtime(time) => node.mtime = time.secs,
                    Attribute::Gid(_) | Attribute::Flags(_) => panic!("not in the model"),
                }
            }
        }
    }
}

/// Mode, owner, time, contents and extended attributes of an inode.
pub type Attributes = (u32, u32, i64, Contents, BTreeMap<Vec<u8>, Vec<u8>>);

/// A model without what a merge does not keep: indexes of entries and hints.
pub type Plain = (BTreeMap<(u64, Vec<u8>), u64>, BTreeMap<u64, Attributes>);

pub fn plain(model: &Model) -> Plain {
    let names = model
        .names
        .iter()
        .map(|(name, (_, ino))| (name.clone(), *ino));
    let nodes = model.nodes.iter().map(|(ino, n)| {
        (
            *ino,
            (n.mode, n.uid, n.mtime, data(&n.contents), n.xattrs.clone()),
        )
    });
    (names.collect(), nodes.collect())
}

/// Whether every inode has a name (a directory one), every name a directory, and every directory a
/// way to the root.
pub fn is_sound(model: &Model) -> bool {
    let root = cairnfs_disk::format::ROOT_INO;
    let dir_of = |ino: u64| {
        let names = model.names_of(ino);
        (names.len() == 1).then(|| names.first().unwrap().0)
    };
    let reaches_root = |dir: u64| {
        let mut at = Some(dir);
        for _ in 0..=model.nodes.len() {
            match at {
                Some(ino) if ino != root => at = dir_of(ino),
                _ => break,
            }
        }
        at == Some(root)
    };
    let is_dir = |ino: u64| {
        let node = model.nodes.get(&ino);
        node.is_some_and(|n| n.is(cairnfs_disk::format::item::S_IFDIR))
    };
    let named = |ino: &u64| *ino == root || !model.names_of(*ino).is_empty();
    model.nodes.keys().all(named)
        && model
            .nodes
            .keys()
            .filter(|ino| is_dir(**ino))
            .all(|ino| reaches_root(*ino))
        && model
            .names
            .iter()
            .all(|((dir, _), (_, ino))| is_dir(*dir) && model.nodes.contains_key(ino))
}
