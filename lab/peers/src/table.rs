//! The figures as tables in Markdown, which are aligned so that they are readable as text.

use std::io::{self, Write};

use cairnfs_bench::parts::Spread;
use cairnfs_bench::parts::table::{Form, line, none, print_lines, readable, spread};

use crate::load::{Durability, Load};
use crate::rounds::{Found, Table};

/// Prints a table for each load.
pub fn print(found: &Found, out: &mut dyn Write) -> io::Result<()> {
    for line in &found.said {
        writeln!(out, "{line}  ")?;
    }
    for table in &found.tables {
        writeln!(out, "\n### {}\n", title(&table.load))?;
        print_lines(&lines(found, table), 2, Form::Markdown, "", out)?;
    }
    Ok(())
}

/// Says what was done.
fn title(load: &Load) -> String {
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
    let stores = found.stores.iter().map(|store| store.name().to_owned());
    let rows = table.rows.iter();
    let rows = rows.map(|row| line(&[row.step, row.figure], row.cells.iter().map(cell)));
    let head = line(&["step", "figure"], stores);
    std::iter::once(head).chain(rows).collect()
}

fn cell(cell: &Option<Spread>) -> String {
    match cell {
        None => none(),
        Some(all) if all.rounds.len() == 1 => readable(all.median),
        Some(all) => spread(all),
    }
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
