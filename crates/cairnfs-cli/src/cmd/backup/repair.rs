//! `cairnfs backup repair`: puts damaged heads back from their copies, or goes on behind them.

use std::io::{self, Write};
use std::process::ExitCode;

use cairnfs_backup::{Repaired, repair};
use serde::Serialize;

use super::{Damaged, Shown, failure, interruption, open_store, unreachable};
use crate::failure::{AnyError, told};
use crate::output::{self, counted};
use crate::stage::Stage;

/// Exit code: something stays damaged.
const LEFT: u8 = 4;

const EXAMPLES: &str = "\
Examples:
  cairnfs backup check --quick file:///mnt/other/disk
  cairnfs backup repair file:///mnt/other/disk

Heads name the moments, and each is stored twice. What is damaged or missing is
put back from the other one of the two. If both are damaged, and the newest
moments cannot be reached for that, a new head keeps all moments before them, and
backups go on. Contents cannot be put back: `cairnfs backup check` tells which
are damaged.

Exit codes: 0 nothing is damaged any longer, 4 something stays damaged or was
lost, 1 not repaired, 2 wrong arguments, 74 done, but what it found could not be
printed.";

/// Put back damaged heads, or go on without the moments that they had
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the backup is
    url: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    restored: &'a [String],
    left: Vec<Damaged<'a>>,
    /// The first and the last moment that are lost, by their numbers.
    unreachable: Option<(u64, u64)>,
    head: Option<u64>,
    moments: u64,
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
    told(match args.json {
        true => output::json(&Json {
            restored: &repaired.restored,
            left: repaired.left.iter().map(Damaged::of).collect(),
            unreachable: repaired.lost,
            head: repaired.head,
            moments: repaired.moments,
        }),
        false => tell(&repaired).map_err(AnyError::from),
    })?;
    Ok(match repaired.left.is_empty() && repaired.lost.is_none() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(LEFT),
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
    writeln!(out, "Put back {put_back}; {kept} can be reached")
}
