//! A model of what must survive a crash, computed from the calls alone.
//!
//! A plain tree in memory follows the calls and keeps the history of each of its parts ([`chain`]).
//! A recovered tree is allowed if a set of operations explains it such that everything that each of
//! them made and needed is in the tree, and everything that was promised to be durable
//! ([`verify`]). The model shares no code with the engine; it identifies inodes by the numbers that
//! the calls returned.

mod apply;
pub mod chain;
mod contents;
mod request;
mod times;
mod verify;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

pub use verify::Violation;

use request::Request;

use crate::tree::{Facts, Node, ROOT, Times, Tree};
use chain::{Chain, ChainId, OpId, Operation, Part, Promise, Value, Version};

/// A point of a run: what may survive a crash there, and what must.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Moment {
    /// How often the volume had been opened again.
    pub phase: usize,
    /// Number of operations that had begun.
    pub ops: OpId,
    /// Number of promises that had been given.
    pub promises: usize,
    /// Number of calls on any root that had begun.
    pub begun: usize,
    /// Number of calls on any root that had returned.
    pub returned: usize,
}

/// An inode after the calls so far.
#[derive(Debug, Default)]
struct Live {
    directory: bool,
    /// Directories and names of the entries that refer to it.
    names: BTreeSet<(u64, Vec<u8>)>,
    /// Names that ever existed in a directory.
    children: BTreeSet<Vec<u8>>,
    /// Numbers of the blocks that were ever written.
    blocks: BTreeSet<u64>,
}

/// The tree, its history, and the promises.
#[derive(Debug, Default)]
pub struct Model {
    chains: Vec<Chain>,
    parts: HashMap<Part, ChainId>,
    ops: Vec<Operation>,
    promises: Vec<Promise>,
    live: BTreeMap<u64, Live>,
    calls: Vec<String>,
    /// Times that the inodes of the last call had when it returned.
    seen: HashMap<u64, Times>,
    /// Per inode, operations from which on data may survive without its times.
    times_only: HashMap<u64, Vec<OpId>>,
    /// The volume accepts no more changes.
    stopped: bool,
    /// The front end's request in progress.
    request: Request,
    snapshots: Vec<Snapshot>,
}

/// A snapshot that was made: all of it is promised, and nothing later changes it.
#[derive(Debug)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// The tree of files when the call returned.
    pub tree: Tree,
    /// Number of promises up to its own.
    promises: usize,
    /// Number of promises up to that of its end, if it was dropped.
    dropped: Option<usize>,
}

impl Snapshot {
    /// Whether it must exist at a moment of the same phase.
    pub fn must_exist(&self, moment: Moment) -> bool {
        // The call that drops it may have begun after the promise before its own.
        let stays = |dropped| moment.promises + 1 < dropped;
        self.promises <= moment.promises && self.dropped.is_none_or(stays)
    }

    /// Whether it must not exist at a moment of the same phase.
    pub fn must_be_gone(&self, moment: Moment) -> bool {
        self.dropped
            .is_some_and(|promises| promises <= moment.promises)
    }
}

impl Model {
    /// A history that begins with this tree, all of it durable.
    pub fn of(tree: &Tree) -> Self {
        let mut model = Self::default();
        for (ino, node) in &tree.nodes {
            model.begin_with(*ino, node);
        }
        model.live.entry(ROOT).or_default().directory = true;
        for (ino, node) in &tree.nodes {
            for (name, child) in &node.entries {
                let live = model.live.entry(*child).or_default();
                live.names.insert((*ino, name.clone()));
            }
        }
        model
    }

    fn begin_with(&mut self, ino: u64, node: &Node) {
        self.begin(
            Part::Facts(ino),
            Value::Facts(Some(Arc::new(node.facts.clone()))),
        );
        self.begin(Part::Times(ino), Value::Times(Some(node.times)));
        self.begin(Part::Size(ino), Value::Size(node.size));
        for (block, bytes) in &node.blocks {
            let value = contents::padded(bytes);
            self.begin(Part::Block(ino, *block), Value::Block(value));
        }
        for (name, child) in &node.entries {
            let part = Part::Name(ino, name.clone());
            self.begin(part, Value::Entry(Some(*child)));
        }
        let live = self.live.entry(ino).or_default();
        live.directory = node.facts.kind.is_dir();
        live.children.extend(node.entries.keys().cloned());
        live.blocks.extend(node.blocks.keys());
    }

    /// The current point of the run.
    pub fn moment(&self) -> Moment {
        Moment {
            phase: 0,
            ops: self.ops.len(),
            promises: self.promises.len(),
            ..Moment::default()
        }
    }

