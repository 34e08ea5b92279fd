//! Removed files count as free at once, although the index contains them until the next merge.

use std::sync::Arc;

use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::Creds;

use super::seen::options;

/// Contract: failure.space
#[test]
fn removed_small_files_count_as_free() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device, &options(false)).unwrap();
    let empty = fs.statfs().available;
    let mut files = Vec::new();
    loop {
        let name = format!("{}", files.len());
        let made = fs.mknod(1, name.as_bytes(), 0o100_644, 0, Creds::default());
        let Ok(made) = made else { break };
        files.push(name);
        if fs.write(made.ino, 0, &[1; 1500], false).is_err() {
            break;
        }
        fs.forget(made.ino, 1);
    }
    fs.sync().unwrap();
    fs.merge().unwrap();
    assert!(fs.statfs().available < empty / 20, "{:?}", fs.statfs());
    for name in &files {
        fs.unlink(1, name.as_bytes()).unwrap();
    }
    // The directory itself may have gained or lost a node.
    let expected = empty * 9 / 10..=empty + 8;
    let removed = fs.statfs().available;
    assert!(expected.contains(&removed), "{removed} of {empty}: removed");
    fs.sync().unwrap();
    let synced = fs.statfs().available;
    assert!(expected.contains(&synced), "{synced} of {empty}: synced");
    fs.merge().unwrap();
    let merged = fs.statfs().available;
    assert!(expected.contains(&merged), "{merged} of {empty}: merged");
}
