//! The form of `cairnfs diff` for people: a line for each file, and what changed in it.

use std::io::{self, Write};

use anstyle::Style;
use cairnfs::{FileChange, FileKind, FilePath, Status};
use cairnfs_daemon::failure::show_bytes;

use crate::look::{self, Look};

/// Writes a line for each file. On a terminal what changed is aligned.
pub fn write(out: &mut impl Write, look: &Look, files: &[FileChange]) -> io::Result<()> {
    let lines: Vec<(char, Style, String, String)> = files
        .iter()
        .map(|file| (letter(file), style(file), path(file), what(file)))
        .collect();
    let told = lines.iter().filter(|(.., what)| !what.is_empty());
    let widths = told.map(|(_, _, path, _)| path.chars().count());
    // Longer paths stand out, so that one of them does not push everything to the right.
    let most = look.columns / 2;
    let width = widths.filter(|width| look.terminal && *width <= most).max();
    let width = width.unwrap_or(0);
    for (letter, style, path, what) in &lines {
        let letter = look.paint(*style, &letter.to_string());
        if what.is_empty() {
            writeln!(out, "{letter} {path}")?
        } else {
            writeln!(out, "{letter} {path:width$}  ({what})")?
        }
    }
    Ok(())
}

/// The letter of a file's status.
pub fn letter(file: &FileChange) -> char {
    match file.status {
        Status::Added => 'A',
        Status::Removed => 'D',
        Status::Renamed => 'R',
        Status::Changed => 'M',
    }
}

/// The colour of a file's status.
pub fn style(file: &FileChange) -> Style {
    match file.status {
        Status::Added => look::ADDED,
        Status::Removed => look::REMOVED,
        Status::Renamed => look::MOVED,
        Status::Changed => look::CHANGED,
    }
}

/// The path of a file; of a renamed one both.
pub fn path(file: &FileChange) -> String {
    let slash = match file.kind {
        FileKind::Directory => "/",
        _ => "",
    };
    let renamed = file.status == Status::Renamed;
    let path = if file.path.bytes.is_empty() {
        // The root directory.
        ".".to_owned()
    } else {
        show_bytes(&file.path.bytes)
    };
    match file.old_paths.first().filter(|_| renamed) {
        Some(old) => format!("{}{slash} -> {path}{slash}", show_bytes(&old.bytes)),
        None => format!("{path}{slash}"),
    }
}

/// What changed in a file; nothing of one that is new or gone but its further names.
fn what(file: &FileChange) -> String {
    let mut what: Vec<String> = Vec::new();
    let whole = matches!(file.status, Status::Added | Status::Removed);
    if !whole {
        if !file.contents.is_empty() {
            what.push("contents".into());
        }
        let own = file.attributes.iter().filter(|a| a.name != "mtime");
        what.extend(own.map(|a| match a.name {
            "mode" => format!("mode {:o} to {:o}", a.old, a.new),
            _ => format!("{} {} to {}", a.name, a.old, a.new),
        }));
        if !file.xattrs.is_empty() {
            what.push("extended attributes".into());
        }
    }
    // The first one is told as the path.
    let told = usize::from(file.status != Status::Changed);
    let names = |what: &str, list: &[FilePath]| {
        let list = list.iter().skip(told).map(|p| show_bytes(&p.bytes));
        list.map(|p| format!("{what} {p}")).collect::<Vec<_>>()
    };
    what.extend(names("no longer", &file.old_paths));
    what.extend(names("also", &file.new_paths));
    if what.is_empty() && file.status == Status::Changed {
        let time = file.attributes.iter().any(|a| a.name == "mtime");
        what.push(if time { "time" } else { "replaced" }.into());
    }
    what.join(", ")
}
