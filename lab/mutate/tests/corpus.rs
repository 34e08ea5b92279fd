//! Runs the fuzzers' corpus, and inputs of random bytes, without a fuzzer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::path::Path;

use cairnfs_mutate::random::Random;
use cairnfs_mutate::{Base, Image, Verdict, bases, bytes, stream, survives};
use cairnfs_tier::size;

type Target = fn(&Base, &[u8]) -> Image;

const TARGETS: [(&str, Target); 3] = [
    ("image", bytes::patched_image),
    ("log", bytes::sealed_log),
    ("nodes", bytes::sealed_nodes),
];

fn run(bases: &[Base], target: Target, input: &[u8], what: &str) -> Verdict {
    let base = bytes::choose(bases, input);
    match survives(&target(base, input)) {
        Ok(outcome) => outcome.verdict,
        Err(broken) => panic!("{what}: {broken}"),
    }
}

#[test]
fn fuzz_corpus_is_survived_and_damages() {
    let bases = bases();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, target) in TARGETS {
        let mut damaged = 0;
        for entry in std::fs::read_dir(corpus.join(name)).unwrap() {
            let path = entry.unwrap().path();
            let input = std::fs::read(&path).unwrap();
            let verdict = run(&bases, target, &input, &path.display().to_string());
            damaged += usize::from(verdict != Verdict::Harmless);
        }
        assert!(damaged > 0, "{name}");
    }
}

#[test]
fn streams_of_the_corpus_and_random_ones_are_survived() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/stream");
    let mut random = Random::new(7);
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    for entry in std::fs::read_dir(corpus).unwrap() {
        inputs.push(std::fs::read(entry.unwrap().path()).unwrap());
    }
    let initial = inputs.len();
    for i in 0..initial * 500 {
        let mut input = inputs[i % initial].clone();
        for _ in 0..i % 3 {
            let at = random.below(input.len());
            input[at] = random.below(256) as u8;
        }
        inputs.push(input);
    }
    let mut accepted = 0;
    for input in &inputs {
        let sealed = stream::sealed(input);
        for bytes in [input, &sealed] {
            match stream::survives(bytes) {
                Ok(taken) => accepted += usize::from(taken),
                Err(broken) => panic!("{input:?}: {broken}"),
            }
        }
    }
    assert!(accepted > 10 && accepted < inputs.len(), "{accepted}");
}

#[test]
fn empty_input_leaves_base_unchanged() {
    let bases = bases();
    for target in [bytes::patched_image, bytes::sealed_nodes] {
        assert_eq!(run(&bases, target, &[], "empty"), Verdict::Harmless);
    }
}

#[test]
fn random_inputs_are_survived() {
    let bases = bases();
    let mut random = Random::new(1);
    for i in 0..size(100, 300) {
        for (name, target) in TARGETS {
            let mut input = vec![0; random.below(60)];
            random.fill(&mut input);
            run(&bases, target, &input, &format!("{name} {i}: {input:02x?}"));
        }
    }
}
