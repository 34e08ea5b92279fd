//! Listings of directories that change meanwhile: they end, and names that stay are listed exactly
//! once.
//!
//! Contract: posix.listing

use std::collections::{BTreeMap, HashMap};

use cairnfs::fs::{FileSystem, Options, Pressure};
use cairnfs::{DirEntry, FileKind, RenameMode, Volume};
use cairnfs_tier::size;
use proptest::prelude::*;

use super::engine::{OWNER, ROOT, create, fresh, open, open_with};
use super::volume;

/// Number of entries after which a listing is taken for endless.
const ENOUGH: usize = 5000;

fn make(v: &Volume, path: impl AsRef<std::path::Path>) {
    let mode = FileKind::File.mode_bits() | 0o600;
    v.mknod(path, mode, 0).unwrap();
}

/// Returns up to `most` entries after a cookie, with their cookies, including "." and "..".
fn some(fs: &FileSystem, cookie: u64, most: usize) -> Vec<(String, u64, u64)> {
    let mut found = Vec::new();
    fs.readdir(ROOT, cookie, &mut |entry| {
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        found.push((name, entry.ino, entry.cookie));
        found.len() < most
    })
    .unwrap();
    found
}

/// Returns the names after a cookie, read a few at a time; `between` runs between two calls.
fn rest(fs: &FileSystem, cookie: u64, mut between: impl FnMut()) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), cookie);
    loop {
        let found = some(fs, cookie, 3);
        let Some(last) = found.last() else {
            return names;
        };
        cookie = last.2;
        names.extend(found.into_iter().map(|(name, _, _)| name));
        assert!(names.len() < ENOUGH, "the listing does not end");
        between();
    }
}

fn all(fs: &FileSystem) -> Vec<String> {
    rest(fs, 0, || ())
}

/// Lists a directory of 1000 files and calls `act` for each entry.
fn with_each_listed(v: &Volume, mut act: impl FnMut(usize, DirEntry)) {
    v.create_dir("d").unwrap();
    for n in 0..1000 {
        make(v, format!("d/{n}"));
    }
    let mut listed = 0;
    for entry in v.read_dir("d").unwrap() {
        act(listed, entry.unwrap());
        listed += 1;
        assert!(listed <= 1000, "the listing does not end");
    }
    assert_eq!(listed, 1000);
}

#[test]
fn listing_ends_when_each_entry_is_renamed() {
    let v = volume();
    with_each_listed(&v, |_, entry| {
        let path = entry.path();
        let mut to = path.clone().into_os_string();
        to.push(".b");
        v.rename(path, to).unwrap();
    });
    let once = v.read_dir("d").unwrap().all(|entry| {
        let name = entry.unwrap().file_name();
        name.to_str().unwrap().matches(".b").count() == 1
    });
    assert!(once, "an entry was listed again under its new name");
}

#[test]
fn listing_ends_when_entry_is_created_for_each() {
    let v = volume();
    with_each_listed(&v, |n, entry| {
        let name = entry.file_name();
        make(&v, format!("d/new {n} {}", name.display()));
    });
    assert_eq!(v.read_dir("d").unwrap().count(), 2000);
}

#[test]
fn listing_contains_entries_present_at_its_start() {
    let fs = open(fresh());
    let (mut expected, mut begun) = (vec![".".to_owned(), "..".to_owned()], Vec::new());
    for n in 0..300 {
        create(&fs, &format!("{n}"));
        expected.push(format!("{n}"));
        // More listings than the engine keeps ends for: the oldest lose theirs, and list later
        // entries, too.
        begun.push((some(&fs, 0, 2)[1].2, expected.len()));
    }
    for (n, (cookie, len)) in begun.into_iter().enumerate() {
        let names = rest(&fs, cookie, || ());
        assert!(n < 100 || names.len() + 2 == len, "{n}: {}", names.len());
        assert_eq!(names[..len - 2], expected[2..len]);
    }
}

