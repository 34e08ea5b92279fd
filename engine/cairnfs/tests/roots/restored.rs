//! Restoring paths of random trees: what is below them is as in the snapshot, everything else is as
//! it was, and what both have keeps its inode number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cairnfs::{FileTimes, Flags, OpenOptions, Volume};

/// Pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    fn pick<'l, T>(&mut self, list: &'l [T]) -> &'l T {
        &list[self.below(list.len())]
    }
}

/// What programs see of an inode, without its names and the times that each change sets.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    mode: u32,
    owner: (u32, u32),
    rdev: u64,
    flags: Flags,
    modified: SystemTime,
    created: SystemTime,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    contents: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Node {
    ino: u64,
    nlink: u64,
    is_dir: bool,
    look: Look,
}

type View = BTreeMap<PathBuf, Node>;

fn view(volume: &Volume) -> View {
    let paths = volume.walk("/").unwrap().map(|entry| entry.unwrap().path());
    let all = paths.chain(["/".into()]).map(|path| {
        let meta = volume.symlink_metadata(&path).unwrap();
        let mut xattrs = BTreeMap::new();
        if !meta.is_symlink() {
            for name in volume.list_xattrs(&path).unwrap() {
                let value = volume.get_xattr(&path, &name).unwrap().unwrap();
                xattrs.insert(name.into_encoded_bytes(), value);
            }
        }
        let contents = match (meta.is_file(), meta.is_symlink()) {
            (true, _) => volume.read(&path).unwrap(),
            (_, true) => {
                let target = volume.read_link(&path).unwrap();
                target.into_os_string().into_encoded_bytes()
            }
            _ => Vec::new(),
        };
        let look = Look {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            rdev: meta.rdev(),
            flags: meta.flags(),
            modified: meta.modified().unwrap(),
            created: meta.created().unwrap(),
            xattrs,
            contents,
        };
        let node = Node {
            ino: meta.ino(),
            nlink: meta.nlink(),
            is_dir: meta.is_dir(),
            look,
        };
        (path, node)
    });
    all.collect()
}

/// Makes a random change of any kind, if it is possible.
fn change(volume: &Volume, dice: &mut Dice) {
    let paths: Vec<PathBuf> = view(volume).into_keys().collect();
    let there = dice.pick(&paths).clone();
    let dirs: Vec<&PathBuf> = paths
        .iter()
        .filter(|path| volume.symlink_metadata(path).unwrap().is_dir())
        .collect();
    let new = dice.pick(&dirs).join(["a", "b", "c", "d"][dice.below(4)]);
    let n = dice.below(1 << 16);
    let is_file = volume.symlink_metadata(&there).unwrap().is_file();
    let is_link = volume.symlink_metadata(&there).unwrap().is_symlink();
    let done = match dice.below(14) {
        0 | 1 => volume.create_dir(&new),
        2 => volume.write(&new, vec![n as u8; [3, 5_000, 70_000][n % 3]]),
        3 | 4 if is_file => volume
            .open_with(&there, OpenOptions::new().write(true))
            .and_then(|file| file.write_all_at(format!("{n}").as_bytes(), (n % 9_000) as u64)),
        5 => volume.hard_link(&there, &new),
        6 | 7 => volume.rename(&there, &new),
        8 if there != Path::new("/") => volume
            .remove_file(&there)
            .or_else(|_| volume.remove_dir_all(&there)),
        9 if !is_link => volume.set_xattr(&there, ["user.a", "user.b"][n % 2], format!("{n}")),
        10 if !is_link => volume.remove_xattr(&there, ["user.a", "user.b"][n % 2]),
        11 if !is_link => {
            volume.set_permissions(&there, Permissions::from_mode(0o600 + n as u32 % 0o100))
        }
        12 => volume.symlink(format!("{n}"), &new),
        13 => volume.mknod(&new, libc::S_IFIFO | 0o600, 0),
        _ => Ok(()),
    };
    // What is there already, or cannot be, is left.
    let _ = done;
}

fn is_within(path: &Path, tops: &[PathBuf]) -> bool {
    tops.iter().any(|top| path.starts_with(top))
}

/// Paths by inode.
fn names(view: &View) -> BTreeMap<u64, BTreeSet<PathBuf>> {
    let mut names: BTreeMap<u64, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, node) in view {
        names.entry(node.ino).or_default().insert(path.clone());
    }
    names
}

fn within(names: &BTreeSet<PathBuf>, tops: &[PathBuf]) -> BTreeSet<PathBuf> {
    let within = names.iter().filter(|path| is_within(path, tops));
    within.cloned().collect()
}

