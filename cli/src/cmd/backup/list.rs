//! `cairnfs backup list`: the moments that are kept.

use std::io::{self, Write};
use std::process::ExitCode;

use cairnfs_backup::Ended;
use cairnfs_core::refs::local_zone;
use cairnfs_daemon::failure::AnyError;
use serde::Serialize;

use super::{Damaged, catalogue_at};
use crate::output::{self, counted, local_second, utc_time};
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  cairnfs backup list file:///mnt/other/disk
  cairnfs backup list s3://bucket/disk --json | jq -r '.moments[].time'

Times are those of the machine that had the volume, shown in the local time
zone; --at of other commands takes the number of a moment as well. The last line
has the hash of the newest head, which stands for everything that is kept: note
it elsewhere to notice that a store was set back.

Exit codes: 0 listed, 1 not listed, 2 wrong arguments.";

/// List the moments that are kept
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where they are
    url: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct List<'a> {
    backup: String,
    volume: String,
    encrypted: bool,
    writer: Option<String>,
    head: Option<u64>,
    hash: Option<String>,
    bytes: u64,
    damaged: Vec<Damaged<'a>>,
    /// The first and the last moment that cannot be reached, by their numbers.
    unreachable: Option<(u64, u64)>,
    moments: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    number: u64,
    time: String,
    size: u64,
    stored: u64,
    layers: usize,
    checkpoint: String,
    /// Whether a mount has stored it, and nobody asked for this one.
    automatic: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, AnyError> {
    let (_, catalogue) = catalogue_at(&args.url, &Ended::default())?;
    let newest = catalogue.newest();
    let rows = catalogue.moments().iter().map(|moment| Row {
        number: moment.number,
        time: utc_time(moment.time().into()),
        size: moment.blocks * 4096,
        stored: moment.live * 4096,
        layers: moment.layers.len(),
        checkpoint: moment.checkpoint.clone(),
        automatic: moment.automatic,
    });
    let list = List {
        backup: catalogue.root().backup.clone(),
        volume: catalogue.root().volume.clone(),
        encrypted: catalogue.root().encryption.is_some(),
        writer: newest.map(|newest| newest.writer.name.clone()),
        head: newest.map(|newest| newest.number),
        hash: newest.map(|newest| newest.hash.to_string()),
        bytes: catalogue.layers().values().map(|layer| layer.bytes).sum(),
        damaged: catalogue.damage().iter().map(Damaged::of).collect(),
        unreachable: catalogue.unreachable(),
        moments: rows.collect(),
    };
    if args.json {
        output::json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:>8}  {:<25}  {:>10}  {:>10}",
        "MOMENT", "TIME", "CONTENTS", "OF"
    )?;
    let zone = local_zone();
    for (row, moment) in list.moments.iter().zip(catalogue.moments()) {
        writeln!(
            out,
            "{:>8}  {:<25}  {:>10}  {:>10}",
            row.number,
            local_second(moment.time().into(), &zone),
            human(row.stored),
            human(row.size)
        )?;
    }
    writeln!(
        out,
        "{} in {} of volume {}{}",
        counted(list.moments.len() as u64, "moment", "moments"),
        human(list.bytes),
        list.volume,
        if list.encrypted { ", encrypted" } else { "" }
    )?;
    if let (Some(head), Some(hash), Some(writer)) = (list.head, &list.hash, &list.writer) {
        writeln!(out, "head {head} by {writer}: {hash}")?;
    }
    Ok(ExitCode::SUCCESS)
}
