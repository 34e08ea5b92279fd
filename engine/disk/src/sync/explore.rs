//! Runs a scenario under many schedules: random ones, and PCT (random priorities that change a few
//! times; Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding
//! Bugs", ASPLOS 2010).
//!
//! Compiled for tests with `--cfg shuttle` only. The search is deterministic; the environment
//! variable `SHUTTLE_RANDOM_SEED` selects another seed. Shuttle prints a failing schedule.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Base number of schedules of each kind, unless `CAIRNFS_SCHEDULES` sets another number.
const SCHEDULES: usize = 200;
/// The PCT bug depth: the number of priority changes plus one. Most bugs have a small depth.
const DEPTH: usize = 3;
/// Stack size of a thread, in bytes, with a margin above what the library needs.
const STACK: usize = 256 << 10;

/// The cost of one run, which decides how many schedules a scenario gets.
#[derive(Debug, Clone, Copy)]
pub enum Cost {
    /// About ten thousand runs per second.
    Small,
    /// About a thousand runs per second.
    Medium,
    /// About a hundred runs per second.
    Large,
}

/// Runs the scenario under each kind of schedule, and prints the number of schedules and the time.
pub fn explore(name: &str, cost: Cost, scenario: fn()) {
    let asked = std::env::var("CAIRNFS_SCHEDULES").ok();
    let unit = asked.and_then(|n| n.parse().ok()).unwrap_or(SCHEDULES);
    let each = match cost {
        Cost::Small => unit * 100,
        Cost::Medium => unit * 20,
        Cost::Large => unit,
    };
    let config = || {
        let mut config = Config::new();
        config.stack_size = STACK;
        config.silence_warnings = true;
        config
    };
    let seed = 1;
    let random = RandomScheduler::new_from_seed(seed, each);
    let by_priority = PctScheduler::new_from_seed(seed, DEPTH, each);
    let start = std::time::Instant::now();
    let runs = Runner::new(random, config()).run(scenario)
        + Runner::new(by_priority, config()).run(scenario);
    println!(
        "{name}: {runs} schedules, {} ms",
        start.elapsed().as_millis()
    );
}
