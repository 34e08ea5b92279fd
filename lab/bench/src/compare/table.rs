//! Tables of figures.

use std::io::{self, Write};

use super::figures::{Kind, Row, SECONDS, Spread};
use super::system::System;
pub use crate::lines::{Form, line, none, print_lines};

/// A table: a title, a head and lines of the same number of cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Title above the table.
    pub title: String,
    /// The titles of its columns.
    pub head: Vec<String>,
    /// Its lines.
    pub lines: Vec<Vec<String>>,
    /// Number of left columns that contain text.
    pub words: usize,
}

impl Table {
    /// Creates a table: `words` are the titles of the left columns that contain text.
    pub fn new(
        title: String,
        words: &[&str],
        columns: impl Iterator<Item = String>,
        lines: Vec<Vec<String>>,
    ) -> Self {
        Self {
            title,
            head: line(words, columns),
            lines,
            words: words.len(),
        }
    }

    /// Prints the table, followed by an empty line.
    pub fn print(&self, form: Form, out: &mut dyn Write) -> io::Result<()> {
        match form {
            Form::Text => writeln!(out, "{}", self.title)?,
            Form::Markdown => writeln!(out, "**{}**\n", self.title)?,
        }
        let indent = if form == Form::Text { "  " } else { "" };
        let lines = [std::slice::from_ref(&self.head), &self.lines].concat();
        print_lines(&lines, self.words, form, indent, out)?;
        writeln!(out)
    }
}

/// Returns the speed of each system, with the spread over the rounds.
pub fn speed(rows: &[Row], systems: &[System]) -> Table {
    let shown = |kind| matches!(kind, Kind::Rate | Kind::Time);
    let title = "Speed: median (least..most)";
    figures(title, rows, systems, shown, spread)
}

/// Formats a median with the least and the greatest value.
pub fn spread(spread: &Spread) -> String {
    format!(
        "{} ({}..{})",
        readable(spread.median),
        readable(spread.least),
        readable(spread.most)
    )
}

/// Returns the costs of each system: medians. Rows of zeros are left out.
pub fn cost(rows: &[Row], systems: &[System]) -> Table {
    let shown = |kind| matches!(kind, Kind::Cost | Kind::Load);
    let title = "Cost: medians; `each` and `per 1000` are of operations";
    figures(title, rows, systems, shown, |spread| {
        readable(spread.median)
    })
}

const WORDS: [&str; 2] = ["phase", "figure"];

fn figures(
    title: &str,
    rows: &[Row],
    systems: &[System],
    shown: impl Fn(Kind) -> bool,
    cell: impl Fn(&Spread) -> String,
) -> Table {
    let shown = rows
        .iter()
        .filter(|row| shown(row.kind) && row.is_something());
    let lines = shown.map(|row| {
        let cells = row.cells.iter();
        let cells = cells.map(|spread| spread.as_ref().map_or_else(none, &cell));
        line(&[row.phase, &row.figure], cells)
    });
    let systems = systems.iter().map(System::to_string);
    Table::new(title.to_owned(), &WORDS, systems, lines.collect())
}

/// A column of ratios of speed: the first system's to that of others.
pub enum Against {
    /// To another one.
    One(usize, usize),
    /// To the best of some.
    Best(usize, Vec<usize>),
}

impl Against {
    /// Returns the column of the ratios to the best of the kernel's file systems, if there are any.
    pub fn best(ours: usize, systems: &[System]) -> Option<Self> {
        let kernels = places(systems, System::is_kernels);
        (!kernels.is_empty()).then_some(Against::Best(ours, kernels))
    }

    /// Returns the column of the ratios to the server that stores nothing, if it is measured.
    pub fn noop(ours: usize, systems: &[System]) -> Option<Self> {
        let noop = systems.iter().position(|s| *s == System::Noop);
        noop.map(|noop| Against::One(ours, noop))
    }

    /// Returns the other system of a row's ratio.
    pub fn other(&self, row: &Row) -> Option<usize> {
        match self {
            Against::One(_, other) => Some(*other),
            Against::Best(_, others) => row.best(others),
        }
    }

