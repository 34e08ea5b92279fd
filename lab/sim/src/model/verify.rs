//! Checks whether a recovered tree is allowed, and which promise it breaks if not.
//!
//! For each chain the search selects a version that matches the recovered tree, such that all
//! operations of the selected versions survive as a whole together with what they need, and
//! everything promised survives. If two selections satisfy this, so does the selection of the older
//! version of each chain. So the oldest selection can be found without backtracking: begin with the
//! oldest versions, and raise those that must be newer until nothing changes. If no version of a
//! chain is left, the reason for the last raise names the broken promise.

use std::collections::VecDeque;
use std::fmt;

use super::chain::{Chain, ChainId, OpId, Part, UNTOLD, Value, Version};
use super::{Model, Moment};
use crate::image::BLOCK;
use crate::tree::{Node, Times, Tree};
use cairnfs_disk::types::Time;

/// Why a version must survive.
#[derive(Debug, Clone, Copy)]
enum Why {
    /// No older version matches the tree.
    Seen,
    /// The promise with this index keeps it.
    Promised(usize),
    /// It is part of an operation that survived.
    Whole(OpId),
    /// An operation that survived needs it.
    Needed(OpId),
}

/// Describes why the contract does not allow a recovered tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The promise of the contract that is broken.
    pub promise: &'static str,
    /// What was found, and what was expected.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.message)
    }
}

/// The state of the search: the lowest version of each chain that is still possible.
struct Search<'a> {
    model: &'a Model,
    tree: &'a Tree,
    moment: Moment,
    least: Vec<usize>,
    todo: VecDeque<(Version, Why)>,
}

impl Model {
    /// Checks whether a crash at this moment may leave `tree`.
    ///
    /// # Errors
    /// The promise that the tree breaks.
    pub fn verify(&self, tree: &Tree, moment: Moment) -> Result<(), Violation> {
        self.known(tree)?;
        let mut search = Search {
            model: self,
            tree,
            moment,
            least: vec![0; self.chains.len()],
            todo: VecDeque::new(),
        };
        // Promises come first, because they give the most useful message.
        for (i, promise) in self.promises.iter().enumerate().take(moment.promises) {
            for version in &promise.keeps {
                search.todo.push_back((*version, Why::Promised(i)));
            }
        }
        for chain in 0..self.chains.len() {
            search.settle(chain, Why::Seen)?;
        }
        while let Some((version, why)) = search.todo.pop_front() {
            search.raise(version, why)?;
        }
        Ok(())
    }

    /// Checks that every name, byte and block was made by some call.
    fn known(&self, tree: &Tree) -> Result<(), Violation> {
        let strange = |what: String| Violation {
            promise: "no stale or rotten bytes",
            message: format!("{what}, which no call made"),
        };
        for (ino, node) in &tree.nodes {
            for name in node.entries.keys() {
                if !self.parts.contains_key(&Part::Name(*ino, name.clone())) {
                    let name = String::from_utf8_lossy(name);
                    return Err(strange(format!("{} holds {name}", tree.path(*ino))));
                }
            }
            if node.size > 0 && !self.parts.contains_key(&Part::Size(*ino)) {
                return Err(strange(format!(
                    "{} has {} bytes",
                    tree.path(*ino),
                    node.size
                )));
            }
            for block in node.blocks.keys() {
                if !self.parts.contains_key(&Part::Block(*ino, *block)) {
                    return Err(strange(format!(
                        "{} has bytes in block {block}",
                        tree.path(*ino)
                    )));
                }
            }
        }
        Ok(())
    }
}