#[test]
fn earlier_cookie_resumes_at_its_entry() {
    let fs = open(fresh());
    (0..100).for_each(|n| {
        create(&fs, &format!("{n}"));
    });
    let first_listing = some(&fs, 0, 200);
    for (n, (_, _, cookie)) in first_listing.iter().enumerate() {
        create(&fs, &format!("new {n}"));
        let expected: Vec<_> = first_listing[n + 1..].iter().map(|e| e.0.clone()).collect();
        assert_eq!(rest(&fs, *cookie, || ()), expected, "behind {n}");
        assert_eq!(
            some(&fs, *cookie, 1).first().map(|e| e.2),
            first_listing.get(n + 1).map(|e| e.2)
        );
        assert!(i64::try_from(*cookie).unwrap() > 0);
    }
    assert_eq!(all(&fs).len(), 204, "from the start it has all");
}

/// Returns the rest of a listing at the third entry after the first name of each of several pairs
/// was renamed to the second, within the directory or from another one.
fn replaced(from: &str, merged: bool, how: RenameMode) -> Vec<String> {
    let device = fresh();
    let mut fs = open(device.clone());
    let dir = fs.mkdir(ROOT, b"d", 0o755, OWNER).unwrap().ino;
    let names: Vec<String> = (0..10).map(|n| format!("{n}")).collect();
    for name in &names {
        create(&fs, name);
        fs.mknod(dir, name.as_bytes(), 0o100_600, 0, OWNER).unwrap();
    }
    if merged {
        fs.close().unwrap();
        fs = open(device);
    }
    let dir = match from {
        "d" => dir,
        _ => ROOT,
    };
    let cookie = some(&fs, 0, 6)[5].2;
    for (old, new) in [("1", "7"), ("8", "0"), ("2", "9")] {
        fs.rename(dir, old.as_bytes(), ROOT, new.as_bytes(), how)
            .unwrap();
    }
    rest(&fs, cookie, || ())
}

#[test]
fn replaced_name_keeps_its_listing_position() {
    for how in [RenameMode::Replace, RenameMode::Exchange] {
        for from in ["d", "/"] {
            let gone = (from, how) == ("/", RenameMode::Replace);
            let expected = (3..10).filter(|n| !gone || *n != 8);
            let expected: Vec<_> = expected.map(|n| n.to_string()).collect();
            for merged in [false, true] {
                let listed = replaced(from, merged, how);
                assert_eq!(listed, expected, "{from} {how:?} {merged}");
            }
        }
    }
}

#[test]
fn repeatedly_replaced_name_is_listed_once() {
    let fs = open(fresh());
    let names: Vec<String> = (0..50).map(|n| format!("{n}")).collect();
    names.iter().for_each(|name| {
        create(&fs, name);
    });
    let mut turn = 0;
    let listed = rest(&fs, 0, || {
        for name in &names {
            turn += 1;
            create(&fs, "new");
            match turn % 3 {
                0 => fs.sync().unwrap(),
                1 => fs
                    .fsync(fs.lookup(ROOT, b"new").unwrap().ino, false)
                    .unwrap(),
                _ => {}
            }
            fs.rename(ROOT, b"new", ROOT, name.as_bytes(), RenameMode::Replace)
                .unwrap();
        }
    });
    let kept = listed
        .into_iter()
        .filter(|n| !n.starts_with('.') && n != "new");
    assert_eq!(kept.collect::<Vec<_>>(), names);
}

#[test]
fn replaced_name_keeps_position_after_reopen() {
    let device = fresh();
    let mut expected = BTreeMap::new();
    let order: Vec<String> = (0..20).map(|n| format!("{n}")).collect();
    let fs = open(device.clone());
    for name in &order {
        expected.insert(name.clone(), create(&fs, name));
    }
    fs.sync().unwrap();
    drop(fs);
    for round in 0..3 {
        let fs = open(device.clone());
        for (n, name) in order.iter().enumerate() {
            let new = create(&fs, "new");
            fs.rename(ROOT, b"new", ROOT, name.as_bytes(), RenameMode::Replace)
                .unwrap();
            expected.insert(name.clone(), new);
            let other = &order[(n * 7 + 3) % 20];
            if other != name {
                let (a, b) = (name.as_bytes(), other.as_bytes());
                fs.rename(ROOT, a, ROOT, b, RenameMode::Exchange).unwrap();
                let old = expected.insert(other.clone(), new).unwrap();
                expected.insert(name.clone(), old);
            }
            fs.fsync(new, false).unwrap();
        }
        fs.fsync(ROOT, false).unwrap();
        // Closed, or left as after a kill.
        match round {
            1 => fs.close().unwrap(),
            _ => std::mem::forget(fs),
        }
        let fs = open(device.clone());
        let found = some(&fs, 0, 100);
        let names: Vec<_> = found[2..].iter().map(|e| e.0.clone()).collect();
        assert_eq!(names, order);
        for (name, ino, _) in &found[2..] {
            assert_eq!(expected[name], *ino, "{name}");
            assert_eq!(fs.lookup(ROOT, name.as_bytes()).unwrap().ino, *ino);
        }
    }
}