fn check(before: &View, state: &View, after: &View, tops: &[PathBuf]) {
    let (old_names, state_names, new_names) = (names(before), names(state), names(after));
    // The paths are what they were in the snapshot, and hard links among them are.
    for (path, node) in state.iter().filter(|(path, _)| is_within(path, tops)) {
        let found = &after[path];
        assert_eq!(found.look, node.look, "{path:?}");
        assert_eq!(
            within(&new_names[&found.ino], tops),
            within(&state_names[&node.ino], tops)
        );
    }
    for (path, node) in after {
        if is_within(path, tops) {
            assert!(state.contains_key(path), "{path:?} is left");
            continue;
        }
        // Everything else is as it was; a directory above may have been made.
        let Some(old) = before.get(path) else {
            assert!(tops.iter().any(|top| top.starts_with(path)), "{path:?}");
            continue;
        };
        assert_eq!(node.ino, old.ino, "{path:?}");
        let mut look = node.look.clone();
        if tops.iter().any(|top| top.parent() == Some(path)) || path == Path::new("/") {
            look.modified = old.look.modified;
        }
        if !before.keys().any(|old| old.parent() == Some(path)) && node.is_dir {
            look.modified = old.look.modified;
        }
        let made = |child: &&PathBuf| child.parent() == Some(path) && !before.contains_key(*child);
        if after.keys().find(made).is_some() {
            look.modified = old.look.modified;
        }
        assert_eq!(look, old.look, "{path:?}");
    }
    let gone = before.keys().filter(|path| !is_within(path, tops));
    for path in gone {
        assert!(after.contains_key(path), "{path:?} is gone");
    }
    // Inodes that both had keep their numbers, unless something outside would change.
    for (ino, there) in &state_names {
        let Some(path) = within(there, tops).pop_first() else {
            continue;
        };
        let node = &state[&path];
        let kept = after[&path].ino == *ino;
        let Some(old) = old_names.get(ino) else {
            assert!(kept, "{path:?} has another number than it had");
            continue;
        };
        let inside = within(old, tops);
        let one = &before[old.first().unwrap()];
        let all_inside = inside.len() == old.len();
        let expected = !inside.is_empty() && (all_inside || one.look == node.look);
        assert_eq!(kept, expected, "{path:?}");
    }
    for node in after.values().filter(|node| !node.is_dir) {
        assert_eq!(node.nlink, new_names[&node.ino].len() as u64);
    }
}

fn try_with(seed: u64) {
    let dice = &mut Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let volume = Volume::in_memory(64 << 20).unwrap();
    for _ in 0..20 + dice.below(30) {
        change(&volume, dice);
    }
    volume.snapshot("s").unwrap();
    let state = view(&volume.open_branch("s").unwrap());
    for _ in 0..dice.below(25) {
        change(&volume, dice);
    }
    let before = view(&volume);
    let paths: Vec<&PathBuf> = state.keys().filter(|p| *p != Path::new("/")).collect();
    if paths.is_empty() {
        return;
    }
    let tops: Vec<PathBuf> = (0..1 + dice.below(2))
        .map(|_| (*dice.pick(&paths)).clone())
        .collect();
    let not_a_dir = tops.iter().any(|top| {
        let mut above = top.ancestors().skip(1);
        // What is above may be restored itself.
        let alone = above.clone().all(|above| !tops.contains(&above.into()));
        alone && above.any(|above| before.get(above).is_some_and(|node| !node.is_dir))
    });
    let restored = volume.restore("s", "main", &tops);
    if not_a_dir {
        assert!(restored.is_err());
        return;
    }
    let kept = restored.unwrap();
    let main = volume.open_branch("main").unwrap();
    let after = view(&main);
    check(&before, &state, &after, &tops);
    let undone = view(&volume.open_branch(&kept).unwrap());
    assert_eq!(undone.len(), before.len());
    // What was restored is a state from which to restore.
    volume.restore("s", "main", &tops).unwrap();
    let again = view(&volume.open_branch("main").unwrap());
    check(&after, &state, &again, &tops);
}

#[test]
fn random_trees_are_restored_in_part() {
    for seed in 1..600 {
        let tried = std::panic::catch_unwind(|| try_with(seed));
        assert!(tried.is_ok(), "with the seed {seed}");
    }
}

/// The case of a directory in which one file of several has changed.
#[test]
fn directory_is_restored_in_place() {
    let volume = Volume::in_memory(64 << 20).unwrap();
    volume.create_dir("d").unwrap();
    volume.write("d/unchanged", "un").unwrap();
    volume.write("d/x", "a").unwrap();
    volume.write("d/gone", "gone").unwrap();
    let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
    volume.set_times("d", times).unwrap();
    volume.snapshot("s").unwrap();
    let state = view(&volume.open_branch("s").unwrap());
    volume.write("d/x", "bb").unwrap();
    volume.write("d/added", "new").unwrap();
    volume.remove_file("d/gone").unwrap();
    volume.restore("s", "main", &["d".into()]).unwrap();
    let after = view(&volume.open_branch("main").unwrap());
    let told = |view: &View| -> Vec<(PathBuf, u64, Look)> {
        let all = view.iter();
        all.map(|(path, node)| (path.clone(), node.ino, node.look.clone()))
            .collect()
    };
    assert_eq!(told(&after), told(&state));
    let diff = volume.diff("s", "main").unwrap();
    assert!(diff.report().files.is_empty(), "{:?}", diff.report().files);
}
