//! Tests of the file device: persistence, locking, range checks, host space and truncation.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::*;
use crate::device::{AlignedBuf, Page, Piece};
use crate::error::Error;
use crate::sync::atomic::Ordering;

const SIZE: u64 = 4 << 20;

fn image() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    (dir, path)
}

#[test]
fn unaligned_memory_reads_back() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap();
    let bytes: Vec<u8> = (0..(3 << 20) + 4097u32).map(|i| (i / 7) as u8).collect();
    device.write(8192, &bytes[1..]).unwrap();
    device.flush().unwrap();
    let mut back = vec![0; bytes.len()];
    device.read(8192, &mut back[1..]).unwrap();
    assert!(back[1..] == bytes[1..]);
    let mut aligned = AlignedBuf::zeroed(3 << 20);
    device.read(8192, &mut aligned).unwrap();
    assert!(aligned[..] == bytes[1..=3 << 20]);
}

#[test]
fn partial_ring_write_is_completed() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap();
    let missed = [Errno::INTR, Errno::AGAIN, Errno::CANCELED].map(|e| Err(e.into()));
    for (n, taken) in missed.into_iter().chain([Ok(0), Ok(4096)]).enumerate() {
        let piece = Piece::of_pages(0, vec![Page::with(&[n as u8 + 1; 4096]); 2]);
        let written = taken.as_ref().map_or(0, |n| *n);
        device.finish_write(&piece, taken).unwrap();
        let mut back = [0; 8192];
        device.read(0, &mut back).unwrap();
        assert!(back[written..].iter().all(|b| *b == n as u8 + 1), "{n}");
    }
    let piece = Piece::of_pages(0, vec![Page::with(&[9; 4096])]);
    let failed = device.finish_write(&piece, Err(Errno::IO.into()));
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
}

#[test]
fn write_all_writes_pages_contiguously() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap();
    let pages = |from: u8, to: u8| (from..to).map(|n| Page::with(&[n; 4096])).collect();
    let mut unaligned = AlignedBuf::zeroed(8192);
    unaligned.fill(200);
    let pieces = [
        Piece::of_pages(4096, pages(1, 20)),
        Piece::of_pages(SIZE - 8192, pages(30, 32)),
        Piece::new(1 << 20, Arc::new(unaligned), 512..4608),
    ];
    device.write_all(&pieces[..1]).unwrap();
    device.write_all(&pieces).unwrap();
    let beyond = Piece::of_pages(SIZE - 8192, pages(0, 3));
    device.write_all(&[beyond]).unwrap_err();
    let mut all = vec![0; SIZE as usize];
    device.read(0, &mut all).unwrap();
    for (block, expected) in [(0, 0), (1, 1), (19, 19), (20, 0), (256, 200), (257, 0)] {
        assert!(all[block * 4096..][..4096].iter().all(|b| *b == expected));
    }
    assert_eq!(
        (all[SIZE as usize - 8192], all[SIZE as usize - 1]),
        (30, 31)
    );
}

#[test]
fn written_data_survives_reopen() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap();
    device.write(4096, &[9; 4096]).unwrap();
    drop(device);
    let device = FileDevice::open(&path, Access::ReadWrite).unwrap();
    assert_eq!(device.size(), SIZE);
    assert!(!device.is_block_device());
    let mut block = [0; 4096];
    device.read(4096, &mut block).unwrap();
    assert_eq!(block, [9; 4096]);
}

#[test]
fn volume_of_another_creator_is_not_overwritten() {
    let (_dir, path) = image();
    let first = FileDevice::create_new(&path, SIZE).unwrap();
    let waiting = std::thread::spawn({
        let path = path.clone();
        move || FileDevice::create_new(&path, SIZE).map(|_| ())
    });
    first.write(0, &[1; 4096]).unwrap();
    drop(first);
    // It waits for the lock, or finds the file later.
    assert!(matches!(waiting.join().unwrap(), Err(Error::Exists)));
    let mut block = [0; 4096];
    let device = FileDevice::open(&path, Access::ReadOnly).unwrap();
    device.read(0, &mut block).unwrap();
    assert_eq!(block, [1; 4096]);
}

