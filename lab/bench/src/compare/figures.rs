//! Combines the figures of runs: for each phase and figure the values of all rounds with their
//! median, minimum and maximum; and the speed of CairnFS relative to the other systems.
//!
//! A ratio is computed within each round, and then the median is taken: a disturbance that slows
//! down a whole round affects both of its values.

use serde::Serialize;

use super::measured::Run;
use super::system::System;
use crate::Latency;
use crate::phase::Phase;

/// The values of a system, in the order of rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// The middle.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
    /// The value of each round.
    pub rounds: Vec<f64>,
}

impl Spread {
    /// Computes the spread; `None` without a value.
    pub fn of(rounds: Vec<f64>) -> Option<Self> {
        Some(Self {
            median: median(&rounds)?,
            least: rounds.iter().copied().reduce(f64::min)?,
            most: rounds.iter().copied().reduce(f64::max)?,
            rounds,
        })
    }
}

/// Returns the middle value, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len().is_multiple_of(2) {
        Some(f64::midpoint(*sorted.get(sorted.len() / 2 - 1)?, upper))
    } else {
        Some(upper)
    }
}

/// The kind of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A rate: more is better.
    Rate,
    /// A time: less is better.
    Time,
    /// A cost: less is better.
    Cost,
    /// Load of the device: neither more nor less is better.
    Load,
}

/// A row: one figure of one phase, for all systems.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The phase.
    pub phase: &'static str,
    /// Name of the figure, with its unit.
    pub figure: String,
    /// Kind of the figure.
    pub kind: Kind,
    /// The values of each system; `None` if it does not have the phase.
    pub cells: Vec<Option<Spread>>,
}

impl Row {
    /// Returns how many times as fast system `a` is as `b`: the median of the rounds' ratios.
    pub fn ratio(&self, a: usize, b: usize) -> Option<f64> {
        let (a, b) = (self.cell(a)?, self.cell(b)?);
        let of_round = |(a, b): (&f64, &f64)| match self.kind {
            Kind::Rate | Kind::Load => a / b,
            Kind::Time | Kind::Cost => b / a,
        };
        let ratios: Vec<f64> = a.rounds.iter().zip(&b.rounds).map(of_round).collect();
        median(&ratios).filter(|ratio| ratio.is_finite())
    }

    /// Returns the best of some systems, by the median.
    pub fn best(&self, of: &[usize]) -> Option<usize> {
        let known = of
            .iter()
            .filter_map(|&n| self.cell(n).map(|cell| (n, cell.median)));
        let best = match self.kind {
            Kind::Rate | Kind::Load => known.max_by(|a, b| a.1.total_cmp(&b.1)),
            Kind::Time | Kind::Cost => known.min_by(|a, b| a.1.total_cmp(&b.1)),
        };
        best.map(|(n, _)| n)
    }

    /// Whether any value is not zero.
    pub fn is_something(&self) -> bool {
        self.cells.iter().flatten().any(|cell| cell.most > 0.0)
    }

    /// Returns the values of a system.
    pub fn cell(&self, system: usize) -> Option<&Spread> {
        self.cells.get(system)?.as_ref()
    }
}

/// Returns one figure of one phase.
pub fn find<'a>(rows: &'a [Row], phase: &str, figure: &str) -> Option<&'a Row> {
    let mut rows = rows.iter();
    rows.find(|row| row.phase == phase && row.figure == figure)
}

