//! Runs a scenario under many schedules: at random, and by priorities that change a few times.
//!
//! Compiled for tests with `--cfg shuttle` only. The search is the same each time unless
//! `SHUTTLE_RANDOM_SEED` says where it begins; a failing schedule is printed.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Schedules of each kind for a scenario, unless `CAIRNFS_SCHEDULES` tells another number.
const SCHEDULES: usize = 200;
/// Changes of priority in a schedule, and one: most mistakes need very few.
const DEPTH: usize = 3;
/// What the library uses of a stack, with room.
const STACK: usize = 256 << 10;

/// How much of the number of schedules a scenario gets, by what a run of it takes.
#[derive(Debug, Clone, Copy)]
pub enum Cost {
    /// Some ten thousand runs in a second.
    Small,
    /// Some thousand.
    Medium,
    /// Some hundred.
    Large,
}

/// Runs the scenario under each kind of schedule, and says how many there were.
pub fn explore(name: &str, cost: Cost, scenario: fn()) {
    let asked = std::env::var("CAIRNFS_SCHEDULES").ok();
    let unit = asked.and_then(|n| n.parse().ok()).unwrap_or(SCHEDULES);
    let each = match cost {
        Cost::Small => unit * 20,
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
