//! Fuzzes volumes with patched blocks; checksums stay as they are.

#![no_main]

use std::sync::LazyLock;

use cairnfs_mutate::{Base, bases, bytes, survives};
use libfuzzer_sys::fuzz_target;

static BASES: LazyLock<Vec<Base>> = LazyLock::new(bases);

fuzz_target!(|input: &[u8]| {
    let base = bytes::choose(&BASES, input);
    if let Err(broken) = survives(&bytes::patched_image(base, input)) {
        panic!("{broken}");
    }
});
