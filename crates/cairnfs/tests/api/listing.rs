//! Listings of directories that change meanwhile: they end, and names that stay come exactly once.

use std::collections::{BTreeMap, HashMap};

use cairnfs::fs::FileSystem;
use cairnfs::{DirEntry, FileKind, RenameMode, Volume};

use super::engine::{OWNER, ROOT, create, fresh, open};
use super::volume;

/// Entries that a listing may deliver before it is taken for endless.
const ENOUGH: usize = 5000;

fn make(v: &Volume, path: impl AsRef<std::path::Path>) {
    let mode = FileKind::File.mode_bits() | 0o600;
    v.mknod(path, mode, 0).unwrap();
}

/// Up to `most` entries behind a cookie, with theirs; "." and ".." among them.
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

/// The names behind a cookie, read a few at a time; `between` runs between two calls.
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

/// Lists a directory of 1000 files and does something with each entry.
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
fn renaming_each_entry_that_is_listed_ends() {
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
fn making_an_entry_for_each_that_is_listed_ends() {
    let v = volume();
    with_each_listed(&v, |n, entry| {
        let name = entry.file_name();
        make(&v, format!("d/new {n} {}", name.display()));
    });
    assert_eq!(v.read_dir("d").unwrap().count(), 2000);
}

#[test]
fn a_listing_begun_at_any_time_has_what_was_there() {
    let fs = open(fresh());
    let (mut expected, mut begun) = (vec![".".to_owned(), "..".to_owned()], Vec::new());
    for n in 0..300 {
        create(&fs, &format!("{n}"));
        expected.push(format!("{n}"));
        // So many that each has an end of its own: the oldest are forgotten, and have more.
        begun.push((some(&fs, 0, 2)[1].2, expected.len()));
    }
    for (n, (cookie, len)) in begun.into_iter().enumerate() {
        let names = rest(&fs, cookie, || ());
        assert!(n < 100 || names.len() + 2 == len, "{n}: {}", names.len());
        assert_eq!(names[..len - 2], expected[2..len]);
    }
}

#[test]
fn a_place_told_before_leads_back() {
    let fs = open(fresh());
    (0..100).for_each(|n| {
        create(&fs, &format!("{n}"));
    });
    let told = some(&fs, 0, 200);
    for (n, (_, _, cookie)) in told.iter().enumerate() {
        create(&fs, &format!("new {n}"));
        let expected: Vec<_> = told[n + 1..].iter().map(|e| e.0.clone()).collect();
        assert_eq!(rest(&fs, *cookie, || ()), expected, "behind {n}");
        assert_eq!(
            some(&fs, *cookie, 1).first().map(|e| e.2),
            told.get(n + 1).map(|e| e.2)
        );
        assert!(i64::try_from(*cookie).unwrap() > 0);
    }
    assert_eq!(all(&fs).len(), 204, "from the start it has all");
}

/// What a listing has, where the first of two files is renamed to the second's name, while it is
/// at the third entry; in the directory, or out of another.
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
fn a_name_that_gets_another_inode_keeps_its_place() {
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
fn a_name_that_is_replaced_again_and_again_is_listed_once() {
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
fn a_replaced_name_survives_in_its_place() {
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
        // As a kill leaves it, or closed.
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
fn several_listings_of_a_large_directory_while_it_changes() {
    const MANY: usize = 100_000;
    let fs = open(fresh());
    let name = |n: usize| format!("{n:06}");
    (0..MANY).for_each(|n| {
        create(&fs, &name(n));
    });
    let mut seen: [HashMap<String, u32>; 3] = Default::default();
    let mut cookies = [0; 3];
    let mut turn = 0;
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
            // Some go, some come, some change their names, and some names their files.
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
            if turn % 100 == 0 {
                fs.sync().unwrap();
            }
        }
    }
    for seen in seen {
        for n in (0..MANY).filter(|n| n % 10 != 0) {
            assert_eq!(seen.get(&name(n)), Some(&1), "{n}");
        }
        assert!(seen.values().all(|times| *times == 1));
    }
}
