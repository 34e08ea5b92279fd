//! What must hold for any image: it is checked, opened, read and used, and every step returns
//! either a result or an error that reports damage.
//!
//! The caller catches panics and measures memory.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options, Pressure};
use cairnfs::{Error, Result};
use cairnfs_check::{CheckOptions, Report, check};

use crate::image::{Bounded, Image};
use crate::usage::exercise;
use crate::walk::{Seen, walk};

/// The result for an image; the first variant that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The volume does not open.
    Refused,
    /// The volume opens, and reading or using some of it is an error.
    ReadError,
    /// Only the offline check has a finding.
    Found,
    /// There is no error and no finding.
    Harmless,
}

/// What happened to an image.
#[derive(Debug)]
pub struct Outcome {
    /// The result in one word.
    pub verdict: Verdict,
    /// The codes of the check's findings; none if the check refused the image.
    pub codes: Option<Vec<&'static str>>,
    /// What a reader sees: path and hash for each path.
    pub tree: Vec<(String, u64)>,
}

/// A violation of what must hold.
#[derive(Debug)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

type Checked<T> = std::result::Result<T, Broken>;

/// A way to open a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Read-only, with memory for the whole log.
    Read,
    /// Read-only, with little memory for the log: it is merged into a temporary file.
    ReadMerged,
    /// Writable.
    Write,
}

impl Way {
    fn opening(self) -> &'static str {
        match self {
            Way::Read => "opening read-only",
            Way::ReadMerged => "opening read-only with little memory",
            Way::Write => "opening",
        }
    }
}

/// Memory for a part of the keys in the logs of the bases.
const LITTLE: Pressure = Pressure::steps(2000, 8);

fn options(way: Way) -> Options {
    Options {
        read_only: way != Way::Write,
        pressure: (way == Way::ReadMerged).then_some(LITTLE),
        cache_budget: 2 << 20,
        durability_interval: None,
        discard: true,
        workers: false,
        ..Options::default()
    }
}

/// Checks, opens, reads and uses an image.
///
/// # Errors
/// A step that hides damage or does not end; a check without findings on an image that the engine
/// finds damaged or leaves damaged.
pub fn survives(image: &Image) -> Checked<Outcome> {
    let report = checked(image)?;
    let clean = matches!(&report, Ok(report) if report.is_clean());
    let read = read_only(image, Way::Read)?;
    let merged = read_only(image, Way::ReadMerged)?;
    let used = read_write(image)?;
    let verdict = match (&read, &used) {
        (Err(_), _) | (_, Err(_)) => Verdict::Refused,
        (Ok(seen), Ok(used)) if !seen.errors.is_empty() || used.damage.is_some() => {
            Verdict::ReadError
        }
        _ if !clean => Verdict::Found,
        _ => Verdict::Harmless,
    };
    if clean {
        agree(&read, &merged, &used)?;
    }
    let codes = report.ok().map(|report| {
        let mut codes: Vec<_> = report.findings.iter().map(|f| f.code).collect();
        codes.dedup();
        codes
    });
    Ok(Outcome {
        verdict,
        codes,
        tree: read.map(|seen| seen.lines).unwrap_or_default(),
    })
}

/// If the check has no finding, all ways to open the volume must succeed and agree.
fn agree(read: &Result<Seen>, merged: &Result<Seen>, used: &Result<Used>) -> Checked<()> {
    let broken = |what: String| Err(Broken(format!("the check finds nothing, but {what}")));
    let fails = |way: Way, e: &Error| broken(format!("{} fails: {e}", way.opening()));
    let (read, merged, used) = match (read, merged, used) {
        (Ok(read), Ok(merged), Ok(used)) => (read, merged, used),
        (Err(e), _, _) => return fails(Way::Read, e),
        (_, Err(e), _) => return fails(Way::ReadMerged, e),
        (_, _, Err(e)) => return fails(Way::Write, e),
    };
    if merged.lines != read.lines {
        return broken("it shows another tree once its log was merged into a file".into());
    }
    if let Some((path, e)) = read.errors.first() {
        return broken(format!("reading {path:?} fails: {e}"));
    }
    if let Some(e) = &used.damage {
        return broken(format!("using it fails: {e}"));
    }
    if read.lines != used.before {
        return broken("it shows another tree once it was opened for changes".into());
    }
    match checked(&used.after)? {
        Ok(report) if report.is_clean() => Ok(()),
        Ok(report) => broken(format!("after some use it does: {:?}", report.findings)),
        Err(e) => broken(format!("after some use it fails: {e}")),
    }
}