    /// Returns a row's ratio.
    pub fn ratio(&self, row: &Row) -> Option<f64> {
        let (Against::One(ours, _) | Against::Best(ours, _)) = self;
        row.ratio(*ours, self.other(row)?)
    }

    /// Returns a row's ratio as text, with the name of the best.
    pub fn cell(&self, row: &Row, systems: &[System]) -> String {
        match self {
            // A system that stores nothing has no work in sync and close.
            Against::One(_, other) if row.figure == SECONDS && keeps_nothing(systems, *other) => {
                none()
            }
            Against::One(..) => times(self.ratio(row)),
            Against::Best(..) => {
                let system = self.other(row).and_then(|best| systems.get(best));
                match (self.ratio(row), system) {
                    (Some(ratio), Some(system)) => format!("{ratio:.2} {system}"),
                    _ => none(),
                }
            }
        }
    }

    /// Returns a title that names both systems.
    pub fn long_title(&self, systems: &[System]) -> String {
        let (Against::One(ours, _) | Against::Best(ours, _)) = self;
        let ours = systems.get(*ours).map_or_else(none, System::to_string);
        match self {
            Against::One(..) => format!("{ours} / {}", self.title(systems)),
            Against::Best(..) => format!("{ours} / best"),
        }
    }

    fn title(&self, systems: &[System]) -> String {
        match self {
            Against::One(_, other) => systems.get(*other).map_or_else(none, System::to_string),
            Against::Best(..) => "best of kernel".to_owned(),
        }
    }
}

fn keeps_nothing(systems: &[System], place: usize) -> bool {
    matches!(systems.get(place), Some(System::Noop | System::Raw))
}

/// Returns how many times as fast CairnFS is as each other system and as the best of the kernel's:
/// one table for each interface of CairnFS.
pub fn ratios(rows: &[Row], systems: &[System]) -> Vec<Table> {
    let all = systems.iter().enumerate();
    all.filter(|(_, system)| system.is_ours() && system.without().is_none())
        .map(|(ours, system)| ratios_of(ours, *system, rows, systems))
        .filter(|table| table.head.len() > 2)
        .collect()
}

fn ratios_of(ours: usize, system: System, rows: &[Row], systems: &[System]) -> Table {
    let columns = against(ours, system, systems);
    let shown = rows
        .iter()
        .filter(|row| matches!(row.kind, Kind::Rate | Kind::Time));
    let lines = shown.map(|row| {
        let cells = columns.iter().map(|column| column.cell(row, systems));
        line(&[row.phase, &row.figure], cells)
    });
    let how = if system.in_process() {
        "in-process"
    } else {
        "through system calls"
    };
    let title =
        format!("How many times as fast {system} ({how}) is as each: median of the rounds' ratios");
    let others = columns.iter().map(|column| column.title(systems));
    Table::new(title, &WORDS, others, lines.collect())
}

/// Returns the places of some systems.
fn places(systems: &[System], selected: fn(System) -> bool) -> Vec<usize> {
    let all = systems.iter().enumerate();
    all.filter(|(_, s)| selected(**s)).map(|(n, _)| n).collect()
}

fn against(ours: usize, system: System, systems: &[System]) -> Vec<Against> {
    let places = |selected| places(systems, selected);
    let kernels = places(System::is_kernels);
    let one = |&other: &usize| Against::One(ours, other);
    let mut columns: Vec<Against> = kernels.iter().map(one).collect();
    if kernels.len() > 1 {
        columns.extend(Against::best(ours, systems));
    }
    if system == System::CairnfsMount {
        columns.extend(Against::noop(ours, systems));
    }
    columns.extend(places(|system| system == System::Raw).iter().map(one));
    if system == System::Cairnfs {
        columns.extend(places(|system| system.without().is_some()).iter().map(one));
    }
    columns
}

/// Formats a ratio.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(none, |ratio| format!("{ratio:.2}"))
}

/// Formats a number with three significant digits, and a suffix for thousands and millions.
pub fn readable(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        v if v >= 999_500.0 => (value / 1e6, "M"),
        v if v >= 9_999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        v if v < 0.000_05 => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.1 => 2,
        _ => 4,
    };
    format!("{value:.digits$}{suffix}")
}

#[cfg(test)]
mod tests {
    use cairnfs::Mechanism;

