//! `cairnfs publish`: makes the files of a branch those of its base.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cairnfs::{Conflict, ConflictKind, Error, FilePath, PublishOptions, Published, Side};
use serde::Serialize;

use crate::failure::{AnyError, Failure, show_bytes, shown};
use crate::output::counted;
use crate::roots::{Roots, Telling, root_failure, take_back};
use crate::volume::Access;

const EXAMPLES: &str = "\
Examples:
  cairnfs publish disk.img trial              onto main
  cairnfs publish disk.img trial --dry-run    would there be conflicts?
  cairnfs publish disk.img trial --onto release
  cairnfs publish disk.img trial --theirs etc --ours home/notes

The files of the branch become those of main (or BASE) in one atomic step, and
the branch is gone. If the base has not changed since the branch began, this
takes a moment. Otherwise the changes of both are merged file by file; if both
have changed the same file, name or attribute, that is a conflict: all conflicts
are listed, and nothing is changed. --ours takes the state of the base at and
below a path, --theirs that of the branch; '.' is everything. A PATH that none of
the states has is an error.

The state before stays as a snapshot, whose name is printed: restoring it takes
the publish back.

Exit codes: 0 published (with --dry-run: no conflicts), 1 conflicts or a failure,
nothing was changed, 2 wrong arguments.";

/// Make the files of a branch those of main, or of another branch
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// The branch
    branch: String,
    /// The branch that gets its files
    #[arg(long, value_name = "BASE", default_value = "main")]
    onto: String,
    /// In a conflict at or below PATH, take the base's state
    #[arg(long, value_name = "PATH")]
    ours: Vec<PathBuf>,
    /// In a conflict at or below PATH, take the branch's state
    #[arg(long, value_name = "PATH")]
    theirs: Vec<PathBuf>,
    /// Only look for conflicts
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    telling: Telling,
}

#[derive(Serialize)]
struct Json {
    published: bool,
    merged: bool,
    /// The snapshot of the state before.
    kept: Option<String>,
    conflicts: Vec<JsonConflict>,
}

#[derive(Serialize)]
struct JsonConflict {
    #[serde(flatten)]
    path: FilePath,
    why: String,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let roots = Roots::open(&args.volume, Access::Write)?;
    let options = PublishOptions {
        onto: Some(args.onto.clone()),
        ours: args.ours.clone(),
        theirs: args.theirs.clone(),
        dry_run: args.dry_run,
    };
    let published = roots.volume().publish(&args.branch, &options);
    let published = published.map_err(|e| match &e {
        Error::NoRoot { reference, .. } => root_failure(&args.volume, reference, &e),
        Error::At { source, .. } if matches!(**source, Error::NotFound) => {
            let (branch, onto) = (&args.branch, &args.onto);
            Failure::new(
                &e,
                format_args!("neither {branch} nor {onto} has or had it"),
            )
        }
        other => {
            let base = roots.volume().find_root(&args.onto);
            let named = match base.is_ok_and(|base| base.writable) {
                true => &args.branch,
                false => &args.onto,
            };
            root_failure(&args.volume, named, other)
        }
    });
    let closed = roots.close();
    let published: Published = published?;
    closed?;
    tell(&args, &published)?;
    Ok(ExitCode::from(u8::from(!published.conflicts.is_empty())))
}

fn tell(args: &Args, published: &Published) -> Result<(), AnyError> {
    let conflicts = &published.conflicts;
    let json = Json {
        published: published.kept.is_some(),
        merged: published.merged,
        kept: published.kept.clone(),
        conflicts: conflicts.iter().map(json_conflict).collect(),
    };
    let onto = &args.onto;
    let lines = match &published.kept {
        _ if !conflicts.is_empty() && !args.telling.json => return tell_conflicts(args, conflicts),
        Some(kept) => vec![
            format!("Published onto {onto}; its state before is the snapshot {kept}"),
            take_back(&args.volume, kept, onto),
        ],
        None => vec!["No conflicts".to_owned()],
    };
    args.telling.tell(&json, &lines)
}

fn tell_conflicts(args: &Args, conflicts: &[Conflict]) -> Result<(), AnyError> {
    let mut out = io::stdout().lock();
    for conflict in conflicts {
        let path = show_bytes(path(conflict));
        writeln!(out, "{path}: {}", why(&conflict.kind, &args.onto))?;
    }
    let count = counted(conflicts.len() as u64, "conflict", "conflicts");
    let why = format!("{count}; nothing was changed");
    let hint = "choose a side with --ours PATH (the base) or --theirs PATH (the branch)";
    Failure::new(shown(&args.volume), why).hint(hint).tell();
    Ok(())
}

fn json_conflict(conflict: &Conflict) -> JsonConflict {
    JsonConflict {
        path: path(conflict).to_vec().into(),
        why: why(&conflict.kind, "the base"),
    }
}

fn path(conflict: &Conflict) -> &[u8] {
    match conflict.path.as_slice() {
        [] => b"/",
        path => path,
    }
}

fn why(kind: &ConflictKind, onto: &str) -> String {
    let side = |side: &Side| match side {
        Side::Ours => onto.to_owned(),
        Side::Theirs => "the branch".to_owned(),
    };
    match kind {
        ConflictKind::Contents => "both changed the contents".into(),
        ConflictKind::Attribute(name) => format!("both changed the {name}"),
        ConflictKind::Xattr(name) => {
            format!("both changed the extended attribute {}", show_bytes(name))
        }
        ConflictKind::Removed(by) => format!("{} removed it, the other changed it", side(by)),
        ConflictKind::Renamed => "both renamed it".into(),
        ConflictKind::Nameless => "each removed the name that the other kept".into(),
        ConflictKind::NameTaken => "both put a different file there".into(),
        ConflictKind::DirectoryRemoved(by) => {
            format!("{} removed the directory, the other uses it", side(by))
        }
        ConflictKind::Circle => "both moved directories, which would hold each other".into(),
    }
}
