//! Compares the contents of one file with a model of its bytes, and its space with a model of its
//! blocks.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairnfs::Error;
use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::format::MAX_INLINE;
use cairnfs_disk::types::{Creds, Fallocate, SeekTo, SetAttr};
use cairnfs_tier::size;
use proptest::prelude::*;

use super::seen::{assert_sound, options};

/// A change of one file's contents.
#[derive(Debug, Clone)]
enum Change {
    Write(u32, u32),
    Truncate(u32),
    Punch(u32, u32),
    Zero(u32, u32, bool),
    Allocate(u32, u32, bool),
    Copy(u32, u32, u32),
    Fsync,
    Merge,
    Reopen,
}

fn change() -> impl Strategy<Value = Change> {
    let at = prop_oneof![0u32..3000, 0u32..20_000, 0u32..3_000_000];
    let len = prop_oneof![1u32..100, 1u32..9000, 1u32..1_200_000];
    prop_oneof![
        8 => (at.clone(), len.clone()).prop_map(|(a, l)| Change::Write(a, l)),
        3 => at.clone().prop_map(Change::Truncate),
        2 => (at.clone(), len.clone()).prop_map(|(a, l)| Change::Punch(a, l)),
        2 => (at.clone(), len.clone(), any::<bool>()).prop_map(|(a, l, k)| Change::Zero(a, l, k)),
        2 => (at.clone(), len.clone(), any::<bool>()).prop_map(|(a, l, k)| Change::Allocate(a, l, k)),
        1 => (at.clone(), at, len).prop_map(|(a, b, l)| Change::Copy(a, b, l)),
        2 => Just(Change::Fsync),
        2 => Just(Change::Merge),
        1 => Just(Change::Reopen),
    ]
}

/// File blocks that have data or allocated space, in memory or on the device.
#[derive(Default)]
struct HeldBlocks(BTreeSet<u64>);

impl HeldBlocks {
    const BLOCK: u64 = 4096;

    fn follow(&mut self, change: &Change, size: usize) {
        let blocks = |at: u32, len: u32| {
            let end = u64::from(at) + u64::from(len);
            u64::from(at) / Self::BLOCK..end.div_ceil(Self::BLOCK)
        };
        match *change {
            Change::Write(at, len) | Change::Zero(at, len, _) | Change::Allocate(at, len, _) => {
                self.0.extend(blocks(at, len));
            }
            Change::Truncate(to) if to as usize <= size => {
                self.0.split_off(&u64::from(to).div_ceil(Self::BLOCK));
            }
            Change::Punch(at, len) => {
                let end = u64::from(at) + u64::from(len);
                let whole = u64::from(at).div_ceil(Self::BLOCK)..end / Self::BLOCK;
                self.0.retain(|block| !whole.contains(block));
            }
            Change::Copy(from, to, len) if from.abs_diff(to) >= len => {
                let copied = len.min((size as u32).saturating_sub(from));
                if copied > 0 {
                    self.0.extend(blocks(to, copied));
                }
            }
            Change::Truncate(_)
            | Change::Copy(..)
            | Change::Fsync
            | Change::Merge
            | Change::Reopen => {}
        }
    }

    /// Whether `units` (of 512 bytes) is a valid block count of a file of this size. A small file
    /// may have its contents in the inode.
    fn allows(&self, size: usize, units: u64) -> bool {
        let inline = size <= MAX_INLINE && units == (size as u64).div_ceil(512);
        inline || units == self.0.len() as u64 * (Self::BLOCK / 512)
    }
}

/// Checks that every reported hole reads as zeros and contains no held block.
fn holes_are_empty(fs: &FileSystem, ino: u64, model: &[u8]) {
    let mut at = 0;
    while at < model.len() as u64 {
        let data = match fs.seek(ino, at, SeekTo::Data) {
            Err(Error::NoSuchOffset) => model.len() as u64,
            found => found.unwrap(),
        };
        let hole = &model[at as usize..data as usize];
        assert!(hole.iter().all(|b| *b == 0), "data in a hole at {at}");
        if data == model.len() as u64 {
            return;
        }
        at = fs.seek(ino, data, SeekTo::Hole).unwrap();
        assert!(at > data && fs.getattr(ino).unwrap().blocks > 0);
    }
}

