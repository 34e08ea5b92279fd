//! Combines sweeps of xattr with several numbers of values and files: a table of each figure with a
//! line for each system, number of values and number of files, and a column for each number of
//! threads; and the growth of a call's processor time with each of the three.

use std::collections::BTreeSet;

use super::figures::{BYTES_EACH, CPU_EACH, MACHINE_EACH, Row, find};
use super::found::Found;
use super::system::System;
use super::table::{Table, line, none, readable, times};
use super::task::Work;

const SET: &str = "set";
const SYNCED: &str = "set synced";

/// The combined sweeps.
pub struct Grid<'a> {
    systems: &'a [System],
    points: Vec<Point<'a>>,
}

/// One task of the sweeps.
struct Point<'a> {
    values: u64,
    files: u64,
    threads: usize,
    rows: &'a [Row],
}

/// The figure in each cell.
#[derive(Clone, Copy)]
enum Figure {
    Seconds,
    Of(&'static str, &'static str),
}

const TABLES: [(&str, Figure); 4] = [
    ("seconds", Figure::Seconds),
    ("CPU us of a call", Figure::Of(SET, CPU_EACH)),
    ("machine CPU us of a call", Figure::Of(SET, MACHINE_EACH)),
    (
        "device bytes written for a call, until synced",
        Figure::Of(SYNCED, BYTES_EACH),
    ),
];

impl Point<'_> {
    fn value(&self, figure: Figure, system: usize) -> Option<f64> {
        let median =
            |phase: &str, figure: &str| Some(find(self.rows, phase, figure)?.cell(system)?.median);
        match figure {
            Figure::Of(phase, figure) => median(phase, figure),
            Figure::Seconds => {
                let calls = (self.files * self.threads as u64) as f64;
                median(SET, "calls/s").map(|rate| calls / rate)
            }
        }
    }
}

impl<'a> Grid<'a> {
    /// Returns the sweeps of xattr, if some differ in values or files.
    pub fn of(found: &'a Found) -> Option<Self> {
        let mut points = Vec::new();
        for (task, rows) in found.tasks.iter().zip(&found.rows) {
            if let (Work::Xattr(xattr), Some((_, threads))) = (&task.work, &task.sweep) {
                points.push(Point {
                    values: xattr.values,
                    files: xattr.files,
                    threads: *threads,
                    rows,
                });
            }
        }
        let grid = Self {
            systems: &found.systems,
            points,
        };
        (grid.kinds().len() > 1).then_some(grid)
    }

    /// Returns the pairs of the number of values and the number of files.
    fn kinds(&self) -> BTreeSet<(u64, u64)> {
        self.points.iter().map(|p| (p.values, p.files)).collect()
    }

    fn threads(&self) -> BTreeSet<usize> {
        self.points.iter().map(|p| p.threads).collect()
    }

    fn value(
        &self,
        (values, files): (u64, u64),
        threads: usize,
        figure: Figure,
        system: usize,
    ) -> Option<f64> {
        let is_it = |p: &&Point<'_>| (p.values, p.files, p.threads) == (values, files, threads);
        self.points.iter().find(is_it)?.value(figure, system)
    }

    /// Returns all tables.
    pub fn tables(&self) -> Vec<Table> {
        let tables = TABLES.map(|(title, figure)| self.table(title, figure));
        tables.into_iter().chain([self.growth()]).collect()
    }

