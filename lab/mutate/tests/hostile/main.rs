//! Thousands of damaged volumes, the same ones each time: none makes the engine or the check panic,
//! loop forever or use much memory, and a volume without findings is sound.
//!
//! `CAIRNFS_MUTATIONS` is the number of seeds, `CAIRNFS_MUTATION_FROM` the first one;
//! `CAIRNFS_MUTATION_BASE=NAME` damages one base only.
//!
//! Contract: readonly, rot, hostile

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cairnfs_mutate::{Base, CLASSES, Class, Verdict, bases, mutate, survives};
use cairnfs_tier::size_from;

use crate::memory;

/// Number of mutations in a run: in the short tier, and in the deep one.
const COUNT: [u64; 2] = [800, 9600];
/// The base that each round of all classes damages: the empty base has little to damage.
const BASES: [usize; 7] = [1, 2, 3, 4, 1, 2, 0];
/// Maximum memory in bytes that one volume may use at once.
const MOST_MEMORY: usize = 16 << 20;
/// Number of failures after which a run stops.
const MOST_FAILURES: usize = 40;

thread_local! {
    /// Whether this thread tries mutations: its panics are kept, those of other tests are printed.
    static TRIES: Cell<bool> = const { Cell::new(false) };
    /// The place of the last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
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
        Err(_) => return Err(format!("{what}: {}", PANIC.take())),
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

/// What became of all mutations.
#[derive(Default)]
struct Tried {
    verdicts: BTreeMap<Class, BTreeMap<Verdict, u64>>,
    failures: Vec<String>,
    most_memory: usize,
}

impl Tried {
    fn add(&mut self, result: Result<(Class, Verdict, usize), String>) {
        match result {
            Ok((class, verdict, memory)) => {
                let verdicts = self.verdicts.entry(class).or_default();
                *verdicts.entry(verdict).or_default() += 1;
                self.most_memory = self.most_memory.max(memory);
            }
            Err(why) => {
                // Printed immediately, for long runs that are stopped early.
                println!("{why}");
                self.failures.push(why);
            }
        }
    }
}

#[test]
fn damaged_volumes_are_survived() {
    let bases = bases();
    let sound: Vec<_> = bases.iter().map(sound_trees).collect();
    let from = size_from("CAIRNFS_MUTATION_FROM", 0, 0);
    let count = size_from("CAIRNFS_MUTATIONS", COUNT[0], COUNT[1]);
    let seeds = from..from + count;
    let only = std::env::var("CAIRNFS_MUTATION_BASE").ok().map(|name| {
        let names: Vec<_> = bases.iter().map(|b| b.name).collect();
        let found = names.iter().position(|n| *n == name);
        found.unwrap_or_else(|| panic!("no base {name}: one of {names:?}"))
    });
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if TRIES.get() {
            PANIC.set(info.to_string());
        } else {
            usual(info);
        }
    }));
    let next = AtomicU64::new(seeds.start);
    let tried = Mutex::new(Tried::default());
    let work = || {
        TRIES.set(true);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || tried.lock().unwrap().failures.len() >= MOST_FAILURES {
                break;
            }
            let round = (seed / CLASSES.len() as u64) as usize % BASES.len();
            let which = only.unwrap_or(BASES[round]);
            let result = attempt(seed, &bases[which], &sound[which]);
            tried.lock().unwrap().add(result);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let tried = tried.into_inner().unwrap();
    for (class, verdicts) in &tried.verdicts {
        let of = |v| verdicts.get(&v).copied().unwrap_or(0);
        println!(
            "{class:?}: refused at open {}, read error {}, found by the check alone {}, harmless {}",
            of(Verdict::Refused),
            of(Verdict::ReadError),
            of(Verdict::Found),
            of(Verdict::Harmless)
        );
    }
    println!(
        "mutations tried: {count}; most memory of one: {} bytes",
        tried.most_memory
    );
    assert!(tried.failures.is_empty(), "{}", tried.failures.join("\n"));
}
