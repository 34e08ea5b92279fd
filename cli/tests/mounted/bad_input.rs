//! Files that are not volumes, damaged and full volumes, and invalid requests.
//!
//! Each gives an error with the cause and the next step, no command panics, and undamaged data
//! stays readable.
//!
//! Contract: rot, failure.space

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::checksum::hash64;
use cairnfs_disk::format::geometry::{LOG_START, SUPERBLOCK_SLOTS};
use cairnfs_disk::format::superblock::RawSuperblock;

use crate::place::{Place, able, arg, pattern, said};

const BLOCK: u64 = BLOCK_SIZE as u64;

fn block_at(file: &File, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_SIZE];
    file.read_exact_at(&mut bytes, block * BLOCK).unwrap();
    bytes
}

/// The newest superblock of a volume.
fn superblock(path: &Path) -> RawSuperblock {
    let file = File::open(path).unwrap();
    let slots = SUPERBLOCK_SLOTS.map(|at| RawSuperblock::decode(at, &block_at(&file, at)));
    slots
        .into_iter()
        .flatten()
        .max_by_key(|s| s.generation.get())
        .unwrap()
}

/// Flips all bits of a byte.
fn flip(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

/// Block numbers from `first` on at which the volume holds `bytes`.
fn find(path: &Path, first: u64, bytes: &[u8]) -> Vec<u64> {
    let volume = fs::read(path).unwrap();
    let from = (first * BLOCK) as usize;
    let head = bytes[0];
    (from..volume.len() - bytes.len())
        .filter(|&at| volume[at] == head && volume[at..].starts_with(bytes))
        .map(|at| at as u64)
        .collect()
}

/// A volume with a few files in its index, unmounted.
fn filled() -> Place {
    let place = Place::new("32M");
    fs::create_dir(place.beside("tree")).unwrap();
    for n in 0..200 {
        fs::write(place.beside(format!("tree/small{n}")), pattern(n, 1000)).unwrap();
    }
    for n in 0..4 {
        fs::write(
            place.beside(format!("tree/large{n}")),
            pattern(1000 + n, 100_000),
        )
        .unwrap();
    }
    place.ok(&["import", "tree", "v.cairn"]);
    place.check();
    place
}

/// Asserts that every command that opens a volume fails for `v.cairn` with each text of `says`.
fn all_refuse(place: &Place, says: &[&str]) {
    place.fails(&["mount", "v.cairn", "m"], 32, says);
    place.fails(&["ls", "v.cairn:/"], 1, says);
    place.fails(&["info", "v.cairn"], 1, says);
    place.fails(&["import", "m", "v.cairn"], 1, says);
    place.fails(&["export", "v.cairn", "out"], 1, says);
}

#[test]
fn files_that_are_not_volumes_are_refused() {
    let place = Place::new("16M");
    for bytes in [&b""[..], b"text\n", &pattern(1, 100_000), &[0; 1 << 20]] {
        fs::write(place.volume(), bytes).unwrap();
        all_refuse(&place, &["v.cairn", "CairnFS volume"]);
        place.fails(&["check", "v.cairn"], 8, &["CairnFS volume"]);
        // The hint to make a volume appears only for an empty file.
        let report = said(&place.run(&["ls", "v.cairn"]));
        assert_eq!(report.contains("mkfs"), bytes.is_empty(), "{report}");
        assert_eq!(
            report.matches("mkfs").count(),
            usize::from(bytes.is_empty())
        );
        assert!(fs::read(place.volume()).unwrap() == bytes, "it was changed");
    }
    fs::write(place.volume(), b"precious").unwrap();
    place.fails(
        &["mkfs", "--size", "16M", "v.cairn"],
        1,
        &["not empty", "--force"],
    );
    assert_eq!(fs::read(place.volume()).unwrap(), b"precious");
    place.fails(
        &["mount", "absent.cairn", "m"],
        32,
        &["absent.cairn", "mkfs", "--create"],
    );
    place.fails(&["mount", "m", "m"], 32, &["directory"]);
}

#[test]
fn lost_superblock_slot_is_reported_as_note() {
    let place = filled();
    let newest = superblock(&place.volume()).generation.get();
    let [first, second] = SUPERBLOCK_SLOTS;
    let file = File::open(place.volume()).unwrap();
    let decoded = RawSuperblock::decode(first, &block_at(&file, first)).unwrap();
    let older = if decoded.generation.get() == newest {
        second
    } else {
        first
    };
    flip(&place.volume(), older * BLOCK + 100);
    let report = place.ok(&["check", "v.cairn"]);
    assert!(
        report.contains("note: superblock-place: no superblock in one of its places"),
        "{report}"
    );
    assert!(report.contains("clean"), "{report}");
    let json = place.ok(&["check", "--json", "v.cairn"]);
    assert!(
        json.contains("\"clean\": true") && json.contains("superblock-place"),
        "{json}"
    );
    place.ok(&["mkdir", "v.cairn:/new"]);
    let report = place.ok(&["check", "v.cairn"]);
    assert!(!report.contains("note"), "{report}");
}

#[test]
fn truncated_volume_is_readable_or_refused() {
    let place = filled();
    let whole = fs::read(place.volume()).unwrap();
    for len in [whole.len() - 4096, whole.len() / 2, 200_000] {
        fs::write(place.volume(), &whole[..len]).unwrap();
        let says = ["v.cairn", "cut off"];
        if len + 4096 == whole.len() {
            // Data in front of the cut can be read; changes are refused.
            place.fails(&["mount", "v.cairn", "m"], 32, &says);
            place.fails(&["import", "m", "v.cairn"], 1, &says);
            place.fails(&["info", "v.cairn"], 1, &["cut off", "export"]);
            assert!(place.ok(&["ls", "v.cairn:/"]).contains("small7"));
            place.ok(&["cat", "v.cairn:/large0"]);
        } else {
            // Nothing can be read, and no message suggests it.

            all_refuse(&place, &["v.cairn", "cut off", "too little"]);
            let report = said(&place.run(&["mount", "v.cairn", "m"]));
            assert!(!report.contains("export"), "{report}");
        }
        let out = place.run(&["check", "v.cairn"]);
        assert!(matches!(out.status.code(), Some(4 | 8)), "{}", said(&out));
        assert!(
            fs::read(place.volume()).unwrap() == whole[..len],
            "it was changed"
        );
    }
    fs::write(place.volume(), &whole).unwrap();
    place.check();
}

#[test]
fn volume_of_newer_version_is_refused() {
    let place = filled();
    let before = fs::read(place.volume()).unwrap();
    let with = |change: &dyn Fn(&mut RawSuperblock)| {
        fs::write(place.volume(), &before).unwrap();
        let file = File::options()
            .read(true)
            .write(true)
            .open(place.volume())
            .unwrap();
        for at in SUPERBLOCK_SLOTS {
            if let Ok(mut raw) = RawSuperblock::decode(at, &block_at(&file, at)) {
                change(&mut raw);
                let bytes = raw.encode();
                assert_eq!(hash64(&bytes[16..]).to_le_bytes(), bytes[8..16]);
                file.write_all_at(&bytes, at * BLOCK).unwrap();
            }
        }
    };
    with(&|raw| raw.incompatible = (1 << 40).into());
    all_refuse(&place, &["v.cairn", "newer version", "update CairnFS"]);
    let out = place.run(&["check", "v.cairn"]);
    assert!(
        !out.status.success() && said(&out).contains("newer"),
        "{}",
        said(&out)
    );
    with(&|raw| raw.ro_compatible = (1 << 20).into());
    place.fails(
        &["mount", "v.cairn", "m"],
        32,
        &["read-only", "update CairnFS"],
    );
    place.fails(&["mkdir", "v.cairn:/x"], 1, &["read-only"]);
    assert!(place.ok(&["ls", "v.cairn:/"]).contains("small7"));
    with(&|raw| raw.compatible = 4.into());
    place.ok(&["mkdir", "v.cairn:/x"]);
}

#[test]
fn flipped_superblock_bytes_are_detected_or_survived() {
    let place = filled();
    let newest = superblock(&place.volume()).slot_block();
    let whole = fs::read(place.volume()).unwrap();
    for offset in [0, 9, 100, 200, 3000] {
        for both in [false, true] {
            fs::write(place.volume(), &whole).unwrap();
            flip(&place.volume(), newest * BLOCK + offset);
            if both {
                flip(&place.volume(), (newest ^ 8) * BLOCK + offset);
            }
            let out = place.run(&["ls", "v.cairn:/"]);
            let text = said(&out);
            assert!(!text.contains("panicked"), "{text}");
            let checked = place.run(&["check", "v.cairn"]);
            // The copies have both.
            assert!(out.status.success(), "byte {offset}: {text}");
            assert_eq!(text.matches("small").count(), 200, "byte {offset}");
            assert_eq!(text.contains("were lost"), both, "byte {offset}: {text}");
            let code = if both { 4 } else { 0 };
            let checked_text = said(&checked);
            assert_eq!(checked.status.code(), Some(code), "{checked_text}");
            assert_eq!(checked_text.contains("superblock-front"), both);
        }
    }
}

/// Contract: copies
#[test]
fn flipped_data_byte_is_detected() {
    if !able(&[]) {
        return;
    }
    let mut place = filled();
    let at = find(&place.volume(), 0, &pattern(1002, 4096));
    assert_eq!(at.len(), 1, "large2 lies in one place");
    flip(&place.volume(), at[0] + 50_000);
    place.fails(
        &["cat", "v.cairn:/large2"],
        1,
        &["large2", "damaged", "cairnfs check"],
    );
    place.fails(
        &["check", "--data", "v.cairn"],
        4,
        &["data", "/large2", "cairnfs export"],
    );
    let log = place.beside("daemon.log");
    place.ok(&["mount", "--log", arg(&log), "v.cairn", "m"]);
    place.adopt();
    let read = fs::read(place.at("large2")).unwrap_err();
    assert_eq!(
        read.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("of \"/large2\": volume is damaged"), "{log}");
    // All other files are intact, and so are the undamaged blocks of this file.
    for n in [0, 1, 3] {
        assert!(fs::read(place.at(format!("large{n}"))).unwrap() == pattern(1000 + n, 100_000));
    }
    let file = File::open(place.at("large2")).unwrap();
    let mut begin = vec![0; 4096];
    file.read_exact_at(&mut begin, 0).unwrap();
    assert!(begin == pattern(1002, 4096));
    drop(file);
    fs::write(place.at("large2"), b"new").unwrap();
    place.remount("");
    assert_eq!(fs::read(place.at("large2")).unwrap(), b"new");
    place.finish();
}

#[test]
fn flipped_index_bytes_are_detected() {
    if !able(&[]) {
        return;
    }
    let mut place = filled();
    // The index leaf that holds a small file's contents inline.
    let log_end = LOG_START + superblock(&place.volume()).log_blocks.get();
    let at = find(&place.volume(), log_end, &pattern(70, 1000));
    assert!(!at.is_empty());
    let whole = fs::read(place.volume()).unwrap();
    for at in &at {
        flip(&place.volume(), at + 5);
    }
    place.fails(
        &["cat", "v.cairn:/small70"],
        1,
        &["damaged", "index", "cairnfs check"],
    );
    place.fails(&["check", "v.cairn"], 4, &["cairnfs export"]);
    place.fails(&["export", "v.cairn", "out"], 1, &["damaged"]);
    place.mount("ro");
    let read = fs::read(place.at("small70")).unwrap_err();
    assert_eq!(
        read.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    place.umount();
    fs::write(place.volume(), &whole).unwrap();
    place.check();
    let root = superblock(&place.volume()).root.block.get();
    flip(&place.volume(), root * BLOCK + 70);
    place.fails(
        &["mount", "v.cairn", "m"],
        32,
        &["damaged", "cairnfs check"],
    );
    place.fails(&["check", "v.cairn"], 4, &["index"]);
}

#[test]
fn flipped_log_byte_is_detected() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("32M", "durability=0");
    for n in 0..20 {
        fs::write(place.at(format!("f{n}")), pattern(n, 1500)).unwrap();
        File::open(place.at(format!("f{n}")))
            .unwrap()
            .sync_all()
            .unwrap();
    }
    place.kill();
    place.ok(&["umount", "m"]);
    let at = find(&place.volume(), LOG_START, &pattern(5, 1500));
    assert!(!at.is_empty(), "the contents are in the log");
    let whole = fs::read(place.volume()).unwrap();
    for at in &at {
        flip(&place.volume(), at + 100);
    }
    let says = ["damaged", "log", "cairnfs check"];
    place.fails(&["mount", "v.cairn", "m"], 32, &says);
    place.fails(&["cat", "v.cairn:/f1"], 1, &says);
    place.fails(&["check", "v.cairn"], 4, &["log"]);
    fs::write(place.volume(), &whole).unwrap();
    place.check();
    place.mount("");
    for n in 0..20 {
        assert!(fs::read(place.at(format!("f{n}"))).unwrap() == pattern(n, 1500));
    }
    place.finish();
}

/// Nothing is written after the sync, so no record says that it was durable.
#[test]
fn overwritten_log_block_after_sync_and_kill_is_detected() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("32M", "durability=0");
    for n in 0..200 {
        fs::write(place.at(format!("f{n}")), pattern(n, 700)).unwrap();
    }
    place.ok(&["sync", "m"]);
    place.kill();
    place.ok(&["umount", "m"]);
    let whole = fs::read(place.volume()).unwrap();
    let superblock = superblock(&place.volume());
    let says = ["damaged", "log", "cairnfs export"];
    for lsn in superblock.tail_lsn.get().. {
        let block = LOG_START + lsn % superblock.log_blocks.get();
        let at = (block * BLOCK) as usize;
        if whole[at..at + BLOCK_SIZE].iter().all(|byte| *byte == 0) {
            assert!(lsn > superblock.tail_lsn.get() + 30, "up to {lsn}");
            break;
        }
        let file = File::options().write(true).open(place.volume()).unwrap();
        file.write_all_at(&[0x77; BLOCK_SIZE], at as u64).unwrap();
        place.fails(&["mount", "v.cairn", "m"], 32, &says);
        place.fails(&["check", "v.cairn"], 4, &["log-damaged"]);
        file.write_all_at(&whole[at..at + BLOCK_SIZE], at as u64)
            .unwrap();
    }
    place.check();
    place.mount("");
    for n in 0..200 {
        assert!(fs::read(place.at(format!("f{n}"))).unwrap() == pattern(n, 700));
    }
    place.finish();
}

