//! Open files: access modes, positions, appending, holes, unlinked files.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};

use cairnfs::OpenOptions;

use super::{fails, fails_with, names, permissions, volume};

#[test]
fn open_options_follow_std() {
    let v = volume();
    let open = |o: &mut OpenOptions, p: &str| v.open_with(p, o);
    fails(open(&mut OpenOptions::new(), "f"), ErrorKind::InvalidInput);
    fails(
        open(OpenOptions::new().read(true).create(true), "f"),
        ErrorKind::InvalidInput,
    );
    fails(
        open(OpenOptions::new().read(true).truncate(true), "f"),
        ErrorKind::InvalidInput,
    );
    fails(
        open(OpenOptions::new().append(true).truncate(true), "f"),
        ErrorKind::InvalidInput,
    );
    fails(
        open(OpenOptions::new().write(true), "f"),
        ErrorKind::NotFound,
    );
    assert!(!v.exists("f").unwrap());
    open(
        OpenOptions::new().write(true).create_new(true).mode(0o600),
        "f",
    )
    .unwrap();
    assert_eq!(v.metadata("f").unwrap().mode() & 0o7777, 0o600);
    fails(
        open(OpenOptions::new().write(true).create_new(true), "f"),
        ErrorKind::AlreadyExists,
    );
    v.write("f", b"12345").unwrap();
    open(OpenOptions::new().write(true).create(true), "f").unwrap();
    assert_eq!(v.metadata("f").unwrap().len(), 5);
    open(OpenOptions::new().write(true).truncate(true), "f").unwrap();
    assert_eq!(v.metadata("f").unwrap().len(), 0);
    v.write("g", b"").unwrap();
    assert_eq!(v.metadata("g").unwrap().mode() & 0o7777, 0o644);
    v.create_dir("d").unwrap();
    assert_eq!(v.metadata("d").unwrap().mode() & 0o7777, 0o755);
    fails(
        open(OpenOptions::new().write(true), "d"),
        ErrorKind::IsADirectory,
    );
    fails(v.read("d"), ErrorKind::IsADirectory);
}

#[test]
fn file_access_is_limited_to_open_mode() {
    let v = volume();
    v.write("f", b"data").unwrap();
    let mut reader = v.open_file("f").unwrap();
    fails_with(reader.write_at(b"x", 0), libc::EBADF);
    fails_with(reader.set_len(0), libc::EBADF);
    fails_with(reader.allocate(0, 4096), libc::EBADF);
    fails_with(reader.punch_hole(0, 4096), libc::EBADF);
    fails_with(reader.zero_range(0, 4096), libc::EBADF);
    assert!(reader.write(b"x").is_err());
    let mut writer = v.open_with("f", OpenOptions::new().write(true)).unwrap();
    fails_with(writer.read_at(&mut [0], 0), libc::EBADF);
    assert!(writer.read(&mut [0]).is_err());
    assert_eq!(v.read("f").unwrap(), b"data");
}

#[test]
fn read_write_and_seek_share_one_position() {
    let v = volume();
    let mut options = OpenOptions::new();
    let mut file = v
        .open_with("f", options.read(true).write(true).create(true))
        .unwrap();
    file.write_all(b"hello world").unwrap();
    assert_eq!(file.stream_position().unwrap(), 11);
    assert_eq!(file.seek(SeekFrom::End(-5)).unwrap(), 6);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "world");
    assert_eq!(file.seek(SeekFrom::Start(0)).unwrap(), 0);
    assert!(file.seek(SeekFrom::Current(-1)).is_err());
    assert!(file.seek(SeekFrom::End(-12)).is_err());
    assert_eq!(file.stream_position().unwrap(), 0);
    let mut clone = file.try_clone().unwrap();
    clone.write_all(b"J").unwrap();
    assert_eq!(file.stream_position().unwrap(), 1);
    (&file).write_all(b"E").unwrap();
    assert_eq!(v.read("f").unwrap(), b"JEllo world");
    file.write_all_at(b"W", 6).unwrap();
    assert_eq!(file.stream_position().unwrap(), 2);
    let mut five = [0; 5];
    file.read_exact_at(&mut five, 6).unwrap();
    assert_eq!(&five, b"World");
    let short = file.read_exact_at(&mut five, 7).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(file.read_at(&mut five, 100).unwrap(), 0);
    file.set_len(3).unwrap();
    file.set_len(5).unwrap();
    assert_eq!(v.read("f").unwrap(), b"JEl\0\0");
}

#[test]
fn sixteen_threads_append_without_overlap() {
    let v = volume();
    v.write("log", b"").unwrap();
    std::thread::scope(|s| {
        for thread in 0..16 {
            let v = v.clone();
            s.spawn(move || {
                let mut log = v.open_with("log", OpenOptions::new().append(true)).unwrap();
                for line in 0..100 {
                    writeln!(log, "{thread:02} {line:03}").unwrap();
                }
                log.sync_data().unwrap();
            });
        }
    });
    let text = v.read_to_string("log").unwrap();
    // `writeln!` may write in pieces, which interleave; none of them may be lost or overwritten.
    assert_eq!(text.len(), 16 * 100 * "00 000\n".len());
    assert_eq!(text.matches('\n').count(), 1600);
    let log = v.open_with("log", OpenOptions::new().append(true)).unwrap();
    (&log).write_all(b"whole record\n").unwrap();
    assert!(v.read_to_string("log").unwrap().ends_with("whole record\n"));
    log.write_all_at(b"##", 0).unwrap();
    assert!(v.read_to_string("log").unwrap().starts_with("##"));
}

