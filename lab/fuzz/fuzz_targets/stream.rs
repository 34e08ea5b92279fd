//! Fuzzes streams of sent trees, as they are and with valid checksums.

#![no_main]

use cairnfs_mutate::stream::{sealed, survives};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    for bytes in [input, &sealed(input)] {
        if let Err(broken) = survives(bytes) {
            panic!("{broken}");
        }
    }
});
