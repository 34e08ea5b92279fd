//! Reservations of dirty data cover what its items take, whatever happens to the file before
//! writeback.
//!
//! Contract: failure.space

use std::sync::Arc;

use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::{Creds, SetAttr, XattrMode};

use super::seen::{assert_sound, options};

fn resize(fs: &FileSystem, file: u64, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(file, &set).unwrap();
}

/// A file outgrows the inline item of its inode in memory only, is truncated below the size of that
/// item, and grows again to a size that fits inline.
#[test]
fn file_truncated_before_writeback_can_grow_again() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    let who = Creds::default();
    let file = fs.mknod(1, b"file", 0o100_644, 0, who).unwrap().ino;
    fs.write(file, 0, &[1; 1000], false).unwrap();
    fs.sync().unwrap();
    fs.write(file, 0, &[2; 5000], false).unwrap();
    resize(&fs, file, 500);
    // The item then has 1025 bytes, while the reservation is for a block.
    resize(&fs, file, 1025);
    assert!(fs.failure().is_none());
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

/// Values stored apart take a whole unit each, however full it is. Many are set, so that a small
/// shortfall per value adds up to units.
#[test]
fn large_values_reserve_whole_units() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    let who = Creds::default();
    let file = fs.mknod(1, b"file", 0o100_644, 0, who).unwrap().ino;
    for i in 0..200u64 {
        let mut value = vec![7; [4100, 5000, 6500, 17_000, 40_000][i as usize % 5]];
        value[..8].copy_from_slice(&i.to_le_bytes());
        let name = format!("user.{i}");
        // A commit that has reserved too little for its growth panics.
        fs.setxattr(file, name.as_bytes(), &value, XattrMode::Set)
            .unwrap();
    }
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}
