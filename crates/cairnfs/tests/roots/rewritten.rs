//! Comparisons of files that hold the same bytes in other blocks: merged, written again, inline in one
//! of the trees.

use std::path::Path;

use cairnfs::{PublishOptions, Volume};
use cairnfs_disk::types::SetAttr;

use crate::{shown, volume};

const BLOCK: usize = 4096;

/// Contents of `len` bytes, different ones for each `seed`.
fn text(seed: u8, len: usize) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(next).collect()
}

/// Begin and end of the changed ranges of a path, if it is in the comparison.
fn contents(diff: &cairnfs::Diff, path: &str) -> Option<Vec<(u64, u64)>> {
    let mut files = diff.report().files.iter();
    let file = files.find(|file| file.path.path == path)?;
    let ranges = file.contents.iter();
    Some(ranges.map(|range| (range.start, range.end)).collect())
}

/// A publish that merges copies what the branch has changed.
#[test]
fn merged_files_are_equal_to_those_of_the_branch() {
    let main = volume();
    main.create_dir("d").unwrap();
    let files: Vec<String> = (0..50).map(|n| format!("d/{n}")).collect();
    for (n, file) in (0..).zip(&files) {
        main.write(file, text(n, 3 * BLOCK + 7)).unwrap();
    }
    let work = main.branch("work").unwrap();
    for (n, file) in (100..).zip(&files) {
        // Some of them inline.
        let len = if n % 5 == 0 { 900 } else { 5 * BLOCK + 1 };
        work.write(file, text(n, len)).unwrap();
    }
    work.snapshot("of-work").unwrap();
    drop(work);
    main.write("aside", "of main").unwrap();
    let published = main.publish("work", &PublishOptions::default()).unwrap();
    assert!(published.merged);
    let diff = main.diff("of-work", "main").unwrap();
    assert_eq!(shown(&diff).len(), 1, "{:?}", shown(&diff));
    assert_eq!(diff.report().files[0].path.path, "aside");
}

#[test]
fn blocks_written_again_with_the_same_bytes_are_no_change() {
    let main = volume();
    let long = text(1, 300 * BLOCK + 5);
    main.write("same", &long).unwrap();
    main.write("one block", &long).unwrap();
    main.write("end", &long).unwrap();
    main.write("inline", text(2, 1000)).unwrap();
    main.write("grown", text(3, 1000)).unwrap();
    main.write("holes", vec![0; 70 * BLOCK]).unwrap();
    main.snapshot("old").unwrap();

    main.write("same", &long).unwrap();
    main.write("inline", text(2, 1000)).unwrap();
    let mut other = long.clone();
    other[100 * BLOCK + 9] ^= 1;
    main.write("one block", &other).unwrap();
    *other.last_mut().unwrap() ^= 1;
    other[100 * BLOCK + 9] ^= 1;
    main.write("end", &other).unwrap();
    // Not inline any more.
    let mut grown = text(3, 1000);
    grown.resize(3 * BLOCK, 7);
    main.write("grown", grown).unwrap();
    main.write("holes", "").unwrap();
    set_size(&main, "holes", 70 * BLOCK as u64);

    let diff = main.diff("old", "main").unwrap();
    let block = BLOCK as u64;
    assert_eq!(
        contents(&diff, "one block").unwrap(),
        [(100 * block, 101 * block)]
    );
    assert_eq!(
        contents(&diff, "end").unwrap(),
        [(300 * block, 300 * block + 5)]
    );
    assert_eq!(contents(&diff, "grown").unwrap(), [(1000, 3 * block)]);
    // Their times have changed, and that is told.
    for file in ["same", "inline", "holes"] {
        assert_eq!(contents(&diff, file).unwrap(), [], "{file}");
        let mut files = diff.report().files.iter();
        let told = files.find(|f| f.path.path == file).unwrap();
        let names: Vec<_> = told.attributes.iter().map(|change| change.name).collect();
        assert_eq!((names, told.written), (vec!["mtime"], 0), "{file}");
    }
}

/// What a truncation leaves behind the end of the last block is no part of the file.
#[test]
fn bytes_behind_the_end_are_not_compared() {
    let main = volume();
    main.write("f", text(1, 2 * BLOCK + 100)).unwrap();
    main.snapshot("old").unwrap();
    main.write("f", text(1, 3 * BLOCK)).unwrap();
    main.sync().unwrap();
    set_size(&main, "f", 2 * BLOCK as u64 + 100);
    let diff = main.diff("old", "main").unwrap();
    assert_eq!(contents(&diff, "f").unwrap(), []);
}

fn set_size(volume: &Volume, path: &str, size: u64) {
    let ino = volume.metadata(Path::new(path)).unwrap().ino();
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    volume.file_system().setattr(ino, &set).unwrap();
}