#[test]
fn concurrent_appends_do_not_interleave() {
    let v = volume();
    v.write("log", b"").unwrap();
    std::thread::scope(|s| {
        for thread in 0..8u8 {
            let v = &v;
            s.spawn(move || {
                let mut log = v.open_with("log", OpenOptions::new().append(true)).unwrap();
                for _ in 0..50 {
                    log.write_all(&[b'a' + thread; 5000]).unwrap();
                }
            });
        }
    });
    let bytes = v.read("log").unwrap();
    assert_eq!(bytes.len(), 8 * 50 * 5000);
    for record in bytes.chunks(5000) {
        assert!(record.iter().all(|b| *b == record[0]));
    }
}

#[test]
fn unlinked_files_live_until_closed() {
    let v = volume();
    let mut options = OpenOptions::new();
    let file = v
        .open_with("f", options.read(true).write(true).create(true))
        .unwrap();
    file.write_all_at(&[7; 100_000], 0).unwrap();
    v.remove_file("f").unwrap();
    assert!(!v.exists("f").unwrap());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(b"more", 100_000).unwrap();
    let mut bytes = vec![0; 100_004];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes[99_999..], b"\x07more");
    file.sync_all().unwrap();
    v.write("f", b"another").unwrap();
    assert_ne!(
        v.metadata("f").unwrap().ino(),
        file.metadata().unwrap().ino()
    );
    let clone = file.try_clone().unwrap();
    drop(file);
    assert_eq!(clone.metadata().unwrap().len(), 100_004);
    let ino = clone.metadata().unwrap().ino();
    drop(clone);
    v.sync().unwrap();
    fails(v.file_system().getattr(ino), ErrorKind::NotFound);
    let temp = v.tempfile("/").unwrap();
    temp.write_all_at(b"nameless", 0).unwrap();
    assert_eq!(temp.metadata().unwrap().len(), 8);
    assert_eq!(names(&v, "/"), ["f"]);
}

/// Contract: stale
#[test]
fn sparse_files_report_data_and_holes() {
    let v = volume();
    let mut options = OpenOptions::new();
    let file = v
        .open_with("s", options.read(true).write(true).create(true))
        .unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(file.seek_data(0).unwrap(), None);
    assert_eq!(file.seek_hole(0).unwrap(), Some(0));
    file.write_all_at(&[1; 8192], 1 << 30).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.seek_data(0).unwrap(), Some(1 << 30));
    assert_eq!(file.seek_hole(1 << 30).unwrap(), Some((1 << 30) + 8192));
    assert_eq!(file.seek_data((1 << 30) + 8192).unwrap(), None);
    assert_eq!(file.seek_hole(1 << 40).unwrap(), None);
    assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20);
    let mut bytes = [9; 16];
    file.read_exact_at(&mut bytes, (1 << 30) - 8).unwrap();
    assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    file.punch_hole(1 << 30, 4096).unwrap();
    assert_eq!(file.seek_data(0).unwrap(), Some((1 << 30) + 4096));
    file.zero_range((1 << 30) + 4096, 4096).unwrap();
    file.read_exact_at(&mut bytes, (1 << 30) + 4096).unwrap();
    assert_eq!(bytes, [0; 16]);
    assert_eq!(file.metadata().unwrap().len(), 1 << 40);
    file.set_len(0).unwrap();
    file.allocate(0, 1 << 20).unwrap();
    let m = file.metadata().unwrap();
    assert_eq!(m.len(), 1 << 20);
    assert!(m.blocks() * 512 >= 1 << 20);
}

#[test]
fn copies_keep_contents_mode_and_holes() {
    let v = volume();
    let mut options = OpenOptions::new();
    let file = v
        .open_with("from", options.write(true).create(true))
        .unwrap();
    let bytes: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
    file.write_all_at(&bytes, 1 << 20).unwrap();
    file.set_len(1 << 32).unwrap();
    v.set_permissions("from", permissions(0o750)).unwrap();
    v.write("to", vec![5; 5_000_000]).unwrap();
    assert_eq!(v.copy("from", "to").unwrap(), 1 << 32);
    let to = v.open_file("to").unwrap();
    let m = to.metadata().unwrap();
    assert_eq!((m.len(), m.mode()), (1 << 32, 0o100_750));
    let mut copied = vec![1; 300_000];
    to.read_exact_at(&mut copied, 1 << 20).unwrap();
    assert_eq!(copied, bytes);
    assert!(m.blocks() * 512 < 1 << 20);
    let mut start = vec![1; 1 << 20];
    to.read_exact_at(&mut start, 0).unwrap();
    assert!(start.iter().all(|b| *b == 0));
    fails(v.copy("from", "from"), ErrorKind::InvalidInput);
    assert_eq!(v.metadata("from").unwrap().len(), 1 << 32);
    v.create_dir("d").unwrap();
    fails(v.copy("d", "x"), ErrorKind::InvalidInput);
    v.write("empty", b"").unwrap();
    assert_eq!(v.copy("empty", "empty2").unwrap(), 0);
}

