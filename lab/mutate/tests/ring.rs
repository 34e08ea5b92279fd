//! Arbitrary bytes in the memory that a program shares with the daemon of a mount.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use cairnfs_mutate::random::Random;
use cairnfs_mutate::ring::survives;
use cairnfs_tier::size_from;

/// Number of scripts in the short tier, and in the deep one, unless `CAIRNFS_MUTATIONS` sets another.
const COUNT: [u64; 2] = [2000, 50_000];
/// Most bytes of a script.
const LENGTH: usize = 600;

#[test]
fn hostile_rings_are_survived_and_the_honest_program_is_served() {
    let count = size_from("CAIRNFS_MUTATIONS", COUNT[0], COUNT[1]);
    let from = size_from("CAIRNFS_MUTATION_FROM", 0, 0);
    let (mut done, mut left, mut made) = (0, 0, 0);
    for seed in from..from + count {
        let mut random = Random::new(seed);
        let mut script = vec![0; random.below(LENGTH)];
        random.fill(&mut script);
        let outcome = survives(&script).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        done += outcome.done;
        left += outcome.left;
        made += outcome.made;
    }
    println!("{done} calls done, {left} left; {made} entries made beside them");
    assert!(done > 5 * count && left < done / 20, "{done}, {left}");
    assert!(made > count / 10, "{made}");
}
