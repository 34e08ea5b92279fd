//! Truncations and removals in steps whose later step fails to read the index: the blocks beyond
//! the new size never become contents again, whatever happens to the inode in between.
//!
//! The file has more extents than one step frees. A failed truncation sets the new size and leaves
//! the rest of its work to the next change of the size, or to the next opening; a removal whose
//! name is gone succeeds, and leaves the rest to the next opening.
//!
//! Contract: stale

use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs_disk::types::{Creds, SetAttr};
use cairnfs_sim::disk::{Fault, Kind, SimDisk};
use cairnfs_sim::image::Image;
use cairnfs_sim::record::{fresh_volume, options};
use cairnfs_sim::tree::ROOT;

use crate::support::sound;

const CREDS: Creds = Creds { uid: 0, gid: 0 };
/// Extents of the file: one block each, every second block of the file.
const EXTENTS: u64 = 3000;
const END: u64 = EXTENTS * 8192;
/// Files that displace everything else from memory.
const OTHERS: u64 = 20_000;

fn open(image: &Image, seed: u64) -> (Arc<SimDisk>, Arc<FileSystem>) {
    let disk = Arc::new(SimDisk::new(image.clone(), false));
    let fs = FileSystem::open_device(disk.clone(), &options(seed)).unwrap();
    (disk, fs)
}

fn write_extents(fs: &FileSystem, ino: u64) {
    for i in 0..EXTENTS {
        fs.write(ino, i * 8192, &[0xaa; 4096], true).unwrap();
    }
}

/// A volume with the file `x`, merged.
fn volume_with_file() -> Image {
    let (disk, fs) = open(&fresh_volume(64 << 20).unwrap(), 1);
    let ino = fs.mknod(ROOT, b"x", 0o100_644, 0, CREDS).unwrap().ino;
    write_extents(&fs, ino);
    fs.close().unwrap();
    disk.image()
}

fn set_size(fs: &FileSystem, ino: u64, to: u64) -> cairnfs::Result<()> {
    let set = SetAttr {
        size: Some(to),
        ..SetAttr::default()
    };
    fs.setattr(ino, &set).map(|_| ())
}

/// Merges, and uses so many other files that all inodes and index nodes leave memory.
fn displace(fs: &FileSystem) {
    let name = |i: u64| format!("other-{i}").into_bytes();
    for i in 0..OTHERS {
        let other = fs.mknod(ROOT, &name(i), 0o100_644, 0, CREDS).unwrap();
        fs.forget(other.ino, 1);
    }
    fs.merge().unwrap();
    for i in 0..OTHERS {
        let other = fs.lookup(ROOT, &name(i)).unwrap();
        fs.forget(other.ino, 1);
    }
}

/// Grows the file to its former size, and checks that it reads as zeros.
fn grow_and_check(fs: &FileSystem, ino: u64, when: &str) {
    set_size(fs, ino, END).unwrap();
    let mut bytes = vec![0; END as usize];
    fs.read(ino, 0, &mut bytes).unwrap();
    let stale = bytes.iter().filter(|b| **b != 0).count();
    assert_eq!(stale, 0, "{when}: bytes that a truncation had removed");
}

#[test]
fn failed_truncation_of_unlinked_file_leaves_no_stale_data() {
    let image = volume_with_file();
    let mut failed_midway = 0;
    for n in 0.. {
        let (disk, fs) = open(&image, 2);
        let ino = fs.lookup(ROOT, b"x").unwrap().ino;
        fs.unlink(ROOT, b"x").unwrap();
        disk.plan(Kind::Read, n, Fault::Error);
        let truncated = set_size(&fs, ino, 0);
        if disk.hit().is_none() {
            break;
        }
        if fs.getattr(ino).unwrap().size == 0 {
            failed_midway += u32::from(truncated.is_err());
            grow_and_check(&fs, ino, &format!("read {n}"));
        }
    }
    assert!(failed_midway > 0, "no read failed between two steps");
}

/// An open file without a name whose truncation failed after its first step.
fn half_truncated_unnamed_file() -> (Arc<SimDisk>, Arc<FileSystem>, u64) {
    for reads in 0..16 {
        let (disk, fs) = open(&fresh_volume(64 << 20).unwrap(), 1);
        let ino = fs.tmpfile(ROOT, 0o644, CREDS).unwrap().ino;
        write_extents(&fs, ino);
        fs.sync().unwrap();
        displace(&fs);
        disk.plan(Kind::Read, reads, Fault::Error);
        let truncated = set_size(&fs, ino, 0);
        if truncated.is_err() && fs.getattr(ino).unwrap().size == 0 {
            return (disk, fs, ino);
        }
    }
    unreachable!("no read failed between two steps")
}

#[test]
fn failed_truncation_of_unnamed_file_is_finished_after_link_and_power_cut() {
    let (disk, fs, ino) = half_truncated_unnamed_file();
    fs.link(ino, ROOT, b"x").unwrap();
    fs.fsync(ino, false).unwrap();
    let (_disk, fs) = open(&disk.image(), 2);
    let ino = fs.lookup(ROOT, b"x").unwrap().ino;
    assert_eq!(fs.getattr(ino).unwrap().blocks, 0, "after the opening");
    grow_and_check(&fs, ino, "after the power cut");
}

#[test]
fn failed_truncation_is_finished_after_inode_left_memory() {
    let (disk, fs) = open(&volume_with_file(), 2);
    let ino = fs.lookup(ROOT, b"x").unwrap().ino;
    disk.plan(Kind::Read, 3, Fault::Error);
    set_size(&fs, ino, 0).unwrap_err();
    assert_eq!(fs.getattr(ino).unwrap().size, 0, "the first step is done");
    fs.forget(ino, 1);
    displace(&fs);
    let ino = fs.lookup(ROOT, b"x").unwrap().ino;
    grow_and_check(&fs, ino, "after the inode left memory");
    set_size(&fs, ino, 0).unwrap();
    fs.forget(ino, 1);
    fs.unlink(ROOT, b"x").unwrap();
    fs.close().unwrap();
    sound(&disk.image()).unwrap();
}

#[test]
fn failed_removal_of_long_file_reports_the_removed_name_as_success() {
    let image = volume_with_file();
    let mut put_off = 0;
    for n in 0.. {
        let (disk, fs) = open(&image, 2);
        disk.plan(Kind::Read, n, Fault::Error);
        let removed = fs.unlink(ROOT, b"x");
        if disk.hit().is_none() {
            break;
        }
        let named = fs.lookup(ROOT, b"x").is_ok();
        assert_eq!(removed.is_err(), named, "read {n}: {removed:?}");
        put_off += u32::from(!named);
        drop(fs);
        open(&disk.image(), 3).1.close().unwrap();
    }
    assert!(put_off > 0, "no read failed after the name was removed");
}

#[test]
fn stopped_volume_refuses_attributes_of_unlinked_file() {
    let (disk, fs) = open(&volume_with_file(), 2);
    let ino = fs.lookup(ROOT, b"x").unwrap().ino;
    fs.unlink(ROOT, b"x").unwrap();
    disk.cut();
    fs.sync().unwrap_err();
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(ino, &set).unwrap_err();
}
