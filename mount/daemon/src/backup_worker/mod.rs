//! Ships the volume to a backup while it is mounted (`-o backup=URL,interval=TIME`).
//!
//! One thread for the volume, however many mounts it has, does all of it ([`work`]); here is what others
//! have of it: they ask it for a moment now (`cairnfs sync --backup`), wait for the next one (fsync with
//! `-o backup-sync`, [`waits`]), look what became of the moments (`cairnfs stats`), and have it store a last
//! one at the end of the last mount, for which they wait a bounded time. What keeps the backup small is
//! done beside it ([`maintenance`]). Uses the backup, the engine and the mounts.

mod maintenance;
mod record;
mod waits;
mod work;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cairnfs_backup::{Done, Ended, Error, NewKey, Place, Watch};
use cairnfs_fuse::ops::{AskBackup, AwaitBackup};
use cairnfs_fuse::{MountOptions, Sessions};

use self::record::Record;
use self::waits::Waits;
use self::work::Work;
use crate::inside;
use crate::opening::OpenVolume;

/// How long a mount waits for the directory of its backup before it goes on without having seen it.
const GLANCE: Duration = Duration::from_secs(1);

/// A request to the thread. The answer comes when the state at the time of the request is stored.
pub(crate) enum Order {
    /// A moment now.
    Now(Sender<Outcome>),
    /// A moment now, which is the last one.
    Last(Sender<Outcome>),
    /// Fsyncs that wait for the backup want a moment.
    Wake,
    /// A job beside the shipments has ended.
    Done(Box<cairnfs_backup::Result<Done>>),
    /// The end, without a moment.
    End,
}

/// Whether everything is in the store.
pub(crate) type Outcome = cairnfs_backup::Result<Stored>;

/// Everything is in the store that has reached the daemon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stored {
    /// Why some writes may be missing that the kernel has not sent to the daemon.
    pub lacking: Option<String>,
}

/// What others have of the backup of a mount.
pub(crate) struct Orders {
    to: Sender<Order>,
    ending: Ending,
    record: Record,
    patience: Duration,
    /// With `backup-sync`.
    waits: Option<Arc<Waits>>,
}

/// Tells the thread in the middle of its work that it shall end.
#[derive(Default)]
struct Ending {
    /// At once, also while a store does not answer.
    at_once: Arc<AtomicBool>,
    /// After a last moment, which does not wait for layers to be merged.
    soon: AtomicBool,
}

impl Ending {
    /// The same for a store.
    fn ended(&self) -> Ended {
        let at_once = Arc::clone(&self.at_once);
        Ended::when(move || at_once.load(Ordering::Relaxed))
    }
}

impl Watch for Ending {
    fn go_on(&self) -> cairnfs_backup::Result<()> {
        if self.at_once.load(Ordering::Relaxed) {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }
}

/// The same for work that a last moment does not need.
struct UntilLast<'a>(&'a Ending);

impl Watch for UntilLast<'_> {
    fn go_on(&self) -> cairnfs_backup::Result<()> {
        if self.0.soon.load(Ordering::Relaxed) {
            Err(Error::Interrupted)
        } else {
            self.0.go_on()
        }
    }
}

/// Refuses a URL, a recipient or a rule that no attempt could use.
///
/// # Errors
/// A text that names the word and the problem with it.
pub fn check(options: &MountOptions) -> Result<(), String> {
    let recipient = options.backup_recipient.clone().map(NewKey::Recipient);
    if let Some(Err(why)) = recipient.map(|key| key.encryption()) {
        return Err(format!("mount option backup-recipient: {why}"));
    }
    maintenance::rules(options)?;
    let Some(url) = options.backup.as_deref() else {
        return Ok(());
    };
    cairnfs_backup::usable(url)
        .map_err(|why| format!("mount option backup: {}: {why}", cairnfs_backup::shown(url)))
}

/// Refuses a directory for the backup that lies below the directory on which the volume is to be mounted. One
/// that does not answer is not waited for: the thread that ships looks again.
///
/// # Errors
/// A text that names the word and the problem with it.
pub fn check_place(options: &MountOptions, dir: &Path) -> Result<(), String> {
    let Some(url) = options.backup.as_deref() else {
        return Ok(());
    };
    let begun = Instant::now();
    let ended = Ended::when(move || begun.elapsed() > GLANCE);
    match inside::refuse_below(url, dir, &ended) {
        Ok(()) | Err(Error::Interrupted) => Ok(()),
        Err(why) => Err(format!("mount option backup: {why}")),
    }
}

/// Why nothing could be stored in the directory of the backup now; its mount goes on and tries again. Another
/// store is not asked, and a directory that does not answer is not waited for.
pub fn doubt(options: &MountOptions) -> Option<String> {
    let url = options.backup.as_deref()?;
    let begun = Instant::now();
    let ended = Ended::when(move || begun.elapsed() > GLANCE);
    match cairnfs_backup::open(url, Place::Make, &[], &ended) {
        Ok(_) | Err(Error::Interrupted) => None,
        Err(why) => Some(format!(
            "backup {}: {why}; nothing is stored until this is mended, `cairnfs stats` shows it",
            cairnfs_backup::shown(url)
        )),
    }
}