#[test]
fn full_volume_with_write_through_keeps_its_files() {
    a_full_volume("write=through");
}

#[test]
fn full_volume_with_write_back_keeps_its_files() {
    a_full_volume("write=back");
}

fn a_full_volume(mode: &str) {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("32M", mode);
    fs::write(place.at("kept"), pattern(1, 1_000_000)).unwrap();
    File::open(place.at("kept")).unwrap().sync_all().unwrap();
    let mut files = 0;
    let error = loop {
        let path = place.at(format!("filler{files}"));
        let wrote = fs::write(&path, pattern(files, 500_000));
        let wrote = wrote.and_then(|()| File::open(&path)?.sync_all());
        match wrote {
            Ok(()) => files += 1,
            Err(e) => break e,
        }
        assert!(files < 100, "more than it can hold");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(files > 20, "only {files} files of 500 kB fit in 32 MiB");
    // In writeback mode the kernel reports the failed write once more, to the first sync of the
    // whole mount.
    place.run(&["sync", "m"]);
    place.ok(&["sync", "m"]);
    place.remount(mode);
    for n in 0..files {
        assert!(fs::read(place.at(format!("filler{n}"))).unwrap() == pattern(n, 500_000));
    }
    fs::write(place.beside("more"), pattern(2, 30_000_000)).unwrap();
    place.umount();
    place.fails(
        &["cp", "more", "v.cairn:/more"],
        1,
        &["no space left", "remove files"],
    );
    place.check();
    place.mount(mode);
    for n in 0..files {
        fs::remove_file(place.at(format!("filler{n}"))).unwrap();
    }
    let _ = fs::remove_file(place.at(format!("filler{files}")));
    place.remount(mode);
    fs::write(place.at("again"), pattern(3, 10_000_000)).unwrap();
    place.remount(mode);
    assert!(fs::read(place.at("again")).unwrap() == pattern(3, 10_000_000));
    assert!(fs::read(place.at("kept")).unwrap() == pattern(1, 1_000_000));
    place.finish();
}

/// Writes to a file until a write is refused, and ignores the result of close.
fn overfill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let chunk = pattern(1, 1 << 20);
    let refused = loop {
        if let Err(e) = file.write_all(&chunk) {
            break e;
        }
    };
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull, "{refused}");
}

