//! Files with unreadable blocks, and damaged logs: readable data is saved, unreadable ranges and lost
//! changes are named.
//!
//! Contract: copies

use std::fs;
use std::path::Path;
use std::process::Output;

use cairnfs::fs::{FileSystem, Options};
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::superblock::RawSuperblock;
use cairnfs_disk::types::Creds;

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

    fs::remove_file(p.path("out/dir/file")).unwrap();
    let json = assert_ranges_reported(&p, &["export", "--force", "--json", "v.img", "out"]);
    assert_saved(&p.path("out/dir/file"));
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

/// What is in the place of an incomplete copy may be the last whole one.
///
/// Contract: copies.failed
#[test]
fn incomplete_copies_replace_nothing() {
    let p = damaged();
    let kept = |args: &[&str], file: &str| {
        assert_ranges_reported(&p, args);
        let out = p.run(args);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!text.contains("zeros in the copy"), "{args:?}: {text}");
        let line = format!("{file}: was kept, because its copy would have holes\n");
        assert_eq!(text.matches(&line).count(), 1, "{args:?}: {text}");
        assert_eq!(
            text.matches("copy to where nothing has the name").count(),
            1
        );
    };
    fs::create_dir_all(p.path("out/dir")).unwrap();
    fs::write(p.path("out/dir/file"), "whole").unwrap();
    kept(&["export", "--force", "v.img", "out"], "out/dir/file");
    kept(&["cp", "-r", "v.img:/dir", "out"], "out/dir/file");
    kept(&["cp", "v.img:/dir/file", "out/dir/file"], "out/dir/file");
    let entries = fs::read_dir(p.path("out/dir")).unwrap();
    assert_eq!(entries.count(), 2);
    assert_eq!(fs::read(p.path("out/dir/file")).unwrap(), b"whole");
    assert_eq!(fs::read(p.path("out/dir/other")).unwrap(), b"whole");

    kept(
        &["cp", "v.img:/dir/file", "v.img:/dir/other"],
        "v.img:/dir/other",
    );
    assert_eq!(p.ok(&["cat", "v.img:/dir/other"]), "whole");
    assert_eq!(p.ok(&["ls", "v.img:/dir"]), "file\nother\n");

    fs::write(p.path("old.tar"), "whole").unwrap();
    let out = p.run(&["export", "--force", "v.img", "old.tar"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    let line = "old.tar: was kept, because the new archive would lack something\n";
    assert!(text.contains(line), "{text}");
    assert_eq!(fs::read(p.path("old.tar")).unwrap(), b"whole");
    p.ok(&["rm", "v.img:/dir/file"]);
    p.ok(&["export", "-q", "--force", "v.img", "old.tar"]);
    assert_ne!(fs::read(p.path("old.tar")).unwrap(), b"whole");
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
/// Contract: rot.salvage
#[test]
fn export_without_recovery_needs_only_older_superblock() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    fs::write(p.path("in/old"), b"merged long ago").unwrap();
    p.ok(&["import", "-q", "in", "v.img"]);
    p.ok(&["mkdir", "v.img:/merged"]);
    let sound = killed_after_a_sync(&p);
    let slots = SUPERBLOCK_SLOTS.into_iter().filter_map(|slot| {
        let bytes = &sound[slot as usize * BLOCK..][..BLOCK];
        RawSuperblock::decode(slot, bytes).ok()
    });
    let newest = slots.max_by_key(|s| s.generation.get()).unwrap();
    let mut bytes = sound.clone();
    let copies = newest.copy_blocks(newest.slot());
    for block in copies.chain([newest.slot_block()]) {
        bytes[block as usize * BLOCK + 100] ^= 1;
    }
    fs::write(p.path("v.img"), bytes).unwrap();

    let out = p.run(&["check", "v.img"]);
    assert_eq!(out.status.code(), Some(4));
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

/// A volume with a directory `old`, and 200 files that are durable in the log alone, by syncs of so
/// many files each, as a kill leaves it. Returns the blocks of the log from its tail on.
fn killed_with_synced_files(p: &Place, each: usize) -> std::ops::Range<usize> {
    p.ok(&["mkdir", "v.img:/old"]);
    let options = Options {
        workers: false,
        ..Options::default()
    };
    let volume = FileSystem::open(&p.path("v.img"), &options).unwrap();
    for i in 0..200 {
        let name = format!("file-{i}");
        let made = volume.mknod(1, name.as_bytes(), 0o100_644, 0, Creds::default());
        volume
            .write(made.unwrap().ino, 0, name.as_bytes(), false)
            .unwrap();
        if (i + 1) % each == 0 {
            volume.sync_stated().unwrap();
        }
    }
    let killed = fs::read(p.path("v.img")).unwrap();
    let logged = volume.info().log_used as usize / BLOCK;
    drop(volume);
    let used = |block: &usize| killed[block * BLOCK..][..BLOCK].iter().any(|b| *b != 0);
    let end = (16..1024).find(|block| !used(block)).unwrap();
    fs::write(p.path("v.img"), killed).unwrap();
    end - logged..end
}

fn overwrite(p: &Place, block: usize) {
    let mut bytes = fs::read(p.path("v.img")).unwrap();
    bytes[block * BLOCK..][..BLOCK].fill(0x5a);
    fs::write(p.path("v.img"), bytes).unwrap();
}

/// One block of the log is overwritten after a kill. No command takes the volume for a sound one
/// without the synced files, and none writes to it.
/// Contract: rot.log
#[test]
fn overwritten_block_of_log_is_told() {
    let p = Place::with_volume();
    let blocks = killed_with_synced_files(&p, 200);
    let sound = fs::read(p.path("v.img")).unwrap();
    assert!(blocks.len() > 2, "{blocks:?}");
    for block in blocks {
        fs::write(p.path("v.img"), &sound).unwrap();
        overwrite(&p, block);
        let rotten = fs::read(p.path("v.img")).unwrap();
        let checked = p.run(&["check", "v.img"]);
        let text = String::from_utf8_lossy(&checked.stdout);
        assert_eq!(checked.status.code(), Some(4), "block {block}: {text}");
        assert!(text.contains("log-damaged: log ends at LSN"), "{text}");
        assert!(text.contains("cairnfs export v.img DIR"), "{text}");
        for refused in [["ls", "v.img:/"], ["mkdir", "v.img:/new"]] {
            let out = p.run(&refused);
            let text = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(1), "{refused:?}: {text}");
            assert!(text.contains("cairnfs export VOLUME DIR"), "{text}");
        }
        let _ = fs::remove_dir_all(p.path("out"));
        let out = p.run(&["export", "v.img", "out"]);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "block {block}: {text}");
        assert!(text.contains("changes are lost with its log"), "{text}");
        assert!(p.path("out/old").is_dir());
        assert!(!p.path("out/file-7").exists());
        assert!(fs::read(p.path("v.img")).unwrap() == rotten, "written to");
    }
}