fn grow(model: &mut Vec<u8>, end: usize) {
    if model.len() < end {
        model.resize(end, 0);
    }
}

/// Makes a change in the file and in the model.
fn change_both(fs: &FileSystem, ino: u64, model: &mut Vec<u8>, change: &Change, salt: usize) {
    match *change {
        Change::Write(at, len) => {
            let data: Vec<u8> = (0..len as usize)
                .map(|i| (i * 13 + salt) as u8 | 1)
                .collect();
            assert_eq!(fs.write(ino, at.into(), &data, false).unwrap(), data.len());
            grow(model, at as usize + data.len());
            model[at as usize..at as usize + data.len()].copy_from_slice(&data);
        }
        Change::Truncate(size) => {
            let set = SetAttr {
                size: Some(size.into()),
                ..SetAttr::default()
            };
            fs.setattr(ino, &set).unwrap();
            model.resize(size as usize, 0);
        }
        Change::Punch(at, len) => {
            fs.fallocate(ino, at.into(), len.into(), Fallocate::PunchHole, false)
                .unwrap();
            let end = model.len().min((at + len) as usize);
            if let Some(range) = model.get_mut(at as usize..end) {
                range.fill(0);
            }
        }
        Change::Zero(at, len, keep_size) => {
            let what = Fallocate::ZeroRange { keep_size };
            fs.fallocate(ino, at.into(), len.into(), what, false)
                .unwrap();
            if !keep_size {
                grow(model, (at + len) as usize);
            }
            let end = model.len().min((at + len) as usize);
            if let Some(range) = model.get_mut(at as usize..end) {
                range.fill(0);
            }
        }
        Change::Allocate(at, len, keep_size) => {
            let what = Fallocate::Allocate { keep_size };
            fs.fallocate(ino, at.into(), len.into(), what, false)
                .unwrap();
            if !keep_size {
                grow(model, (at + len) as usize);
            }
        }
        Change::Copy(from, to, len) => {
            if from.abs_diff(to) < len {
                return;
            }
            let n = fs
                .copy_range(ino, from.into(), ino, to.into(), len.into(), true)
                .unwrap() as usize;
            let data = match model.get(from as usize..) {
                Some(rest) => rest[..n].to_vec(),
                None => Vec::new(),
            };
            assert_eq!(data.len(), n);
            if n > 0 {
                grow(model, to as usize + n);
                model[to as usize..to as usize + n].copy_from_slice(&data);
            }
        }
        Change::Fsync => fs.fsync(ino, false).unwrap(),
        Change::Merge => fs.merge().unwrap(),
        Change::Reopen => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: size(8, 32), ..ProptestConfig::default() })]

    /// Contract: stale, posix
    #[test]
    fn contents_and_blocks_match_model(changes in proptest::collection::vec(change(), 1..60)) {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let mut fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
        let ino = fs.mknod(1, b"f", 0o100_644, 0, Creds::default()).unwrap().ino;
        let mut model = Vec::new();
        let mut held = HeldBlocks::default();
        for (i, change) in changes.iter().enumerate() {
            held.follow(change, model.len());
            change_both(&fs, ino, &mut model, change, i);
            if matches!(change, Change::Reopen) {
                fs.close().unwrap();
                drop(fs);
                assert_sound(&*device, "reopened");
                fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
                fs.lookup(1, b"f").unwrap();
            }
            let attr = fs.getattr(ino).unwrap();
            prop_assert_eq!(attr.size as usize, model.len());
            prop_assert!(
                held.allows(model.len(), attr.blocks),
                "{:?}: {} units, {} blocks of {} bytes", change, attr.blocks, held.0.len(), model.len()
            );
            holes_are_empty(&fs, ino, &model);
            let mut got = vec![7; model.len() + 10];
            prop_assert_eq!(fs.read(ino, 0, &mut got).unwrap(), model.len());
            got.truncate(model.len());
            let differs = got.iter().zip(&model).position(|(a, b)| a != b);
            prop_assert_eq!(differs, None, "{:?}", change);
        }
        fs.forget(ino, 1);
        fs.close().unwrap();
        assert_sound(&*device, "closed");
    }
}