#[test]
fn file_of_zeros_counts_as_new() {
    let (_dir, path) = image();
    let filled = |at: usize| {
        let mut bytes = vec![0; 3 << 20];
        bytes[at] = 1;
        bytes
    };
    for kept in [vec![0; 100], filled(0), filled((1 << 20) - 1)] {
        std::fs::write(&path, &kept).unwrap();
        let refused = FileDevice::create_new(&path, SIZE);
        assert!(matches!(refused, Err(Error::Exists)), "{refused:?}");
        assert!(std::fs::read(&path).unwrap() == kept);
    }
    for blank in [Vec::new(), vec![0; 1 << 20], filled(1 << 20)] {
        std::fs::write(&path, &blank).unwrap();
        drop(FileDevice::create_new(&path, SIZE).unwrap());
        assert!(std::fs::read(&path).unwrap() == vec![0; SIZE as usize]);
    }
}

#[test]
fn file_that_its_creator_removed_is_not_used() {
    let (_dir, path) = image();
    let first = FileDevice::create_new(&path, SIZE).unwrap();
    let waiting = std::thread::spawn({
        let path = path.clone();
        move || FileDevice::create(&path, SIZE)
    });
    std::fs::remove_file(&path).unwrap();
    drop(first);
    match waiting.join().unwrap() {
        Ok(second) => assert!(second.host_file().is_some_and(|f| f.displaced.is_none())),
        Err(e) => assert!(matches!(e, Error::InUse(_) | Error::Open { .. }), "{e}"),
    }
}

#[test]
fn second_opener_is_refused() {
    let (_dir, path) = image();
    let writer = FileDevice::create(&path, SIZE).unwrap();
    writer.write(0, &[1; 4096]).unwrap();
    for result in [
        FileDevice::open(&path, Access::ReadWrite),
        FileDevice::open(&path, Access::ReadOnly),
        FileDevice::create(&path, SIZE),
    ] {
        let here = matches!(&result, Err(Error::InUse(by)) if by.by_this_process);
        assert!(here, "{result:?}");
    }
    let mut block = [0; 4096];
    writer.read(0, &mut block).unwrap();
    assert_eq!(block, [1; 4096], "the refused creation emptied it");
    drop(writer);
    let reader = FileDevice::open(&path, Access::ReadOnly).unwrap();
    let other = FileDevice::open(&path, Access::ReadOnly).unwrap();
    let result = FileDevice::open(&path, Access::ReadWrite);
    assert!(matches!(result, Err(Error::InUse(_))));
    drop((reader, other));
    FileDevice::open(&path, Access::ReadWrite).unwrap();
}

#[test]
fn open_waits_for_lock_released_soon() {
    let (_dir, path) = image();
    let writer = FileDevice::create(&path, SIZE).unwrap();
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| FileDevice::open(&path, Access::ReadWrite));
        drop(writer);
        opening.join().unwrap().unwrap();
    });
}

/// A descriptor that is passed to a child has the same lock as one that a child inherits.
#[test]
fn lock_ends_with_the_device_although_a_child_has_the_file() {
    let (_dir, path) = image();
    let writer = FileDevice::create(&path, SIZE).unwrap();
    let inherited = writer.file.try_clone().unwrap();
    let mut child = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .stdout(inherited)
        .spawn()
        .unwrap();
    drop(writer);
    let again = FileDevice::open(&path, Access::ReadWrite);
    drop(child.stdin.take());
    child.wait().unwrap();
    again.unwrap();
}

#[test]
fn read_only_device_refuses_changes() {
    let (_dir, path) = image();
    drop(FileDevice::create(&path, SIZE).unwrap());
    let reader = FileDevice::open(&path, Access::ReadOnly).unwrap();
    assert!(matches!(reader.write(0, &[0; 4096]), Err(Error::ReadOnly)));
    assert!(matches!(reader.discard(0, 4096), Err(Error::ReadOnly)));
    reader.flush().unwrap();
}

