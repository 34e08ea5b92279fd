//! Host trees written to archives and read back, and hostile archives.
//!
//! Contract: copies.failed

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use super::*;
use crate::output::Progress;
use crate::tree::Keep;
use crate::tree::host::HostSource;
use crate::tree::host_sink::HostSink;
use crate::tree::tar_out::TarSink;

fn pack(from: &Path) -> Vec<u8> {
    let progress = Progress::bytes("", 0, true);
    let mut copier = Copier::new(Keep::ALL, &progress);
    let mut sink = TarSink::new(Vec::new(), "test.tar".into());
    let mut source = HostSource::open(from, true).unwrap();
    copier.copy(&mut source, &mut sink, Vec::new()).unwrap();
    assert_eq!(copier.summary.failed, 0);
    sink.finish().unwrap()
}

fn unpack(archive: &[u8], to: &Path) -> Result<crate::tree::Summary, Failure> {
    let progress = Progress::bytes("", 0, true);
    let mut copier = Copier::new(Keep::ALL, &progress);
    let mut sink = HostSink::open(to, Keep::ALL)?;
    let reader = TarReader::new(Cursor::new(archive), "test.tar".into());
    reader.import(&mut copier, &mut sink)?;
    Ok(copier.summary)
}

fn plain(name: &str, data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

#[test]
fn tree_is_unchanged_after_archive_round_trip() {
    let from = tempfile::tempdir().unwrap();
    let to = tempfile::tempdir().unwrap();
    let root = from.path();
    let long = "n".repeat(200);
    fs::create_dir_all(root.join("a").join(&long)).unwrap();
    fs::write(root.join("a").join(&long).join("f"), b"deep").unwrap();
    fs::write(root.join("one"), b"linked").unwrap();
    fs::hard_link(root.join("one"), root.join("two")).unwrap();
    std::os::unix::fs::symlink("../x".repeat(60), root.join("sym")).unwrap();
    fs::set_permissions(root.join("one"), fs::Permissions::from_mode(0o640)).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    sparse.write_all_at(b"middle", 5 << 20).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    sparse.set_modified(time).unwrap();

    let archive = pack(root);
    assert!(archive.len() < 1 << 20, "holes are not stored");
    let summary = unpack(&archive, to.path()).unwrap();
    assert_eq!(
        (summary.files, summary.hard_links, summary.symlinks),
        (3, 1, 1)
    );

    let to = to.path();
    assert_eq!(
        fs::read(to.join("a").join(&long).join("f")).unwrap(),
        b"deep"
    );
    let (one, two) = (to.join("one").metadata(), to.join("two").metadata());
    assert_eq!(one.as_ref().unwrap().ino(), two.unwrap().ino());
    assert_eq!(one.unwrap().mode() & 0o7777, 0o640);
    assert_eq!(
        fs::read_link(to.join("sym")).unwrap(),
        fs::read_link(root.join("sym")).unwrap()
    );
    let back = to.join("sparse").metadata().unwrap();
    assert_eq!(back.len(), 10 << 20);
    assert!(back.blocks() * 512 < 1 << 20, "holes stay holes");
    assert_eq!(back.modified().unwrap(), time);
    let sparse = fs::read(to.join("sparse")).unwrap();
    assert_eq!(&sparse[5 << 20..(5 << 20) + 6], b"middle");
    assert_eq!(sparse.iter().filter(|b| **b != 0).count(), 6);
}

/// Creates sparse, linked and long-named files with times.
fn plant(root: &Path) {
    let name = "d".repeat(150);
    fs::create_dir(root.join(&name)).unwrap();
    let sparse = fs::File::create(root.join(&name).join("s")).unwrap();
    sparse.set_len((4 << 20) + 5).unwrap();
    for at in 0..40 {
        sparse.write_all_at(&[1; 4096], at * 65_536).unwrap();
    }
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 120_000_000);
    sparse.set_modified(time).unwrap();
    fs::hard_link(root.join(&name).join("s"), root.join("t")).unwrap();
    fs::File::create(root.join("hole"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    fs::write(root.join("end"), [9; 513]).unwrap();
}

fn same(a: &Path, b: &Path, whole_seconds: bool) {
    for name in ["t", "hole", "end"] {
        let (a, b) = (a.join(name), b.join(name));
        assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{name}");
        let (a, b) = (a.metadata().unwrap(), b.metadata().unwrap());
        assert_eq!((a.mtime(), a.nlink()), (b.mtime(), b.nlink()), "{name}");
        assert!(whole_seconds || a.mtime_nsec() == b.mtime_nsec(), "{name}");
    }
    assert!(b.join("hole").metadata().unwrap().blocks() < 100);
}

/// Runs GNU tar with `args`; `None` where it is not installed.
fn gnu_tar(args: &[&str]) -> Option<()> {
    let version = std::process::Command::new("tar")
        .arg("--version")
        .output()
        .ok()?;
    if !String::from_utf8_lossy(&version.stdout).contains("GNU tar") {
        return None;
    }
    let done = std::process::Command::new("tar")
        .args(args)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(
        done.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    Some(())
}

#[test]
fn gnu_tar_reads_our_archives() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    fs::create_dir(at("in")).unwrap();
    fs::create_dir(at("out")).unwrap();
    plant(&at("in"));
    fs::write(at("a.tar"), pack(&at("in"))).unwrap();
    let (archive, out) = (at("a.tar"), at("out"));
    let args = [
        "-xf",
        archive.to_str().unwrap(),
        "-C",
        out.to_str().unwrap(),
    ];
    if gnu_tar(&args).is_some() {
        same(&at("in"), &at("out"), false);
    }
}

#[test]
fn archives_of_gnu_tar_are_read() {
    for (format, version) in [
        ("gnu", "1.0"),
        ("oldgnu", "1.0"),
        ("pax", "1.0"),
        ("pax", "0.1"),
    ] {
        let work = tempfile::tempdir().unwrap();
        let at = |name: &str| work.path().join(name);
        fs::create_dir(at("in")).unwrap();
        fs::create_dir(at("out")).unwrap();
        plant(&at("in"));
        let (archive, root) = (at("a.tar"), at("in"));
        let (format_arg, sparse) = (
            format!("--format={format}"),
            format!("--sparse-version={version}"),
        );
        let mut args = vec![format_arg.as_str(), "-S"];
        if format == "pax" {
            args.push(&sparse);
        }
        args.extend([
            "-cf",
            archive.to_str().unwrap(),
            "-C",
            root.to_str().unwrap(),
            ".",
        ]);
        if gnu_tar(&args).is_some() {
            unpack(&fs::read(archive).unwrap(), &at("out")).unwrap();
            same(&at("in"), &at("out"), format != "pax");
        }
    }
}

#[test]
fn member_names_outside_of_tree_are_refused() {
    let to = tempfile::tempdir().unwrap();
    for name in ["/etc/passwd", "../up", "a/../../up", ".."] {
        let failure = unpack(&plain(name, b"x"), to.path()).unwrap_err();
        assert!(
            failure.to_string().contains("refusing"),
            "{name}: {failure}"
        );
    }
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
}

#[test]
fn symlink_in_archive_is_not_written_through() {
    let to = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), to.path().join("d")).unwrap();
    let mut directory = Header::new_ustar();
    directory.as_old_mut().name[..2].copy_from_slice(b"d/");
    directory.set_entry_type(tar::EntryType::Directory);
    directory.set_size(0);
    directory.set_mode(0o755);
    directory.set_cksum();
    let mut archive = directory.as_bytes().to_vec();
    archive.extend(plain("d/f", b"x"));
    assert_eq!(unpack(&archive, to.path()).unwrap().failed, 2);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn invalid_and_truncated_archives_are_reported() {
    let to = tempfile::tempdir().unwrap();
    let why = |bytes: &[u8]| unpack(bytes, to.path()).unwrap_err().to_string();
    assert!(why(&[1; 1024]).contains("nor a tar archive"));
    assert!(why(b"").contains("nor a tar archive"));
    assert!(why(b"a note\n").contains("nor a tar archive"));
    let whole = plain("f", &[7; 1000]);
    assert!(why(&whole[..900]).contains("too early"));
}

#[test]
fn invalid_sparse_maps_are_refused() {
    let to = tempfile::tempdir().unwrap();
    let mut records = Vec::new();
    pax::push(&mut records, b"GNU.sparse.major", b"1");
    pax::push(&mut records, b"GNU.sparse.realsize", b"100");
    for map in [
        "1\n0\n200\n",
        "99999999\n0\n",
        "2\n50\n20\n0\n10\n",
        "x",
        "1\n18446744073709551615\n18446744073709551615\n",
    ] {
        let mut extended = Header::new_ustar();
        extended.set_entry_type(tar::EntryType::XHeader);
        extended.set_size(records.len() as u64);
        extended.set_cksum();
        let mut archive = extended.as_bytes().to_vec();
        archive.extend(&records);
        archive.resize(archive.len().next_multiple_of(512), 0);
        let mut data = map.as_bytes().to_vec();
        data.resize(1024, 0);
        archive.extend(plain("s", &data));
        assert!(unpack(&archive, to.path()).is_err(), "{map:?}");
    }
}

fn extended(flag: u8, records: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_entry_type(tar::EntryType::new(flag));
    header.set_size(records.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(records);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// An archive without an end, generated piece by piece.
struct Endless {
    next: Box<dyn Fn(u64) -> Vec<u8>>,
    count: u64,
    piece: Cursor<Vec<u8>>,
}

impl Read for Endless {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let got = self.piece.read(buf)?;
        if got > 0 {
            return Ok(got);
        }
        self.count += 1;
        self.piece = Cursor::new((self.next)(self.count));
        self.piece.read(buf)
    }
}

#[test]
fn memory_for_extended_headers_is_bounded() {
    let to = tempfile::tempdir().unwrap();
    let refused = |next: Box<dyn Fn(u64) -> Vec<u8>>| {
        let (count, piece) = (0, Cursor::new(Vec::new()));
        let progress = Progress::bytes("", 0, true);
        let mut copier = Copier::new(Keep::ALL, &progress);
        let mut sink = HostSink::open(to.path(), Keep::ALL).unwrap();
        let input = Endless { next, count, piece };
        let reader = TarReader::new(input, "test.tar".into());
        let refused = reader.import(&mut copier, &mut sink);
        refused.unwrap_err().to_string()
    };
    let records = |n: u64, count: u64, len: usize| {
        let mut records = Vec::new();
        for i in 0..count {
            pax::push(
                &mut records,
                format!("k{n}.{i}").as_bytes(),
                &vec![b'v'; len],
            );
        }
        records
    };
    let says = |next: Box<dyn Fn(u64) -> Vec<u8>>, what: &str| {
        let message = refused(next);
        assert!(message.contains(what), "{message}");
    };
    says(
        Box::new(move |n| extended(b'x', &records(n, 1, 1 << 20))),
        "16 MiB",
    );
    says(
        Box::new(move |_| extended(b'x', &records(0, 1, 1 << 20))),
        "32 MiB",
    );
    says(
        Box::new(move |n| extended(b'x', &records(n, 1, 0))),
        "32 MiB",
    );
    says(
        Box::new(move |n| extended(b'x', &records(n, 1000, 0))),
        "65,536",
    );
    says(Box::new(|_| extended(b'L', &vec![b'n'; 1 << 20])), "32 MiB");
    says(
        Box::new(move |n| extended(b'g', &records(n, 1, 0))),
        "1,024",
    );
    let global = move |n| {
        let mut member = extended(b'g', &records(n, 1, 64 << 10));
        member.extend(plain("f", b"x"));
        member
    };
    says(Box::new(global), "1 MiB");
}
