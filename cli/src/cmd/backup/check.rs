//! `cairnfs backup check`: proves that everything that is kept is there and is what was stored, and that
//! a moment is a sound volume.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use cairnfs_backup::format::head::Moment;
use cairnfs_backup::{
    Cache, Error, Fetch, Image, MomentDevice, Report, check as check_store, restore,
};
use cairnfs_core::refs::local_zone;
use cairnfs_daemon::failure::{AnyError, Explain, Failure, unprinted};
use cairnfs_daemon::shell::word;
use cairnfs_disk::device::{Access, Device, FileDevice};
use serde::Serialize;

use super::{AtArgs, KeyArgs, Opened, Shown, failure, interruption, moments, unread, warn};
use crate::cmd::check;
use crate::output::{self, counted, local_time};
use crate::size::human;
use crate::stage::Stage;
use crate::tree::Unreadable as Range;

/// Exit code: damage was found.
const ERRORS: u8 = 4;
/// Exit code: the backup could not be checked.
const OPERATIONAL: u8 = 8;
/// Bytes of the temporary file for what was read.
const CACHE: u64 = 1 << 30;

const EXAMPLES: &str = "\
Examples:
  cairnfs backup check file:///mnt/other/disk
  cairnfs backup check s3://bucket/disk --quick    heads, indexes, sizes of objects
  cairnfs backup check s3://bucket/disk --drill    also restores a moment, whichever
  cairnfs backup check s3://bucket/disk --at 10:30

Reads all objects and compares every hash, down from the newest head; then the
newest moment (or that of --at) is checked as `cairnfs check --data` does. With
--drill a moment drawn by lot is restored into a temporary file in TMPDIR and
checked there. Without the key of an encrypted backup hashes are compared, but
no moment is checked, which a warning says; --drill and --at are refused.
If contents are damaged or missing, the moments are named that this takes, and
those that it spares; and of the moment that is looked at each file that cannot
be read, with the ranges that are lost. `cairnfs backup repair URL --from VOLUME`
stores again what the volume still has.

Exit codes, as in fsck(8): 0 no errors, 4 errors found, 8 the backup could not be
checked, 2 wrong arguments.";

/// Check that everything that is kept is there, and is what was stored
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the backup is
    url: String,
    /// Do not read contents
    #[arg(long, conflicts_with_all = ["drill", "at"])]
    quick: bool,
    /// Restore a moment drawn by lot, and check that
    #[arg(long, conflicts_with = "at")]
    drill: bool,
    #[command(flatten)]
    at: AtArgs,
    #[command(flatten)]
    key: KeyArgs,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    clean: bool,
    problems: &'a [String],
    /// The first and the last moment that cannot be reached, by their numbers.
    unreachable: Option<(u64, u64)>,
    heads: u64,
    moments: u64,
    layers: u64,
    objects: u64,
    bytes: u64,
    garbage_objects: u64,
    garbage_bytes: u64,
    /// The moment that was checked as a volume.
    checked_moment: Option<u64>,
    /// The moments of which not everything can be read.
    damaged_moments: Vec<moments::Json>,
    /// Damage that takes nothing of any moment.
    covered: &'a [String],
    /// Of the moment that was looked at: ranges of files that cannot be read; the first 10,000.
    unreadable: Vec<Range>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, AnyError> {
    let wrong = |e: &Error| match e {
        Error::Interrupted => failure(&args.url, e),
        _ if e.is_damage() => failure(&args.url, e).code(ERRORS),
        _ if e.is_full_here() => failure(&args.url, e)
            .hint("TMPDIR names a directory with space for the contents of the moment")
            .code(OPERATIONAL),
        _ => failure(&args.url, e).code(OPERATIONAL),
    };
    let stage = Stage::own()?;
    let opened = Opened::open(&args.url, &args.key, &interruption(&stage)?);
    let opened = opened.map_err(|f| f.code(OPERATIONAL))?;
    let opens = opened.seal.opens();
    if !opens && (args.drill || args.at.is_given()) {
        return Err(failure(&args.url, &Error::Sealed).code(OPERATIONAL).into());
    }
    let watch = Shown::new(&stage, "reading", args.quiet || args.json);
    let report = check_store(
        &opened.store,
        &opened.catalogue,
        &opened.seal,
        !args.quick,
        &watch,
    );
    let mut report = report.map_err(|e| wrong(&e))?;
    drop(watch);
    let (mut checked, mut ranges) = (None, Vec::new());
    if !args.quick && !opens {
        warn(&format!(
            "{}: hashes were compared, but no moment was checked as a volume: that needs --passphrase-file or \
             --identity",
            args.url
        ));
    }
    if !args.quick && opens && !opened.catalogue.moments().is_empty() {
        let moment = choose(args, &opened)?;
        let damaged = report.damaged.iter().find(|it| it.number == moment.number);
        let found = match damaged.map(|damaged| damaged.blocks) {
            None => check_moment(args, &opened, &moment, &stage),
            // What is wrong with it was told.
            Some(None) => Ok(Vec::new()),
            Some(Some(_)) => read_files(args, &opened, &moment, &mut ranges)?,
        };
        match found {
            Ok(found) => report.problems.extend(found),
            // What is damaged already cannot be read as a volume.
            Err(e) if e.is_damage() || !report.problems.is_empty() => {
                report.problems.push(e.to_string());
            }
            Err(e) => return Err(wrong(&e).into()),
        }
        checked = Some(moment);
    }
    let lost = opened.catalogue.unreachable();
    let told = tell(args, &opened, &report, (lost, ranges), checked.as_ref());
    told.map_err(|e| unprinted(e, OPERATIONAL))?;
    Ok(ExitCode::from(if report.problems.is_empty() {
        0
    } else {
        ERRORS
    }))
}

