//! Measures what each mechanism of CairnFS saves: workloads that show it, run with it and without
//! it, in-process on the same device in the same rounds, presented in one table.

use cairnfs::Mechanism;

use super::figures::{Row, find};
use super::found::Found;
use super::system::System;
use super::table::{Table, none, readable, times};
use super::task::Task;
use crate::Result;

/// A mechanism, the workloads that show it, and the phases and figures that do.
struct Shown {
    mechanism: Mechanism,
    workloads: &'static [&'static str],
    figures: &'static [(&'static str, &'static str)],
}

const SHOWN: &[Shown] = &[
    Shown {
        mechanism: Mechanism::OneFlush,
        workloads: &[
            "fsync --jobs 1 --block 64K --total 32M",
            "fsync --jobs 4 --block 64K --total 16M",
            "fsync --jobs 16 --block 64K --total 8M",
            "fsync --jobs 64 --block 64K --total 4M",
        ],
        figures: &[
            ("write + fsync", "MiB/s"),
            ("write + fsync", "p50 us"),
            ("write + fsync", "flushes per 1000"),
        ],
    },
    Shown {
        mechanism: Mechanism::FsyncClosure,
        workloads: &["mixed --load 4 --appends 500"],
        figures: &[
            ("append + fsync, alone", "p50 us"),
            ("append + fsync, beside load", "p50 us"),
            ("append + fsync, beside load", "p99 us"),
            ("the load: create, write, delete", "operations/s"),
        ],
    },
    Shown {
        mechanism: Mechanism::EntriesOnce,
        workloads: &[
            "dirfsync --adds 1000 --deletes 100",
            "dirfsync --adds 10000 --deletes 1000",
            "dirfsync --adds 100000 --deletes 1000",
            "dirfsync --adds 1000000 --deletes 10000",
        ],
        figures: &[
            ("adds synced", "log bytes each"),
            ("fsync after adds", "p50 us"),
            ("fsync after deletes", "p50 us"),
        ],
    },
    Shown {
        mechanism: Mechanism::AttributesKnown,
        workloads: &[
            "fsync --jobs 1 --random --block 4K --total 4M",
            "fsync --jobs 16 --random --block 4K --total 1M",
        ],
        figures: &[
            ("random write + fsync", "fsyncs/s"),
            ("random write + fsync", "p50 us"),
            ("random write + fsync", "CPU us each"),
        ],
    },
    Shown {
        mechanism: Mechanism::Relogging,
        workloads: &[
            "fsmark --threads 1 --files 100000 --sync-create",
            "fsmark --threads 8 --files 50000 --sync-create",
        ],
        figures: &[
            ("create", "files/s"),
            ("create synced", "log bytes each"),
            ("unlink", "files/s"),
            ("unlink", "log bytes each"),
        ],
    },
    Shown {
        mechanism: Mechanism::ValuesOnce,
        workloads: &[
            "xattr --threads 8 --files 100000 --values 10",
            "xattr --threads 8 --files 100000 --values 1000",
            "xattr --threads 8 --files 100000 --values 100000",
        ],
        figures: &[
            ("set", "calls/s"),
            ("set synced", "device bytes written each"),
            ("get, present", "calls/s"),
        ],
    },
    Shown {
        mechanism: Mechanism::ChangesOnly,
        workloads: &[
            "fsync --jobs 1 --random --cold --files 2048 --every 8 --block 4K --total 64M",
            "fsync --jobs 1 --random --scattered --cold --files 64 --syncs 64 --block 4K --total 1G",
        ],
        figures: &[
            ("random write + fsync", "fsyncs/s"),
            ("random write + fsync", "p50 us"),
            ("random write + fsync", "log bytes each"),
        ],
    },
    Shown {
        mechanism: Mechanism::ReservationCaches,
        workloads: &[
            "fsmark --threads 2 --files 100000",
            "fsmark --threads 8 --files 50000",
            "fsmark --threads 64 --files 5000",
        ],
        figures: &[
            ("create", "files/s"),
            ("create", "CPU us each"),
            ("unlink", "files/s"),
        ],
    },
];

