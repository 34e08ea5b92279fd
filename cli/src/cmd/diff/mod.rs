//! `cairnfs diff`: what differs between two states of a volume.

mod lines;
mod name_forms;
mod patch_colours;
mod stat;

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cairnfs::{Diff, Error, FileChange, FileKind, FilePath, Report, Status, Summary};
use cairnfs_daemon::failure::{AnyError, Failure, of_output, shown};
use cairnfs_daemon::raw_path;
use cairnfs_daemon::reference::{name_of, root_failure};
use serde::{Deserialize, Serialize};

use crate::look::Look;
use crate::opened_roots::{ROOTED, Roots};
use crate::volume_by_path::components;

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
  cairnfs diff disk.img main trial --merge-base
  cairnfs diff disk.img monday -p | patch -p1 -d copy-of-monday

A and B are snapshots or branches: NAME, BRANCH@SNAPSHOT, or BRANCH@TIME, the
newest snapshot that is as old (10:30, 2026-01-31, 2026-01-31T10:30, -5m, -2d;
in local time). Without B, A is compared with main, or if the volume is named by
a mount of it, with what is mounted there. With PATH, only what is at
or below these paths is shown; a path that neither A nor B has is an error. A PATH
begins at the root of the volume, also where the volume is named by a directory in
a mount: in DIR/sub, the file x is sub/x.

With --merge-base, the old state is that in which A and B have parted, so what
was done in A since is not shown, as with git diff --merge-base.

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
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// The old state
    a: String,
    /// The new state [default: main, or what is mounted there]
    b: Option<String>,
    /// Show only what is at or below these paths, which begin at the root of the volume
    #[arg(value_name = "PATH")]
    #[serde(with = "raw_path::list")]
    paths: Vec<PathBuf>,
    /// Show only what B has done since it parted from A
    #[arg(long)]
    merge_base: bool,
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

/// Performs the command.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    let (states, diff) = roots.on_branch(args.b.as_deref(), |b| {
        let b = b.to_owned();
        let states = States { args, b };
        let diff = states.compare(roots)?;
        Ok::<_, AnyError>((states, diff))
    })?;
    states.check_paths(&diff)?;
    let report = states.wanted(&diff)?;
    states.write(roots, &diff, &report)?;
    let different = !report.files.is_empty();
    Ok(u8::from(different) * DIFFERENT)
}

/// Gives a failure the exit code that diff(1) has for it.
pub fn in_trouble(error: AnyError) -> AnyError {
    let failure = match error.downcast::<Failure>() {
        Ok(failure) => Ok(*failure),
        Err(other) => of_output(other.as_ref()).ok_or(other),
    };
    match failure {
        Ok(failure) if failure.is_broken_pipe() => failure.into(),
        Ok(failure) => failure.code(TROUBLE).into(),
        Err(other) => other,
    }
}

/// What is compared.
struct States<'a> {
    args: &'a Args,
    b: String,
}

impl States<'_> {
    fn failure(&self, why: &Error) -> Failure {
        root_failure(&self.args.volume, &self.b, why)
    }

    /// Compares. An open volume that cannot be written, and has changes in its log that must be merged
    /// first, is the engine's error.
    fn compare(&self, roots: &Roots<'_>) -> Result<Diff, AnyError> {
        roots.with(&[&self.args.a, &self.b], || self.compare_once(roots))
    }

    fn compare_once(&self, roots: &Roots<'_>) -> Result<Diff, AnyError> {
        let a = roots.find_whole(&self.args.a)?;
        let b = roots.find_whole(&self.b).map_err(|failure| {
            if self.args.b.is_some() && self.b != self.args.a {
                failure.hint(SECOND)
            } else {
                failure
            }
        })?;
        let diff = if self.args.merge_base {
            cairnfs::Volume::diff_since_fork
        } else {
            cairnfs::Volume::diff
        };
        diff(roots.volume(), name_of(&a), name_of(&b)).map_err(|e| match e {
            Error::ReadOnly => e.into(),
            _ => Failure::engine(shown(&self.args.volume), &e).into(),
        })
    }

    /// Refuses a path that neither state has: it would show nothing, as if nothing had changed.
    fn check_paths(&self, diff: &Diff) -> Result<(), Failure> {
        for path in &self.args.paths {
            if !diff.has_path(path).map_err(|e| self.failure(&e))? {
                let why = format!("neither {} nor {} has it", self.args.a, self.b);
                return Err(Failure::new(shown(path), why).hint(ROOTED));
            }
        }
        Ok(())
    }

    /// The differences at and below the paths that were asked for. A file that changed under several
    /// names is reported by one of these.
    fn wanted(&self, diff: &Diff) -> Result<Report, Failure> {
        let (mut report, paths) = (diff.report().clone(), &self.args.paths);
        let is_elsewhere = |file: &&FileChange| {
            let is_there = file.status != Status::Removed && file.kind != FileKind::Directory;
            is_there && !is_wanted(file, paths)
        };
        let elsewhere = report.files.iter().filter(is_elsewhere);
        let elsewhere: BTreeSet<u64> = elsewhere.map(|file| file.ino).collect();
        let below = diff.paths_below(paths, &elsewhere);
        let below = below.map_err(|e| self.failure(&e))?;
        report.files.retain_mut(|file| match below.get(&file.ino) {
            Some(path) => {
                if file.old_paths.is_empty() && file.new_paths.is_empty() {
                    file.path = path.clone();
                }
                true
            }
            None => is_wanted(file, paths),
        });
        Ok(report)
    }

    /// Writes the differences in the form that was asked for.
    fn write(&self, roots: &Roots<'_>, diff: &Diff, report: &Report) -> Result<(), AnyError> {
        let (args, stage) = (self.args, roots.stage());
        let (look, summary, files) = (stage.look(), report.summary(), &report.files);
        if args.json {
            return stage.json(&Json {
                volume: shown(&args.volume),
                old: &args.a,
                new: &self.b,
                summary,
                files,
            });
        }
        let mut out = stage.out();
        if args.patch {
            self.write_patches(&mut out, look, diff, files)?;
        } else if args.stat {
            stat::write(&mut out, look, files, &summary)?;
        } else if args.name_only || args.name_status {
            let form = name_forms::Form {
                status: args.name_status,
                nul: args.nul,
            };
            for file in files {
                name_forms::write(&mut out, form, file)?;
            }
        } else if !args.quiet {
            lines::write(&mut out, look, files)?;
        }
        out.flush()?;
        Ok(())
    }

    /// Writes the patches of all files.
    fn write_patches(
        &self,
        out: &mut impl Write,
        look: &Look,
        diff: &Diff,
        files: &[FileChange],
    ) -> Result<(), AnyError> {
        let mut patches = diff.patches().map_err(|e| self.failure(&e))?;
        for file in files {
            let patch = patches.of(file).map_err(|e| self.failure(&e))?;
            if look.has_colours() {
                patch_colours::write(out, look, &patch)?
            } else {
                out.write_all(&patch)?
            }
        }
        Ok(())
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