#[test]
fn concurrent_listings_of_changing_directory_are_exact() {
    const MANY: usize = 200_000;
    let fs = open(fresh());
    let name = |n: usize| format!("{n:06}");
    (0..MANY).for_each(|n| {
        create(&fs, &name(n));
    });
    let mut seen: [HashMap<String, u32>; 3] = Default::default();
    let mut cookies = [0; 3];
    let mut turn = 0;
    let mut renamed = HashMap::new();
    while cookies.iter().any(|cookie| *cookie != u64::MAX) {
        for (cookie, seen) in cookies.iter_mut().zip(&mut seen) {
            if *cookie == u64::MAX {
                continue;
            }
            let found = some(&fs, *cookie, 500);
            *cookie = found.last().map_or(u64::MAX, |last| last.2);
            found.into_iter().for_each(|(name, _, _)| {
                *seen.entry(name).or_default() += 1;
            });
            turn += 1;
            // Some names are removed, some are created, some are renamed, and some get another
            // inode.
            let old = name(turn * 37 % MANY / 10 * 10);
            if fs.unlink(ROOT, old.as_bytes()).is_ok() {
                create(&fs, &format!("again {turn}"));
            }
            let (a, b) = (name(turn * 10 + 1), name(MANY - turn * 10 + 2));
            fs.rename(ROOT, a.as_bytes(), ROOT, b.as_bytes(), RenameMode::Exchange)
                .unwrap();
            create(&fs, "new");
            let over = name(turn * 10 + 3);
            fs.rename(ROOT, b"new", ROOT, over.as_bytes(), RenameMode::Replace)
                .unwrap();
            let old = name(turn * 7919 % MANY / 10 * 10 + 4);
            let new = format!("renamed {turn}");
            if fs
                .rename(
                    ROOT,
                    old.as_bytes(),
                    ROOT,
                    new.as_bytes(),
                    RenameMode::NoReplace,
                )
                .is_ok()
            {
                renamed.insert(old, new);
            }
            match turn % 200 {
                0 => fs.merge().unwrap(),
                100 => fs.sync().unwrap(),
                _ => {}
            }
        }
    }
    for seen in seen {
        for old in (0..MANY).filter(|n| n % 10 != 0).map(name) {
            let times = |name| seen.get(name).copied().unwrap_or_default();
            let new = renamed.get(&old).map_or(0, times);
            assert_eq!(times(&old) + new, 1, "{old}: {:?}", renamed.get(&old));
        }
        assert!(seen.values().all(|times| *times == 1));
    }
}

/// Model of the root directory: names and inodes by position in the listing order.
#[derive(Default)]
struct Model {
    entries: BTreeMap<u64, (String, u64)>,
    next: u64,
}

impl Model {
    fn add(&mut self, name: &str, ino: u64) {
        self.entries.insert(self.next, (name.to_owned(), ino));
        self.next += 1;
    }

    fn place(&self, name: &str) -> Option<u64> {
        let mut entries = self.entries.iter();
        entries.find(|(_, e)| e.0 == name).map(|(place, _)| *place)
    }

    fn ino(&self, place: u64) -> u64 {
        self.entries[&place].1
    }

    fn set_ino(&mut self, place: u64, ino: u64) {
        self.entries.get_mut(&place).unwrap().1 = ino;
    }

