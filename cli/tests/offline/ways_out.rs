//! Damage and its way out: what is left is read, what cannot be mended is refused with a next step, and
//! following the steps that are printed ends the damage.
//!
//! Contract: rot.salvage

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Output;

use cairnfs::Volume;
use cairnfs_disk::format::geometry::{LOG_START, SUPERBLOCK_SLOTS};
use cairnfs_disk::format::superblock::{RawSuperblock, Superblock};
use serde_json::Value;

use crate::place::Place;

const BLOCK: usize = 4096;
const NODE: usize = 4 * BLOCK;

fn told(out: &Output) -> String {
    [&out.stdout, &out.stderr]
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .concat()
}

/// The superblocks at the front, the newest one last.
fn superblocks(image: &[u8]) -> Vec<Superblock> {
    let slots = SUPERBLOCK_SLOTS.into_iter().filter_map(|slot| {
        let bytes = &image[slot as usize * BLOCK..][..BLOCK];
        RawSuperblock::decode(slot, bytes).ok()
    });
    let mut found: Vec<Superblock> = slots.collect();
    found.sort_by_key(|s| s.generation.get());
    found
}

fn with_files(count: usize) -> Place {
    let p = Place::with_small_volume();
    fs::create_dir_all(p.path("in/dir")).unwrap();
    for n in 0..count {
        fs::write(p.path(&format!("in/dir/file-{n:04}")), format!("{n}")).unwrap();
    }
    p.ok(&["import", "-q", "in", "v.img"]);
    p
}

#[test]
fn without_its_record_of_free_space_a_volume_is_read_and_not_written() {
    let p = with_files(30);
    let sound = fs::read(p.path("v.img")).unwrap();
    let newest = *superblocks(&sound).last().unwrap();
    let geometry = newest.geometry();
    let table = geometry.table_start(newest.table_copy.get() as u8);
    let bitmaps = geometry.bitmap_block(0, 0)..geometry.bitmap_block(0, 1) + 1;
    for (first, end) in [(table, table + 1), (bitmaps.start, bitmaps.end)] {
        let mut image = sound.clone();
        image[first as usize * BLOCK..end as usize * BLOCK].fill(0x5a);
        fs::write(p.path("v.img"), &image).unwrap();
        let out = p.run(&["export", "-q", "--force", "v.img", "out"]);
        assert_eq!(out.status.code(), Some(0), "{}", told(&out));
        for n in 0..30 {
            let text = fs::read_to_string(p.path(&format!("out/dir/file-{n:04}"))).unwrap();
            assert_eq!(text, n.to_string());
        }
        let out = p.run(&["ls", "v.img:/dir"]);
        assert_eq!(out.status.code(), Some(0), "{}", told(&out));
        let out = p.run(&["info", "v.img"]);
        assert_eq!(out.status.code(), Some(1), "{}", told(&out));
        assert!(told(&out).contains("record of free space is damaged"));
        let check = told(&p.run(&["check", "v.img"]));
        assert!(
            check.contains("make a new volume") && !check.contains("rm --damaged"),
            "{check}"
        );
        for change in [&["mkdir", "v.img:/new"][..], &["rm", "--damaged", "v.img"]] {
            p.fails(change, 1, "cairnfs export VOLUME DIR");
        }
        p.ok(&["cat", "v.img:/dir/file-0007"]);
    }
    // Everything that reads says so.
    let mut image = sound;
    image[table as usize * BLOCK] ^= 1;
    fs::write(p.path("v.img"), &image).unwrap();
    let out = p.run(&["cat", "v.img:/dir/file-0007"]);
    assert_eq!(out.stdout, b"7");
    assert!(told(&out).contains("changes are refused"), "{}", told(&out));
}

