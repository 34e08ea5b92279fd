//! What keeps the backup of a mount small: moments are removed by rules, layers merged, waste deleted.
//!
//! The thread that ships removes moments, which is one head, and hands everything else to a thread of its
//! own, one job at a time. So no moment waits for a merge or for deletions, and none is stored later because
//! of a failure here; that is logged and shown, and tried again after a pause.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cairnfs_backup::{Done, Error, Rules, Shipper};
use cairnfs_core::refs::local_zone;
use cairnfs_fuse::MountOptions;

use super::{Order, Orders, UntilLast, caught};

/// Moments that are stored before it is looked again which ones go.
const MOMENTS: u32 = 64;
/// The longest time before it is looked again, if at least one was stored.
const LONGEST: Duration = Duration::from_secs(3600);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(60);

/// The rules that the options of a mount name.
///
/// # Errors
/// A text that names the word and what is wrong with it.
pub(super) fn rules(options: &MountOptions) -> Result<Rules, String> {
    let mut rules = Rules::default();
    for word in &options.backup_keep {
        let added = rules.add(word);
        added.map_err(|why| format!("mount option \"backup-keep-{word}\": {why}"))?;
    }
    Ok(rules)
}

/// The maintenance of one backup, in the thread that ships.
pub(super) struct Maintenance {
    orders: Arc<Orders>,
    url: String,
    rules: Rules,
    grace: Duration,
    /// Moments that were stored since it was looked which ones go, and when that was.
    stored: u32,
    looked: Option<Instant>,
    /// The job beside the shipments.
    job: Option<JoinHandle<()>>,
    /// Nothing is tried before.
    not_before: Option<Instant>,
}

impl Maintenance {
    /// Of the backup that the options name; `url` is shown.
    pub fn new(orders: &Arc<Orders>, url: &str, options: &MountOptions) -> Self {
        Self {
            orders: Arc::clone(orders),
            url: url.to_owned(),
            // They were read before the mount; nothing is removed by any that cannot be read.
            rules: rules(options).unwrap_or(Rules::All),
            grace: options.backup_grace(),
            stored: 0,
            looked: None,
            job: None,
            not_before: None,
        }
    }

    /// A moment was stored.
    pub fn stored(&mut self) {
        self.stored = self.stored.saturating_add(1);
    }

    /// Does, or begins, what is due.
    pub fn look_after(&mut self, shipper: &mut Shipper) {
        if self.not_before.is_some_and(|until| Instant::now() < until) {
            return;
        }
        if self.is_due() {
            let removed = self.remove(shipper).map(drop);
            self.note(removed);
        }
        self.begin_job(shipper);
    }

    fn is_due(&self) -> bool {
        let looked = self.looked.map(|looked| looked.elapsed());
        looked.is_none_or(|age| self.stored >= MOMENTS || (self.stored > 0 && age >= LONGEST))
    }

    /// Removes the moments that the rules do not keep; returns whether there were any.
    ///
    /// # Errors
    /// Another writer has begun, or the store fails.
    pub fn remove(&mut self, shipper: &mut Shipper) -> cairnfs_backup::Result<bool> {
        let removed = shipper.thin(&self.rules, &local_zone())?;
        (self.stored, self.looked) = (0, Some(Instant::now()));
        if removed > 0 {
            tracing::debug!("{}: removed {removed} moments", self.url);
            self.orders.record.removed(removed);
        }
        Ok(removed > 0)
    }

    fn begin_job(&mut self, shipper: &mut Shipper) {
        if self.job.is_some() {
            return;
        }
        match shipper.next_job(self.grace) {
            Ok(None) => {}
            Ok(Some(job)) => {
                let orders = Arc::clone(&self.orders);
                self.spawn(move || job.run(&UntilLast(&orders.ending)));
            }
            failed => self.note(failed.map(drop)),
        }
    }

    /// Does a job, which ends early for a last moment, and tells what became of it, also if it panics.
    fn spawn(&mut self, job: impl FnOnce() -> cairnfs_backup::Result<Done> + Send + 'static) {
        let to = self.orders.to.clone();
        let work = move || {
            let done = caught("a thread of its maintenance has panicked", job);
            // Who takes it may have ended.
            let _ = to.send(Order::Done(Box::new(done)));
        };
        let thread = thread::Builder::new().name("cairnfs-upkeep".into());
        match thread.spawn(work) {
            Ok(thread) => self.job = Some(thread),
            Err(why) => self.note(Err(Error::Host {
                what: "threads",
                source: Arc::new(why),
            })),
        }
    }

    /// The job has ended; takes over what it has done, and begins the next one.
    pub fn job_done(&mut self, done: cairnfs_backup::Result<Done>, shipper: Option<&mut Shipper>) {
        self.join();
        let Some(shipper) = shipper else {
            if done.is_err() {
                self.note(done.map(drop));
            }
            return;
        };
        let taken = done.and_then(|done| shipper.job_done(done));
        let goes_on = taken.is_ok();
        self.note(taken);
        if goes_on {
            self.begin_job(shipper);
        }
    }

    fn note(&mut self, result: cairnfs_backup::Result<()>) {
        match result {
            Ok(()) => self.orders.record.cared(),
            // Another writer has begun, such as a prune from the command line. The next
            // shipment decides what that means.
            Err(Error::Interrupted | Error::Lost { .. } | Error::Unclear { .. }) => {}
            Err(why) => {
                tracing::warn!("{}: the backup is not kept small: {why}", self.url);
                self.orders.record.care_failed(&why);
                self.not_before = Instant::now().checked_add(PAUSE);
            }
        }
    }

    fn join(&mut self) {
        if let Some(job) = self.job.take() {
            // Its panics are caught.
            let _ = job.join();
        }
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::orders;
    use super::*;

    #[test]
    fn a_panic_of_a_job_is_shown_and_another_job_can_follow() {
        let (orders, taken) = orders();
        let mut maintenance = Maintenance::new(&orders, "url", &MountOptions::default());
        for failures in 1..3 {
            maintenance.spawn(|| panic!("on purpose"));
            let Ok(Order::Done(done)) = taken.recv_timeout(Duration::from_secs(60)) else {
                panic!("nothing was told");
            };
            maintenance.job_done(*done, None);
            assert!(maintenance.job.is_none());
            let now = orders.record.now();
            assert!(now.care_failing && !now.failing);
            assert_eq!(now.care_failures, failures);
            let text = now.last_care_error.unwrap().text;
            assert!(text.contains("has panicked: on purpose"), "{text}");
        }
    }
}