/// Contract: failure.space
#[test]
fn refused_data_of_removed_or_truncated_file_is_no_error() {
    if !able(&[]) {
        return;
    }
    for cut_off in [false, true] {
        let mut place = Place::mounted("32M", "write=back");
        let path = place.at("filler");
        overfill(&path);
        if cut_off {
            drop(File::create(&path).unwrap())
        } else {
            fs::remove_file(&path).unwrap()
        }
        // Place::umount retries only "busy"; any other error is a failure.
        place.umount();
        place.check();
    }
}

/// Contract: failure.space
#[test]
fn lost_write_is_reported_with_inode_number() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("32M");
    place.mount_logged("write=back");
    overfill(&place.at("filler"));
    let ino = place.at("filler").metadata().unwrap().ino();
    let says = [format!("inode {ino}"), "No space left".into()];
    place.fails(&["sync", "m"], 1, &[&says[0], &says[1]]);
    place.ok(&["sync", "m"]);
    let log = fs::read_to_string(place.beside("log")).unwrap();
    let refused = log.lines().filter(|line| line.contains("was refused"));
    let refused: Vec<_> = refused.collect();
    assert!(
        matches!(&refused[..], [line] if says.iter().all(|word| line.contains(word))),
        "{log}"
    );
    place.finish();
}

