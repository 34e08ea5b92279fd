//! Reservation of log and space for a transaction, before it takes a lock.
//!
//! A reservation is made while holding no lock of an inode's state, and covers the worst case. This
//! file combines log, space and caches: a reservation usually comes from [`Reservations`] alone,
//! one that finds the log full waits for a merge, and a request without space is refused before
//! anything is changed.
//!
//! # The life of a reservation
//!
//! Nothing of it is on the device. The caller holds no lock; each counter has its own.
//!
//! | From | To | Caused by |
//! |---|---|---|
//! | | held | [`Core::reserve`]: credit of the thread's cache, or of log and space, with a batch for the cache; for a head that inherits, also a charge for copies |
//! | | refused | no space, a volume that has failed or cannot be changed; what was taken of it is given back |
//! | held | returned | it is dropped without a commit: all of it goes to log and space |
//! | held | used | `Commit::finish`: the log bytes are the context's charge, the units are kept for the growth of the index, the rest is credit of the cache |
//! | used | taken | a merge, while no thread commits: the units are its `promised` ones |
//! | used | returned | a cancelled item leaves units over, which are credit again |
//! | credit | returned | the cache has too much; a sweep, when a reservation finds too little |
//! | | waiting | [`Core::reserve_delayed`]: delayed data, counted for its file |
//! | waiting | returned | [`Core::release_delayed`] |
//! | waiting | committed | writeback: its transaction uses the units that wait ([`Need::delayed`]) |
//!
//! 1. What is held, kept, waits or is credit is reserved in log and space, until it is given back.
//! 2. A transaction uses no more log bytes than it reserved.
//! 3. The units that a cache keeps suffice for the growth that it counts.
//! 4. A refused reservation leaves nothing reserved and no charge.

use crate::journal::vector::{charge_for, growth_apart};
use crate::space::{Class, Delayed, Space, growth_units};
use crate::txn::reservations::{Credit, Reservations};
use crate::txn::{Core, ItemStore};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};

/// The worst case of a transaction.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// Log bytes, as counted by [`charge_for`].
    pub log: i64,
    /// Units by which the index may grow.
    pub units: u64,
    /// Leaves of the index that it may touch. A head that inherits is charged for copies of them.
    pub leaves: u64,
    /// The class that decides which space reserve it may use for index growth.
    pub class: Class,
}

/// Leaves that any number of deletions of one transaction may touch and leave: those at the ends of
/// a range of deleted items, and around single ones.
const DELETED: usize = 8;

impl Need {
    /// The need of `puts` items with values of up to `len` bytes in total, and of `deletes`
    /// deletions.
    pub fn items(puts: usize, len: usize, deletes: usize) -> Self {
        let log = puts as i64 * charge_for(0) + charge_for(len) + deletes as i64 * charge_for(8);
        Self {
            log,
            units: growth_units(log + growth_apart(len)).max(1),
            // An item may bring another one with it, and a name may be an entry's second.
            leaves: (2 * puts + deletes.min(DELETED) + 2) as u64,
            class: Class::Ordinary,
        }
    }

    /// The same for delayed data, whose index growth was reserved when the data was accepted.
    pub fn delayed(self) -> Self {
        Self {
            units: 0,
            leaves: 0,
            class: Class::Merge,
            ..self
        }
    }

    /// The same, with access to the reserve for deletions.
    pub fn deleting(self) -> Self {
        let unfunded = InjectedFault::DeletionsUnfunded;
        let class = fault::or(unfunded, || Class::Delete, || Class::Ordinary);
        Self { class, ..self }
    }
}

/// What a head that inherits is charged for a transaction.
struct Charge<'a> {
    core: &'a Core,
    items: &'a ItemStore,
    leaves: u64,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        if self.leaves > 0 {
            let copies = self.core.merger.copies();
            copies.discharge(&self.core.space, self.items.payer(), self.leaves);
        }
    }
}

/// Log and index space that is reserved for a transaction.
pub struct Reservation<'a> {
    reservations: &'a Reservations,
    credit: Credit,
    charge: Option<Charge<'a>>,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.reservations.give_back(self.credit);
    }
}

impl Reservation<'_> {
    /// Takes the leaves that the head was charged, which the caller accounts for.
    pub(super) fn take_charge(&mut self) -> u64 {
        let charge = self.charge.as_mut();
        charge.map_or(0, |charge| std::mem::take(&mut charge.leaves))
    }

    /// What is left of it for later reservations once a transaction has used `log` bytes.
    pub(super) fn rest(mut self, log: i64) -> Credit {
        let reserved = self.credit.log;
        assert!(
            log <= reserved,
            "reservation invariant 2: a transaction needs {log} log bytes, {reserved} were reserved"
        );
        self.credit.log -= log;
        std::mem::take(&mut self.credit)
    }
}

