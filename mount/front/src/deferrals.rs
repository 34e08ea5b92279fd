//! Leases and deferred calls of programs ([`cairnfs_channel`] has the protocol): which leases there are, and
//! what ends them or carries out the calls before others look.
//!
//! A program has a lease on a file that it has made by its channel, as long as the kernel does not know the
//! file. So others can reach the file in these ways only, and each carries out first what was deferred:
//!
//! | Way | What is done first |
//! |---|---|
//! | a call of any program by a channel | the serving thread carries it out |
//! | the kernel looks the file up | the leases of the program end ([`Deferrals::end_leases`]) |
//! | the kernel lists a directory, with references | all leases end, and none is given meanwhile ([`Deferrals::suspend`]) |
//! | the tree is replaced, the mount ends | the same |
//! | a fork, a sync, a backup; any message of the kernel, for the order of times | what is deferred by then is carried out ([`Deferrals::finish`]) |
//!
//! Space for what may be deferred is set aside before a lease is given, so a write that was accepted does not
//! fail for want of space.
//!
//! A thread that waits for the serving thread holds no lock and no references.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairnfs::fs::FileSystem;
use cairnfs_channel::{DEFERRED, DaemonEnd, Joiner, PAYLOAD};
use cairnfs_core::fs::SetAside;
use cairnfs_disk::format::BLOCK_SIZE;
use parking_lot::{Mutex, RwLock};

use crate::fault::{InjectedFault, is_injected};

/// Blocks of a write: it may begin and end within one.
const BLOCKS: u64 = (PAYLOAD / BLOCK_SIZE) as u64 + 1;

/// A program that may defer calls.
struct Deferring {
    number: u64,
    end: Arc<DaemonEnd>,
    joiner: Joiner,
    aside: Mutex<Option<SetAside>>,
}

impl Deferring {
    fn end_leases(&self) {
        self.joiner.end_leases(self.number, &self.end);
    }
}

/// The programs that may defer calls.
#[derive(Default)]
pub(crate) struct Deferrals {
    channels: RwLock<BTreeMap<u64, Arc<Deferring>>>,
    /// How many there are, for each message of the kernel without the lock.
    count: AtomicUsize,
    /// By how many no leases are to be given.
    suspended: AtomicUsize,
}

/// No leases are given while this exists.
pub(crate) struct Suspended<'d>(&'d Deferrals);

impl Drop for Suspended<'_> {
    fn drop(&mut self) {
        self.0.suspended.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Deferrals {
    /// A program has a channel.
    pub fn add(&self, number: u64, end: Arc<DaemonEnd>, joiner: Joiner) {
        let deferring = Arc::new(Deferring {
            number,
            end,
            joiner,
            aside: Mutex::default(),
        });
        self.channels.write().insert(number, deferring);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// A program has ended: carries out what it has deferred.
    pub fn remove(&self, number: u64) {
        if let Some(one) = self.one(number) {
            one.end_leases();
            let removed = self.channels.write().remove(&number);
            self.count
                .fetch_sub(usize::from(removed.is_some()), Ordering::SeqCst);
        }
    }

    /// How many programs have a channel.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn one(&self, number: u64) -> Option<Arc<Deferring>> {
        self.channels.read().get(&number).map(Arc::clone)
    }

    /// Those for which `wanted` holds.
    fn all(&self, wanted: impl Fn(&DaemonEnd) -> bool) -> Vec<Arc<Deferring>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let channels = self.channels.read();
        let all = channels.values().filter(|one| wanted(&one.end));
        all.map(Arc::clone).collect()
    }

    /// The epoch of a lease on a file that a program makes now; `None` if it gets none. References are
    /// excluded.
    pub fn lease(&self, number: u64, fs: &Arc<FileSystem>) -> Option<u64> {
        let one = self.one(number)?;
        // In this order: who suspends leases ends all epochs after that.
        let epoch = one.end.epoch();
        if self.suspended.load(Ordering::SeqCst) > 0 {
            return None;
        }
        if is_injected(InjectedFault::NothingSetAside) {
            return Some(epoch);
        }
        let mut aside = one.aside.lock();
        if !aside.as_ref().is_some_and(|aside| aside.is_of(fs)) {
            *aside = None;
            *aside = fs.set_aside(DEFERRED as u64, BLOCKS).ok();
        }
        aside.is_some().then_some(epoch)
    }

    /// Whether what a lease of this epoch permits may be deferred still.
    pub fn is_leased(&self, number: u64, epoch: u64) -> bool {
        self.one(number).is_some_and(|one| one.end.is_leased(epoch))
    }

    /// Ends the leases of a program, when all that it has deferred is carried out.
    pub fn end_leases(&self, number: u64) {
        if let Some(one) = self.one(number) {
            one.end_leases();
        }
    }

    /// Has a program defer nothing more by a lease of this epoch. Returns whether it had one; then what it has
    /// deferred may still have to be carried out. For the serving thread.
    pub fn end_epoch(&self, number: u64, epoch: u64) -> bool {
        let one = self.one(number).filter(|one| one.end.epoch() == epoch);
        one.is_some_and(|one| one.end.end_epoch() > epoch)
    }

    /// What a program has deferred meets trouble: it defers nothing more by its leases, and what was set aside
    /// for it can be used. For the serving thread.
    pub fn meets_trouble(&self, number: u64) {
        if let Some(one) = self.one(number) {
            one.end.end_epoch();
            *one.aside.lock() = None;
        }
    }

    /// Waits until what programs have deferred by now is carried out.
    pub fn finish(&self) {
        if is_injected(InjectedFault::DeferredNotFinished) {
            return;
        }
        for one in self.all(DaemonEnd::is_unfinished) {
            one.joiner.finish(one.number, &one.end);
        }
    }

    /// Ends all leases, as [`Self::end_leases`], and gives none before the result is dropped.
    pub fn suspend(&self) -> Suspended<'_> {
        self.suspended.fetch_add(1, Ordering::SeqCst);
        let suspended = Suspended(self);
        let all = self.all(|_| true);
        if !is_injected(InjectedFault::LeaseOutlivesListing) {
            all.iter().for_each(|one| one.end_leases());
        }
        suspended
    }

    /// Gives up the space that is set aside. Leases are suspended.
    pub fn give_up_space(&self) {
        for one in self.all(|_| true) {
            *one.aside.lock() = None;
        }
    }
}