#[test]
fn unwritable_volume_file_is_read_or_refused() {
    if !able(&["setpriv"]) {
        return;
    }
    let place = filled();
    let mode = |bits| fs::Permissions::from_mode(bits);
    fs::set_permissions(place.beside(""), mode(0o755)).unwrap();
    fs::set_permissions(place.volume(), mode(0o444)).unwrap();
    let copy = place.beside("cairnfs");
    place.copy_command();
    let nobody = |args: &[&str]| {
        let ids = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut command = Command::new("setpriv");
        command
            .args(ids)
            .arg(&copy)
            .args(args)
            .current_dir(place.beside(""));
        let out = command.output().unwrap();
        (out.status.success(), said(&out))
    };
    let (done, text) = nobody(&["mkdir", "v.cairn:/x"]);
    assert!(
        !done && text.contains("ermission") && text.contains("write it"),
        "{text}"
    );
    assert!(nobody(&["ls", "v.cairn:/"]).1.contains("small7"));
    assert!(nobody(&["cat", "v.cairn:/large1"]).0);
    fs::set_permissions(place.volume(), mode(0o400)).unwrap();
    let (done, text) = nobody(&["ls", "v.cairn:/"]);
    assert!(!done && text.contains("permission to read"), "{text}");
    place.check();
}

