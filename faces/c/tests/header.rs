//! The committed header is the one that cbindgen makes from the sources.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;

const HEADER: &str = "include/cairnfs.h";

/// Compares them; with `UPDATE_HEADER=1` in the environment, writes the header instead.
#[test]
fn header_agrees_with_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::generate_with_config(root, config).unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).unwrap();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(root.join(HEADER), made).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(root.join(HEADER)).unwrap();
    let first = committed.lines().zip(made.lines()).find(|(a, b)| a != b);
    assert!(
        committed == made,
        "{HEADER} differs from the sources, first in {first:?}; make it again with \
         `UPDATE_HEADER=1 cargo test -p cairnfs-capi --test header`"
    );
}