/// Returns CairnFS with all mechanisms, and without each.
pub fn systems() -> Vec<System> {
    let without = SHOWN
        .iter()
        .map(|shown| System::CairnfsWithout(shown.mechanism));
    std::iter::once(System::Cairnfs).chain(without).collect()
}

/// Returns the workloads, each with the mechanism that it shows.
pub fn tasks() -> Result<Vec<Task>> {
    let of = |shown: &'static Shown| {
        let workloads = shown.workloads.iter();
        workloads.map(|words| Task::showing(words, shown.mechanism))
    };
    SHOWN.iter().flat_map(of).collect()
}

/// Returns a line for each figure of each workload: without the mechanism, with it.
pub fn table(found: &Found) -> Table {
    let mut lines = Vec::new();
    for (task, rows) in found.tasks.iter().zip(&found.rows) {
        let shown = SHOWN.iter().find(|s| Some(s.mechanism) == task.shows);
        for figure in shown.into_iter().flat_map(|shown| shown.figures) {
            let row = find(rows, figure.0, figure.1);
            if let (Some(shown), Some(row)) = (shown, row) {
                lines.push(cells(shown.mechanism, task, row, &found.systems));
            }
        }
    }
    let title = "What each mechanism saves: medians, and the median of the rounds' ratios";
    let words = ["mechanism", "workload", "figure"];
    let columns = ["without", "with", "times as good"].map(str::to_owned);
    Table::new(title.to_owned(), &words, columns.into_iter(), lines)
}

fn cells(mechanism: Mechanism, task: &Task, row: &Row, systems: &[System]) -> Vec<String> {
    let place = |system| systems.iter().position(|s| *s == system);
    let (with, without) = (
        place(System::Cairnfs),
        place(System::CairnfsWithout(mechanism)),
    );
    let cell = |place: Option<usize>| {
        let spread = place.and_then(|place| row.cell(place));
        spread.map_or_else(none, |spread| readable(spread.median))
    };
    let ratio = with.zip(without).and_then(|(a, b)| row.ratio(a, b));
    vec![
        mechanism.name().to_owned(),
        task.title.clone(),
        format!("{}: {}", row.phase, row.figure),
        cell(without),
        cell(with),
        times(ratio),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::conditions::Conditions;
    use super::super::figures::rows;
    use super::super::figures::tests::{phase, run};
    use super::*;

    #[test]
    fn each_mechanism_has_workloads_with_it_and_without_it() {
        let tasks = tasks().unwrap();
        for mechanism in Mechanism::ALL {
            let own: Vec<_> = tasks
                .iter()
                .filter(|t| t.shows == Some(mechanism))
                .collect();
            assert!(!own.is_empty(), "{}", mechanism.name());
            for task in own {
                let measured = systems().into_iter().filter(|system| task.fits(*system));
                let both = [System::Cairnfs, System::CairnfsWithout(mechanism)];
                assert_eq!(measured.collect::<Vec<_>>(), both);
            }
        }
        assert_eq!(systems().len(), 1 + Mechanism::ALL.len());
    }

    #[test]
    fn line_has_both_values_and_their_ratio() {
        let systems = systems();
        let mut runs = Vec::new();
        for (round, millis) in [(0, 100), (1, 200), (2, 400)] {
            for (system, times) in [(systems[0], 1), (systems[1], 2)] {
                let mut write = phase("write + fsync", 1000, millis * times);
                write.bytes = 10 << 20;
                runs.push(run(round, system, vec![write]));
            }
        }
        let tasks = vec![Task::showing("fsync --jobs 4", Mechanism::OneFlush).unwrap()];
        let found = Found {
            conditions: Conditions::new("x", 3),
            rows: vec![rows(&runs, &systems, 0)],
            systems,
            tasks,
            missing: Vec::new(),
            runs,
        };
        let table = table(&found);
        assert_eq!(table.head.len(), 6);
        let expected = [
            "one-flush",
            "fsync --jobs 4",
            "write + fsync: MiB/s",
            "25.0",
            "50.0",
            "2.00",
        ];
        assert_eq!(table.lines, [expected]);
    }
}
