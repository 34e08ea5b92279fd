//! `cairnfs restore-from`: writes a moment of a backup into a new file.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use cairnfs::refs::local_zone;
use cairnfs_backup::{Error, Image, restore};
use serde::Serialize;

use crate::cmd::backup::{AtArgs, KeyArgs, Opened, Shown, failure, interruption, rate};
use crate::failure::{AnyError, Failure, shown, told};
use crate::output::{self, local_time, utc_time};
use crate::size::human;
use crate::stage::Stage;
use crate::tree::whole_file::WholeFile;

const EXAMPLES: &str = "\
Examples:
  cairnfs restore-from s3://bucket/disk new.img
  cairnfs restore-from s3://bucket/disk new.img --at 10:30
  cairnfs restore-from file:///mnt/other/disk new.img --at 2026-01-31

NEW is a sparse file with the whole volume: all branches and snapshots. --at
takes a time as references to snapshots do: 10:30 (the last time that clocks here
showed that), 2026-01-31 (the end of that day), 2026-01-31T10:30:00Z, -90m; the
last moment that is not later is restored. It also takes the number of a moment
(`cairnfs backup list`). Without --at it is the newest one.

The file gets its name when it is complete and durable. A restore that fails, or
is interrupted or killed, leaves nothing (where the file system has no files
without a name, .cairnfs-* beside NEW if it is killed).

Exit codes: 0 restored, 1 not restored, 2 wrong arguments, 74 restored, but that
could not be printed.";

/// What to do if the volume cannot be made under its name.
const OTHERWISE: &str = "give the name of a file that does not exist";

/// Write a moment of a backup into a new file
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the backup is
    url: String,
    /// The file to make
    #[arg(value_name = "NEW")]
    file: PathBuf,
    #[command(flatten)]
    at: AtArgs,
    #[command(flatten)]
    key: KeyArgs,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress and no summary
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Serialize)]
struct Summary {
    moment: u64,
    time: String,
    checkpoint: String,
    size: u64,
    contents: u64,
    requests: u64,
    received: u64,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, AnyError> {
    let (stage, begun, zone) = (Stage::own()?, Instant::now(), local_zone());
    let ended = interruption(&stage)?;
    let wrong = |e: Error| failure(&args.url, &e);
    let file = WholeFile::make(&args.file, shown(&args.file), false, OTHERWISE)?;
    let opened = Opened::open(&args.url, &args.key, &ended)?;
    let moment = args.at.moment(&opened, &args.url)?;
    let (store, seal) = (Arc::clone(&opened.store), Arc::clone(&opened.seal));
    let image = Image::open(store, seal, &opened.catalogue, &moment).map_err(wrong)?;
    let watch = Shown::new(&stage, "restoring", args.quiet || args.json);
    restore(&image, file.file(), &watch).map_err(|why| match why {
        why if why.is_full_here() => Failure::new(shown(&args.file), why).hint(
            format_args!(
                "nothing is left of it; the moment has {} of contents: give a file where there is so much space",
                human(moment.live * 4096)
            ),
        ),
        other => wrong(other),
    })?;
    drop(watch);
    file.complete()?;
    let asked = opened.store.asked();
    if args.json {
        told(output::json(&Summary {
            moment: moment.number,
            time: utc_time(moment.time().into()),
            checkpoint: moment.checkpoint.clone(),
            size: moment.blocks * 4096,
            contents: moment.live * 4096,
            requests: asked.requests,
            received: asked.received,
            seconds: begun.elapsed().as_secs_f64(),
        }))?;
    } else if !args.quiet {
        told(writeln!(
            io::stdout(),
            "Restored moment {} of {} into {}: {}, {}",
            moment.number,
            local_time(moment.time().into(), &zone),
            shown(&args.file),
            human(moment.live * 4096),
            rate(moment.live * 4096, begun)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
