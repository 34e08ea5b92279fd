//! `cairnfs backup repair`: puts damaged heads back from their copies, or goes on behind them, and stores
//! lost contents again from the volume.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cairnfs_backup::{Catalogue, Repaired, Report, Seal, check, repair};
use cairnfs_daemon::failure::{AnyError, told};
use cairnfs_daemon::shell::word;
use serde::Serialize;

use super::{Damaged, LEFT, Shown, failure, interruption, moments, now, open_store, unreachable};
use crate::output::{self, counted};
use crate::stage::Stage;
use crate::verbs::{self, Verb};

/// Exit code: what was looked at is sound, and contents were not read.
const UNREAD: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  cairnfs backup check --quick file:///mnt/other/disk
  cairnfs backup repair file:///mnt/other/disk
  cairnfs backup repair file:///mnt/other/disk --from ~/disk

Heads name the moments, and each is stored twice. What is damaged or missing is
put back from the other one of the two. If both are damaged, and the newest
moments cannot be reached for that, a new head keeps all moments before them, and
backups go on.

With --from all contents are read, and what is damaged or missing is stored again
from the volume, mounted or not, where it has not been written since; then a
moment is stored of what has changed, so that the newest one can be read wholly.
Without it only heads, the presence and sizes of objects, and indexes are looked
at: contents are not read, and only `cairnfs backup check` tells whether they are
damaged. So the exit code is not 0.

Exit codes: 0 nothing is damaged any longer, with --from; 3 the same as far as that
was looked at, contents were not read; 4 something stays damaged or was lost, 1 not
repaired, 2 wrong arguments, 74 done, but what it found could not be printed.";

/// Put back damaged heads, or go on without the moments that they had; store lost contents again
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the backup is
    url: String,
    /// Store lost contents again from this volume, or where it is mounted
    #[arg(long, value_name = "VOLUME")]
    from: Option<PathBuf>,
    /// Go on where another machine or path has ended for good
    #[arg(long, requires = "from")]
    take_over: bool,
    /// Print as JSON
    #[arg(long, conflicts_with = "from")]
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    restored: &'a [String],
    left: Vec<Damaged<'a>>,
    /// The first and the last moment that are lost, by their numbers.
    unreachable: Option<(u64, u64)>,
    head: Option<u64>,
    /// Moments that heads name.
    moments: u64,
    /// Always false: whether contents are damaged is not known.
    contents_read: bool,
    /// Missing and damaged parts of layers, except contents, which were not read.
    problems: &'a [String],
    damaged_moments: Vec<moments::Json>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, AnyError> {
    let stage = Stage::own()?;
    let store = open_store(&args.url, &interruption(&stage)?)?;
    let watch = Shown::new(&stage, "repairing", true);
    let repaired = repair(&store, &watch).map_err(|e| match e {
        e if e.is_lost() => {
            failure(&args.url, &e).hint("a backup was stored meanwhile: run the repair again")
        }
        e => failure(&args.url, &e),
    })?;
    let are_heads_sound = repaired.left.is_empty() && repaired.lost.is_none();
    if let Some(volume) = &args.from {
        told(tell(&repaired))?;
        let mut again = now::Args::mending(volume.clone(), args.url.clone(), args.take_over);
        again.prepare()?;
        let code = verbs::code_of(&Verb::Backup(again))?;
        return Ok(ExitCode::from(match (code, are_heads_sound) {
            (0, false) => LEFT,
            (code, _) => code,
        }));
    }
    let wrong = |e| failure(&args.url, &e);
    let catalogue = Catalogue::open(&store).map_err(wrong)?;
    let report = check(&store, &catalogue, &Seal::default(), false, &watch).map_err(wrong)?;
    told(if args.json {
        output::json(&Json {
            restored: &repaired.restored,
            left: repaired.left.iter().map(Damaged::of).collect(),
            unreachable: repaired.lost,
            head: repaired.head,
            moments: repaired.moments,
            contents_read: false,
            problems: &report.problems,
            damaged_moments: moments::json(&report.damaged),
        })
    } else {
        tell(&repaired)
            .and_then(|()| tell_layers(args, &catalogue, &report))
            .map_err(AnyError::from)
    })?;
    let is_sound = are_heads_sound && report.problems.is_empty();
    Ok(if is_sound {
        ExitCode::from(UNREAD)
    } else {
        ExitCode::from(LEFT)
    })
}

fn tell(repaired: &Repaired) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for name in &repaired.restored {
        writeln!(out, "put back: {name}")?;
    }
    for damage in &repaired.left {
        writeln!(out, "stays damaged: {damage}")?;
    }
    if let Some((first, last)) = repaired.lost {
        writeln!(out, "{}", unreachable(first, last))?;
    }
    if let Some(head) = repaired.head {
        writeln!(out, "head {head} goes on behind them")?;
    }
    let put_back = counted(repaired.restored.len() as u64, "object", "objects");
    let kept = counted(repaired.moments, "moment", "moments");
    writeln!(out, "Put back {put_back} of heads, which name {kept}")
}

/// What was seen of layers.
fn tell_layers(args: &Args, catalogue: &Catalogue, report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for problem in &report.problems {
        writeln!(out, "stays damaged: {problem}")?;
    }
    for line in moments::lines(catalogue, &report.damaged) {
        writeln!(out, "{line}")?;
    }
    let url = word(&args.url);
    if report.problems.is_empty() {
        writeln!(
            out,
            "Contents were not checked, so they may be damaged: cairnfs backup check {url} tells"
        )
    } else {
        writeln!(
            out,
            "Contents were not checked (cairnfs backup check {url}); what a volume still has is \
             stored again with --from VOLUME"
        )
    }
}
