//! Files with unreadable blocks: readable data is saved, unreadable ranges are named.

use std::fs;
use std::path::Path;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::types::Creds;

use crate::place::Place;

const BLOCK: usize = 4096;
/// Damaged blocks: a single one, two adjacent ones, and the last one, which is partial.
const ROTTEN: [usize; 4] = [7, 10, 11, 400];
const LEN: usize = 400 * BLOCK + 1000;

fn contents() -> Vec<u8> {
    let blocks = (0..=400).map(|n| format!("block {n:04} of a file that rots;"));
    let full = blocks.flat_map(|text| text.into_bytes().into_iter().cycle().take(BLOCK));
    full.take(LEN).collect()
}

/// The contents without the damaged blocks.
fn saved() -> Vec<u8> {
    let mut left = contents();
    for block in ROTTEN {
        let end = LEN.min((block + 1) * BLOCK);
        left[block * BLOCK..end].fill(0);
    }
    left
}

fn damaged() -> Place {
    let p = Place::with_volume();
    fs::create_dir_all(p.path("in/dir")).unwrap();
    fs::write(p.path("in/dir/file"), contents()).unwrap();
    fs::write(p.path("in/dir/other"), b"whole").unwrap();
    p.ok(&["import", "-q", "in", "v.img"]);
    for block in ROTTEN {
        assert_eq!(p.rot("v.img", &contents()[block * BLOCK..][..16]), 1);
    }
    p
}

/// Runs a command, which must exit with code 1 and report every unreadable range by the file's
/// path. Returns its standard output.
fn assert_ranges_reported(p: &Place, args: &[&str]) -> Vec<u8> {
    let out = p.run(args);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{args:?}: {text}");
    for range in ["28672 to 32767", "40960 to 49151", "1638400 to 1639399"] {
        let line = format!("v.img:/dir/file: bytes {range} could not be read");
        assert!(text.contains(&line), "{args:?}: {text}");
    }
    assert_eq!(text.matches("could not be read").count(), 3, "{text}");
    out.stdout
}

fn assert_saved(path: &Path) {
    assert!(fs::read(path).unwrap() == saved(), "{}", path.display());
}

#[test]
fn export_saves_readable_blocks() {
    let p = damaged();
    assert_ranges_reported(&p, &["export", "v.img", "out"]);
    assert_saved(&p.path("out/dir/file"));
    assert_eq!(fs::read(p.path("out/dir/other")).unwrap(), b"whole");

    let json = assert_ranges_reported(&p, &["export", "--force", "--json", "v.img", "out"]);
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["failed"], 1);
    assert_eq!(json["files"], 1);
    let ranges = json["unreadable"].as_array().unwrap();
    assert_eq!(ranges.len(), 3);
    assert_eq!(ranges[1]["path"], "v.img:/dir/file");
    assert_eq!(
        (&ranges[1]["offset"], &ranges[1]["length"]),
        (&40960.into(), &8192.into())
    );
    assert!(ranges[1]["why"].as_str().unwrap().contains("checksum"));
}

#[test]
fn tar_export_saves_readable_blocks() {
    let p = damaged();
    assert_ranges_reported(&p, &["export", "v.img", "out.tar"]);
    p.ok(&[
        "import", "-q", "--create", "--size", "64M", "out.tar", "w.img",
    ]);
    p.ok(&["export", "-q", "w.img", "out"]);
    assert_saved(&p.path("out/dir/file"));
    assert_eq!(fs::read(p.path("out/dir/other")).unwrap(), b"whole");
}

#[test]
fn cp_saves_readable_blocks() {
    let p = damaged();
    assert_ranges_reported(&p, &["cp", "v.img:/dir/file", "v.img:/dir/other", "."]);
    assert_saved(&p.path("file"));
    assert_eq!(fs::read(p.path("other")).unwrap(), b"whole");
    assert_ranges_reported(&p, &["cp", "v.img:/dir/file", "v.img:/copy"]);
    p.ok(&["cp", "v.img:/copy", "copy"]);
    assert_saved(&p.path("copy"));
    let bytes = assert_ranges_reported(&p, &["cat", "v.img:/dir/file", "v.img:/dir/other"]);
    assert!(bytes == [&saved()[..], b"whole"].concat());
}

