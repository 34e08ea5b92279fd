//! Which moment of a backup is meant: the option `--at`, for all commands that take a moment.

use std::ffi::OsString;
use std::time::SystemTime;

use cairnfs::Time;
use cairnfs_backup::format::head::Moment;
use cairnfs_core::refs::{local_zone, time_named};
use cairnfs_daemon::failure::Failure;

use super::{Opened, failure};

/// Which moment is meant.
#[derive(Debug, Default, clap::Args)]
pub struct AtArgs {
    /// Which moment: the last one that is not later than a time (10:30, 2026-01-31, -5m), the one
    /// with this number (`cairnfs backup list`), or the newest one: now
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<String>,
}

impl AtArgs {
    /// Whether the option is given.
    pub fn is_given(&self) -> bool {
        self.at.is_some()
    }

    /// The option again, for another process.
    pub fn words(&self) -> impl Iterator<Item = OsString> {
        let words = self.at.iter();
        words.flat_map(|at| [OsString::from("--at"), at.into()])
    }

    /// The moment that is meant; the newest one without the option.
    ///
    /// # Errors
    /// What is given cannot be understood, or there is no such moment.
    pub fn moment(&self, opened: &Opened, url: &str) -> Result<Moment, Failure> {
        let catalogue = &opened.catalogue;
        let found = match self.at.as_deref() {
            None | Some("now" | "latest") => catalogue.moment_at(None),
            Some(at) => match number(at) {
                Some(number) => catalogue.moment_numbered(number),
                None => catalogue.moment_at(Some(time(at)?)),
            },
        };
        found.cloned().map_err(|e| failure(url, &e))
    }
}

/// No time consists of digits alone.
fn number(at: &str) -> Option<u64> {
    let is_number = at.chars().all(|c| c.is_ascii_digit());
    is_number.then(|| at.parse().ok()).flatten()
}

fn time(at: &str) -> Result<SystemTime, Failure> {
    let now = Time::from(SystemTime::now());
    let named = time_named(at, now, &local_zone());
    let named = named
        .map_err(|e| Failure::new(at, format_args!("{e}, the number of a moment, or now")).code(2));
    Ok(named?.into())
}