impl Search<'_> {
    /// Raises a chain to at least this version, and its operations with it.
    fn raise(&mut self, version: Version, why: Why) -> Result<(), Violation> {
        let least = self.least.get(version.chain).copied().unwrap_or(0);
        if version.nth <= least {
            return Ok(());
        }
        self.take(version.chain, least, version.nth);
        self.settle(version.chain, why)
    }

    /// Versions above `old` up to `new` survive, so their operations must survive as a whole.
    fn take(&mut self, chain: ChainId, old: usize, new: usize) {
        if let Some(least) = self.least.get_mut(chain) {
            *least = new;
        }
        let Some(chain) = self.model.chains.get(chain) else {
            return;
        };
        for nth in old + 1..=new {
            let version = chain.versions.get(nth);
            let Some(id) = version.and_then(|(op, _)| *op) else {
                continue;
            };
            let Some(op) = self.model.ops.get(id) else {
                continue;
            };
            // A growth by data that a later truncation removed: the data may be lost.
            if op.makes.len() == 1 && chain.is_cut(nth, new) {
                continue;
            }
            let makes = op.makes.iter().map(|v| (*v, Why::Whole(id)));
            let needs = op.needs.iter().map(|v| (*v, Why::Needed(id)));
            let lags = |(version, _): &(Version, Why)| self.may_lag(*version, id);
            let wanted: Vec<_> = makes.chain(needs).filter(|w| !lags(w)).collect();
            self.todo.extend(wanted);
        }
    }

    /// Whether the version is the times of a file that a later fdatasync may leave out.
    fn may_lag(&self, version: Version, op: OpId) -> bool {
        let chain = self.model.chains.get(version.chain);
        match chain.map(|c| &c.part) {
            Some(Part::Times(ino)) => self.model.is_times_only(*ino, op, self.moment.ops),
            _ => false,
        }
    }

    /// Advances a chain to the first version that matches the tree.
    fn settle(&mut self, id: ChainId, why: Why) -> Result<(), Violation> {
        let Some(chain) = self.model.chains.get(id) else {
            return Ok(());
        };
        let least = self.least.get(id).copied().unwrap_or(0);
        let end = chain.versions_before(self.moment.ops);
        let matches_tree = |nth: &usize| {
            let version = chain.versions.get(*nth);
            version.is_some_and(|(_, value)| self.matches_tree(&chain.part, value))
        };
        match (least..end).find(matches_tree) {
            Some(nth) => {
                self.take(id, least, nth);
                Ok(())
            }
            None => Err(self.violation(chain, least, end, why)),
        }
    }

    /// Whether a value matches the tree; a part of an unreachable inode always does.
    fn matches_tree(&self, part: &Part, value: &Value) -> bool {
        let node = |ino: &u64| self.tree.nodes.get(ino);
        match (part, value) {
            (Part::Name(dir, name), Value::Entry(Some(UNTOLD))) => node(dir).is_none_or(|n| {
                let found = n.entries.get(name);
                found.is_some_and(|ino| !self.model.parts.contains_key(&Part::Facts(*ino)))
            }),
            (Part::Name(dir, name), Value::Entry(entry)) => {
                node(dir).is_none_or(|n| n.entries.get(name).copied() == *entry)
            }
            (Part::Facts(ino), Value::Facts(facts)) => {
                node(ino).is_none_or(|n| facts.as_ref().is_some_and(|f| **f == n.facts))
            }
            (Part::Times(ino), Value::Times(times)) => {
                let same = |n: &Node| times.is_none_or(|times| times == n.times);
                node(ino).is_none_or(same)
            }
            (Part::Size(ino), Value::Size(size)) => node(ino).is_none_or(|n| n.size == *size),
            (Part::Block(ino, block), Value::Block(bytes)) => {
                let bytes = bytes.as_ref().map(|b| &b[..]);
                node(ino).is_none_or(|n| block_matches(n, *block, bytes))
            }
            _ => false,
        }
    }

    fn violation(&self, chain: &Chain, least: usize, end: usize, why: Why) -> Violation {
        let call = |op: OpId| {
            let call = self.model.ops.get(op).map(|o| o.call);
            call.and_then(|c| self.model.calls.get(c))
                .map_or("the beginning", String::as_str)
        };
        let before = (0..least).any(|nth| {
            let version = chain.versions.get(nth);
            version.is_some_and(|(_, value)| self.matches_tree(&chain.part, value))
        });
        let (promise, reason) = match why {
            Why::Promised(i) => {
                let promised = self.model.promises.get(i).map(|p| p.call);
                let call = promised.and_then(|c| self.model.calls.get(c));
                let call = call.map_or("an earlier call", String::as_str);
                ("durable", format!("lost after `{call}` had returned"))
            }
            Why::Whole(op) => (
                "atomic",
                format!("not there though other parts of `{}` are", call(op)),
            ),
            Why::Needed(op) => (
                "dependency order",
                format!("not there though `{}` depends on it", call(op)),
            ),
            Why::Seen => ("atomic", "in a state that no call left".into()),
        };
        let (promise, reason) = if before || !matches!(why, Why::Promised(_)) {
            (promise, reason)
        } else {
            ("atomic", "in a state that no call left".into())
        };
        Violation {
            promise,
            message: format!(
                "{} is {reason}; it is {}, versions {least} to {end} of it are allowed: {}",
                self.named(&chain.part),
                self.found(&chain.part),
                chain
                    .versions
                    .get(least..end)
                    .unwrap_or_default()
                    .iter()
                    .map(|(_, value)| brief(value))
                    .collect::<Vec<_>>()
                    .join(", "),
            ),
        }
    }

    fn named(&self, part: &Part) -> String {
        let path = |ino: &u64| self.tree.path(*ino);
        match part {
            Part::Name(dir, name) => {
                format!(
                    "the name {} in {}",
                    String::from_utf8_lossy(name),
                    path(dir)
                )
            }
            Part::Facts(ino) => format!("the inode {}", path(ino)),
            Part::Times(ino) => format!("the times of {}", path(ino)),
            Part::Size(ino) => format!("the size of {}", path(ino)),
            Part::Block(ino, block) => format!("block {block} of {}", path(ino)),
        }
    }

    fn found(&self, part: &Part) -> String {
        let node = |ino: &u64| self.tree.nodes.get(ino);
        match part {
            Part::Name(dir, name) => {
                let entry = node(dir).and_then(|n| n.entries.get(name).copied());
                brief(&Value::Entry(entry))
            }
            Part::Facts(ino) => node(ino).map_or("gone".into(), |n| format!("{:?}", n.facts)),
            Part::Times(ino) => {
                node(ino).map_or("gone".into(), |n| brief(&Value::Times(Some(n.times))))
            }
            Part::Size(ino) => node(ino).map_or("gone".into(), |n| format!("{} bytes", n.size)),
            Part::Block(ino, block) => match node(ino).and_then(|n| n.blocks.get(block)) {
                Some(bytes) => brief_bytes(bytes),
                None => "zeros".into(),
            },
        }
    }
}

