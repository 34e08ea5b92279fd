//! Where the crates of the workspace are.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories of crates: of one each, or of several.
pub const ROOMS: [&str; 7] = [
    "backup/", "check/", "cli/", "engine/", "faces/", "lab/", "mount/",
];

/// The directory of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The directories of all crates of the workspace; the fuzz targets are a workspace of their own.
pub fn crates() -> impl Iterator<Item = PathBuf> {
    let inside = |room: &str| {
        let room = root().join(room);
        let entries = fs::read_dir(&room).unwrap();
        let inner = entries.map(|entry| entry.unwrap().path());
        inner.chain([room]).collect::<Vec<_>>()
    };
    let dirs: Vec<_> = ROOMS.into_iter().flat_map(inside).collect();
    let is_crate = |dir: &PathBuf| dir.join("Cargo.toml").exists() && !dir.ends_with("fuzz");
    let crates: Vec<_> = dirs.into_iter().filter(is_crate).collect();
    assert!(crates.len() > 10, "the crates were not found: {crates:?}");
    crates.into_iter()
}
