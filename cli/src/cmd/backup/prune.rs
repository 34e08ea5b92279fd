//! `cairnfs backup prune`: removes moments that no rule keeps, and what nothing needs any longer.

use std::io::{self, Write};
use std::process::ExitCode;

use cairnfs_backup::{Keep, PruneOptions, Pruned, prune};
use cairnfs_core::refs::local_zone;
use cairnfs_daemon::failure::{AnyError, told};
use serde::Serialize;

use super::{KeyArgs, Shown, failure, interruption, open_store, warn};
use crate::output::{self, counted, local_time};
use crate::size::human;
use crate::stage::Stage;

const EXAMPLES: &str = "\
Examples:
  cairnfs backup prune s3://bucket/disk --keep-daily 7 --keep-weekly 5 --dry-run
  cairnfs backup prune s3://bucket/disk --keep-last 10 --keep-within 2d
  cairnfs backup prune s3://bucket/disk              no moments, garbage only
  cairnfs backup prune s3://bucket/disk --grace 0    all of that, at once

A moment is kept if one of the rules keeps it: the last N, or the last one of
each of the last N hours, days, weeks, months or years that have one, or all that
are at most as old as TIME when the newest one was made. The newest moment is
always kept. Layers that all kept moments use together are merged, and what
interrupted backups have left is removed. What a restore or `mount --at` may be
reading stays for --grace, an hour if not given, after it was removed or merged:
the next prune after that deletes it, or a mount with -o backup=. --grace 0
deletes at once. A backup that runs meanwhile begins again by itself. Without the
key of an encrypted backup, layers are not merged. In a store without space
nothing stays for --grace, and what can go without storing anything goes first;
if there is nothing of that, the prune says how much space it needs to begin.
A mount with -o backup= prunes by itself: backup-keep-last= and so on.

Exit codes: 0 pruned, 1 not, or not all of it, 2 wrong arguments, 74 pruned, but
that could not be printed.";

/// Remove moments that no rule keeps, and what nothing needs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the backup is
    url: String,
    /// Keep the last N moments
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep_last: u32,
    /// Keep the last moment of each of the last N hours
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep_hourly: u32,
    /// Of the last N days
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep_daily: u32,
    /// Of the last N weeks
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep_weekly: u32,
    /// Of the last N months
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep_monthly: u32,
    /// Of the last N years
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep_yearly: u32,
    /// Keep all moments within TIME before the newest one, such as 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = within)]
    keep_within: Option<std::time::Duration>,
    /// Keep what moments needed until now for TIME, for programs that read it: 0, 30m, 6h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = grace)]
    grace: std::time::Duration,
    /// Only tell which moments would go
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    key: KeyArgs,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress and no summary
    #[arg(short, long)]
    quiet: bool,
}

fn within(text: &str) -> Result<std::time::Duration, String> {
    cairnfs_core::refs::duration_named(text).map_err(|e| e.to_string())
}

fn grace(text: &str) -> Result<std::time::Duration, String> {
    match text {
        "0" => Ok(std::time::Duration::ZERO),
        other => within(other),
    }
}

fn for_people(time: std::time::Duration) -> String {
    let time = jiff::SignedDuration::try_from(time);
    format!("{:#}", time.unwrap_or(jiff::SignedDuration::MAX))
}

#[derive(Serialize)]
struct Json {
    dry_run: bool,
    removed: Vec<u64>,
    kept: u64,
    bytes: u64,
    objects: u64,
    left_bytes: u64,
    left_objects: u64,
    merged_layers: u64,
    has_no_space: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, AnyError> {
    let stage = Stage::own()?;
    let store = open_store(&args.url, &interruption(&stage)?)?;
    let options = PruneOptions {
        keep: Keep {
            last: args.keep_last,
            hourly: args.keep_hourly,
            daily: args.keep_daily,
            weekly: args.keep_weekly,
            monthly: args.keep_monthly,
            yearly: args.keep_yearly,
            within: args.keep_within,
            ..Keep::default()
        },
        grace: args.grace,
        dry_run: args.dry_run,
        key: args.key.key()?,
    };
    let watch = Shown::new(&stage, "merging", args.quiet || args.json);
    let pruned = prune(&store, &options, &local_zone(), &watch);
    drop(watch);
    let pruned = pruned.map_err(|e| match e {
        e if e.is_lost() => {
            failure(&args.url, &e).hint("a backup was stored meanwhile: run the prune again")
        }
        e => failure(&args.url, &e),
    })?;
    if pruned.has_no_space {
        warn(&format!(
            "{}: the store has no space to merge layers, which would free more: make some, and run it again",
            args.url
        ));
    }
    let printed = if args.json {
        output::json(&Json {
            dry_run: args.dry_run,
            removed: pruned.removed.iter().map(|moment| moment.number).collect(),
            kept: pruned.kept,
            bytes: pruned.bytes,
            objects: pruned.objects,
            left_bytes: pruned.left_bytes,
            left_objects: pruned.left_objects,
            merged_layers: pruned.merged,
            has_no_space: pruned.has_no_space,
        })
    } else if !args.quiet {
        tell(args, &pruned).map_err(AnyError::from)
    } else {
        Ok(())
    };
    if args.dry_run {
        printed?
    } else {
        told(printed)?
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(args: &Args, pruned: &Pruned) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let (verb, zone) = (
        if args.dry_run { "would go" } else { "removed" },
        local_zone(),
    );
    for moment in &pruned.removed {
        let time = local_time(moment.time().into(), &zone);
        writeln!(out, "{verb}: moment {} of {time}", moment.number)?;
    }
    let kept = counted(pruned.kept, "moment", "moments");
    if args.dry_run {
        return writeln!(out, "{kept} would be kept");
    }
    writeln!(
        out,
        "Kept {kept}; freed {} in {}",
        human(pruned.bytes),
        counted(pruned.objects, "object", "objects")
    )?;
    if pruned.left_objects > 0 {
        writeln!(
            out,
            "{} in {} stay for {} for programs that read them; a later prune, or a mount that ships, deletes \
             them (--grace 0: at once)",
            human(pruned.left_bytes),
            counted(pruned.left_objects, "object", "objects"),
            for_people(args.grace)
        )?;
    }
    Ok(())
}