    /// Applies a successful rename within the directory; `white` is the inode of a new whiteout.
    fn rename(&mut self, (from, to): (&str, &str), how: RenameMode, white: Option<u64>) {
        let source = self.place(from).unwrap();
        let moved = self.ino(source);
        match (self.place(to), white) {
            (Some(target), _) if self.ino(target) == moved => {}
            (Some(target), _) => {
                let replaced = self.ino(target);
                self.set_ino(target, moved);
                match (how, white) {
                    (RenameMode::Exchange, _) => self.set_ino(source, replaced),
                    (_, Some(white)) => self.set_ino(source, white),
                    (_, None) => drop(self.entries.remove(&source)),
                }
            }
            (None, Some(white)) => {
                self.add(to, moved);
                self.set_ino(source, white);
            }
            (None, None) => self.entries.get_mut(&source).unwrap().0 = to.to_owned(),
        }
    }
}

/// A listing in progress and its state in the model.
struct Begun {
    cookie: u64,
    /// The position after which it continues, and the one before which it ends.
    at: u64,
    end: u64,
    /// Positions delivered since its start; `None` if it went back.
    delivered: Option<Vec<u64>>,
    /// Entries present at its start and ever since.
    stay: Vec<u64>,
    /// Earlier points of the listing: cookies and positions.
    points: Vec<(u64, u64)>,
}

/// A file system, the model of its root directory, and several listings of it.
struct Listed {
    fs: std::sync::Arc<FileSystem>,
    model: Model,
    begun: Vec<Begun>,
}

impl Listed {
    fn new(options: Options) -> Self {
        Self {
            fs: open_with(fresh(), options),
            model: Model::default(),
            begun: Vec::new(),
        }
    }

    fn rename(&mut self, from: &str, to: &str, how: RenameMode) {
        let (old, new) = (from.as_bytes(), to.as_bytes());
        if self.fs.rename(ROOT, old, ROOT, new, how).is_ok() {
            let white = match how {
                RenameMode::Whiteout { .. } => Some(self.fs.lookup(ROOT, old).unwrap().ino),
                _ => None,
            };
            self.model.rename((from, to), how, white);
        }
    }

    /// Moves an inode out of the directory and back under the same or another name.
    fn away(&mut self, from: &str, to: &str) {
        let other = self.fs.mkdir(ROOT, b"other", 0o755, OWNER).unwrap().ino;
        self.model.add("other", other);
        let (old, new) = (from.as_bytes(), to.as_bytes());
        let how = RenameMode::NoReplace;
        if self.fs.rename(ROOT, old, other, b"x", how).is_ok() {
            let place = self.model.place(from).unwrap();
            let ino = self.model.entries.remove(&place).unwrap().1;
            match self.fs.rename(other, b"x", ROOT, new, how) {
                Ok(()) => self.model.add(to, ino),
                Err(_) => self.fs.unlink(other, b"x").unwrap(),
            }
        }
        self.fs.rmdir(ROOT, b"other").unwrap();
        let place = self.model.place("other").unwrap();
        self.model.entries.remove(&place);
    }

    fn step(&mut self, (what, a, b): (u8, u8, u8)) {
        let (from, to) = (format!("{a}"), format!("{b}"));
        match what {
            0..8 => {
                if let Ok(made) = self.fs.mknod(ROOT, from.as_bytes(), 0o100_600, 0, OWNER) {
                    self.model.add(&from, made.ino);
                    self.fs.forget(made.ino, 1);
                }
            }
            8..11 => {
                if self.fs.unlink(ROOT, from.as_bytes()).is_ok() {
                    let place = self.model.place(&from).unwrap();
                    self.model.entries.remove(&place);
                }
            }
            11..20 => self.rename(&from, &to, RenameMode::NoReplace),
            20..24 => self.rename(&from, &to, RenameMode::Replace),
            24..26 => self.rename(&from, &to, RenameMode::Exchange),
            26 => {
                let (owner, replace) = (OWNER, b % 2 == 0);
                self.rename(&from, &to, RenameMode::Whiteout { owner, replace });
            }
            27 => self.away(&from, &to),
            28 => {
                if let Some(place) = self.model.place(&from) {
                    let ino = self.model.ino(place);
                    if self.fs.link(ino, ROOT, to.as_bytes()).is_ok() {
                        self.model.add(&to, ino);
                        self.fs.forget(ino, 1);
                    }
                }
            }
            29 => self.fs.merge().unwrap(),
            30 => self.fs.sync().unwrap(),
            31..34 => self.begin(),
            34..36 => self.go_back(a, b),
            _ => self.go_on(a, 1 + usize::from(b % 5)),
        }
        let here = &self.model.entries;
        for begun in &mut self.begun {
            begun.stay.retain(|place| here.contains_key(place));
        }
    }

