//! Lines of cells in aligned columns, as text or as GitHub markdown. Knows nothing of figures.

use std::io::{self, Write};

/// How tables are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Aligned text.
    Text,
    /// GitHub markdown.
    Markdown,
}

/// Prints lines, the first of which is the head: their columns are aligned, the first `words` of
/// them at the left.
pub fn print_lines(
    lines: &[Vec<String>],
    words: usize,
    form: Form,
    indent: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    for (number, line) in lines.iter().enumerate() {
        let cells = line.iter().enumerate().map(|(column, cell)| {
            let width = width(column);
            if column < words {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        let cells: Vec<String> = cells.collect();
        if form == Form::Text {
            writeln!(
                out,
                "{}",
                format!("{indent}{}", cells.join("  ")).trim_end()
            )?;
            continue;
        }
        writeln!(out, "| {} |", cells.join(" | "))?;
        if number == 0 {
            let rule = (0..cells.len()).map(|column| {
                let end = if column < words { '-' } else { ':' };
                format!("{}{end}", "-".repeat(width(column) + 1))
            });
            writeln!(out, "|{}|", rule.collect::<Vec<_>>().join("|"))?;
        }
    }
    Ok(())
}

/// Returns a line: words at the left, then cells.
pub fn line(words: &[&str], cells: impl Iterator<Item = String>) -> Vec<String> {
    let words = words.iter().map(|word| (*word).to_owned());
    words.chain(cells).collect()
}

/// The cell of a missing figure.
pub fn none() -> String {
    "-".to_owned()
}
