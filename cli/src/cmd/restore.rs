//! `cairnfs restore`: brings a branch, or files of it, back to an earlier state.

use std::path::PathBuf;

use cairnfs::Error;
use cairnfs_daemon::failure::{AnyError, Failure, shown};
use cairnfs_daemon::raw_path;
use cairnfs_daemon::reference::name_of;
use cairnfs_daemon::shell::{word, word_of_path};
use serde::{Deserialize, Serialize};

use crate::opened_roots::{ROOTED, Roots, Telling, take_back};

const EXAMPLES: &str = "\
Examples:
  cairnfs restore disk.img monday             all files as they were on monday
  cairnfs restore disk.img main@-1h etc/fstab home/notes
  cairnfs restore disk.img monday --branch trial

REF is NAME, BRANCH@SNAPSHOT or BRANCH@TIME. With PATH, only what is at and
below these paths goes back, and of that only what differs is changed; without
PATH, the whole branch goes back, in a moment. A PATH begins at the root of the
volume, also where the volume is named by a directory in a mount: in DIR/sub, the
file x is sub/x. Either is one atomic step. The state before stays as a
snapshot, whose name is printed: restoring that takes the restore back. Of one
branch the newest 24 of these stay, unless they get another name.

Exit codes: 0 restored, 1 not restored and nothing changed, 2 wrong arguments,
74 restored, but that could not be printed.";

/// Bring a branch, or files of it, back to an earlier state
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// The state to go back to
    #[arg(value_name = "REF")]
    reference: String,
    /// Restore only what is at and below these paths, which begin at the root of the volume
    #[arg(value_name = "PATH")]
    #[serde(with = "raw_path::list")]
    paths: Vec<PathBuf>,
    /// The branch that is changed [default: main, or what is mounted there]
    #[arg(short, long)]
    branch: Option<String>,
    #[command(flatten)]
    telling: Telling,
}

#[derive(Serialize)]
struct Json<'a> {
    branch: &'a str,
    /// The snapshot of the state before.
    kept: &'a str,
}

/// Performs the command.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    let once = |branch: &str| {
        let from = roots.find_whole(&args.reference)?;
        let base = roots.find_whole(branch)?;
        let restored = roots.replacing(&base, &[], || {
            roots
                .volume()
                .restore(name_of(&from), name_of(&base), &args.paths)
        });
        restored.map_err(|e| failure(args, branch, &e))
    };
    let (branch, kept) = &roots.on_branch(args.branch.as_deref(), |branch| {
        let kept = roots.with(&[&args.reference, branch], || once(branch))?;
        Ok::<_, Failure>((branch.to_owned(), kept))
    })?;
    let lines = [
        format!("Restored {branch}; its state before is the snapshot {kept}"),
        take_back(&args.volume, kept, branch),
    ];
    args.telling
        .tell(roots.stage(), &Json { branch, kept }, &lines)?;
    Ok(0)
}

fn failure(args: &Args, branch: &str, why: &Error) -> Failure {
    match why {
        Error::At { source, .. } if matches!(**source, Error::NotFound) => {
            Failure::new(why, format_args!("{} does not have it", args.reference)).hint(
                format_args!(
                    "{ROOTED}; to see what differs: cairnfs diff {} {} {}",
                    word_of_path(&args.volume),
                    word(&args.reference),
                    word(branch),
                ),
            )
        }
        other => Failure::engine(shown(&args.volume), other),
    }
}
