//! Whether it is worth asking the daemon: a program of which call after call is left to the kernel asks ever more
//! rarely, as each vain question costs more than the call itself. What is not asked is the kernel's.

use std::sync::atomic::{AtomicU32, Ordering};

/// So many vain questions in a row are nothing.
const FEW: u32 = 8;
/// At most 2 to this power of calls are not asked for between two questions.
const DOUBLINGS: u32 = 8;

/// Calls of one kind.
pub struct Worth {
    /// Vain questions in a row.
    vain: AtomicU32,
    /// Calls that are not to be asked for.
    skipped: AtomicU32,
}

/// Files that are made. One that is handed to the kernel before it is closed was asked for in vain.
pub static FILES: Worth = Worth::new();
/// Other calls with a path that change something.
pub static NAMES: Worth = Worth::new();
/// Those that change nothing, and files that are opened to be read.
pub static LOOKS: Worth = Worth::new();

impl Worth {
    const fn new() -> Self {
        Self {
            vain: AtomicU32::new(0),
            skipped: AtomicU32::new(0),
        }
    }

    /// Whether to ask for the next call. It may have nothing to do with a mount, and is not counted if not.
    pub fn asks(&self) -> bool {
        let left = self.skipped.load(Ordering::Relaxed);
        // Threads that count at once only ask sooner.
        if left > 0 {
            self.skipped.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// A question was answered, or was in vain.
    pub fn note(&self, served: bool) {
        if served {
            self.vain.store(0, Ordering::Relaxed);
            return;
        }
        let vain = self.vain.load(Ordering::Relaxed).saturating_add(1);
        self.vain.store(vain, Ordering::Relaxed);
        if vain >= FEW {
            let skipped = 1 << (vain - FEW).min(DOUBLINGS);
            self.skipped.store(skipped, Ordering::Relaxed);
        }
    }
}
