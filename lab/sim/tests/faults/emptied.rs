//! Removes the files of a volume that small files fill, while the power fails.
//!
//! The power fails in syncs, in the steps of merges, and between removals. Whatever is recovered,
//! it can be filled again, everything in it can be removed, and then all space is free.
//!
//! Contract: failure.removal

use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options, Pressure};
use cairnfs::{Error, Volume};
use cairnfs_disk::types::{Creds, SetAttr};
use cairnfs_sim::disk::SimDisk;
use cairnfs_sim::explore::{Crash, Depth, explore_with};
use cairnfs_sim::record::{Recording, options};
use cairnfs_sim::states::mix;
use cairnfs_sim::tree::ROOT;

use crate::full::{nearly_full, remove_all};
use crate::support::{Count, Told};

/// File sizes in bytes: two that are stored inline, and one that takes blocks.
const SIZES: [usize; 3] = [100, 1500, 4200];
/// Keys per step of a merge: so few that each merge has many steps.
const STEP_KEYS: u64 = 100;
/// Number of blocks by which the index of an emptied volume may exceed that of a new one.
const INDEX: u64 = 64;

/// Creates files of `size` bytes until one is refused; returns their names.
fn fill(fs: &FileSystem, prefix: &str, size: usize) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    loop {
        let name = format!("{prefix} {}", names.len()).into_bytes();
        let ino = match fs.mknod(ROOT, &name, 0o100_644, 0, Creds::default()) {
            Err(Error::NoSpace) => return names,
            made => made.unwrap().ino,
        };
        fs.forget(ino, 1);
        let data = vec![names.len() as u8 | 1; size];
        names.push(name);
        let written = match fs.write(ino, 0, &data, false) {
            Err(Error::NoSpace) => return names,
            written => written.unwrap(),
        };
        if written < size {
            return names;
        }
    }
}

/// Removes the files in an order that depends on `seed`, truncating some of them first and syncing
/// or merging a few times.
fn empty(fs: &FileSystem, mut names: Vec<Vec<u8>>, seed: u64) {
    names.sort_by_key(|name| name.iter().fold(seed, |sum, b| mix(sum, u64::from(*b))));
    let often = names.len().div_ceil(6);
    for (n, name) in names.iter().enumerate() {
        if n % 5 == 0 {
            let attr = fs.lookup(ROOT, name).unwrap();
            let set = SetAttr {
                size: Some(attr.size / 2),
                ..SetAttr::default()
            };
            fs.setattr(attr.ino, &set).unwrap();
            fs.forget(attr.ino, 1);
        }
        fs.unlink(ROOT, name).unwrap();
        match n % often {
            0 if (n / often).is_multiple_of(2) => fs.sync().unwrap(),
            0 => fs.merge().unwrap(),
            _ => {}
        }
    }
    fs.merge().unwrap();
}

#[test]
fn power_cut_while_removing_small_files_leaks_no_space() {
    let (start, free) = nearly_full();
    let mut count = Count::default();
    // Some states are tried while the volume is still full, others after most files were removed.
    let kinds = SIZES.iter().flat_map(|size| [(*size, 20), (*size, 1)]);
    for (size, part) in kinds {
        let told = Told::new(format!("files of {size} bytes"));
        let options = Options {
            pressure: Some(Pressure::steps(1 << 20, STEP_KEYS)),
            ..options(size as u64)
        };
        let disk = Arc::new(SimDisk::new(start.clone(), true));
        let (recording, files) = Recording::on(&disk, &options, |fs| {
            let mut names = fill(fs, "first", size);
            let files = names.len();
            fs.sync().unwrap();
            names.truncate(files / part);
            empty(fs, names, size as u64);
            files
        })
        .unwrap();
        let mut emptied = |volume: &Volume, _: &Crash<'_>| {
            let fs = volume.file_system();
            fill(fs, "second", size);
            fs.sync().map_err(|e| format!("syncing: {e}"))?;
            remove_all(fs, ROOT).map_err(|e| format!("removing: {e}"))?;
            fs.merge().map_err(|e| format!("merging: {e}"))?;
            match fs.statfs().free {
                now if now + INDEX >= free => Ok(()),
                now => Err(format!("{now} of {free} blocks are free")),
            }
        };
        let depth = Depth {
            states: cairnfs_tier::size(6, 16),
            interrupted: 8,
            within: 2,
            used: 8,
        };
        let tally = explore_with(&recording, &depth, &mut emptied, &mut |_| {
            std::ops::ControlFlow::Continue(())
        });
        assert!(tally.failures.is_empty(), "{}", tally.failures[0]);
        count.add(format!("{files} files of {size} bytes"), tally.states);
        told.well();
    }
    count.print("crash states while small files are removed");
}
