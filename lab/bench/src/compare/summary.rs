//! All tasks of a comparison in one table: rates with their spread, and how many times as fast
//! CairnFS is as the best of the kernel's file systems and as the server that stores nothing; and
//! the processor time of the operations.
//!
//! Tasks of a sweep have tables of their own, and are left out.

use serde_json::{Value, json};

use super::figures::{CPU_EACH, Kind, MACHINE_EACH, MEBIBYTES, Row, find};
use super::found::Found;
use super::system::System;
use super::table::{Against, Table, line, none, readable, spread};

/// Returns both tables; none if they would repeat a single task.
pub fn tables(found: &Found) -> Vec<Table> {
    match tasks(found).count() + found.missing.len() {
        0 | 1 => Vec::new(),
        _ => vec![rates(found), processor_times(found)],
    }
}

/// Titles and rows of the tasks.
fn tasks(found: &Found) -> impl Iterator<Item = (&str, &[Row])> {
    let all = found.tasks.iter().zip(&found.rows);
    let alone = all.filter(|(task, _)| task.sweep.is_none());
    alone.map(|(task, rows)| (task.title.as_str(), rows.as_slice()))
}

/// The rows of rates of operations.
fn rates_of(rows: &[Row]) -> impl Iterator<Item = &Row> {
    let is_rate = |row: &&Row| row.kind == Kind::Rate && row.figure != MEBIBYTES;
    rows.iter().filter(is_rate)
}

fn rates(found: &Found) -> Table {
    let columns = columns(&found.systems);
    let mut lines = Vec::new();
    for (title, rows) in tasks(found) {
        for row in rates_of(rows) {
            let cells = row.cells.iter();
            let cells = cells.map(|cell| cell.as_ref().map_or_else(none, spread));
            let ratios = columns
                .iter()
                .map(|column| column.cell(row, &found.systems));
            let words = [title, row.phase, &row.figure];
            lines.push(line(&words, cells.chain(ratios)));
        }
    }
    for missing in &found.missing {
        let why = format!("not measured: {}", missing.why);
        let empty = (0..found.systems.len() + columns.len() + 1).map(|_| none());
        lines.push(line(&[&missing.title, &why], empty));
    }
    let systems = found.systems.iter().map(System::to_string);
    let ratios = columns
        .iter()
        .map(|column| column.long_title(&found.systems));
    let title = "Summary: median (least..most), and the median of the rounds' ratios";
    Table::new(title.to_owned(), &WORDS, systems.chain(ratios), lines)
}

fn processor_times(found: &Found) -> Table {
    let mut lines = Vec::new();
    for (title, rows) in tasks(found) {
        for row in rates_of(rows) {
            let of = |figure, system| {
                let spread = find(rows, row.phase, figure)?.cell(system)?;
                Some(readable(spread.median))
            };
            let cell = |system| match (of(CPU_EACH, system), of(MACHINE_EACH, system)) {
                (Some(own), Some(machine)) => format!("{own} / {machine}"),
                _ => none(),
            };
            let cells: Vec<_> = (0..found.systems.len()).map(cell).collect();
            if cells.iter().any(|cell| *cell != none()) {
                let words = [title, row.phase, &row.figure];
                lines.push(line(&words, cells.into_iter()));
            }
        }
    }
    let title = "Summary: processor time of an operation in microseconds, of the program and the daemon / of the \
                 machine; medians";
    let systems = found.systems.iter().map(System::to_string);
    Table::new(title.to_owned(), &WORDS, systems, lines)
}

const WORDS: [&str; 3] = ["task", "phase", "figure"];

/// Columns of ratios: of each interface of CairnFS to the best of the kernel's file systems, and of
/// a mount to the server that stores nothing.
fn columns(systems: &[System]) -> Vec<Against> {
    let mut columns = Vec::new();
    for (ours, system) in ours(systems) {
        columns.extend(Against::best(ours, systems));
        if system == System::CairnfsMount {
            columns.extend(Against::noop(ours, systems));
        }
    }
    columns
}

fn ours(systems: &[System]) -> impl Iterator<Item = (usize, System)> {
    let all = systems.iter().copied().enumerate();
    all.filter(|(_, system)| system.is_ours() && system.without().is_none())
}

