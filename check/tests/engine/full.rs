//! A full volume: only calls that need space are refused, and removals succeed.

use std::sync::Arc;

use cairnfs::Error;
use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::{Creds, Fallocate, SetAttr};
use cairnfs_tier::size;
use proptest::prelude::*;

use super::seen::{assert_sound, options};

#[derive(Debug, Clone)]
enum Op {
    Make,
    Write(u32, u32),
    Allocate(u32, u32, bool),
    Truncate(u32),
    Punch(u32, u32),
    Fsync,
}

fn op() -> impl Strategy<Value = Op> {
    let at = 0u32..1_000_000;
    prop_oneof![
        1 => Just(Op::Make),
        9 => (at.clone(), 1u32..30_000).prop_map(|(a, l)| Op::Write(a, l)),
        1 => (at.clone(), 1u32..200_000, any::<bool>()).prop_map(|(a, l, k)| Op::Allocate(a, l, k)),
        1 => at.clone().prop_map(Op::Truncate),
        1 => (at, 1u32..100_000).prop_map(|(a, l)| Op::Punch(a, l)),
        1 => Just(Op::Fsync),
    ]
}

struct Volume {
    fs: Arc<FileSystem>,
    files: Vec<(String, u64)>,
    made: usize,
}

impl Volume {
    fn make(&mut self) -> Result<(), Error> {
        let name = format!("f{}", self.made);
        self.made += 1;
        let made = self
            .fs
            .mknod(1, name.as_bytes(), 0o100_644, 0, Creds::default())?;
        self.files.push((name, made.ino));
        Ok(())
    }

    fn apply(&mut self, op: &Op, which: usize) -> Result<(), Error> {
        if self.files.is_empty() || matches!(op, Op::Make) {
            return self.make();
        }
        let fs = &self.fs;
        let ino = self.files[which % self.files.len()].1;
        match *op {
            Op::Make => Ok(()),
            Op::Write(at, len) => fs
                .write(ino, at.into(), &vec![5; len as usize], false)
                .map(|_| ()),
            Op::Allocate(at, len, keep_size) => fs.fallocate(
                ino,
                at.into(),
                len.into(),
                Fallocate::Allocate { keep_size },
                false,
            ),
            Op::Truncate(size) => {
                let set = SetAttr {
                    size: Some(size.into()),
                    ..SetAttr::default()
                };
                fs.setattr(ino, &set).map(|_| ())
            }
            Op::Punch(at, len) => {
                fs.fallocate(ino, at.into(), len.into(), Fallocate::PunchHole, false)
                    .unwrap();
                Ok(())
            }
            Op::Fsync => {
                fs.fsync(ino, false).unwrap();
                Ok(())
            }
        }
    }

    /// Removes all files except the first `keep`.
    fn delete(&mut self, keep: usize) {
        self.fs.sync().unwrap();
        for (name, ino) in self.files.split_off(keep.min(self.files.len())) {
            self.fs.forget(ino, 1);
            self.fs.unlink(1, name.as_bytes()).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: size(2, 6), ..ProptestConfig::default() })]

    #[test]
    fn full_volume_refuses_only_with_enospc(
        ops in proptest::collection::vec((op(), any::<usize>()), 3000..6000),
    ) {
        let device = Arc::new(MemoryDevice::new(24 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
        let free = fs.statfs().free;
        let mut volume = Volume { fs, files: Vec::new(), made: 0 };
        let mut refused = 0;
        for (op, which) in &ops {
            if let Err(e) = volume.apply(op, *which) {
                prop_assert!(matches!(e, Error::NoSpace), "{op:?}: {e}");
                refused += 1;
            }
            if refused == 200 {
                refused = 0;
                volume.delete(5);
            }
        }
        volume.delete(0);
        volume.fs.merge().unwrap();
        // The index of an almost empty volume remains.
        prop_assert!(volume.fs.statfs().free + 64 >= free, "{} of {free}", volume.fs.statfs().free);
        volume.fs.close().unwrap();
        assert_sound(&*device, "closed");
    }
}