/// Whether a block of a file has these bytes, up to the end of the file; `None` for zeros.
fn block_matches(node: &Node, block: u64, bytes: Option<&[u8]>) -> bool {
    let visible = node
        .size
        .saturating_sub(block * BLOCK as u64)
        .min(BLOCK as u64) as usize;
    let expected = bytes.and_then(|b| b.get(..visible));
    match (node.blocks.get(&block), expected) {
        (Some(found), Some(expected)) => found.as_slice() == expected,
        (None, Some(expected)) => expected.iter().all(|b| *b == 0),
        (Some(_), None) => false,
        (None, None) => true,
    }
}

fn brief(value: &Value) -> String {
    match value {
        Value::Entry(Some(ino)) => format!("inode {ino}"),
        Value::Entry(None) => "no entry".into(),
        Value::Facts(Some(facts)) => format!("{facts:?}"),
        Value::Facts(None) => "not made".into(),
        Value::Times(Some(times)) => {
            let shown = |t: Time| format!("{}.{:09}", t.secs, t.nanos);
            let Times {
                accessed,
                modified,
                changed,
            } = *times;
            let [a, m, c] = [accessed, modified, changed].map(shown);
            format!("accessed {a}, modified {m}, changed {c}")
        }
        Value::Times(None) => "times between".into(),
        Value::Size(size) => format!("{size} bytes"),
        Value::Block(Some(bytes)) => brief_bytes(&bytes[..]),
        Value::Block(None) => "zeros".into(),
    }
}

/// The bytes of a block as runs of equal bytes, for messages.
fn brief_bytes(bytes: &[u8]) -> String {
    let mut runs = Vec::new();
    for run in bytes.chunk_by(|a, b| a == b).take(6) {
        let first = run.first().copied().unwrap_or(0);
        runs.push(format!("{}x{first:02x}", run.len()));
    }
    runs.join(" ")
}
