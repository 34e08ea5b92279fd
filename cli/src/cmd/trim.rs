//! `cairnfs trim`: discards the free space of a volume on its file system or device, as fstrim(8)
//! does.
//!
//! The daemon trims a mounted volume; this process trims an unmounted one.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use cairnfs::Error;
use cairnfs::fs::{FileSystem, Options};
use cairnfs_daemon::failure::{AnyError, Explain, Failure, shown, told};
use cairnfs_daemon::holder;
use serde::Serialize;

use crate::daemon::{self, Cause, Refusal};
use crate::output;
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  cairnfs trim ~/disk                 a mounted volume
  cairnfs trim disk.img               one that may be mounted or not
  cairnfs trim --json disk.img | jq .bytes

All free space is discarded, also if it was discarded before. Only root and the
user who mounted it can trim a mounted volume. Unless mounted with nodiscard, a
volume discards freed space by itself, in pieces of 256 KiB.

Exit codes: 0 trimmed, 1 not a volume, no permission, or not possible there,
2 wrong arguments, 74 trimmed, but that could not be printed.";

/// Give a volume's free space back to the file system or device that holds it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mountpoint, or the file or block device of the volume
    #[arg(value_name = "DIR|VOLUME")]
    place: PathBuf,
    /// Time to wait for a daemon that does not answer; one that works may take as long as it needs
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = super::stats::seconds)]
    timeout: Duration,
    /// Print the number of bytes as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct JsonReport {
    place: String,
    bytes: u64,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let bytes = match daemon::trim(&args.place, args.timeout) {
        Err(refusal) if refusal.cause == Cause::NotDirectory => volume(&args)?,
        other => other.map_err(|refusal| failure(&args.place, &refusal))?,
    };
    let place = shown(&args.place);
    if args.json {
        told(output::json(&JsonReport { place, bytes }))?;
    } else {
        let mut out = io::stdout().lock();
        let line = format_args!("{place}: {} ({bytes} bytes) trimmed", human(bytes));
        told(writeln!(out, "{line}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn failure(dir: &Path, refusal: &Refusal) -> Failure {
    let why = match refusal.cause {
        Cause::Foreign => "is not in a mounted volume",
        Cause::Unsupported => "what holds the volume does not discard",
        Cause::Denied => "only root and the user who mounted it may trim it",
        _ => &refusal.text,
    };
    Failure::new(shown(dir), why)
}

fn volume(args: &Args) -> Result<u64, Failure> {
    let path = &args.place;
    let fs = match FileSystem::open(path, &Options::default()) {
        Err(in_use @ Error::InUse(_)) => {
            return match holder::mountpoint(path) {
                Some(dir) => {
                    daemon::trim(&dir, args.timeout).map_err(|refusal| failure(&dir, &refusal))
                }
                None => Err(Failure::opening(path, &in_use)),
            };
        }
        other => other.map_err(|e| Failure::opening(path, &e))?,
    };
    let trimmed = fs.trim();
    let closed = fs.close();
    let bytes = trimmed.explain(shown(path))?;
    closed.explain(shown(path))?;
    Ok(bytes)
}
