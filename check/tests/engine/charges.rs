//! What changes of a head that inherits are charged covers the copies of its merge. A merge that
//! copies more than that panics, so these tests make the changes for which a charge is easily too
//! low.

use std::io::Write;
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, File, OpenOptions, Volume};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::SetAttr;

use super::seen::assert_sound;
use super::snapshots::{fresh, kill, open, volume};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// Extents of the file, which fill several leaves: every other block is a hole.
const EXTENTS: u64 = 3000;

/// A volume with a file of many extents, and a branch of it.
fn branch_of_many_extents() -> (Arc<MemoryDevice>, Arc<FileSystem>, Volume) {
    let device = fresh(128 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    write_extents(&v.create_file("f").unwrap());
    fs.merge().unwrap();
    let branch = v.branch("b").unwrap();
    fs.merge().unwrap();
    (device, fs, branch)
}

fn write_extents(file: &File) {
    for n in 0..EXTENTS {
        file.write_all_at(&[7; BLOCK as usize], n * 2 * BLOCK)
            .unwrap();
    }
    file.sync_all().unwrap();
}

fn writable(v: &Volume) -> File {
    v.open_with("f", OpenOptions::new().write(true)).unwrap()
}

/// A volume of small files with branches, and no space left.
/// Changes of a head that inherits are charged for the copies that the merge will make.
#[test]
fn changes_of_many_branches_are_refused_before_one_merge() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    let name = |n: u32| format!("a-file-with-a-long-name-{n}");
    (0..6000).for_each(|n| v.write(name(n), "small").unwrap());
    fs.merge().unwrap();
    let made = (0..24).map(|n| v.branch(&format!("b{n}")).unwrap());
    let branches: Vec<Volume> = made.collect();
    fs.merge().unwrap();
    let mut rest = v.create_file("rest").unwrap();
    while rest.write_all(&[9; 65_536]).is_ok() {}
    drop(rest);
    fs.sync().unwrap();
    fs.merge().unwrap();
    let inodes: Vec<u64> = (0..6000)
        .step_by(20)
        .map(|n| v.metadata(name(n)).unwrap().ino())
        .collect();
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    let mut refused = 0;
    for branch in &branches {
        for ino in &inodes {
            if let Err(e) = branch.file_system().setattr(*ino, &set) {
                assert!(matches!(e.cause(), Error::HeldByRoots), "{e:?}");
                refused += 1;
                break;
            }
        }
    }
    assert!(refused > 3, "{refused}");
    fs.merge().unwrap();
    drop(branches);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

/// Deletions that are not neighbours are charged apart, also when the log is replayed.
#[test]
fn scattered_deletions_are_charged_after_replay() {
    let (device, fs, branch) = branch_of_many_extents();
    let file = writable(&branch);
    for n in (0..EXTENTS).step_by(100) {
        file.punch_hole(n * 2 * BLOCK, BLOCK).unwrap();
    }
    fs.sync().unwrap();
    drop(file);
    std::mem::forget(branch);
    let again = open(&device);
    kill(fs);
    again.merge().unwrap();
    again.close().unwrap();
    assert_sound(&*device, "closed");
}

/// Extents of a file that one transaction can delete, and blocks of each.
const LONG: (u64, u64) = (480, 64);

fn write_long_extents(file: &File) {
    let (count, blocks) = LONG;
    let bytes = vec![7; (blocks * BLOCK) as usize];
    for n in 0..count {
        file.write_all_at(&bytes, n * 2 * blocks * BLOCK).unwrap();
    }
    file.sync_all().unwrap();
}

/// Deleted neighbours leave their leaves empty, so they are charged together. Leaves that get new
/// extents in their places are copied, and charged then.
#[test]
fn extents_in_the_place_of_deleted_ones_are_charged() {
    let device = fresh(384 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    write_long_extents(&v.create_file("f").unwrap());
    fs.merge().unwrap();
    let branch = v.branch("b").unwrap();
    fs.merge().unwrap();
    let file = writable(&branch);
    file.set_len(0).unwrap();
    write_long_extents(&file);
    fs.merge().unwrap();
    drop((file, branch));
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

/// Bytes of an attribute's value that has an item of its own, of which three fill a leaf.
const LONG_VALUE: usize = 4096;

fn long_value(n: u32) -> Vec<u8> {
    n.to_le_bytes().repeat(LONG_VALUE / 4)
}

/// A long value in the place of another one changes the uses of both, and the bytes of both.
#[test]
fn long_values_in_the_place_of_others_are_charged() {
    let device = fresh(128 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    for file in 0..24 {
        v.write(format!("f{file}"), "small").unwrap();
        for n in 0..25 {
            let value = long_value(file * 25 + n);
            v.set_xattr(format!("f{file}"), format!("user.{n}"), value)
                .unwrap();
        }
    }
    fs.merge().unwrap();
    for round in 0..10 {
        let branch = v.branch(&format!("b{round}")).unwrap();
        fs.merge().unwrap();
        let value = long_value(10_000 + round);
        branch
            .set_xattr(format!("f{round}"), "user.7", value)
            .unwrap();
        fs.merge().unwrap();
    }
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}
