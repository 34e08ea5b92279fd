//! What must be there after a crash, told from the calls alone.
//!
//! A plain tree in memory follows the calls and keeps the history of each part of it ([`chain`]).
//! A recovered tree is allowed if some set of operations explains it that holds, with each, all it
//! made and all it needed, and everything that was promised to be durable ([`verify`]). The model
//! shares no code with the engine; inodes are known by the numbers that the calls gave.

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

/// How far a run had come: what may survive, and what must.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Moment {
    /// How often the volume had been opened again.
    pub phase: usize,
    /// Operations that had begun.
    pub ops: OpId,
    /// Promises that had been given.
    pub promises: usize,
}

/// An inode as the calls left it.
#[derive(Debug, Default)]
struct Live {
    directory: bool,
    /// Directories and names that lead to it.
    names: BTreeSet<(u64, Vec<u8>)>,
    /// Names in a directory that were ever used.
    children: BTreeSet<Vec<u8>>,
    /// Blocks that were ever written.
    blocks: BTreeSet<u64>,
}

/// The tree, its history, and what was promised.
#[derive(Debug, Default)]
pub struct Model {
    chains: Vec<Chain>,
    parts: HashMap<Part, ChainId>,
    ops: Vec<Operation>,
    promises: Vec<Promise>,
    live: BTreeMap<u64, Live>,
    calls: Vec<String>,
    /// Times that inodes of the last call had when it returned.
    seen: HashMap<u64, Times>,
    /// Operations from which on data of a file may be there without its times.
    times_only: HashMap<u64, Vec<OpId>>,
    /// The volume takes no more changes.
    stopped: bool,
    /// What the calls of a request join.
    request: Request,
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

    /// How far the run is now.
    pub fn moment(&self) -> Moment {
        Moment {
            phase: 0,
            ops: self.ops.len(),
            promises: self.promises.len(),
        }
    }

    /// The calls so far, as people read them.
    pub fn calls(&self) -> &[String] {
        &self.calls
    }

    /// The chain of a part; it begins with `value` if it is new.
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

    /// The chain of a part, which begins with nothing if it is new.
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

    /// Adds a transaction that makes these values and needs those versions.
    fn add(&mut self, makes: Vec<(Part, Value)>, needs: Vec<Version>) {
        let op = match self.request.takes() {
            Some(op) => self.join(op, makes, needs),
            None => self.add_apart(Operation::needing(needs), makes),
        };
        self.request.added(op);
    }

    /// Adds an operation, whichever it is, that makes these values.
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

    /// A new version of a part.
    fn push(&mut self, op: OpId, part: Part, value: Value) -> Version {
        let chain = self.chain(part);
        let versions = self.chains.get_mut(chain).map(|c| &mut c.versions);
        let nth = versions.map_or(0, |v| {
            v.push((Some(op), value));
            v.len() - 1
        });
        Version { chain, nth }
    }

    /// Where a directory is: the entry that leads to it.
    fn place(&mut self, dir: u64) -> Option<Version> {
        let (parent, name) = self.live.get(&dir)?.names.first()?.clone();
        Some(self.newest(Part::Name(parent, name)))
    }

    /// All contents of a file as they are now.
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
