//! The limit of the sizes of files, which the kernel keeps.

use std::sync::atomic::{AtomicU8, Ordering};

use rustix::process::{Resource, getrlimit};

const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

static SIZES: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether files may have any size.
pub fn are_sizes_unlimited() -> bool {
    let mut sizes = SIZES.load(Ordering::Relaxed);
    if sizes == UNKNOWN {
        sizes = match getrlimit(Resource::Fsize).current {
            None => NONE,
            Some(_) => SOME,
        };
        SIZES.store(sizes, Ordering::Relaxed);
    }
    sizes == NONE
}

/// The program is about to change limits: from then on files are the kernel's, whatever it sets.
pub fn change() {
    SIZES.store(SOME, Ordering::Relaxed);
}