/// How a figure is computed from a phase.
enum Of {
    Rate,
    Mebibytes,
    Seconds,
    Latency(fn(&Latency) -> u64),
    /// A counter for each operation, times a factor.
    Each(&'static str, f64),
    /// A counter for each second, times a factor.
    EachSecond(&'static str, f64),
}

impl Of {
    fn value(&self, phase: &Phase) -> Option<f64> {
        let (seconds, some) = (phase.time.as_secs_f64(), phase.operations > 0);
        match self {
            Of::Rate => some.then(|| phase.rate()),
            Of::Mebibytes => (phase.bytes > 0).then(|| phase.mebibytes_per_second()),
            Of::Seconds => (!some).then_some(seconds),
            Of::Latency(of) => phase.latency.as_ref().map(|l| of(l) as f64 / 1000.0),
            Of::Each(name, times) => {
                let counter = phase.counter(name)? as f64;
                some.then(|| counter * times / phase.operations as f64)
            }
            Of::EachSecond(name, times) => {
                let counter = phase.counter(name)? as f64;
                (seconds > 0.0).then(|| counter * times / seconds)
            }
        }
    }
}

use Kind::{Cost, Load, Rate, Time};
use Of::{Each, EachSecond, Latency as Timed};

/// The figures of each phase, if it has them; the unit of its operations is put before `/s`.
const FIGURES: &[(&str, Kind, Of)] = &[
    ("/s", Rate, Of::Rate),
    (MEBIBYTES, Rate, Of::Mebibytes),
    (SECONDS, Time, Of::Seconds),
    ("p50 us", Time, Timed(|l| l.p50)),
    ("p99 us", Time, Timed(|l| l.p99)),
    ("p99.9 us", Time, Timed(|l| l.p99_9)),
    (WRITES_EACH, Cost, Each("device_writes", 1e3)),
    (BYTES_EACH, Cost, Each("device_write_bytes", 1.0)),
    ("device reads per 1000", Cost, Each("device_reads", 1e3)),
    ("flushes per 1000", Cost, Each("device_flushes", 1e3)),
    ("log bytes each", Cost, Each("log_bytes", 1.0)),
    (CPU_EACH, Cost, Each("cpu_us", 1.0)),
    ("daemon CPU us each", Cost, Each("daemon_cpu_us", 1.0)),
    (MACHINE_EACH, Cost, Each("machine_cpu_us", 1.0)),
    ("write IOPS", Load, EachSecond("device_writes", 1.0)),
    ("written MB/s", Load, EachSecond("device_write_bytes", 1e-6)),
    ("read IOPS", Load, EachSecond("device_reads", 1.0)),
    ("read MB/s", Load, EachSecond("device_read_bytes", 1e-6)),
];

/// Figure: MiB that programs write per second.
pub const MEBIBYTES: &str = "MiB/s";
/// Figure: bytes written to the device per operation.
pub const BYTES_EACH: &str = "device bytes written each";
/// Figure: writes to the device per 1000 operations.
pub const WRITES_EACH: &str = "device writes per 1000";
/// Figure: processor time per operation, in the program and a FUSE daemon, in microseconds.
pub const CPU_EACH: &str = "CPU us each";
/// Figure: processor time per operation, of the whole machine, in microseconds.
pub const MACHINE_EACH: &str = "machine CPU us each";
/// Figure: time of a phase without operations, in seconds.
pub const SECONDS: &str = "seconds";

/// Name of the rows of ratios, in place of a phase.
const RATIO: &str = "ratio";

/// Returns all rows of one task, phase by phase, and the ratios that its workload computes.
pub fn rows(runs: &[Run], systems: &[System], task: usize) -> Vec<Row> {
    let runs: Vec<&Run> = runs.iter().filter(|run| run.task == task).collect();
    let unit = runs.first().map_or("", |run| run.report.unit);
    let mut rows = Vec::new();
    for phase in phase_names(&runs) {
        for (title, kind, of) in FIGURES {
            let cells: Vec<_> = systems
                .iter()
                .map(|system| {
                    let of_it = runs.iter().filter(|run| run.system == *system);
                    let phases = of_it.flat_map(|run| &run.report.phases);
                    let values = phases
                        .filter(|p| p.name == phase)
                        .filter_map(|p| of.value(p));
                    Spread::of(values.collect())
                })
                .collect();
            if cells.iter().any(Option::is_some) {
                rows.push(Row {
                    phase,
                    figure: match of {
                        Of::Rate => format!("{unit}{title}"),
                        _ => (*title).to_owned(),
                    },
                    kind: *kind,
                    cells,
                });
            }
        }
    }
    rows.extend(ratios(&runs, systems));
    rows
}

/// Returns a row for each ratio of figures that the runs report.
fn ratios(runs: &[&Run], systems: &[System]) -> Vec<Row> {
    let first = runs.iter().find(|run| !run.report.ratios.is_empty());
    let names = first.into_iter().flat_map(|run| &run.report.ratios);
    let row = |(name, _): &(&str, f64)| Row {
        phase: RATIO,
        figure: name.replace('_', " "),
        kind: Kind::Load,
        cells: systems
            .iter()
            .map(|system| {
                let of_it = runs.iter().filter(|run| run.system == *system);
                let ratios = of_it.flat_map(|run| &run.report.ratios);
                let values = ratios.filter(|(n, _)| n == name).map(|(_, value)| *value);
                Spread::of(values.collect())
            })
            .collect(),
    };
    names.map(row).collect()
}

/// Returns the phases of all runs, in their order of execution.
fn phase_names(runs: &[&Run]) -> Vec<&'static str> {
    let longest = runs.iter().max_by_key(|run| run.report.phases.len());
    let first = longest.into_iter().chain(runs);
    let mut names = Vec::new();
    for phase in first.flat_map(|run| &run.report.phases) {
        if !names.contains(&phase.name) {
            names.push(phase.name);
        }
    }
    names
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::Report;

    pub fn run(round: usize, system: System, phases: Vec<Phase>) -> Run {
        let report = Report {
            workload: "fsmark",
            target: String::new(),
            interface: "system calls",
            settings: Vec::new(),
            unit: "files",
            phases,
            ratios: Vec::new(),
        };
        Run {
            round,
            system,
            task: 0,
            report,
        }
    }

    pub fn phase(name: &'static str, operations: u64, millis: u64) -> Phase {
        Phase {
            name,
            operations,
            bytes: 0,
            time: Duration::from_millis(millis),
            latency: None,
            counters: vec![("device_writes", 50), ("device_write_bytes", 4_000_000)],
            sum: false,
        }
    }

    pub fn sample() -> (Vec<Run>, Vec<System>) {
        let systems = vec![
            System::Cairnfs,
            System::CairnfsMount,
            System::Noop,
            System::Xfs,
        ];
        let mut runs = Vec::new();
        for (round, slow) in [(0, 1), (1, 2), (2, 4)] {
            for (system, millis) in [(0, 100), (1, 800), (2, 400), (3, 200)] {
                let mut phases = vec![phase("create", 1000, millis * slow)];
                if systems[system] != System::Noop {
                    phases.push(phase("walk", 1000, 50));
                }
                phases.push(phase("sync", 0, 10 * slow));
                runs.push(run(round, systems[system], phases));
            }
        }
        (runs, systems)
    }

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[5.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 9.0]), Some(3.5));
        let spread = Spread::of(vec![2.0, 9.0, 4.0]).unwrap();
        assert_eq!((spread.least, spread.median, spread.most), (2.0, 4.0, 9.0));
    }

    #[test]
    fn rows_have_a_cell_for_each_system() {
        let (runs, systems) = sample();
        let rows = rows(&runs, &systems, 0);
        let row = |phase, figure| {
            let mut all = rows.iter();
            all.find(|row| row.phase == phase && row.figure == figure)
                .unwrap()
        };
        let create = row("create", "files/s");
        assert_eq!(create.cells[0].as_ref().unwrap().median, 5000.0);
        assert_eq!(create.cells[0].as_ref().unwrap().most, 10_000.0);
        assert_eq!(row("walk", "files/s").cells[2], None);
        assert_eq!(
            row("sync", "seconds").cells[1].as_ref().unwrap().median,
            0.02
        );
        let writes = row("create", "device writes per 1000");
        assert_eq!(writes.cells[3].as_ref().unwrap().median, 50.0);
        let bytes = row("create", "device bytes written each");
        assert_eq!(bytes.cells[3].as_ref().unwrap().median, 4000.0);
        assert!(!rows.iter().any(|row| row.figure == "MiB/s"));
        let order: Vec<_> = rows.iter().map(|row| row.phase).collect();
        assert!(order.is_sorted_by_key(|p| ["create", "walk", "sync"].iter().position(|n| n == p)));
    }

    #[test]
    fn ratios_of_workloads_have_rows() {
        let (mut runs, systems) = sample();
        for run in runs.iter_mut().filter(|run| run.system == System::Xfs) {
            run.report.ratios = vec![("beside_to_alone", 0.25)];
        }
        let rows = rows(&runs, &systems, 0);
        let row = rows.last().unwrap();
        assert_eq!(
            (row.phase, row.figure.as_str()),
            ("ratio", "beside to alone")
        );
        assert_eq!(row.cells[..3], [None, None, None]);
        assert_eq!(row.cells[3].as_ref().unwrap().median, 0.25);
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let (mut runs, systems) = sample();
        let all = rows(&runs, &systems, 0);
        assert_eq!(all[0].ratio(0, 3), Some(2.0));
        assert_eq!(all[0].ratio(1, 2), Some(0.5));
        assert_eq!(all[0].best(&[1, 3]), Some(3));
        let sync = all.iter().find(|row| row.figure == "seconds").unwrap();
        assert_eq!(sync.ratio(0, 3), Some(1.0));
        let walk = all.iter().find(|row| row.phase == "walk").unwrap();
        assert_eq!((walk.ratio(1, 2), walk.best(&[2])), (None, None));
        // A phase with zero time has no ratio.
        for run in &mut runs {
            run.report.phases[0].operations = 0;
            run.report.phases[0].time = Duration::ZERO;
        }
        assert_eq!(rows(&runs, &systems, 0)[0].ratio(0, 3), None);
    }
}
