//! `cairnfs publish`: makes the files of a branch those of its base.

use std::io::Write;
use std::path::PathBuf;

use cairnfs::{Conflict, ConflictKind, Error, FilePath, PublishOptions, Published};
use cairnfs_daemon::failure::{AnyError, Failure, show_bytes, shown};
use cairnfs_daemon::raw_path;
use cairnfs_daemon::reference::{name_of, root_failure};
use cairnfs_daemon::shell::{word, word_of, word_of_path};
use cairnfs_disk::format::root::MAIN_NAME;
use serde::{Deserialize, Serialize};

use crate::opened_roots::{Roots, Telling, take_back};
use crate::output::counted;
use crate::stage::Stage;

const EXAMPLES: &str = "\
Examples:
  cairnfs publish disk.img trial              onto main
  cairnfs publish disk.img trial --dry-run    would there be conflicts?
  cairnfs publish disk.img trial --onto release
  cairnfs publish disk.img trial --theirs etc --ours home/notes

The files of the branch become those of main (or BASE) in one atomic step, and
the branch is gone. If the base has not changed since the branch began, this
takes a moment. Otherwise the changes of both are merged file by file; if both
have changed the same contents, name or attribute of a file, that is a conflict:
all conflicts are listed, and nothing is changed. At and below a path, --ours takes
what is in conflict from the base, --theirs from the branch; what else either did to
the same file stays. '.' is everything, and the deepest PATH decides. A PATH that
none of the states has is an error.

The state before stays as a snapshot, whose name is printed: restoring it takes
the publish back. Of one branch the newest 24 of these stay, unless they get
another name.

Exit codes: 0 published (with --dry-run: no conflicts), 1 conflicts or a failure,
nothing was changed, 2 wrong arguments, 74 published, but that could not be
printed.";

/// Make the files of a branch those of main, or of another branch
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// The branch
    branch: String,
    /// The branch that gets its files
    #[arg(long, value_name = "BASE", default_value = MAIN_NAME)]
    onto: String,
    /// At or below PATH, take what is in conflict from the base
    #[arg(long, value_name = "PATH")]
    #[serde(with = "raw_path::list")]
    ours: Vec<PathBuf>,
    /// At or below PATH, take what is in conflict from the branch
    #[arg(long, value_name = "PATH")]
    #[serde(with = "raw_path::list")]
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
    /// Whether changes of both were merged, or with `--dry-run` would be.
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

/// Performs the command.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    let published = roots.with(&[&args.branch, &args.onto], || publish(args, roots))?;
    tell(args, roots.stage(), &published)?;
    Ok(u8::from(!published.conflicts.is_empty()))
}

/// Publishes; conflicts are in the result, as they are of a dry run.
fn publish(args: &Args, roots: &Roots<'_>) -> Result<Published, Failure> {
    let branch = roots.find(&args.branch)?;
    roots.check_unmounted(&branch)?;
    let base = roots.find_whole(&args.onto)?;
    let options = PublishOptions {
        onto: base.name.clone(),
        ours: args.ours.clone(),
        theirs: args.theirs.clone(),
        dry_run: args.dry_run,
    };
    // Until the names are taken, the branch may get a mount.
    let publish = || {
        let branch = roots.find(&args.branch)?;
        roots.check_unmounted(&branch)?;
        Ok(roots.volume().publish(name_of(&branch), &options))
    };
    let published = if args.dry_run {
        publish()
    } else {
        roots.replacing(&base, &[name_of(&branch)], publish)
    };
    let published = match published? {
        Err(Error::Conflicts(conflicts)) => Ok(Published {
            conflicts,
            ..Published::default()
        }),
        done => done,
    };
    published.map_err(|e| match &e {
        Error::At { source, .. } if matches!(**source, Error::NotFound) => {
            let (branch, onto) = (&args.branch, &args.onto);
            Failure::new(
                &e,
                format_args!("neither {branch} nor {onto} has or had it"),
            )
        }
        other => {
            let named = if base.writable {
                &args.branch
            } else {
                &args.onto
            };
            root_failure(&args.volume, named, other)
        }
    })
}

fn tell(args: &Args, stage: &Stage, published: &Published) -> Result<(), AnyError> {
    let conflicts = &published.conflicts;
    let json = Json {
        published: published.kept.is_some(),
        merged: published.merged,
        kept: published.kept.clone(),
        conflicts: conflicts.iter().map(json_conflict).collect(),
    };
    let onto = &args.onto;
    let lines = match &published.kept {
        _ if !conflicts.is_empty() && !args.telling.json => {
            return tell_conflicts(args, stage, conflicts);
        }
        Some(kept) => vec![
            format!("Published onto {onto}; its state before is the snapshot {kept}"),
            take_back(&args.volume, kept, onto),
        ],
        None => return args.telling.print(stage, &json, &["No conflicts"]),
    };
    args.telling.tell(stage, &json, &lines)
}

fn tell_conflicts(args: &Args, stage: &Stage, conflicts: &[Conflict]) -> Result<(), AnyError> {
    let mut out = stage.out();
    for conflict in conflicts {
        let path = show_bytes(path(conflict));
        writeln!(out, "{path}: {}", why(&conflict.kind, &args.onto))?;
    }
    let count = counted(conflicts.len() as u64, "conflict", "conflicts");
    let why = format!("{count}; nothing was changed");
    let hint = conflicts.first().map(|first| hint(args, first));
    out.flush()?;
    stage.tell(&Failure::new(shown(&args.volume), why).hint(hint.unwrap_or_default()));
    Ok(())
}

/// The two commands that choose a side for a conflict.
fn hint(args: &Args, conflict: &Conflict) -> String {
    let mut command = vec!["cairnfs publish".into(), word_of_path(&args.volume)];
    command.push(word(&args.branch));
    if args.onto != MAIN_NAME {
        command.extend(["--onto".into(), word(&args.onto)]);
    }
    if args.dry_run {
        command.push("--dry-run".into());
    }
    for (option, paths) in [("--ours", &args.ours), ("--theirs", &args.theirs)] {
        command.extend(
            paths
                .iter()
                .map(|path| format!("{option}={}", word_of_path(path))),
        );
    }
    let (command, path) = (command.join(" "), word_of(path(conflict)));
    format!(
        "choose a side for each; for the first one, that of {}:\n    {command} --ours={path}\n  \
         or that of the branch:\n    {command} --theirs={path}",
        show_bytes(args.onto.as_bytes()),
    )
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
    kind.why(onto, show_bytes)
}
