//! Directories that change while programs list them, on a mount and on a tmpfs. Two tests run on
//! the mount only: a tmpfs may list a name twice if its inode changes, or a file twice if its
//! name changes.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::Path;

use cairnfs::{FileKind, Volume};
use cairnfs_tier::size;
use rustix::fs::{CWD, Dir, RenameFlags, renameat_with};

use crate::place::{Place, able, shell};

/// More entries than a few getdents calls return.
const MANY: usize = 2000;

fn name(n: usize) -> String {
    format!("entry {n:04} with a name of some length")
}

/// A new directory with [`MANY`] files.
fn filled(at: &Path, called: &str) -> std::path::PathBuf {
    let dir = at.join(called);
    fs::create_dir(&dir).unwrap();
    (0..MANY).for_each(|n| drop(File::create(dir.join(name(n))).unwrap()));
    dir
}

/// Up to `most` entries of an open directory from its current position: names and the offsets
/// behind them.
fn next(dir: &mut Dir, most: usize) -> Vec<(String, i64)> {
    let entries = dir.by_ref().take(most).map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        (name, entry.offset())
    });
    entries.collect()
}

fn open(dir: &Path) -> Dir {
    Dir::new(File::open(dir).unwrap()).unwrap()
}

fn rename_listed_entries(at: &Path) {
    let dir = filled(at, "renamed");
    let mut listed = 0;
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let mut to = path.clone().into_os_string();
        to.push(".b");
        fs::rename(path, to).unwrap();
        listed += 1;
        assert!(listed <= MANY, "{at:?}: the listing does not end");
    }
    assert_eq!(listed, MANY, "{at:?}");
    assert!((0..MANY).all(|n| dir.join(name(n) + ".b").exists()));
}

fn create_while_listing(at: &Path) {
    let dir = filled(at, "made");
    let mut listed = 0;
    for entry in fs::read_dir(&dir).unwrap() {
        entry.unwrap();
        File::create(dir.join(format!("new {listed}"))).unwrap();
        listed += 1;
        assert!(listed <= 2 * MANY, "{at:?}: the listing does not end");
    }
    assert!(listed >= MANY, "{at:?}");
}

/// Three concurrent listings while other names are created, removed and get other inodes.
fn unchanged_names_are_listed_once(at: &Path) {
    let dir = filled(at, "stay");
    let mut listings = [open(&dir), open(&dir), open(&dir)];
    let mut seen: [HashMap<String, u32>; 3] = Default::default();
    let mut turn = 0;
    for _ in 0..=MANY / 10 {
        for (listing, seen) in listings.iter_mut().zip(&mut seen) {
            for (name, _) in next(listing, 10 + turn % 7) {
                *seen.entry(name).or_default() += 1;
            }
            turn += 1;
            let n = turn * 10 % MANY;
            let _ = fs::remove_file(dir.join(name(n)));
            File::create(dir.join("new")).unwrap();
            fs::rename(dir.join("new"), dir.join(name(n + 1))).unwrap();
            let (a, b) = (dir.join(name(n + 2)), dir.join(name(MANY - n - 7)));
            renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
            File::create(dir.join(format!("later {turn}"))).unwrap();
        }
    }
    for (listing, seen) in listings.iter_mut().zip(&seen) {
        assert_eq!(next(listing, 1), [], "{at:?}: a listing has more");
        let stay = (0..MANY).filter(|n| n % 10 != 0);
        for n in stay {
            assert_eq!(seen.get(&name(n)), Some(&1), "{at:?}: {n}");
        }
    }
}

/// Three concurrent listings while every file is renamed, some of them repeatedly.
fn renamed_files_are_listed_once(at: &Path) {
    let dir = filled(at, "one name");
    let mut listings = [open(&dir), open(&dir), open(&dir)];
    let mut seen = [[0; MANY]; 3];
    let mut called: Vec<String> = (0..MANY).map(name).collect();
    for turn in 0..MANY {
        for (n, step) in [(turn, 1), (MANY - 1 - turn, 2), (turn * 7 % MANY, 3)] {
            let new = format!("{step} {turn} {}", name(n));
            fs::rename(dir.join(&called[n]), dir.join(&new)).unwrap();
            called[n] = new;
        }
        for (listing, seen) in listings.iter_mut().zip(&mut seen) {
            for (name, _) in next(listing, 2 + turn % 3) {
                if let Some((_, rest)) = name.split_once("entry ") {
                    seen[rest[..4].parse::<usize>().unwrap()] += 1;
                }
            }
        }
    }
    for seen in seen {
        let wrong = seen.iter().position(|times| *times != 1);
        assert_eq!(wrong, None, "{at:?}: {:?}", wrong.map(|n| seen[n]));
    }
}

