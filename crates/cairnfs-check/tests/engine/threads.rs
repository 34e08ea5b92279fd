//! Several threads at once.

use std::sync::Arc;

use cairnfs::device::MemoryDevice;
use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use proptest::prelude::*;

use crate::ops::{Op, Run, op, refused};
use crate::seen::{assert_sound, options, tree};

/// Several threads in the same few directories, with workers and little memory.
fn run_threads(scripts: Vec<Vec<Op>>, size: u64) {
    let device = Arc::new(MemoryDevice::new(size));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(true)).unwrap();
    std::thread::scope(|scope| {
        for script in scripts {
            let mut run = Run {
                fs: fs.clone(),
                held: Vec::new(),
            };
            scope.spawn(move || {
                for op in &script {
                    if let Err(e) = run.apply(op) {
                        assert!(refused(&e), "{op:?}: {e}");
                    }
                }
                for ino in run.held.drain(..) {
                    run.fs.forget(ino, 1);
                }
            });
        }
    });
    let before = tree(&fs);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    let reopened = FileSystem::open_device(device, &options(false)).unwrap();
    assert_eq!(tree(&reopened), before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn threads_leave_a_sound_volume(
        scripts in proptest::collection::vec(proptest::collection::vec(op(), 100..300), 2..6),
        small in any::<bool>(),
    ) {
        run_threads(scripts, if small { 16 << 20 } else { 128 << 20 });
    }
}
