//! Root items: the table of the volume's roots, in the volume tree under the keys (id, root, 0).
//!
//! A root is a tree of files and its place in the history. A root never changes its tree, and an id
//! is never used again; names move between ids. A *head* can be written and has no boundary. A
//! *frozen* root is the state of a tree after the context `boundary`, for ever. Blocks and nodes
//! born up to the boundary of a root's parent belong to the parent too.
//!
//! A root may also come after others that it shares nothing with: those that it has *replaced*, or
//! whose descendant has. They and the parent are what the state in which two roots have parted is
//! found by. Only a volume with the feature [`crate::format::superblock::REPLACED`] has such roots.
//!
//! A volume without the feature [`crate::format::superblock::ROOTS`] has the short form only: the
//! pointer to the tree of the main root.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::MAX_COUNTER;
use crate::format::item::RawTime;
use crate::format::key::{MAIN_ROOT, VOLUME_ROOT};
use crate::format::node::MAX_HEIGHT;
use crate::format::pointer::RawPtr;

/// Maximum number of roots of a volume.
pub const MAX_ROOTS: u32 = 1 << 16;
/// Maximum length in bytes of the name of a root.
pub const MAX_ROOT_NAME: usize = 255;
/// Maximum number of roots that a root names as replaced.
pub const MAX_REPLACED: usize = 16;
/// The name of the main root, as the short form implies it.
pub const MAIN_NAME: &str = "main";

/// The tree of a root, as stored at the beginning of its item.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct RawRoot {
    /// Root node of the tree.
    pub ptr: RawPtr,
    /// Height of the tree: 1 for a single leaf, 0 if empty.
    pub height: U32,
    /// Sequence of the context that created the root.
    pub birth: U64,
}

/// The place of a root in the history, as stored behind its tree. The ids of the roots that it has
/// replaced and its name follow.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct RawLineage {
    /// Id of the parent; 0 for none.
    pub parent: U32,
    /// A [`RootState`].
    pub state: U16,
    /// Number of the ids that follow.
    pub replaced: U16,
    /// Sequence of the last context whose changes a frozen root has; 0 for a head.
    pub boundary: U64,
    /// Time of creation.
    pub created: RawTime,
    /// Id of the root whose tree it was created with, its own if it was created empty; 0 for the
    /// main root.
    pub origin: U32,
    /// Number of nodes of its tree.
    pub nodes: U64,
}

/// What can be done with a root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u16)]
pub enum RootState {
    /// It can be written, and has no children. Without a name it is dropped after an opening.
    #[default]
    Head = 0,
    /// It is never changed.
    Frozen = 1,
    /// It is frozen and was dropped: it is not read any more, and its space is freed as soon as at
    /// most one root comes after it.
    Dropping = 2,
}

/// A root as its item describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Root {
    /// Its tree.
    pub tree: RawRoot,
    /// Id of the parent; [`VOLUME_ROOT`] for none.
    pub parent: u32,
    /// Ids of the roots besides the parent that it comes after, ascending: what it has replaced.
    pub replaced: Vec<u32>,
    /// What can be done with it.
    pub state: RootState,
    /// The last context whose changes a frozen root has; 0 for a head.
    pub boundary: u64,
    /// Time of creation; zero for a main root that was never forked.
    pub created: RawTime,
    /// Id of the root whose tree it was created with, its own if it was created empty;
    /// [`VOLUME_ROOT`] for the main root.
    pub origin: u32,
    /// Number of nodes of its tree; 0 if the short form does not tell.
    pub nodes: u64,
    /// Its name; empty if it has none.
    pub name: String,
}

impl Root {
    /// The main root of a volume that was never forked.
    pub fn main(tree: RawRoot) -> Self {
        Self {
            tree,
            name: MAIN_NAME.into(),
            ..Self::default()
        }
    }

    /// Whether the short form describes it: it is the main root and was never forked.
    pub fn is_plain(&self) -> bool {
        let main = Self {
            nodes: self.nodes,
            ..Self::main(self.tree)
        };
        *self == main
    }

