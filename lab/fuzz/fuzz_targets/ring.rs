//! Fuzzes the memory that a program shares with the daemon of a mount, beside an honest program.

#![no_main]

use cairnfs_mutate::ring::survives;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Err(broken) = survives(input) {
        panic!("{broken}");
    }
});