    fn begin(&mut self) {
        let (_, parent, cookie) = some(&self.fs, 0, 2)[1];
        assert_eq!(parent, ROOT);
        self.begun.push(Begun {
            cookie,
            at: 0,
            end: self.model.next,
            delivered: Some(Vec::new()),
            stay: self.model.entries.keys().copied().collect(),
            points: vec![(cookie, 0)],
        });
    }

    fn go_back(&mut self, which: u8, to: u8) {
        let len = self.begun.len().max(1);
        if let Some(begun) = self.begun.get_mut(usize::from(which) % len) {
            let (cookie, at) = begun.points[usize::from(to) % begun.points.len()];
            (begun.cookie, begun.at, begun.delivered) = (cookie, at, None);
        }
    }

    fn go_on(&mut self, which: u8, most: usize) {
        let len = self.begun.len().max(1);
        if let Some(begun) = self.begun.get_mut(usize::from(which) % len) {
            begun.go_on(&self.fs, &self.model, most);
        }
    }

    /// Finishes all listings: an entry present from start to end must be listed exactly once.
    fn finish(mut self) {
        for mut begun in std::mem::take(&mut self.begun) {
            while begun.go_on(&self.fs, &self.model, 7) {}
            let Some(delivered) = begun.delivered else {
                continue;
            };
            for place in begun.stay {
                let times = delivered.iter().filter(|d| **d == place).count();
                assert_eq!(times, 1, "{:?}", self.model.entries[&place]);
            }
        }
    }
}

impl Begun {
    /// Lists up to `most` further entries, which must match the model; returns whether there were
    /// any.
    fn go_on(&mut self, fs: &FileSystem, model: &Model, most: usize) -> bool {
        let found = some(fs, self.cookie, most);
        let places = model.entries.range(self.at + 1..self.end.max(self.at + 1));
        let expected: Vec<_> = places.take(most).collect();
        let listed: Vec<_> = found.iter().map(|e| (&e.0, e.1)).collect();
        let modeled: Vec<_> = expected.iter().map(|(_, e)| (&e.0, e.1)).collect();
        assert_eq!(listed, modeled);
        for ((_, _, cookie), (place, _)) in found.iter().zip(expected) {
            (self.cookie, self.at) = (*cookie, *place);
            self.points.push((*cookie, *place));
            self.delivered.iter_mut().for_each(|d| d.push(*place));
        }
        !found.is_empty()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(size(48, 192)))]

    /// Contract: posix.listing
    #[test]
    fn listings_during_changes_match_model(
        pressure in prop_oneof![
            Just(None),
            Just(Some(Pressure::steps(0, 2))),
            Just(Some(Pressure::parts(0, 2))),
        ],
        steps in proptest::collection::vec((0..48_u8, 0..12_u8, 0..12_u8), 1..150),
    ) {
        let mut listed = Listed::new(Options { pressure, ..Options::default() });
        listed.model.next = 1;
        steps.into_iter().for_each(|step| listed.step(step));
        listed.finish();
    }
}

#[test]
fn renamed_entry_is_listed_under_one_name() {
    for merged in [false, true] {
        let device = fresh();
        let mut fs = open(device.clone());
        (0..10).for_each(|n| {
            create(&fs, &format!("{n}"));
        });
        if merged {
            fs.close().unwrap();
            fs = open(device);
        }
        let cookie = some(&fs, 0, 6)[5].2;
        for (old, new) in [
            ("1", "behind"),
            ("8", "ahead"),
            ("ahead", "again"),
            ("2", "8"),
        ] {
            let (old, new) = (old.as_bytes(), new.as_bytes());
            fs.rename(ROOT, old, ROOT, new, RenameMode::Replace)
                .unwrap();
        }
        assert_eq!(rest(&fs, cookie, || ()), ["4", "5", "6", "7", "again", "9"]);
        let expected = ["0", "behind", "8", "3", "4", "5", "6", "7", "again", "9"];
        assert_eq!(all(&fs)[2..], expected, "merged: {merged}");
    }
}
