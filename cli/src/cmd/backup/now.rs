//! `cairnfs backup VOLUME URL`: stores the present state. On a mounted volume its daemon does it, with
//! the environment of the caller.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use cairnfs_backup::{
    Error, NewKey, Place, Seal, Shipped, Shipper, VolumeSource, WriterOptions, absolute, check,
    check_without, environment,
};
use cairnfs_daemon::failure::{AnyError, Failure, told};
use cairnfs_daemon::inside;
use cairnfs_daemon::raw_path;
use cairnfs_daemon::writer::writer_name;
use serde::{Deserialize, Serialize};

use super::{LEFT, Shown, failure, interruption, moments, passphrase, rate};
use crate::named_volume;
use crate::opened_roots::Roots;
use crate::output::{counted, local_time};
use crate::size::human;
use crate::stage::Stage;

/// A backup of the present state.
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[group(id = "moment")]
pub struct Args {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// Where moments are stored: file:///directory, s3://bucket/prefix, gs://..., az://...
    url: String,
    /// Go on where another machine or path has ended for good
    #[arg(long)]
    take_over: bool,
    /// Encrypt a new backup, with the passphrase in the first line of FILE (built with `--features
    /// encryption`)
    #[arg(long, value_name = "FILE", conflicts_with = "recipient")]
    #[serde(skip)]
    encrypt: Option<PathBuf>,
    /// Encrypt a new backup for an age recipient (age1...), whose identity stays with you (built with
    /// `--features encryption`)
    #[arg(long, value_name = "AGE1")]
    recipient: Option<String>,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress and no summary
    #[arg(short, long)]
    quiet: bool,
    #[arg(skip)]
    passphrase: Option<String>,
    #[arg(skip)]
    environment: Vec<(String, String)>,
    /// The name of the writer.
    #[arg(skip)]
    name: String,
    /// Whether what the store has lost is stored again: `cairnfs backup repair --from`.
    #[arg(skip)]
    #[serde(default)]
    mends: bool,
}

#[derive(Default, Serialize)]
struct Summary {
    stored: bool,
    moment: Option<u64>,
    checkpoint: Option<String>,
    whole: bool,
    blocks: u64,
    bytes: u64,
    requests: u64,
    seconds: f64,
}

impl Args {
    /// A backup that stores again what the store has lost.
    pub fn mending(volume: PathBuf, url: String, take_over: bool) -> Self {
        Self {
            volume,
            url,
            take_over,
            encrypt: None,
            recipient: None,
            json: false,
            quiet: false,
            passphrase: None,
            environment: Vec::new(),
            name: String::new(),
            mends: true,
        }
    }

    /// Reads what only the process that was called can: files and the environment.
    ///
    /// # Errors
    /// The file of the passphrase cannot be read, or the recipient is none, or this program does not encrypt.
    pub fn prepare(&mut self) -> Result<(), Failure> {
        self.passphrase = self.encrypt.as_deref().map(passphrase).transpose()?;
        // Before a place for the backup is made.
        let checked = self.new_key().map(|key| key.check_recipient()).transpose();
        checked.map_err(|e| failure(&self.url, &e))?;
        self.environment = environment();
        self.name = writer_name(&named_volume::file_of(&self.volume)?);
        self.url = absolute(&self.url).map_err(|e| failure(&self.url, &e))?;
        Ok(())
    }

    fn new_key(&self) -> Option<NewKey> {
        let passphrase = self.passphrase.clone().map(NewKey::Passphrase);
        passphrase.or_else(|| self.recipient.clone().map(NewKey::Recipient))
    }
}