    fn table(&self, title: &str, figure: Figure) -> Table {
        let mut lines = Vec::new();
        for (place, system) in self.systems.iter().enumerate() {
            for kind in self.kinds() {
                let cell = |threads| self.value(kind, threads, figure, place).map(readable);
                let cells: Vec<_> = self.threads().into_iter().map(cell).collect();
                if cells.iter().any(Option::is_some) {
                    let (values, files) = (kind.0.to_string(), kind.1.to_string());
                    let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(none));
                    lines.push(line(&[&system.to_string(), &values, &files], cells));
                }
            }
        }
        let threads = self.threads();
        let threads = threads.iter().map(usize::to_string);
        let title = format!("xattr, set: {title}; by values, files of a thread, and threads");
        Table::new(title, &["system", "values", "files"], threads, lines)
    }

    /// Returns the table of growth of processor time from few to many threads, values and files.
    fn growth(&self) -> Table {
        let lines = self.steps().into_iter().map(|step| {
            let ratio = |place| {
                let at =
                    |(kind, threads)| self.value(kind, threads, Figure::Of(SET, CPU_EACH), place);
                let (few, many) = (at(step.few)?, at(step.many)?);
                Some(many / few).filter(|ratio| ratio.is_finite())
            };
            let cells = (0..self.systems.len()).map(|place| times(ratio(place)));
            line(&[&step.title], cells)
        });
        let title = "xattr, set: how many times the CPU us of a call grow".to_owned();
        let systems = self.systems.iter().map(System::to_string);
        Table::new(title, &["from few to many"], systems, lines.collect())
    }

    fn steps(&self) -> Vec<Step> {
        let (kinds, threads) = (self.kinds(), self.threads());
        let Some(most) = threads.last().copied() else {
            return Vec::new();
        };
        let mut steps = Vec::new();
        // The smallest count above 1, because a single thread shares nothing.
        let fewest = threads.iter().copied().find(|t| *t > 1 && *t < most);
        for (values, files) in kinds.iter().copied() {
            let kind = (values, files);
            if let Some(few) = fewest {
                steps.push(Step {
                    title: format!("{few} -> {most} threads; {values} values, {files} files"),
                    few: (kind, few),
                    many: (kind, most),
                });
            }
        }
        let pairs = |of: fn(&(u64, u64)) -> (u64, u64)| {
            let same: BTreeSet<u64> = kinds.iter().map(|kind| of(kind).1).collect();
            let ends = |same: u64| {
                let alike: BTreeSet<u64> = kinds
                    .iter()
                    .map(of)
                    .filter(|k| k.1 == same)
                    .map(|k| k.0)
                    .collect();
                let (few, many) = (*alike.first()?, *alike.last()?);
                (few != many).then_some((same, few, many))
            };
            same.into_iter().filter_map(ends).collect::<Vec<_>>()
        };
        for (files, few, many) in pairs(|kind| *kind) {
            steps.push(Step {
                title: format!("{few} -> {many} values; {files} files, {most} threads"),
                few: ((few, files), most),
                many: ((many, files), most),
            });
        }
        for (values, few, many) in pairs(|kind| (kind.1, kind.0)) {
            steps.push(Step {
                title: format!("{few} -> {many} files; {values} values, {most} threads"),
                few: ((values, few), most),
                many: ((values, many), most),
            });
        }
        steps
    }
}

/// A step from few to many: values and files, and threads.
struct Step {
    title: String,
    few: ((u64, u64), usize),
    many: ((u64, u64), usize),
}

#[cfg(test)]
mod tests {
    use super::super::conditions::Conditions;
    use super::super::figures::rows;
    use super::super::figures::tests::{phase, run};
    use super::super::task::Task;
    use super::*;

    /// Results in which each call takes as many us of processor time as there are threads, and
    /// lasts 1 ms.
    fn found(words: &[&str]) -> Found {
        let systems = vec![System::Cairnfs, System::Ext4];
        let mut tasks = Vec::new();
        for words in words {
            let sweep = Task::parse(words).unwrap().with_threads(&[1, 2, 64]);
            tasks.extend(sweep.unwrap());
        }
        let mut runs = Vec::new();
        for (number, task) in tasks.iter().enumerate() {
            let threads = task.sweep.as_ref().unwrap().1 as u64;
            for system in &systems {
                let mut set = phase("set", 1000, 1000);
                set.counters = vec![("cpu_us", 1000 * threads), ("machine_cpu_us", 0)];
                let mut run = run(0, *system, vec![set, phase("set synced", 1000, 1100)]);
                run.task = number;
                run.report.unit = "calls";
                runs.push(run);
            }
        }
        let all = 0..tasks.len();
        Found {
            conditions: Conditions::new("x", 1),
            rows: all.map(|task| rows(&runs, &systems, task)).collect(),
            systems,
            tasks,
            missing: Vec::new(),
            runs,
        }
    }

    #[test]
    fn grid_has_values_and_files_in_lines_and_threads_in_columns() {
        let found = found(&[
            "xattr --values 10 --files 10",
            "xattr --values 10 --files 1000",
            "xattr --values 100000 --files 1000",
        ]);
        let tables = Grid::of(&found).unwrap().tables();
        assert_eq!(tables.len(), 5);
        assert_eq!(
            tables[0].head,
            ["system", "values", "files", "1", "2", "64"]
        );
        assert_eq!(tables[0].lines.len(), 6);
        // 1000 calls per second.
        let seconds = ["cairnfs", "10", "10", "0.0100", "0.0200", "0.64"];
        assert_eq!(tables[0].lines[0], seconds);
        let cpu = ["ext4", "100000", "1000", "1.00", "2.00", "64.0"];
        assert_eq!(tables[1].lines[5], cpu);
        let device = ["cairnfs", "10", "10", "4000", "4000", "4000"];
        assert_eq!(tables[3].lines[0], device);
        let growth: Vec<_> = tables[4]
            .lines
            .iter()
            .map(|line| line.join(" | "))
            .collect();
        assert_eq!(
            growth,
            [
                "2 -> 64 threads; 10 values, 10 files | 32.00 | 32.00",
                "2 -> 64 threads; 10 values, 1000 files | 32.00 | 32.00",
                "2 -> 64 threads; 100000 values, 1000 files | 32.00 | 32.00",
                "10 -> 100000 values; 1000 files, 64 threads | 1.00 | 1.00",
                "10 -> 1000 files; 10 values, 64 threads | 1.00 | 1.00",
            ]
        );
    }

    #[test]
    fn single_sweep_has_no_grid() {
        assert!(Grid::of(&found(&["xattr --values 10"])).is_none());
    }
}