impl Orders {
    /// Those of the backup that the options of a first mount name, and where they come out.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn of(options: &MountOptions) -> io::Result<Option<(Arc<Self>, Receiver<Order>)>> {
        let Some(url) = options.backup.as_ref() else {
            return Ok(None);
        };
        let (to, taken) = channel();
        let orders = Self {
            to,
            ending: Ending::default(),
            record: Record::of(url, options.backup_interval()),
            patience: options.backup_patience(),
            waits: options.backup_sync.map(Waits::begin).transpose()?,
        };
        Ok(Some((Arc::new(orders), taken)))
    }

    /// How fsyncs wait for the backup, if they shall.
    pub fn await_backup(self: &Arc<Self>) -> Option<AwaitBackup> {
        let (waits, to) = (Arc::clone(self.waits.as_ref()?), self.to.clone());
        Some(Arc::new(move |answer| {
            waits.add(answer);
            // If the thread has ended, nothing waits any longer.
            let _ = to.send(Order::Wake);
        }))
    }

    /// Tells how it goes on.
    pub fn ask(self: &Arc<Self>) -> AskBackup {
        let orders = Arc::clone(self);
        Arc::new(move || orders.record.now())
    }

    /// Has a moment stored of all that was done until now; its outcome comes later.
    pub fn ship(&self) -> Receiver<Outcome> {
        self.order(Order::Now)
    }

    /// What is to be said when the receiver of [`Self::ship`] gets nothing.
    pub fn why_ended(&self) -> String {
        format!("the backup has ended{}", self.last_failure())
    }

    /// Runs the whole of the thread. Attempts and jobs survive their panics; one in between ends the backup,
    /// which is shown as any other end.
    fn carry(&self, work: impl FnOnce()) {
        let ended = caught("the thread of the backup has panicked", || {
            work();
            Ok(())
        });
        if let Err(why) = ended {
            self.record.failed(&why, true);
            tracing::error!("{}: the backup has ended: {why}", self.record.now().url);
        }
    }

    fn last_failure(&self) -> String {
        let last = self.record.last_error();
        last.map_or_else(String::new, |last| format!(": {last}"))
    }

    fn order(&self, order: impl FnOnce(Sender<Outcome>) -> Order) -> Receiver<Outcome> {
        let (answers, answer) = channel();
        // If the thread has ended, nobody answers, and the receiver finds that.
        let _ = self.to.send(order(answers));
        answer
    }

    fn store_last(&self) -> Option<String> {
        self.ending.soon.store(true, Ordering::Relaxed);
        match self.order(Order::Last).recv_timeout(self.patience) {
            Ok(Ok(Stored { lacking })) => lacking,
            Ok(Err(why)) => Some(why.to_string()),
            Err(RecvTimeoutError::Disconnected) => Some(self.why_ended()),
            Err(RecvTimeoutError::Timeout) => Some(format!(
                "it took longer than backup-wait={}{}",
                self.patience.as_secs_f64(),
                self.last_failure()
            )),
        }
    }
}

/// The thread that ships; it ends when this is dropped.
pub(crate) struct BackupWorker {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

impl BackupWorker {
    /// Begins to ship a volume.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn begin(
        (orders, taken): (Arc<Orders>, Receiver<Order>),
        (open, path, sessions): (&Arc<OpenVolume>, &Path, &Arc<Sessions>),
        options: &MountOptions,
    ) -> io::Result<Self> {
        let work = Work::new(&orders, (open, path, sessions), options);
        let of_thread = Arc::clone(&orders);
        let thread = thread::Builder::new().name("cairnfs-backup".into());
        let thread = thread.spawn(move || {
            let _closed = of_thread.waits.as_deref().map(waits::Closed);
            of_thread.carry(|| work.run(&taken));
        })?;
        Ok(Self {
            orders,
            thread: Some(thread),
        })
    }

    /// Has a last moment stored, and ends. Returns why it was not stored, if so: a store that does not
    /// answer is waited for as long as the options say.
    pub fn finish(self) -> Option<String> {
        match self.orders.patience {
            Duration::ZERO => None,
            _ => self.orders.store_last(),
        }
    }
}

impl Drop for BackupWorker {
    fn drop(&mut self) {
        self.orders.ending.at_once.store(true, Ordering::Relaxed);
        // It may have ended already.
        let _ = self.orders.to.send(Order::End);
        if let Some(thread) = self.thread.take() {
            // Its panics are caught.
            let _ = thread.join();
        }
    }
}

/// Runs a part of the backup; its panic is a failure like others, which `what` says, so that it is logged
/// and shown, and tried again.
fn caught<T>(
    what: &'static str,
    work: impl FnOnce() -> cairnfs_backup::Result<T>,
) -> cairnfs_backup::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(Error::Host {
            what,
            source: Arc::new(io::Error::other(text.unwrap_or("no text").to_owned())),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn orders() -> (Arc<Orders>, Receiver<Order>) {
        let options = MountOptions {
            backup: Some("/nowhere".into()),
            ..MountOptions::default()
        };
        Orders::of(&options).unwrap().unwrap()
    }

    #[test]
    fn a_panic_of_the_thread_ends_the_backup_and_is_shown() {
        let (orders, _taken) = orders();
        orders.carry(|| ());
        assert!(!orders.record.now().failing);
        orders.carry(|| panic!("on {}", "purpose"));
        let now = orders.record.now();
        assert!(now.failing && now.ended);
        let text = now.last_error.unwrap().text;
        assert!(text.contains("has panicked: on purpose"), "{text}");
        assert!(orders.why_ended().contains("on purpose"));
    }

    #[test]
    fn a_panic_of_an_attempt_is_a_failure() {
        let failed = caught("it has panicked", || -> cairnfs_backup::Result<()> {
            panic!("static")
        });
        assert_eq!(failed.unwrap_err().to_string(), "it has panicked: static");
        assert_eq!(caught("", || Ok(1)).unwrap(), 1);
    }
}
