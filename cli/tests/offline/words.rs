//! Messages and refusals of commands, and archives as users have them: compressed, or invalid.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use crate::place::{Place, pattern};
use crate::{plant, same};

#[test]
fn compressed_archive_round_trip_is_unchanged() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    plant(&p.path("in"));
    p.ok(&["import", "-q", "--same-owner", "in", "v.img"]);
    p.ok(&["export", "-q", "v.img", "out.tar"]);
    let plain = p.path("out.tar").metadata().unwrap().len();
    let kinds = [
        ("tar.gz", &b"\x1f\x8b"[..]),
        ("tgz", b"\x1f\x8b"),
        ("tar.zst", b"\x28\xb5\x2f\xfd"),
        ("tzst", b"\x28\xb5\x2f\xfd"),
    ];
    for (ending, magic) in kinds {
        let name = format!("out.{ending}");
        p.ok(&["export", "-q", "v.img", &name]);
        let bytes = fs::read(p.path(&name)).unwrap();
        assert!(
            bytes.starts_with(magic) && (bytes.len() as u64) < plain,
            "{name}"
        );
        // The contents determine the compression, not the name.
        fs::rename(p.path(&name), p.path("archive")).unwrap();
        let (volume, out) = (format!("{ending}.img"), format!("from.{ending}.d"));
        let create = ["import", "-q", "--same-owner", "--create", "--size", "64M"];
        p.ok(&[&create[..], &["archive", &volume]].concat());
        p.ok(&["check", "--data", &volume]);
        fs::create_dir(p.path(&out)).unwrap();
        p.ok(&["export", "-q", &volume, &out]);
        for entry in fs::read_dir(p.path("in")).unwrap() {
            let name = entry.unwrap().file_name();
            same(&p.path("in").join(&name), &p.path(&out).join(&name));
        }
        // A truncated or damaged archive is an error.
        for broken in [&bytes[..bytes.len() / 2], &bytes[..bytes.len() - 3]] {
            fs::write(p.path("broken"), broken).unwrap();
            p.fails(&["import", "-q", "broken", "v.img:/broken"], 1, "too early");
        }
    }
}

/// `VOLUME@NAME` without a path is no name for a new file beside the volume.
#[test]
fn copy_to_a_reference_without_a_path_makes_no_file() {
    let p = Place::with_volume();
    fs::write(p.path("in"), "text").unwrap();
    p.ok(&["cp", "in", "v.img:/f"]);
    p.ok(&["branch", "v.img", "trial"]);
    for args in [
        ["cp", "v.img:/f", "v.img@trial"],
        ["cp", "v.img@trial", "out"],
    ] {
        p.fails(
            &args,
            1,
            "v.img@trial: names a branch or snapshot of a volume",
        );
        p.fails(&args, 1, "VOLUME@NAME:/PATH");
    }
    assert!(!p.path("v.img@trial").exists() && !p.path("out").exists());
    p.ok(&["cp", "v.img:/f", "v.img@trial:/g"]);
    // Other files have such neighbours.
    p.ok(&["cp", "v.img:/f", "in@2x"]);
    assert_eq!(fs::read(p.path("in@2x")).unwrap(), b"text");
    fs::write(p.path("v.img@trial"), "").unwrap();
    p.ok(&["cp", "v.img:/f", "v.img@trial"]);
    assert_eq!(fs::read(p.path("v.img@trial")).unwrap(), b"text");
}

#[test]
fn decompression_bomb_takes_bounded_memory() {
    let p = Place::with_volume();
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..4].copy_from_slice(b"bomb");
    header.set_size(1 << 30);
    header.set_mode(0o644);
    header.set_cksum();
    let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut out = gzip;
    out.write_all(header.as_bytes()).unwrap();
    for _ in 0..256 {
        out.write_all(&[0; 1 << 20]).unwrap();
    }
    let bomb = out.finish().unwrap();
    assert!(bomb.len() < 2 << 20);
    fs::write(p.path("bomb.tgz"), bomb).unwrap();
    // The limit leaves no memory for 256 MiB besides the volume's own.
    let line = "ulimit -v 1500000; exec \"$cairnfs\" import -q bomb.tgz v.img";
    let out = p.shell(line, |_| {});
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(
        text.contains("no space") || text.contains("too early"),
        "{text}"
    );
    p.ok(&["check", "--data", "v.img"]);
}

