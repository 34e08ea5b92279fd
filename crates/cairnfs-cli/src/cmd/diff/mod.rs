//! `cairnfs diff`: what differs between two states of a volume.

mod lines;
mod names;
mod patch_colours;
mod stat;

use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairnfs::{Diff, Error, FileChange, FileKind, FilePath, Report, Status, Summary};
use serde::Serialize;

use crate::failure::{AnyError, Failure, of_output, shown};
use crate::look::Look;
use crate::output;
use crate::roots::{Roots, root_failure};
use crate::volume::{Access, components};

/// Exit code if something differs, as that of diff(1).
const DIFFERENT: u8 = 1;
/// Exit code of a failure, as that of diff(1).
const TROUBLE: u8 = 2;

/// The next step if the second state does not exist: it may be meant as a path.
const SECOND: &str =
    "to show only a path, name both states before it: cairnfs diff VOLUME A main PATH";

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
or below these paths is shown; a path that neither A nor B has is an error.

Each line has a letter, A added, D removed, R renamed, M changed, and the path;
for a renamed file the old path comes first. A file is the same if it has the
same inode number, whatever its name is. A file that was replaced by another one
of the same path and type, as editors save, is shown as changed. It takes as
long as there are differences, however many files there are; --stat counts the
bytes that were written, without holes.

--name-status and --name-only are for programs, as those of git diff: behind R
stands how much of the contents was kept, in percent, by blocks; a path with
control characters, quotes, backslashes or bytes beyond ASCII is in quotes with
escapes of C, or with -z as it is, and each part ends with a NUL. A renamed
directory is one line, without what is below it.

-p writes patches as git diff does, for patch(1) and git apply. Files that are
not text are only named, and empty directories, owners, times and extended
attributes have no place in a patch.

On a terminal there are colours, unless NO_COLOR is set.

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
    paths: Vec<PathBuf>,
    /// Show how much of each file was written, and the sums
    #[arg(long, group = "form")]
    stat: bool,
    /// Show paths only
    #[arg(long, groups = ["form", "names"])]
    name_only: bool,
    /// Show letters and paths only, separated by tabs
    #[arg(long, groups = ["form", "names"])]
    name_status: bool,
    /// End each letter and path with NUL instead, and quote nothing
    #[arg(short = 'z', requires = "names")]
    nul: bool,
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
    let trouble = |error: AnyError| -> AnyError {
        let failure = match error.downcast::<Failure>() {
            Ok(failure) => Ok(*failure),
            Err(other) => of_output(other.as_ref()).ok_or(other),
        };
        match failure {
            Ok(failure) if failure.is_broken_pipe() => failure.into(),
            Ok(failure) => failure.code(TROUBLE).into(),
            Err(other) => other,
        }
    };
    compare(&args).map_err(trouble)
}

fn compare(args: &Args) -> Result<ExitCode, AnyError> {
    let (roots, diff) = open(args)?;
    check_paths(&diff, args)?;
    let mut report = diff.report().clone();
    report.files.retain(|file| is_wanted(file, &args.paths));
    let written = write(&diff, &report, args);
    drop(diff);
    // What went wrong with the output matters, and not that nothing was changed.
    let closed = roots.close();
    written?;
    closed?;
    let different = !report.files.is_empty();
    Ok(ExitCode::from(u8::from(different) * DIFFERENT))
}

/// Refuses a path that neither state has: it would show nothing, as if nothing had changed.
fn check_paths(diff: &Diff, args: &Args) -> Result<(), Failure> {
    let failed = |e: &Error| root_failure(&args.volume, &args.b, e);
    for path in &args.paths {
        if !diff.has_path(path).map_err(|e| failed(&e))? {
            let why = format!("neither {} nor {} has it", args.a, args.b);
            return Err(Failure::new(shown(path), why));
        }
    }
    Ok(())
}

/// Writes the differences in the form that was asked for.
fn write(diff: &Diff, report: &Report, args: &Args) -> Result<(), AnyError> {
    let (look, summary, files) = (Look::of_stdout(), report.summary(), &report.files);
    if args.json {
        return output::json(&Json {
            volume: shown(&args.volume),
            old: &args.a,
            new: &args.b,
            summary,
            files,
        });
    }
    let mut out = BufWriter::new(io::stdout().lock());
    if args.patch {
        write_patches(&mut out, &look, diff, args, files)?;
    } else if args.stat {
        stat::write(&mut out, &look, files, &summary)?;
    } else if args.name_only || args.name_status {
        let form = names::Form {
            status: args.name_status,
            nul: args.nul,
        };
        for file in files {
            names::write(&mut out, form, file)?;
        }
    } else if !args.quiet {
        lines::write(&mut out, &look, files)?;
    }
    out.flush()?;
    Ok(())
}

/// Writes the patches of all files.
fn write_patches(
    out: &mut impl Write,
    look: &Look,
    diff: &Diff,
    args: &Args,
    files: &[FileChange],
) -> Result<(), AnyError> {
    let failed = |e: Error| root_failure(&args.volume, &args.b, &e);
    let mut patches = diff.patches().map_err(failed)?;
    for file in files {
        let patch = patches.of(file).map_err(failed)?;
        match look.has_colours() {
            true => patch_colours::write(out, look, &patch)?,
            false => out.write_all(&patch)?,
        }
    }
    Ok(())
}

/// Opens the volume, for reading if that suffices, and compares.
fn open(args: &Args) -> Result<(Roots, Diff), Failure> {
    let failed = |e: Error| match &e {
        Error::NoRoot { reference, .. } => {
            let failure = root_failure(&args.volume, reference, &e);
            match *reference == args.b && args.b != args.a {
                true => failure.hint(SECOND),
                false => failure,
            }
        }
        _ => Failure::engine(shown(&args.volume), &e),
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

/// Whether one of the paths of a file is at or below one of the wanted paths, or is a renamed
/// directory above one.
fn is_wanted(file: &FileChange, wanted: &[PathBuf]) -> bool {
    let moved = file.kind == FileKind::Directory && file.status == Status::Renamed;
    let concerns = |path: &FilePath, wanted: &Path| {
        let wanted = components(wanted.as_os_str().as_bytes());
        let path = components(&path.bytes);
        path.starts_with(&wanted) || moved && wanted.starts_with(&path)
    };
    let names = || {
        let more = file.old_paths.iter().chain(&file.new_paths);
        std::iter::once(&file.path).chain(more)
    };
    let is_one = |wanted: &PathBuf| names().any(|path| concerns(path, wanted));
    wanted.is_empty() || wanted.iter().any(is_one)
}