    /// The value of its item. Only a plain root may be stored without the feature of roots.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = self.tree.as_bytes().to_vec();
        if self.is_plain() {
            return value;
        }
        let lineage = RawLineage {
            parent: U32::new(self.parent),
            state: U16::new(self.state as u16),
            replaced: U16::new(self.replaced.len() as u16),
            boundary: U64::new(self.boundary),
            created: self.created,
            origin: U32::new(self.origin),
            nodes: U64::new(self.nodes),
        };
        value.extend_from_slice(lineage.as_bytes());
        for id in &self.replaced {
            value.extend_from_slice(&id.to_le_bytes());
        }
        value.extend_from_slice(self.name.as_bytes());
        value
    }

    /// Checks and decodes the value of the item of the root `id`.
    ///
    /// # Errors
    /// What is wrong, as text.
    pub fn decode(id: u64, value: &[u8]) -> Result<Self, String> {
        if id == u64::from(VOLUME_ROOT) || id > u64::from(u32::MAX) {
            return Err(format!("root {id}, an id that no root can have"));
        }
        let short = || format!("root item of {} bytes", value.len());
        let (tree, rest) = RawRoot::read_from_prefix(value).map_err(|_| short())?;
        if tree.height.get() > MAX_HEIGHT {
            return Err(format!("tree of height {}", tree.height));
        }
        if rest.is_empty() && id == u64::from(MAIN_ROOT) {
            return Ok(Self::main(tree));
        }
        let (lineage, rest) = RawLineage::read_from_prefix(rest).map_err(|_| short())?;
        let count = usize::from(lineage.replaced.get());
        if count > MAX_REPLACED {
            return Err(format!("{count} replaced roots"));
        }
        let (replaced, rest) =
            <[U32]>::ref_from_prefix_with_elems(rest, count).map_err(|_| short())?;
        let name = std::str::from_utf8(rest).map_err(|_| "a name that is not UTF-8")?;
        let root = Self {
            tree,
            parent: lineage.parent.get(),
            replaced: replaced.iter().map(|id| id.get()).collect(),
            state: state_of(lineage.state.get())?,
            boundary: lineage.boundary.get(),
            created: lineage.created,
            origin: lineage.origin.get(),
            nodes: lineage.nodes.get(),
            name: name.into(),
        };
        root.checked(id)
    }

    fn checked(self, id: u64) -> Result<Self, String> {
        let boundary = self.boundary;
        match (self.state, boundary) {
            _ if self.nodes >= MAX_COUNTER => Err(format!("{} nodes", self.nodes)),
            _ if boundary >= MAX_COUNTER => Err(format!("boundary {boundary}")),
            (RootState::Head, 1..) => Err(format!("a head with the boundary {boundary}")),
            (RootState::Frozen | RootState::Dropping, 0) => {
                Err("a frozen root without boundary".into())
            }
            (RootState::Dropping, _) if !self.name.is_empty() => Err(format!(
                "the name {:?} of a root that was dropped",
                self.name
            )),
            _ if (self.origin == 0) != (id == u64::from(MAIN_ROOT)) => {
                Err(format!("the origin {}", self.origin))
            }
            _ if !self.name.is_empty() && !is_root_name(&self.name) => {
                Err(format!("the name {:?}, which no root can have", self.name))
            }
            _ if u64::from(self.parent) == id => Err("a root that is its own parent".into()),
            _ if !self.replaced.is_sorted_by(|a, b| a < b)
                || self.replaced.first() == Some(&VOLUME_ROOT)
                || self.replaced.iter().any(|of| u64::from(*of) == id) =>
            {
                Err(format!("the replaced roots {:?}", self.replaced))
            }
            _ if self.created.nanos.get() >= 1_000_000_000 => {
                Err(format!("{} nanoseconds", self.created.nanos))
            }
            _ => Ok(self),
        }
    }
}

fn state_of(raw: u16) -> Result<RootState, String> {
    Ok(match raw {
        0 => RootState::Head,
        1 => RootState::Frozen,
        2 => RootState::Dropping,
        other => return Err(format!("root with the unknown state {other}")),
    })
}

/// Whether a root can have this name: 1 to 255 bytes without control characters, `/` and `@`, and
/// not beginning with `-`. `@` separates a branch from a snapshot or time.
pub fn is_root_name(name: &str) -> bool {
    let forbidden = |c: char| c.is_control() || matches!(c, '/' | '@');
    (1..=MAX_ROOT_NAME).contains(&name.len()) && !name.starts_with('-') && !name.contains(forbidden)
}