/// Checks an image including its data.
fn checked(image: &Image) -> Checked<Result<Report>> {
    let device = Bounded::new(image);
    let report = check(&*device, &CheckOptions { data: true }, &mut |_| {});
    ended(&device, "the check")?;
    if let Err(e) = &report {
        check_error(e, "the check")?;
    }
    Ok(report)
}

/// Opens a volume. It is not dropped after a panic, because closing it could panic again.
fn open(device: &Arc<Bounded>, way: Way) -> Result<ManuallyDrop<Arc<FileSystem>>> {
    FileSystem::open_device(device.clone(), &options(way)).map(ManuallyDrop::new)
}

fn read_only(image: &Image, way: Way) -> Checked<Result<Seen>> {
    let device = Bounded::new(image);
    let fs = match open(&device, way) {
        Ok(fs) => fs,
        Err(e) => {
            ended(&device, way.opening())?;
            check_error(&e, way.opening())?;
            return not_written(&device, image).map(|()| Err(e));
        }
    };
    let seen = walk(&fs);
    fs.statfs();
    // A truncated device is read as far as it goes.
    let cut_off = fs.info().size > image.blocks() * cairnfs_disk::format::BLOCK_SIZE as u64;
    drop(ManuallyDrop::into_inner(fs));
    ended(&device, "reading")?;
    for (path, e) in &seen.errors {
        if cut_off && matches!(e.cause(), Error::Io { .. }) {
            continue;
        }
        let what = format!("reading {path:?}");
        check_error(e, &what)?;
        // An entry may be dangling, and a hash may have no attribute; any other error must report
        // damage.
        if !is_damage(e) && !matches!(e, Error::NotFound | Error::NoAttribute) {
            return Err(Broken(format!("{what}: damage without a name: {e}")));
        }
    }
    not_written(&device, image).map(|()| Ok(seen))
}

fn not_written(device: &Bounded, image: &Image) -> Checked<()> {
    if device.image().differs_from(image) {
        Err(Broken("opened read-only, it was written to".into()))
    } else {
        Ok(())
    }
}

/// The result of changing a volume.
struct Used {
    /// The tree before the first change.
    before: Vec<(String, u64)>,
    /// The first error that reports damage.
    damage: Option<Error>,
    /// The image after all changes.
    after: Image,
}

/// Frees the space of dropped roots.
fn free_dropped(fs: &FileSystem) -> Result<()> {
    while fs.drop_step()? {}
    Ok(())
}

fn read_write(image: &Image) -> Checked<Result<Used>> {
    let device = Bounded::new(image);
    let fs = match open(&device, Way::Write) {
        Ok(fs) => fs,
        Err(e) => {
            ended(&device, Way::Write.opening())?;
            check_error(&e, Way::Write.opening())?;
            return Ok(Err(e));
        }
    };
    let seen = walk(&fs);
    let mut errors: Vec<_> = seen.errors.into_iter().map(|(_, e)| e).collect();
    errors.extend(exercise(&fs));
    errors.extend(free_dropped(&fs).err());
    if let Some(failure) = fs.failure() {
        errors.push(Error::Stopped(failure.into()));
    }
    errors.extend(fs.close().err());
    drop(ManuallyDrop::into_inner(fs));
    ended(&device, "using")?;
    for e in &errors {
        check_error(e, "using")?;
    }
    Ok(Ok(Used {
        before: seen.lines,
        damage: errors.into_iter().find(is_damage),
        after: device.image(),
    }))
}

fn ended(device: &Bounded, what: &str) -> Checked<()> {
    if device.exceeded() {
        return Err(Broken(format!("{what} reads without end")));
    }
    Ok(())
}

fn is_damage(e: &Error) -> bool {
    matches!(e, Error::Corrupt(_) | Error::Stopped(_))
}

/// Checks that an error reports damage, or may occur on a sound volume.
fn check_error(e: &Error, what: &str) -> Checked<()> {
    match e.cause() {
        Error::Corrupt(c) if c.expected.is_empty() || c.found.is_empty() => {
            Err(Broken(format!("{what}: damage without a name: {e}")))
        }
        Error::Stopped(cause) => check_error(cause, what),
        Error::Io { .. } | Error::Open { .. } | Error::InUse(_) => {
            Err(Broken(format!("{what} asks the device for too much: {e}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bases;

    #[test]
    fn little_memory_makes_read_only_open_merge_the_log() {
        let written = |image: &Image| {
            let fs = open(&Bounded::new(image), Way::ReadMerged).unwrap();
            let counters = fs.counters();
            counters
                .iter()
                .find(|(n, _)| *n == "device_writes")
                .unwrap()
                .1
        };
        let merged = bases().iter().filter(|b| written(&b.image) > 0).count();
        assert_eq!(merged, 4);
    }
}