impl Core {
    /// Reserves the worst case of a transaction that changes the tree `items`; waits for a merge if
    /// the log is full.
    ///
    /// # Errors
    /// No space for the growth of the index, or for copies of its nodes; a read-only or failed
    /// volume.
    pub fn reserve<'a>(&'a self, items: &'a ItemStore, need: Need) -> Result<Reservation<'a>> {
        self.check_changeable()?;
        self.check_held(need.class)?;
        let charge = if items.is_heir() && need.leaves > 0 {
            Some(self.charge(items, &need)?)
        } else {
            None
        };
        let credit = Credit {
            log: need.log,
            units: need.units,
        };
        if !self.reservations.take(credit)? {
            self.take_exactly(credit, need.class)?;
        }
        Ok(Reservation {
            reservations: &self.reservations,
            credit,
            charge,
        })
    }

    /// Charges a head for the copies that a transaction may need.
    fn charge<'a>(&'a self, items: &'a ItemStore, need: &Need) -> Result<Charge<'a>> {
        let copies = self.merger.copies();
        let refusal = || self.space.refusal(0, need.leaves, Class::Ordinary);
        let charge = |space: &Space| copies.charge(space, items.payer(), need.leaves, need.class);
        if self.reservations.reserve_with_sweep(charge)? {
            Ok(Charge {
                core: self,
                items,
                leaves: need.leaves,
            })
        } else {
            Err(refusal())
        }
    }

    /// Returns an error if the volume is read-only or has failed.
    pub fn check_changeable(&self) -> Result<()> {
        if self.read_only {
            Err(Error::ReadOnly)
        } else {
            self.storage.check()
        }
    }

    /// While writes are held because the host has no space: refuses requests that would add more.
    /// Deletions may go on until the memory limit is reached; writeback may go on because its data
    /// was accepted before.
    fn check_held(&self, class: Class) -> Result<()> {
        if !self.storage.is_holding() {
            return Ok(());
        }
        let refused = match class {
            Class::Ordinary | Class::Rewrite => true,
            Class::Delete => self.dirty_bytes() >= self.limits.dirty_hard,
            Class::Merge => false,
        };
        if refused {
            self.storage.retry_held()
        } else {
            Ok(())
        }
    }

    fn take_exactly(&self, need: Credit, class: Class) -> Result<()> {
        self.journal.reserve(need.log, self)?;
        let reserved = self.reserve_space(0, need.units, class);
        if reserved.is_err() {
            self.journal.ring().give(need.log);
        }
        reserved
    }

    /// Reserves data blocks and index units, using the reservation caches' credit if there is too
    /// little. The caller holds no lock of an inode's state.
    ///
    /// # Errors
    /// No space in the volume or on the host; a failed volume.
    pub fn reserve_space(&self, blocks: u64, units: u64, class: Class) -> Result<()> {
        let refusal = || self.space.refusal(blocks, units, class);
        self.reserve_with_sweep(class, |space| space.reserve(blocks, units, class), refusal)
    }

    /// The same for delayed data of the tree `items`, which waits in memory.
    pub fn reserve_delayed(&self, items: &ItemStore, want: Delayed, class: Class) -> Result<()> {
        let refusal = || self.space.refusal(want.blocks, 0, class);
        self.reserve_with_sweep(class, |space| space.reserve_delayed(want, class), refusal)?;
        // Counted before it is known whether the head inherits: a fork that comes between finds it.
        items.payer().1.add(want.leaves);
        if !items.is_heir() {
            return Ok(());
        }
        let copies = self.merger.copies();
        let charge = |space: &Space| copies.more_unwritten(space, items.payer(), class);
        let charged = match self.reservations.reserve_with_sweep(charge) {
            Ok(true) => return Ok(()),
            Ok(false) => Err(self.space.refusal(0, want.leaves, Class::Ordinary)),
            Err(error) => Err(error),
        };
        self.release_delayed(items, want);
        charged
    }

    /// Returns a reservation for delayed data, or the unused part of it.
    pub fn release_delayed(&self, items: &ItemStore, rest: Delayed) {
        self.space.release_delayed(rest);
        if rest.leaves > 0 {
            items.payer().1.sub(rest.leaves);
            if items.is_heir() {
                self.merger
                    .copies()
                    .less_unwritten(&self.space, items.payer());
            }
        }
    }

    fn reserve_with_sweep(
        &self,
        class: Class,
        attempt: impl Fn(&Space) -> Result<bool>,
        refusal: impl Fn() -> Error,
    ) -> Result<()> {
        self.storage.check()?;
        self.check_held(class)?;
        if self.reservations.reserve_with_sweep(attempt)? {
            Ok(())
        } else {
            Err(refusal())
        }
    }
}