/// What is before the damage is exported, and what records behind it say is named.
/// Contract: rot.log
#[test]
fn export_of_damaged_log_has_what_is_before_and_names_what_is_behind() {
    let p = Place::with_volume();
    let blocks = killed_with_synced_files(&p, 20);
    // Ten syncs, after the record of the mount.
    assert_eq!((blocks.len() - 1) % 10, 0, "{blocks:?}");
    let each = (blocks.len() - 1) / 10;
    overwrite(&p, blocks.start + 1 + 4 * each);
    let out = p.run(&["export", "--json", "v.img", "out"]);
    assert_eq!(out.status.code(), Some(1));
    let text = String::from_utf8_lossy(&out.stderr);
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    for i in 0..200 {
        let (name, file) = (format!("v.img:/file-{i}"), format!("out/file-{i}"));
        let exported = p.path(&file).exists();
        assert_eq!(exported, i < 80, "{name}: {text}");
        let named = text.contains(&format!("{name}: its newest state is lost"));
        assert_eq!(named, i >= 100, "{name}: {text}");
        let lost = summary["lost"].as_array().unwrap();
        assert_eq!(lost.iter().any(|at| *at == name), i >= 100, "{summary}");
    }
    assert_eq!(fs::read(p.path("out/file-79")).unwrap(), b"file-79");
    p.fails(
        &["export", "v.img:/file-150", "lost"],
        1,
        "v.img:/file-150: its newest state is lost",
    );
    p.fails(&["export", "v.img@later", "lost"], 1, "log is damaged");
}

