//! The offline check of a volume: reads everything, changes nothing, and says what is wrong.
//!
//! It knows the format as `docs/format.md` tells it and shares no code with the engine but the
//! pure codecs of [`cairnfs::format`]: a mistake of the engine's index, journal or allocator is
//! not repeated here. All bytes are hostile: the check never panics, and what it reads bounds
//! neither its loops nor its memory. It goes on after a finding, and leaves out the findings that
//! an earlier one explains; [`Report::unchecked`] tells what could not be checked for that.
//!
//! The steps, one module each: superblock (`volume`), log (`log`, `overlay`), trees (`roots`,
//! `tree`), items of each object (`structure`, `object`, `directory`), values that attributes share
//! (`shared`), links between objects (`links`), bitmaps (`space`), and on request the files' contents (`data`).
//! At the end `paths` names the inodes of what was found.

mod blocks;
pub mod codes;
mod data;
mod directory;
mod holes;
mod links;
mod log;
mod object;
mod overlay;
mod paths;
mod report;
mod roots;
mod shared;
mod space;
mod structure;
mod tree;
mod volume;

use cairnfs::device::Device;
use cairnfs::error::Result;

pub use report::{Finding, MAX_FINDINGS, Report, Stats};

use report::Ledger;
use structure::Structure;
use volume::Volume;

/// What to check.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// Read the contents of all files too and verify their checksums.
    pub data: bool,
}

/// How far a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// One of `superblock`, `log`, `index`, `structure`, `space`, `data`, in this order.
    pub phase: &'static str,
    /// Units done: log blocks, index nodes, inodes, groups, data blocks.
    pub done: u64,
    /// Units in all; 0 if not known before.
    pub total: u64,
}

/// Checks the volume on `device`, which nobody may change meanwhile.
///
/// # Errors
/// The device's failures; [`cairnfs::Error::NotAVolume`] if neither superblock slot is valid;
/// [`cairnfs::Error::Incompatible`] if the volume has features that this version does not know.
/// Damage is no error but a [`Finding`].
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
    let Some(replay) = log::read(&volume, ledger)? else {
        return Ok(());
    };
    let mut structure = Structure::new(&volume, &replay);
    let main = roots::walk(&volume, &replay, &mut structure, ledger)?;
    let (claims, links) = links::check(structure, ledger);
    space::check(&volume, &claims, ledger)?;
    let Some(main) = main else {
        return Ok(());
    };
    if options.data {
        data::check(&volume, &replay, &main, ledger)?;
    }
    paths::name(&volume, &replay, &main, &links, ledger)
}
