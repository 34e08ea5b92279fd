//! Ranges of keys whose items are unknown because the index cannot be read there.
//!
//! An item that may be in a hole is never reported as missing.

use cairnfs_disk::format::key::{Key, Kind};

/// Keys from `low` to `high`, `high` excluded; without `high`, to the last key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) low: Key,
    pub(crate) high: Option<Key>,
}

impl KeyRange {
    /// Every key.
    pub(crate) const ALL: Self = Self {
        low: Key::first_of(0),
        high: None,
    };

    /// One key.
    pub(crate) fn one(key: Key) -> Self {
        Self {
            low: key,
            high: successor(&key),
        }
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        *key >= self.low && self.high.is_none_or(|high| *key < high)
    }
}

fn successor(key: &Key) -> Option<Key> {
    if let Some(offset) = key.offset.checked_add(1) {
        return Some(Key { offset, ..*key });
    }
    match Kind::from_u8(key.kind as u8 + 1) {
        Some(kind) => Some(Key::new(key.object, kind, 0)),
        None => key.object.checked_add(1).map(Key::first_of),
    }
}

/// The holes of a tree, in key order.
#[derive(Debug, Default)]
pub(crate) struct Holes(Vec<KeyRange>);

impl Holes {
    /// Adds a hole behind or within the last one.
    pub(crate) fn push(&mut self, hole: KeyRange) {
        if !self.0.last().is_some_and(|last| last.contains(&hole.low)) {
            self.0.push(hole);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `key` is in a hole, so that its item may exist.
    pub(crate) fn hides(&self, key: &Key) -> bool {
        self.touches(key, key)
    }

    /// Whether any key of an object is in a hole.
    pub(crate) fn hides_some_of(&self, object: u64) -> bool {
        self.touches(&Key::first_of(object), &Key::last_of(object))
    }

    fn touches(&self, low: &Key, high: &Key) -> bool {
        let first = self
            .0
            .partition_point(|hole| hole.high.is_some_and(|h| h <= *low));
        self.0.get(first).is_some_and(|hole| hole.low <= *high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_hide_only_their_own_keys() {
        let mut holes = Holes::default();
        holes.push(KeyRange::one(Key::inode(5)));
        holes.push(KeyRange {
            low: Key::new(7, Kind::Extent, 3),
            high: Some(Key::first_of(9)),
        });
        assert!(holes.hides(&Key::inode(5)) && !holes.hides(&Key::new(5, Kind::Inline, 0)));
        assert!(!holes.hides(&Key::new(7, Kind::Extent, 2)));
        assert!(holes.hides(&Key::new(7, Kind::Extent, 3)) && holes.hides(&Key::inode(8)));
        assert!(holes.hides_some_of(7) && holes.hides_some_of(5));
        assert!(!holes.hides_some_of(6) && !holes.hides_some_of(9));
    }

    #[test]
    fn successor_of_last_offset_is_the_next_kind() {
        let last = Key::new(4, Kind::DirName, u64::MAX);
        assert_eq!(successor(&last), Some(Key::new(4, Kind::Xattr, 0)));
        assert_eq!(successor(&Key::last_of(4)), Some(Key::first_of(5)));
        assert_eq!(successor(&Key::last_of(u64::MAX)), None);
    }
}
