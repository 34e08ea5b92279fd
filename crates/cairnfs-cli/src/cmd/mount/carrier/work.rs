//! The thread that ships: it stores a moment, waits for the interval or an order, and stores the next
//! one if anything has changed.
//!
//! Nobody waits for it unless he asks to. A failure is logged, and the next moment is tried later, with
//! longer pauses after failures in a row; only what cannot pass, such as another writer, ends it for
//! good. An order is answered by a moment that was begun after it came. Layers are merged after all
//! answers. Uses the backup, the engine and the mounts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use cairnfs::Volume;
use cairnfs_backup::{
    Error, NewKey, Place, Shipped, Shipper, VolumeSource, WriterOptions, environment, shown,
};
use cairnfs_fuse::{MountOptions, Sessions};

use super::{Order, Orders, Outcome, Stored, UntilLast};
use crate::cmd::backup::now::writer_name;
use crate::cmd::mount::opening::OpenVolume;
use crate::roots::name_of;

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
}

impl Work {
    pub fn new(
        orders: &Arc<Orders>,
        (open, path, sessions): (&Arc<OpenVolume>, &Path, &Arc<Sessions>),
        options: &MountOptions,
    ) -> Self {
        let url = options.backup.as_deref().unwrap_or_default();
        Self {
            open: Arc::clone(open),
            sessions: Arc::clone(sessions),
            path: path.to_path_buf(),
            url: url.to_owned(),
            shown: shown(url),
            interval: options.backup_interval(),
            recipient: options.backup_recipient.clone(),
            orders: Arc::clone(orders),
        }
    }

    pub fn run(&self, orders: &Receiver<Order>) {
        let (mut shipper, mut taken) = (None, Vec::new());
        let mut pause = self.interval;
        loop {
            let mut is_last = false;
            taken.extend(orders.try_iter());
            let outcome = self.ship(&mut shipper);
            let goes_on = self.note(&outcome, &mut pause);
            for order in taken.drain(..) {
                is_last |= !matches!(order, Order::Now(_));
                if let Order::Now(answers) | Order::Last(answers) = order {
                    // Who has gone meanwhile needs no answer.
                    let _ = answers.send(outcome.clone());
                }
            }
            if !goes_on || is_last {
                return;
            }
            if let (Ok(_), Some(shipper)) = (&outcome, &mut shipper) {
                self.tidy(shipper);
            }
            match orders.recv_timeout(pause) {
                Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(order) => taken.push(order),
                Err(RecvTimeoutError::Timeout) => {}
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

    fn ship(&self, shipper: &mut Option<Shipper>) -> Outcome {
        let begun = Instant::now();
        let volume = Volume::from(self.open.get());
        let source = VolumeSource(&volume);
        let shipper = match shipper {
            Some(shipper) => shipper,
            None => shipper.insert(self.open_backup(&source)?),
        };
        let lacking = self.fetch(&volume);
        let shipped = shipper.ship(&source, &self.orders.ending)?;
        if let Shipped::Moment { moment, bytes, .. } = &shipped {
            tracing::debug!("{}: moment {}, {bytes} bytes", self.shown, moment.number);
        }
        let newest = shipper.writer().catalogue().moments().last();
        self.orders.record.stored(begun, &shipped, newest);
        Ok(Stored { lacking })
    }

    fn open_backup(&self, source: &VolumeSource<'_>) -> cairnfs_backup::Result<Shipper> {
        let ended = self.orders.ending.ended();
        let store = cairnfs_backup::open(&self.url, Place::Make, &environment(), &ended)?;
        let options = WriterOptions {
            name: writer_name(&self.path),
            new_key: self.recipient.clone().map(NewKey::Recipient),
            ..WriterOptions::default()
        };
        Shipper::open(Arc::new(store), source, options)
    }

    fn tidy(&self, shipper: &mut Shipper) {
        match shipper.tidy(&UntilLast(&self.orders.ending)) {
            Ok(()) | Err(Error::Interrupted) => {}
            Err(why) => tracing::warn!("{}: layers were not merged: {why}", self.shown),
        }
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
            | Error::Url(_)
    )
}