#[test]
fn open_errors_name_path_and_errno() {
    let (dir, path) = image();
    for (path, errno) in [
        (path.as_path(), libc::ENOENT),
        (dir.path(), libc::EISDIR),
        (Path::new("/dev/null"), libc::EINVAL),
    ] {
        let error = FileDevice::open(path, Access::ReadWrite).unwrap_err();
        assert!(matches!(error, Error::Open { .. }), "{error:?}");
        assert_eq!(error.errno(), errno);
        assert!(error.to_string().contains(&path.display().to_string()));
    }
}

#[test]
fn ranges_are_checked() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap();
    let mut block = [0; 4096];
    for result in [
        device.read(SIZE, &mut block),
        device.read(u64::MAX - 4095, &mut block),
        device.read(100, &mut block),
        device.write(0, &block[1..]),
        device.write(SIZE - 2048, &block),
        device.discard(SIZE, 4096),
    ] {
        let Err(Error::Io { source, .. }) = result else {
            panic!("{result:?}");
        };
        assert_eq!(source.kind(), io::ErrorKind::InvalidInput);
    }
    device.write(SIZE - 4096, &block).unwrap();
}

/// Contract: failure.truncated
#[test]
fn read_of_truncated_file_fails() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap();
    let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    other.set_len(8192 + 100).unwrap();
    let mut blocks = vec![0; 12288];
    device.read(0, &mut blocks[..8192]).unwrap();
    for offset in [0, 8192] {
        let Err(Error::Io { source, .. }) = device.read(offset, &mut blocks) else {
            panic!("read beyond the end");
        };
        assert_eq!(source.kind(), io::ErrorKind::UnexpectedEof);
    }
}

#[test]
fn image_is_sparse_and_discard_frees_space() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, 1 << 30).unwrap();
    let empty = device.allocated_bytes().unwrap();
    assert!(empty < 1 << 20);
    device.write(1 << 20, &vec![3; 1 << 20]).unwrap();
    device.flush().unwrap();
    assert!(device.allocated_bytes().unwrap() >= empty + (1 << 20));
    device.discard(1 << 20, 1 << 20).unwrap();
    device.flush().unwrap();
    if device.discards.load(Ordering::Relaxed) {
        assert!(device.allocated_bytes().unwrap() < empty + (1 << 20));
        let mut block = [1; 4096];
        device.read(1 << 20, &mut block).unwrap();
        assert_eq!(block, [0; 4096]);
    }
    device.discard(0, 0).unwrap();
}

#[test]
fn create_truncates_existing_image() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap();
    device.write(0, &[5; 4096]).unwrap();
    drop(device);
    let device = FileDevice::create(&path, SIZE / 2).unwrap();
    assert_eq!(device.size(), SIZE / 2);
    let mut block = [1; 4096];
    device.read(0, &mut block).unwrap();
    assert_eq!(block, [0; 4096]);
}

/// Contract: failure.truncated
#[test]
fn flush_reports_truncated_file() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap();
    device.write(0, &[1; 8192]).unwrap();
    device.flush().unwrap();
    let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    other.set_len(8192).unwrap();
    for result in [device.flush(), device.check_length()] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("truncated from 4194304 to 8192"), "{error}");
    }
    // A file that grew has lost nothing.
    other.set_len(2 * SIZE).unwrap();
    device.flush().unwrap();
}

#[test]
fn host_room_reports_holes_and_shortfall() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, 1 << 30).unwrap();
    let room = device.host_room().unwrap().unwrap();
    assert!(room.holes > (1 << 30) - (1 << 20));
    device.write(0, &vec![7; 8 << 20]).unwrap();
    device.flush().unwrap();
    let now = HostRoom::of(&path).unwrap().unwrap();
    assert!(now.holes <= room.holes - (8 << 20));
    let short = HostRoom { holes: 5, free: 3 };
    assert_eq!(short.shortfall(), 2);
    assert_eq!(HostRoom { free: 9, ..short }.shortfall(), 0);
    assert!(HostRoom::of(Path::new("/dev/null")).unwrap().is_none());
}