#[test]
fn invalid_mount_requests_are_refused() {
    let place = Place::new("16M");
    let cases: [(&[&str], i32, &[&str]); 7] = [
        (
            &["mount", "-o", "colour=red", "v.cairn", "m"],
            1,
            &["colour=red", "unknown"],
        ),
        (
            &["mount", "-o", "cache=lots", "v.cairn", "m"],
            1,
            &["cache=lots", "K, M, G"],
        ),
        (&["mount", "--colour", "v.cairn", "m"], 1, &["--colour"]),
        (&["mount", "v.cairn", "none"], 32, &["none", "--create"]),
        (&["mount", "v.cairn", "v.cairn"], 32, &["not a directory"]),
        (&["mount", "v.cairn", "/proc"], 32, &["/proc", "is taken"]),
        (&["umount", "m"], 32, &["not a mountpoint"]),
    ];
    for (args, code, says) in cases {
        place.fails(args, code, says);
    }
    place.check();
}

/// Imports a directory of 2000 files, and damages a node with some of its entries.
fn hide_names(place: &Place) {
    fs::create_dir_all(place.beside("many/dir")).unwrap();
    for n in 0..2000 {
        fs::write(
            place.beside(format!("many/dir/file-{n:04}")),
            format!("{n}"),
        )
        .unwrap();
    }
    place.ok(&["import", "many", "v.cairn"]);
    let node = 4 * BLOCK_SIZE;
    let sound = fs::read(place.volume()).unwrap();
    let holds = |bytes: &[u8]| {
        let of = |n: usize| format!("file-{n:04}").into_bytes();
        let held = |n: &usize| bytes.windows(9).any(|window| window == of(*n));
        bytes.starts_with(b"CNod") && (900..1100).filter(held).count() > 100
    };
    let mut nodes = (0..sound.len()).step_by(node);
    let hit = nodes.any(|at| {
        if !holds(&sound[at..at + node]) {
            return false;
        }
        fs::write(place.volume(), &sound).unwrap();
        flip(&place.volume(), at as u64 + 9000);
        place.run(&["check", "v.cairn"]).status.code() == Some(4)
    });
    assert!(hit, "no node of entries is in use");
}

