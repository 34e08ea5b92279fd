//! The xattr workload with small settings.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails where it stands"
)]

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::{everywhere, files_in, kept_in, phases, run};

const SMALL: [&str; 9] = [
    "xattr",
    "--threads",
    "2",
    "--files",
    "40",
    "--values",
    "5",
    "--value-size",
    "300",
];

const NAME: &str = "user.cairnfs-bench";

/// Returns the value of each file, thread by thread.
fn values(dir: &Path, options: &[&str]) -> Vec<Vec<u8>> {
    let top = kept_in(dir, &[&SMALL[..], options].concat());
    let mut values = Vec::new();
    for thread in ["t0", "t1"] {
        for (name, _) in files_in(&top.join(thread)) {
            let mut value = vec![0; 1000];
            let file = top.join(thread).join(name);
            let length = rustix::fs::getxattr(file, NAME, &mut value).unwrap();
            value.truncate(length);
            values.push(value);
        }
    }
    values
}

#[test]
fn attributes_are_set_and_read() {
    for figures in everywhere(&SMALL) {
        assert_eq!(
            phases(&figures),
            [
                ("set", 80),
                ("sync", 0),
                ("set synced", 80),
                ("get, present", 80),
                ("get, absent", 80),
            ]
        );
        assert_eq!(figures["settings"]["values"], 5);
    }
}

#[test]
fn values_come_from_pool_and_depend_on_seed() {
    let [one, same, other] = ["7", "7", "8"].map(|seed| {
        let dir = tempfile::tempdir().unwrap();
        values(dir.path(), &["--seed", seed])
    });
    assert_eq!(one.len(), 80);
    assert!(one.iter().all(|value| value.len() == 300));
    assert_eq!(one.iter().collect::<BTreeSet<_>>().len(), 5);
    assert_ne!(one[..40], one[40..], "threads choose for themselves");
    assert_eq!(one, same);
    assert_ne!(one, other);
}

#[test]
fn volume_and_directory_get_same_values() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("v.cairn");
    let target = format!("lib:{}", image.display());
    let options = ["--target", &target, "--volume-size", "64M", "--keep"];
    run(&[&SMALL[..], &options].concat()).unwrap();
    let volume = cairnfs::Volume::open(&image).unwrap();
    let mut files: Vec<_> = volume
        .walk("/")
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| entry.path())
        .collect();
    files.sort();
    let held = files
        .iter()
        .map(|file| volume.get_xattr(file, NAME).unwrap().unwrap());
    let elsewhere = tempfile::tempdir().unwrap();
    assert_eq!(held.collect::<Vec<_>>(), values(elsewhere.path(), &[]));
}
