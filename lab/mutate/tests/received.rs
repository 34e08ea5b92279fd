//! Sound streams with changed frames, received by a volume.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use cairnfs_mutate::random::Random;
use cairnfs_mutate::received::{frames, ground, mutate, sealed, survives};
use cairnfs_tier::size_from;

use crate::memory;

/// Number of streams in the short tier, and in the deep one, unless `CAIRNFS_MUTATIONS` sets
/// another.
const COUNT: [u64; 2] = [300, 6000];
/// Maximum memory in bytes that the volume and its device may use at once.
const MOST_MEMORY: usize = 24 << 20;

#[test]
fn changed_streams_leave_a_snapshot_or_nothing() {
    let ground = ground();
    for stream in &ground.streams {
        assert_eq!(sealed(&frames(stream)), *stream);
        assert_eq!(survives(&ground, stream), Ok(true));
    }
    let count = size_from("CAIRNFS_MUTATIONS", COUNT[0], COUNT[1]);
    let mut accepted = 0;
    for seed in 0..count {
        let mut random = Random::new(seed);
        let stream = &ground.streams[seed as usize % ground.streams.len()];
        let mut changed = frames(stream);
        for _ in 0..1 + random.below(3) {
            mutate(&mut changed, &mut random);
        }
        let mut stream = sealed(&changed);
        if random.once_in(8) {
            stream.truncate(random.below(stream.len()));
        }
        let (result, memory) = memory::most_used(|| survives(&ground, &stream));
        match result {
            Ok(taken) => accepted += u64::from(taken),
            Err(broken) => panic!("seed {seed}: {broken}"),
        }
        assert!(memory <= MOST_MEMORY, "seed {seed}: {memory} bytes");
    }
    println!("{accepted} of {count} streams were accepted");
    assert!(
        (count / 50..count / 2 + 2).contains(&accepted),
        "{accepted} of {count}"
    );
}
