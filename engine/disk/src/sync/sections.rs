//! Locks that measure the processor time of the sections that only one thread can be in.
//!
//! Compiled with the feature `sections` only, for the benchmark; in other builds nothing of it is
//! left. The types wrap those of `parking_lot`, with the same interfaces. An exclusive hold is
//! measured from acquisition to release by the thread's processor clock, so a thread that waits for
//! the device, or that the scheduler stopped, adds nothing; a shared hold is not measured. Holds
//! are summed by the type of the protected value and by the address of the lock: locks of one type
//! may be held by as many threads as there are locks, one lock by one thread.
//!
//! The clock is a system call. Its cost is measured once, and subtracted from every hold, also for
//! the holds within it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The exclusive holds of all locks of one type.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// The type of the protected value.
    pub name: &'static str,
    /// Number of locks that were held; at most [`MOST_LOCKS`] are told apart.
    pub locks: usize,
    /// Number of holds.
    pub holds: u64,
    /// Processor time of all holds, in nanoseconds.
    pub total: u64,
    /// Processor time of the holds of the lock that was held longest, in nanoseconds.
    pub longest: u64,
    /// The part of `total` in which the thread also held a lock of another type, by that type.
    pub within: HashMap<&'static str, u64>,
}

/// Locks of a type that are told apart in each thread; the others are summed as one type, but are
/// not candidates for the longest.
const MOST_LOCKS: usize = 512;

/// Holds of one lock: their number and nanoseconds.
type Holds = (u64, u64);

/// The holds of the locks of a type.
#[derive(Default)]
struct OfType {
    all: Holds,
    locks: HashMap<usize, Holds>,
    within: HashMap<&'static str, u64>,
}

/// The holds of a thread, by type.
#[derive(Default)]
struct Table {
    types: HashMap<&'static str, OfType>,
    /// The types of the locks that the thread holds, with their numbers.
    held: Vec<(&'static str, usize)>,
}

static ENABLED: AtomicBool = AtomicBool::new(false);
static TABLES: parking_lot::Mutex<Vec<Arc<parking_lot::Mutex<Table>>>> =
    parking_lot::Mutex::new(Vec::new());

thread_local! {
    static OWN: RefCell<Option<Arc<parking_lot::Mutex<Table>>>> = const { RefCell::new(None) };
    /// Nanoseconds that measuring took in this thread.
    static MEASURING: Cell<u64> = const { Cell::new(0) };
}

/// The number of processors to which the volume's threads are fitted; 0: those that there are.
static PROCESSORS: AtomicUsize = AtomicUsize::new(0);

/// Lets volumes that are opened afterwards have as many threads as with this number of processors.
pub fn assume_processors(processors: usize) {
    PROCESSORS.store(processors, Ordering::Relaxed);
}

/// Number of processors that this process may use, or what [`assume_processors`] was told.
pub fn processors() -> usize {
    match PROCESSORS.load(Ordering::Relaxed) {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        assumed => assumed,
    }
}

/// Starts or ends measuring. Holds that began while it was off are not counted.
pub fn enable(enabled: bool) {
    cost();
    ENABLED.store(enabled, Ordering::SeqCst);
}

/// Takes what was measured since the last call, the longest first.
pub fn take() -> Vec<Section> {
    let mut by_type: HashMap<&'static str, (Section, HashMap<usize, u64>)> = HashMap::new();
    for table in TABLES.lock().iter() {
        for (name, of_type) in std::mem::take(&mut table.lock().types) {
            let (section, longest) = by_type.entry(name).or_default();
            section.name = name;
            section.holds += of_type.all.0;
            section.total += of_type.all.1;
            for (lock, (_, nanos)) in of_type.locks {
                *longest.entry(lock).or_default() += nanos;
            }
            for (outer, nanos) in of_type.within {
                *section.within.entry(outer).or_default() += nanos;
            }
        }
    }
    let done = by_type.into_values().map(|(section, locks)| Section {
        locks: locks.len(),
        longest: locks.into_values().max().unwrap_or(0),
        ..section
    });
    let mut sections: Vec<Section> = done.collect();
    sections.sort_by_key(|section| std::cmp::Reverse(section.longest));
    sections
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    let nanos = seconds.as_nanos() + u128::from(time.tv_nsec.unsigned_abs());
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// What an empty hold seems to take, and what measuring it takes of the thread's time.
fn cost() -> (u64, u64) {
    static COST: OnceLock<(u64, u64)> = OnceLock::new();
    *COST.get_or_init(|| {
        const TIMES: u64 = 10_000;
        let empty = || {
            let start = now();
            now().saturating_sub(start)
        };
        let mut seen: Vec<u64> = (0..TIMES).map(|_| empty()).collect();
        seen.sort_unstable();
        let seems = seen.get(seen.len() / 2).copied().unwrap_or(0);
        let table = parking_lot::Mutex::new(Table::default());
        let start = now();
        for n in 0..TIMES {
            table.lock().begin("");
            let nanos = empty();
            table.lock().add("", n as usize % 64, nanos);
        }
        (seems, now().saturating_sub(start) / TIMES)
    })
}

/// An exclusive hold that is being measured.
struct Hold {
    name: &'static str,
    lock: usize,
    /// The time at its start, and what measuring had taken by then; `None` if it is not measured.
    start: Option<(u64, u64)>,
}

impl Hold {
    fn new<T: ?Sized>(lock: *const ()) -> Self {
        let name = std::any::type_name::<T>();
        Self {
            name,
            lock: lock.addr(),
            start: Self::begin(name),
        }
    }

    fn begin(name: &'static str) -> Option<(u64, u64)> {
        if !ENABLED.load(Ordering::Relaxed) {
            return None;
        }
        with_own(|own| own.begin(name));
        Some((now(), MEASURING.try_with(Cell::get).unwrap_or(0)))
    }

    fn pause(&mut self) {
        let Some((start, measuring)) = self.start.take() else {
            return;
        };
        let (seems, costs) = cost();
        let within = MEASURING.try_with(Cell::get).unwrap_or(0) - measuring;
        let nanos = now().saturating_sub(start).saturating_sub(seems + within);
        let _ = MEASURING.try_with(|all| all.set(all.get() + costs));
        with_own(|own| own.add(self.name, self.lock, nanos));
    }

    fn resume(&mut self) {
        self.start = Self::begin(self.name);
    }
}

/// Calls `f` with the table of this thread.
fn with_own(f: impl FnOnce(&mut Table)) {
    let _ = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        let own = own.get_or_insert_with(|| {
            let table = Arc::default();
            TABLES.lock().push(Arc::clone(&table));
            table
        });
        f(&mut own.lock());
    });
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.pause();
    }
}

