//! The thread that ships: it stores a moment, waits for the interval or an order, and stores the next
//! one if anything has changed.
//!
//! Nobody waits for it unless he asks to. A failure is logged, and the next moment is tried later, with
//! longer pauses after failures in a row; only what cannot pass, such as another writer, ends it for
//! good. An order is answered by a moment that was begun after it came, and so is an fsync that waits for the
//! backup. Its maintenance follows after all answers. Uses the backup, the engine and the mounts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use cairnfs::Volume;
use cairnfs_backup::{
    Error, NewKey, Place, Shipped, Shipper, VolumeSource, WriterOptions, environment, shown,
};
use cairnfs_fuse::{MountOptions, Sessions};

use super::maintenance::Maintenance;
use super::{Order, Orders, Outcome, Stored, caught};
use crate::inside;
use crate::opening::OpenVolume;
use crate::reference::name_of;
use crate::writer::writer_name;

/// The longest pause after failures.
const LONGEST: Duration = Duration::from_secs(300);

/// What the thread works with.
pub(super) struct Work {
    open: Arc<OpenVolume>,
    sessions: Arc<Sessions>,
    path: PathBuf,
    url: String,
    /// The URL without credentials.
    shown: String,
    interval: Duration,
    recipient: Option<String>,
    orders: Arc<Orders>,
    maintenance: Maintenance,
    shipper: Option<Shipper>,
}

/// What one attempt is for.
#[derive(Default)]
struct Asked {
    /// Those that get an answer.
    answers: Vec<Sender<Outcome>>,
    /// Whether it is the last one.
    is_last: bool,
    /// Whether it has also what programs have written and not synced: not if only fsyncs wait for it.
    fetches: bool,
}

impl Asked {
    /// By the interval.
    fn by_itself() -> Self {
        Self {
            fetches: true,
            ..Self::default()
        }
    }

    fn add(&mut self, order: Order) {
        match order {
            Order::Now(answer) => {
                self.answers.push(answer);
                self.fetches = true;
            }
            Order::Last(answer) => {
                self.answers.push(answer);
                (self.is_last, self.fetches) = (true, true);
            }
            Order::End => self.is_last = true,
            Order::Wake | Order::Done(_) => {}
        }
    }
}

impl Work {
    pub fn new(
        orders: &Arc<Orders>,
        (open, path, sessions): (&Arc<OpenVolume>, &Path, &Arc<Sessions>),
        options: &MountOptions,
    ) -> Self {
        let url = options.backup.as_deref().unwrap_or_default();
        let maintenance = Maintenance::new(orders, &shown(url), options);
        Self {
            open: Arc::clone(open),
            sessions: Arc::clone(sessions),
            path: path.to_path_buf(),
            url: url.to_owned(),
            shown: shown(url),
            interval: options.backup_interval(),
            recipient: options.backup_recipient.clone(),
            orders: Arc::clone(orders),
            maintenance,
            shipper: None,
        }
    }

    pub fn run(mut self, orders: &Receiver<Order>) {
        let mut asked = Asked::by_itself();
        let mut pause = self.interval;
        loop {
            for order in orders.try_iter() {
                self.take(&mut asked, order);
            }
            let waits = self.orders.waits.clone();
            let mark = waits.as_ref().map_or(0, |waits| waits.mark());
            self.orders.record.begins();
            let outcome = caught("an attempt has panicked", || self.ship(asked.fetches));
            self.orders.record.ends();
            let goes_on = self.note(&outcome, &mut pause);
            if let Some(waits) = waits {
                waits.answer(mark, outcome.is_ok());
            }
            for answer in &asked.answers {
                // Who has gone meanwhile needs no answer.
                let _ = answer.send(outcome.clone());
            }
            if !goes_on || asked.is_last {
                return;
            }
            if let (Ok(_), Some(shipper)) = (&outcome, &mut self.shipper) {
                self.maintenance.look_after(shipper);
            }
            match self.wait(orders, pause) {
                Some(next) if next.is_last && next.answers.is_empty() => return,
                Some(next) => asked = next,
                None => return,
            }
        }
    }

    /// Adds an order to those of the next attempt, or takes over what a job has done.
    fn take(&mut self, asked: &mut Asked, order: Order) {
        match order {
            Order::Done(done) => self.maintenance.job_done(*done, self.shipper.as_mut()),
            other => asked.add(other),
        }
    }

