//! Sweeps: tasks that differ only in the number of threads, presented together.

use super::figures::{Kind, Row};
use super::found::Found;
use super::system::System;
use super::table::{Table, readable};

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
    /// Returns the phases and figures of these kinds, in the order of the first number of threads.
    pub fn figures(&self, kinds: &[Kind]) -> Vec<(&'a str, &'a str)> {
        let mut figures = Vec::new();
        let rows = self.points.iter().flat_map(|(_, rows)| *rows);
        for row in rows.filter(|row| kinds.contains(&row.kind) && row.is_something()) {
            let figure = (row.phase, row.figure.as_str());
            if !figures.contains(&figure) {
                figures.push(figure);
            }
        }
        figures
    }

    /// Returns one figure of one phase for each number of threads.
    pub fn along(&self, (phase, figure): (&str, &str)) -> Vec<(usize, &'a Row)> {
        let at = |rows: &'a [Row]| {
            let mut rows = rows.iter();
            rows.find(|row| row.phase == phase && row.figure == figure)
        };
        let points = self.points.iter();
        points
            .filter_map(|(threads, rows)| Some((*threads, at(rows)?)))
            .collect()
    }

    /// Returns a table of the rates and processor times: a line for each system, a column for each
    /// number of threads.
    pub fn table(&self, systems: &[System]) -> Table {
        let mut lines = Vec::new();
        let all = self.figures(&[Kind::Rate, Kind::Cost]);
        for figure in all.into_iter().filter(|(_, figure)| is_shown(figure)) {
            let points = self.along(figure);
            for (place, system) in systems.iter().enumerate() {
                let cell = |(_, row): &(usize, &Row)| {
                    let spread = row.cells.get(place).and_then(Option::as_ref);
                    spread.map(|spread| readable(spread.median))
                };
                let cells: Vec<_> = points.iter().map(cell).collect();
                if cells.iter().any(Option::is_some) {
                    let words = [figure.0.to_owned(), figure.1.to_owned(), system.to_string()];
                    let cells = cells.into_iter().map(Option::unwrap_or_default);
                    lines.push(words.into_iter().chain(cells).collect());
                }
            }
        }
        let words = ["phase", "figure", "system"].map(str::to_owned).into_iter();
        let counts = self.points.iter().map(|(threads, _)| threads.to_string());
        Table {
            title: format!("{}: medians, by the number of threads", self.title),
            head: words.chain(counts).collect(),
            lines,
            words: 3,
        }
    }
}

fn is_shown(figure: &str) -> bool {
    figure.ends_with("/s") || figure == super::figures::CPU_EACH
}

#[cfg(test)]
mod tests {
    use super::super::plot::tests::found;
    use super::*;

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
