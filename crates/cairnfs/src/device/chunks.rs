//! Memory for blocks of data: mapped in chunks, reused block by block, given back when idle.
//!
//! Nothing else in the crate has `unsafe` code; here it is one call. A chunk gets its memory at once,
//! as one fault for each block costs more than the write it is for. It is never unmapped, so its
//! blocks need no owner to keep it; the memory of blocks that nobody has goes back to the kernel
//! (that of a part of a large page when memory gets tight), the addresses stay. All volumes of the
//! process share what is here.
//!
//! **Bounds.** A chunk is mapped only if no block is idle. So what is mapped is never more than was in
//! use at one time, and a chunk. Idle blocks that nobody needed from one call of [`Chunks::rest`] to
//! the next give up their memory, and so do those of a volume that is closed; but for [`FEW`].

use std::ops::DerefMut;

use memmap2::{Advice, MmapOptions};
use parking_lot::Mutex;
use rustix::mm::Advice as Memory;

use super::AlignedBuf;

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;

/// A block of memory that nobody else has; [`BLOCK`] bytes, aligned to as many.
pub(super) type Blank = &'static mut [u8];

/// Blocks of a chunk.
const CHUNK: usize = 64;
/// Blocks of a chunk when there are many: as large as a large page of memory.
const LARGE: usize = 512;
/// Idle blocks that are kept whatever is in use.
const FEW: usize = 1024;

/// Blocks that nobody has.
struct Idle {
    /// With memory.
    warm: Vec<Blank>,
    /// Whose memory the kernel has back.
    cold: Vec<Blank>,
    /// How many others there are.
    used: usize,
    /// The fewest with memory that there were since the last rest.
    least: usize,
}

impl Idle {
    fn take(&mut self, to: &mut Vec<Blank>, most: usize) {
        let n = most.saturating_sub(to.len()).min(self.warm.len());
        self.used += n;
        to.extend(self.warm.drain(self.warm.len() - n..));
        self.least = self.least.min(self.warm.len());
    }

    /// Some of those with memory, which are to give it up: such that lie together.
    fn surplus(&mut self, blocks: usize) -> Vec<Blank> {
        if blocks == 0 {
            return Vec::new();
        }
        let kept = self.warm.len() - blocks.min(self.warm.len().saturating_sub(FEW));
        self.warm.sort_unstable_by_key(|b| b.as_ptr().addr());
        self.warm.split_off(kept)
    }
}

/// What the kernel is told of blocks.
#[derive(Clone, Copy)]
enum Advised {
    Needed,
    Idle,
}

/// The chunks of the process, and the blocks in them that nobody has.
pub(super) struct Chunks {
    idle: Mutex<Idle>,
    /// Held by who maps a chunk, so that no two do when one is enough.
    growth: Mutex<()>,
}

/// The chunks of all volumes.
pub(super) static CHUNKS: Chunks = Chunks::new();

impl Chunks {
    const fn new() -> Self {
        let idle = Idle {
            warm: Vec::new(),
            cold: Vec::new(),
            used: 0,
            least: 0,
        };
        Self {
            idle: Mutex::new(idle),
            growth: Mutex::new(()),
        }
    }

    /// Blocks with memory; what they hold is anything.
    pub fn take(&self, count: usize) -> Vec<Blank> {
        let mut taken = Vec::with_capacity(count);
        self.idle.lock().take(&mut taken, count);
        while taken.len() < count {
            let _one = self.growth.lock();
            let mut idle = self.idle.lock();
            idle.take(&mut taken, count);
            if taken.len() == count {
                break;
            }
            let cold = idle.cold.len();
            let mut some = idle.cold.split_off(cold.saturating_sub(CHUNK));
            let large = idle.used >= 8 * LARGE;
            drop(idle);
            if some.is_empty() {
                some = map(if large { LARGE } else { CHUNK });
            } else {
                advise(&mut some, Advised::Needed);
            }
            self.idle.lock().warm.append(&mut some);
        }
        taken
    }

    /// Takes blocks back.
    pub fn give(&self, blanks: impl IntoIterator<Item = Blank>) {
        let mut idle = self.idle.lock();
        let before = idle.warm.len();
        idle.warm.extend(blanks);
        idle.used = idle.used.saturating_sub(idle.warm.len() - before);
    }

    /// Gives the kernel the memory of blocks that nobody has needed since this was called last.
    pub fn rest(&self) {
        let mut idle = self.idle.lock();
        let unneeded = idle.least;
        let surplus = idle.surplus(unneeded);
        idle.least = idle.warm.len();
        drop(idle);
        self.cool(surplus);
    }

    /// Takes back the blocks of a volume that is closed, which no other will need soon.
    pub fn give_up(&self, blanks: Vec<Blank>) {
        let closed = blanks.len();
        self.give(blanks);
        let surplus = {
            let mut idle = self.idle.lock();
            let unneeded = idle.warm.len() - idle.warm.len().min(idle.used);
            idle.surplus(unneeded.max(closed))
        };
        self.cool(surplus);
    }

    fn cool(&self, mut surplus: Vec<Blank>) {
        if !surplus.is_empty() {
            advise(&mut surplus, Advised::Idle);
            self.idle.lock().cold.append(&mut surplus);
        }
    }
}

