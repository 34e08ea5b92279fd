//! Blocks that a root gives up with the next merge: those of extents that the log replaced, in the
//! index or in the log itself. Nothing else can have them before.
//!
//! A file often keeps some of them in another extent, because extents are split and joined. So what
//! a file still has is not given up, but only its own extents tell that: objects are visited in key
//! order, and of each, the replaced extents and the live ones alternate.

use std::collections::BTreeMap;

use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::item::{EXTENT_UNWRITTEN, RawExtent};

use crate::blocks::BlockSet;
use crate::visit::Inherited;

/// An extent of an inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapped {
    pub(crate) ino: u64,
    /// First file block.
    pub(crate) at: u64,
    pub(crate) block: u64,
    /// In blocks.
    pub(crate) len: u64,
    pub(crate) birth: u64,
    pub(crate) written: bool,
}

impl Mapped {
    /// The extent in an item of `ino` at file block `at`.
    pub(crate) fn new(ino: u64, at: u64, raw: &RawExtent) -> Self {
        Self {
            ino,
            at,
            block: raw.block.get(),
            len: raw.len.get().into(),
            birth: raw.birth.get(),
            written: raw.flags.get() & EXTENT_UNWRITTEN == 0,
        }
    }

    /// Its blocks from the `from`-th to the one before the `to`-th.
    pub(crate) fn part(&self, from: u64, to: u64) -> Self {
        Self {
            at: self.at + from,
            block: self.block + from,
            len: to - from,
            ..*self
        }
    }

    /// Whether it has a block of another extent in the same place of the same file.
    pub(crate) fn has(&self, other: &Mapped, nth: u64) -> bool {
        let skip = (other.at + nth).checked_sub(self.at);
        let mapped = skip.filter(|skip| *skip < self.len);
        let block = mapped.and_then(|skip| self.block.checked_add(skip));
        self.ino == other.ino && block == Some(other.block + nth)
    }
}

/// By inode, the extents that the log added and replaced.
pub(crate) type Replaced = BTreeMap<u64, Vec<Mapped>>;

/// What the inodes of a root give up.
pub(crate) struct GivenUp<'a> {
    logged: &'a Replaced,
    inherited: Inherited,
    /// The inode that is visited.
    ino: u64,
    /// Blocks of its replaced extents so far, except inherited ones, in `runs`.
    own: BlockSet,
    runs: Vec<(u64, u64)>,
    /// The last live extent.
    last: Option<Mapped>,
    /// All blocks that are given up.
    pub(crate) blocks: BlockSet,
}

impl<'a> GivenUp<'a> {
    /// Begins with what the log itself replaced.
    pub(crate) fn new(geometry: &Geometry, logged: &'a Replaced, inherited: Inherited) -> Self {
        let mut blocks = BlockSet::new(geometry);
        let all = logged.values().flatten();
        for extent in all.filter(|extent| !inherited.has(extent.birth)) {
            blocks.insert(extent.block, extent.len);
        }
        Self {
            logged,
            inherited,
            ino: 0,
            own: BlockSet::new(geometry),
            runs: Vec::new(),
            last: None,
            blocks,
        }
    }

    /// An extent of the index that the log replaced, and that is not inherited.
    pub(crate) fn replaced(&mut self, extent: &Mapped) {
        self.visit(extent.ino);
        self.add_own(extent);
        for nth in 0..extent.len {
            // Earlier extents have been seen, and only the last of them reaches so far.
            if !self.last.is_some_and(|last| last.has(extent, nth)) {
                self.blocks.insert(extent.block + nth, 1);
            }
        }
    }

    /// An extent that its inode has.
    pub(crate) fn live(&mut self, extent: Mapped) {
        self.visit(extent.ino);
        self.last = Some(extent);
        if self.runs.is_empty() {
            return;
        }
        for block in extent.block..extent.block.saturating_add(extent.len) {
            if self.own.has(block) {
                self.blocks.remove(block, 1);
            }
        }
    }

    fn visit(&mut self, ino: u64) {
        if self.ino == ino {
            return;
        }
        self.ino = ino;
        for (block, len) in std::mem::take(&mut self.runs) {
            self.own.remove(block, len);
        }
        let inherited = self.inherited;
        let logged = self.logged.get(&ino).into_iter().flatten();
        for extent in logged.filter(|extent| !inherited.has(extent.birth)) {
            self.add_own(extent);
        }
    }

    fn add_own(&mut self, extent: &Mapped) {
        self.own.insert(extent.block, extent.len);
        self.runs.push((extent.block, extent.len));
    }
}