/// Programs list and remove what a damaged node does not hide; the volume goes on.
#[test]
fn names_beside_a_damaged_node_are_listed_and_removed() {
    let mut place = Place::new("64M");
    hide_names(&place);
    place.mount("");
    let dir = place.at("dir");
    let shell = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).arg(&dir).output().unwrap()
    };
    let ls = shell("ls", &["-l"]);
    let text = String::from_utf8_lossy(&ls.stdout).into_owned();
    let before = text.lines().filter(|line| line.contains("file-")).count();
    assert!((1000..2000).contains(&before), "{before}");
    assert!(!ls.status.success());
    let errors = String::from_utf8_lossy(&ls.stderr).into_owned();
    assert_eq!(errors.matches("Input/output error").count(), 1, "{errors}");
    let find = shell("find", &[]);
    assert_eq!(
        String::from_utf8_lossy(&find.stdout).lines().count(),
        before + 1
    );

    let rm = shell("rm", &["-r"]);
    assert!(!rm.status.success(), "the others are hidden");
    let left = shell("ls", &["-l"]);
    assert!(!String::from_utf8_lossy(&left.stdout).contains("file-"));
    fs::write(place.at("new"), b"goes on").unwrap();
    place.ok(&["sync", "m"]);
    place.umount();

    place.ok(&["rm", "--damaged", "v.cairn"]);
    place.check();
    place.mount("");
    assert_eq!(fs::read(place.at("new")).unwrap(), b"goes on");
    let found = fs::read_dir(place.at("lost+found")).unwrap().count();
    assert_eq!(found, 2000 - before);
    fs::remove_dir_all(&dir).unwrap();
    fs::remove_dir_all(place.at("lost+found")).unwrap();
    place.umount();
    place.check();
}
