//! What became of the moments of a mount, for `cairnfs stats`.
//!
//! Written by the thread that ships, read by the answers to commands. Neither waits for the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cairnfs_backup::format::head::Moment;
use cairnfs_backup::{Error, Shipped, Store, Waiting, shown};
use cairnfs_fuse::status::{Backup, InFlight, LastError};

/// The least and the most time for which a request may have no answer before that counts as a problem; between
/// them it is the interval.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

/// The record of one mount's backup.
#[derive(Default)]
pub(super) struct Record(Mutex<Told>);

#[derive(Default)]
struct Told {
    backup: Backup,
    /// When the last attempt began that left everything in the store.
    whole: Option<Instant>,
    /// When the attempt began that goes on.
    attempt: Option<Instant>,
    /// What the thread waits for other than requests of the store, and since when.
    step: Option<(&'static str, Instant)>,
    /// The store, once it was opened.
    store: Weak<Store>,
    /// For how long a request may have no answer.
    patience: Duration,
}

impl Record {
    /// Nothing was stored yet.
    pub fn of(url: &str, interval: Duration) -> Self {
        let record = Self::default();
        let mut told = record.told();
        told.backup.url = shown(url);
        told.patience = interval.clamp(PATIENCE.0, PATIENCE.1);
        drop(told);
        record
    }

    /// An attempt begins.
    pub fn begins(&self) {
        self.told().attempt = Some(Instant::now());
    }

    /// No attempt goes on.
    pub fn ends(&self) {
        self.told().attempt = None;
    }

    /// Does something that may wait for others, which is told meanwhile.
    pub fn during<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        self.told().step = Some((what, Instant::now()));
        let done = work();
        self.told().step = None;
        done
    }

    /// Requests of this store are told.
    pub fn uses(&self, store: &Arc<Store>) {
        self.told().store = Arc::downgrade(store);
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
        backup.attempt = told.attempt.map(|begun| begun.elapsed().as_secs());
        backup.in_flight = told.waiting().map(|waiting| InFlight {
            overdue: waiting.since.elapsed() >= told.patience,
            seconds: waiting.since.elapsed().as_secs(),
            what: waiting.what,
            requests: waiting.requests,
        });
        backup
    }
}

impl Told {
    /// What has no answer for the longest time.
    fn waiting(&self) -> Option<Waiting> {
        let step = self.step.map(|(what, since)| Waiting {
            what: what.to_owned(),
            since,
            requests: 1,
        });
        let request = self.store.upgrade().and_then(|store| store.waiting());
        let all = [step, request].into_iter().flatten();
        all.min_by_key(|waiting| waiting.since)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_told_with_its_time_and_is_overdue_only_then() {
        let record = Record::of("b", Duration::ZERO);
        assert_eq!(record.told().patience, PATIENCE.0);
        let longest = Record::of("b", Duration::from_secs(86_400));
        assert_eq!(longest.told().patience, PATIENCE.1);
        assert_eq!((record.now().attempt, record.now().in_flight), (None, None));
        record.begins();
        let told = record.during("open it", || {
            let first = record.now().in_flight.unwrap();
            record.told().patience = Duration::ZERO;
            (first, record.now().in_flight.unwrap())
        });
        assert_eq!((told.0.what.as_str(), told.0.requests), ("open it", 1));
        assert!(!told.0.overdue && told.1.overdue);
        assert_eq!(
            (record.now().attempt, record.now().in_flight),
            (Some(0), None)
        );
        record.ends();
        assert_eq!(record.now().attempt, None);
    }
}
