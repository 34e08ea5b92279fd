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

    /// An attempt that began at `begun` has succeeded; `newest` is the newest moment since then.
    pub fn stored(&self, begun: Instant, shipped: &Shipped, newest: Option<&Moment>) {
        let mut told = self.told();
        told.whole = Some(begun);
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
        backup.last_error = Some(LastError {
            kind: "backup".into(),
            time: seconds(SystemTime::now()),
            text: why.to_string(),
        });
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

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}
