//! Rewrites scattered blocks of files on a full volume, as a database does.
//!
//! Contract: failure.space

use std::sync::Arc;

use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::{Creds, Fallocate};

use super::seen::{assert_sound, options};

const BLOCK: u64 = 4096;
/// Number of blocks of the rewritten file. If each block has its own extent, the extents take less
/// index space than is reserved for this purpose.
const BLOCKS: u64 = 256;

/// All blocks, in an order in which no two consecutive ones are adjacent.
fn scattered_order() -> impl Iterator<Item = u64> {
    (0..4 * BLOCKS).map(|i| i * 97 % BLOCKS)
}

/// A full volume with a file whose blocks are all written, or all preallocated.
fn full(ahead: bool) -> (Arc<MemoryDevice>, Arc<FileSystem>, u64) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    let make = |name: &[u8]| {
        let who = Creds::default();
        fs.mknod(1, name, 0o100_644, 0, who).unwrap().ino
    };
    let file = make(b"file");
    let len = BLOCKS * BLOCK;
    if ahead {
        let what = Fallocate::Allocate { keep_size: false };
        fs.fallocate(file, 0, len, what, false).unwrap();
    } else {
        fs.write(file, 0, &vec![1; len as usize], false).unwrap();
    }
    let rest = make(b"rest");
    let mut at = 0;
    while let Ok(n) = fs.write(rest, at, &[9; 65_536], false) {
        at += n as u64;
    }
    fs.sync().unwrap();
    fs.merge().unwrap();
    (device, fs, file)
}

fn refused_writes(fs: &FileSystem, file: u64) -> Vec<usize> {
    let write = |block: u64| fs.write(file, block * BLOCK, &[2; 4096], false);
    let blocks = scattered_order().enumerate();
    blocks
        .filter(|(_, block)| write(*block).is_err())
        .map(|(i, _)| i)
        .collect()
}

fn rewrite_blocks(ahead: bool) {
    let (device, fs, file) = full(ahead);
    let refused = refused_writes(&fs, file);
    let (first, number) = (refused.first(), refused.len());
    println!("allocated ahead: {ahead}; {number} refused, the first one {first:?}");
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    assert_eq!(number, 0, "the first one: {first:?}");
}

#[test]
fn full_volume_allows_overwriting_scattered_blocks() {
    rewrite_blocks(false);
}

#[test]
fn full_volume_allows_overwriting_preallocated_blocks() {
    rewrite_blocks(true);
}

#[test]
fn full_volume_allows_punching_small_holes() {
    let (device, fs, file) = full(false);
    let punch = |block: u64| {
        let at = block * BLOCK + 1000;
        fs.fallocate(file, at, 2000, Fallocate::PunchHole, false)
    };
    let blocks = scattered_order().enumerate();
    let refused: Vec<usize> = blocks
        .filter(|(_, block)| punch(*block).is_err())
        .map(|(i, _)| i)
        .collect();
    let (first, number) = (refused.first(), refused.len());
    println!("holes: {number} refused, the first one {first:?}");
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    assert_eq!(number, 0, "the first one: {first:?}");
}
