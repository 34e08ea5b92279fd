//! The offline check of a volume: reads everything, changes nothing, and reports what is wrong.
//!
//! The check implements the format from `docs/format.md` and shares no code with the engine except
//! the pure codecs of [`cairnfs_disk::format`], the device and the error type, so a bug in the engine's
//! index, log or allocator is not repeated here. All input is treated as hostile: the check never
//! panics, and no value read from the device bounds a loop or an allocation. The check continues
//! after a finding, and suppresses findings that an earlier one explains; [`Report::unchecked`]
//! lists what could not be checked for that reason.
//!
//! The steps, one module each: superblock (`checked_volume`, `places`), log (`log`, `overlay`), the table of roots
//! (`root_table`); then for each root its tree (`tree`), the items of each object (`structure`, `object`,
//! `directory`), values that attributes share (`shared`), links between objects (`links`), a path
//! for each finding about an inode (`paths`), and on request the files' contents (`data`); at the
//! end the bitmaps (`space`).

mod births;
mod blocks;
mod checked;
mod checked_volume;
pub mod codes;
mod context;
mod data;
mod directory;
mod given_up;
mod holes;
mod links;
mod log;
mod object;
mod overlay;
mod parent;
mod paths;
mod places;
mod report;
mod root_table;
mod shared;
mod space;
mod structure;
mod tree;
mod visit;

use cairnfs_disk::device::Device;
use cairnfs_disk::error::Result;

pub use report::{Finding, MAX_FINDINGS, Report, Stats};

use checked_volume::Volume;
use report::Ledger;
use root_table::Roots;

/// What to check.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// Read the contents of all files too and verify their checksums.
    pub data: bool,
}

/// The progress of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The current phase: `superblock`, `log`, `index`, `structure`, `space` or `data`, in this
    /// order; the phases of the files of each snapshot precede those of the main root.
    pub phase: &'static str,
    /// Number of units done: log blocks, index nodes, inodes, groups or data blocks.
    pub done: u64,
    /// Total number of units; 0 if not known in advance.
    pub total: u64,
}

/// Checks the volume on `device`, which must not change during the check.
///
/// # Errors
/// I/O errors of the device; [`cairnfs_disk::Error::NotAVolume`] if neither superblock slot is valid and
/// there is no copy; [`cairnfs_disk::Error::FrontLost`] if there is none, but other parts of a volume;
/// [`cairnfs_disk::Error::Incompatible`] if the volume has features that this version does not know.
/// Damage is not an error but a [`Finding`].
pub fn check(
    device: &dyn Device,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let mut ledger = Ledger::new(progress);
    run(device, options, &mut ledger)?;
    Ok(ledger.into_report())
}

fn run(device: &dyn Device, options: &CheckOptions, ledger: &mut Ledger<'_>) -> Result<()> {
    let Some(volume) = Volume::open(device, ledger)? else {
        return Ok(());
    };
    let Some(mut log) = log::read(&volume, ledger)? else {
        return Ok(());
    };
    let mut roots = Roots::read(&volume, &log, ledger)?;
    roots.check_others(&mut log, options.data, ledger)?;
    let replay = log.take(roots.main_id());
    let first = ledger.findings().len();
    let links = roots.check_main(&replay, ledger)?;
    space::check(&volume, roots.claims(), ledger)?;
    let (Some(main), Some(links)) = (roots.main(), links) else {
        return Ok(());
    };
    if options.data {
        data::check(&volume, &replay, &main, ledger)?;
    }
    paths::name(&volume, &replay, &main, &links, first, ledger)
}
