//! Tries workloads, many of them on several threads, and prints what was tried.

use cairnfs::fs::{FileSystem, Options, Pressure};
use cairnfs_sim::explore::{self, Depth, Recoveries, Tally, explore, explore_beside};
use cairnfs_sim::image::Image;
use cairnfs_sim::record::{Recording, Run, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::spread::spread;
use cairnfs_sim::workload::{Runner, Step, record, record_as, record_with, steps};
use cairnfs_tier::size;

/// The depth for hand-written workloads.
pub const THOROUGH: Depth = Depth {
    states: 1500,
    interrupted: 12,
    within: 6,
    used: 4,
};

/// The depth to use instead: less in the short tier, more in the deep one. Interrupted recoveries
/// are most of the states, because those that follow are interrupted as well.
fn chosen(depth: &Depth) -> Depth {
    Depth {
        states: size(depth.states.div_ceil(6), depth.states.saturating_mul(2)),
        interrupted: size(depth.interrupted * 6, depth.interrupted.div_ceil(3)),
        within: size(depth.within, depth.within * 2),
        used: size(depth.used * 4, depth.used),
    }
}

/// Maximum number of failures that are printed.
const SHOWN: usize = 5;

/// Steps in their text form.
pub fn text(steps: &[Step]) -> String {
    let texts: Vec<String> = steps.iter().map(Step::to_string).collect();
    texts.join("; ")
}

/// The value of one of the volume's counters.
pub fn counted(fs: &FileSystem, name: &str) -> u64 {
    let counters = fs.counters().into_iter();
    counters.filter(|(n, _)| *n == name).map(|(_, n)| n).sum()
}

/// Does steps in a run.
pub fn do_steps(run: &Run, steps: &[Step]) {
    let mut runner = Runner::new(run.fs());
    for step in steps {
        // POSIX allows some errors; a call during which the process is killed, and later ones, fail.
        let _ = runner.run(step);
        run.disk().pause();
    }
}

/// Tries one recording; panics if it breaks the contract.
pub fn try_recording(what: &str, recording: &Recording, depth: &Depth) -> Tally {
    let tally = explore(recording, &chosen(depth), &mut |_| {});
    for failure in tally.failures.iter().take(SHOWN) {
        eprintln!("{what}\n  {failure}");
    }
    assert!(
        tally.failures.is_empty(),
        "{} of {} states break the contract",
        tally.failures.len(),
        tally.states
    );
    tally
}

/// Tries a history: steps on an empty volume.
pub fn history(text: &str) {
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let steps = steps(text).unwrap();
    let recording = record(start, &steps).unwrap();
    let tally = try_recording(text, &recording, &THOROUGH);
    assert!(tally.states > 3, "only {} states", tally.states);
}

/// Tries a history with merges that take a key or two at a time, too, or in each part.
pub fn pressed_history(text: &str) {
    history(text);
    for pressure in [Pressure::steps(300, 2), Pressure::parts(300, 1)] {
        let start = fresh_volume(VOLUME_SIZE).unwrap();
        let tight = Options {
            pressure: Some(pressure),
            ..options(4)
        };
        let recording = record_as(start, &steps(text).unwrap(), &tight, 0).unwrap();
        try_recording(text, &recording, &THOROUGH);
    }
}

/// Tries one state of a history.
pub fn replay(text: &str, id: &str) -> Result<(), String> {
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let recording = record(start, &steps(text).unwrap()).unwrap();
    let id: Vec<_> = id.split('/').map(|id| id.parse().unwrap()).collect();
    explore::replay(&recording, &id)
}

/// Tries many workloads on as many threads as there are processors; panics if one breaks the
/// contract, and prints statistics. After every `interval` steps everything is made durable; 0 for
/// never.
pub fn try_all(
    name: &str,
    start: &Image,
    interval: u64,
    workloads: &(dyn Fn(usize) -> Option<Vec<Step>> + Sync),
    depth: &Depth,
) {
    let recorded = |i: usize| {
        let steps = workloads(i)?;
        let recording = record_with(start.clone(), &steps, interval).unwrap();
        Some((recording, steps))
    };
    try_recordings(name, &recorded, depth);
}

/// As [`try_all`], with `count` workloads that `recorded` records.
pub fn try_each(
    name: &str,
    count: usize,
    depth: &Depth,
    recorded: &(dyn Fn(usize) -> (Recording, Vec<Step>) + Sync),
) {
    try_recordings(name, &|i| (i < count).then(|| recorded(i)), depth);
}

fn try_recordings(
    name: &str,
    recorded: &(dyn Fn(usize) -> Option<(Recording, Vec<Step>)> + Sync),
    depth: &Depth,
) {
    let depth = chosen(depth);
    let recoveries = Recoveries::default();
    let tallies = spread(|i| {
        let (recording, steps) = recorded(i)?;
        let tally = explore_beside(&recording, &depth, &recoveries);
        let failures = tally.failures.iter().take(SHOWN);
        let told: Vec<String> = failures
            .map(|failure| format!("{name}: {}\n  {failure}", text(&steps)))
            .collect();
        Some((tally, told))
    });
    let tried = tallies.len();
    let told = tallies.iter().flat_map(|(_, told)| told);
    told.take(SHOWN).for_each(|failure| eprintln!("{failure}"));
    let mut all = Tally::default();
    tallies.into_iter().for_each(|(tally, _)| all.add(tally));
    println!(
        "{name}: {} workloads, {} crash states recovered, {} distinct disks, {} interrupted recoveries, {} used on",
        tried,
        all.states,
        all.disks.len(),
        all.interrupted,
        all.used
    );
    assert!(
        all.failures.is_empty(),
        "{name}: {} of {} states break the contract",
        all.failures.len(),
        all.states
    );
}
