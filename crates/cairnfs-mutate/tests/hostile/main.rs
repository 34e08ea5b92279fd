//! Thousands of damaged volumes, the same ones each time: none makes the engine or the check panic,
//! loop forever or use much memory, and a volume without findings is sound.
//!
//! `CAIRNFS_MUTATIONS=N` sets the number of mutations, `CAIRNFS_MUTATION_SEED=N` tries one seed,
//! `CAIRNFS_MUTATION_BASE=NAME` damages one base only.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod memory;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use cairnfs_mutate::{Base, CLASSES, Class, Verdict, bases, mutate, survives};

/// Default number of mutations in a run.
const DEFAULT: u64 = 9600;
/// The base that each round of all classes damages: the empty base has little to damage.
const BASES: [usize; 6] = [1, 2, 3, 1, 2, 0];
/// Maximum memory in bytes that one volume may use at once.
const MOST_MEMORY: usize = 16 << 20;
/// Number of failures after which a run stops.
const MOST_FAILURES: usize = 40;

/// The place of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The trees that a reader may see of a base with bit rot: its tree, or, if the end of its log was
/// never durable, one of its earlier trees.
fn sound_trees(base: &Base) -> BTreeSet<Vec<(String, u64)>> {
    let whole = survives(&base.image).unwrap();
    assert_eq!(whole.verdict, Verdict::Harmless, "{}", base.name);
    let mut trees = BTreeSet::from([whole.tree]);
    for seed in 0..64 {
        let cut = survives(&mutate(base, Class::LogCut, seed).image).unwrap();
        if cut.verdict == Verdict::Harmless {
            trees.insert(cut.tree);
        }
    }
    trees
}

/// Tries one mutation: returns the result, or the violation.
fn attempt(
    seed: u64,
    base: &Base,
    sound: &BTreeSet<Vec<(String, u64)>>,
) -> Result<(Class, Verdict, usize), String> {
    let class = CLASSES[(seed % CLASSES.len() as u64) as usize];
    let mutation = mutate(base, class, seed);
    let what = format!("seed {seed}, {} ({class:?}: {})", base.name, mutation.how);
    let (result, memory) =
        memory::most_used(|| catch_unwind(AssertUnwindSafe(|| survives(&mutation.image))));
    let outcome = match result {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(broken)) => return Err(format!("{what}: {broken}")),
        Err(_) => return Err(format!("{what}: {}", PANIC.lock().unwrap())),
    };
    if memory > MOST_MEMORY {
        return Err(format!("{what}: {memory} bytes of memory"));
    }
    let harmless = outcome.verdict == Verdict::Harmless;
    if harmless && !class.is_sealed() && !sound.contains(&outcome.tree) {
        return Err(format!("{what}: another tree, and the check finds nothing"));
    }
    Ok((class, outcome.verdict, memory))
}

#[test]
fn damaged_volumes_are_survived() {
    let bases = bases();
    let sound: Vec<_> = bases.iter().map(sound_trees).collect();
    let seeds = match number("CAIRNFS_MUTATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CAIRNFS_MUTATIONS").unwrap_or(DEFAULT),
    };
    std::panic::set_hook(Box::new(|info| {
        if let Ok(mut text) = PANIC.lock() {
            *text = info.to_string();
        }
    }));
    let mut tried: BTreeMap<Class, BTreeMap<Verdict, u64>> = BTreeMap::new();
    let mut failures = Vec::new();
    let mut most_memory = 0;
    let count = seeds.end - seeds.start;
    let only = std::env::var("CAIRNFS_MUTATION_BASE").ok();
    let only = only.map(|name| bases.iter().position(|b| b.name == name).unwrap());
    for seed in seeds {
        let round = (seed / CLASSES.len() as u64) as usize % BASES.len();
        let which = only.unwrap_or(BASES[round]);
        match attempt(seed, &bases[which], &sound[which]) {
            Ok((class, verdict, memory)) => {
                *tried.entry(class).or_default().entry(verdict).or_default() += 1;
                most_memory = most_memory.max(memory);
            }
            Err(why) => {
                // Printed immediately, for long runs that are stopped early.
                println!("{why}");
                failures.push(why);
            }
        }
        if failures.len() == MOST_FAILURES {
            break;
        }
    }
    let _ = std::panic::take_hook();
    for (class, verdicts) in &tried {
        let of = |v| verdicts.get(&v).copied().unwrap_or(0);
        println!(
            "{class:?}: refused at open {}, read error {}, found by the check alone {}, harmless {}",
            of(Verdict::Refused),
            of(Verdict::ReadError),
            of(Verdict::Found),
            of(Verdict::Harmless)
        );
    }
    println!("mutations tried: {count}; most memory of one: {most_memory} bytes");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