    /// Waits for an order, or for the end of the pause; returns what the next attempt is for.
    fn wait(&mut self, orders: &Receiver<Order>, pause: Duration) -> Option<Asked> {
        let begun = Instant::now();
        loop {
            if self.orders.waits.as_ref().is_some_and(|waits| waits.any()) {
                return Some(Asked::default());
            }
            let mut asked = Asked::default();
            match orders.recv_timeout(pause.saturating_sub(begun.elapsed())) {
                Ok(order) => self.take(&mut asked, order),
                Err(RecvTimeoutError::Timeout) => return Some(Asked::by_itself()),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
            if asked.fetches || asked.is_last {
                return Some(asked);
            }
        }
    }

    /// Logs what became of an attempt, and sets the pause behind it; returns whether another one makes
    /// sense.
    fn note(&self, outcome: &Outcome, pause: &mut Duration) -> bool {
        match outcome {
            Ok(_) => {
                *pause = self.interval;
                true
            }
            Err(Error::Interrupted) => false,
            Err(why) if ends_for_good(why) => {
                self.orders.record.failed(why, true);
                tracing::error!("{}: the backup has ended: {why}", self.shown);
                false
            }
            Err(why) => {
                self.orders.record.failed(why, false);
                tracing::error!("{}: no moment was stored: {why}", self.shown);
                *pause = (*pause * 2).min(LONGEST.max(self.interval));
                true
            }
        }
    }

    fn ship(&mut self, fetches: bool) -> Outcome {
        let begun = Instant::now();
        let volume = Volume::from(self.open.get());
        let source = VolumeSource(&volume);
        let mut shipper = match self.shipper.take() {
            Some(shipper) => shipper,
            None => self.open_backup(&source)?,
        };
        let fetch = || fetches.then(|| self.fetch(&volume)).flatten();
        let what = "have the kernel send what programs have written";
        let lacking = self.orders.record.during(what, fetch);
        let shipped = self.ship_or_remove(&mut shipper, &source);
        let shipper = self.shipper.insert(shipper);
        let shipped = shipped?;
        if let Shipped::Moment { moment, bytes, .. } = &shipped {
            tracing::debug!("{}: moment {}, {bytes} bytes", self.shown, moment.number);
            self.maintenance.stored();
        }
        let newest = shipper.writer().catalogue().moments().last();
        let whole = fetches.then_some(begun);
        self.orders.record.stored(whole, &shipped, newest);
        Ok(Stored { lacking })
    }

    /// Stores a moment; if no further one can be named, others are removed before, as the rules say, and if
    /// the store has no space, what nothing needs.
    fn ship_or_remove(
        &mut self,
        shipper: &mut Shipper,
        source: &VolumeSource<'_>,
    ) -> cairnfs_backup::Result<Shipped> {
        match shipper.ship(source, &self.orders.ending) {
            Err(Error::Full) if self.maintenance.remove(shipper)? => {
                shipper.ship(source, &self.orders.ending)
            }
            Err(why) if why.is_full() && shipper.make_room()? => {
                shipper.ship(source, &self.orders.ending)
            }
            shipped => shipped,
        }
    }

    fn open_backup(&self, source: &VolumeSource<'_>) -> cairnfs_backup::Result<Shipper> {
        let ended = self.orders.ending.ended();
        let open = || {
            let is_own = |device: &str| self.sessions.serves(device);
            inside::refuse_within(&self.url, is_own, &ended)?;
            cairnfs_backup::open(&self.url, Place::Make, &environment(), &ended)
        };
        let store = Arc::new(self.orders.record.during("open the store", open)?);
        self.orders.record.uses(&store);
        let options = WriterOptions {
            name: writer_name(&self.path),
            new_key: self.recipient.clone().map(NewKey::Recipient),
            automatic: true,
            ..WriterOptions::default()
        };
        Shipper::open(store, source, options)
    }

    /// Makes the kernel send what programs have written. A mount that cannot be reached, such as one that
    /// is detached and in use, must not keep the rest of the volume out of the backup; why it was not,
    /// is returned.
    fn fetch(&self, volume: &Volume) -> Option<String> {
        let roots = volume.roots();
        let named = roots
            .iter()
            .filter(|root| root.writable && root.name.is_some());
        let mut lacking = None;
        for root in named {
            if let Err(why) = self.sessions.fetch(name_of(root)) {
                let why = format!("the moment may lack some writes: {why}");
                tracing::warn!("{}: {why}", self.shown);
                lacking = Some(why);
            }
        }
        lacking
    }
}

/// Whether trying again cannot help.
fn ends_for_good(why: &Error) -> bool {
    matches!(
        why,
        Error::Lost { .. }
            | Error::OtherWriter { .. }
            | Error::OtherVolume { .. }
            | Error::Unsealing(_)
            | Error::NoEncryption
            | Error::Url(_)
    )
}
