//! Archives in which a later member has the name of an earlier one, and such in which a member has several
//! names, are imported as GNU tar extracts them.
//!
//! `CAIRNFS_TAR_ROUNDS` is the number of random archives (150), `CAIRNFS_TAR_SEED` varies them.
//!
//! Contract: copies

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use cairnfs_tier::size_from;

use super::place::Place;

/// The time of the first member; what is made without a member has a later one.
const EPOCH: i64 = 1_000_000_000;
const RECENT: i64 = 1_500_000_000;

const NAMES: [&str; 7] = ["a", "b", "a/x", "a/y", "b/x", "c", "c/x/z"];

/// The seed of the archives, unless another is asked for.
const SEED: u64 = 0x7461_7221;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

fn put(bytes: &mut Vec<u8>, kind: u8, name: &str, link: &str, data: &[u8], turn: i64) {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(data.len() as u64);
    header.set_mode([0o755, 0o640, 0o711][turn as usize % 3]);
    header.set_uid(rustix::process::geteuid().as_raw().into());
    header.set_gid(rustix::process::getegid().as_raw().into());
    header.set_mtime((EPOCH + turn) as u64);
    header.set_cksum();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
}

/// A record of an extended header.
fn record(key: &str, value: &str) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let len = (rest + 1..).find(|len| rest + len.to_string().len() == *len);
    format!("{} {key}={value}\n", len.unwrap()).into_bytes()
}

/// A random archive of few names.
fn archive(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut files = Vec::new();
    let members = 3 + random.below(10) as i64;
    if random.below(8) == 0 {
        put(&mut bytes, b'g', "g", "", &record("path", "c"), 0);
    }
    for turn in 0..members {
        let mut kind = random.of(b"5500012216");
        let name = random.of(&NAMES);
        match kind {
            b'0' => files.push(name),
            b'1' if files.is_empty() => kind = b'6',
            _ => {}
        }
        let link = match kind {
            b'1' => random.of(&files),
            b'2' => random.of(&["nowhere", "no/where"]),
            _ => "",
        };
        let data = format!("{turn}{}", " ".repeat(random.below(700)));
        let data = if kind == b'0' { data.as_bytes() } else { b"" };
        // The names that count are in any of three places, and others in those that do not.
        let mut before = Vec::new();
        let (mut header_name, mut header_link) = (name, link);
        let place = random.below(4);
        if place & 1 != 0 {
            before.push((b'L', format!("{name}\0").into_bytes()));
            before.push((b'K', format!("{link}\0").into_bytes()));
            (header_name, header_link) = ("wrong", "wrong");
        }
        if place & 2 != 0 {
            let records = [record("path", name), record("linkpath", link)];
            let records = if link.is_empty() {
                &records[..1]
            } else {
                &records
            };
            before.push((b'x', records.concat()));
            for (kind, data) in &mut before {
                if b"LK".contains(kind) {
                    *data = b"other\0".to_vec();
                }
            }
            (header_name, header_link) = ("wrong", "wrong");
        }
        if link.is_empty() {
            header_link = "";
            before.retain(|(kind, _)| *kind != b'K');
        }
        if random.below(2) == 0 {
            before.reverse();
        }
        for (kind, data) in before {
            put(&mut bytes, kind, "long", "", &data, turn);
        }
        put(&mut bytes, kind, header_name, header_link, data, turn);
    }
    bytes.resize((bytes.len() + 1024).next_multiple_of(10_240), 0);
    bytes
}

/// What an entry is, and which name of it comes first.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    kind: &'static str,
    contents: Vec<u8>,
    mode: u32,
    mtime: Option<i64>,
    first: String,
}

fn tree(root: &Path) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    let mut firsts = BTreeMap::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(root.join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let name = if dir.is_empty() {
                name
            } else {
                format!("{dir}/{name}")
            };
            let meta = entry.metadata().unwrap();
            let kind = meta.file_type();
            let (kind, contents) = match () {
                () if kind.is_dir() => ("directory", Vec::new()),
                () if kind.is_file() => ("file", fs::read(entry.path()).unwrap()),
                () if kind.is_symlink() => {
                    let target = fs::read_link(entry.path()).unwrap();
                    ("link", target.into_os_string().into_encoded_bytes())
                }
                () if kind.is_fifo() => ("fifo", Vec::new()),
                () => ("other", Vec::new()),
            };
            if kind == "directory" {
                dirs.push(name.clone());
            }
            let is_told = meta.mtime() < RECENT;
            found.insert(
                name.clone(),
                (
                    meta.ino(),
                    Entry {
                        kind,
                        contents,
                        mode: meta.mode() & 0o7777,
                        mtime: is_told.then(|| meta.mtime()),
                        first: String::new(),
                    },
                ),
            );
        }
    }
    let of = |(name, (ino, mut entry)): (String, (u64, Entry))| {
        let first = firsts.entry(ino).or_insert_with(|| name.clone());
        entry.first.clone_from(first);
        (name, entry)
    };
    found.into_iter().map(of).collect()
}

/// Runs GNU tar; returns whether it had no failure, and what it says. `None` where it is not installed.
fn gnu_tar(p: &Place, args: &[&str]) -> Option<(bool, String)> {
    let version = Command::new("tar").arg("--version").output();
    if !version.is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains("GNU tar")) {
        eprintln!("skipped: needs GNU tar");
        return None;
    }
    let out = Command::new("tar")
        .current_dir(p.path(""))
        .args(args)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    Some((out.status.success(), said))
}

