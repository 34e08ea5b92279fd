//! The paths of a patch, before and after, and the paths whose change it cannot tell as a rename.
//!
//! Plain values. A patch is applied path by path, and a reader refuses to make a file where there is
//! one. So a path that one file leaves and another one takes is a change in place, unless both are
//! only renamed: readers follow chains and circles of renames.

use std::collections::BTreeMap;

/// A path of a file before and after; `None` where there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    /// The inode in the old and in the new tree.
    pub inos: (u64, u64),
    /// The path before.
    pub old: Option<Vec<u8>>,
    /// The path after.
    pub new: Option<Vec<u8>>,
}

/// A path that some file leaves or takes.
#[derive(Default)]
struct Passed {
    /// The inode that leaves it, and its path after.
    left: Option<(u64, Option<Vec<u8>>)>,
    /// The inode that takes it, and its path before.
    taken: Option<(u64, Option<Vec<u8>>)>,
}

/// Inodes of a path that is taken over: the one that leaves it, and the one that takes it.
pub(super) type Change = (u64, u64);

/// The paths that another file takes over; without those between which files are only renamed.
pub(super) fn taken_over(moves: impl IntoIterator<Item = Move>) -> BTreeMap<Vec<u8>, Change> {
    let mut passed: BTreeMap<Vec<u8>, Passed> = BTreeMap::new();
    for Move { inos, old, new } in moves.into_iter().filter(|m| m.old != m.new) {
        if let Some(path) = &old {
            passed.entry(path.clone()).or_default().left = Some((inos.0, new.clone()));
        }
        if let Some(path) = new {
            passed.entry(path).or_default().taken = Some((inos.1, old));
        }
    }
    passed.retain(|_, path| path.left.is_some() && path.taken.is_some());
    let only_one = |path: &Passed| {
        let ends = matches!(path.left, Some((_, None)));
        ends || matches!(path.taken, Some((_, None)))
    };
    let ends = passed.iter().filter(|(_, path)| only_one(path));
    let mut todo: Vec<Vec<u8>> = ends.map(|(path, _)| path.clone()).collect();
    let mut found = BTreeMap::new();
    // Of a file that leaves or takes a path in place, the other path is no rename, either.
    while let Some(path) = todo.pop() {
        let Some(Passed { left, taken }) = passed.remove(&path) else {
            continue;
        };
        let ((leaves, to), (takes, from)) = (left.unwrap_or_default(), taken.unwrap_or_default());
        todo.extend(to);
        todo.extend(from);
        found.insert(path, (leaves, takes));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(moves: &[(&str, &str)]) -> Vec<String> {
        let path = |text: &str| Some(text.as_bytes().to_vec()).filter(|path| !path.is_empty());
        let moves = moves.iter().zip(10..).map(|((old, new), ino)| Move {
            inos: (ino, ino),
            old: path(old),
            new: path(new),
        });
        let over = taken_over(moves);
        let show = |(path, (old, new)): (Vec<u8>, Change)| {
            format!("{} {old}-{new}", String::from_utf8_lossy(&path))
        };
        over.into_iter().map(show).collect()
    }

    #[test]
    fn paths_that_a_new_file_takes_are_changed_in_place() {
        assert_eq!(over(&[("a", "a~"), ("", "a")]), ["a 10-11"]);
        assert_eq!(over(&[("a", ""), ("b", "a")]), ["a 10-11"]);
        // A new file at the beginning of a chain concerns all of it.
        let rotated = [("log", "log.1"), ("log.1", "log.2"), ("", "log")];
        assert_eq!(over(&rotated), ["log 10-12", "log.1 11-10"]);
        assert_eq!(
            over(&[("log.1", ""), ("log", "log.1"), ("", "log")]),
            ["log 11-12", "log.1 10-11"]
        );
    }

    #[test]
    fn chains_and_circles_of_renames_stay_renames() {
        assert!(over(&[("a", "b"), ("b", "a")]).is_empty());
        assert!(over(&[("a", "b"), ("b", "c"), ("", "d"), ("e", "")]).is_empty());
        assert!(over(&[("a", "a"), ("b", "")]).is_empty());
    }
}