/// Contract: rot
#[test]
fn files_of_many_sizes_are_read_back() {
    let v = volume();
    for size in [
        0,
        1,
        100,
        2048,
        2049,
        4096,
        4097,
        1 << 20,
        (1 << 20) + 1,
        5_000_003,
    ] {
        let bytes: Vec<u8> = (0..size).map(|i: usize| (i * 31 + size) as u8).collect();
        v.write("f", &bytes).unwrap();
        assert_eq!(v.read("f").unwrap(), bytes, "{size} bytes");
    }
    v.write("f", b"\xff").unwrap();
    fails(v.read_to_string("f"), ErrorKind::InvalidData);
}

/// Contract: failure.read, copies
#[test]
fn bad_block_fails_only_reads_of_it() {
    const BAD: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.img");
    let block = |n: usize| format!("{n:04096}").into_bytes();
    let v = cairnfs::Volume::create(&path, 32 << 20).unwrap();
    v.write("f", (0..40).flat_map(block).collect::<Vec<_>>())
        .unwrap();
    v.close().unwrap();
    let mut image = std::fs::read(&path).unwrap();
    let mut rotten = image.chunks_mut(4096).filter(|b| **b == block(BAD)[..]);
    rotten.next().unwrap()[100] ^= 1;
    assert!(rotten.next().is_none());
    std::fs::write(&path, image).unwrap();
    // Sequential, so that readahead also reads the bad block.
    let v = cairnfs::Volume::open(&path).unwrap();
    let file = v.open_file("f").unwrap();
    for n in 0..40 {
        let mut bytes = vec![0; 4096];
        let read = file.read_at(&mut bytes, n as u64 * 4096);
        assert_eq!(read.is_ok(), n != BAD, "block {n}");
        assert!(n == BAD || bytes == block(n), "block {n}");
    }
}

#[test]
fn linked_unnamed_file_stays_with_its_contents_and_attributes() {
    let v = volume();
    v.create_dir("d").unwrap();
    let file = v.tempfile("d").unwrap();
    file.write_all_at(b"whole", 0).unwrap();
    file.set_xattr("user.kind", b"text").unwrap();
    v.link_file(&file, "d/named").unwrap();
    fails(v.link_file(&file, "d/named"), ErrorKind::AlreadyExists);
    v.link_file(&file, "second").unwrap();
    drop(file);
    assert_eq!(v.read("d/named").unwrap(), b"whole");
    assert_eq!(v.metadata("second").unwrap().nlink(), 2);
    let kind = v.get_xattr("second", "user.kind").unwrap();
    assert_eq!(kind.as_deref(), Some(&b"text"[..]));

    let removed = v.create_new_file("removed").unwrap();
    v.remove_file("removed").unwrap();
    fails(v.link_file(&removed, "again"), ErrorKind::NotFound);
    let other = volume().tempfile("/").unwrap();
    fails(v.link_file(&other, "foreign"), ErrorKind::InvalidInput);
    let dir = v.open_file("d").unwrap();
    fails_with(v.link_file(&dir, "e"), libc::EPERM);
}

#[test]
fn space_of_a_range_changes_with_and_without_the_size() {
    use cairnfs::Fallocate;
    let v = volume();
    let file = v.create_new_file("f").unwrap();
    let keep = |keep_size| Fallocate::Allocate { keep_size };
    file.fallocate(0, 1 << 20, keep(true)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert_eq!(file.metadata().unwrap().blocks(), 2048);
    file.fallocate(0, 1 << 20, keep(false)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    file.fallocate(0, 1 << 20, Fallocate::PunchHole).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 0);
}

#[test]
fn ranges_are_copied_between_and_within_files() {
    let v = volume();
    let from = v.create_new_file("from").unwrap();
    from.write_all_at(b"0123456789", 0).unwrap();
    let to = v.create_new_file("to").unwrap();
    assert_eq!(from.copy_range(2, &to, 1, 100).unwrap(), 8);
    assert_eq!(v.read("to").unwrap(), b"\x0023456789");
    assert_eq!(from.copy_range(0, &from, 10, 5).unwrap(), 5);
    assert_eq!(v.read("from").unwrap(), b"012345678901234");
    fails(from.copy_range(0, &from, 1, 5), ErrorKind::InvalidInput);
    let other = volume().create_new_file("f").unwrap();
    fails(from.copy_range(0, &other, 0, 1), ErrorKind::InvalidInput);
    let read_only = v.open_file("to").unwrap();
    fails_with(from.copy_range(0, &read_only, 0, 1), libc::EBADF);
}