/// A chunk of new memory.
fn map(blocks: usize) -> Vec<Blank> {
    let bytes: &'static mut [u8] = match MmapOptions::new().len(blocks * BLOCK).map_anon() {
        Ok(memory) => {
            // Where the kernel cannot, each block gets its memory when it is first touched.
            if blocks == LARGE {
                let _ = memory.advise(Advice::HugePage);
            }
            let _ = memory.advise(Advice::PopulateWrite);
            keep(memory)
        }
        // Ends as any allocation does if there is no memory at all.
        Err(_) => keep(AlignedBuf::zeroed(blocks * BLOCK)),
    };
    bytes.chunks_exact_mut(BLOCK).collect()
}

/// Memory as it is from now on.
fn keep<M: DerefMut<Target = [u8]> + 'static>(memory: M) -> &'static mut [u8] {
    let memory: &'static mut M = Box::leak(Box::new(memory));
    memory
}

/// Has the kernel give blocks their memory, or take it; it is told once of those that lie side by side.
fn advise(blanks: &mut [Blank], advice: Advised) {
    // A larger page of the kernel may hold blocks of others, who would lose theirs.
    if rustix::param::page_size() != BLOCK {
        return;
    }
    blanks.sort_unstable_by_key(|b| b.as_ptr().addr());
    for run in blanks.chunk_by_mut(|a, b| a.as_ptr_range().end == b.as_ptr()) {
        let len = run.len() * BLOCK;
        let advice = match advice {
            Advised::Needed => Memory::LinuxPopulateWrite,
            Advised::Idle => Memory::LinuxDontNeed,
        };
        if let Some(first) = run.first_mut() {
            let at = first.as_mut_ptr().cast();
            // SAFETY: the blocks from `at` on are borrowed exclusively, lie side by side, and are whole
            // pages of the kernel. Either advice leaves them mapped and changes at most their bytes, of
            // which any will do.
            #[allow(
                unsafe_code,
                reason = "no safe call gives memory back without its addresses"
            )]
            let _ = unsafe { rustix::mm::madvise(at, len, advice) };
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;

    use super::*;

    /// How many of the blocks have memory, as the kernel says.
    fn with_memory(blanks: &[Blank]) -> usize {
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let present = |blank: &&Blank| {
            let mut entry = [0; 8];
            let at = blank.as_ptr().addr() / BLOCK * 8;
            pagemap.read_exact_at(&mut entry, at as u64).unwrap();
            entry[7] & 0x80 != 0
        };
        blanks.iter().filter(present).count()
    }

    #[test]
    fn memory_of_many_idle_blocks_goes_back_and_comes_again() {
        let chunks = Chunks::new();
        let mut taken = chunks.take(4 * FEW);
        taken.iter_mut().for_each(|b| b.fill(7));
        assert_eq!(with_memory(&taken), 4 * FEW);
        // Those that stay lie all over the chunks.
        let (stay, go): (Vec<_>, Vec<_>) = (0..).zip(taken).partition(|(n, _)| n % 16 == 0);
        let stay: Vec<Blank> = stay.into_iter().map(|(_, b)| b).collect();
        go.into_iter().for_each(|(_, b)| chunks.give([b]));
        chunks.rest();
        assert!(
            chunks.idle.lock().cold.is_empty(),
            "they were needed a moment ago"
        );
        let idle = chunks.idle.lock().warm.len();
        let some = chunks.take(FEW);
        chunks.give(some);
        chunks.rest();
        assert_eq!(chunks.idle.lock().cold.len(), idle - FEW);
        assert_eq!(with_memory(&stay), stay.len());
        assert!(stay.iter().all(|b| b.iter().all(|byte| *byte == 7)));
        {
            let idle = chunks.idle.lock();
            assert!(idle.warm.len() <= FEW);
            assert_eq!(with_memory(&idle.cold), 0);
            assert_eq!(idle.used, stay.len());
        }
        let mut again = chunks.take(4 * FEW - stay.len());
        assert_eq!(with_memory(&again), again.len());
        again.iter_mut().for_each(|b| b.fill(9));
        assert!(stay.iter().all(|b| b.iter().all(|byte| *byte == 7)));
        chunks.give_up(again);
        assert_eq!(chunks.idle.lock().warm.len(), FEW);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn no_more_is_mapped_than_was_in_use_at_once(
            steps in proptest::collection::vec((any::<bool>(), 1..900_usize), 1..40),
        ) {
            let chunks = Chunks::new();
            let (mut held, mut most): (Vec<Blank>, usize) = (Vec::new(), 0);
            for (take, count) in steps {
                if take {
                    held.extend(chunks.take(count));
                } else {
                    let left = held.len().saturating_sub(count);
                    chunks.give(held.drain(left..));
                }
                if count % 8 == 0 {
                    chunks.rest();
                }
                most = most.max(held.len());
                let idle = chunks.idle.lock();
                prop_assert_eq!(idle.used, held.len());
                let mapped = held.len() + idle.warm.len() + idle.cold.len();
                prop_assert!(mapped < most + LARGE);
                prop_assert!(idle.least <= idle.warm.len());
                let mut all: Vec<_> = held.iter().chain(&idle.warm).chain(&idle.cold).collect();
                all.sort_by_key(|b| b.as_ptr().addr());
                prop_assert!(all.windows(2).all(|w| w[0].as_ptr_range().end <= w[1].as_ptr()));
                prop_assert!(all.iter().all(|b| AlignedBuf::is_aligned(b)));
            }
            chunks.give(held);
        }
    }
}