    use super::super::figures::rows;
    use super::super::figures::tests::sample;
    use super::*;

    fn print(table: &Table, form: Form) -> String {
        let mut out = Vec::new();
        table.print(form, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn readable_has_three_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.01234, "0.0123"),
            (0.5, "0.50"),
            (9.99, "9.99"),
            (12.34, "12.3"),
            (99.96, "100"),
            (9_999.0, "9999"),
            (10_000.0, "10.0k"),
            (268_400.0, "268k"),
            (999_600.0, "1.00M"),
            (1_033_000.0, "1.03M"),
        ] {
            assert_eq!(readable(value), text);
        }
    }

    #[test]
    fn speed_table_aligns_systems() {
        let (runs, systems) = sample();
        let rows = rows(&runs, &systems, 0);
        assert_eq!(
            print(&speed(&rows, &systems), Form::Text),
            "Speed: median (least..most)\n  \
             phase   figure                   cairnfs            cairnfs-mount                     noop                      xfs\n  \
             create  files/s       5000 (2500..10.0k)          625 (312..1250)         1250 (625..2500)        2500 (1250..5000)\n  \
             walk    files/s     20.0k (20.0k..20.0k)     20.0k (20.0k..20.0k)                        -     20.0k (20.0k..20.0k)\n  \
             sync    seconds  0.0200 (0.0100..0.0400)  0.0200 (0.0100..0.0400)  0.0200 (0.0100..0.0400)  0.0200 (0.0100..0.0400)\n\n"
        );
    }

    #[test]
    fn markdown_table_has_rule_and_lines() {
        let (runs, systems) = sample();
        let rows = rows(&runs, &systems, 0);
        let text = print(&cost(&rows, &systems), Form::Markdown);
        let lines: Vec<_> = text.lines().collect();
        let cells = |line: &str| {
            line.split('|')
                .map(|c| c.trim().to_owned())
                .collect::<Vec<_>>()
        };
        let head = ["phase", "figure", "cairnfs", "cairnfs-mount", "noop", "xfs"];
        assert_eq!(cells(lines[2])[1..7], head);
        assert_eq!(lines[3].matches("-:|").count(), 4);
        assert!(lines[3].chars().all(|c| "|-:".contains(c)));
        assert!(lines[2..6].iter().all(|line| line.len() == lines[2].len()));
        let writes = ["create", "device writes per 1000", "50.0", "50.0"];
        assert_eq!(cells(lines[4])[1..5], writes);
    }

    #[test]
    fn ratio_tables_compare_cairnfs_with_others() {
        let (runs, systems) = sample();
        let rows = rows(&runs, &systems, 0);
        let tables = ratios(&rows, &systems);
        let (library, mounted) = (&tables[0], &tables[1]);
        assert!(library.title.contains("cairnfs (in-process)"));
        assert_eq!(library.head[2..], ["xfs"]);
        assert_eq!(library.lines[0][2..], ["2.00"]);
        assert_eq!(mounted.head[2..], ["xfs", "noop"]);
        assert_eq!(mounted.lines[0][2..], ["0.25", "0.50"]);
        assert_eq!(mounted.lines[1][2..], ["1.00", "-"]);
        assert_eq!(mounted.lines[2][..], ["sync", "seconds", "1.00", "-"]);
        let more = [&systems[..], &[System::Ext4]].concat();
        let library = &ratios(&rows, &more)[0];
        assert_eq!(library.head[2..], ["xfs", "ext4", "best of kernel"]);
        assert_eq!(library.lines[0][2..], ["2.00", "-", "2.00 xfs"]);
        let (raw, lacking) = (System::Raw, System::CairnfsWithout(Mechanism::OneFlush));
        let tables = ratios(&rows, &[&systems[..], &[raw, lacking]].concat());
        assert_eq!(tables.len(), 2, "none is about what lacks something");
        let heads = tables.iter().map(|table| table.head[2..].join(" "));
        let expected = ["xfs raw cairnfs-without-one-flush", "xfs noop raw"];
        assert_eq!(heads.collect::<Vec<_>>(), expected);
        assert!(ratios(&rows, &[System::Xfs]).is_empty());
    }
}
