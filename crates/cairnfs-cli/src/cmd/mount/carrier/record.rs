//! What became of the moments of a mount, for `cairnfs stats`.
//!
//! Written by the thread that ships, read by the answers to commands. Neither waits for the store.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cairnfs_backup::format::head::Moment;
use cairnfs_backup::{Error, Shipped, shown};
use cairnfs_fuse::status::{Backup, LastError};

/// The record of one mount's backup.
#[derive(Default)]
pub(super) struct Record(Mutex<Told>);

#[derive(Default)]
struct Told {
    backup: Backup,
    /// When the last attempt began that left everything in the store.
    whole: Option<Instant>,
}

impl Record {
    /// Nothing was stored yet.
    pub fn of(url: &str) -> Self {
        let record = Self::default();
        record.told().backup.url = shown(url);
        record
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt has succeeded; `newest` is the newest moment since then. It has everything that there was
    /// at `whole`.
    pub fn stored(&self, whole: Option<Instant>, shipped: &Shipped, newest: Option<&Moment>) {
        let mut told = self.told();
        told.whole = whole.or(told.whole);
        let backup = &mut told.backup;
        backup.failing = false;
        backup.moment = newest.map(|moment| moment.number);
        backup.time = newest.map(|moment| seconds(moment.time()));
        if let Shipped::Moment { bytes, .. } = shipped {
            backup.moments += 1;
            backup.bytes = backup.bytes.saturating_add(*bytes);
        }
    }

    /// An attempt has failed; the last one if it `ended` the backup.
    pub fn failed(&self, why: &Error, ended: bool) {
        let backup = &mut self.told().backup;
        backup.failures += 1;
        backup.failing = true;
        backup.ended = ended;
        backup.last_error = Some(last_error(why));
    }

    /// Moments were removed.
    pub fn removed(&self, moments: u64) {
        self.told().backup.removed += moments;
    }

    /// What there was to do for a small backup was done.
    pub fn cared(&self) {
        self.told().backup.care_failing = false;
    }

    /// What is not needed could not be removed, or layers not be merged.
    pub fn care_failed(&self, why: &Error) {
        let backup = &mut self.told().backup;
        backup.care_failures += 1;
        backup.care_failing = true;
        backup.last_care_error = Some(last_error(why));
    }

    /// The text of the last failure.
    pub fn last_error(&self) -> Option<String> {
        let told = self.told();
        told.backup
            .last_error
            .as_ref()
            .map(|last| last.text.clone())
    }

    /// As it is now.
    pub fn now(&self) -> Backup {
        let told = self.told();
        let mut backup = told.backup.clone();
        backup.age = told.whole.map(|whole| whole.elapsed().as_secs());
        backup
    }
}

fn last_error(why: &Error) -> LastError {
    LastError {
        kind: "backup".into(),
        time: seconds(SystemTime::now()),
        text: why.to_string(),
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}