/// Returns the rates of each interface of CairnFS with their ratios, as JSON.
pub fn json(found: &Found) -> Vec<Value> {
    let mut all = Vec::new();
    for (title, rows) in tasks(found) {
        for row in rates_of(rows) {
            for (place, system) in ours(&found.systems) {
                let ratio = |against: Option<Against>| against.and_then(|a| a.ratio(row));
                let best = Against::best(place, &found.systems);
                let fastest = best.as_ref().and_then(|best| best.other(row));
                all.push(json!({
                    "task": title,
                    "phase": row.phase,
                    "figure": row.figure,
                    "system": system.to_string(),
                    "rate": row.cells.get(place),
                    "best": fastest.and_then(|n| found.systems.get(n)).map(System::to_string),
                    "ratio_to_best": ratio(best),
                    "ratio_to_noop": ratio(Against::noop(place, &found.systems)),
                }));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::conditions::Conditions;
    use super::super::figures::rows;
    use super::super::figures::tests::{phase, run};
    use super::super::task::Task;
    use super::*;
    use crate::compare::found::Missing;

    const SYSTEMS: [System; 4] = [
        System::CairnfsMount,
        System::Noop,
        System::Xfs,
        System::Ext4,
    ];

    /// Two tasks in three rounds: CairnFS takes 100 ms, the no-op 50, XFS 40, ext4 200; each
    /// operation of the 1000 takes 7 us of the program, and 9 us of the machine.
    fn found() -> Found {
        let titles = ["fsmark --threads 1", "maildir"];
        let tasks: Vec<_> = titles.map(|title| Task::parse(title).unwrap()).to_vec();
        let mut runs = Vec::new();
        for task in 0..tasks.len() {
            for slow in [1, 2, 4] {
                for (system, millis) in SYSTEMS.into_iter().zip([100, 50, 40, 200]) {
                    let mut create = phase("create", 1000, millis * slow);
                    create.counters = vec![("cpu_us", 7000), ("machine_cpu_us", 9000)];
                    let mut run = run(0, system, vec![create, phase("sync", 0, 5)]);
                    run.task = task;
                    runs.push(run);
                }
            }
        }
        Found {
            conditions: Conditions::new("x", 3),
            rows: (0..tasks.len()).map(|n| rows(&runs, &SYSTEMS, n)).collect(),
            systems: SYSTEMS.to_vec(),
            tasks,
            missing: Vec::new(),
            runs,
        }
    }

    #[test]
    fn summary_has_spread_and_ratios_of_each_task() {
        let [rates, cpu] = tables(&found()).try_into().unwrap();
        let ratios = ["cairnfs-mount / best", "cairnfs-mount / noop"];
        assert_eq!(rates.head[7..], ratios);
        assert_eq!(rates.lines.len(), 2);
        assert_eq!(
            rates.lines[0][..3],
            ["fsmark --threads 1", "create", "files/s"]
        );
        assert_eq!(rates.lines[0][3], "5000 (2500..10.0k)");
        assert_eq!(rates.lines[0][7..], ["0.40 xfs", "0.50"]);
        assert_eq!(rates.lines[1][0], "maildir");
        assert_eq!(cpu.lines[1][3..], ["7.00 / 9.00"; 4]);
        assert!([&rates, &cpu].iter().all(|table| {
            table
                .lines
                .iter()
                .all(|line| line.len() == table.head.len())
        }));
    }

    #[test]
    fn summary_names_what_is_missing() {
        let mut found = found();
        found.missing.push(Missing {
            title: "npm ci".into(),
            why: "npm is missing: install the package npm".into(),
        });
        let rates = &tables(&found)[0];
        let last = rates.lines.last().unwrap();
        assert_eq!(last.len(), rates.head.len());
        assert_eq!(last[0], "npm ci");
        assert!(
            last[1].starts_with("not measured: npm is missing"),
            "{last:?}"
        );
    }

    #[test]
    fn single_task_has_no_summary() {
        let mut found = found();
        found.tasks.truncate(1);
        found.rows.truncate(1);
        assert!(tables(&found).is_empty());
    }

    #[test]
    fn json_has_rates_and_ratios_of_cairnfs() {
        let all = json(&found());
        assert_eq!(all.len(), 2);
        assert_eq!(all[0]["system"], "cairnfs-mount");
        assert_eq!(all[0]["rate"]["median"], 5000.0);
        assert_eq!(all[0]["rate"]["rounds"].as_array().unwrap().len(), 3);
        assert_eq!(
            (&all[0]["best"], &all[0]["ratio_to_best"]),
            (&"xfs".into(), &0.4.into())
        );
        assert_eq!(all[0]["ratio_to_noop"], 0.5);
    }
}
