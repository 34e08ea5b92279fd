//! Backups of which frames rot: each file of a restored moment is right, or told with its path and the ranges
//! that are lost, or the whole is refused with the way out; what is lost is stored again from the volume.
//!
//! `CAIRNFS_DAMAGE_SEEDS` and `CAIRNFS_DAMAGE_FROM` are those of the test of damaged volumes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Output;

use cairnfs::{Volume, VolumeOptions};
use cairnfs_mutate::random::Random;
use serde_json::Value;

use crate::damaged::seeds;
use crate::place::Place;

const BLOCK: usize = 4096;
const SEEDS: [u64; 2] = [50, 150];

/// The files of the volume.
type Files = BTreeMap<String, Vec<u8>>;

fn bytes(lot: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    lot.fill(&mut bytes);
    bytes
}

/// A volume with small and large files in directories and a snapshot, and its backup with two moments in `b`.
fn with_backup() -> (Place, Files) {
    let (p, mut lot, mut files) = (Place::with_volume(), Random::new(1), Files::new());
    for round in 0..2 {
        let volume = Volume::open(p.path("v.img")).unwrap();
        for dir in 0..6 {
            volume.create_dir_all(format!("d{dir}/below")).unwrap();
            for number in 0..8 {
                let path = format!("d{dir}/below/f{number}");
                if round == 1 && (dir + number) % 3 > 0 {
                    continue;
                }
                let len = [lot.below(900), lot.below(20_000), lot.below(150_000)][number % 3];
                let bytes = bytes(&mut lot, len);
                volume.write(&path, &bytes).unwrap();
                files.insert(path, bytes);
            }
        }
        if round == 0 {
            volume.snapshot("kept").unwrap();
        }
        volume.close().unwrap();
        p.ok(&["backup", "-q", "v.img", "b"]);
    }
    (p, files)
}

