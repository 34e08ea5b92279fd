//! Whether a volume in a file is read through the page cache of the host.

use cairnfs::Volume;
use cairnfs::fs::{FileSystem, Options};

/// Bytes that this thread has fetched from devices so far (proc(5)).
fn fetched() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let bytes = io.lines().find_map(|l| l.strip_prefix("read_bytes: "));
    bytes.unwrap().parse().unwrap()
}

#[test]
fn volume_of_a_program_is_read_through_it_and_that_of_a_kernel_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let new = Volume::options().create(true).size(64 << 20);
    new.open(&path).unwrap().close().unwrap();
    let place = rustix::fs::statfs(dir.path()).unwrap();
    if ![0xef53, 0x5846_5342, 0x9123_683e].contains(&place.f_type) {
        // Elsewhere reads are as writes.
        return;
    }
    let opening_fetches = |kernel_caches| {
        let options = Options {
            read_only: true,
            kernel_caches,
            ..Options::default()
        };
        let before = fetched();
        FileSystem::open(&path, &options).unwrap().close().unwrap();
        fetched() - before
    };
    // The first one brings everything into the page cache that an opening reads.
    opening_fetches(false);
    // Each tries one direct read.
    assert_eq!(opening_fetches(false), 4096);
    assert!(opening_fetches(true) > 4096);
}