#[test]
fn check_names_paths_of_damaged_files() {
    let p = damaged();
    let out = p.run(&["check", "--data", "v.img"]);
    assert_eq!(out.status.code(), Some(4));
    let text = String::from_utf8_lossy(&out.stdout);
    let named = text.lines().filter(|line| line.contains("/dir/file"));
    assert_eq!(named.count(), ROTTEN.len(), "{text}");
    let json = p.run(&["check", "--data", "--json", "v.img"]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let findings = json["findings"].as_array().unwrap();
    assert_eq!(findings.len(), ROTTEN.len());
    assert!(findings.iter().all(|f| f["path"] == "/dir/file"), "{json}");
}

/// The bytes of a volume in use after a power failure that follows a sync.
fn killed_after_a_sync(p: &Place) -> Vec<u8> {
    let options = Options {
        workers: false,
        ..Options::default()
    };
    let volume = FileSystem::open(&p.path("v.img"), &options).unwrap();
    volume.mkdir(1, b"new", 0o755, Creds::default()).unwrap();
    volume.sync().unwrap();
    fs::read(p.path("v.img")).unwrap()
}

/// The newest superblock is lost. Only the changes in its log and from its merge are lost.
#[test]
fn export_without_recovery_needs_only_older_superblock() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    fs::write(p.path("in/old"), b"merged long ago").unwrap();
    p.ok(&["import", "-q", "in", "v.img"]);
    p.ok(&["mkdir", "v.img:/merged"]);
    let sound = killed_after_a_sync(&p);
    let newest = [0, 8].into_iter().find(|slot| {
        let mut bytes = sound.clone();
        bytes[slot * BLOCK + 100] ^= 1;
        fs::write(p.path("v.img"), bytes).unwrap();
        p.run(&["check", "v.img"]).status.code() == Some(4)
    });
    assert!(newest.is_some(), "no slot is missed");

    let out = p.run(&["check", "v.img"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("superblock-lost"), "{text}");
    assert!(
        text.contains("cairnfs export --no-recovery v.img DIR"),
        "{text}"
    );
    let out = p.run(&["export", "v.img", "out"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("cairnfs export --no-recovery"), "{text}");
    p.ok(&["export", "-q", "--no-recovery", "v.img", "out"]);
    assert_eq!(fs::read(p.path("out/old")).unwrap(), b"merged long ago");
}

#[test]
fn check_of_a_cut_off_volume_advises_only_what_works() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    fs::write(p.path("in/f"), "contents").unwrap();
    p.ok(&["import", "-q", "in", "v.img"]);
    let whole = fs::read(p.path("v.img")).unwrap();
    let mut advised = [0; 2];
    for len in [
        100,
        4096,
        8192,
        1 << 20,
        4 << 20,
        12 << 20,
        40 << 20,
        63 << 20,
    ] {
        fs::write(p.path("v.img"), &whole[..len]).unwrap();
        let out = p.run(&["check", "v.img"]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Save what can be read with: cairnfs "));
        let Some(line) = line else {
            let is_told =
                out.status.code() == Some(8) || text.contains("Nothing of it can be opened");
            assert!(is_told, "{len}: {text}");
            advised[0] += 1;
            continue;
        };
        let out = p.shell(
            &format!("\"$cairnfs\" {}", line.replace("DIR", "out")),
            |_| (),
        );
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(p.path("out").is_dir(), "{len}: {line}: {said}");
        fs::remove_dir_all(p.path("out")).unwrap();
        advised[1] += 1;
    }
    assert!(advised.iter().all(|count| *count > 0), "{advised:?}");
}
