//! `cairnfs diff`: what differs between two states of a volume.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cairnfs::{Diff, Error, FileChange, FileKind, FilePath, Status, Summary};
use serde::Serialize;

use crate::failure::{AnyError, Failure, show_bytes};
use crate::output;
use crate::roots::{Roots, root_failure};
use crate::size::human;
use crate::volume::{Access, components};

/// Exit code if something differs, as that of diff(1).
const DIFFERENT: u8 = 1;
/// Exit code of a failure, as that of diff(1).
const TROUBLE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  cairnfs diff disk.img monday              from a snapshot to the present state
  cairnfs diff disk.img monday tuesday --stat
  cairnfs diff disk.img main@-2d -p | less
  cairnfs diff disk.img monday main etc home/notes
  cairnfs diff disk.img monday -p | patch -p1 -d copy-of-monday

A and B are snapshots or branches: NAME, BRANCH@SNAPSHOT, or BRANCH@TIME, the
newest snapshot that is as old (10:30, 2026-01-31, 2026-01-31T10:30, -5m, -2d;
in local time). Without B, A is compared with main. With PATH, only what is at
or below these paths is shown.

Each line has a letter, A added, D removed, R renamed, M changed, and the path;
for a renamed file the old path comes first. A file is the same if it has the
same inode number, whatever its name is. A file that was replaced by another one
of the same path and type, as editors save, is shown as changed. It takes as
long as there are differences, however many files there are; --stat counts the
bytes that were written, without holes.

-p writes patches as git diff does, for patch(1) and git apply. Files that are
not text are only named, and empty directories, owners, times and extended
attributes have no place in a patch.

Exit codes: 0 no difference, 1 differences, 2 wrong arguments or a failure.";

/// Show what differs between two snapshots or branches
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// The old state
    a: String,
    /// The new state
    #[arg(default_value = "main")]
    b: String,
    /// Show only what is at or below these paths
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
    /// Show how much of each file was written, and the sums
    #[arg(long, group = "form")]
    stat: bool,
    /// Show letter and path only, separated by tabs, for programs
    #[arg(long, group = "form")]
    name_status: bool,
    /// Show contents as patches
    #[arg(short, long, group = "form")]
    patch: bool,
    /// Show everything as JSON
    #[arg(long, group = "form")]
    json: bool,
    /// Show nothing, only set the exit code
    #[arg(short, long, group = "form")]
    quiet: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    volume: String,
    old: &'a str,
    new: &'a str,
    summary: Summary,
    files: &'a [FileChange],
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let trouble = |error: AnyError| match error.downcast::<Failure>() {
        Ok(failure) if !failure.is_broken_pipe() => failure.code(TROUBLE).into(),
        Ok(failure) => failure,
        Err(other) => other,
    };
    compare(&args).map_err(trouble)
}

fn compare(args: &Args) -> Result<ExitCode, AnyError> {
    let (roots, diff) = open(args)?;
    let mut report = diff.report().clone();
    report.files.retain(|file| is_wanted(file, &args.paths));
    let summary = report.summary();
    let files = &report.files;
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        drop(out);
        output::json(&Json {
            volume: crate::failure::shown(&args.volume),
            old: &args.a,
            new: &args.b,
            summary,
            files,
        })?;
    } else if args.patch {
        let mut patches = diff.patches();
        for file in files {
            let patch = patches.of(file);
            let patch = patch.map_err(|e| root_failure(roots.path(), &args.b, &e))?;
            out.write_all(&patch)?;
        }
        out.flush()?;
    } else if !args.quiet {
        for file in files {
            match (args.stat, args.name_status) {
                (true, _) => write_stat(&mut out, file)?,
                (_, true) => write_names(&mut out, file)?,
                _ => write_line(&mut out, file)?,
            }
        }
        if args.stat {
            writeln!(out, "{}", sums(&summary))?;
        }
        out.flush()?;
    }
    drop(diff);
    let different = !files.is_empty();
    roots.close()?;
    Ok(ExitCode::from(u8::from(different) * DIFFERENT))
}

