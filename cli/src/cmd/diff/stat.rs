//! `cairnfs diff --stat`: how much of each file was written, scaled to the width as by git diff.

use std::io::{self, Write};

use cairnfs::{FileChange, Summary};

use super::lines::{letter, path, style};
use crate::look::{self, Look};
use crate::size::human;

/// Columns of a line besides path, bytes and graph: ` A path | bytes graph`.
const BETWEEN: usize = 7;

/// Least columns of a path and of a graph.
const LEAST: (usize, usize) = (10, 6);

/// Columns of paths and of the graph.
#[derive(Debug, PartialEq, Eq)]
struct Widths {
    path: usize,
    graph: usize,
}

impl Widths {
    /// Shares `columns` as git does: a graph that needs room leaves five eighths to the paths.
    fn new(columns: usize, (path, bytes, most): (usize, usize, u64)) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let all = columns.max(LEAST.0 + LEAST.1 + bytes + BETWEEN) - bytes - BETWEEN;
        if path.saturating_add(most) <= all {
            return Self { path, graph: most };
        }
        let eighths = (columns * 3 / 8).saturating_sub(bytes + BETWEEN);
        let graph = most.min(eighths.max(LEAST.1));
        if path > all - graph {
            Self {
                path: all - graph,
                graph,
            }
        } else {
            Self {
                path,
                graph: all - path,
            }
        }
    }

    /// Columns of the graph of `bytes`, of which a file has `most` at most.
    fn bar(&self, bytes: u64, most: u64) -> usize {
        let all = self.graph as u128;
        let scaled = if u128::from(most) > all {
            (u128::from(bytes) * all / u128::from(most)).max(u128::from(bytes > 0))
        } else {
            u128::from(bytes)
        };
        usize::try_from(scaled).unwrap_or(self.graph)
    }
}

/// The end of a path that fits, from a slash on if there is one.
fn shortened(path: &str, width: usize) -> String {
    let len = path.chars().count();
    if len <= width {
        return path.to_owned();
    }
    let end: String = path.chars().skip(len + 3 - width.max(3)).collect();
    let from = end.find('/').unwrap_or(0);
    format!("...{}", end.get(from..).unwrap_or_default())
}

/// Writes a line for each file, and the sums.
pub fn write(
    out: &mut impl Write,
    look: &Look,
    files: &[FileChange],
    sum: &Summary,
) -> io::Result<()> {
    let most = files.iter().map(|file| file.written).max().unwrap_or(0);
    let longest = |text: &dyn Fn(&FileChange) -> String| {
        let widths = files.iter().map(|file| text(file).chars().count());
        widths.max().unwrap_or(0)
    };
    let bytes = |file: &FileChange| human(file.written);
    let bytes_width = longest(&bytes);
    let widths = Widths::new(look.columns, (longest(&path), bytes_width, most));
    for file in files {
        let letter = look.paint(style(file), &letter(file).to_string());
        let path = shortened(&path(file), widths.path);
        let bar = "+".repeat(widths.bar(file.written, most));
        let space = if bar.is_empty() { "" } else { " " };
        let bar = look.paint(look::ADDED, &bar);
        let (width, bytes) = (widths.path, bytes(file));
        writeln!(
            out,
            " {letter} {path:width$} | {bytes:>bytes_width$}{space}{bar}"
        )?;
    }
    writeln!(out, "{}", sums(sum))
}

fn sums(sum: &Summary) -> String {
    let Summary {
        added,
        removed,
        renamed,
        changed,
        bytes,
    } = sum;
    format!(
        "{added} added, {removed} removed, {renamed} renamed, {changed} changed; {} written",
        human(*bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_shared_as_git_does() {
        let widths = |columns, path, most| {
            let Widths { path, graph } = Widths::new(columns, (path, 5, most));
            (path, graph)
        };
        assert_eq!(widths(80, 20, 10), (20, 10), "all fits");
        assert_eq!(
            widths(80, 20, 1 << 40),
            (20, 48),
            "the graph takes the rest"
        );
        assert_eq!(widths(80, 200, 1 << 40), (50, 18), "a long path is cut");
        assert_eq!(widths(80, 200, 0), (68, 0));
        assert_eq!(widths(1, 200, 100), (10, 6), "never less");
    }

    #[test]
    fn bars_are_in_proportion_and_never_vanish() {
        let widths = Widths {
            path: 10,
            graph: 20,
        };
        let bars = [0, 1, 500, 1000].map(|bytes| widths.bar(bytes, 1000));
        assert_eq!(bars, [0, 1, 10, 20]);
        assert_eq!(widths.bar(7, 9), 7, "not stretched");
        assert_eq!(widths.bar(u64::MAX, u64::MAX), 20);
    }

    #[test]
    fn long_paths_keep_their_end() {
        assert_eq!(shortened("short", 10), "short");
        assert_eq!(shortened("directory/below/file", 14), ".../below/file");
        assert_eq!(shortened("directory/below/file", 13), ".../file");
        assert_eq!(shortened("abcdefghijklmnop", 10), "...jklmnop");
    }
}
