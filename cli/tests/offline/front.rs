//! Volumes whose first blocks were overwritten.
//!
//! Contract: rot.front

use std::fs;
use std::os::unix::fs::FileExt;

use crate::place::{Place, pattern};

const FRONT: usize = 64 << 10;

/// A volume of 64 MiB with a file in it.
fn filled() -> Place {
    let p = Place::new();
    p.ok(&["mkfs", "--size", "64M", "v.img"]);
    fs::write(p.path("large"), pattern(3_000_001)).unwrap();
    p.ok(&["cp", "large", "v.img:/large"]);
    p
}

fn overwrite(p: &Place, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(p.path("v.img"));
    file.unwrap().write_all_at(bytes, 0).unwrap();
}

/// Bytes without a pattern that anything knows.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn said(p: &Place, args: &[&str]) -> String {
    String::from_utf8(p.run(args).stderr).unwrap()
}

#[test]
fn volume_with_overwritten_front_is_used_and_mended() {
    let p = filled();
    overwrite(&p, &noise(FRONT));
    let lost = fs::read(p.path("v.img")).unwrap();
    let out = p.run(&["info", "v.img"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("front of the volume were lost"), "{text}");
    let out = p.run(&["check", "v.img"]);
    assert_eq!(out.status.code(), Some(4));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        text.contains("superblock-front:") && text.contains("1 error,"),
        "{text}"
    );
    for more in [&[][..], &["--no-recovery"]] {
        fs::create_dir(p.path("out")).unwrap();
        p.ok(&[&["export", "-q"], more, &["v.img", "out"]].concat());
        assert!(fs::read(p.path("out/large")).unwrap() == pattern(3_000_001));
        fs::remove_dir_all(p.path("out")).unwrap();
    }
    let text = said(&p, &["ls", "v.img"]);
    assert!(text.contains("lost: the copy in block"), "{text}");
    assert!(fs::read(p.path("v.img")).unwrap() == lost, "reading wrote");
    let text = said(&p, &["mkdir", "v.img:/new"]);
    assert!(text.contains("written anew"), "{text}");
    p.ok(&["check", "--data", "v.img"]);
    assert_eq!(said(&p, &["ls", "v.img"]), "");
}

#[test]
fn zeros_over_the_front_are_not_taken_for_an_empty_file() {
    let p = filled();
    overwrite(&p, &vec![0; 1 << 20]);
    p.fails(&["mkfs", "v.img"], 1, "--force");
    assert_eq!(p.ok(&["ls", "v.img"]), "large\n");
    // The old volume is gone with its copies.
    p.ok(&["mkfs", "--force", "--size", "48M", "v.img"]);
    overwrite(&p, &vec![0; FRONT]);
    assert_eq!(p.ok(&["ls", "v.img"]), "");
}

#[test]
fn other_file_system_over_the_front_is_not_overwritten() {
    let p = filled();
    let mut front = vec![0; FRONT];
    front[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    overwrite(&p, &front);
    let before = fs::read(p.path("v.img")).unwrap();
    p.fails(&["mkdir", "v.img:/new"], 1, "ext4");
    p.fails(&["mkdir", "v.img:/new"], 1, "wipefs");
    assert_eq!(p.ok(&["ls", "v.img"]), "large\n");
    assert!(fs::read(p.path("v.img")).unwrap() == before);
}

#[test]
fn copies_are_found_on_a_larger_device() {
    let p = filled();
    overwrite(&p, &noise(FRONT));
    let file = fs::File::options().write(true).open(p.path("v.img"));
    file.unwrap().set_len(200 << 20).unwrap();
    assert_eq!(p.ok(&["ls", "v.img"]), "large\n");
    p.ok(&["mkdir", "v.img:/new"]);
    p.ok(&["check", "v.img"]);
}

#[test]
fn volume_that_begins_elsewhere_is_told() {
    let p = filled();
    let whole = fs::read(p.path("v.img")).unwrap();
    let behind = [&noise(1 << 20)[..], &whole].concat();
    fs::write(p.path("disk.img"), behind).unwrap();
    p.fails(&["ls", "disk.img"], 1, "begins at byte 1048576");
    fs::write(p.path("rest.img"), &whole[1 << 20..]).unwrap();
    p.fails(&["ls", "rest.img"], 1, "first 1048576 bytes");
    p.fails(&["check", "rest.img"], 8, "first 1048576 bytes");
}