#[test]
fn empty_archive_makes_directory_that_it_is_imported_into() {
    let p = Place::with_volume();
    for blocks in [1, 2, 20] {
        fs::write(p.path("empty.tar"), vec![0; 512 * blocks]).unwrap();
        let to = format!("v.img:/d{blocks}");
        p.ok(&["import", "-q", "empty.tar", &to]);
        assert_eq!(p.ok(&["ls", &to]), "");
    }
}

#[test]
fn import_refuses_text_file_as_archive() {
    let p = Place::with_volume();
    for text in [&b"water the plants\n"[..], &pattern(5000), b""] {
        fs::write(p.path("notes.txt"), text).unwrap();
        let says = "notes.txt: is neither a directory nor a tar archive";
        p.fails(&["import", "notes.txt", "v.img"], 1, says);
        p.fails(
            &["import", "notes.txt", "v.img:/made/for/it"],
            1,
            "cairnfs cp FILE VOLUME:/",
        );
        assert_eq!(p.ok(&["ls", "v.img"]), "");
        p.fails(&["import", "--create", "notes.txt", "new.img"], 1, says);
        assert!(!p.path("new.img").exists());
    }
}

#[test]
fn export_replaces_files_only_with_force() {
    let p = Place::with_volume();
    fs::create_dir_all(p.path("in/d")).unwrap();
    for name in ["in/a", "in/b", "in/d/c"] {
        fs::write(p.path(name), "new").unwrap();
    }
    symlink("a", p.path("in/link")).unwrap();
    p.ok(&["import", "-q", "in", "v.img"]);
    fs::create_dir_all(p.path("out/d")).unwrap();
    fs::write(p.path("out/a"), "old").unwrap();
    fs::write(p.path("out/d/c"), "old").unwrap();
    symlink("elsewhere", p.path("out/link")).unwrap();
    let read = |name: &str| fs::read_to_string(p.path("out").join(name)).unwrap();
    let out = p.run(&["export", "v.img", "out"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert_eq!(
        text.matches("exists, and was left as it is").count(),
        3,
        "{text}"
    );
    assert_eq!(text.matches("--force").count(), 1, "{text}");
    assert_eq!(
        (read("a"), read("d/c"), read("b")),
        ("old".into(), "old".into(), "new".into())
    );
    assert_eq!(
        fs::read_link(p.path("out/link")).unwrap().to_str(),
        Some("elsewhere")
    );
    p.ok(&["export", "-q", "--force", "v.img", "out"]);
    assert_eq!((read("a"), read("d/c")), ("new".into(), "new".into()));
    assert_eq!(
        fs::read_link(p.path("out/link")).unwrap().to_str(),
        Some("a")
    );
}

#[test]
fn names_are_escaped_as_by_ls() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    fs::write(p.path("in/a\x1b[2J b\n"), "").unwrap();
    p.ok(&["import", "-q", "in", "v.img"]);
    assert_eq!(p.ok(&["ls", "-b", "v.img"]), "a\\033[2J\\ b\\n\n");
    assert_eq!(p.ok(&["ls", "-q", "v.img"]), "a?[2J b?\n");
    assert!(p.ok(&["ls", "-lb", "v.img"]).contains("a\\033[2J"));
    assert_eq!(p.ok(&["ls", "v.img"]), "a\x1b[2J b\n\n");
}

#[test]
fn permission_error_is_not_reported_as_missing_volume() {
    let p = Place::new();
    let copy = p.path("cairnfs");
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_cairnfs"))
        .arg(&copy)
        .status();
    assert!(copied.unwrap().success());
    fs::create_dir(p.path("secret")).unwrap();
    p.ok(&["mkfs", "-q", "--size", "16M", "secret/v.img"]);
    fs::set_permissions(p.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(p.path("secret"), fs::Permissions::from_mode(0o0)).unwrap();
    let root = rustix::process::geteuid().is_root();
    for args in [
        &["ls", "secret/v.img"][..],
        &["ls", "secret/v.img:/x"],
        &["cp", "secret/v.img:/x", "."],
    ] {
        let mut command = if root {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            command.arg(&copy);
            command
        } else {
            Command::new(&copy)
        };
        let out = command
            .args(args)
            .current_dir(p.path(""))
            .stdin(Stdio::null())
            .output();
        let out = out.unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(
            text.contains("Permission denied") && !text.contains("no such volume"),
            "{text}"
        );
        assert!(!text.contains("mkfs"), "{text}");
    }
    fs::set_permissions(p.path("secret"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// A tar archive of these blocks, with its end.
fn archive(blocks: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in blocks {
        bytes.extend_from_slice(block);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn header(name: &str, kind: tar::EntryType, link: &str, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).unwrap();
    header.set_entry_type(kind);
    if !link.is_empty() {
        header.set_link_name(link).unwrap();
    }
    header.set_mode(0o644);
    header.set_size(size);
    header.set_mtime(0);
    header.set_cksum();
    header.as_bytes().to_vec()
}

#[test]
fn tar_hard_link_to_itself_needs_existing_file() {
    let p = Place::with_volume();
    let link = header("s", tar::EntryType::Link, "s", 0);
    fs::write(p.path("link.tar"), archive(&[&link])).unwrap();
    p.fails(&["import", "link.tar", "v.img"], 1, "v.img:/s");
    assert_eq!(p.ok(&["ls", "v.img"]), "");
    // As with tar(1), an existing file is kept.
    let file = header("s", tar::EntryType::Regular, "", 4);
    fs::write(p.path("both.tar"), archive(&[&file, b"here", &link])).unwrap();
    p.ok(&["import", "-q", "both.tar", "v.img"]);
    assert_eq!(p.ok(&["cat", "v.img:/s"]), "here");
}

#[test]
fn out_of_range_tar_numbers_are_reported() {
    let p = Place::with_volume();
    for (record, key) in [
        ("30 mtime=100000000000000000000\n", "mtime"),
        ("15 mtime=1e+20\n", "mtime"),
        ("30 atime=100000000000000000000\n", "atime"),
        ("18 uid=4294967296\n", "uid"),
        ("18 gid=4294967296\n", "gid"),
    ] {
        // The length includes its own digits.
        let record = format!("{} {}", record.len(), &record[3..]);
        assert!(record.starts_with(&record.len().to_string()), "{record}");
        let pax = header("pax", tar::EntryType::XHeader, "", record.len() as u64);
        let file = header("f", tar::EntryType::Regular, "", 4);
        let bytes = archive(&[&pax, record.as_bytes(), &file, b"here"]);
        fs::write(p.path("odd.tar"), bytes).unwrap();
        p.fails(&["import", "odd.tar", "v.img"], 1, &format!("f: {key}"));
        assert_eq!(p.ok(&["cat", "v.img:/f"]), "here");
    }
}

#[test]
fn commands_report_invalid_volume_with_same_message() {
    let p = Place::new();
    fs::create_dir(p.path("dir")).unwrap();
    fs::write(p.path("text"), vec![b'x'; 1 << 20]).unwrap();
    fs::write(p.path("empty"), b"").unwrap();
    fs::write(p.path("short"), b"short").unwrap();
    let says = [
        ("text", "not a CairnFS volume: it has no superblock"),
        ("empty", "`cairnfs mkfs` makes a volume of an empty file"),
        ("short", "not a CairnFS volume: it has only 5 bytes"),
        ("dir", "directory"),
        ("/dev/null", "neither a regular file nor a block device"),
        ("/dev/zero", "neither a regular file nor a block device"),
    ];
    for (file, says) in says {
        for (command, code) in [("info", 1), ("ls", 1), ("trim", 1), ("check", 8)] {
            // `trim` accepts a directory: it may be a mountpoint.
            if (command, file) != ("trim", "dir") {
                p.fails(&[command, file], code, says);
            }
            let text = String::from_utf8(p.run(&[command, file]).stderr).unwrap();
            assert!(
                file == "empty" || !text.contains("mkfs"),
                "{command}: {text}"
            );
        }
    }
}

#[test]
fn sync_refuses_paths_outside_of_mounts() {
    let p = Place::new();
    fs::create_dir(p.path("dir")).unwrap();
    p.fails(&["sync", "dir"], 1, "not in a mounted volume");
}
