//! What the first scan of a survey has seen of an inode, and the keys that are hidden.

use crate::index::Unread;
use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::item::{RawInode, S_IFLNK, S_IFMT, decode_extent_at, decode_inode};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::sync::Mutex;

/// A range of keys: the first, and the end, exclusive; `None` for the last ones of a tree.
type Range = (Key, Option<Key>);

/// The range of the top node of a tree.
pub(super) const WHOLE: Range = (Key::first_of(0), None);

/// The damaged nodes that merges of this opening have cut out of the trees of heads: the root, the first
/// block, and the range of keys of each.
#[derive(Default)]
pub struct Cuts(Mutex<Vec<(u32, u64, Range)>>);

impl Cuts {
    /// Adds the node at `block`, which was cut out of the tree of `root`.
    pub fn note(&self, root: u32, block: u64, keys: Range) {
        self.0.lock().push((root, block, keys));
    }

    /// The first blocks of all nodes.
    pub fn blocks(&self) -> Vec<u64> {
        self.0.lock().iter().map(|(_, block, _)| *block).collect()
    }

    /// What was cut out of the tree of `root`.
    fn of(&self, root: u32) -> Vec<Range> {
        let cuts = self.0.lock();
        let of_root = cuts.iter().filter(|(of, ..)| *of == root);
        of_root.map(|(.., keys)| *keys).collect()
    }
}

/// The ranges of keys that damage hides, ascending.
pub(super) struct Parted(Vec<Range>);

impl Parted {
    /// What merges have cut out of the tree of `root`.
    pub fn cut(root: u32, cuts: &Cuts) -> Self {
        let mut ranges = cuts.of(root);
        ranges.sort_unstable();
        Self(ranges)
    }

    /// Adds what cannot be read.
    pub fn hide(&mut self, unread: &Unread) {
        let at = self.0.partition_point(|(first, _)| *first <= unread.first);
        self.0.insert(at, (unread.first, unread.end));
    }

    /// Whether everything is hidden: the top node of the tree was cut out.
    pub fn is_whole(&self) -> bool {
        self.0.first() == Some(&WHOLE)
    }

    /// Whether there may be an item of this key that cannot be read.
    pub fn hides(&self, key: &Key) -> bool {
        let before = self.0.partition_point(|(first, _)| first <= key);
        let last = before.checked_sub(1).and_then(|at| self.0.get(at));
        last.is_some_and(|(first, end)| first == key || end.is_none_or(|end| *key < end))
    }
}

/// What was seen of an inode.
pub(super) struct Contents {
    pub ino: u64,
    pub raw: Option<RawInode>,
    /// The items, if the inode may go.
    pub keys: Vec<Key>,
    /// Items that cannot be decoded.
    pub bad: Vec<Key>,
    pub inline: bool,
    pub entries: bool,
    /// Blocks of extents.
    pub blocks: u64,
}

impl Contents {
    /// Nothing of this inode.
    pub fn new(ino: u64) -> Self {
        Self {
            ino,
            raw: None,
            keys: Vec::new(),
            bad: Vec::new(),
            inline: false,
            entries: false,
            blocks: 0,
        }
    }

    /// Adds an item.
    pub fn note(&mut self, key: &Key, value: &[u8], geometry: &Geometry) {
        match key.kind {
            Kind::Inode => self.raw = decode_inode(value).ok(),
            Kind::Inline => self.inline = true,
            Kind::DirIndex => self.entries = true,
            Kind::Extent => match decode_extent_at(key.offset, value, geometry) {
                Ok((raw, _)) => self.blocks += u64::from(raw.len.get()),
                Err(_) => self.bad.push(*key),
            },
            _ => {}
        }
        let link = |raw: RawInode| raw.mode.get() & S_IFMT == S_IFLNK;
        if self.raw.is_none_or(link) {
            self.keys.push(*key);
        }
    }
}