/// Bytes that this thread has fetched from devices so far (proc(5)).
fn fetched() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let bytes = io.lines().find_map(|l| l.strip_prefix("read_bytes: "));
    bytes.unwrap().parse().unwrap()
}

#[test]
fn page_cache_has_what_was_read_and_not_written_since() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap().cache_reads();
    if device.cached.is_none() {
        return assert!(!device.direct || !cached::agrees(&device.file));
    }
    // Far enough from each other for pages of any size.
    const FAR: u64 = 64 << 10;
    device.write(0, &vec![1; 40 * FAR as usize]).unwrap();
    device.flush().unwrap();
    let fetches = |at: u64, expected: u8| {
        let (before, mut bytes) = (fetched(), [0; 4096]);
        device.read_cached(at * FAR, &mut bytes).unwrap();
        assert_eq!(bytes, [expected; 4096]);
        fetched() > before
    };
    assert_eq!([3, 5, 20, 21, 22].map(|at| fetches(at, 1)), [true; 5]);
    assert_eq!([3, 5, 20, 21, 22].map(|at| fetches(at, 1)), [false; 5]);
    device.write(4 * FAR, &vec![2; 17 * FAR as usize]).unwrap();
    assert_eq!([3, 21, 22].map(|at| fetches(at, 1)), [false; 3]);
    assert_eq!([4, 5, 20].map(|at| fetches(at, 2)), [true; 3]);
    // Others do not come from it.
    let before = fetched();
    device.read(3 * FAR, &mut [0; 4096]).unwrap();
    assert!(fetched() > before);
}

#[test]
fn file_that_another_one_replaced_is_read_directly() {
    let (dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap();
    std::fs::rename(&path, dir.path().join("away")).unwrap();
    std::fs::write(&path, [7; 8192]).unwrap();
    let device = device.cache_reads();
    let mut bytes = [1; 4096];
    device.read_cached(0, &mut bytes).unwrap();
    assert_eq!((device.cached.is_none(), bytes), (true, [0; 4096]));
}

/// Each thread writes blocks of its own, between those of the others, and reads them back; others
/// bring old contents into the page cache meanwhile.
#[test]
fn cached_reads_find_every_write_that_returned() {
    let (_dir, path) = image();
    let device = FileDevice::create(&path, SIZE).unwrap().cache_reads();
    let blocks = 64;
    let (device, done) = (&device, &AtomicBool::new(false));
    let writer = |own: u64| {
        for n in 0..1000_u64 {
            let block = |k: u64| (n * 7 + k) % (blocks / 4) * 4 + own;
            let page = |k: u64| Page::with(&[(n + k) as u8; 4096]);
            let piece = |k| Piece::of_pages(block(k) * 4096, vec![page(k)]);
            // Several go through the ring.
            let count = 1 + n % 2;
            let pieces: Vec<Piece> = (0..count).map(piece).collect();
            device.write_all(&pieces).unwrap();
            for k in 0..count {
                let mut back = [0; 4096];
                device.read_cached(block(k) * 4096, &mut back).unwrap();
                assert!(back == [(n + k) as u8; 4096], "{own} {n} {k}: {}", back[0]);
            }
        }
    };
    let reader = |mut at: u64| {
        let mut bytes = [0; 4 * 4096];
        while !done.load(Ordering::Relaxed) {
            at = (at * 5 + 1) % (blocks - 3);
            device.read_cached(at * 4096, &mut bytes).unwrap();
        }
    };
    std::thread::scope(|scope| {
        let readers = [1, 2].map(|at| scope.spawn(move || reader(at)));
        let writers = [0, 1, 2, 3].map(|own| scope.spawn(move || writer(own)));
        let wrote = writers.map(|writer| writer.join().is_ok());
        done.store(true, Ordering::Relaxed);
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
        assert_eq!(wrote, [true; 4]);
    });
}