    /// Adds the promise of a snapshot of another root.
    pub fn promise_snapshot(&mut self) {
        self.promise(Vec::new());
    }

    /// Adds a snapshot, which a call has just made and which holds this tree.
    pub fn made_snapshot(&mut self, name: &str, tree: Tree) {
        self.snapshots.push(Snapshot {
            name: name.to_owned(),
            tree,
            promises: self.promises.len(),
            dropped: None,
        });
    }

    /// Removes a snapshot, which a call has just dropped; its end is the newest promise.
    pub fn dropped_snapshot(&mut self, name: &str) {
        let promises = self.promises.len();
        let known = self.snapshots.iter_mut();
        let known = known.rev().find(|snapshot| snapshot.name == name);
        if let Some(snapshot) = known {
            snapshot.dropped = Some(promises);
        }
    }

    /// The snapshots made.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// The calls so far as text.
    pub fn calls(&self) -> &[String] {
        &self.calls
    }

    /// Returns the chain of a part; a new chain begins with `value`.
    fn begin(&mut self, part: Part, value: Value) -> ChainId {
        if let Some(chain) = self.parts.get(&part) {
            return *chain;
        }
        let id = self.chains.len();
        self.parts.insert(part.clone(), id);
        self.chains.push(Chain {
            part,
            versions: vec![(None, value)],
        });
        id
    }

    /// Returns the chain of a part; a new chain begins with the empty value.
    fn chain(&mut self, part: Part) -> ChainId {
        let nothing = match &part {
            Part::Name(..) => Value::Entry(None),
            Part::Facts(_) => Value::Facts(None),
            Part::Times(_) => Value::Times(None),
            Part::Size(_) => Value::Size(0),
            Part::Block(..) => Value::Block(None),
        };
        self.begin(part, nothing)
    }

    /// The newest version of a part.
    fn newest(&mut self, part: Part) -> Version {
        let chain = self.chain(part);
        let versions = self.chains.get(chain).map_or(1, |c| c.versions.len());
        Version {
            chain,
            nth: versions - 1,
        }
    }

    fn value(&self, part: &Part) -> Option<&Value> {
        self.chains.get(*self.parts.get(part)?)?.newest()
    }

    fn entry(&self, dir: u64, name: &[u8]) -> Option<u64> {
        match self.value(&Part::Name(dir, name.to_vec())) {
            Some(Value::Entry(entry)) => *entry,
            _ => None,
        }
    }

    fn facts(&self, ino: u64) -> Option<Arc<Facts>> {
        match self.value(&Part::Facts(ino)) {
            Some(Value::Facts(facts)) => facts.clone(),
            _ => None,
        }
    }

    fn size(&self, ino: u64) -> u64 {
        match self.value(&Part::Size(ino)) {
            Some(Value::Size(size)) => *size,
            _ => 0,
        }
    }

    /// Adds a transaction that makes these values and needs these versions. It may join an earlier
    /// one of the same request.
    fn add(&mut self, makes: Vec<(Part, Value)>, needs: Vec<Version>) {
        let op = match self.request.takes() {
            Some(op) => self.join(op, makes, needs),
            None => self.add_apart(Operation::needing(needs), makes),
        };
        self.request.added(op);
    }

    /// Adds an operation that makes these values, never joining another.
    fn add_apart(&mut self, op: Operation, makes: Vec<(Part, Value)>) -> OpId {
        let id = self.ops.len();
        let makes = makes
            .into_iter()
            .map(|(part, value)| self.push(id, part, value))
            .collect();
        self.ops.push(Operation {
            call: self.calls.len().saturating_sub(1),
            makes,
            ..op
        });
        id
    }

    /// Adds a version of a part.
    fn push(&mut self, op: OpId, part: Part, value: Value) -> Version {
        let chain = self.chain(part);
        let versions = self.chains.get_mut(chain).map(|c| &mut c.versions);
        let nth = versions.map_or(0, |v| {
            v.push((Some(op), value));
            v.len() - 1
        });
        Version { chain, nth }
    }

    /// The entry that refers to a directory.
    fn place(&mut self, dir: u64) -> Option<Version> {
        let (parent, name) = self.live.get(&dir)?.names.first()?.clone();
        Some(self.newest(Part::Name(parent, name)))
    }

    /// The current version of all contents of a file.
    fn contents(&mut self, ino: u64) -> Vec<Version> {
        let blocks = match self.live.get(&ino) {
            Some(live) if !live.directory => live.blocks.clone(),
            _ => return Vec::new(),
        };
        let mut versions = vec![self.newest(Part::Size(ino))];
        for block in blocks {
            versions.push(self.newest(Part::Block(ino, block)));
        }
        versions
    }
}