/// Why a new root cannot have this name; `None` if it can. Besides what [`is_root_name`] excludes,
/// these are names that would be mistaken for something else in a list or on a command line. Volumes
/// from before may have roots with such names.
pub fn refused_root_name(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("a snapshot or branch has a name")
    } else if name.trim().is_empty() {
        Some("the name of a snapshot or branch is not blanks only")
    } else if name.trim() != name {
        Some("the name of a snapshot or branch does not begin or end with a blank")
    } else if matches!(name, "." | "..") {
        Some("`.` and `..` are names of directories, not of a snapshot or branch")
    } else if !is_root_name(name) {
        Some(
            "the name of a snapshot or branch has 1 to 255 bytes, no control characters, no `/` \
             and `@`, and does not begin with `-`",
        )
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frozen() -> Root {
        Root {
            parent: 3,
            state: RootState::Frozen,
            boundary: 7,
            name: "before".into(),
            origin: 1,
            ..Root::main(RawRoot::default())
        }
    }

    #[test]
    fn main_root_that_was_never_forked_has_the_short_form() {
        let main = Root::main(RawRoot {
            height: U32::new(2),
            ..RawRoot::default()
        });
        let value = main.encode();
        assert_eq!(value.len(), 32);
        assert_eq!(Root::decode(1, &value), Ok(main.clone()));
        assert!(Root::decode(2, &value).is_err(), "only root 1 has it");
        let forked = Root { parent: 2, ..main };
        assert_eq!(forked.encode().len(), 32 + 40 + MAIN_NAME.len());
        let replaced = vec![3, 4];
        let restored = Root { replaced, ..forked };
        assert_eq!(restored.encode().len(), 32 + 40 + 8 + MAIN_NAME.len());
        assert_eq!(Root::decode(1, &restored.encode()), Ok(restored));
    }

    #[test]
    fn roots_that_break_a_rule_are_refused() {
        let wrong: [fn(&mut Root); 15] = [
            |r| r.boundary = 0,
            |r| r.boundary = u64::MAX,
            |r| r.state = RootState::Head,
            |r| r.state = RootState::Dropping,
            |r| r.origin = 0,
            |r| r.parent = 9,
            |r| r.replaced = vec![9],
            |r| r.replaced = vec![0, 4],
            |r| r.replaced = vec![5, 4],
            |r| r.replaced = vec![4, 4],
            |r| r.replaced = (10..27).collect(),
            |r| r.name = "a@b".into(),
            |r| r.name = "-x".into(),
            |r| r.name = "x".repeat(256),
            |r| r.created.nanos = U32::new(1_000_000_000),
        ];
        assert!(Root::decode(9, &frozen().encode()).is_ok());
        for (i, change) in wrong.iter().enumerate() {
            let mut root = frozen();
            change(&mut root);
            assert!(Root::decode(9, &root.encode()).is_err(), "{i}: {root:?}");
        }
        for id in [0, 1 << 32] {
            assert!(Root::decode(id, &frozen().encode()).is_err(), "{id}");
        }
    }

    /// A volume from before may have names that are refused now: it must stay readable.
    #[test]
    fn names_that_are_refused_now_are_read() {
        for name in [".", "..", " ", "\u{a0}", " x", "x ", "\u{3000}x"] {
            assert!(refused_root_name(name).is_some(), "{name:?}");
            let root = Root {
                name: name.into(),
                ..frozen()
            };
            assert_eq!(Root::decode(9, &root.encode()), Ok(root));
        }
        for name in ["...", ".x", "x.", "two words", "main.undo-1"] {
            assert_eq!(refused_root_name(name), None, "{name:?}");
        }
        for name in ["", "a@b", "a/b", "-x", "a\nb"] {
            assert!(refused_root_name(name).is_some(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn roots_round_trip_and_hostile_items_do_not_panic(
            (parent, boundary, secs) in (0..8_u32, 1..MAX_COUNTER, any::<i64>()),
            (name, dropped) in ("[a-z0-9._-]{0,20}", any::<bool>()),
            replaced in proptest::collection::btree_set(10..1000_u32, 0..=MAX_REPLACED),
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let state = if dropped { RootState::Dropping } else { RootState::Frozen };
            let root = Root {
                parent,
                replaced: replaced.into_iter().collect(),
                state,
                boundary,
                created: RawTime { secs: secs.into(), nanos: U32::new(5) },
                origin: parent + 1,
                nodes: boundary / 2,
                name: if dropped || name.starts_with('-') { String::new() } else { name },
                ..Root::default()
            };
            prop_assert_eq!(Root::decode(9, &root.encode()), Ok(root));
            let _ = Root::decode(9, &bytes);
        }
    }
}