fn layers(p: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(p.path("b/layers")).unwrap();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

fn errors(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Compares the files of an image with what they were. What is not right must be told: its path, or that of
/// a directory above it, and of contents the range. Returns whether all were right.
fn is_right_or_told(p: &Place, image: &str, files: &Files, out: &Output) -> bool {
    let told: Value = serde_json::from_slice(&out.stdout).unwrap();
    let ranges = told["unreadable"].as_array().unwrap();
    let text = errors(out);
    let opened = VolumeOptions::new().read_only(true).open(p.path(image));
    let volume = opened.unwrap();
    let mut all = true;
    for (path, wanted) in files {
        let shown = format!("{image}:/{path}");
        if volume.read(path).is_ok_and(|found| found == *wanted) {
            continue;
        }
        all = false;
        let of_file = ranges.iter().filter(|range| range["path"] == *shown);
        let lost: Vec<(u64, u64)> = of_file
            .map(|it| {
                (
                    it["offset"].as_u64().unwrap(),
                    it["length"].as_u64().unwrap(),
                )
            })
            .collect();
        if lost.is_empty() {
            let above = shown.match_indices('/').map(|(at, _)| &shown[..at]);
            let mut names = above.chain([shown.as_str()]);
            let is_told = |name: &str| {
                let root = name.trim_end_matches(':');
                text.contains(&format!("{name}: ")) || text.contains(&format!("{root}:/: "))
            };
            assert!(names.any(is_told), "{shown} is not told: {text}");
            continue;
        }
        let file = volume.open_file(path).unwrap();
        for (number, block) in wanted.chunks(BLOCK).enumerate() {
            let at = (number * BLOCK) as u64;
            let is_lost = lost
                .iter()
                .any(|(from, len)| *from <= at && at < from + len);
            let mut found = vec![0; block.len()];
            let read = file.read_exact_at(&mut found, at);
            assert!(
                is_lost || read.is_ok() && found == block,
                "{shown} at {at}: {lost:?}"
            );
        }
    }
    all
}

#[test]
fn each_file_of_a_moment_with_rotten_frames_is_right_or_told_or_all_is_refused() {
    let (p, files) = with_backup();
    let (mut partly, mut refused) = (0, 0);
    let seeds = seeds(SEEDS);
    for seed in seeds.clone() {
        let mut lot = Random::new(1000 + seed);
        let mut rotten = Vec::new();
        for _ in 0..=lot.below(3) {
            let layers = layers(&p);
            let path = layers[lot.below(layers.len())].clone();
            let whole = fs::read(&path).unwrap();
            let mut bytes = whole.clone();
            let at = lot.below(bytes.len());
            bytes[at] ^= 1 << lot.below(8);
            fs::write(&path, bytes).unwrap();
            rotten.push((path, whole));
        }
        let out = p.run(&["restore-from", "--json", "b", "new"]);
        let text = errors(&out);
        match (out.status.code(), p.path("new").exists()) {
            (Some(0), true) => assert!(is_right_or_told(&p, "new", &files, &out), "{seed}"),
            (Some(1), true) => {
                partly += 1;
                assert!(text.contains("could not be read"), "{text}");
                is_right_or_told(&p, "new", &files, &out);
            }
            (code, exists) => {
                refused += 1;
                assert_eq!((code, exists), (Some(1), false), "{text}");
            }
        }
        if out.status.code() == Some(1) {
            for way in ["backup check b", "backup repair b --from VOLUME"] {
                assert!(text.contains(way), "{seed}: {text}");
            }
        }
        let _ = fs::remove_file(p.path("new"));
        for (path, whole) in rotten.into_iter().rev() {
            fs::write(path, whole).unwrap();
        }
    }
    let are_few = seeds.end - seeds.start < SEEDS[0];
    assert!(are_few || partly > 10 && refused > 0, "{partly} {refused}");
}

/// Damages the frame at the beginning of each layer, where superblocks are, or another one.
fn damage(p: &Place, at: usize) {
    for layer in layers(p) {
        let mut bytes = fs::read(&layer).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 4;
        fs::write(&layer, bytes).unwrap();
    }
}

#[test]
fn what_the_store_has_lost_is_stored_again_from_the_volume() {
    for (at, is_changed) in [(20, false), (20, true), (70_000, false), (130_001, true)] {
        let (p, mut files) = with_backup();
        damage(&p, at);
        // It reads no contents, and does not say that they can be read.
        let out = p.run(&["backup", "repair", "b"]);
        let told = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(out.status.code(), Some(3), "{told}");
        let last = told.lines().last().unwrap();
        assert!(
            last.contains("Contents were not checked") && last.contains("cairnfs backup check b"),
            "{told}"
        );
        let report = p.run(&["backup", "check", "--json", "b"]);
        assert_eq!(report.status.code(), Some(4));
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        let damaged = report["damaged_moments"].as_array().unwrap();
        assert!(
            !damaged.is_empty() && damaged[0]["lost"].as_u64() > Some(0),
            "{report}"
        );
        let told = p.run(&["backup", "check", "b"]);
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(
            told.contains("cannot be read") && told.contains("--from VOLUME"),
            "{told}"
        );

        if is_changed {
            let volume = Volume::open(p.path("v.img")).unwrap();
            volume.write("d1/below/f1", "changed").unwrap();
            files.insert("d1/below/f1".into(), b"changed".to_vec());
            volume.close().unwrap();
        }
        let out = p.run(&["backup", "repair", "b", "--from", "v.img"]);
        let told = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(told.contains("Stored again"), "{told}{}", errors(&out));
        let report = p.run(&["backup", "check", "--json", "b"]);
        assert_eq!(out.status.code(), report.status.code(), "{told}");
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        let newest = report["checked_moment"].as_u64();
        let damaged = report["damaged_moments"].as_array().unwrap();
        assert!(
            damaged.iter().all(|it| it["moment"].as_u64() != newest),
            "{report}"
        );
        let restored = p.run(&["restore-from", "--json", "b", "new"]);
        assert!(restored.status.success(), "{}", errors(&restored));
        assert!(is_right_or_told(&p, "new", &files, &restored));
        assert!(p.ok(&["check", "--data", "new"]).contains("clean"));
        // There is nothing more to do, and backups go on.
        let again = p.run(&["backup", "repair", "b", "--from", "v.img"]);
        let told = String::from_utf8_lossy(&again.stdout).into_owned();
        assert!(told.contains("Stored again 0 B"), "{told}");
        let volume = Volume::open(p.path("v.img")).unwrap();
        volume.write("d2/below/f2", "later").unwrap();
        files.insert("d2/below/f2".into(), b"later".to_vec());
        volume.close().unwrap();
        p.ok(&["backup", "v.img", "b"]);
        let restored = p.run(&["restore-from", "--json", "b", "newer"]);
        assert!(restored.status.success(), "{}", errors(&restored));
        assert!(is_right_or_told(&p, "newer", &files, &restored));
        assert!(p.ok(&["check", "--data", "newer"]).contains("clean"));
    }
}

#[test]
fn check_names_the_moments_that_a_damaged_layer_spares_and_the_files_that_it_takes() {
    let (p, _) = with_backup();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume
        .write("g", bytes(&mut Random::new(7), 900_000))
        .unwrap();
    volume.close().unwrap();
    p.ok(&["backup", "-q", "v.img", "b"]);
    let list = p.json(&["backup", "list", "--json", "b"]);
    let numbers = list["moments"].as_array().unwrap();
    let (first, last) = (&numbers[1]["number"], &numbers[2]["number"]);
    // A frame of data of the newest layer, which the moments before do not need.
    let newest = layers(&p).pop().unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&newest, bytes).unwrap();
    let out = p.run(&["backup", "check", "b"]);
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(4));
    assert!(
        told.contains(&format!("to {first} (2 moments): whole")),
        "{told}"
    );
    assert!(
        told.contains(&format!("moment {last}: 256 KiB cannot")),
        "{told}"
    );
    let ranges = errors(&out);
    assert!(
        ranges.contains(":/g: bytes ") && !ranges.contains("below/f"),
        "{ranges}"
    );
    p.ok(&["restore-from", "b", "older", "--at", &first.to_string()]);
}

#[test]
fn repair_does_not_pass_over_objects_that_are_missing_or_cut() {
    let (p, _) = with_backup();
    let newest = layers(&p).pop().unwrap();
    let bytes = fs::read(&newest).unwrap();
    fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    for _ in 0..2 {
        let out = p.run(&["backup", "repair", "b"]);
        let told = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(out.status.code(), Some(4), "{told}");
        assert!(
            told.contains("cannot be restored") && told.contains(": whole"),
            "{told}"
        );
        let _ = fs::remove_file(&newest);
    }
    let out = p.run(&["backup", "repair", "--json", "b"]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        json["damaged_moments"].as_array().unwrap().len(),
        1,
        "{json}"
    );
    // Which blocks that layer had is not known, so all are stored.
    p.run(&["backup", "repair", "b", "--from", "v.img"]);
    p.ok(&["restore-from", "b", "new"]);
    assert!(p.ok(&["check", "--data", "new"]).contains("clean"));
}

#[test]
fn a_file_is_not_restored_into_the_backup_itself() {
    let (p, _) = with_backup();
    symlink("b/layers", p.path("link")).unwrap();
    for file in ["b/new", "b/layers/new", "link/new", "./b/../b/new"] {
        p.fails(&["restore-from", "b", file], 1, "lies in the backup itself");
        assert!(!p.path(file).exists());
    }
}