impl Table {
    fn begin(&mut self, name: &'static str) {
        match self.held.iter_mut().find(|(held, _)| *held == name) {
            Some((_, locks)) => *locks += 1,
            None => self.held.push((name, 1)),
        }
    }

    fn add(&mut self, name: &'static str, lock: usize, nanos: u64) {
        let OfType { all, locks, within } = self.types.entry(name).or_default();
        if let Some((_, locks)) = self.held.iter_mut().find(|(held, _)| *held == name) {
            *locks -= 1;
        }
        self.held.retain(|(_, locks)| *locks > 0);
        for (outer, _) in self.held.iter().filter(|(outer, _)| *outer != name) {
            *within.entry(outer).or_default() += nanos;
        }
        let add = |holds: &mut Holds| *holds = (holds.0 + 1, holds.1 + nanos);
        add(all);
        if locks.len() < MOST_LOCKS || locks.contains_key(&lock) {
            add(locks.entry(lock).or_default());
        }
    }
}

/// As `parking_lot::Mutex`.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

/// As `parking_lot::MutexGuard`. The hold ends before the lock is released.
pub struct MutexGuard<'a, T: ?Sized> {
    hold: Hold,
    guard: parking_lot::MutexGuard<'a, T>,
}

/// As `parking_lot::MappedMutexGuard`.
pub struct MappedMutexGuard<'a, T: ?Sized> {
    _hold: Hold,
    guard: parking_lot::MappedMutexGuard<'a, T>,
}

impl<T> Mutex<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    fn held<'a>(&'a self, guard: parking_lot::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let hold = Hold::new::<T>((&raw const self.0).cast());
        MutexGuard { hold, guard }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.held(self.0.lock())
    }

    /// Takes the lock if no thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().map(|guard| self.held(guard))
    }

    /// The value; no thread can hold the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// A guard of a part of the value.
    pub fn map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> MappedMutexGuard<'a, U> {
        let Self { hold, guard } = this;
        let guard = parking_lot::MutexGuard::map(guard, part);
        MappedMutexGuard { _hold: hold, guard }
    }
}

/// As `parking_lot::Condvar`.
#[derive(Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// A condition variable without waiters.
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Releases the lock and waits for a notification.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.hold.pause();
        self.0.wait(&mut guard.guard);
        guard.hold.resume();
    }

    /// As [`Self::wait`], with a timeout.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
        guard.hold.pause();
        self.0.wait_for(&mut guard.guard, time);
        guard.hold.resume();
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// As `parking_lot::RwLock`.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

