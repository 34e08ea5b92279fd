//! Fuzzes streams that a volume receives, as they are and with valid checksums.

#![no_main]

use std::sync::LazyLock;

use cairnfs_mutate::received::{Ground, ground, survives};
use cairnfs_mutate::stream::sealed;
use libfuzzer_sys::fuzz_target;

static GROUND: LazyLock<Ground> = LazyLock::new(ground);

fuzz_target!(|input: &[u8]| {
    for bytes in [input, &sealed(input)] {
        if let Err(broken) = survives(&GROUND, bytes) {
            panic!("{broken}");
        }
    }
});
