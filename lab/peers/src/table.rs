//! The figures as tables in Markdown, which are aligned so that they are readable as text.

use std::io::{self, Write};

use cairnfs_bench::parts::{Spread, readable};

use crate::load::{Durability, Load};
use crate::rounds::{Found, Table};

/// Prints a table for each load.
pub fn print(found: &Found, out: &mut dyn Write) -> io::Result<()> {
    for line in &found.said {
        writeln!(out, "{line}  ")?;
    }
    for table in &found.tables {
        writeln!(out, "\n### {}\n", title(&table.load))?;
        print_rows(&lines(found, table), out)?;
    }
    Ok(())
}

/// Says what was done.
pub fn title(load: &Load) -> String {
    let when = match load.durability {
        Durability::Each => "each durable",
        Durability::Batch => "durable by 1,000",
        Durability::None => "durable only when synced",
    };
    let threads = match load.threads {
        1 => String::new(),
        more => format!(", {more} threads"),
    };
    format!("{} blobs of {} B, {when}{threads}", load.blobs, load.size)
}

fn lines(found: &Found, table: &Table) -> Vec<Vec<String>> {
    let head = ["step", "figure"].into_iter();
    let stores = found.stores.iter().map(|store| store.name());
    let mut lines = vec![head.chain(stores).map(str::to_owned).collect()];
    for row in &table.rows {
        let names = [row.step, row.figure].map(str::to_owned).into_iter();
        lines.push(names.chain(row.cells.iter().map(cell)).collect());
    }
    lines
}

fn cell(spread: &Option<Spread>) -> String {
    match spread {
        None => "-".to_owned(),
        Some(all) if all.rounds.len() == 1 => readable(all.median),
        Some(all) => format!(
            "{} ({}..{})",
            readable(all.median),
            readable(all.least),
            readable(all.most)
        ),
    }
}

/// Columns of text, at the left.
const TEXTS: usize = 2;

fn print_rows(lines: &[Vec<String>], out: &mut dyn Write) -> io::Result<()> {
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    for (number, line) in lines.iter().enumerate() {
        for (column, cell) in line.iter().enumerate() {
            let width = width(column);
            if column < TEXTS {
                write!(out, "| {cell:<width$} ")?
            } else {
                write!(out, "| {cell:>width$} ")?
            }
        }
        writeln!(out, "|")?;
        if number == 0 {
            for column in 0..line.len() {
                let dashes = "-".repeat(width(column) + 1);
                let end = if column < TEXTS { '-' } else { ':' };
                write!(out, "|{dashes}{end}")?;
            }
            writeln!(out, "|")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::tests::found;

    #[test]
    fn table_is_markdown_with_a_column_for_each_store() {
        let mut out = Vec::new();
        print(&found(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().filter(|l| l.starts_with('|')).collect();
        assert!(text.contains("### 2500 blobs of 100 B, durable by 1,000\n"));
        assert!(lines[0].starts_with("| step ") && lines[0].contains(" cairnfs |"));
        assert!(lines[1].chars().all(|c| "|-:".contains(c)));
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
        assert!(lines[2].contains("| 7500 (5000..10.0k) |") && lines[2].contains("750"));
        assert!(text.contains(" - |"), "{text}");
    }
}
