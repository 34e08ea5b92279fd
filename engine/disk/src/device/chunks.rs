//! A pool of 4 KiB memory blocks for file data, mapped in chunks and shared by all volumes of the
//! process.
//!
//! This file contains the only `unsafe` call of the crate. A chunk is populated when it is mapped,
//! because a page fault for each block costs more than the write that the block is for. A chunk is
//! never unmapped, so blocks are `'static` and need no owner. The memory of idle blocks is returned
//! to the kernel (that of a part of a huge page only when memory gets tight); their addresses stay
//! mapped.
//!
//! **Bounds.** A chunk is mapped only if no block is idle. So the mapped memory is at most the
//! largest amount ever in use at one time, plus one chunk. Idle blocks that were not needed between
//! two calls of [`Chunks::rest`] lose their memory, and so do those of a closed volume, except that
//! [`MIN_WARM`] blocks are always kept.

use std::ops::DerefMut;

use memmap2::{Advice, MmapOptions};
use parking_lot::Mutex;
use rustix::mm::Advice as Memory;

use super::AlignedBuf;

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;

/// An exclusively owned block of memory: [`BLOCK`] bytes, aligned to [`BLOCK`].
pub(super) type Blank = &'static mut [u8];

/// Blocks of a normal chunk (256 KiB).
const CHUNK: usize = 64;
/// Blocks of a chunk when many blocks are in use: the size of a huge page (2 MiB).
const LARGE: usize = 512;
/// Idle blocks that always keep their memory (4 MiB).
const MIN_WARM: usize = 1024;

/// Idle blocks, and the number of blocks in use.
struct Idle {
    /// Idle blocks with memory.
    warm: Vec<Blank>,
    /// Idle blocks whose memory was returned to the kernel.
    cold: Vec<Blank>,
    /// Number of blocks in use.
    used: usize,
    /// Minimum length of `warm` since the last [`Chunks::rest`].
    least: usize,
}

impl Idle {
    fn take(&mut self, to: &mut Vec<Blank>, most: usize) {
        let n = most.saturating_sub(to.len()).min(self.warm.len());
        self.used += n;
        to.extend(self.warm.drain(self.warm.len() - n..));
        self.least = self.least.min(self.warm.len());
    }

    /// Removes up to `blocks` warm blocks, to be returned to the kernel, and leaves [`MIN_WARM`].
    /// Takes those with the highest addresses, so that they are mostly contiguous.
    fn surplus(&mut self, blocks: usize) -> Vec<Blank> {
        if blocks == 0 {
            return Vec::new();
        }
        let kept = self.warm.len() - blocks.min(self.warm.len().saturating_sub(MIN_WARM));
        self.warm.sort_unstable_by_key(|b| b.as_ptr().addr());
        self.warm.split_off(kept)
    }
}

/// The advice given to the kernel.
#[derive(Clone, Copy)]
enum Advised {
    Needed,
    Idle,
}

/// The pool.
pub(super) struct Chunks {
    idle: Mutex<Idle>,
    /// Locked while a chunk is mapped, so that two threads do not map one each when one is enough.
    /// Taken before `idle`.
    growth: Mutex<()>,
}

/// The pool of all volumes.
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

    /// Allocates `count` blocks with memory; their content is arbitrary.
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

    /// Returns blocks to the pool.
    pub fn give(&self, blanks: impl IntoIterator<Item = Blank>) {
        let mut idle = self.idle.lock();
        let before = idle.warm.len();
        idle.warm.extend(blanks);
        idle.used = idle.used.saturating_sub(idle.warm.len() - before);
    }

    /// Returns the memory of blocks that were idle since the previous call to the kernel.
    pub fn rest(&self) {
        let mut idle = self.idle.lock();
        let unneeded = idle.least;
        let surplus = idle.surplus(unneeded);
        idle.least = idle.warm.len();
        drop(idle);
        self.cool(surplus);
    }

    /// Returns the blocks of a closed volume to the pool, and their memory to the kernel: no other
    /// volume is likely to need it soon.
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

/// Maps a chunk of new memory.
fn map(blocks: usize) -> Vec<Blank> {
    let bytes: &'static mut [u8] = match MmapOptions::new().len(blocks * BLOCK).map_anon() {
        Ok(memory) => {
            // Without support in the kernel, each block gets its memory on first access.
            if blocks == LARGE {
                let _ = memory.advise(Advice::HugePage);
            }
            let _ = memory.advise(Advice::PopulateWrite);
            keep(memory)
        }
        // Aborts like any allocation if there is no memory at all.
        Err(_) => keep(AlignedBuf::zeroed(blocks * BLOCK)),
    };
    bytes.chunks_exact_mut(BLOCK).collect()
}

/// Leaks the memory: chunks are never unmapped.
fn keep<M: DerefMut<Target = [u8]> + 'static>(memory: M) -> &'static mut [u8] {
    let memory: &'static mut M = Box::leak(Box::new(memory));
    memory
}

/// Populates blocks or returns their memory to the kernel, with one call for adjacent blocks.
fn advise(blanks: &mut [Blank], advice: Advised) {
    // A larger page of the kernel may contain blocks in use, which would lose their content.
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
            // SAFETY: the `len` bytes from `at` are blocks that are borrowed exclusively, adjacent,
            // and whole pages of the kernel. Both kinds of advice leave them mapped and change at
            // most their content, which is arbitrary for these blocks.
            #[allow(
                unsafe_code,
                reason = "no safe call returns memory to the kernel and keeps the mapping"
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

    /// How many of the blocks are resident, by `/proc/self/pagemap`.
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
    fn idle_blocks_lose_their_memory_and_are_reused() {
        let chunks = Chunks::new();
        let mut taken = chunks.take(4 * MIN_WARM);
        taken.iter_mut().for_each(|b| b.fill(7));
        assert_eq!(with_memory(&taken), 4 * MIN_WARM);
        // The blocks that stay in use are spread over all chunks.
        let (stay, go): (Vec<_>, Vec<_>) = (0..).zip(taken).partition(|(n, _)| n % 16 == 0);
        let stay: Vec<Blank> = stay.into_iter().map(|(_, b)| b).collect();
        go.into_iter().for_each(|(_, b)| chunks.give([b]));
        chunks.rest();
        assert!(
            chunks.idle.lock().cold.is_empty(),
            "they were needed a moment ago"
        );
        let idle = chunks.idle.lock().warm.len();
        let some = chunks.take(MIN_WARM);
        chunks.give(some);
        chunks.rest();
        assert_eq!(chunks.idle.lock().cold.len(), idle - MIN_WARM);
        assert_eq!(with_memory(&stay), stay.len());
        assert!(stay.iter().all(|b| b.iter().all(|byte| *byte == 7)));
        {
            let idle = chunks.idle.lock();
            assert!(idle.warm.len() <= MIN_WARM);
            assert_eq!(with_memory(&idle.cold), 0);
            assert_eq!(idle.used, stay.len());
        }
        let mut again = chunks.take(4 * MIN_WARM - stay.len());
        assert_eq!(with_memory(&again), again.len());
        again.iter_mut().for_each(|b| b.fill(9));
        assert!(stay.iter().all(|b| b.iter().all(|byte| *byte == 7)));
        chunks.give_up(again);
        assert_eq!(chunks.idle.lock().warm.len(), MIN_WARM);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn mapped_memory_is_bounded_by_peak_use(
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