/// Performs the command.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    let (stage, begun) = (roots.stage(), Instant::now());
    let ended = interruption(stage)?;
    let wrong = |why: &Error| match why {
        Error::Engine(error) => Failure::engine(args.volume.display(), error),
        other => failure(&args.url, other),
    };
    inside::refuse_within(&args.url, |device| roots.is_mounted_as(device), &ended)
        .map_err(|e| wrong(&e))?;
    let place = if args.mends { Place::Find } else { Place::Make };
    let store = cairnfs_backup::open(&args.url, place, &args.environment, &ended);
    let store = Arc::new(store.map_err(|e| wrong(&e))?);
    let source = VolumeSource(roots.volume());
    let options = WriterOptions {
        name: args.name.clone(),
        take_over: args.take_over,
        new_key: args.new_key(),
        key: None,
        automatic: false,
    };
    let mut shipper = Shipper::open(Arc::clone(&store), &source, options).map_err(|e| wrong(&e))?;
    roots.fetch_all();
    if args.mends {
        return mend(args, stage, (&mut shipper, &source), begun);
    }
    let quiet = args.quiet || args.json;
    let watch = Shown::new(stage, "storing", quiet);
    let shipped = shipper.ship(&source, &watch).map_err(|e| wrong(&e))?;
    drop(watch);
    let printed = tell(args, stage, &shipped, store.asked().requests, begun);
    match shipper.tidy(&Shown::new(stage, "merging", quiet)) {
        // The moment is stored, and the next backup merges as well.
        Ok(()) | Err(Error::Interrupted) => {}
        Err(why) => stage.tell(&Failure::new(
            format_args!("warning: {}", args.url),
            format_args!("the moment is stored, but layers were not merged: {why}"),
        )),
    }
    told(printed)?;
    Ok(0)
}

/// Reads all contents, and stores again what cannot be read where the volume still has it.
fn mend(
    args: &Args,
    stage: &Stage,
    (shipper, source): (&mut Shipper, &VolumeSource<'_>),
    begun: Instant,
) -> Result<u8, AnyError> {
    let wrong = |why: Error| failure(&args.url, &why);
    let store = Arc::clone(shipper.writer().store());
    let watch = Shown::new(stage, "reading", args.quiet);
    let catalogue = shipper.writer().catalogue();
    let found = check(&store, catalogue, &Seal::default(), true, &watch).map_err(wrong)?;
    drop(watch);
    let watch = Shown::new(stage, "storing", args.quiet);
    let (shipped, mended) = shipper.mend(source, &found.losses, &watch).map_err(wrong)?;
    let catalogue = shipper.writer().catalogue();
    let left = check_without(&store, catalogue, found.losses, &watch).map_err(wrong)?;
    drop(watch);
    if matches!(shipped, Shipped::Moment { .. }) {
        tell(args, stage, &shipped, store.asked().requests, begun)?;
    }
    let mut out = stage.out();
    for line in moments::lines(catalogue, &left.damaged) {
        writeln!(out, "{line}")?;
    }
    for problem in &left.problems {
        writeln!(out, "stays damaged: {problem}")?;
    }
    writeln!(
        out,
        "Stored again {} that the store had lost",
        human((mended.blocks + mended.own_blocks) * 4096)
    )?;
    if !left.damaged.is_empty() {
        writeln!(
            out,
            "The volume does not have the rest any longer; cairnfs backup prune removes these moments"
        )?;
    }
    out.flush()?;
    Ok(if left.damaged.is_empty() && left.problems.is_empty() {
        0
    } else {
        LEFT
    })
}

/// Says what was stored.
fn tell(
    args: &Args,
    stage: &Stage,
    shipped: &Shipped,
    requests: u64,
    begun: Instant,
) -> Result<(), AnyError> {
    if args.json {
        return stage.json(&summary(shipped, requests, begun));
    }
    if args.quiet {
        return Ok(());
    }
    let mut out = stage.out();
    match shipped {
        Shipped::Unchanged => writeln!(out, "Nothing has changed since the last backup")?,
        Shipped::Moment {
            moment,
            is_whole,
            blocks,
            bytes,
        } => writeln!(
            out,
            "Stored moment {} of {}: {} {}, {} in {}, {}",
            moment.number,
            local_time(moment.time().into(), stage.zone()),
            human(blocks * 4096),
            if *is_whole {
                "(everything)"
            } else {
                "that had changed"
            },
            human(*bytes),
            counted(requests, "request", "requests"),
            rate(*bytes, begun)
        )?,
    }
    Ok(out.flush()?)
}

fn summary(shipped: &Shipped, requests: u64, begun: Instant) -> Summary {
    let seconds = begun.elapsed().as_secs_f64();
    match shipped {
        Shipped::Unchanged => Summary {
            requests,
            seconds,
            ..Summary::default()
        },
        Shipped::Moment {
            moment,
            is_whole,
            blocks,
            bytes,
        } => Summary {
            stored: true,
            moment: Some(moment.number),
            checkpoint: Some(moment.checkpoint.clone()),
            whole: *is_whole,
            blocks: *blocks,
            bytes: *bytes,
            requests,
            seconds,
        },
    }
}