pub use parking_lot::RwLockReadGuard;

/// As `parking_lot::RwLockUpgradableReadGuard`; not measured before it is upgraded.
pub struct RwLockUpgradableReadGuard<'a, T: ?Sized> {
    lock: *const (),
    guard: parking_lot::RwLockUpgradableReadGuard<'a, T>,
}

/// As `parking_lot::RwLockWriteGuard`.
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    _hold: Hold,
    guard: parking_lot::RwLockWriteGuard<'a, T>,
}

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    fn address(&self) -> *const () {
        (&raw const self.0).cast()
    }

    fn held<'a>(&self, guard: parking_lot::RwLockWriteGuard<'a, T>) -> RwLockWriteGuard<'a, T> {
        let _hold = Hold::new::<T>(self.address());
        RwLockWriteGuard { _hold, guard }
    }

    /// Waits for a shared hold.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read()
    }

    /// Takes a shared hold if no thread has or waits for an exclusive one.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read()
    }

    /// Waits for the exclusive hold.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.held(self.0.write())
    }

    /// Takes the exclusive hold if no thread has one.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().map(|guard| self.held(guard))
    }

    /// Waits for the shared hold that can be upgraded.
    pub fn upgradable_read(&self) -> RwLockUpgradableReadGuard<'_, T> {
        RwLockUpgradableReadGuard {
            lock: self.address(),
            guard: self.0.upgradable_read(),
        }
    }
}

impl<'a, T: ?Sized> RwLockUpgradableReadGuard<'a, T> {
    /// Waits until no other thread has a shared hold.
    pub fn upgrade(this: Self) -> RwLockWriteGuard<'a, T> {
        let guard = parking_lot::RwLockUpgradableReadGuard::upgrade(this.guard);
        let _hold = Hold::new::<T>(this.lock);
        RwLockWriteGuard { _hold, guard }
    }
}

macro_rules! deref {
    ($($guard:ident)*) => {$(
        impl<T: ?Sized> Deref for $guard<'_, T> {
            type Target = T;
            fn deref(&self) -> &T {
                &self.guard
            }
        }
    )*};
}

macro_rules! deref_mut {
    ($($guard:ident)*) => {$(
        impl<T: ?Sized> DerefMut for $guard<'_, T> {
            fn deref_mut(&mut self) -> &mut T {
                &mut self.guard
            }
        }
    )*};
}

deref!(MutexGuard MappedMutexGuard RwLockUpgradableReadGuard RwLockWriteGuard);
deref_mut!(MutexGuard MappedMutexGuard RwLockWriteGuard);

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of the locks of this test only.
    struct Own(u64);

    fn work(own: &mut Own) {
        let start = now();
        while now() < start + 2_000_000 {
            own.0 += 1;
        }
    }

    #[test]
    fn exclusive_holds_are_summed_by_lock() {
        let locks = [Mutex::new(Own(0)), Mutex::new(Own(0))];
        let shared = RwLock::new(Own(0));
        enable(true);
        std::thread::scope(|scope| {
            for lock in [&locks[0], &locks[0], &locks[1]] {
                scope.spawn(|| work(&mut lock.lock()));
            }
            scope.spawn(|| work(&mut shared.write()));
            scope.spawn(|| drop(shared.read()));
        });
        enable(false);
        work(&mut locks[0].lock());
        let found = take();
        let own = found
            .iter()
            .find(|section| section.name.contains("tests::Own"));
        let own = own.unwrap();
        // The two mutexes and the exclusive hold; not the shared one, nor that after the end.
        assert_eq!((own.locks, own.holds), (3, 4));
        assert!(
            own.total >= 7_500_000 && own.longest >= 3_700_000,
            "{own:?}"
        );
        assert!(own.longest < own.total, "{own:?}");
        let outer = Mutex::new((Own(0), ()));
        enable(true);
        let hold = outer.lock();
        work(&mut locks[0].lock());
        drop(hold);
        work(&mut locks[0].lock());
        enable(false);
        let found = take();
        let own = found
            .iter()
            .find(|section| section.name.contains("tests::Own") && !section.name.contains('('));
        let own = own.unwrap();
        let within: Vec<u64> = own.within.values().copied().collect();
        assert!(
            within.len() == 1 && within[0] < own.total / 4 * 3,
            "{own:?}"
        );
        assert!(within[0] > own.total / 4, "{own:?}");
    }
}
