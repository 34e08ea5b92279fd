//! `cairnfs restore-from`: writes a moment of a backup into a new file.
//!
//! If not all of it can be read, the rest is restored, and files are told that lack something.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use cairnfs_backup::format::head::Moment;
use cairnfs_backup::{Error, Image, Unreadable, restore_readable};
use cairnfs_core::refs::local_zone;
use cairnfs_daemon::failure::{AnyError, Failure, shown, told};
use cairnfs_daemon::inside;
use cairnfs_daemon::shell::word;
use cairnfs_disk::device::{Access, FileDevice};
use serde::Serialize;

use crate::cmd::backup::unread::{self, Unread};
use crate::cmd::backup::{AtArgs, KeyArgs, Opened, Shown, failure, interruption, rate, warn};
use crate::output::{self, counted, local_time, utc_time};
use crate::size::human;
use crate::stage::Stage;
use crate::tree::Unreadable as Range;
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

If parts of the backup are damaged or missing, everything else is restored: NEW has
holes there, which its own checksums tell from contents. Each file that cannot be
read wholly is named with the ranges that are lost, and the exit code is 1. A moment
of which nothing can be read leaves nothing.

Exit codes: 0 restored, 1 not restored, or not wholly, 2 wrong arguments, 74 restored,
but that could not be printed.";

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
struct Summary<'a> {
    moment: u64,
    time: String,
    checkpoint: String,
    size: u64,
    contents: u64,
    /// Whether all of it could be read.
    whole: bool,
    /// Bytes of the image that could not be read.
    lost: u64,
    /// Ranges of files that cannot be read for that; the first 10,000.
    unreadable: &'a [Range],
    /// Files and directories that cannot be read, or not wholly.
    failed: u64,
    /// Damage of the volume itself.
    damaged: &'a [String],
    requests: u64,
    received: u64,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, AnyError> {
    let (stage, begun, zone) = (Stage::own()?, Instant::now(), local_zone());
    let ended = interruption(&stage)?;
    let wrong = |e: Error| {
        let failed = failure(&args.url, &e);
        if e.is_damage() {
            failed.hint(way_out(&args.url))
        } else {
            failed
        }
    };
    inside::refuse_file(&args.url, &args.file)?;
    let file = WholeFile::make(&args.file, shown(&args.file), false, OTHERWISE)?;
    file.make_private()?;
    let opened = Opened::open(&args.url, &args.key, &ended)?;
    let moment = args.at.moment(&opened, &args.url)?;
    let (store, seal) = (Arc::clone(&opened.store), Arc::clone(&opened.seal));
    let image = Image::open(store, seal, &opened.catalogue, &moment).map_err(wrong)?;
    let watch = Shown::new(&stage, "restoring", args.quiet || args.json);
    let lost = restore_readable(&image, file.file(), &watch).map_err(|why| match why {
        why if why.is_full_here() => Failure::new(shown(&args.file), why).hint(
            format_args!(
                "nothing is left of it; the moment has {} of contents: give a file where there is so much space",
                human(moment.live * 4096)
            ),
        ),
        other => wrong(other),
    })?;
    drop(watch);
    let whole = lost.is_none();
    let unread = if whole {
        Unread::default()
    } else {
        look(args, &file, &moment, &lost)?
    };
    file.complete()?;
    let asked = opened.store.asked();
    if args.json {
        told(output::json(&Summary {
            moment: moment.number,
            time: utc_time(moment.time().into()),
            checkpoint: moment.checkpoint.clone(),
            size: moment.blocks * 4096,
            contents: moment.live * 4096,
            whole,
            lost: lost.blocks.count() * 4096,
            failed: unread.files.failed,
            unreadable: &unread.files.unreadable,
            damaged: &unread.volume,
            requests: asked.requests,
            received: asked.received,
            seconds: begun.elapsed().as_secs_f64(),
        }))?;
    } else if !args.quiet || !whole {
        told(writeln!(
            io::stdout(),
            "Restored {}moment {} of {} into {}: {}, {}",
            if whole { "" } else { "what can be read of " },
            moment.number,
            local_time(moment.time().into(), &zone),
            shown(&args.file),
            human((moment.live - lost.blocks.count().min(moment.live)) * 4096),
            rate(moment.live * 4096, begun)
        ))?;
    }
    if whole {
        return Ok(ExitCode::SUCCESS);
    }
    let what = match (unread.files.failed, unread.volume.is_empty()) {
        (0, true) => "no file that is named needs what is lost".to_owned(),
        (0, false) => "no file lacks anything, but the volume itself is damaged".to_owned(),
        (failed, _) => format!(
            "{} cannot be read, or not wholly",
            counted(failed, "file or directory", "files or directories")
        ),
    };
    let why = format!(
        "{} of the moment could not be read: {what}",
        human(lost.blocks.count() * 4096)
    );
    Err(Failure::new(shown(&args.file), why)
        .hint(way_out(&args.url))
        .into())
}

/// Tells what the restored image lacks, before it has its name.
///
/// # Errors
/// Nothing of it can be read.
fn look(
    args: &Args,
    file: &WholeFile,
    moment: &Moment,
    lost: &Unreadable,
) -> Result<Unread, Failure> {
    for why in &lost.whys {
        warn(&format!("{}: {why}", args.url));
    }
    let nothing = |why: cairnfs::Error| {
        let text = format!(
            "moment {} cannot be restored: too much of what describes the volume itself cannot be read: {why}",
            moment.number
        );
        Failure::new(&args.url, text).hint(way_out(&args.url))
    };
    // It may have no name yet.
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.file().as_raw_fd()));
    let device = FileDevice::open(&path, Access::ReadOnly).map_err(nothing)?;
    let unread = unread::read_all(Arc::new(device), &args.file, args.quiet || args.json)?;
    let unread = unread.map_err(nothing)?;
    for found in &unread.volume {
        warn(&format!(
            "{}: the volume itself is damaged: {found}",
            shown(&args.file)
        ));
    }
    Ok(unread)
}

/// What to do about what is lost.
fn way_out(url: &str) -> String {
    let url = word(url);
    format!(
        "cairnfs backup check {url} tells which moments can be read wholly; cairnfs backup repair {url} --from \
         VOLUME stores again what the volume still has"
    )
}