/// A volume whose last bitmaps an opening does not verify.
#[test]
fn change_of_roots_that_needs_a_damaged_bitmap_is_refused_before_it_is_logged() {
    let p = Place::new();
    p.ok(&["mkfs", "-q", "--size", "600G", "v.img"]);
    p.ok(&["mkdir", "v.img:/sound"]);
    p.ok(&["branch", "v.img", "other"]);
    let image = OpenOptions::new()
        .read(true)
        .write(true)
        .open(p.path("v.img"))
        .unwrap();
    let mut front = vec![0; 16 * BLOCK];
    image.read_exact_at(&mut front, 0).unwrap();
    let geometry = superblocks(&front).last().unwrap().geometry();
    for copy in [0, 1] {
        let at = geometry.bitmap_block(geometry.groups() - 1, copy) * BLOCK as u64;
        image.write_all_at(&[0x5a; BLOCK], at).unwrap();
    }
    let refused = [
        &["snapshot", "v.img", "monday"][..],
        &["branch", "v.img", "more"],
        &["rename", "v.img", "other", "another"],
        &["drop", "--wait", "v.img", "other"],
    ];
    for verb in refused {
        let out = p.run(verb);
        let text = told(&out);
        assert_eq!(out.status.code(), Some(1), "{text}");
        for part in ["group bitmap", "expected", "cairnfs export VOLUME DIR"] {
            assert!(text.contains(part), "{verb:?}: {text}");
        }
        assert!(!text.contains("Freed"), "{text}");
        let list = p.ok(&["log", "v.img"]);
        assert!(list.contains("other") && !list.contains("monday"), "{list}");
        p.ok(&["export", "-q", "--force", "v.img", "out"]);
        assert!(p.path("out/sound").exists());
        let check = told(&p.run(&["check", "v.img"]));
        assert!(
            check.contains("bitmap-checksum") && !check.contains("log-"),
            "{check}"
        );
    }
    // What needs no other bitmap than its own works on.
    p.ok(&["mkdir", "v.img:/more"]);
}

#[test]
fn without_free_space_the_log_is_read_that_was_not_merged() {
    let p = with_files(30);
    let volume = Volume::open(p.path("v.img")).unwrap();
    for n in 0..40 {
        volume.write(format!("later-{n}"), vec![n; 5000]).unwrap();
    }
    volume.sync().unwrap();
    let mut image = fs::read(p.path("v.img")).unwrap();
    let newest = *superblocks(&image).last().unwrap();
    let geometry = newest.geometry();
    let end = geometry.data_start() as usize * BLOCK;
    let first = (LOG_START + geometry.log_blocks) as usize * BLOCK;
    image[first..end].fill(0);
    fs::write(p.path("killed"), image).unwrap();
    drop(volume);
    let out = p.run(&["export", "-q", "killed", "out"]);
    assert_eq!(out.status.code(), Some(0), "{}", told(&out));
    for n in 0..40u8 {
        let found = fs::read(p.path(&format!("out/later-{n}"))).unwrap();
        assert!(found == vec![n; 5000], "{n}");
    }
}