/// A volume with a directory of many files, of whose entries a damaged node hides some.
fn with_hidden_names() -> Place {
    let p = Place::with_volume();
    fs::create_dir_all(p.path("in/dir")).unwrap();
    for n in 0..2000 {
        fs::write(p.path(&format!("in/dir/file-{n:04}")), format!("{n}")).unwrap();
    }
    p.ok(&["import", "-q", "in", "v.img"]);
    let sound = fs::read(p.path("v.img")).unwrap();
    let holds = |node: &[u8]| {
        let entry = |n: usize| format!("file-{n:04}").into_bytes();
        node.starts_with(b"CNod") && {
            let held = |n: &usize| node.windows(9).any(|w| w == entry(*n));
            (900..1100).filter(held).count() > 100
        }
    };
    let nodes = (0..sound.len()).step_by(4 * BLOCK);
    let hit = nodes
        .filter(|at| holds(&sound[*at..at + 4 * BLOCK]))
        .any(|at| {
            let mut image = sound.clone();
            image[at + 9000] ^= 1;
            fs::write(p.path("v.img"), image).unwrap();
            p.run(&["check", "v.img"]).status.code() == Some(4)
        });
    assert!(hit, "no node of entries is in use");
    p
}

fn numbers(names: &str) -> Vec<usize> {
    let number = |name: &str| name.strip_prefix("file-")?.parse().ok();
    names.lines().filter_map(number).collect()
}

#[test]
fn damage_is_removed_and_files_without_names_are_found() {
    let p = with_hidden_names();
    let listed = p.run(&["ls", "v.img:/dir"]);
    assert_eq!(listed.status.code(), Some(1));
    let before = numbers(&String::from_utf8_lossy(&listed.stdout));
    assert!((1000..2000).contains(&before.len()), "{}", before.len());
    let told = p.run(&["check", "v.img"]).stdout;
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(told.contains("cairnfs rm --damaged v.img"), "{told}");

    let wrong = p.run(&["rm", "--damaged", "v.img:/dir"]);
    assert_eq!(wrong.status.code(), Some(1), "a path");
    let out = p.run(&["rm", "--damaged", "v.img"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(0), "{text}");
    let lost = 2000 - before.len();
    assert!(
        text.contains(&format!("v.img:/dir: {lost} names lost")),
        "{text}"
    );
    assert!(text.contains("v.img: 1 damaged part removed"), "{text}");
    let saved = text
        .lines()
        .filter(|line| line.ends_with("had lost its name"));
    assert_eq!(saved.count(), lost);
    p.ok(&["check", "--data", "v.img"]);

    let after = p.run(&["ls", "v.img:/dir"]);
    assert_eq!(after.status.code(), Some(0));
    assert_eq!(numbers(&String::from_utf8_lossy(&after.stdout)), before);
    p.ok(&["export", "-q", "v.img", "out"]);
    let mut all = before.clone();
    for n in before {
        let text = fs::read_to_string(p.path(&format!("out/dir/file-{n:04}"))).unwrap();
        assert_eq!(text, format!("{n}"));
    }
    for found in fs::read_dir(p.path("out/lost+found")).unwrap() {
        let text = fs::read_to_string(found.unwrap().path()).unwrap();
        all.push(text.parse().unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (0..2000).collect::<Vec<_>>());
    p.ok(&["rm", "-r", "v.img:/dir", "v.img:/lost+found"]);
    p.ok(&["check", "v.img"]);
}

#[test]
fn tree_is_removed_as_far_as_it_can_be_read() {
    let p = with_hidden_names();
    let out = p.run(&["rm", "-r", "v.img:/dir"]);
    assert_eq!(out.status.code(), Some(1));
    let left = p.run(&["ls", "v.img:/dir"]);
    assert_eq!(left.status.code(), Some(1), "the others are hidden");
    assert!(left.stdout.is_empty());
    p.ok(&["rm", "--damaged", "v.img"]);
    p.ok(&["check", "--data", "v.img"]);
    p.ok(&["rm", "-r", "v.img:/dir", "v.img:/lost+found"]);
    p.ok(&["check", "v.img"]);
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

#[test]
fn export_without_recovery_says_what_it_leaves_in_the_log() {
    let p = Place::with_volume();
    let export = ["export", "-q", "--force", "--no-recovery", "v.img", "out"];
    p.ok(&["mkdir", "v.img:/merged"]);
    let said = |out: Output| String::from_utf8(out.stderr).unwrap();
    assert_eq!(said(p.run(&export)), "");
    killed_with_synced_files(&p, 50);
    let out = p.run(&export);
    assert_eq!(out.status.code(), Some(0));
    let text = said(out);
    assert!(text.contains("its log is not exported"), "{text}");
    assert!(
        text.contains("records, with changes of files up to 20"),
        "{text}"
    );
}