#[test]
fn random_archives_are_imported_as_gnu_tar_extracts_them() {
    let seed = size_from("CAIRNFS_TAR_SEED", SEED, SEED);
    let mut random = Random(seed | 1);
    let p = Place::with_volume();
    let mut done = Vec::new();
    for round in 0..size_from("CAIRNFS_TAR_ROUNDS", 40, 150) {
        let (name, gnu) = (format!("{round}.tar"), format!("gnu/{round}"));
        fs::write(p.path(&name), archive(&mut random)).unwrap();
        fs::create_dir_all(p.path(&gnu)).unwrap();
        let Some((extracted, gnu_said)) = gnu_tar(&p, &["-xpf", &name, "-C", &gnu]) else {
            return;
        };
        let out = p.run(&["import", "-q", &name, &format!("v.img:/{round}")]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!said.contains("panicked"), "{said}");
        // Before it finds that a hard link cannot be made, GNU tar has removed what had the name, or made its
        // directory.
        if gnu_said.contains("Cannot hard link") {
            continue;
        }
        done.push((round, extracted, out.status.success(), said));
    }
    println!("{} archives of seed {seed:#x} are compared", done.len());
    p.ok(&["check", "--data", "v.img"]);
    p.ok(&["export", "-q", "v.img", "ours"]);
    for (round, extracted, imported, said) in done {
        let of = |all: &str| tree(&p.path(all).join(round.to_string()));
        let (mut gnu, ours) = (of("gnu"), of("ours"));
        // GNU tar does not set the time of each directory that a later member makes something in.
        for (name, entry) in &ours {
            let other = gnu.get_mut(name).filter(|_| entry.kind == "directory");
            if let Some(other) = other.filter(|other| other.mtime.is_none()) {
                other.mtime = entry.mtime;
            }
        }
        let mut listed = Command::new("tar");
        let listed = listed.arg("-tvf");
        let listed = listed
            .arg(p.path(&format!("{round}.tar")))
            .output()
            .unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let what = format!("archive {round} of seed {seed:#x}: {said}{listed}");
        assert_eq!(ours, gnu, "{what}");
        assert_eq!(imported, extracted, "{what}");
    }
}

#[test]
fn appended_archives_are_imported_as_gnu_tar_extracts_them() {
    let p = Place::with_volume();
    let has = |args: &[&str]| gnu_tar(&p, args).is_some_and(|(done, _)| done);
    for format in ["gnu", "pax", "ustar"] {
        let (name, option) = (format!("{format}.tar"), format!("--format={format}"));
        let long = "n".repeat(if format == "ustar" { 99 } else { 120 });
        let at = |name: &str| p.path("in").join(name);
        let make = |how: &str| has(&[how, &name, &option, "-C", "in", "."]);
        fs::create_dir_all(at("d")).unwrap();
        fs::create_dir_all(at("full")).unwrap();
        fs::write(at("full/entry"), "entry").unwrap();
        fs::write(at("f"), "f").unwrap();
        fs::write(at(&long), "long").unwrap();
        std::os::unix::fs::symlink("nowhere", at("l")).unwrap();
        if !make("-cf") {
            return;
        }
        // A file has become a directory, and the other way round, twice.
        for turn in 0..2 {
            for name in ["d", "f", &long, "l"].map(at) {
                let is_dir = name.symlink_metadata().unwrap().is_dir();
                if is_dir {
                    fs::remove_dir_all(&name).unwrap()
                } else {
                    fs::remove_file(&name).unwrap()
                }
                if is_dir {
                    fs::write(&name, format!("{turn}")).unwrap()
                } else {
                    fs::create_dir(&name).unwrap()
                }
            }
            assert!(make("-rf"));
        }
        fs::remove_dir_all(p.path("in")).unwrap();
        let gnu = p.path("gnu");
        fs::create_dir(&gnu).unwrap();
        assert!(has(&["-xpf", &name, "-C", "gnu"]));
        p.ok(&["import", "-q", &name, &format!("v.img:/{format}")]);
        p.ok(&["export", "-q", &format!("v.img:/{format}"), "ours"]);
        let kinds = |root: &OsStr| tree(&p.path("").join(root));
        assert_eq!(kinds("ours".as_ref()), kinds("gnu".as_ref()), "{format}");
        for dir in ["gnu", "ours"] {
            fs::remove_dir_all(p.path(dir)).unwrap();
        }
    }
    // A directory that has entries stays, as with GNU tar.
    fs::create_dir_all(p.path("in/full")).unwrap();
    fs::write(p.path("in/full/entry"), "entry").unwrap();
    assert!(has(&["-cf", "a.tar", "-C", "in", "full"]));
    fs::remove_dir_all(p.path("in/full")).unwrap();
    fs::write(p.path("in/full"), "file").unwrap();
    assert!(has(&["-rf", "a.tar", "-C", "in", "full"]));
    p.fails(
        &["import", "-q", "a.tar", "v.img:/full"],
        1,
        "directory with entries",
    );
    assert_eq!(p.ok(&["cat", "v.img:/full/full/entry"]), "entry");
}