fn seek_returns_to_listed_offsets(at: &Path) {
    let dir = filled(at, "places");
    let mut listing = open(&dir);
    let entries = next(&mut listing, usize::MAX);
    for (n, (_, place)) in entries.iter().enumerate().step_by(97) {
        File::create(dir.join(format!("later {n}"))).unwrap();
        listing.seek(*place).unwrap();
        let names = next(&mut listing, usize::MAX).into_iter().map(|e| e.0);
        let names: HashSet<String> = names.filter(|n| !n.starts_with("later")).collect();
        let expected = entries[n + 1..].iter().map(|e| e.0.clone()).collect();
        assert_eq!(names, expected, "{at:?}: behind {n}");
    }
    listing.rewind();
    let all = next(&mut listing, usize::MAX).len();
    assert_eq!(all, entries.len() + entries.len().div_ceil(97), "{at:?}");
}

fn check_common_behaviour(at: &Path) {
    rename_listed_entries(at);
    create_while_listing(at);
    seek_returns_to_listed_offsets(at);
}

/// Contract: posix.listing
#[test]
fn directory_listing_is_stable_under_changes() {
    if !able(&["mount", "umount"]) {
        return;
    }
    let place = Place::mounted("256M", "");
    check_common_behaviour(&place.dir());
    unchanged_names_are_listed_once(&place.dir());
    renamed_files_are_listed_once(&place.dir());
    let beside = place.beside("tmpfs");
    fs::create_dir(&beside).unwrap();
    shell(&beside, "mount -t tmpfs none .");
    let compared = std::panic::catch_unwind(|| check_common_behaviour(&beside));
    shell(&place.beside("."), "umount tmpfs");
    compared.unwrap();
    place.finish();
}

/// Contract: posix.listing
#[test]
fn huge_directory_listing_is_stable_under_removals() {
    let huge: usize = size(50_000, 200_000);
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("1G");
    let volume = Volume::open(place.volume()).unwrap();
    volume.create_dir("huge").unwrap();
    for n in 0..huge {
        let mode = FileKind::File.mode_bits() | 0o600;
        volume.mknod(format!("huge/{n}"), mode, 0).unwrap();
    }
    volume.close().unwrap();
    place.mount("");
    let dir = place.dir().join("huge");
    let (mut first, mut second) = (open(&dir), open(&dir));
    let mut seen = [HashSet::new(), HashSet::new()];
    for turn in 0..=huge / 1000 {
        for (listing, (seen, most)) in [&mut first, &mut second]
            .into_iter()
            .zip(seen.iter_mut().zip([1500, 1001]))
        {
            for (name, _) in next(listing, most) {
                assert!(seen.insert(name.clone()), "{name} comes twice");
            }
        }
        // Removes names before, within and behind the current position of the listings.
        for n in 0..20 {
            let gone = turn * 20 + n * (huge / 20);
            let _ = fs::remove_file(dir.join(format!("{}", gone % huge)));
        }
        File::create(dir.join(format!("later {turn}"))).unwrap();
    }
    let left: HashSet<_> = next(&mut open(&dir), usize::MAX).into_iter().collect();
    assert!(
        left.len() < huge - huge / 1000 * 15,
        "{} are left",
        left.len()
    );
    let stay = || left.iter().filter(|(name, _)| !name.starts_with("later"));
    for (listing, seen) in [first, second].iter_mut().zip(seen) {
        assert_eq!(next(listing, 1), []);
        assert!(stay().all(|(name, _)| seen.contains(name)));
        assert!(!seen.iter().any(|name| name.starts_with("later")));
    }
    place.finish();
}
