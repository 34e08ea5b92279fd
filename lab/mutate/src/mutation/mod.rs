//! Damage that depends on a seed: bit rot, and changes of single structures with the checksums
//! above them valid or not.

mod fixed;
mod log;
mod rot;
mod trees;

use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS};

use crate::base::Base;
use crate::image::Image;
use crate::random::Random;

/// The classes: each with how it damages a base.
macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident: |$at:ident| $damage:expr,)*) => {
        /// What is damaged. Classes called `...Sealed` have valid checksums, as a bug or an attacker would
        /// leave them; all others are bit rot.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Class {
            $($(#[$doc])* $class,)*
        }

        /// All classes.
        pub const CLASSES: &[Class] = &[$(Class::$class),*];

        impl Mutator<'_> {
            fn damage(&mut self, class: Class) -> How {
                match class {
                    $(Class::$class => {
                        let $at = self;
                        $damage
                    })*
                }
            }
        }
    };
}

classes! {
    /// Some bits anywhere.
    Flip: |at| at.flip(),
    /// A block of zeros, ones or random bytes.
    Fill: |at| at.fill(),
    /// A block replaced by another.
    Swap: |at| at.swap(),
    /// A block with older contents, as after a lost write.
    Stale: |at| at.stale(),
    /// A truncated device.
    Truncate: |at| at.truncate(),
    /// An overwritten front, from one block to a megabyte.
    Front: |at| at.front(),
    /// Fields of a superblock.
    Superblock: |at| at.superblock(false),
    /// Fields of a superblock, with a valid checksum.
    SuperblockSealed: |at| at.superblock(true),
    /// Fields of a log record's header.
    LogHeader: |at| at.log_header(false),
    /// Fields of a log record's header, with valid checksums.
    LogHeaderSealed: |at| at.log_header(true),
    /// A bit of a log record's payload.
    LogPayload: |at| at.log_payload(),
    /// Keys, lengths and values of log entries, with valid checksums.
    LogEntrySealed: |at| at.log_entry(),
    /// A log without its last records.
    LogCut: |at| at.log_cut(),
    /// A few blocks of the log, side by side or anywhere between its tail and its end.
    LogBlocks: |at| at.log_blocks(),
    /// Header, offsets or any bits of an index node.
    Node: |at| at.node(false),
    /// Header, offsets or any bits of an index node, with valid checksums.
    NodeSealed: |at| at.node(true),
    /// Lengths, key or pointer in a cell, with valid checksums.
    CellSealed: |at| at.cell(),
    /// Fields of a value in a leaf, with valid checksums.
    ItemSealed: |at| at.item(),
    /// An invalid tree of valid nodes: shared, out of order, out of bounds.
    GraphSealed: |at| at.graph(),
    /// A unit of a large value, or its pointer.
    Large: |at| at.large(false),
    /// A unit of a large value, or its pointer, with valid checksums.
    LargeSealed: |at| at.large(true),
    /// Fields of the group table.
    Table: |at| at.table(false),
    /// Fields of the group table, with valid checksums.
    TableSealed: |at| at.table(true),
    /// Bits of a bitmap.
    Bitmap: |at| at.bitmap(false),
    /// Bits of a bitmap, with valid checksums.
    BitmapSealed: |at| at.bitmap(true),
    /// A block of a file's contents.
    Data: |at| at.data(),
}

impl Class {
    /// Whether checksums are valid, so that the result may be another sound volume.
    pub fn is_sealed(self) -> bool {
        format!("{self:?}").ends_with("Sealed")
    }
}

/// A damaged volume.
pub struct Mutation {
    /// What was damaged.
    pub class: Class,
    /// A description of the damage.
    pub how: String,
    /// The damaged volume.
    pub image: Image,
}

/// Damages a base in the way that `class` and `seed` determine.
pub fn mutate(base: &Base, class: Class, seed: u64) -> Mutation {
    let mut at = Mutator {
        base,
        image: base.image.clone(),
        random: Random::new(seed),
    };
    let how = at.damage(class);
    Mutation {
        class,
        how: how.unwrap_or_else(|| "nothing there to damage".into()),
        image: at.image,
    }
}

struct Mutator<'a> {
    base: &'a Base,
    image: Image,
    random: Random,
}

/// A description of the change; `None` if the base has no such structure.
type How = Option<String>;

impl Mutator<'_> {
    /// Flips some bits of a range of bytes that begins at `block`.
    fn flip_bits(&mut self, block: u64, range: std::ops::Range<usize>) -> String {
        let mut how = format!("block {block}: flipped");
        for _ in 0..1 + self.random.below(3) {
            let at = range.start + self.random.below(range.len());
            let bit = self.random.below(8);
            let old = self.byte(block, at);
            self.image.patch(block, at, &[old ^ (1 << bit)]);
            how += &format!(" {at}.{bit}");
        }
        how
    }

    fn byte(&self, block: u64, at: usize) -> u8 {
        self.image.read(block + (at / BLOCK_SIZE) as u64, 1)[at % BLOCK_SIZE]
    }

    /// Replaces a number by one that is likely to cause errors.
    fn change_number(&mut self, block: u64, at: usize, width: usize) -> String {
        let mut old = [0; 8];
        for (i, byte) in old[..width].iter_mut().enumerate() {
            *byte = self.byte(block, at + i);
        }
        let old = u64::from_le_bytes(old);
        let new = self.likely_number(old, width);
        self.image.patch(block, at, &new.to_le_bytes()[..width]);
        format!("block {block}: {width} bytes at {at} from {old:#x} to {new:#x}")
    }

    /// A boundary value, or a number with a meaning in this volume.
    fn likely_number(&mut self, old: u64, width: usize) -> u64 {
        let layout = &self.base.layout;
        let g = layout.geometry;
        match self.random.below(6) {
            0 if width == 8 => *self.random.pick(&[
                g.data_start(),
                g.data_start() - 1,
                g.total_blocks,
                g.total_blocks - 1,
                g.total_blocks - NODE_BLOCKS,
                1,
                2,
                16,
                (1 << 60) + 1,
                1 << 48,
                layout.superblock.root.block.get(),
                layout.superblock.merged_seq.get() + 1,
                layout.superblock.next_ino.get(),
            ]),
            1 if width == 8 => {
                let nodes: Vec<_> = layout.nodes.keys().copied().collect();
                *self.random.pick(&nodes)
            }
            2 if width == 8 => self.random.pick(&layout.items).key.object,
            _ => self.random.awkward(old, width),
        }
    }

    fn some_block(&mut self) -> u64 {
        *self.random.pick(&self.base.used)
    }
}