#[test]
fn the_state_before_is_saved_where_the_newest_list_of_trees_is_lost() {
    let p = with_files(30);
    // The superblock before names what is there up to here.
    let open = |name: &str| {
        let volume = Volume::open(p.path("v.img")).unwrap();
        volume.write(name, name).unwrap();
        volume.close().unwrap();
    };
    open("older");
    open("newer");
    let mut image = fs::read(p.path("v.img")).unwrap();
    let found = superblocks(&image);
    let roots: Vec<usize> = found.iter().map(|s| s.root.block.get() as usize).collect();
    let [before, newest] = roots[..] else {
        panic!("{found:?}");
    };
    assert_ne!(before, newest);
    image[newest * BLOCK + 9000] ^= 1;
    fs::write(p.path("v.img"), &image).unwrap();
    for command in [&["export", "v.img", "out"][..], &["ls", "v.img:/"]] {
        p.fails(command, 1, "cairnfs export --no-recovery VOLUME DIR");
    }
    let check = told(&p.run(&["check", "v.img"]));
    assert!(
        check.contains("cairnfs export --no-recovery v.img DIR"),
        "{check}"
    );
    let out = p.run(&["export", "--no-recovery", "v.img", "out"]);
    let text = told(&out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    let said = [
        "newest state",
        "its newest file changed at 20",
        "later is missing",
    ];
    assert!(said.iter().all(|part| text.contains(part)), "{text}");
    for n in 0..30 {
        let text = fs::read_to_string(p.path(&format!("out/dir/file-{n:04}"))).unwrap();
        assert_eq!(text, n.to_string());
    }
    assert!(!p.path("out/newer").exists());

    image[before * BLOCK + 9000] ^= 1;
    fs::write(p.path("v.img"), &image).unwrap();
    for command in [
        &["export", "v.img", "none"][..],
        &["export", "--no-recovery", "v.img", "none"],
    ] {
        p.fails(command, 1, "cairnfs restore-from");
    }
    let check = told(&p.run(&["check", "v.img"]));
    assert!(check.contains("cairnfs restore-from"), "{check}");
}

#[test]
fn without_the_top_of_main_older_files_and_other_trees_are_saved() {
    let p = with_files(600);
    p.ok(&["snapshot", "v.img", "monday"]);
    for name in ["older", "newer"] {
        let volume = Volume::open(p.path("v.img")).unwrap();
        volume.write(name, name).unwrap();
        volume.close().unwrap();
    }
    let sound = fs::read(p.path("v.img")).unwrap();
    let (mut tops, mut roots) = (0, 0);
    for at in (0..sound.len()).step_by(NODE) {
        if !sound[at..].starts_with(b"CNod") {
            continue;
        }
        let mut image = sound.clone();
        image[at + 9000] ^= 1;
        fs::write(p.path("v.img"), &image).unwrap();
        let check = told(&p.run(&["check", "v.img"]));
        if check.contains("Save monday with: cairnfs export v.img@monday DIR") {
            p.ok(&["export", "-q", "--force", "v.img@monday", "monday"]);
            assert!(p.path("monday/dir/file-0599").exists());
        }
        if check.contains("cairnfs export --no-recovery v.img DIR")
            && !check.contains("@monday DIR")
        {
            // The list of all trees.
            continue;
        }
        if check.contains("cairnfs export --no-recovery v.img DIR") {
            tops += 1;
            p.fails(
                &["export", "--no-recovery", "v.img", "out"],
                1,
                "everything later",
            );
            assert!(p.path("out/dir/file-0599").exists() && !p.path("out/newer").exists());
            assert!(check.contains("cairnfs rm --damaged v.img"), "{check}");
            let removed = p.ok(&["rm", "--damaged", "v.img"]);
            assert!(removed.contains("v.img:/: everything is lost"), "{removed}");
            p.ok(&["check", "--data", "v.img"]);
            p.ok(&["restore", "v.img", "monday"]);
            let list = p.ok(&["ls", "-R", "v.img:/"]);
            assert!(
                list.contains("file-0599") && !list.contains("older"),
                "{list}"
            );
            p.ok(&["check", "--data", "v.img"]);
        }
        if check.contains("/lost+found: cairnfs rm --damaged v.img") {
            roots += 1;
            p.ok(&["rm", "--damaged", "v.img"]);
            p.ok(&["check", "--data", "v.img"]);
            let list = p.ok(&["ls", "-R", "v.img:/lost+found"]);
            assert!(list.contains("file-0599"), "{list}");
        }
    }
    assert!(tops == 1 && roots == 1, "{tops} {roots}");
}

/// The findings of a check, each with its code and its snapshot.
fn findings(p: &Place) -> Vec<(String, Option<String>)> {
    let out = p.run(&["check", "--json", "v.img"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let found = report["findings"].as_array().unwrap().iter();
    found
        .map(|f| (text(&f["code"]).unwrap(), text(&f["snapshot"])))
        .collect()
}

/// A volume with a snapshot of other files than those of main, and a branch; and the first bytes of the
/// nodes that only the snapshot has, and that only main has.
fn with_snapshot() -> (Place, Vec<usize>, Vec<usize>) {
    let p = with_files(1500);
    p.ok(&["snapshot", "v.img", "monday"]);
    p.ok(&["rm", "-r", "v.img:/dir"]);
    fs::create_dir_all(p.path("in2/now")).unwrap();
    for n in 0..600 {
        fs::write(p.path(&format!("in2/now/f{n}")), format!("{n}")).unwrap();
    }
    p.ok(&["import", "-q", "in2", "v.img"]);
    p.ok(&["branch", "v.img", "other"]);
    p.ok(&["rm", "v.img@other:/now/f5"]);
    let sound = fs::read(p.path("v.img")).unwrap();
    let (mut snapshot, mut main) = (Vec::new(), Vec::new());
    for at in (0..sound.len()).step_by(NODE) {
        if !sound[at..].starts_with(b"CNod") {
            continue;
        }
        let mut image = sound.clone();
        image[at + 9000] ^= 1;
        fs::write(p.path("v.img"), image).unwrap();
        let found = findings(&p);
        let of = |name: Option<&str>| found.iter().all(|f| f.1.as_deref() == name);
        match found.first() {
            Some(_) if of(Some("monday")) => snapshot.push(at),
            Some((code, _)) if of(None) && code == "node-checksum" => main.push(at),
            _ => {}
        }
    }
    fs::write(p.path("v.img"), sound).unwrap();
    assert!(
        snapshot.len() > 4 && !main.is_empty(),
        "{snapshot:?} {main:?}"
    );
    (p, snapshot, main)
}

fn lists(p: &Place) -> [String; 2] {
    ["v.img:/", "v.img@other:/"].map(|tree| p.ok(&["ls", "-lR", tree]))
}

#[test]
fn damage_of_a_snapshot_ends_when_that_is_dropped() {
    let (p, nodes, _) = with_snapshot();
    let (sound, lists_before) = (fs::read(p.path("v.img")).unwrap(), lists(&p));
    let hits = nodes.iter().step_by(nodes.len().div_ceil(6));
    for at in hits.chain(nodes.last()) {
        let mut image = sound.clone();
        image[at + 9000] ^= 1;
        fs::write(p.path("v.img"), image).unwrap();
        let way = "cairnfs drop --wait v.img monday";
        let check = told(&p.run(&["check", "v.img"]));
        assert!(check.contains(way), "{at}: {check}");
        p.fails(&["rm", "--damaged", "v.img"], 1, way);
        p.fails(&["log", "v.img"], 1, "the space of each is not known");
        let listed = told(&p.run(&["log", "v.img"]));
        assert!(
            listed.contains("monday") && listed.contains('?'),
            "{listed}"
        );
        p.ok(&["drop", "--wait", "v.img", "monday"]);
        p.ok(&["check", "--data", "v.img"]);
        assert_eq!(lists(&p), lists_before, "{at}");
        assert_eq!(p.ok(&["cat", "v.img:/now/f77"]), "77");
        assert!(!p.ok(&["log", "v.img"]).contains("monday"));
        // It works on.
        p.ok(&["mkdir", "v.img:/more"]);
        p.ok(&["rm", "-r", "v.img:/now", "v.img@other:/now"]);
        p.ok(&["check", "--data", "v.img"]);
    }
}

/// A snapshot and a branch are damaged, and in some cases a state that both branches have in common. The
/// steps of the check are followed in their order, and in the other one as far as the volume opens.
#[test]
fn damage_of_a_snapshot_and_a_branch_ends_by_the_steps_of_the_check() {
    let (p, nodes, main) = with_snapshot();
    let sound = fs::read(p.path("v.img")).unwrap();
    let (mut common, mut tops, mut dropped_first) = (0, 0, 0);
    for (hit, drop_first) in main.iter().flat_map(|hit| [(hit, false), (hit, true)]) {
        let mut image = sound.clone();
        image[nodes[nodes.len() / 2] + 9000] ^= 1;
        image[hit + 9000] ^= 1;
        fs::write(p.path("v.img"), image).unwrap();
        let check = told(&p.run(&["check", "v.img"]));
        let steps = [
            "cairnfs rm --damaged v.img",
            "cairnfs drop --wait v.img monday",
        ];
        if !check.contains(steps[0]) {
            // The list of all trees is lost, or all of main.
            continue;
        }
        let at = steps.map(|step| check.find(step).unwrap_or_else(|| panic!("{check}")));
        assert!(at[0] < at[1], "{check}");
        let drop = ["drop", "--wait", "v.img", "monday"];
        if drop_first && p.run(&drop).status.success() {
            dropped_first += 1;
            p.run(&["rm", "--damaged", "v.img"]);
        } else {
            p.fails(&["rm", "--damaged", "v.img"], 1, steps[1]);
            p.ok(&drop);
        }
        let out = told(&p.run(&["rm", "--damaged", "v.img"]));
        if out.contains("nothing of it can be found") {
            tops += 1;
            assert!(out.contains("cairnfs drop --wait v.img other"), "{out}");
            p.ok(&["drop", "--wait", "v.img", "other"]);
        }
        let check = told(&p.run(&["check", "v.img"]));
        if check.contains("all but one of those are dropped") {
            common += 1;
            p.fails(
                &["rm", "--damaged", "v.img"],
                1,
                "a state that branches have in common",
            );
            p.ok(&["drop", "--wait", "v.img", "other"]);
        }
        p.ok(&["check", "--data", "v.img"]);
    }
    assert!(
        common > 0 && tops > 0 && dropped_first > 0,
        "{common} {tops} {dropped_first}"
    );
}

#[test]
fn advice_of_a_check_fits_what_is_damaged() {
    let p = with_files(10);
    let contents: Vec<u8> = (0..9000u32).map(|i| (i / 13 % 250) as u8).collect();
    fs::write(p.path("big"), &contents).unwrap();
    p.ok(&["cp", "big", "v.img:/big"]);
    assert_eq!(p.rot("v.img", &contents[..100]), 1);
    let check = told(&p.run(&["check", "--data", "v.img"]));
    assert!(check.contains("data-checksum"), "{check}");
    assert!(
        check.contains("remove it (cairnfs rm)") && !check.contains("--damaged"),
        "{check}"
    );
    p.ok(&["rm", "v.img:/big"]);
    p.ok(&["check", "--data", "v.img"]);
}

#[test]
fn check_tells_how_many_names_a_damaged_file_has() {
    let p = Place::with_volume();
    fs::create_dir_all(p.path("in")).unwrap();
    let contents: Vec<u8> = (0..9000u32).map(|i| (i / 13 % 250) as u8).collect();
    fs::write(p.path("in/big"), &contents).unwrap();
    for name in ["in/hard", "in/harder"] {
        fs::hard_link(p.path("in/big"), p.path(name)).unwrap();
    }
    p.ok(&["import", "-q", "in", "v.img"]);
    assert_eq!(p.rot("v.img", &contents[..100]), 1);
    let check = told(&p.run(&["check", "--data", "v.img"]));
    assert!(check.contains("and 2 other names"), "{check}");
}

#[test]
fn what_is_beyond_the_end_of_a_cut_off_volume_is_told() {
    let p = with_files(10);
    let size = fs::metadata(p.path("v.img")).unwrap().len();
    let left = size - (1 << 20);
    let image = OpenOptions::new().write(true).open(p.path("v.img"));
    image.unwrap().set_len(left).unwrap();
    let range = format!("the bytes from {left} to {size} are beyond");
    for command in [&["check", "v.img"][..], &["mkdir", "v.img:/new"]] {
        let text = told(&p.run(command));
        assert!(text.contains(&range), "{text}");
    }
}
