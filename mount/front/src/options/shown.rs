//! The table of mount options as text: for the help of the command, and for `docs/mounting.md`.

use std::fmt::Write as _;

use super::table::{Row, TABLE, User};

/// Column of the help in which the meaning of a word begins.
const INDENT: usize = 25;

/// Columns of the help.
const WIDTH: usize = 100;

/// The mount options for the help: each with its meaning and its default.
pub fn help() -> String {
    let mut help = String::from("Mount options:\n");
    for row in rows() {
        let words = lines(row.shown, WIDTH - 2);
        let mut meaning = lines(&with_default(row), WIDTH - INDENT).into_iter();
        let mut words = words.into_iter().peekable();
        while let Some(line) = words.next() {
            let beside = words.peek().is_none() && line.len() + 3 <= INDENT;
            let beside = if beside { meaning.next() } else { None };
            let line = format!(
                "  {line:width$}{}",
                beside.unwrap_or_default(),
                width = INDENT - 2
            );
            let _ = writeln!(help, "{}", line.trim_end());
        }
        for line in meaning {
            let _ = writeln!(help, "{:INDENT$}{line}", "");
        }
    }
    help
}

/// The mount options as a table in Markdown.
pub fn document() -> String {
    let mut table = String::from("| option | meaning | default | used by |\n|---|---|---|---|\n");
    for row in rows() {
        let user = match row.user {
            User::Flags => "flags of the mount",
            User::Front => "front",
            User::Daemon => "daemon",
            User::Engine => "engine",
            User::Nothing => "",
        };
        let words = row.shown.replace(", ", "`, `");
        let _ = writeln!(
            table,
            "| `{words}` | {} | {} | {user} |",
            row.help, row.default
        );
    }
    table
}

fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().filter(|row| !row.shown.is_empty())
}

fn with_default(row: &Row) -> String {
    if row.default.is_empty() {
        row.help.to_owned()
    } else {
        format!("{} [default: {}]", row.help, row.default)
    }
}

/// Text in lines of at most `width` bytes, as far as its words are no longer.
fn lines(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
