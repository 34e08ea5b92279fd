//! Sweeps: tasks that differ only in the number of threads, presented together.

use super::figures::{CPU_EACH, Kind, Row, find};
use super::found::Found;
use super::system::System;
use super::table::{Table, line, readable};

/// One sweep.
pub struct Sweep<'a> {
    /// The task, without the number of threads.
    pub title: &'a str,
    /// Numbers of threads, ascending, with the figures of each.
    pub points: Vec<(usize, &'a [Row])>,
}

/// Returns all sweeps, in the order of the arguments.
pub fn sweeps(found: &Found) -> Vec<Sweep<'_>> {
    let mut sweeps: Vec<Sweep<'_>> = Vec::new();
    for (task, rows) in found.tasks.iter().zip(&found.rows) {
        let Some((title, threads)) = &task.sweep else {
            continue;
        };
        let point = (*threads, rows.as_slice());
        match sweeps.iter_mut().find(|sweep| sweep.title == title) {
            Some(sweep) => sweep.points.push(point),
            None => sweeps.push(Sweep {
                title,
                points: vec![point],
            }),
        }
    }
    for sweep in &mut sweeps {
        sweep.points.sort_by_key(|(threads, _)| *threads);
    }
    sweeps
}

impl<'a> Sweep<'a> {
    /// Returns the phases and figures of the table, in the order of the first number of threads.
    fn figures(&self) -> Vec<(&'a str, &'a str)> {
        let mut figures = Vec::new();
        for row in self.points.iter().flat_map(|(_, rows)| *rows) {
            let figure = (row.phase, row.figure.as_str());
            let shown = row.kind == Kind::Rate || row.figure == CPU_EACH;
            if shown && row.is_something() && !figures.contains(&figure) {
                figures.push(figure);
            }
        }
        figures
    }

    /// Returns a table of the rates and processor times: a line for each system, a column for each
    /// number of threads.
    pub fn table(&self, systems: &[System]) -> Table {
        let mut lines = Vec::new();
        for (phase, figure) in self.figures() {
            for (place, system) in systems.iter().enumerate() {
                let cell = |(_, rows): &(usize, &[Row])| {
                    let spread = find(rows, phase, figure)?.cell(place)?;
                    Some(readable(spread.median))
                };
                let cells: Vec<_> = self.points.iter().map(cell).collect();
                if cells.iter().any(Option::is_some) {
                    let cells = cells.into_iter().map(Option::unwrap_or_default);
                    lines.push(line(&[phase, figure, &system.to_string()], cells));
                }
            }
        }
        let counts = self.points.iter().map(|(threads, _)| threads.to_string());
        let title = format!("{}: medians, by the number of threads", self.title);
        Table::new(title, &["phase", "figure", "system"], counts, lines)
    }
}

#[cfg(test)]
mod tests {
    use super::super::conditions::Conditions;
    use super::super::figures::rows;
    use super::super::figures::tests::sample;
    use super::super::task::Task;
    use super::*;

    /// Results for two numbers of threads.
    fn found() -> Found {
        let (runs, systems) = sample();
        let rows = rows(&runs, &systems, 0);
        let task = Task::parse("fsmark --files 1000").unwrap();
        Found {
            conditions: Conditions::new("x", 3),
            systems,
            tasks: task.with_threads(&[1, 2]).unwrap(),
            missing: Vec::new(),
            runs,
            rows: vec![rows.clone(), rows],
        }
    }

    #[test]
    fn sweep_table_has_line_per_system_and_column_per_count() {
        let found = found();
        let sweeps = sweeps(&found);
        assert_eq!(sweeps.len(), 1);
        let counts: Vec<_> = sweeps[0]
            .points
            .iter()
            .map(|(threads, _)| *threads)
            .collect();
        assert!(counts.len() > 1 && counts.is_sorted());
        let table = sweeps[0].table(&found.systems);
        assert_eq!(table.head.len(), 3 + counts.len());
        assert!(!table.lines.is_empty());
        assert!(
            table
                .lines
                .iter()
                .all(|line| line.len() == table.head.len())
        );
    }
}