/// Which moment is checked as a volume.
fn choose(args: &Args, opened: &Opened) -> Result<Moment, Failure> {
    let moments = opened.catalogue.moments();
    if args.drill {
        let lot = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let lot = lot.map_or(0, |now| now.subsec_micros()) as usize;
        if let Some(moment) = moments.get(lot % moments.len().max(1)) {
            return Ok(moment.clone());
        }
    }
    args.at.moment(opened, &args.url)
}

/// Checks the image of a moment; returns what was found.
fn check_moment(
    args: &Args,
    opened: &Opened,
    moment: &Moment,
    stage: &Stage,
) -> Result<Vec<String>, Error> {
    let (store, seal) = (Arc::clone(&opened.store), Arc::clone(&opened.seal));
    let image = Image::open(store, seal, &opened.catalogue, moment)?;
    if !args.drill {
        let device = MomentDevice::new(image, Cache::new(CACHE, None)?, Fetch::Object);
        return check_device(args, &device);
    }
    let host = |source: io::Error| Error::Engine(cairnfs::Error::from(source));
    let file = tempfile::NamedTempFile::new().map_err(host)?;
    let watch = Shown::new(stage, "restoring", args.quiet || args.json);
    restore(&image, file.as_file(), &watch)?;
    drop(watch);
    let device = FileDevice::open(file.path(), Access::ReadOnly)?;
    check_device(args, &device)
}

/// Reads the files of a moment of which blocks are missing. What cannot be read of them is told as it is
/// met; returns what is wrong.
///
/// # Errors
/// The command was interrupted.
fn read_files(
    args: &Args,
    opened: &Opened,
    moment: &Moment,
    ranges: &mut Vec<Range>,
) -> Result<Result<Vec<String>, Error>, Failure> {
    let (store, seal) = (Arc::clone(&opened.store), Arc::clone(&opened.seal));
    let image = Image::open(store, seal, &opened.catalogue, moment);
    let device = image.and_then(|image| {
        let cache = Cache::new(CACHE, None)?;
        Ok(MomentDevice::new(image, cache, Fetch::Object))
    });
    let device = match device {
        Ok(device) => Arc::new(device),
        Err(why) => return Ok(Err(why)),
    };
    let name = PathBuf::from(format!("moment {}", moment.number));
    let unread = match unread::read_all(device, &name, args.quiet || args.json)? {
        Ok(unread) => unread,
        Err(why) => {
            return Ok(Ok(vec![format!(
                "no file of moment {} can be read: {why}",
                moment.number
            )]));
        }
    };
    let mut found = unread.volume;
    if unread.files.failed > 0 {
        found.push(format!(
            "{} of moment {} cannot be read, or not wholly",
            counted(
                unread.files.failed,
                "file or directory",
                "files or directories"
            ),
            moment.number
        ));
    }
    *ranges = unread.files.unreadable;
    Ok(Ok(found))
}

fn check_device(args: &Args, device: &dyn Device) -> Result<Vec<String>, Error> {
    let report = check::check_device(device, true, args.quiet || args.json)?;
    let findings = report.findings.iter();
    Ok(findings
        .map(|f| format!("{}: {}", f.code, f.message))
        .collect())
}

fn tell(
    args: &Args,
    opened: &Opened,
    report: &Report,
    (unreachable, unreadable): (Option<(u64, u64)>, Vec<Range>),
    checked: Option<&Moment>,
) -> Result<(), AnyError> {
    if args.json {
        return output::json(&Json {
            clean: report.problems.is_empty(),
            problems: &report.problems,
            unreachable,
            heads: report.heads,
            moments: report.moments,
            layers: report.layers,
            objects: report.objects,
            bytes: report.bytes,
            garbage_objects: report.garbage_objects,
            garbage_bytes: report.garbage_bytes,
            checked_moment: checked.map(|moment| moment.number),
            damaged_moments: moments::json(&report.damaged),
            covered: &report.covered,
            unreadable,
        });
    }
    let mut out = io::stdout().lock();
    let mut write = || -> io::Result<()> {
        for problem in &report.problems {
            writeln!(out, "{problem}")?;
        }
        for covered in &report.covered {
            writeln!(out, "no moment needs what is lost here: {covered}")?;
        }
        let state = match report.problems.len() as u64 {
            0 => "clean".into(),
            n => counted(n, "error", "errors"),
        };
        writeln!(
            out,
            "{}: {state}; {}, {} in {}",
            args.url,
            counted(report.moments, "moment", "moments"),
            human(report.bytes),
            counted(report.objects, "object", "objects")
        )?;
        for line in moments::lines(&opened.catalogue, &report.damaged) {
            writeln!(out, "{line}")?;
        }
        if !report.damaged.is_empty() {
            writeln!(
                out,
                "what a volume still has is stored again by: cairnfs backup repair {} --from VOLUME",
                word(&args.url)
            )?;
        }
        if let Some(moment) = checked {
            let time = local_time(moment.time().into(), &local_zone());
            writeln!(
                out,
                "moment {} of {time} was checked as a volume",
                moment.number
            )?;
        }
        if report.garbage_objects > 0 {
            writeln!(
                out,
                "{} that nothing needs ({}): cairnfs backup prune {}",
                counted(report.garbage_objects, "object", "objects"),
                human(report.garbage_bytes),
                word(&args.url)
            )?;
        }
        Ok(())
    };
    write().explain("standard output").map_err(AnyError::from)
}