/// Opens the volume, for reading if that suffices, and compares.
fn open(args: &Args) -> Result<(Roots, Diff), Failure> {
    let failed = |e: Error| match &e {
        Error::NoRoot { reference, .. } => root_failure(&args.volume, reference, &e),
        _ => Failure::engine(crate::failure::shown(&args.volume), &e),
    };
    let roots = Roots::open(&args.volume, Access::Read)?;
    match roots.volume().diff(&args.a, &args.b) {
        // Changes in the log of a volume that was not closed properly must be merged first.
        Err(Error::ReadOnly) => {
            roots.close()?;
            Roots::open(&args.volume, Access::Write)?.close()?;
            let roots = Roots::open(&args.volume, Access::Read)?;
            let diff = roots.volume().diff(&args.a, &args.b).map_err(failed)?;
            Ok((roots, diff))
        }
        diff => Ok((roots, diff.map_err(failed)?)),
    }
}

/// Whether one of the paths of a file is at or below one of the wanted paths.
fn is_wanted(file: &FileChange, wanted: &[String]) -> bool {
    let names = || {
        let more = file.old_paths.iter().chain(&file.new_paths);
        std::iter::once(&file.path).chain(more)
    };
    let below = |path: &FilePath, wanted: &[u8]| {
        let wanted = components(wanted);
        components(&path.bytes).starts_with(&wanted)
    };
    wanted.is_empty()
        || wanted
            .iter()
            .any(|wanted| names().any(|path| below(path, wanted.as_bytes())))
}

fn letter(file: &FileChange) -> char {
    match file.status {
        Status::Added => 'A',
        Status::Removed => 'D',
        Status::Renamed => 'R',
        Status::Changed => 'M',
    }
}

/// The path that a renamed file had.
fn old_path(file: &FileChange) -> Option<&FilePath> {
    let renamed = file.status == Status::Renamed;
    file.old_paths.first().filter(|_| renamed)
}

fn write_names(out: &mut impl Write, file: &FileChange) -> io::Result<()> {
    write!(out, "{}\t", letter(file))?;
    if let Some(old) = old_path(file) {
        out.write_all(&old.bytes)?;
        out.write_all(b"\t")?;
    }
    out.write_all(&file.path.bytes)?;
    out.write_all(b"\n")
}

fn shown_path(file: &FileChange) -> String {
    let slash = match file.kind {
        FileKind::Directory => "/",
        _ => "",
    };
    let path = show_bytes(&file.path.bytes);
    match old_path(file) {
        Some(old) => format!("{}{slash} -> {path}{slash}", show_bytes(&old.bytes)),
        None => format!("{path}{slash}"),
    }
}

fn write_line(out: &mut impl Write, file: &FileChange) -> io::Result<()> {
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
        if file.status == Status::Changed {
            let names = |what: &str, list: &[FilePath]| {
                let list = list.iter().map(|p| show_bytes(&p.bytes));
                list.map(|p| format!("{what} {p}")).collect::<Vec<_>>()
            };
            what.extend(names("no longer", &file.old_paths));
            what.extend(names("also", &file.new_paths));
        }
        if what.is_empty() && file.status == Status::Changed {
            let time = file.attributes.iter().any(|a| a.name == "mtime");
            what.push(if time { "time" } else { "replaced" }.into());
        }
    }
    let what = match what.is_empty() {
        true => String::new(),
        false => format!("  ({})", what.join(", ")),
    };
    writeln!(out, "{} {}{what}", letter(file), shown_path(file))
}

fn write_stat(out: &mut impl Write, file: &FileChange) -> io::Result<()> {
    let bytes = match file.written {
        0 => String::new(),
        bytes => human(bytes),
    };
    let (letter, path) = (letter(file), shown_path(file));
    writeln!(out, "{letter} {bytes:>9}  {path}")
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
